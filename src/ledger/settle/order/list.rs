//! Orders as operators list them, newest first. Reads only.

use super::{OrderRow, select_orders};
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::wanted::{OrdersOf, Stretch, WantedOrders};
use crate::domain::order::{Order, OrderState};
use crate::ledger::snapshot::Snapshot;
use crate::ledger::{Ledger, acquire};
use sqlx::PgConnection;
use uuid::Uuid;

impl Ledger {
    /// Up to `max` orders, newest first.
    pub async fn newest_orders(&self, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        newest(&mut connection, wanted, max).await
    }

    /// The orders among these that the ledger has.
    pub async fn orders(&self, ids: &[OrderId]) -> Result<Vec<Order>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        among(&mut connection, ids).await
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
}

impl Snapshot {
    /// Up to `max` orders, newest first.
    pub async fn newest_orders(&mut self, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
        newest(&mut self.0, wanted, max).await
    }

    /// The orders among these that the ledger has.
    pub async fn orders(&mut self, ids: &[OrderId]) -> Result<Vec<Order>, Fault> {
        among(&mut self.0, ids).await
    }
}

async fn among(connection: &mut PgConnection, ids: &[OrderId]) -> Result<Vec<Order>, Fault> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let rows = select_orders!("order_id = any($1)", &ids).fetch_all(connection).await;
    rows?.into_iter().map(OrderRow::into_order).collect()
}

async fn newest(connection: &mut PgConnection, wanted: &WantedOrders, max: i64) -> Result<Vec<Order>, Fault> {
    let WantedOrders { of, state, stretch } = wanted;
    let Stretch { from, before } = stretch;
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
    rows?.into_iter().map(OrderRow::into_order).collect()
}
