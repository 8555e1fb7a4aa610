//! The claim under which a process rebuilds shards. A claim is one transaction. A crash ends the claim and changes
//! nothing here, so the shards are rebuilt again.

use super::standing::{ShardStanding, standings};
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, Sku, UserId};
use crate::domain::order::OrderState;
use crate::domain::order::event::Position;
use crate::domain::shopper::ban::Ban;
use crate::domain::time::Millis;
use crate::ledger::operate::ban::{banned, recent_bans};
use crate::ledger::outbox::{Message, send_all, waiting_of};
use crate::ledger::watch::audit::stock_of;
use crate::ledger::{Ledger, Tx, begin, commit, small, unsigned, word};
use chrono::{DateTime, Utc};
use futures_util::{Stream, StreamExt};
use std::collections::BTreeMap;
use uuid::Uuid;

/// An order, as its shard has to have it.
#[derive(Debug, Clone)]
pub struct RestoredOrder {
    pub user: UserId,
    pub id: OrderId,
    pub sku: Sku,
    pub quantity: u32,
    pub state: OrderState,
    pub created_at: Millis,
    /// When it left `reserved`; 0 while it has not.
    pub resolved_at: Millis,
    /// The event that announced it.
    pub event: Position,
}

/// Claimed shards: until this is dropped or committed, no other process drains them or decides about their orders.
pub struct RebuildClaim {
    tx: Tx,
    sale: SaleId,
    shards: Vec<i16>,
    /// Every shard of the sale.
    pub standings: BTreeMap<u16, ShardStanding>,
    /// Units that the sale owns, by SKU.
    pub stock: BTreeMap<Sku, i64>,
    /// Undelivered messages, with their shards.
    pub waiting: Vec<(u16, Message)>,
}

impl Ledger {
    /// Claims shards for a rebuild; `None` while another process has one of them. Until the claim ends, no process
    /// drains these shards, decides about their orders or delivers messages to them.
    pub async fn claim_rebuild(&self, sale: SaleId, shards: &[u16]) -> Result<Option<RebuildClaim>, Fault> {
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        let mut tx = begin(&self.jobs).await?;
        for statement in [
            "set local statement_timeout = '600s'",
            "set local idle_in_transaction_session_timeout = '60s'",
            // Enough to sort some hundred thousand orders of a shard in memory.
            "set local work_mem = '64MB'",
        ] {
            sqlx::query(statement).execute(&mut *tx).await?;
        }
        if !lock_shards(&mut tx, sale, &shards).await? || !lock_restocks(&mut tx, sale).await? {
            return Ok(None);
        }
        lock_decisions(&mut tx, sale, &shards).await?;
        let standings = standings(&mut tx, &[sale]).await?.into_iter();
        Ok(Some(RebuildClaim {
            standings: standings.map(|((_, shard), standing)| (shard, standing)).collect(),
            stock: stock_of(&mut tx, sale).await?,
            waiting: waiting_of(&mut tx, sale).await?,
            tx,
            sale,
            shards,
        }))
    }
}

/// Locks the shards for a rebuild. `false` while another process drains one of them, or rebuilds any of the sale.
async fn lock_shards(tx: &mut Tx, sale: SaleId, shards: &[i16]) -> Result<bool, Fault> {
    // No other process may rebuild the sale's other shards: this rebuild counts on their units.
    let alone = sqlx::query_scalar!(
        "select pg_try_advisory_xact_lock(hashtextextended($1::text, 0)) as \"alone!\"",
        sale.0.to_string()
    )
    .fetch_one(&mut **tx)
    .await?;
    if !alone {
        return Ok(false);
    }
    let claimed = sqlx::query_scalar!(
        "select shard from shards where sale_id = $1 and shard = any($2) for no key update skip locked",
        sale.0,
        shards
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(claimed.len() == shards.len())
}

/// Locks the sale's pending restocks. `false` while a process decides one: for a withdrawal, it has taken units out of
/// the shards.
async fn lock_restocks(tx: &mut Tx, sale: SaleId) -> Result<bool, Fault> {
    let undecided = sqlx::query_scalar!(
        "select count(*) as \"count!\" from restocks where sale_id = $1 and state = 'pending'",
        sale.0
    )
    .fetch_one(&mut **tx)
    .await?;
    let held = sqlx::query_scalar!(
        "select restock_id from restocks where sale_id = $1 and state = 'pending' for update skip locked",
        sale.0
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(i64::try_from(held.len()) == Ok(undecided))
}

/// Waits for those who deliver the sale's messages or decide orders of the shards, and keeps others from it. The job
/// `release` locks the messages that it delivers. A process that decides about an order locks its grant.
async fn lock_decisions(tx: &mut Tx, sale: SaleId, shards: &[i16]) -> Result<(), Fault> {
    sqlx::query!(
        "select outbox_id from outbox where sale_id = $1 order by outbox_id for update",
        sale.0
    )
    .fetch_all(&mut **tx)
    .await?;
    sqlx::query!(
        "select shard from grants where sale_id = $1 and shard = any($2) \
         order by sku collate \"C\", shard for no key update",
        sale.0,
        shards
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(())
}

struct OrderRow {
    order_id: Uuid,
    user_id: String,
    sku: String,
    quantity: i32,
    state: String,
    created_at: DateTime<Utc>,
    resolved_at: Option<DateTime<Utc>>,
    epoch: i64,
    seq: i64,
}

impl RebuildClaim {
    /// Every order of a claimed shard, grouped by shopper.
    pub fn orders(&mut self, shard: u16) -> impl Stream<Item = Result<RestoredOrder, Fault>> + '_ {
        sqlx::query_as!(
            OrderRow,
            "select order_id, user_id, sku, quantity, state, created_at, resolved_at, epoch, seq from orders \
             where sale_id = $1 and shard = $2 order by user_id",
            self.sale.0,
            small(shard)
        )
        .fetch(&mut *self.tx)
        .map(|row| {
            let row = row?;
            Ok(RestoredOrder {
                user: word(&row.user_id)?,
                id: OrderId(row.order_id),
                sku: word(&row.sku)?,
                quantity: unsigned(i64::from(row.quantity))?,
                state: word(&row.state)?,
                created_at: row.created_at.timestamp_millis(),
                resolved_at: row.resolved_at.map_or(0, |at| at.timestamp_millis()),
                event: Position {
                    epoch: row.epoch,
                    seq: row.seq,
                },
            })
        })
    }

    /// How many of these orders the ledger does not know.
    pub async fn unknown_orders(&mut self, orders: &[Uuid]) -> Result<i64, Fault> {
        if orders.is_empty() {
            return Ok(0);
        }
        let known = sqlx::query_scalar!(
            "select count(*) as \"known!\" from orders where order_id = any($1)",
            orders
        );
        let known = known.fetch_one(&mut *self.tx).await?;
        Ok(i64::try_from(orders.len()).unwrap_or(i64::MAX) - known)
    }

    /// [`Ledger::recent_bans`].
    pub async fn recent_bans(&mut self) -> Result<Vec<Ban>, Fault> {
        recent_bans(&mut self.tx).await
    }

    /// [`Ledger::banned`].
    pub async fn banned(&mut self, after: Option<&UserId>, max: i64) -> Result<Vec<Ban>, Fault> {
        banned(&mut self.tx, after, max).await
    }

    /// Releases the claim and leaves the shards as they are. Fails with `Unavailable` when Postgres does not answer:
    /// then it ends the claim by itself.
    pub async fn release(self) -> Result<(), Fault> {
        self.tx.rollback().await.map_err(Fault::from)
    }

    /// Commits the claimed shards' next generation: their epoch, their server, and how many orders each is known to
    /// have lost. Sends them the sale's state once more. Fails with `Unavailable` when Postgres does not answer: then
    /// the shards have to be rebuilt again.
    pub async fn finish(
        mut self,
        epochs: &BTreeMap<u16, i64>,
        servers: &BTreeMap<u16, Server>,
        lost: &BTreeMap<u16, i64>,
    ) -> Result<(), Fault> {
        let shards: Vec<u16> = self.shards.iter().map(|it| u16::try_from(*it).unwrap_or(0)).collect();
        let epochs: Vec<i64> = shards.iter().map(|it| epochs.get(it).copied().unwrap_or(0)).collect();
        let lost: Vec<i64> = shards.iter().map(|it| lost.get(it).copied().unwrap_or(0)).collect();
        let servers = shards.iter().map(|it| servers.get(it).map(Server::to_string));
        let servers: Vec<String> = servers.map(Option::unwrap_or_default).collect();
        sqlx::query!(
            "update shards s set epoch = n.epoch, run_id = n.run_id, drained_epoch = n.epoch, drained_seq = 0, \
             rebuilds = s.rebuilds + 1, rebuilt_at = now(), lost_orders = s.lost_orders + n.lost \
             from unnest($2::int2[], $3::int8[], $4::int8[], $5::text[]) as n (shard, epoch, lost, run_id) \
             where s.sale_id = $1 and s.shard = n.shard",
            self.sale.0,
            &self.shards,
            &epochs,
            &lost,
            &servers
        )
        .execute(&mut *self.tx)
        .await?;
        // The rebuild has written what these messages would deliver, also those that a shard had refused. Bans stay,
        // because a decision may be newer than the rebuild. Messages that only a newer version can read stay too: this
        // version has not written what they say.
        sqlx::query!(
            "delete from outbox where sale_id = $1 and shard = any($2) \
             and message->>'kind' in ('state', 'resolve', 'restock', 'withdrawn', 'give_back')",
            self.sale.0,
            &self.shards
        )
        .execute(&mut *self.tx)
        .await?;
        // The remaining messages may have been postponed while the shards were loading. Those that a shard had refused
        // are delivered once more.
        sqlx::query!(
            "update outbox set not_before = now(), failure = null where sale_id = $1 and shard = any($2)",
            self.sale.0,
            &self.shards
        )
        .execute(&mut *self.tx)
        .await?;
        let messages: Vec<(u16, Message)> = shards.into_iter().map(|it| (it, Message::State)).collect();
        send_all(&mut self.tx, self.sale, &messages).await?;
        commit(self.tx).await
    }
}
