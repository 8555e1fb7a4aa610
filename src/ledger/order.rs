//! Orders: read, cancelled, expired. A transaction that changes orders locks their rows first and the grants of their
//! items second. So paying, cancelling and expiring queue up, and only the first finds an order `reserved`.

use super::outbox::{Message, send_all, send_each};
use super::rebuild::NotedServer;
use super::{
    Ledger, Tx, acquire, be_brief, begin_in_order, begin_unless_locked, begin_with, commit, small, step, unless_locked,
    unsigned, word,
};
use crate::bugs;
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, Sku, UserId};
use crate::domain::order::{Accepted, Order, OrderState, OrdersOf, WantedOrders};
use crate::domain::server::Server;
use crate::domain::time::{Millis, from_millis};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use std::collections::{BTreeMap, BTreeSet};
use tracing::Instrument as _;
use uuid::Uuid;

pub(super) struct Row {
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

impl Row {
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
        $crate::ledger::order::select_orders!(with "null::text"; $condition $(+ $more)*, $($argument),*)
    };
    (with $server:literal; $condition:literal $(+ $more:literal)*, $($argument:expr),*) => {
        sqlx::query_as!($crate::ledger::order::Row, "select order_id, sale_id, shard, sku, user_id, quantity, \
            amount_minor, currency, state, created_at, expires_at + case state when 'reserved' then coalesce( \
                (select sum(o.until - greatest(o.since, created_at)) from outages o where o.until > created_at), \
                interval '0') else interval '0' end as \"expires_at!\", paid_at, epoch, seq, "
            + $server + " as server from orders where " + $condition
            $(+ $more)*, $($argument),*)
    };
}
pub(super) use select_orders;

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

/// The ledger at one moment, for a list that is read in parts.
pub struct Snapshot(Tx);

/// The outcome of a cancellation.
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
        row?.map(Row::into_order).transpose()
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
        let accepted = |mut row: Row| {
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
        rows?.into_iter().rev().map(Row::into_order).collect()
    }

    /// Up to `max` orders, newest first.
    pub async fn newest_orders(&self, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        newest(&mut connection, wanted, max).await
    }

    /// The ledger as it is at the first read.
    pub async fn snapshot(&self) -> Result<Snapshot, Fault> {
        let begin = "begin isolation level repeatable read read only; \
                     set local idle_in_transaction_session_timeout = '1min'";
        begin_with(&self.reports, begin).await.map(Snapshot)
    }

    /// How many orders of any sale are revoked.
    pub async fn revoked_orders(&self) -> Result<i64, Fault> {
        // Sale by sale, as the index `orders_decided_by_time` has them.
        let revoked = sqlx::query_scalar!(
            "select coalesce(sum(of_sale.revoked), 0)::int8 as \"revoked!\" from sales s cross join lateral \
                 (select count(*) as revoked from orders o where o.sale_id = s.sale_id and o.state = 'revoked') of_sale \
             where s.state <> 'draft'"
        );
        revoked.fetch_one(&self.reports).await.map_err(Fault::from)
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

    /// The shards that have orders whose deadline without outages is past at `now` by Redis's clock, which set the
    /// deadlines. By Postgres's clock, deadlines within the next ten seconds count too.
    pub async fn shards_with_due_orders(&self, now: Option<Millis>) -> Result<Vec<DueShard>, Fault> {
        let rows = sqlx::query!(
            "select s.sale_id, s.shard, sales.payment_window_seconds, first.expires_at from shards s \
             join sales on sales.sale_id = s.sale_id and sales.retired_at is null cross join lateral \
                 (select o.expires_at from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                  and o.state = 'reserved' order by o.expires_at limit 1) first \
             where first.expires_at <= greatest(now() + interval '10 seconds', $1)",
            now.map(from_millis)
        )
        .fetch_all(&self.jobs)
        .await?;
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
              and expires_at <= $3 and not exists (select from payments p \
                  where p.outcome = 'pending' and p.order_id = orders.order_id::text offset 0) \
              order by expires_at limit $4 for update skip locked) \
             returning order_id, user_id, sku, quantity::int8 as \"quantity!\"",
            sale.0,
            small(shard),
            from_millis(due),
            max
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
        if bugs::has("nobody is told that orders expired") {
            messages.clear();
        }
        send_all(&mut tx, sale, &messages).await?;
        commit(tx).await?;
        Ok(rows.len())
    }
}

impl Snapshot {
    /// Up to `max` orders, newest first.
    pub async fn newest_orders(&mut self, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
        newest(&mut self.0, wanted, max).await
    }
}

async fn newest(connection: &mut PgConnection, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
    let WantedOrders {
        of,
        state,
        from,
        before,
    } = wanted;
    let (before, before_id) = before.map(|(at, id)| (at, id.0)).unzip();
    let rows = match of {
        // The newest of each state, as the index `orders_decided_by_time` has them, and of each shard's reserved ones,
        // as `orders_due` has them. A sale's holds all last equally long, so their deadlines are in the same order. An
        // array, because a join with so many could read all orders.
        OrdersOf::Sale(sale) => {
            let states = OrderState::ALL
                .iter()
                .filter(|it| state.is_none_or(|only| only == **it));
            let states: Vec<String> = states.map(ToString::to_string).collect();
            select_orders!(
                "order_id = any(array(select n.order_id from ( \
                     select o.created_at, o.order_id from unnest($2::text[]) as w (state) cross join lateral \
                         (select d.created_at, d.order_id from orders d \
                          where d.sale_id = $1 and d.state = w.state and d.state <> 'reserved' \
                          and d.created_at >= coalesce($3::timestamptz, '-infinity') \
                          and (d.created_at, d.order_id) < (coalesce($4::timestamptz, 'infinity'), $5::uuid) \
                          order by d.created_at desc, d.order_id desc limit $6) o \
                     union all \
                     select o.created_at, o.order_id from shards s join sales on sales.sale_id = s.sale_id \
                     cross join lateral (select make_interval(secs => sales.payment_window_seconds) as lasts) hold \
                     cross join lateral \
                         (select r.created_at, r.order_id from orders r \
                          where r.sale_id = s.sale_id and r.shard = s.shard and r.state = 'reserved' \
                          and r.expires_at >= coalesce($3::timestamptz, '-infinity') + hold.lasts \
                          and (r.expires_at, r.order_id) < \
                              (coalesce($4::timestamptz, 'infinity') + hold.lasts, $5::uuid) \
                          order by r.expires_at desc, r.order_id desc limit $6) o \
                     where s.sale_id = $1 and 'reserved' = any($2::text[]) \
                 ) n order by n.created_at desc, n.order_id desc limit $6)) \
                 order by created_at desc, order_id desc",
                sale.0,
                &states,
                *from,
                before,
                before_id,
                max
            )
            .fetch_all(connection)
            .await
        }
        // Sale by sale, as the index `orders_one_outcome_a_key` has them: one lookup for each sale.
        OrdersOf::User(user, sale) => {
            select_orders!(
                "sale_id in (select sale_id from sales where $2::uuid is null or sale_id = $2) and user_id = $1 \
                 and ($3::text is null or state = $3) and created_at >= coalesce($4::timestamptz, '-infinity') \
                 and (created_at, order_id) < (coalesce($5::timestamptz, 'infinity'), $6::uuid) \
                 order by created_at desc, order_id desc limit $7",
                user.as_str(),
                sale.map(|sale| sale.0),
                state.map(OrderState::as_str),
                *from,
                before,
                before_id,
                max
            )
            .fetch_all(connection)
            .await
        }
    };
    rows?.into_iter().map(Row::into_order).collect()
}

/// Moves orders of one sale, whose rows are locked, out of `reserved`: rows, messages, grants. Returns them with the time
/// of the decision by Postgres's clock, when their shoppers' cooldown begins. The grants come last: until the commit, every
/// other decision about their items waits for them.
pub(super) async fn resolve(
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
async fn move_units(
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
