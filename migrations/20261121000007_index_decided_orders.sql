-- Orders by state were indexed for the operators' counts, with every reserved order of a sale among them. While a
-- million orders were inserted for a measurement, the planner was seen to take that index instead of `orders_due` for
-- the job that expires, which then read a sale's reserved orders for each shard, for up to two seconds of every run.
-- Without them it cannot. What is reserved is counted by `orders_due`.

drop index orders_by_state;
create index orders_decided on orders (sale_id, state) where state <> 'reserved';
