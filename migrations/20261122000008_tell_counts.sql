-- Live pages: which sales somebody watches, and how each instance answers their purchases. Both speak of the last seconds
-- alone. So they are unlogged: writing them waits for no disk, and a crash of Postgres empties them.

create unlogged table watched_sales (
    sale_id uuid primary key,
    watched_until timestamptz not null
);

create unlogged table told_counts (
    sale_id uuid not null,
    instance_id uuid not null,
    -- What operators call it by.
    instance text not null check (length(instance) between 1 and 300),
    told_at timestamptz not null default now(),
    -- For how long it had counted by then. All counts are since the beginning of that, so nothing is lost with a look that
    -- was missed.
    counted_seconds float8 not null check (counted_seconds >= 0),
    counts jsonb not null check (jsonb_typeof(counts) = 'object'),
    primary key (sale_id, instance_id)
);
