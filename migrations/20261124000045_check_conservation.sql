-- What the last conservation check of each sale found. One process at a time claims a sale's check by `began_at`.
create table conservation_checks (
    sale_id uuid primary key references sales on delete cascade,
    began_at timestamptz not null,
    -- Units that no place accounts for, or that two do.
    difference int8 not null default 0,
    -- Held and sold units in which Redis and Postgres differ.
    drift int8 not null default 0
);
