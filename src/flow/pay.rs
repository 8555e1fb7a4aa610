//! Pay: the ledger decides, then the stock is told.
//!
//! A payment that overtakes its order waits for it a moment, and is recorded either way: a job settles it later.
//! The provider is answered only after the commit; a crash before makes it send again.

use super::drain::drain_to_now;
use super::release::release_now;
use super::{App, Tally};
use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::payment::{Payment, PaymentOutcome, RecordedPayment, Refund, RefundReference};
use crate::domain::sale::Sale;
use crate::ledger::payment::Settlement;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument as _;

/// How long the provider waits for an order that is on its way.
const WAIT_MAX: Duration = Duration::from_millis(1800);
/// Pending payments settled in one run.
const PENDING_MAX: i64 = 500;

/// Takes in one payment.
///
/// # Errors
/// A fault says that nothing is certain to be recorded: the provider must send it again.
pub async fn pay(app: &App, payment: &Payment) -> Result<PaymentOutcome, Fault> {
    let deadline = Instant::now() + WAIT_MAX;
    if let Some(outcome) = settle(app, payment).await? {
        return Ok(outcome);
    }
    let Some(sale) = selling(app, payment).await? else {
        return app.ledger.record_payment(payment, PaymentOutcome::Unmatched).await;
    };
    let gone = match drain_to_now(app, &sale, &all_shards(&sale), deadline).await {
        // A process whose Redis was taken over from cannot know what there is.
        Ok(taken_in) => taken_in && !app.permits.is_superseded(sale.id),
        // The money is recorded all the same; whether there is an order, the job finds out.
        Err(fault) => {
            tracing::debug!(%fault, "a payment could not wait for its order");
            false
        }
    };
    if let Some(outcome) = settle(app, payment).await? {
        return Ok(outcome);
    }
    let outcome = if gone {
        PaymentOutcome::Unmatched
    } else {
        PaymentOutcome::Pending
    };
    app.ledger.record_payment(payment, outcome).await
}

async fn settle(app: &App, payment: &Payment) -> Result<Option<PaymentOutcome>, Fault> {
    crash::point("pay.before_commit");
    let settlement = app
        .ledger
        .settle_payment(payment, chrono::Utc::now().timestamp_millis())
        .instrument(tracing::debug_span!("payment"))
        .await?;
    crash::point("pay.after_commit");
    Ok(told(app, settlement).await)
}

async fn told(app: &App, settlement: Settlement) -> Option<PaymentOutcome> {
    match settlement {
        Settlement::Settled(outcome, decided) => {
            if let Some(decided) = decided {
                release_now(app, &decided).await;
            }
            Some(outcome)
        }
        Settlement::NoOrder => None,
    }
}

/// The sale that the payment's order would be in, if it has ever sold.
async fn selling(app: &App, payment: &Payment) -> Result<Option<Arc<Sale>>, Fault> {
    let Some(order) = payment.order() else { return Ok(None) };
    let sale = app.sales.by_number_for_certain(order.sale_number()).await?;
    Ok(sale.filter(|sale| sale.is_in_stock()))
}

fn all_shards(sale: &Sale) -> Vec<u16> {
    (0..sale.shards).collect()
}

/// Up to `max` payments with this outcome, newest first, after the one given; all, or those of which it was said that they
/// were paid back, or the others.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn list(
    app: &App,
    outcome: PaymentOutcome,
    settled: Option<bool>,
    after: Option<&str>,
    max: usize,
) -> Result<Vec<RecordedPayment>, Fault> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    app.ledger.payments(outcome, settled, after, max).await
}

/// Notes that money was paid back, by the refund that the provider calls so. It is noted once: repeating it is no error.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn settle_refund(app: &App, payment_id: &str, reference: &RefundReference) -> Result<Refund, Fault> {
    app.ledger.settle_refund(payment_id, reference).await
}

/// Settles payments whose orders were on their way; returns how many.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn settle_pending(app: &App) -> Result<usize, Fault> {
    let mut tally = Tally::default();
    let mut silent = HashSet::new();
    for payment in app.ledger.pending_payments(PENDING_MAX).await? {
        tally.note(settle_one(app, &payment, &mut silent).await);
    }
    tally.finish()
}

/// Settles one payment, if it can be told by now what becomes of it. A sale whose shards could not be waited for is `silent` and
/// waited for once in a run: its payments keep no other sale's from being settled.
async fn settle_one(app: &App, payment: &Payment, silent: &mut HashSet<SaleId>) -> Result<usize, Fault> {
    let now = chrono::Utc::now().timestamp_millis();
    let mut settlement = app.ledger.settle_pending(payment, false, now).await?;
    if matches!(settlement, Settlement::NoOrder) {
        let gone = match selling(app, payment).await? {
            Some(sale) if silent.contains(&sale.id) => return Ok(0),
            Some(sale) => {
                let taken_in = drain_to_now(app, &sale, &all_shards(&sale), Instant::now() + WAIT_MAX).await;
                if !matches!(taken_in, Ok(true)) {
                    silent.insert(sale.id);
                }
                taken_in? && !app.permits.is_superseded(sale.id)
            }
            None => true,
        };
        settlement = app.ledger.settle_pending(payment, gone, now).await?;
    }
    Ok(usize::from(told(app, settlement).await.is_some()))
}
