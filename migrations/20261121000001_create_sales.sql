-- A sale, its items, its shards, and which shard may use how much of each item.

create table sales (
    sale_id uuid primary key,
    -- Carried by the ids of the sale's orders.
    number integer generated always as identity unique,
    name text not null check (length(name) between 1 and 200),
    state text not null default 'draft' check (state in ('draft', 'loading', 'active', 'paused', 'closed')),
    state_version bigint not null default 1 check (state_version > 0),
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    shards smallint not null check (shards between 1 and 256),
    payment_window_seconds integer not null check (payment_window_seconds between 1 and 86400),
    rate_limit integer not null check (rate_limit between 1 and 100000),
    rate_window_ms bigint not null check (rate_window_ms between 1 and 86400000),
    durability text not null check (durability in ('redis', 'replica', 'postgres')),
    -- Keys the shoppers' home shards and the orders' ids; never changes, so neither do they.
    secret bytea not null check (octet_length(secret) = 32),
    created_at timestamptz not null default now(),
    -- Set once the sale's keys have been removed from Redis.
    retired_at timestamptz,
    constraint sales_end_after_start check (ends_at > starts_at)
);

create table items (
    sale_id uuid not null references sales (sale_id),
    sku text not null check (sku ~ '^[A-Za-z0-9._-]{1,64}$'),
    position smallint not null check (position between 0 and 999),
    name text not null check (length(name) between 1 and 200),
    price_minor bigint not null check (price_minor between 0 and 10000000000),
    currency text not null check (currency ~ '^[A-Z]{3}$'),
    -- Units that the sale owns, restocks and withdrawals included.
    stock bigint not null check (stock between 0 and 1000000000),
    per_user_limit integer not null check (per_user_limit between 1 and 100000),
    primary key (sale_id, sku),
    unique (sale_id, position)
);

create table shards (
    sale_id uuid not null references sales (sale_id),
    shard smallint not null check (shard between 0 and 255),
    epoch bigint not null default 1 check (epoch > 0),
    -- The last event that was taken in, moved in the transaction that took it in.
    drained_epoch bigint not null default 0,
    drained_seq bigint not null default 0,
    primary key (sale_id, shard)
);

-- The arbiter. A shard may hold and sell what it is granted, and the grants of an item add up to its stock: so the
-- units held and sold can never exceed it, and no single row is written by every drain.
create table grants (
    sale_id uuid not null,
    sku text not null,
    shard smallint not null,
    granted bigint not null,
    held bigint not null default 0,
    sold bigint not null default 0,
    primary key (sale_id, sku, shard),
    foreign key (sale_id, sku) references items (sale_id, sku),
    foreign key (sale_id, shard) references shards (sale_id, shard),
    constraint grants_held_not_negative check (held >= 0),
    constraint grants_sold_not_negative check (sold >= 0),
    constraint grants_never_oversold check (held + sold <= granted)
);

create function check_grants_add_up() returns trigger language plpgsql as $$
declare
    owned bigint;
    given bigint;
begin
    select stock into owned from items where sale_id = new.sale_id and sku = new.sku;
    select sum(granted) into given from grants where sale_id = new.sale_id and sku = new.sku;
    if given is not null and given <> owned then
        raise exception 'the grants of % add up to %, its stock is %', new.sku, given, owned
            using errcode = 'check_violation', constraint = 'grants_add_up';
    end if;
    return null;
end $$;

-- Deferred, because a grant that moves leaves one row before it reaches the other. Fires only where grants change,
-- which is rare; selling and paying move held and sold.
create constraint trigger grants_add_up after insert or update of granted on grants
    deferrable initially deferred for each row execute function check_grants_add_up();
create constraint trigger items_add_up after update of stock on items
    deferrable initially deferred for each row execute function check_grants_add_up();
