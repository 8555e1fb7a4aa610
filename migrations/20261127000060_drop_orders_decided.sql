-- no-transaction
-- `orders_decided_by_time` begins with the same columns. A drop that broke off left the index unfinished, and the next
-- `migrate` has dropped it before it comes here.
drop index concurrently if exists orders_decided;
