-- The accounts in the orders of a sale that was over for long are replaced page by page.

alter table sales
    -- The last order of the page before; null before the first page and after the last one.
    add column accounts_forgotten_to uuid,
    -- Set once no order has its account any more.
    add column accounts_forgotten_at timestamptz;
