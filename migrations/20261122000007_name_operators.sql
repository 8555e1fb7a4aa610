-- What operators call themselves. There is one key for all of them, so nobody has proven it.

alter table console_sessions
    add column operator text check (length(operator) between 1 and 64);

alter table operator_actions
    add column operator text check (length(operator) between 1 and 64);
