-- Guards: settings that every instance follows, and what they have stopped.

create table guard_settings (
    -- There is one row.
    one boolean primary key default true check (one),
    -- What operators have set over the configuration of the instances.
    settings jsonb not null default '{}' check (jsonb_typeof(settings) = 'object')
);

insert into guard_settings default values;

create table guard_stopped (
    sale_id uuid not null references sales (sale_id),
    layer text not null,
    stopped bigint not null check (stopped > 0),
    primary key (sale_id, layer)
);
