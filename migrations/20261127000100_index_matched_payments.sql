-- no-transaction
-- Postgres looks for the payments of each order that `sale archive` deletes. Without this index it reads all payments each time.
create index concurrently payments_by_matched_order on payments (matched_order_id) where matched_order_id is not null;
