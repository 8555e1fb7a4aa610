-- When an operator closed a sale: its keys are kept for a day from then on, whatever its end.
alter table sales add column closed_at timestamptz;
update sales set closed_at = now() where state = 'closed';

-- The last shopper whose keys have been removed while the sale is retired.
alter table sales add column retired_to text not null default '';
