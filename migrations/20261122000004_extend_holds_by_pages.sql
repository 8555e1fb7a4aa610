-- Holds are extended page by page, so that millions of them neither take longer than a run of the job may nor keep
-- the drain from the shard meanwhile.

alter table shards
    -- Set while that goes on: of the outages after it, up to `extended_until`, the holds whose events come
    -- after `extending`, up to `extending_to`, have not had their share yet. What is drained meanwhile is stored
    -- with it.
    add column extending_since timestamptz,
    add column extending_epoch bigint not null default 0,
    add column extending_seq bigint not null default 0,
    add column extending_to_epoch bigint not null default 0,
    add column extending_to_seq bigint not null default 0;
