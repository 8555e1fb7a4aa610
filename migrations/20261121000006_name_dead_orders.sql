-- An event that says which order it is about, and cannot be taken in, has its order revoked.

alter table dead_letters add column order_id uuid;
