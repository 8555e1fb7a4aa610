-- no-transaction
-- Each instance asks more than once a second whether the sales in Redis have changed: few, of as many as there ever were.

create index concurrently sales_live on sales (number) where state <> 'draft' and retired_at is null;
