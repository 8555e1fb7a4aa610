-- Who got the units of a sale, added up by all instances. No account and no address is kept.

create table sale_buyers (
    sale_id uuid not null references sales (sale_id) on delete cascade,
    -- What the units are counted by.
    measure text not null check (measure in ('attempts', 'first_seen', 'client', 'network')),
    -- A range of attempts or times, or one of 8,192 buckets that addresses share by their hash.
    bucket integer not null check (bucket >= 0),
    units bigint not null,
    primary key (sale_id, measure, bucket)
);

-- What each instance knows of accounts that have just bought. Rows are added up and deleted after five seconds. A crash
-- of Postgres empties the table.
create unlogged table recent_buyers (
    sale_id uuid not null references sales (sale_id) on delete cascade,
    -- A hash of the account.
    account bigint not null,
    instance uuid not null,
    -- Units that the account got at this instance; 0 if the instance only knows the account.
    units bigint not null check (units >= 0),
    -- Purchases that the account sent to this instance, up to its order.
    attempts bigint not null check (attempts >= 0),
    -- For how long this instance had known the account before its order; null if it had not.
    known_for_ms bigint check (known_for_ms >= 0),
    bought_at timestamptz not null,
    noted_at timestamptz not null default now(),
    primary key (sale_id, account, instance)
);
