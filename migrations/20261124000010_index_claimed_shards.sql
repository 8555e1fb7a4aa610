-- no-transaction
-- Each batch of messages leaves out the shards that are being reconciled: few, of as many as there ever were.

create index concurrently shards_claimed on shards (sale_id, shard) where run_id like '?%';
