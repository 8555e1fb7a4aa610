-- Set once a shard's keys have been removed from Redis. A node that does not answer keeps only its own shards there.
alter table shards add column retired_at timestamptz;

-- The shards whose shoppers `retired_to` counts.
alter table sales add column retiring smallint[] not null default '{}';
