//! Inserts the orders of a batch. An order whose key or event another order has makes its statement fail.

use super::units::hold_own;
use super::{BatchOrder, InsertedOrder, Savepoint};
use crate::domain::ids::SaleId;
use crate::domain::time::from_millis;
use crate::ledger::{small, step};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, HashSet};
use tracing::Instrument as _;
use uuid::Uuid;

/// Rows as Postgres takes them: column by column.
struct Columns<'a> {
    ids: Vec<Uuid>,
    skus: Vec<&'a str>,
    users: Vec<&'a str>,
    keys: Vec<&'a str>,
    quantities: Vec<i32>,
    amounts: Vec<i64>,
    currencies: Vec<&'a str>,
    created: Vec<DateTime<Utc>>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(rows: &[BatchOrder<'a>]) -> Self {
        let quantity = |row: &BatchOrder<'_>| i32::try_from(row.reserved.quantity).unwrap_or(i32::MAX);
        Self {
            ids: rows.iter().map(|row| row.reserved.order.0).collect(),
            skus: rows.iter().map(|row| row.item.sku.as_str()).collect(),
            users: rows.iter().map(|row| row.reserved.user.as_str()).collect(),
            keys: rows.iter().map(|row| row.reserved.key.as_str()).collect(),
            quantities: rows.iter().map(quantity).collect(),
            amounts: rows
                .iter()
                .map(|row| row.item.price_of(row.reserved.quantity))
                .collect(),
            currencies: rows.iter().map(|row| row.item.currency.as_str()).collect(),
            created: rows.iter().map(|row| from_millis(row.reserved.created_at)).collect(),
            epochs: rows.iter().map(|row| row.event.position.epoch).collect(),
            seqs: rows.iter().map(|row| row.event.position.seq).collect(),
        }
    }
}

/// The one statement that inserts orders, with a tail of its own. It unnests the columns in step. If they were functions
/// of `from`, Postgres would store each whole column before it reads the first row.
macro_rules! insert_orders {
    ($query:ident ! ($($row:ident,)?), $tail:literal, $sale:expr, $shard:expr, $columns:expr) => {
        sqlx::$query!(
            $($row,)?
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
                 currency, created_at, expires_at, epoch, seq) \
             select o.id, $1, $2, o.sku, o.user_id, o.key, o.quantity, o.amount, o.currency, o.created, \
                 o.created + s.payment_window_seconds * interval '1 second', o.epoch, o.seq \
             from (select unnest($3::uuid[]) as id, unnest($4::text[]) as sku, unnest($5::text[]) as user_id, \
                 unnest($6::text[]) as key, unnest($7::int4[]) as quantity, unnest($8::int8[]) as amount, \
                 unnest($9::text[]) as currency, unnest($10::timestamptz[]) as created, unnest($11::int8[]) as epoch, \
                 unnest($12::int8[]) as seq) as o \
             join sales s on s.sale_id = $1" + $tail,
            $sale.0,
            small($shard),
            &$columns.ids,
            &$columns.skus as &[&str],
            &$columns.users as &[&str],
            &$columns.keys as &[&str],
            &$columns.quantities,
            &$columns.amounts,
            &$columns.currencies as &[&str],
            &$columns.created,
            &$columns.epochs,
            &$columns.seqs
        )
    };
}

/// Inserts orders and counts their units as held by the shard's own grants. `false` when these do not suffice. Fails
/// also when the ledger has one of the orders.
pub(super) async fn insert_all(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    rows: &[BatchOrder<'_>],
) -> Result<bool, sqlx::Error> {
    let columns = Columns::of(rows);
    insert_orders!(query!(), "", sale, shard, columns)
        .execute(&mut **tx)
        .instrument(step("insert orders"))
        .await?;
    let mut wanted: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        *wanted.entry(row.item.sku.as_str()).or_default() += i64::from(row.reserved.quantity);
    }
    hold_own(tx, sale, shard, &wanted).await
}

/// Inserts the orders that the ledger does not have; returns them in their order.
pub(super) async fn insert_orders(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    rows: &[BatchOrder<'_>],
) -> Result<Vec<InsertedOrder>, sqlx::Error> {
    let columns = Columns::of(rows);
    let mut inserted = insert_orders!(
        query_as!(InsertedOrder,),
        " on conflict do nothing \
         returning order_id as \"order!\", user_id as \"user!\", sku as \"sku!\", \
             quantity::int8 as \"quantity!\", seq as \"seq!\", expires_at as \"expires_at!\"",
        sale,
        shard,
        columns
    )
    .fetch_all(&mut **tx)
    .instrument(step("insert orders"))
    .await?;
    refuse_strangers(tx, &columns.ids, &inserted).await?;

    inserted.sort_by_key(|order| order.seq);
    Ok(inserted)
}

/// Fails when an event was skipped although its own order is not in the ledger: another order has its key or its event.
async fn refuse_strangers(tx: &mut Savepoint<'_>, ids: &[Uuid], inserted: &[InsertedOrder]) -> Result<(), sqlx::Error> {
    if inserted.len() == ids.len() {
        return Ok(());
    }
    let new: HashSet<Uuid> = inserted.iter().map(|order| order.order).collect();
    let skipped: Vec<Uuid> = ids.iter().filter(|id| !new.contains(id)).copied().collect();
    // Raises a data error, which sends the event to the dead letters.
    sqlx::query_scalar!(
        "select case when exists (select from orders where order_id = id) then 1 \
         else ('order ' || id || ' has another order in its place')::int end as known \
         from unnest($1::uuid[]) as id",
        &skipped
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(())
}
