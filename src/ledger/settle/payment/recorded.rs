//! Payments as operators read them, and the operators' note that owed money was paid back. The note is one statement,
//! which may be repeated after a crash.

use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::payment::{PaymentOutcome, RecordedPayment, Refund, RefundReference};
use crate::ledger::settle::order::Snapshot;
use crate::ledger::{Ledger, acquire};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

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

/// Selects payments by a condition.
macro_rules! select_payments {
    ($condition:literal, $($argument:expr),*) => {
        sqlx::query_as!(Recorded, "select payment_id, order_id, amount_minor, currency, outcome, reason, received_at, \
            refunded_at, refund_reference from payments where " + $condition, $($argument),*)
    };
}

impl Ledger {
    /// Up to `max` payments with this outcome, newest first, after the one given. `settled` selects the payments that
    /// were paid back, or the others.
    pub async fn payments(
        &self,
        outcome: PaymentOutcome,
        settled: Option<bool>,
        after: Option<&str>,
        max: i64,
    ) -> Result<Vec<RecordedPayment>, Fault> {
        let rows = select_payments!(
            "outcome = $1 and ($2::bool is null or (refunded_at is not null) = $2) \
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

    /// The recorded payment with this id, if there is one.
    pub async fn payment(&self, payment_id: &str) -> Result<Option<RecordedPayment>, Fault> {
        let row = select_payments!("payment_id = $1", payment_id);
        let row = row.fetch_optional(&self.payments).await?;
        row.map(Recorded::into_payment).transpose()
    }

    /// Payments that were matched with these orders, oldest first.
    pub async fn payments_of(&self, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        matched_with(&mut connection, orders).await
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
        let row = select_payments!("payment_id = $1", payment_id);
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
}

impl Snapshot {
    /// Payments that were matched with these orders, oldest first.
    pub async fn payments_of(&mut self, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
        matched_with(&mut self.0, orders).await
    }
}

async fn matched_with(connection: &mut PgConnection, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
    let orders: Vec<_> = orders.iter().map(|order| order.0).collect();
    let rows = select_payments!("matched_order_id = any($1) order by received_at, payment_id", &orders);
    let rows = rows.fetch_all(connection).await?;
    rows.into_iter().map(Recorded::into_payment).collect()
}
