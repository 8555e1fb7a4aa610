-- Orders, and what is owed to the stock for what was decided about them.

create table orders (
    order_id uuid primary key,
    sale_id uuid not null,
    shard smallint not null,
    sku text not null,
    user_id text not null check (octet_length(user_id) between 1 and 128),
    idempotency_key text not null check (octet_length(idempotency_key) between 1 and 64),
    quantity integer not null check (quantity between 1 and 100000),
    amount_minor bigint not null check (amount_minor >= 0),
    currency text not null,
    state text not null default 'reserved'
        check (state in ('reserved', 'paid', 'cancelled', 'expired', 'revoked')),
    created_at timestamptz not null,
    expires_at timestamptz not null,
    paid_at timestamptz,
    resolved_at timestamptz,
    -- The event that announced it.
    epoch bigint not null,
    seq bigint not null,
    constraint orders_one_outcome_a_key unique (sale_id, user_id, idempotency_key),
    constraint orders_one_event_each unique (sale_id, shard, epoch, seq),
    constraint orders_expire_after_creation check (expires_at > created_at),
    constraint orders_paid_has_time check ((state = 'paid') = (paid_at is not null)),
    constraint orders_resolved_has_time check ((state = 'reserved') = (resolved_at is null)),
    foreign key (sale_id, sku) references items (sale_id, sku),
    foreign key (sale_id, shard) references shards (sale_id, shard)
);

create index orders_due on orders (sale_id, shard, expires_at) where state = 'reserved';
create index orders_by_state on orders (sale_id, state);

create function check_order_transition() returns trigger language plpgsql as $$
begin
    if old.state is distinct from new.state and old.state <> 'reserved' then
        raise exception 'order % cannot go from % to %', old.order_id, old.state, new.state
            using errcode = 'check_violation', constraint = 'orders_leave_reserved_once';
    end if;
    return new;
end $$;

create trigger orders_leave_reserved_once before update of state on orders
    for each row execute function check_order_transition();

-- Messages to the stock, written with the decision that they carry and deleted once they are applied. Each is
-- idempotent at the other end.
create table outbox (
    outbox_id bigint generated always as identity primary key,
    sale_id uuid not null,
    shard smallint not null,
    message jsonb not null,
    attempts integer not null default 0,
    not_before timestamptz not null default now(),
    -- Set when the stock refused it: an operator has to look.
    failure text,
    created_at timestamptz not null default now(),
    foreign key (sale_id, shard) references shards (sale_id, shard)
);

create index outbox_waiting on outbox (not_before, outbox_id) where failure is null;
create index outbox_by_shard on outbox (sale_id, shard);
create index outbox_failed on outbox (sale_id) where failure is not null;

-- Events that could not be taken in, with their bytes. Their units stay held until somebody decides.
create table dead_letters (
    sale_id uuid not null,
    shard smallint not null,
    epoch bigint not null,
    seq bigint not null,
    event bytea not null,
    reason text not null,
    created_at timestamptz not null default now(),
    primary key (sale_id, shard, epoch, seq)
);

-- Restocks and withdrawals, by the operator's idempotency key.
create table restocks (
    sale_id uuid not null,
    idempotency_key text not null,
    restock_id uuid not null unique,
    sku text not null,
    quantity bigint not null check (quantity <> 0),
    state text not null check (state in ('pending', 'applied', 'refused')),
    created_at timestamptz not null default now(),
    decided_at timestamptz,
    primary key (sale_id, idempotency_key),
    foreign key (sale_id, sku) references items (sale_id, sku),
    constraint restocks_decided_has_time check ((state = 'pending') = (decided_at is null))
);

create index restocks_pending on restocks (created_at) where state = 'pending';
