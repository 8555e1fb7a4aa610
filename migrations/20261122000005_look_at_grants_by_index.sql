-- The same check as before, by the index alone: a join with what was added is planned without knowing how many items that
-- is, and becomes one of all with all.

create or replace function check_orders_have_grants() returns trigger language plpgsql as $$
declare
    part record;
    there bigint;
begin
    for part in
        select a.sale_id, a.shard, array_agg(a.sku) as skus
        from (select distinct sale_id, shard, sku from added) a group by a.sale_id, a.shard
    loop
        -- Locked as a foreign key does, so that no grant goes between the look and the commit.
        perform 1 from grants g
            where g.sale_id = part.sale_id and g.sku = any(part.skus) and g.shard = part.shard
            for key share;
        get diagnostics there = row_count;
        if there < cardinality(part.skus) then
            raise exception 'an order is of an item or a shard that its sale does not have'
                using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
        end if;
    end loop;
    return null;
end $$;
