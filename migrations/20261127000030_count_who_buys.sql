-- Who got the units of a sale, added up by all instances. No account and no address is kept.

create table sale_buyers (
    sale_id uuid not null references sales (sale_id) on delete cascade,
    -- What the units are counted by.
    measure text not null check (measure in ('asks', 'first_look', 'client', 'network')),
    -- The bucket: a range of asks or ages, or one of 8,192 that addresses share by their hash.
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
    asks bigint not null check (asks >= 0),
    -- How long before its order the account first viewed the page or asked at this instance; null if it did not.
    look_age_ms bigint check (look_age_ms >= 0),
    bought_at timestamptz not null,
    noted_at timestamptz not null default now(),
    primary key (sale_id, account, instance)
);
