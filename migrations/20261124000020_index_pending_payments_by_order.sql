-- no-transaction
-- An order does not expire while a payment for it is pending.
create index concurrently payments_pending_by_order on payments (order_id) where outcome = 'pending';
