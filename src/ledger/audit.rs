//! What the ledger counts, for reports.

use super::outbox::Message;
use super::{Ledger, Tx, begin, fault, unsigned};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Alerts, OrderCounts};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;

/// The ledger's side of one shard, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardBooks {
    /// The last event that was taken in.
    pub position: Option<Position>,
    /// Held and sold units by SKU.
    pub units: BTreeMap<Sku, (i64, i64)>,
    /// Held and sold units by SKU, as the orders add up; the grants must say the same.
    pub by_orders: BTreeMap<Sku, (i64, i64)>,
    /// Messages that the shard has not been told, oldest first.
    pub waiting: Vec<Message>,
    /// Events that could not be taken in, do not say of which order they are, and are not dealt with, with the reason.
    pub unreadable: Vec<(Position, String)>,
}

/// The ledger's side of a sale, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Books {
    /// Units that the sale owns, by SKU.
    pub stock: BTreeMap<Sku, i64>,
    /// Restocks that nobody has decided.
    pub pending_restocks: i64,
    /// Each shard, by its number.
    pub shards: Vec<ShardBooks>,
}

/// The units that a sale owns, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    /// How many, by SKU.
    pub stock: BTreeMap<Sku, i64>,
    /// What shards have not been told of units that came to the sale or left it, with the shard.
    pub waiting: Vec<(u16, Message)>,
}

impl Ledger {
    /// Reads what a sale owns in one snapshot.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn owned(&self, sale: SaleId) -> Result<Owned, Fault> {
        let mut tx = self.snapshot().await?;
        let stock = stock_of(&mut tx, sale).await?;
        let rows = sqlx::query!(
            "select shard, message from outbox where sale_id = $1 \
             and message->>'kind' in ('restock', 'withdrawn') order by outbox_id",
            sale.0
        );
        let mut waiting = Vec::new();
        for row in rows.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            if let Ok(message) = Message::read(row.message) {
                waiting.push((unsigned(i64::from(row.shard))?, message));
            }
        }
        Ok(Owned { stock, waiting })
    }

    /// A transaction in which everything is as of one moment.
    async fn snapshot(&self) -> Result<Tx, Fault> {
        let mut tx = begin(&self.reports).await?;
        sqlx::query!("set transaction isolation level repeatable read, read only")
            .execute(&mut *tx)
            .await
            .map_err(|error| fault(&error))?;
        Ok(tx)
    }

    /// Reads a sale's books in one snapshot.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn books(&self, sale: SaleId, shards: u16) -> Result<Books, Fault> {
        let mut tx = self.snapshot().await?;
        // All orders of a sale are added up.
        sqlx::query!("set local statement_timeout = '60s'")
            .execute(&mut *tx)
            .await
            .map_err(|error| fault(&error))?;
        let mut books = Books {
            stock: stock_of(&mut tx, sale).await?,
            shards: vec![ShardBooks::default(); usize::from(shards)],
            ..Books::default()
        };
        let pending = sqlx::query_scalar!(
            "select count(*) as \"count!\" from restocks where sale_id = $1 and state = 'pending'",
            sale.0
        );
        books.pending_restocks = pending.fetch_one(&mut *tx).await.map_err(|error| fault(&error))?;
        let positions = sqlx::query!(
            "select shard, drained_epoch, drained_seq from shards where sale_id = $1",
            sale.0
        );
        for row in positions.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            let position = Position {
                epoch: row.drained_epoch,
                seq: row.drained_seq,
            };
            books.shard(row.shard)?.position = Some(position);
        }
        let grants = sqlx::query!("select shard, sku, held, sold from grants where sale_id = $1", sale.0);
        for row in grants.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            let sku = super::word(&row.sku)?;
            books.shard(row.shard)?.units.insert(sku, (row.held, row.sold));
        }
        let orders = sqlx::query!(
            "select shard, sku, coalesce(sum(quantity) filter (where state = 'reserved'), 0)::int8 as \"held!\", \
             coalesce(sum(quantity) filter (where state = 'paid'), 0)::int8 as \"sold!\" \
             from orders where sale_id = $1 group by shard, sku",
            sale.0
        );
        for row in orders.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            let sku = super::word(&row.sku)?;
            books.shard(row.shard)?.by_orders.insert(sku, (row.held, row.sold));
        }
        let waiting = sqlx::query!(
            "select shard, message from outbox where sale_id = $1 order by outbox_id",
            sale.0
        );
        for row in waiting.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            if let Ok(message) = Message::read(row.message) {
                books.shard(row.shard)?.waiting.push(message);
            }
        }
        let dead = sqlx::query!(
            "select shard, epoch, seq, reason from dead_letters \
             where sale_id = $1 and order_id is null and settled_at is null order by shard, epoch, seq",
            sale.0
        );
        for row in dead.fetch_all(&mut *tx).await.map_err(|error| fault(&error))? {
            let position = Position {
                epoch: row.epoch,
                seq: row.seq,
            };
            books.shard(row.shard)?.unreadable.push((position, row.reason));
        }
        Ok(books)
    }

    /// How many orders a sale has in each state.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn order_counts(&self, sale: SaleId) -> Result<OrderCounts, Fault> {
        let rows = sqlx::query!(
            "select 'reserved' as \"state!\", count(*) as \"count!\" from orders where sale_id = $1 and state = 'reserved' \
             union all \
             select state, count(*) from orders where sale_id = $1 and state <> 'reserved' group by state",
            sale.0
        )
        .fetch_all(&self.reports)
        .await
        .map_err(|error| fault(&error))?;
        let mut counts = OrderCounts::default();
        for row in rows {
            match row.state.as_str() {
                "reserved" => counts.reserved = row.count,
                "paid" => counts.paid = row.count,
                "cancelled" => counts.cancelled = row.count,
                "expired" => counts.expired = row.count,
                _ => counts.revoked = row.count,
            }
        }
        Ok(counts)
    }

    /// When the oldest hold ends: of one sale, or of all that Redis has.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn oldest_hold(&self, sale: Option<SaleId>) -> Result<Option<DateTime<Utc>>, Fault> {
        // Shard by shard, as `orders_due` has them: one look into the index each.
        let oldest = sqlx::query_scalar!(
            "select min(first.expires_at) from shards s \
             join sales on sales.sale_id = s.sale_id and sales.retired_at is null cross join lateral \
                 (select o.expires_at from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                  and o.state = 'reserved' order by o.expires_at limit 1) first \
             where $1::uuid is null or s.sale_id = $1",
            sale.map(|sale| sale.0)
        );
        oldest.fetch_one(&self.reports).await.map_err(|error| fault(&error))
    }

    /// What needs an operator's eye: in one sale, or anywhere. A payment without an order belongs to no sale, so it
    /// counts everywhere.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn alerts(&self, sale: Option<SaleId>) -> Result<Alerts, Fault> {
        let row = sqlx::query!(
            "select (select count(*) from dead_letters where settled_at is null and ($1::uuid is null or sale_id = $1)) \
                 as \"dead!\", \
             (select count(*) from outbox where failure is not null and ($1::uuid is null or sale_id = $1)) \
                 as \"failed!\", \
             (select count(*) from payments p left join orders o on o.order_id = p.matched_order_id \
                 where p.outcome = 'refund_due' and p.refunded_at is null \
                     and ($1::uuid is null or o.sale_id = $1)) as \"refunds!\", \
             (select count(*) from payments where outcome = 'unmatched' and refunded_at is null) as \"unmatched!\", \
             (select coalesce(sum(lost_orders), 0)::int8 from shards where $1::uuid is null or sale_id = $1) \
                 as \"lost!\"",
            sale.map(|sale| sale.0)
        )
        .fetch_one(&self.reports)
        .await
        .map_err(|error| fault(&error))?;
        Ok(Alerts {
            dead_letters: row.dead,
            failed_releases: row.failed,
            refunds_due: row.refunds,
            unmatched_payments: row.unmatched,
            lost_orders: row.lost,
        })
    }
}

impl Books {
    fn shard(&mut self, shard: i16) -> Result<&mut ShardBooks, Fault> {
        let index: usize = unsigned(i64::from(shard))?;
        self.shards
            .get_mut(index)
            .ok_or_else(|| Fault::Bug(format!("the ledger has a shard {shard} too many")))
    }
}

/// Units that a sale owns, by SKU.
async fn stock_of(tx: &mut Tx, sale: SaleId) -> Result<BTreeMap<Sku, i64>, Fault> {
    let items = sqlx::query!("select sku, stock from items where sale_id = $1", sale.0);
    let items = items.fetch_all(&mut **tx).await.map_err(|error| fault(&error))?;
    items
        .into_iter()
        .map(|item| Ok((super::word(&item.sku)?, item.stock)))
        .collect()
}
