-- Moves a Postgres of the first compose file to the roles of roles.sql. Its only role, `flashsale`, was the superuser
-- and owned the tables. CHANGELOG.md says how to run this. If it breaks off, nothing has changed: run it again.
\set ON_ERROR_STOP on
set client_min_messages = warning;
\set superuser_password `cat /secrets/superuser`
-- A role cannot be renamed over its own connection.
drop role if exists flashsale_mover;
create role flashsale_mover login superuser;
\connect - flashsale_mover

begin;
\i /docker-entrypoint-initdb.d/roles.sql
do $$
declare
    item record;
begin
    for item in
        select oid::regclass as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v')
    loop
        execute format('alter table %s owner to flashsale_owner', item.name);
    end loop;
    -- The sequence of a column has followed its table; Postgres refuses to change its owner alone.
    for item in
        select oid::regclass as name from pg_class
        where relnamespace = 'public'::regnamespace and relkind = 'S' and relowner <> 'flashsale_owner'::regrole
    loop
        execute format('alter sequence %s owner to flashsale_owner', item.name);
    end loop;
    for item in select oid::regprocedure as name from pg_proc where pronamespace = 'public'::regnamespace loop
        execute format('alter routine %s owner to flashsale_owner', item.name);
    end loop;
end
$$;
grant select, insert, update, delete on all tables in schema public to flashsale_app;
grant usage on all sequences in schema public to flashsale_app;
alter role flashsale rename to postgres;
alter role postgres password :'superuser_password';
commit;

\connect - postgres
drop role flashsale_mover;
