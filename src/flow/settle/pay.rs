//! Pay: the ledger decides, then the stock gets the decision.
//!
//! Payments of a sale that come at the same time are decided in one transaction. They then lock the item's grants once,
//! and wait once for the network and the disk between this process and Postgres.
//!
//! A payment that overtakes its order waits for it a moment. It is recorded either way, and a job settles it later. A
//! payment is also recorded as pending where another transaction, such as a rebuild, has locked the order's grant. So
//! payments of one sale hold no connection that another sale needs while they wait for that lock.
//!
//! The provider is answered only after the commit. After a crash before that, it sends the payment again.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::order::payment::{Payment, PaymentOutcome, Refund, RefundReference};
use crate::domain::sale::Sale;
use crate::flow::recover::gap;
use crate::flow::settle::drain::drain_to_now;
use crate::flow::settle::groups::Groups;
use crate::flow::settle::release::release_now;
use crate::flow::{App, RunTotals, rotate_start, whole};
use crate::ledger::settle::payment::Settlement;
use futures_util::StreamExt as _;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument as _;

/// How long the provider waits for an order that is on its way.
const WAIT_MAX: Duration = Duration::from_millis(1800);
/// Pending payments read in one page, and the most of one sale that wait together for their orders.
const PENDING_MAX: usize = 500;
/// A run reads no further page after this.
const RUN_MAX: Duration = Duration::from_secs(40);
/// Sales whose events are awaited at once.
const SALES_AT_ONCE: usize = 8;

/// Payments that are decided together, by the number of their sale.
pub type PaymentGroups = Groups<u32, Payment, Result<Settlement, Fault>>;

/// Records one payment. After a fault nothing is certain to be recorded: the provider must send the payment again.
pub async fn pay(app: &App, payment: &Payment) -> Result<PaymentOutcome, Fault> {
    let outcome = record(app, payment).await?;
    if outcome == PaymentOutcome::Duplicate
        && let Err(fault) = report_conflict(app, payment).await
    {
        // The outcome is certain all the same.
        tracing::warn!(%fault, "cannot compare a payment that came again with the recorded one");
    }
    Ok(outcome)
}

/// Reports a duplicate that has another order or amount than the recorded payment: it may be other money.
async fn report_conflict(app: &App, payment: &Payment) -> Result<(), Fault> {
    let recorded = app.ledger.payment(&payment.payment_id).await?;
    if let Some(recorded) = recorded.filter(|recorded| !recorded.is_repeated_by(payment)) {
        app.metrics.payment_conflicts.inc();
        tracing::warn!(
            payment = payment.payment_id.as_str(),
            order = payment.order_id.as_str(),
            amount_minor = payment.amount_minor,
            currency = payment.currency.as_str(),
            recorded_order = recorded.order_id.as_str(),
            recorded_amount_minor = recorded.amount_minor,
            recorded_currency = recorded.currency.as_str(),
            "a payment came again with another order, amount or currency; only the first is recorded"
        );
    }
    Ok(())
}

async fn record(app: &App, payment: &Payment) -> Result<PaymentOutcome, Fault> {
    let deadline = Instant::now() + WAIT_MAX;
    if let Some(outcome) = settle_or_leave(app, payment).await? {
        return Ok(outcome);
    }
    let Some(sale) = selling(app, payment).await? else {
        return app.ledger.record_payment(payment, PaymentOutcome::Unmatched).await;
    };
    let shards = all_shards(&sale);
    let taken_in = match drain_to_now(app, &sale, &shards, deadline).await {
        // A process whose Redis was superseded cannot know which orders there are.
        Ok(taken_in) => taken_in && !app.permits.is_superseded(sale.id),
        // The money is recorded all the same; the job finds out whether there is an order.
        Err(fault) => {
            tracing::debug!(%fault, "cannot wait for a payment's order; the payment stays pending");
            false
        }
    };
    if let Some(outcome) = settle_or_leave(app, payment).await? {
        return Ok(outcome);
    }
    let outcome = if taken_in && matches!(gap::is_any(app, &sale, &shards).await, Ok(false)) {
        PaymentOutcome::Unmatched
    } else {
        PaymentOutcome::Pending
    };
    app.ledger.record_payment(payment, outcome).await
}

/// Settles a payment, or records it as pending where another transaction has locked its order; `None` if the ledger
/// does not have the order.
async fn settle_or_leave(app: &App, payment: &Payment) -> Result<Option<PaymentOutcome>, Fault> {
    let Some(order) = payment.order() else { return Ok(None) };
    let settlement = app
        .payment_groups
        .join(order.sale_number(), payment.clone(), |payments| {
            Box::pin(settle_group(app, payments))
        })
        .instrument(tracing::debug_span!("payment"))
        .await??;
    match settlement {
        Settlement::Settled(outcome, decided) => {
            if let Some(decided) = decided {
                release_now(app, &decided).await;
            }
            Ok(Some(outcome))
        }
        Settlement::NoOrder => Ok(None),
        Settlement::Locked => {
            let recorded = app.ledger.record_payment(payment, PaymentOutcome::Pending).await;
            recorded.map(Some)
        }
    }
}

/// Settles payments of one sale together. One that the ledger cannot store must not keep the others from it, so a group
/// that is refused is settled by halves.
async fn settle_group(app: &App, payments: Vec<Payment>) -> Vec<Result<Settlement, Fault>> {
    crash::point("pay.before_commit");
    let mut settlements = Vec::with_capacity(payments.len());
    // The last piece is the next one.
    let mut pieces = vec![payments.as_slice()];
    while let Some(piece) = pieces.pop() {
        match app.ledger.settle_payments(piece).await {
            Ok(settled) => settlements.extend(settled.into_iter().map(Ok)),
            Err(Fault::Bug(reason)) if piece.len() > 1 => {
                tracing::warn!(payments = piece.len(), %reason, "a group was refused; searching for the bad payment");
                let (first, second) = piece.split_at(piece.len() / 2);
                pieces.extend([second, first]);
            }
            Err(fault) => settlements.extend(piece.iter().map(|_| Err(fault.clone()))),
        }
    }
    crash::point("pay.after_commit");
    settlements
}

/// The sale that the payment's order would be in, if its keys are in Redis.
async fn selling(app: &App, payment: &Payment) -> Result<Option<Arc<Sale>>, Fault> {
    let Some(order) = payment.order() else { return Ok(None) };
    let sale = app.sales.by_number_for_certain(order.sale_number()).await?;
    Ok(sale.filter(|sale| sale.is_in_stock()))
}

fn all_shards(sale: &Sale) -> Vec<u16> {
    (0..sale.shards).collect()
}

/// Notes that money was paid back, with the provider's name for the refund. Repeating the note is no error.
pub async fn settle_refund(app: &App, payment_id: &str, reference: &RefundReference) -> Result<Refund, Fault> {
    app.ledger.settle_refund(payment_id, reference).await
}

/// Settles payments that were left pending; returns how many. Payments whose orders the ledger has are first. Then,
/// once for each other sale, come the payments that wait for its events. Neither a locked sale nor a silent one keeps
/// another waiting.
pub async fn settle_pending(app: &App) -> Result<usize, Fault> {
    let (mut totals, began) = (RunTotals::default(), Instant::now());
    let mut waiting: HashMap<Option<u32>, Vec<Payment>> = HashMap::new();
    let (mut locked, mut last) = (HashSet::new(), None);
    while began.elapsed() < RUN_MAX {
        let page = app.ledger.pending_payments(last.as_ref(), whole(PENDING_MAX)).await?;
        if page.is_empty() {
            break;
        }
        let known = app.ledger.known_orders(&page).await?;
        last = page.last().cloned();
        for payment in page.into_iter().map(|it| it.payment) {
            let order = payment.order();
            let number = order.map(|order| order.sale_number());
            if !order.is_some_and(|order| known.contains(&order)) {
                let of_sale = waiting.entry(number).or_default();
                if of_sale.len() < PENDING_MAX {
                    of_sale.push(payment);
                }
            } else if !locked.contains(&number) {
                match settle_one(app, &payment, false).await.transpose() {
                    None => _ = locked.insert(number),
                    Some(settled) => totals.note(settled),
                }
            }
        }
    }
    let mut waiting: Vec<Vec<Payment>> = waiting.into_values().collect();
    rotate_start(&mut waiting);
    let mut settled = futures_util::stream::iter(waiting)
        .map(|payments| settle_after_drain(app, payments))
        .buffer_unordered(SALES_AT_ONCE);
    while let Some(settled) = settled.next().await {
        totals.note(settled);
    }
    totals.finish()
}

/// Drains a sale. Settles these payments of it if no event is left that could announce their orders.
async fn settle_after_drain(app: &App, payments: Vec<Payment>) -> Result<usize, Fault> {
    let Some(first) = payments.first() else { return Ok(0) };
    if let Some(sale) = selling(app, first).await? {
        let shards = all_shards(&sale);
        let drained = drain_to_now(app, &sale, &shards, Instant::now() + WAIT_MAX).await?;
        if !drained || app.permits.is_superseded(sale.id) || gap::is_any(app, &sale, &shards).await? {
            return Ok(0);
        }
    }
    let mut totals = RunTotals::default();
    for payment in &payments {
        match settle_one(app, payment, true).await.transpose() {
            None => break,
            Some(settled) => totals.note(settled),
        }
    }
    totals.finish()
}

/// Settles one pending payment, if its order is in the ledger or `gone`. Returns how many were settled, or `None` if
/// another transaction has locked the order.
async fn settle_one(app: &App, payment: &Payment, gone: bool) -> Result<Option<usize>, Fault> {
    match app.ledger.settle_pending(payment, gone).await? {
        Settlement::Settled(_, decided) => {
            if let Some(decided) = decided {
                release_now(app, &decided).await;
            }
            Ok(Some(1))
        }
        Settlement::NoOrder => Ok(Some(0)),
        Settlement::Locked => Ok(None),
    }
}
