-- How a sale's purchases were answered, second by second. Instances add their counts up here.

create table sale_history (
    sale_id uuid not null references sales (sale_id) on delete cascade,
    -- The second, by the clock of Postgres.
    at timestamptz not null,
    -- Purchases by their answer: {"reserved": 12, "sold_out": 400}.
    answers jsonb not null,
    -- Answers by their longest duration in microseconds: {"1023": 412}.
    latency jsonb not null,
    primary key (sale_id, at)
);

-- The sums of two objects of counts.
create function add_counts(one jsonb, other jsonb) returns jsonb language sql immutable as $$
    select coalesce(jsonb_object_agg(key, total), '{}') from (
        select key, sum(value::bigint) as total
        from (select * from jsonb_each_text(one) union all select * from jsonb_each_text(other)) as both_of_them
        group by key
    ) as sums
$$;
