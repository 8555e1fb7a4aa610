-- Orders are of an item and a shard of their sale. Two foreign keys said so, one order after the other: nearly half of what
-- it took to store one. Their shard and item have a grant together, and grants refer to both; so it is enough that the grant
-- is there, which is looked up once for all orders that one statement stores, and that grants stay.

alter table orders
    drop constraint orders_sale_id_sku_fkey,
    drop constraint orders_sale_id_shard_fkey;

create function check_orders_have_grants() returns trigger language plpgsql as $$
begin
    -- Locked as a foreign key does, so that no grant goes between the look and the commit.
    perform 1 from grants g
        where (g.sale_id, g.sku, g.shard) in (select distinct a.sale_id, a.sku, a.shard from added a)
        for key share;
    if exists (
        select from (select distinct a.sale_id, a.sku, a.shard from added a) a
            left join grants g using (sale_id, sku, shard) where g.sale_id is null
    ) then
        raise exception 'an order is of an item or a shard that its sale does not have'
            using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
    end if;
    return null;
end $$;

create trigger orders_have_grants after insert on orders
    referencing new table as added for each statement execute function check_orders_have_grants();

create function refuse_to_move() returns trigger language plpgsql as $$
begin
    if tg_table_name = 'grants' then
        if not exists (
            select from orders where sale_id = old.sale_id and sku = old.sku and shard = old.shard
        ) then
            return case tg_op when 'DELETE' then old else new end;
        end if;
    end if;
    raise exception 'a row of % keeps its sale, item and shard', tg_table_name
        using errcode = 'foreign_key_violation', constraint = 'orders_have_grants';
end $$;

create trigger orders_stay before update of sale_id, sku, shard on orders
    for each row execute function refuse_to_move();
create trigger grants_stay before delete or update of sale_id, sku, shard on grants
    for each row execute function refuse_to_move();
