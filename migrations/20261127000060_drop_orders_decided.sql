-- no-transaction
-- `orders_decided_by_time` begins with the same columns.
drop index concurrently orders_decided;
