-- Grants keep their orders. One check for each deleted grant reads all orders that the same transaction has deleted, again and
-- again: 20 s for 1,600 grants beside 200,000 orders. So one check serves all grants that a statement deletes.

create function check_orders_keep_grants() returns trigger language plpgsql as $$
declare
    gone uuid;
begin
    for gone in select distinct sale_id from removed loop
        -- A sale without orders ends here. A join with `removed` could read the deleted orders for each grant.
        if exists (select from orders where sale_id = gone) then
            if exists (select from orders join removed using (sale_id, sku, shard) where sale_id = gone) then
                raise exception 'a row of % keeps its sale, item and shard', tg_table_name
                    using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
            end if;
        end if;
    end loop;
    return null;
end $$;

create or replace function refuse_to_move() returns trigger language plpgsql as $$
begin
    if tg_table_name = 'grants' then
        if not exists (
            select from orders where sale_id = old.sale_id and sku = old.sku and shard = old.shard
        ) then
            return new;
        end if;
    end if;
    raise exception 'a row of % keeps its sale, item and shard', tg_table_name
        using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
end $$;

create or replace trigger grants_stay before update of sale_id, sku, shard on grants
    for each row execute function refuse_to_move();
create trigger grants_keep_orders after delete on grants
    referencing old table as removed for each statement execute function check_orders_keep_grants();
