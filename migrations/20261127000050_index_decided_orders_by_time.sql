-- no-transaction
-- Operators list a sale's orders by time. Only a decision writes this index, so that storing an order costs the same.
create index concurrently orders_decided_by_time on orders (sale_id, state, created_at) where state <> 'reserved';
