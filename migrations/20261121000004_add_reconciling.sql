-- On which Redis server a shard was last reconciled, and what its rebuildings came to.

alter table shards
    -- The server's run id: another one after every restart, and on every replica.
    add column run_id text,
    add column rebuilds integer not null default 0,
    add column rebuilt_at timestamptz,
    -- Orders that a lost Redis had accepted and nobody else knows; at least so many.
    add column lost_orders bigint not null default 0;
