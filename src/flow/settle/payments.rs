//! Read payments, for operators. Reads only.

use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::payment::RecordedPayment;
use crate::domain::order::wanted::WantedPayments;
use crate::domain::order::{ListedPayment, Order};
use crate::flow::settle::can_be;
use crate::flow::{App, EXPORT_PART, Export, whole};
use futures_util::stream::{StreamExt as _, try_unfold};
use std::collections::HashMap;

/// Payments, newest first, each with its order: up to `max` of them after the payment with the id `after`. `None` when
/// there is no such sale.
pub async fn list(
    app: &App,
    wanted: WantedPayments,
    after: Option<String>,
    max: usize,
) -> Result<Option<Vec<ListedPayment>>, Fault> {
    let Some(wanted) = following(app, wanted, after).await? else {
        return Ok(None);
    };
    let payments = app.ledger.newest_payments(&wanted, whole(max)).await?;
    let orders = app.ledger.orders(&orders_of(&payments)).await?;
    Ok(Some(with_orders(payments, orders)))
}

/// All payments of such a list, as an export. `None` when there is no such sale.
pub async fn begin_export(
    app: &App,
    wanted: WantedPayments,
    after: Option<String>,
) -> Result<Option<Export<ListedPayment>>, Fault> {
    let Some(wanted) = following(app, wanted, after).await? else {
        return Ok(None);
    };
    let snapshot = app.ledger.snapshot().await?;
    let parts = try_unfold((snapshot, wanted), |(mut snapshot, mut wanted)| async move {
        let payments = snapshot.newest_payments(&wanted, EXPORT_PART).await?;
        let Some(last) = payments.last() else { return Ok(None) };
        wanted.stretch.end_before(last.place());
        let orders = snapshot.orders(&orders_of(&payments)).await?;
        Ok::<_, Fault>(Some((with_orders(payments, orders), (snapshot, wanted))))
    });
    Ok(Some(parts.boxed()))
}

/// The wanted payments after the one with the id `after`; none after an id that no payment has. `None` when there is no
/// such sale.
async fn following(
    app: &App,
    mut wanted: WantedPayments,
    after: Option<String>,
) -> Result<Option<WantedPayments>, Fault> {
    if let Some(of) = &wanted.of
        && !can_be(app, of).await?
    {
        return Ok(None);
    }
    if let Some(after) = after {
        wanted.stretch.follow(app.ledger.payment_place(&after).await?);
    }
    Ok(Some(wanted))
}

/// The order that a payment names, if its text is an order's id.
fn order_of(payment: &RecordedPayment) -> Option<OrderId> {
    payment.order_id.parse().ok()
}

fn orders_of(payments: &[RecordedPayment]) -> Vec<OrderId> {
    payments.iter().filter_map(order_of).collect()
}

/// The payments, each with the one of these orders that it names.
fn with_orders(payments: Vec<RecordedPayment>, orders: Vec<Order>) -> Vec<ListedPayment> {
    let orders: HashMap<OrderId, Order> = orders.into_iter().map(|order| (order.id, order)).collect();
    let listed = |payment: RecordedPayment| ListedPayment {
        order: order_of(&payment).and_then(|id| orders.get(&id).cloned()),
        payment,
    };
    payments.into_iter().map(listed).collect()
}
