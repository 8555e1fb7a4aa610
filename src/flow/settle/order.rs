//! Read orders: from the ledger where it has them, from the stock until then. Reads only.

use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::payment::RecordedPayment;
use crate::domain::order::wanted::WantedOrders;
use crate::domain::order::{Order, OwnedOrder};
use crate::domain::sale::Sale;
use crate::flow::settle::can_be;
use crate::flow::settle::drain::drain_to_now;
use crate::flow::{App, EXPORT_PART, Export, in_time, whole};
use crate::stock::keys::ShardKey;
use crate::stock::record::BuyerRecord;
use futures_util::stream::{StreamExt as _, try_unfold};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Orders of one shopper in one sale that one answer lists.
pub const LIST_MAX: usize = 1000;

/// A shopper's orders in a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnOrders {
    /// The newest of them, oldest first.
    pub orders: Vec<Order>,
    /// Whether there are older ones.
    pub are_more: bool,
}

/// How long a shopper's request waits for the ledger where the stock may know as well.
const LEDGER_WAIT: Duration = Duration::from_secs(1);

/// How long an operator's request waits for an order that is on its way.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// A shopper's order; `None` when the shopper has none of this id. Fails with `Unavailable` when neither side can
/// answer.
pub async fn read_order(app: &App, id: OrderId, user: &UserId) -> Result<Option<Order>, Fault> {
    let Some(sale) = sale_of(app, id).await? else {
        return Ok(None);
    };
    let in_ledger = in_time(LEDGER_WAIT, app.ledger.order(id)).await;
    if let Ok(Some(order)) = in_ledger {
        return Ok((order.user == *user).then_some(order));
    }
    let in_stock = find_in_stock(app, &sale, user, Some(id)).await?.pop();
    // While Postgres is away, it may have the order or not; so the order is not shown as confirmed.
    match (in_stock, in_ledger) {
        (Some(order), _) => Ok(Some(order)),
        (None, Ok(_)) => Ok(None),
        (None, Err(fault)) => Err(fault),
    }
}

/// The sale that an order of this id would be in; `None` when there is no such order. Hardly any guessed id causes a
/// query. Fails with `Unavailable` when Postgres does not answer and the sale is not remembered.
pub(in crate::flow) async fn sale_of(app: &App, id: OrderId) -> Result<Option<Arc<Sale>>, Fault> {
    let sale = app.sales.by_number(id.sale_number()).await?;
    Ok(sale.filter(|sale| id.may_be_of(&sale.secret.0)))
}

/// A shopper's orders in a sale, the newest [`LIST_MAX`] of them; `None` when there is no such sale. While Postgres is
/// away, the orders in the stock are the answer, if these are all. Otherwise the list would lack decided orders that
/// the stock has left to the ledger. Fails with `Unavailable` when the stock cannot answer, or the ledger cannot and
/// the stock does not have all orders.
pub async fn list_orders(app: &App, sale: SaleId, user: &UserId) -> Result<Option<OwnOrders>, Fault> {
    let Some(sale) = app.sales.fixed(sale).await? else {
        return Ok(None);
    };
    // Read the stock first: an order that it has, and the ledger does not have yet, is then not missed.
    let row = read_row(app, &sale, user).await?;
    // Only an intact shard proves that an order which it lacks does not exist.
    let is_all = sale.is_in_stock() && !row.elsewhere && app.permits.lets_sell(ShardKey::home(&sale, user));
    let in_stock = orders_of(row, &sale, user)?;
    let max = whole(LIST_MAX + 1);
    let mut orders = match in_time(LEDGER_WAIT, app.ledger.orders_of(sale.id, user, max)).await {
        Err(Fault::Unavailable(_)) if is_all => Vec::new(),
        in_ledger => in_ledger?,
    };
    let known: HashSet<OrderId> = orders.iter().map(|order| order.id).collect();
    // Newer than the ledger's orders, or older than those that were asked for.
    orders.extend(in_stock.into_iter().filter(|order| !known.contains(&order.id)));
    orders.sort_by_key(|order| order.created_at);
    let more = orders.len().saturating_sub(LIST_MAX);
    orders.drain(..more);
    Ok(Some(OwnOrders {
        orders,
        are_more: more > 0,
    }))
}

/// An order of any account, for operators. Waits for an order that is on its way to the ledger. Fails with
/// `Unavailable` when the ledger does not answer, or the order may still be on its way.
pub async fn find_anywhere(app: &App, id: OrderId) -> Result<Option<OwnedOrder>, Fault> {
    match find_awaited(app, id).await? {
        Some(order) => {
            let payments = app.ledger.payments_of(&[id]).await?;
            Ok(with_payments(vec![order], payments).pop())
        }
        None => Ok(None),
    }
}

async fn find_awaited(app: &App, id: OrderId) -> Result<Option<Order>, Fault> {
    if let Some(order) = app.ledger.order(id).await? {
        return Ok(Some(order));
    }
    let Some(sale) = app.sales.by_number(id.sale_number()).await? else {
        return Ok(None);
    };
    if !sale.is_in_stock() {
        return Ok(None);
    }
    let shards: Vec<u16> = (0..sale.shards).collect();
    let taken_in = drain_to_now(app, &sale, &shards, Instant::now() + WAIT_MAX).await?;
    match app.ledger.order(id).await? {
        None if !taken_in => Err(Fault::Unavailable(
            "the order may be on its way to the ledger; try again".to_owned(),
        )),
        order => Ok(order),
    }
}

/// Orders as the ledger has them, for operators, newest first: up to `max` of them after the order with the id `after`.
/// `None` when there is no such sale.
pub async fn list_for_operators(
    app: &App,
    wanted: WantedOrders,
    after: Option<OrderId>,
    max: usize,
) -> Result<Option<Vec<OwnedOrder>>, Fault> {
    let Some(wanted) = following(app, wanted, after).await? else {
        return Ok(None);
    };
    let orders = app.ledger.newest_orders(&wanted, whole(max)).await?;
    let payments = app.ledger.payments_of(&ids_of(&orders)).await?;
    Ok(Some(with_payments(orders, payments)))
}

/// All orders of such a list, as an export. `None` when there is no such sale.
pub async fn begin_export(
    app: &App,
    wanted: WantedOrders,
    after: Option<OrderId>,
) -> Result<Option<Export<OwnedOrder>>, Fault> {
    let Some(wanted) = following(app, wanted, after).await? else {
        return Ok(None);
    };
    let snapshot = app.ledger.snapshot().await?;
    let parts = try_unfold((snapshot, wanted), |(mut snapshot, mut wanted)| async move {
        let orders = snapshot.newest_orders(&wanted, EXPORT_PART).await?;
        let Some(last) = orders.last() else { return Ok(None) };
        wanted.stretch.end_before(last.place());
        let payments = snapshot.payments_of(&ids_of(&orders)).await?;
        Ok::<_, Fault>(Some((with_payments(orders, payments), (snapshot, wanted))))
    });
    Ok(Some(parts.boxed()))
}

/// The wanted orders after the one with the id `after`, whose sale and account do not matter; none after an id that no
/// order has. `None` when there is no such sale.
async fn following(app: &App, mut wanted: WantedOrders, after: Option<OrderId>) -> Result<Option<WantedOrders>, Fault> {
    if !can_be(app, &wanted.of).await? {
        return Ok(None);
    }
    if let Some(after) = after {
        let order = app.ledger.order(after).await?;
        wanted.stretch.follow(order.map(|order| order.place()));
    }
    Ok(Some(wanted))
}

fn ids_of(orders: &[Order]) -> Vec<OrderId> {
    orders.iter().map(|order| order.id).collect()
}

/// The orders with those of these payments that were matched with them.
fn with_payments(orders: Vec<Order>, payments: Vec<RecordedPayment>) -> Vec<OwnedOrder> {
    let mut of_order: HashMap<OrderId, Vec<RecordedPayment>> = HashMap::new();
    for payment in payments {
        // A matched payment names its order.
        if let Ok(order) = payment.order_id.parse() {
            of_order.entry(order).or_default().push(payment);
        }
    }
    let owned = |order: Order| OwnedOrder {
        user: order.user.clone(),
        payments: of_order.remove(&order.id).unwrap_or_default(),
        order,
    };
    orders.into_iter().map(owned).collect()
}

/// A shopper's orders as the stock has them, not confirmed.
pub(in crate::flow) async fn find_in_stock(
    app: &App,
    sale: &Sale,
    user: &UserId,
    only: Option<OrderId>,
) -> Result<Vec<Order>, Fault> {
    let mut row = read_row(app, sale, user).await?;
    row.orders.retain(|(id, _)| only.is_none_or(|only| only == *id));
    orders_of(row, sale, user)
}

/// A shopper's row in the stock; empty once the sale has left Redis.
async fn read_row(app: &App, sale: &Sale, user: &UserId) -> Result<BuyerRecord, Fault> {
    if !sale.is_in_stock() {
        return Ok(BuyerRecord::default());
    }
    app.stock.read_buyer(ShardKey::home(sale, user), user).await
}

fn orders_of(row: BuyerRecord, sale: &Sale, user: &UserId) -> Result<Vec<Order>, Fault> {
    let orders = row.orders.into_iter();
    orders
        .map(|(id, record)| record.into_order(id, sale, user.clone(), false))
        .collect()
}
