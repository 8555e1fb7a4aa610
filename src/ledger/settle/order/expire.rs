//! Deadlines of orders: which shards have holds that ended, when units come back, and the transaction that expires
//! orders. A crash before its commit leaves them `reserved`, and the next run finds them.

use super::resolve::move_units;
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::order::OrderState;
use crate::domain::time::{Millis, from_millis};
use crate::ledger::outbox::{Message, send_all};
use crate::ledger::{Ledger, be_brief, begin_in_order, commit, small, step, unsigned, word};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;
use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

/// How long after its deadline an order may be stored and still expire at once, in milliseconds.
const LATE_MAX: Millis = 10_000;

/// A shard that has holds which may have ended.
#[derive(Debug, Clone, Copy)]
pub struct DueShard {
    pub sale: SaleId,
    pub shard: u16,
    /// How long a hold lasts without outages, in milliseconds.
    pub window: Millis,
    /// The first deadline of its holds without outages.
    pub first: Millis,
}

impl Ledger {
    /// The shards that have orders without a pending payment whose deadline without outages is past at `now` by Redis's
    /// clock, which set the deadlines. By Postgres's clock, deadlines within the next ten seconds count too.
    pub async fn shards_with_due_orders(&self, now: Option<Millis>) -> Result<Vec<DueShard>, Fault> {
        let mut query = self.due_holds.query(Instant::now());
        let rows = sqlx::query!(
            "select s.sale_id, s.shard, sales.payment_window_seconds, first.expires_at from shards s \
             join sales on sales.sale_id = s.sale_id and sales.retired_at is null cross join lateral \
                 (select o.expires_at from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                  and o.state = 'reserved' and o.expires_at >= coalesce($2::timestamptz, '-infinity') \
                  and o.expires_at <= greatest(now() + interval '10 seconds', $1) \
                  and not exists (select from payments p where p.outcome = 'pending' \
                      and p.order_id = o.order_id::text offset 0) order by o.expires_at limit 1) first",
            now.map(from_millis),
            query.from()
        )
        .fetch_all(&self.jobs)
        .await?;
        // A hold whose payment is pending may be left behind. A query of all times finds it once its payment is settled.
        if let Some(now) = now {
            let late = from_millis(now - LATE_MAX);
            query.reach(rows.iter().map(|row| row.expires_at).fold(late, DateTime::min));
            query.advance();
        }
        let shards = rows.into_iter().map(|row| {
            Ok(DueShard {
                sale: SaleId(row.sale_id),
                shard: unsigned(i64::from(row.shard))?,
                window: i64::from(row.payment_window_seconds) * 1000,
                first: row.expires_at.timestamp_millis(),
            })
        });
        shards.collect()
    }

    /// When the first hold of each item of these sales ends. It reads the 100 holds of each shard that end first; items
    /// that have none among them are left out, and so are sales without such an item.
    pub async fn next_releases(
        &self,
        sales: &[SaleId],
    ) -> Result<BTreeMap<SaleId, BTreeMap<Sku, DateTime<Utc>>>, Fault> {
        let ids: Vec<Uuid> = sales.iter().map(|sale| sale.0).collect();
        let rows = sqlx::query!(
            "select s.sale_id, held.sku as \"sku!\", min(held.expires_at + coalesce( \
                 (select sum(o.until - greatest(o.since, held.created_at)) from outages o \
                  where o.until > held.created_at), interval '0')) as \"ends_at!\" \
             from shards s cross join lateral \
                 (select o.sku, o.created_at, o.expires_at from orders o where o.sale_id = s.sale_id \
                  and o.shard = s.shard and o.state = 'reserved' order by o.expires_at limit 100) held \
             where s.sale_id = any($1) group by s.sale_id, held.sku",
            &ids
        )
        .fetch_all(&self.api)
        .await?;
        let mut releases = BTreeMap::<SaleId, BTreeMap<Sku, DateTime<Utc>>>::new();
        for row in rows {
            let of_sale = releases.entry(SaleId(row.sale_id)).or_default();
            of_sale.insert(word(&row.sku)?, row.ends_at);
        }
        Ok(releases)
    }

    /// Expires up to `max` orders of a shard; returns how many. Their deadline without outages is at or before `due`,
    /// and no pending payment names them. `now` is Redis's clock.
    pub async fn expire_due(&self, of: &DueShard, due: Millis, now: Millis, max: i64) -> Result<usize, Fault> {
        let (sale, shard) = (of.sale, of.shard);
        let mut tx = begin_in_order(&self.jobs).await?;
        be_brief(&mut tx).await?;
        // `offset 0` makes Postgres find each order's payment in the index. A join would read all pending payments.
        let rows = sqlx::query!(
            "update orders set state = 'expired', resolved_at = now(), expires_at = expires_at + coalesce( \
                 (select sum(o.until - greatest(o.since, created_at)) from outages o where o.until > created_at), \
                 interval '0') where order_id in \
             (select order_id from orders where sale_id = $1 and shard = $2 and state = 'reserved' \
              and expires_at >= $5 and expires_at <= $3 and not exists (select from payments p \
                  where p.outcome = 'pending' and p.order_id = orders.order_id::text offset 0) \
              order by expires_at limit $4 for update skip locked) \
             returning order_id, user_id, sku, quantity::int8 as \"quantity!\"",
            sale.0,
            small(shard),
            from_millis(due),
            max,
            from_millis(of.first)
        )
        .fetch_all(&mut *tx)
        .instrument(step("expire orders"))
        .await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let (mut units, mut messages) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for row in &rows {
            units.push((shard, row.sku.as_str(), row.quantity));
            let of = (row.sku.clone(), row.quantity);
            let message = Message::resolve(row.order_id, &row.user_id, of, OrderState::Expired, now);
            messages.push((shard, message));
        }
        move_units(&mut tx, sale, &units, false).await?;
        if bugs::has("expiry sends no message to the stock") {
            messages.clear();
        }
        send_all(&mut tx, sale, &messages).await?;
        commit(tx).await?;
        Ok(rows.len())
    }
}
