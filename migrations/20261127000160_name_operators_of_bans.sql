-- Who banned the account, as in the audit log. Null for a guard, and for an operator who gave no name.

alter table bans
    add column operator text check (length(operator) between 1 and 64);
