-- A sale that nobody has counted has no result. The next checks insert the rows again.
delete from conservation_checks;
alter table conservation_checks
    alter column difference drop default,
    alter column difference drop not null,
    alter column drift drop default,
    alter column drift drop not null,
    -- When the sale was last counted completely; before the first time, when its check was first claimed.
    add column uncounted_since timestamptz not null default now();
