-- Orders by state were indexed for the operators' counts. But an index that has every reserved order of a sale looks
-- as good to the planner as `orders_due` while a table has no statistics yet, as in the first minute of a sale: then
-- the job that expires read all of them for each shard, every second. What is reserved is counted by `orders_due`.

drop index orders_by_state;
create index orders_decided on orders (sale_id, state) where state <> 'reserved';
