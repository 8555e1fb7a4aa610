//! How orders leave `reserved`: their rows, their messages to the stock and their units change in the caller's
//! transaction.

use crate::domain::ids::SaleId;
use crate::domain::order::{Order, OrderState};
use crate::domain::time::{Millis, from_millis};
use crate::ledger::outbox::{Message, send_each};
use crate::ledger::{small, step};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet};
use tracing::Instrument as _;
use uuid::Uuid;

/// An order that has just changed, and the message about it that waits in the outbox.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The order as it is now.
    pub order: Order,
    pub shard: u16,
    /// When it changed, by Postgres's clock.
    pub at: Millis,
    pub message: i64,
}

/// Moves orders of one sale, whose rows are locked, out of `reserved`: rows, messages, grants. Returns them with the time
/// of the decision by Postgres's clock, when their shoppers' cooldown begins. The grants come last: until the commit, every
/// other decision about their items waits for them.
pub(in crate::ledger) async fn resolve(
    tx: &mut PgConnection,
    orders: Vec<(Order, u16)>,
    state: OrderState,
) -> Result<Vec<Decided>, sqlx::Error> {
    let Some((first, _)) = orders.first() else {
        return Ok(Vec::new());
    };
    let (sale, paid) = (first.sale_id, state == OrderState::Paid);
    let ids: Vec<Uuid> = orders.iter().map(|(order, _)| order.id.0).collect();
    let deadlines: Vec<DateTime<Utc>> = orders.iter().map(|(order, _)| order.expires_at).collect();
    let times = sqlx::query_scalar!(
        "update orders o set state = $3, resolved_at = date_trunc('milliseconds', now()), \
             paid_at = case when $4 then date_trunc('milliseconds', now()) end, expires_at = d.expires_at \
         from unnest($1::uuid[], $2::timestamptz[]) as d (id, expires_at) where o.order_id = d.id \
         returning o.resolved_at as \"at!\"",
        &ids,
        &deadlines,
        state.as_str(),
        paid
    )
    .fetch_all(&mut *tx)
    .instrument(step("update orders"))
    .await?;
    // They all have the time of the transaction.
    let at = times.first().ok_or(sqlx::Error::RowNotFound)?.timestamp_millis();
    let message = |(order, shard): &(Order, u16)| {
        let units = (order.sku.to_string(), i64::from(order.quantity));
        let message = Message::resolve(order.id.0, order.user.as_str(), units, state, at);
        (*shard, message)
    };
    let messages: Vec<_> = orders.iter().map(message).collect();
    let messages = send_each(&mut *tx, sale, &messages).await?;
    let units = orders
        .iter()
        .map(|(order, shard)| (*shard, order.sku.as_str(), i64::from(order.quantity)));
    let units: Vec<_> = units.collect();
    move_units(tx, sale, &units, paid).await?;
    let decided = orders.into_iter().zip(messages).map(|((order, shard), message)| {
        let paid_at = paid.then(|| from_millis(at));
        Decided {
            order: Order {
                state,
                paid_at,
                ..order
            },
            shard,
            at,
            message,
        }
    });
    Ok(decided.collect())
}

/// Moves held units to sold, or frees them: so many of each SKU, by shard. Grants are locked in the order of their SKUs,
/// by bytes, then of their shards, so that two transactions never wait for each other.
///
/// A JSON document has the units for the same reason as in the drain: a join is planned without knowing how many come.
pub(super) async fn move_units(
    tx: &mut PgConnection,
    sale: SaleId,
    units: &[(u16, &str, i64)],
    sold: bool,
) -> Result<(), sqlx::Error> {
    let mut by_sku: BTreeMap<&str, BTreeMap<u16, i64>> = BTreeMap::new();
    for (shard, sku, quantity) in units {
        *by_sku.entry(*sku).or_default().entry(*shard).or_default() += *quantity;
    }
    let skus: Vec<&str> = by_sku.keys().copied().collect();
    let shards: BTreeSet<i16> = units.iter().map(|(shard, ..)| small(*shard)).collect();
    let shards: Vec<i16> = shards.into_iter().collect();
    sqlx::query!(
        "with locked as materialized ( \
             select g.sku from grants g where g.sale_id = $1 and g.sku = any($2) and g.shard = any($3) \
                 and $4::jsonb -> g.sku ? g.shard::text \
             order by g.sku collate \"C\", g.shard for no key update) \
         update grants g set held = g.held - ($4::jsonb -> g.sku ->> g.shard::text)::int8, \
             sold = g.sold + case when $5 then ($4::jsonb -> g.sku ->> g.shard::text)::int8 else 0 end \
         where g.sale_id = $1 and g.sku = any(array(select l.sku from locked l)) and g.shard = any($3) \
             and $4::jsonb -> g.sku ? g.shard::text",
        sale.0,
        &skus as &[&str],
        &shards,
        serde_json::to_value(&by_sku).map_err(|error| sqlx::Error::Encode(error.into()))?,
        sold
    )
    .execute(tx)
    .instrument(step("move units"))
    .await?;
    Ok(())
}
