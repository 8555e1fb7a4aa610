-- no-transaction
-- Operators list payments by time, and export them in parts. Without this index, each part reads all payments.
create index concurrently payments_by_time on payments (outcome, received_at);
