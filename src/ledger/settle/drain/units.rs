//! Counts the units of new orders as held by their shard's grants. If these do not suffice, the other shards' grants
//! move there. Orders for which no shard has units are revoked.

use super::{InsertedOrder, Savepoint};
use crate::domain::ids::SaleId;
use crate::domain::order::OrderState;
use crate::domain::time::Millis;
use crate::ledger::outbox::{Message, send_all};
use crate::ledger::{small, step};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, HashMap};
use tracing::Instrument as _;
use uuid::Uuid;

/// Where the units of a batch come from. An update that finds too few units on a shard's own grant may keep that row
/// locked. Gathering locks the grants of all shards in their order. So the first attempt is undone before the second,
/// or two drains would wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitSource {
    /// The shard's own grant alone.
    Own,
    Gathered,
}

impl UnitSource {
    /// The sources to try, one after the other.
    pub(super) const fn to_try(self) -> &'static [Self] {
        match self {
            Self::Own => &[Self::Own, Self::Gathered],
            Self::Gathered => &[Self::Gathered],
        }
    }
}

/// Orders that were not in the ledger before.
#[derive(Default)]
pub(super) struct NewOrders {
    /// Those whose units are held, with their deadlines.
    pub(super) held: HashMap<Uuid, DateTime<Utc>>,
    /// How many others were revoked.
    pub(super) revoked: usize,
}

/// Counts the units of new orders as held. `None` when the shard's own units were asked for and do not suffice.
pub(super) async fn hold_units(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    inserted: &[InsertedOrder],
    now: Millis,
    units: UnitSource,
) -> Result<Option<NewOrders>, sqlx::Error> {
    let mut new = NewOrders::default();
    new.held.extend(inserted.iter().map(|it| (it.order, it.expires_at)));
    let mut by_sku: BTreeMap<&str, Vec<&InsertedOrder>> = BTreeMap::new();
    for order in inserted {
        by_sku.entry(order.sku.as_str()).or_default().push(order);
    }
    if units == UnitSource::Own {
        let sum = |orders: &[&InsertedOrder]| orders.iter().map(|order| order.quantity).sum();
        let wanted = by_sku.iter().map(|(sku, orders)| (*sku, sum(orders))).collect();
        return Ok(hold_own(tx, sale, shard, &wanted).await?.then_some(new));
    }
    // In the order of the SKUs, so that two drains never wait for each other.
    for (sku, orders) in by_sku {
        for refused in hold(tx, sale, shard, sku, orders, now).await? {
            new.held.remove(&refused.order);
            new.revoked += 1;
        }
    }
    Ok(Some(new))
}

/// Counts units of new orders as held, by SKU, if the shard's own grants suffice for each. The grants are locked in the
/// order of the SKUs, so that two drains never wait for each other. That order is by bytes, as everywhere else, not by
/// the database's collation.
///
/// Postgres plans the statement without knowing how many SKUs come. It would join them by a nested loop, which costs
/// more than everything else for a thousand items. So the index finds the SKUs, and a JSON document has their units.
pub(super) async fn hold_own(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    wanted: &BTreeMap<&str, i64>,
) -> Result<bool, sqlx::Error> {
    let skus: Vec<String> = wanted.keys().map(|sku| (*sku).to_owned()).collect();
    let held = sqlx::query!(
        "with locked as materialized ( \
             select g.sku from grants g where g.sale_id = $1 and g.sku = any($3) and g.shard = $2 \
             order by g.sku collate \"C\" for no key update) \
         update grants g set held = g.held + ($4::jsonb ->> g.sku)::int8 \
         where g.sale_id = $1 and g.sku = any(array(select l.sku from locked l)) and g.shard = $2 \
             and g.granted - g.held - g.sold >= ($4::jsonb ->> g.sku)::int8",
        sale.0,
        small(shard),
        &skus,
        serde_json::to_value(wanted).map_err(|error| sqlx::Error::Encode(error.into()))?
    )
    .execute(&mut **tx)
    .instrument(step("hold units"))
    .await?;
    Ok(held.rows_affected() == wanted.len() as u64)
}

/// Counts the units of new orders as held, in their order, as far as the item has units. Revokes the other orders, and
/// returns them.
async fn hold<'a>(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    sku: &str,
    orders: Vec<&'a InsertedOrder>,
    now: Millis,
) -> Result<Vec<&'a InsertedOrder>, sqlx::Error> {
    let wanted: i64 = orders.iter().map(|order| order.quantity).sum();
    let mut free = gather(tx, sale, shard, sku, wanted).await?;
    let mut held = 0;
    let mut refused = Vec::new();
    for order in orders {
        if order.quantity <= free {
            free -= order.quantity;
            held += order.quantity;
        } else {
            refused.push(order);
        }
    }
    sqlx::query!(
        "update grants set held = held + $4 where sale_id = $1 and sku = $2 and shard = $3",
        sale.0,
        sku,
        small(shard),
        held
    )
    .execute(&mut **tx)
    .await?;
    revoke(tx, sale, shard, &refused, now).await?;
    Ok(refused)
}

/// Moves grants of the item to this shard, from the shards with the most free units. It ends when this shard has
/// `wanted` free, or no other shard has any; it returns what this shard then has free. It takes at least half of a
/// lender's free units. A shard that sells borrowed units is short again with the next batch, and each time the grants
/// of all shards are locked.
async fn gather(tx: &mut Savepoint<'_>, sale: SaleId, shard: u16, sku: &str, wanted: i64) -> Result<i64, sqlx::Error> {
    let rows = sqlx::query!(
        "select shard, granted - held - sold as \"free!\" from grants where sale_id = $1 and sku = $2 \
         order by shard for no key update",
        sale.0,
        sku
    )
    .fetch_all(&mut **tx)
    .await?;
    let (own, mut others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.shard == small(shard));
    let mut free = own.first().map_or(0, |row| row.free);
    others.sort_by_key(|row| std::cmp::Reverse(row.free));
    for other in others {
        if free >= wanted || other.free <= 0 {
            break;
        }
        let moved = (wanted - free).max(other.free / 2).min(other.free);
        free += moved;
        sqlx::query!(
            "update grants set granted = granted + case shard when $3 then $5::int8 else -($5::int8) end \
             where sale_id = $1 and sku = $2 and shard in ($3, $4)",
            sale.0,
            sku,
            small(shard),
            other.shard,
            moved
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(free)
}

/// Revokes orders whose units the item does not have: Redis had lost that they were sold.
async fn revoke(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    orders: &[&InsertedOrder],
    now: Millis,
) -> Result<(), sqlx::Error> {
    if orders.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = orders.iter().map(|order| order.order).collect();
    tracing::error!(%sale, shard, orders = ids.len(), "orders were revoked: Redis sold units that it had sold before");
    sqlx::query!(
        "update orders set state = 'revoked', resolved_at = now() where order_id = any($1)",
        &ids
    )
    .execute(&mut **tx)
    .await?;
    let revoked = |it: &&InsertedOrder| {
        let units = (it.sku.clone(), it.quantity);
        let message = Message::resolve(it.order, &it.user, units, OrderState::Revoked, now);
        (shard, message)
    };
    let messages: Vec<_> = orders.iter().map(revoked).collect();
    send_all(tx, sale, &messages).await
}
