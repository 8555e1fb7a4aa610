//! Payments: each recorded once for ever. The order, its units, the payment and the message to the stock change in one
//! transaction. A crash before its commit leaves nothing, and the payment is settled later.

use super::order::{Decided, Row, resolve, select_orders};
use super::{Ledger, Tx, begin_brief, begin_in_order, begin_unless_locked, commit, is_locked, step, unsigned};
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::{Order, OrderState};
use crate::domain::payment::{Payment, PaymentOutcome, RecordedPayment, Refund, RefundReference};
use crate::domain::time::from_millis;
use chrono::{DateTime, Utc};
use std::collections::HashSet;
use tracing::Instrument as _;

/// The outcome of settling a payment.
#[derive(Debug, Clone)]
pub enum Settlement {
    /// The payment is recorded with this outcome. If it has paid a reserved order, the decision comes with it.
    Settled(PaymentOutcome, Option<Decided>),
    /// The ledger has no such order; nothing was recorded.
    NoOrder,
    /// Another transaction has locked the order or its grant for long, or had locked the sale a moment ago. Nothing was
    /// recorded.
    Locked,
}

/// A payment that waits to be settled.
#[derive(Debug, Clone)]
pub struct PendingPayment {
    pub payment: Payment,
    pub received_at: DateTime<Utc>,
}

/// A payment as it is stored.
struct Recorded {
    payment_id: String,
    order_id: String,
    amount_minor: i64,
    currency: String,
    outcome: String,
    reason: Option<String>,
    received_at: DateTime<Utc>,
    refunded_at: Option<DateTime<Utc>>,
    refund_reference: Option<String>,
}

impl Recorded {
    fn into_payment(self) -> Result<RecordedPayment, Fault> {
        Ok(RecordedPayment {
            outcome: PaymentOutcome::from_name(&self.outcome)
                .ok_or_else(|| Fault::Bug(format!("in the ledger: a payment that is {}", self.outcome)))?,
            payment_id: self.payment_id,
            order_id: self.order_id,
            amount_minor: self.amount_minor,
            currency: self.currency,
            reason: self.reason,
            received_at: self.received_at,
            settled_at: self.refunded_at,
            settled_reference: self.refund_reference,
        })
    }
}

impl Ledger {
    /// Settles a payment that has just arrived, if the ledger has its order. Fails with `Unavailable` when Postgres
    /// does not answer: the provider must send it again.
    pub async fn settle_payment(&self, payment: &Payment) -> Result<Settlement, Fault> {
        let sale = payment.order().map(|order| order.sale_number());
        let Some(mut tx) = begin_unless_locked(&self.payments, &self.locked_sales, sale).await? else {
            return Ok(Settlement::Locked);
        };
        if known(&mut tx, payment).await? {
            return Ok(Settlement::Settled(PaymentOutcome::Duplicate, None));
        }
        let decision = match decide(&mut tx, payment).await? {
            Ok(decision) => decision,
            Err(undecided) => {
                if let (Settlement::Locked, Some(sale)) = (&undecided, sale) {
                    self.locked_sales.note(sale);
                }
                return Ok(undecided);
            }
        };
        let recorded = sqlx::query!(
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, reason, \
             matched_order_id, settled_at) values ($1, $2, $3, $4, $5, $6, $7, $8, now()) on conflict do nothing",
            payment.payment_id,
            payment.webhook_id,
            payment.order_id,
            payment.amount_minor,
            payment.currency,
            decision.outcome.as_str(),
            decision.reason,
            decision.order.map(|order| order.0)
        )
        .execute(&mut *tx)
        .instrument(step("insert payment"))
        .await?;
        if recorded.rows_affected() == 0 {
            // The same payment arrived twice at once. The other transaction has settled it, and this one is rolled
            // back.
            return Ok(Settlement::Settled(PaymentOutcome::Duplicate, None));
        }
        commit(tx).await?;
        Ok(Settlement::Settled(decision.outcome, decision.decided))
    }

    /// Records a payment whose order is not in the ledger: pending while an event may still bring the order, else
    /// unmatched. Fails with `Unavailable` when Postgres does not answer: the provider must send it again.
    pub async fn record_payment(&self, payment: &Payment, outcome: PaymentOutcome) -> Result<PaymentOutcome, Fault> {
        let recorded = sqlx::query!(
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at) \
             values ($1, $2, $3, $4, $5, $6, case when $6 <> 'pending' then now() end) on conflict do nothing",
            payment.payment_id,
            payment.webhook_id,
            payment.order_id,
            payment.amount_minor,
            payment.currency,
            outcome.as_str()
        )
        .execute(&self.payments)
        .instrument(step("insert payment"))
        .await?;
        Ok(if recorded.rows_affected() == 1 {
            outcome
        } else {
            PaymentOutcome::Duplicate
        })
    }

    /// Up to `max` payments that wait to be settled, oldest first, after the one given.
    pub async fn pending_payments(
        &self,
        after: Option<&PendingPayment>,
        max: i64,
    ) -> Result<Vec<PendingPayment>, Fault> {
        let mut tx = begin_in_order(&self.jobs).await?;
        let rows = sqlx::query!(
            "select payment_id, webhook_id, order_id, amount_minor, currency, received_at from payments \
             where outcome = 'pending' and received_at >= coalesce($1, '-infinity'::timestamptz) \
                 and ($1 is null or (received_at, payment_id) > ($1, $2)) \
             order by received_at, payment_id limit $3",
            after.map(|after| after.received_at),
            after.map(|after| after.payment.payment_id.as_str()),
            max
        )
        .fetch_all(&mut *tx)
        .await?;
        let payments = rows.into_iter().map(|row| PendingPayment {
            payment: Payment {
                payment_id: row.payment_id,
                webhook_id: row.webhook_id,
                order_id: row.order_id,
                amount_minor: row.amount_minor,
                currency: row.currency,
            },
            received_at: row.received_at,
        });
        Ok(payments.collect())
    }

    /// Which of these payments' orders the ledger has.
    pub async fn known_orders(&self, payments: &[PendingPayment]) -> Result<HashSet<OrderId>, Fault> {
        let ids: Vec<_> = payments
            .iter()
            .filter_map(|it| it.payment.order())
            .map(|id| id.0)
            .collect();
        let known = sqlx::query_scalar!("select order_id from orders where order_id = any($1)", &ids);
        let known = known.fetch_all(&self.jobs).await?;
        Ok(known.into_iter().map(OrderId).collect())
    }

    /// Up to `max` payments with this outcome, newest first, after the one given. `settled` selects the payments that
    /// were paid back, or the others.
    pub async fn payments(
        &self,
        outcome: PaymentOutcome,
        settled: Option<bool>,
        after: Option<&str>,
        max: i64,
    ) -> Result<Vec<RecordedPayment>, Fault> {
        let rows = sqlx::query_as!(
            Recorded,
            "select payment_id, order_id, amount_minor, currency, outcome, reason, received_at, refunded_at, \
             refund_reference from payments \
             where outcome = $1 and ($2::bool is null or (refunded_at is not null) = $2) \
                 and ($3::text is null or (received_at, payment_id) < \
                     (select received_at, payment_id from payments where payment_id = $3)) \
             order by received_at desc, payment_id desc limit $4",
            outcome.as_str(),
            settled,
            after,
            max
        )
        .fetch_all(&self.api)
        .await?;
        rows.into_iter().map(Recorded::into_payment).collect()
    }

    /// Payments that were matched with these orders, oldest first.
    pub async fn payments_of(&self, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
        let orders: Vec<_> = orders.iter().map(|order| order.0).collect();
        let rows = sqlx::query_as!(
            Recorded,
            "select payment_id, order_id, amount_minor, currency, outcome, reason, received_at, refunded_at, \
             refund_reference from payments where matched_order_id = any($1) order by received_at, payment_id",
            &orders
        )
        .fetch_all(&self.reports)
        .await?;
        rows.into_iter().map(Recorded::into_payment).collect()
    }

    /// Notes, once, that owed money was paid back. Fails with `Unavailable` when Postgres does not answer; a repeated
    /// call finds the outcome.
    pub async fn settle_refund(&self, payment_id: &str, reference: &RefundReference) -> Result<Refund, Fault> {
        sqlx::query!(
            "update payments set refunded_at = now(), refund_reference = $2 \
             where payment_id = $1 and outcome in ('refund_due', 'unmatched') and refunded_at is null",
            payment_id,
            reference.as_str()
        )
        .execute(&self.api)
        .await?;
        // The reference of the first call stays.
        let row = sqlx::query_as!(
            Recorded,
            "select payment_id, order_id, amount_minor, currency, outcome, reason, received_at, refunded_at, \
             refund_reference from payments where payment_id = $1",
            payment_id
        );
        let Some(row) = row.fetch_optional(&self.api).await? else {
            return Ok(Refund::NoPayment);
        };
        let payment = row.into_payment()?;
        Ok(match &payment.settled_reference {
            None => Refund::NotDue(payment.outcome),
            Some(other) if other != reference.as_str() => Refund::SettledAs(other.clone()),
            Some(_) => Refund::Settled(payment),
        })
    }

    /// Settles a pending payment. With `gone`, no event is left that could announce its order. Fails with `Unavailable`
    /// when Postgres does not answer; the next run tries again.
    pub async fn settle_pending(&self, payment: &Payment, gone: bool) -> Result<Settlement, Fault> {
        let mut tx = begin_brief(&self.jobs).await?;
        let mine = sqlx::query_scalar!(
            "select payment_id from payments where payment_id = $1 and outcome = 'pending' for update skip locked",
            payment.payment_id
        );
        if mine.fetch_optional(&mut *tx).await?.is_none() {
            return Ok(Settlement::Settled(PaymentOutcome::Duplicate, None));
        }
        let decision = match decide(&mut tx, payment).await? {
            Ok(decision) => decision,
            Err(Settlement::NoOrder) if gone => Decision {
                outcome: PaymentOutcome::Unmatched,
                order: None,
                reason: None,
                decided: None,
            },
            Err(undecided) => return Ok(undecided),
        };
        sqlx::query!(
            "update payments set outcome = $2, reason = $3, settled_at = now(), \
             matched_order_id = $4 where payment_id = $1",
            payment.payment_id,
            decision.outcome.as_str(),
            decision.reason,
            decision.order.map(|order| order.0)
        )
        .execute(&mut *tx)
        .await?;
        commit(tx).await?;
        Ok(Settlement::Settled(decision.outcome, decision.decided))
    }
}

/// What to record about a payment; its order is changed already.
struct Decision {
    outcome: PaymentOutcome,
    order: Option<OrderId>,
    reason: Option<String>,
    decided: Option<Decided>,
}

async fn known(tx: &mut Tx, payment: &Payment) -> Result<bool, Fault> {
    let found = sqlx::query_scalar!(
        "select 1 as one from payments where payment_id = $1",
        payment.payment_id
    );
    let found = found.fetch_optional(&mut **tx).instrument(step("find payment")).await;
    Ok(found?.is_some())
}

/// Whether the ledger has the payment of a paid order. After a lost commit, it may know only from the shopper's row
/// that the order was paid.
async fn is_paid_for(tx: &mut Tx, order: OrderId) -> Result<bool, Fault> {
    let found = sqlx::query_scalar!(
        "select 1 as one from payments where matched_order_id = $1 and outcome = 'applied'",
        order.0
    );
    let found = found.fetch_optional(&mut **tx).await?;
    Ok(found.is_some())
}

/// Locks the payment's order and pays it, or decides that the money is owed back. The inner error says why neither was
/// possible.
async fn decide(tx: &mut Tx, payment: &Payment) -> Result<Result<Decision, Settlement>, Fault> {
    let Some(id) = payment.order() else {
        return Ok(Err(Settlement::NoOrder));
    };
    let (order, shard) = match lock_order(tx, id).await? {
        Ok(locked) => locked,
        Err(undecided) => return Ok(Err(undecided)),
    };
    let costs = (order.amount_minor, order.currency.as_str());
    let is_unpaid_for = order.state == OrderState::Paid && costs == (payment.amount_minor, payment.currency.as_str());
    let (outcome, reason, decided) = if is_unpaid_for && !is_paid_for(tx, id).await? {
        (PaymentOutcome::Applied, None, None)
    } else if let Some(reason) = refund_reason(&order, payment) {
        (PaymentOutcome::RefundDue, Some(reason), None)
    } else {
        match pay(tx, order, shard).await? {
            Ok(decided) => (PaymentOutcome::Applied, None, Some(decided)),
            Err(undecided) => return Ok(Err(undecided)),
        }
    };
    Ok(Ok(Decision {
        outcome,
        order: Some(id),
        reason,
        decided,
    }))
}

/// Locks an order; returns it with its shard.
async fn lock_order(tx: &mut Tx, id: OrderId) -> Result<Result<(Order, u16), Settlement>, Fault> {
    let row = select_orders!("order_id = $1 for update", id.0);
    let row = match row.fetch_optional(&mut **tx).instrument(step("lock order")).await {
        Ok(Some(row)) => row,
        Ok(None) => return Ok(Err(Settlement::NoOrder)),
        Err(error) if is_locked(&error) => return Ok(Err(Settlement::Locked)),
        Err(error) => return Err(error.into()),
    };
    let shard = unsigned(i64::from(row.shard))?;
    Ok(Ok((Row::into_order(row)?, shard)))
}

/// Why this payment does not pay the order, if it does not.
fn refund_reason(order: &Order, payment: &Payment) -> Option<String> {
    if order.state != OrderState::Reserved {
        return Some(format!("the order was {} already", order.state));
    }
    let is_amount = order.amount_minor == payment.amount_minor && order.currency == payment.currency;
    if is_amount || bugs::has("any amount pays an order") {
        return None;
    }
    Some(format!("the order costs {} {}", order.amount_minor, order.currency))
}

/// Pays a reserved order.
async fn pay(tx: &mut Tx, order: Order, shard: u16) -> Result<Result<Decided, Settlement>, Fault> {
    let (message, at) = match resolve(tx, &order, shard, OrderState::Paid).await {
        Ok(sent) => sent,
        Err(error) if is_locked(&error) => return Ok(Err(Settlement::Locked)),
        Err(error) => return Err(error.into()),
    };
    let order = Order {
        state: OrderState::Paid,
        paid_at: Some(from_millis(at)),
        ..order
    };
    Ok(Ok(Decided {
        order,
        shard,
        at,
        message,
    }))
}
