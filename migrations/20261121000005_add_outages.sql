-- Times in which nobody could decide about orders: holds are extended by them.

-- When a worker last came to the ledger; a gap is an outage.
create table heartbeat (
    one boolean primary key default true check (one),
    beaten_at timestamptz not null default now()
);
insert into heartbeat default values;

create table outages (
    since timestamptz not null,
    until timestamptz primary key check (until > since)
);

-- The holds of a shard have been extended by the outages up to this one.
alter table shards add column extended_until timestamptz not null default now();
