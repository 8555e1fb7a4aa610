-- Settings of the guards for a part of the shoppers. A version without them reads the other settings alone.
alter table guard_settings
    add column stages jsonb not null default '{}' check (jsonb_typeof(stages) = 'object');

-- What guards in shadow would have stopped. A guard may have such a count alone.
alter table guard_stopped
    add column would_stop bigint not null default 0 check (would_stop >= 0),
    drop constraint guard_stopped_stopped_check,
    add constraint guard_stopped_stopped_check check (stopped >= 0);
