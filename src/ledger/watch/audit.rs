//! The stock audit: what the ledger counts, for reports and for comparison with the stock.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{Alerts, OrderCounts};
use crate::domain::order::OrderState;
use crate::domain::order::event::Position;
use crate::ledger::outbox::{Message, waiting_of};
use crate::ledger::{Ledger, Tx, begin, small, unsigned, word};
use chrono::{DateTime, Utc};
use sqlx::PgPool;
use std::collections::{BTreeMap, BTreeSet};

/// The ledger's side of one shard, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardBooks {
    /// Its sums, without what is undelivered.
    pub sums: ShardSums,
    /// Undelivered messages to the shard, oldest first.
    pub waiting: Vec<Message>,
}

/// The ledger's side of one shard in sums, as of one moment. Its size depends on the items alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardSums {
    /// The last event that was drained.
    pub position: Option<Position>,
    /// Held and sold units by SKU.
    pub units: BTreeMap<Sku, (i64, i64)>,
    /// Units of decided orders whose messages are undelivered, by SKU: all of them, and those that were paid.
    pub undelivered: BTreeMap<Sku, (i64, i64)>,
}

/// The ledger's side of a sale in sums, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums {
    /// Units that the sale owns, by SKU.
    pub stock: BTreeMap<Sku, i64>,
    /// Restocks that are not decided.
    pub pending_restocks: i64,
    /// Each shard, by its number.
    pub shards: Vec<ShardSums>,
    /// Messages about restocks and withdrawals that wait in the outbox.
    pub waiting: Vec<Message>,
}

/// A shard whose grant of an item differs from its orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    pub shard: u16,
    pub sku: Sku,
    /// Held and sold units by the grant.
    pub granted: (i64, i64),
    /// Held and sold units by the orders.
    pub ordered: (i64, i64),
}

/// The units that a sale owns, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    pub stock: BTreeMap<Sku, i64>,
    /// Undelivered messages about units that entered or left the sale, with the shard.
    pub waiting: Vec<(u16, Message)>,
}

impl Ledger {
    /// Reads what a sale owns in one snapshot.
    pub async fn owned(&self, sale: SaleId) -> Result<Owned, Fault> {
        let mut tx = snapshot(&self.jobs).await?;
        let stock = stock_of(&mut tx, sale).await?;
        let rows = sqlx::query!(
            "select shard, message from outbox where sale_id = $1 \
             and message->>'kind' in ('restock', 'withdrawn') order by outbox_id",
            sale.0
        );
        let mut waiting = Vec::new();
        for row in rows.fetch_all(&mut *tx).await? {
            if let Ok(message) = Message::read(row.message) {
                waiting.push((unsigned(i64::from(row.shard))?, message));
            }
        }
        Ok(Owned { stock, waiting })
    }

    /// Held and sold units on these shards, by SKU.
    pub async fn kept_on(&self, sale: SaleId, shards: &BTreeSet<u16>) -> Result<BTreeMap<Sku, i64>, Fault> {
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        let kept = sqlx::query!(
            "select sku, sum(held + sold)::int8 as \"units!\" from grants \
             where sale_id = $1 and shard = any($2) group by sku",
            sale.0,
            &shards
        );
        let kept = kept.fetch_all(&self.jobs).await?;
        kept.into_iter().map(|row| Ok((word(&row.sku)?, row.units))).collect()
    }

    /// Reads the books of a sale's shards in one snapshot. Units come from the grants, so the cost does not depend on
    /// orders.
    pub async fn shard_books(&self, sale: SaleId, shards: u16) -> Result<Vec<ShardBooks>, Fault> {
        let mut tx = snapshot(&self.jobs).await?;
        let granted = granted(&mut tx, sale, shards).await?.into_iter();
        let books = granted.map(|sums| ShardBooks {
            sums,
            waiting: Vec::new(),
        });
        let mut books: Vec<ShardBooks> = books.collect();
        for (shard, message) in waiting_of(&mut tx, sale).await? {
            at(&mut books, shard)?.waiting.push(message);
        }
        Ok(books)
    }

    /// Reads a sale's sums in one snapshot. The cost depends on shards, items and the outbox, not on orders.
    pub async fn sums(&self, sale: SaleId, shards: u16) -> Result<Sums, Fault> {
        let mut tx = snapshot(&self.reports).await?;
        let mut sums = Sums {
            stock: stock_of(&mut tx, sale).await?,
            shards: granted(&mut tx, sale, shards).await?,
            ..Sums::default()
        };
        let pending = sqlx::query_scalar!(
            "select count(*) as \"count!\" from restocks where sale_id = $1 and state = 'pending'",
            sale.0
        );
        sums.pending_restocks = pending.fetch_one(&mut *tx).await?;
        // A message that cannot be read is left out: the job `release` reports it.
        let decided = sqlx::query!(
            "select shard, message->>'sku' as \"sku!\", sum((message->>'quantity')::int8)::int8 as \"units!\", \
             coalesce(sum((message->>'quantity')::int8) filter (where message->>'state' = 'paid'), 0)::int8 as \"paid!\" \
             from outbox where sale_id = $1 and message->>'kind' = 'resolve' \
             and jsonb_typeof(message->'sku') = 'string' and jsonb_typeof(message->'quantity') = 'number' \
             group by shard, message->>'sku'",
            sale.0
        );
        for row in decided.fetch_all(&mut *tx).await? {
            if let Ok(sku) = row.sku.parse() {
                at(&mut sums.shards, row.shard)?
                    .undelivered
                    .insert(sku, (row.units, row.paid));
            }
        }
        let waiting = sqlx::query_scalar!(
            "select message from outbox where sale_id = $1 \
             and message->>'kind' in ('restock', 'withdrawn', 'give_back') order by outbox_id",
            sale.0
        );
        let waiting = waiting.fetch_all(&mut *tx).await?;
        sums.waiting = waiting
            .into_iter()
            .filter_map(|message| Message::read(message).ok())
            .collect();
        Ok(sums)
    }

    /// The shards and items whose grants differ from the sum of their orders. Reads every order of the sale.
    pub async fn misfits(&self, sale: SaleId) -> Result<Vec<Misfit>, Fault> {
        let mut tx = snapshot(&self.reports).await?;
        sqlx::query!("set local statement_timeout = '60s'")
            .execute(&mut *tx)
            .await?;
        let misfits = sqlx::query!(
            "select shard as \"shard!\", sku as \"sku!\", coalesce(g.held, 0) as \"granted_held!\", \
             coalesce(g.sold, 0) as \"granted_sold!\", coalesce(o.held, 0) as \"ordered_held!\", \
             coalesce(o.sold, 0) as \"ordered_sold!\" \
             from (select shard, sku, held, sold from grants where sale_id = $1) g \
             full join (select shard, sku, coalesce(sum(quantity) filter (where state = 'reserved'), 0)::int8 as held, \
                 coalesce(sum(quantity) filter (where state = 'paid'), 0)::int8 as sold \
                 from orders where sale_id = $1 group by shard, sku) o using (shard, sku) \
             where coalesce(g.held, 0) <> coalesce(o.held, 0) or coalesce(g.sold, 0) <> coalesce(o.sold, 0) \
             order by sku, shard",
            sale.0
        );
        let misfits = misfits.fetch_all(&mut *tx).await?;
        let misfits = misfits.into_iter().map(|row| {
            Ok(Misfit {
                shard: unsigned(i64::from(row.shard))?,
                sku: word(&row.sku)?,
                granted: (row.granted_held, row.granted_sold),
                ordered: (row.ordered_held, row.ordered_sold),
            })
        });
        misfits.collect()
    }

    /// Dead letters of a sale that name no order and are not settled: shard, position and reason.
    pub async fn unreadable_events(&self, sale: SaleId) -> Result<Vec<(u16, Position, String)>, Fault> {
        let dead = sqlx::query!(
            "select shard, epoch, seq, reason from dead_letters \
             where sale_id = $1 and order_id is null and settled_at is null order by shard, epoch, seq",
            sale.0
        );
        let dead = dead.fetch_all(&self.reports).await?;
        let events = dead.into_iter().map(|row| {
            let position = Position {
                epoch: row.epoch,
                seq: row.seq,
            };
            Ok((unsigned(i64::from(row.shard))?, position, row.reason))
        });
        events.collect()
    }

    /// How many orders a sale has in each state.
    pub async fn order_counts(&self, sale: SaleId) -> Result<OrderCounts, Fault> {
        let rows = sqlx::query!(
            "select 'reserved' as \"state!\", count(*) as \"count!\" from orders where sale_id = $1 and state = 'reserved' \
             union all \
             select state, count(*) from orders where sale_id = $1 and state <> 'reserved' group by state",
            sale.0
        )
        .fetch_all(&self.reports)
        .await?;
        let mut counts = OrderCounts::default();
        for row in rows {
            let count = match word(&row.state)? {
                OrderState::Reserved => &mut counts.reserved,
                OrderState::Paid => &mut counts.paid,
                OrderState::Cancelled => &mut counts.cancelled,
                OrderState::Expired => &mut counts.expired,
                OrderState::Revoked => &mut counts.revoked,
            };
            *count = row.count;
        }
        Ok(counts)
    }

    /// When the first hold ends: of one sale, or of all that Redis has.
    pub async fn oldest_hold(&self, sale: Option<SaleId>) -> Result<Option<DateTime<Utc>>, Fault> {
        // Shard by shard, as the index `orders_due` has them: one lookup for each shard.
        let oldest = sqlx::query_scalar!(
            "select min(first.expires_at + coalesce( \
                 (select sum(a.until - greatest(a.since, first.created_at)) from outages a \
                  where a.until > first.created_at), interval '0')) from shards s \
             join sales on sales.sale_id = s.sale_id and sales.retired_at is null cross join lateral \
                 (select o.expires_at, o.created_at from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                  and o.state = 'reserved' order by o.expires_at limit 1) first \
             where $1::uuid is null or s.sale_id = $1",
            sale.map(|sale| sale.0)
        );
        oldest.fetch_one(&self.reports).await.map_err(Fault::from)
    }

    /// Audit findings that need an operator: in one sale, or anywhere. A payment without an order belongs to no sale,
    /// so it counts everywhere.
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
        .await?;
        Ok(Alerts {
            dead_letters: row.dead,
            failed_releases: row.failed,
            refunds_due: row.refunds,
            unmatched_payments: row.unmatched,
            lost_orders: row.lost,
        })
    }
}

/// A read-only transaction that sees the ledger as of one moment.
async fn snapshot(pool: &PgPool) -> Result<Tx, Fault> {
    let mut tx = begin(pool).await?;
    sqlx::query!("set transaction isolation level repeatable read, read only")
        .execute(&mut *tx)
        .await?;
    Ok(tx)
}

fn at<T>(shards: &mut [T], shard: impl Into<i64>) -> Result<&mut T, Fault> {
    let shard: i64 = shard.into();
    let index: usize = unsigned(shard)?;
    let found = shards.get_mut(index);
    found.ok_or_else(|| Fault::Bug(format!("the ledger has a shard {shard} too many")))
}

/// The positions of a sale's shards and the units in their grants, without what is undelivered.
async fn granted(tx: &mut Tx, sale: SaleId, shards: u16) -> Result<Vec<ShardSums>, Fault> {
    let mut sums = vec![ShardSums::default(); usize::from(shards)];
    let positions = sqlx::query!(
        "select shard, drained_epoch, drained_seq from shards where sale_id = $1",
        sale.0
    );
    for row in positions.fetch_all(&mut **tx).await? {
        let position = Position {
            epoch: row.drained_epoch,
            seq: row.drained_seq,
        };
        at(&mut sums, row.shard)?.position = Some(position);
    }
    let grants = sqlx::query!("select shard, sku, held, sold from grants where sale_id = $1", sale.0);
    for row in grants.fetch_all(&mut **tx).await? {
        let sku = word(&row.sku)?;
        at(&mut sums, row.shard)?.units.insert(sku, (row.held, row.sold));
    }
    Ok(sums)
}

/// Units that a sale owns, by SKU.
pub(in crate::ledger) async fn stock_of(tx: &mut Tx, sale: SaleId) -> Result<BTreeMap<Sku, i64>, Fault> {
    let items = sqlx::query!("select sku, stock from items where sale_id = $1", sale.0);
    let items = items.fetch_all(&mut **tx).await?;
    let stock = items.into_iter().map(|item| Ok((word(&item.sku)?, item.stock)));
    stock.collect()
}
