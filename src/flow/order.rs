//! Read orders: the ledger's word where it has one, the stock's until then.

use super::App;
use super::drain::drain_to_now;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::Order;
use crate::domain::sale::Sale;
use crate::domain::shard::home_shard;
use crate::stock::keys::ShardKey;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Orders of one shopper in one sale that one answer lists.
pub const LIST_MAX: usize = 1000;

/// How long an operator waits for an order that is on its way.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// A shopper's order; `None` when the shopper has none of this id.
///
/// # Errors
/// `Unavailable` when neither side can tell.
pub async fn read_order(app: &App, id: OrderId, user: &UserId) -> Result<Option<Order>, Fault> {
    let Some(sale) = sale_of(app, id).await? else {
        return Ok(None);
    };
    let in_ledger = app.ledger.order(id).await;
    if let Ok(Some(order)) = in_ledger {
        return Ok((order.user == *user).then_some(order));
    }
    let in_stock = find_in_stock(app, &sale, user, Some(id)).await?.pop();
    // Whether Postgres has it is not known while Postgres is away; then it is not called confirmed.
    match (in_stock, in_ledger) {
        (Some(order), _) => Ok(Some(order)),
        (None, Ok(_)) => Ok(None),
        (None, Err(fault)) => Err(fault),
    }
}

/// The sale that an order of this id would be in; `None` when there is no such order. Of ids that somebody guesses, hardly
/// one is looked for anywhere.
///
/// # Errors
/// `Unavailable` when Postgres does not answer and the sale is not remembered.
pub(super) async fn sale_of(app: &App, id: OrderId) -> Result<Option<Arc<Sale>>, Fault> {
    let sale = app.sales.by_number(id.sale_number()).await?;
    Ok(sale.filter(|sale| id.may_be_of(&sale.secret.0)))
}

/// A shopper's orders in a sale, oldest first; `None` when there is no such sale.
///
/// # Errors
/// `Unavailable` when either side cannot tell.
pub async fn list_orders(app: &App, sale: SaleId, user: &UserId) -> Result<Option<Vec<Order>>, Fault> {
    let Some(sale) = app.sales.fixed(sale).await? else {
        return Ok(None);
    };
    // The stock first: what it has that the ledger does not yet have by then is on its way, and not missed.
    let in_stock = find_in_stock(app, &sale, user, None).await?;
    let max = i64::try_from(LIST_MAX).unwrap_or(i64::MAX);
    let mut orders = app.ledger.orders_of(sale.id, user, max).await?;
    let known: HashSet<OrderId> = orders.iter().map(|order| order.id).collect();
    // Events are taken in in their order, so what the ledger has is older.
    orders.extend(in_stock.into_iter().filter(|order| !known.contains(&order.id)));
    orders.truncate(LIST_MAX);
    Ok(Some(orders))
}

/// Anybody's order, for operators. One that is on its way to the ledger is waited for.
///
/// # Errors
/// `Unavailable` when the ledger cannot tell.
pub async fn find_anywhere(app: &App, id: OrderId) -> Result<Option<Order>, Fault> {
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
    drain_to_now(app, &sale, &shards, Instant::now() + WAIT_MAX).await?;
    app.ledger.order(id).await
}

/// What the stock knows of a shopper's orders, not confirmed.
pub(super) async fn find_in_stock(
    app: &App,
    sale: &Sale,
    user: &UserId,
    only: Option<OrderId>,
) -> Result<Vec<Order>, Fault> {
    if !sale.is_in_stock() {
        return Ok(Vec::new());
    }
    let home = ShardKey {
        sale: sale.id,
        shard: home_shard(&sale.secret.0, user, sale.shards),
    };
    let buyer = app.stock.read_buyer(home, user).await?;
    let orders = buyer.orders.into_iter();
    orders
        .filter(|(id, _)| only.is_none_or(|only| only == *id))
        .map(|(id, record)| record.into_order(id, sale, user.clone(), false))
        .collect()
}
