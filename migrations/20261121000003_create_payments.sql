-- Every payment that the provider ever told of; money is recorded, never dropped.

create table payments (
    payment_id text primary key check (octet_length(payment_id) between 1 and 255),
    webhook_id text not null unique check (octet_length(webhook_id) between 1 and 255),
    -- As the provider says: it need not be an order's id at all.
    order_id text not null check (octet_length(order_id) between 1 and 255),
    amount_minor bigint not null,
    currency text not null check (octet_length(currency) between 1 and 16),
    outcome text not null check (outcome in ('applied', 'refund_due', 'unmatched', 'pending')),
    -- Why money is owed back, for the operator.
    reason text,
    -- The order that it was matched with.
    matched_order_id uuid references orders (order_id),
    received_at timestamptz not null default now(),
    settled_at timestamptz,
    constraint payments_matched check ((outcome in ('applied', 'refund_due')) = (matched_order_id is not null)),
    constraint payments_settled_has_time check ((outcome = 'pending') = (settled_at is null))
);

create unique index payments_one_applied_an_order on payments (matched_order_id) where outcome = 'applied';
create index payments_pending on payments (received_at) where outcome = 'pending';
create index payments_to_look_at on payments (outcome) where outcome in ('refund_due', 'unmatched');
