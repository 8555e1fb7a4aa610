-- The message to the shoppers of a sale, by language. Not a column of `sales`: it is no term of the sale.

create table sale_messages (
    sale_id uuid primary key references sales (sale_id) on delete cascade,
    texts jsonb not null,
    changed_at timestamptz not null default now()
);
