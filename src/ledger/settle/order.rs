//! Orders: read, cancelled, expired. A transaction that changes orders locks their rows first and the grants of their
//! items second. So paying, cancelling and expiring queue up, and only the first finds an order `reserved`. A crash
//! before its commit leaves the orders as they were.

mod expire;
mod list;
mod resolve;

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::event::Position;
use crate::domain::order::{Accepted, Order, OrderState};
use crate::ledger::recover::standing::NotedServer;
use crate::ledger::{Ledger, begin_unless_locked, commit, step, unless_locked, unsigned, word};
use chrono::{DateTime, Utc};
pub use expire::DueShard;
pub use resolve::Decided;
pub(super) use resolve::resolve;
use tracing::Instrument as _;
use uuid::Uuid;

pub(super) struct OrderRow {
    pub(super) order_id: Uuid,
    pub(super) sale_id: Uuid,
    pub(super) shard: i16,
    pub(super) sku: String,
    pub(super) user_id: String,
    pub(super) quantity: i32,
    pub(super) amount_minor: i64,
    pub(super) currency: String,
    pub(super) state: String,
    pub(super) created_at: DateTime<Utc>,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) paid_at: Option<DateTime<Utc>>,
    pub(super) epoch: i64,
    pub(super) seq: i64,
    /// The server of its shard, if the caller asked for it.
    pub(super) server: Option<String>,
}

impl OrderRow {
    pub(super) fn into_order(self) -> Result<Order, Fault> {
        Ok(Order {
            id: OrderId(self.order_id),
            sale_id: SaleId(self.sale_id),
            sku: word(&self.sku)?,
            quantity: unsigned(i64::from(self.quantity))?,
            amount_minor: self.amount_minor,
            currency: self.currency,
            state: word(&self.state)?,
            confirmed: true,
            created_at: self.created_at,
            expires_at: self.expires_at,
            paid_at: self.paid_at,
            user: word(&self.user_id)?,
        })
    }
}

/// Selects orders by a condition. Each outage since a reserved order's creation extends its hold.
macro_rules! select_orders {
    ($condition:literal $(+ $more:literal)*, $($argument:expr),*) => {
        $crate::ledger::settle::order::select_orders!(with "null::text"; $condition $(+ $more)*, $($argument),*)
    };
    (with $server:literal; $condition:literal $(+ $more:literal)*, $($argument:expr),*) => {
        sqlx::query_as!($crate::ledger::settle::order::OrderRow,
            "select order_id, sale_id, shard, sku, user_id, quantity, \
            amount_minor, currency, state, created_at, expires_at + case state when 'reserved' then coalesce( \
                (select sum(o.until - greatest(o.since, created_at)) from outages o where o.until > created_at), \
                interval '0') else interval '0' end as \"expires_at!\", paid_at, epoch, seq, "
            + $server + " as server from orders where " + $condition
            $(+ $more)*, $($argument),*)
    };
}
pub(super) use select_orders;

#[derive(Debug, Clone)]
pub enum Cancellation {
    Now(Decided),
    Already(Order),
    /// The order has left `reserved` for this state.
    NotCancellable(OrderState),
    /// The ledger has no such order of this shopper.
    NotFound,
    /// Another transaction has locked the order or its grant for long, or had locked the sale a moment ago. Nothing has
    /// changed.
    Locked,
}

impl Ledger {
    pub async fn order(&self, id: OrderId) -> Result<Option<Order>, Fault> {
        let row = select_orders!("order_id = $1", id.0).fetch_optional(&self.api).await;
        row?.map(OrderRow::into_order).transpose()
    }

    /// The orders among these that the ledger has, with their events.
    pub async fn accepted(&self, ids: &[OrderId]) -> Result<Vec<Accepted>, Fault> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let rows = select_orders!(
            with "(select s.run_id from shards s where (s.sale_id, s.shard) = (orders.sale_id, orders.shard) \
                and (orders.epoch, orders.seq) > (s.named_epoch, s.named_seq))";
            "order_id = any($1)", &ids
        );
        let rows = rows.fetch_all(&self.api).await;
        let accepted = |mut row: OrderRow| {
            let (epoch, seq) = (row.epoch, row.seq);
            let event = Position { epoch, seq };
            let server = NotedServer::from(row.server.take()).server();
            let by = server.as_ref().and_then(Server::replication_id);
            row.into_order().map(|order| Accepted { order, event, by })
        };
        rows?.into_iter().map(accepted).collect()
    }

    /// A shopper's orders in a sale, oldest first, at most `max`.
    pub async fn orders_of(&self, sale: SaleId, user: &UserId, max: i64) -> Result<Vec<Order>, Fault> {
        let rows = select_orders!(
            "sale_id = $1 and user_id = $2 order by epoch desc, seq desc limit $3",
            sale.0,
            user.as_str(),
            max
        )
        .fetch_all(&self.api)
        .await;
        rows?.into_iter().rev().map(OrderRow::into_order).collect()
    }

    /// Cancels a reserved order of this shopper. Fails with `Unavailable` when Postgres does not answer; a repeated
    /// call finds the outcome.
    pub async fn cancel(&self, id: OrderId, user: &UserId) -> Result<Cancellation, Fault> {
        let sale = id.sale_number();
        let Some(mut tx) = begin_unless_locked(&self.api, &self.locked_sales, Some(sale)).await? else {
            return Ok(Cancellation::Locked);
        };
        let locked = || {
            self.locked_sales.note(sale);
            Ok(Cancellation::Locked)
        };
        let row = select_orders!("order_id = $1 and user_id = $2 for update", id.0, user.as_str());
        let row = row.fetch_optional(&mut *tx).instrument(step("lock order")).await;
        let Some(row) = unless_locked(row)? else {
            return locked();
        };
        let Some(row) = row else {
            return Ok(Cancellation::NotFound);
        };
        let shard = unsigned(i64::from(row.shard))?;
        let order = row.into_order()?;
        match order.state {
            OrderState::Reserved => {}
            OrderState::Cancelled => return Ok(Cancellation::Already(order)),
            other => return Ok(Cancellation::NotCancellable(other)),
        }
        let cancelled = resolve(&mut tx, vec![(order, shard)], OrderState::Cancelled).await;
        let Some(mut cancelled) = unless_locked(cancelled)? else {
            return locked();
        };
        commit(tx).await?;
        let decided = cancelled.pop().map(Cancellation::Now);
        decided.ok_or_else(|| Fault::Bug(format!("order {id} was not cancelled")))
    }
}
