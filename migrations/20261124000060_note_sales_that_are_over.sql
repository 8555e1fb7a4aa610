-- When a worker saw that Redis no longer sells the sale: it was closed, or its end has passed by Redis's clock.
alter table sales add column over_at timestamptz;
update sales set over_at = least(ends_at, closed_at)
where state not in ('draft', 'loading') and least(ends_at, closed_at) < now() - interval '24 hours';
