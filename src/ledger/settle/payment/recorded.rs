//! Payments as operators read them, and the operators' note that owed money was paid back. The note is one statement,
//! which may be repeated after a crash.

use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::payment::{PaymentOutcome, RecordedPayment, Refund, RefundReference};
use crate::domain::order::wanted::{OrdersOf, Place, WantedPayments};
use crate::ledger::snapshot::Snapshot;
use crate::ledger::{Ledger, acquire, unsigned};
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
    ($condition:literal $(+ $more:literal)*, $($argument:expr),*) => {
        sqlx::query_as!(Recorded, "select payment_id, order_id, amount_minor, currency, outcome, reason, received_at, \
            refunded_at, refund_reference from payments where " + $condition $(+ $more)*, $($argument),*)
    };
}

/// Selects wanted payments, newest first, as the index `payments_by_time` has them. A further condition comes first; its
/// arguments count from 7. Ids are compared as bytes, as Rust compares them.
macro_rules! select_newest {
    ($condition:literal, $wanted:ident, $max:ident $(, $argument:expr)*) => {
        select_payments!(
            $condition + "outcome = $1 and ($2::bool is null or (refunded_at is not null) = $2) \
                 and received_at >= coalesce($3::timestamptz, '-infinity') \
                 and (received_at, payment_id collate \"C\") < (coalesce($4::timestamptz, 'infinity'), $5::text) \
             order by received_at desc, payment_id collate \"C\" desc limit $6",
            $wanted.outcome.as_str(),
            $wanted.settled,
            $wanted.stretch.from,
            $wanted.stretch.before.as_ref().map(|(at, _)| *at),
            $wanted.stretch.before.as_ref().map(|(_, id)| id.as_str()),
            $max
            $(, $argument)*
        )
    };
}

impl Ledger {
    /// Up to `max` payments, newest first.
    pub async fn newest_payments(&self, wanted: &WantedPayments, max: i64) -> Result<Vec<RecordedPayment>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        newest(&mut connection, wanted, max).await
    }

    /// The place of a payment in such a list, if there is one with this id.
    pub async fn payment_place(&self, payment_id: &str) -> Result<Option<Place<String>>, Fault> {
        let row = select_payments!("payment_id = $1", payment_id);
        let row = row.fetch_optional(&self.api).await?;
        Ok(row.map(|row| (row.received_at, row.payment_id)))
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
    /// Up to `max` payments, newest first.
    pub async fn newest_payments(&mut self, wanted: &WantedPayments, max: i64) -> Result<Vec<RecordedPayment>, Fault> {
        newest(&mut self.0, wanted, max).await
    }

    /// Payments that were matched with these orders, oldest first.
    pub async fn payments_of(&mut self, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
        matched_with(&mut self.0, orders).await
    }
}

async fn newest(
    connection: &mut PgConnection,
    wanted: &WantedPayments,
    max: i64,
) -> Result<Vec<RecordedPayment>, Fault> {
    let rows = match &wanted.of {
        None => select_newest!("", wanted, max).fetch_all(connection).await,
        // The ids of a sale's orders lie between two bounds, as the index `payments_by_matched_order` has them.
        Some(OrdersOf::Sale(sale)) => {
            let number = sqlx::query_scalar!("select number from sales where sale_id = $1", sale.0);
            let Some(number) = number.fetch_optional(&mut *connection).await? else {
                return Ok(Vec::new());
            };
            let [first, last] = OrderId::bounds_of_sale(unsigned(i64::from(number))?);
            select_newest!("matched_order_id between $7 and $8 and ", wanted, max, first.0, last.0)
                .fetch_all(connection)
                .await
        }
        // An account has few orders. They are found sale by sale, as the index `orders_one_outcome_a_key` has them.
        Some(OrdersOf::User(user, sale)) => {
            select_newest!(
                "matched_order_id = any(array(select order_id from orders where user_id = $7 and sale_id in \
                     (select sale_id from sales where $8::uuid is null or sale_id = $8))) and ",
                wanted,
                max,
                user.as_str(),
                sale.map(|sale| sale.0)
            )
            .fetch_all(connection)
            .await
        }
    };
    rows?.into_iter().map(Recorded::into_payment).collect()
}

async fn matched_with(connection: &mut PgConnection, orders: &[OrderId]) -> Result<Vec<RecordedPayment>, Fault> {
    let orders: Vec<_> = orders.iter().map(|order| order.0).collect();
    let rows = select_payments!("matched_order_id = any($1) order by received_at, payment_id", &orders);
    let rows = rows.fetch_all(connection).await?;
    rows.into_iter().map(Recorded::into_payment).collect()
}
