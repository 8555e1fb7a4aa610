//! Decides whether payments pay their orders, or money is owed back. Writes nothing: the caller's transaction locks the
//! orders' rows, and records the decisions.

use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::payment::{Payment, PaymentOutcome};
use crate::domain::order::{Order, OrderState};
use crate::domain::shop::currency;
use crate::ledger::settle::order::select_orders;
use crate::ledger::{Tx, step, unless_locked, unsigned};
use std::collections::HashMap;
use tracing::Instrument as _;
use uuid::Uuid;

/// An order whose row is locked.
pub(super) struct LockedOrder {
    pub(super) order: Order,
    pub(super) shard: u16,
    /// Whether the ledger has the payment of a paid order. After a lost commit, it may know only from the shopper's row
    /// that the order was paid.
    is_paid_for: bool,
}

/// A decision about a payment whose order the ledger has.
pub(super) struct Decision<'a> {
    pub(super) payment: &'a Payment,
    pub(super) order: OrderId,
    pub(super) outcome: PaymentOutcome,
    /// Why money is owed back.
    pub(super) reason: Option<String>,
    /// Whether the order leaves `reserved` by it.
    pub(super) pays: bool,
}

/// Locks the orders of payments, as far as the ledger has them; `None` if another transaction has locked one for long.
pub(super) async fn lock_orders(
    tx: &mut Tx,
    payments: &[&Payment],
) -> Result<Option<HashMap<OrderId, LockedOrder>>, Fault> {
    let ids: Vec<Uuid> = payments.iter().filter_map(|it| it.order()).map(|id| id.0).collect();
    let mut orders = HashMap::new();
    if ids.is_empty() {
        return Ok(Some(orders));
    }
    let rows = select_orders!("order_id = any($1) order by order_id for update", &ids);
    let rows = rows.fetch_all(&mut **tx).instrument(step("lock orders")).await;
    let Some(rows) = unless_locked(rows)? else {
        return Ok(None);
    };
    let mut paid = Vec::new();
    for row in rows {
        let shard = unsigned(i64::from(row.shard))?;
        let order = row.into_order()?;
        if order.state == OrderState::Paid {
            paid.push(order.id.0);
        }
        let is_paid_for = false;
        orders.insert(
            order.id,
            LockedOrder {
                order,
                shard,
                is_paid_for,
            },
        );
    }
    if !paid.is_empty() {
        let paid_for = sqlx::query_scalar!(
            "select matched_order_id as \"order!\" from payments \
             where matched_order_id = any($1) and outcome = 'applied'",
            &paid
        );
        for id in paid_for.fetch_all(&mut **tx).await? {
            if let Some(it) = orders.get_mut(&OrderId(id)) {
                it.is_paid_for = true;
            }
        }
    }
    Ok(Some(orders))
}

/// Decides whether a payment pays its order, or the money is owed back. The next payment finds the order as this one
/// leaves it.
pub(super) fn decide<'a>(of: &mut LockedOrder, payment: &'a Payment) -> Decision<'a> {
    let reason = refund_reason(of, payment);
    let pays = reason.is_none() && of.order.state == OrderState::Reserved;
    let outcome = if reason.is_none() {
        of.order.state = OrderState::Paid;
        of.is_paid_for = true;
        PaymentOutcome::Applied
    } else {
        PaymentOutcome::RefundDue
    };
    Decision {
        payment,
        order: of.order.id,
        outcome,
        reason,
        pays,
    }
}

/// Why the money of a payment is owed back, if it is.
fn refund_reason(of: &LockedOrder, payment: &Payment) -> Option<String> {
    let order = &of.order;
    let is_its_price = order.amount_minor == payment.amount_minor && order.currency == payment.currency;
    match order.state {
        OrderState::Paid if is_its_price && !of.is_paid_for => None,
        OrderState::Reserved if is_its_price || bugs::has("any amount pays an order") => None,
        OrderState::Reserved => {
            let price = currency::money(order.amount_minor, &order.currency);
            Some(format!("the order costs {price}"))
        }
        other => Some(format!("the order was {other} already")),
    }
}
