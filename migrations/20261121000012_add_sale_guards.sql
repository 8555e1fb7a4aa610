-- What a sale asks of its shoppers before it sells to them.

alter table sales add column guards jsonb not null default '{}' check (jsonb_typeof(guards) = 'object');
