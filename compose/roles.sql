-- The roles of the compose file, created once by the superuser in an empty Postgres. The role of `flashsale migrate`
-- owns the tables. The role of `flashsale serve` reads and writes their rows. It cannot create or change a table,
-- function or trigger.
\set owner_password `cat /secrets/owner`
\set app_password `cat /secrets/app`
create role flashsale_owner login password :'owner_password';
create role flashsale_app login password :'app_password';

revoke all on database :"DBNAME" from public;
grant connect on database :"DBNAME" to flashsale_owner, flashsale_app;
revoke all on schema public from public;
grant usage, create on schema public to flashsale_owner;
grant usage on schema public to flashsale_app;
-- These rights also hold for tables and sequences of later migrations.
alter default privileges for role flashsale_owner in schema public
    grant select, insert, update, delete on tables to flashsale_app;
alter default privileges for role flashsale_owner in schema public grant usage on sequences to flashsale_app;
