//! Cancel: the ledger decides, then the units go back at once.
//!
//! An order that is not in the ledger yet is drained first, so that one place decides whether it is paid or cancelled.
//! A crash after the decision leaves its message in the outbox.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::{CancelOutcome, OrderState};
use crate::flow::App;
use crate::flow::settle::drain::drain_to_now;
use crate::flow::settle::order::{find_in_stock, sale_of};
use crate::flow::settle::release::release_now;
use crate::ledger::settle::order::Cancellation;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument as _;

/// How long a cancellation waits for its order to reach the ledger.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// Cancels a shopper's order. After a fault the outcome is unknown; asking again finds it.
pub async fn cancel(app: &App, id: OrderId, user: &UserId) -> Result<CancelOutcome, Fault> {
    let Some(sale) = sale_of(app, id).await? else {
        return Ok(CancelOutcome::NotFound);
    };
    if let Some(outcome) = decide(app, id, user).await? {
        return Ok(outcome);
    }
    if find_in_stock(app, &sale, user, Some(id)).await?.is_empty() {
        return Ok(CancelOutcome::NotFound);
    }
    let home = sale.home_shard(user);
    let taken_in = drain_to_now(app, &sale, &[home], Instant::now() + WAIT_MAX).await?;
    match decide(app, id, user).await? {
        Some(outcome) => Ok(outcome),
        None if taken_in => match find_in_stock(app, &sale, user, Some(id)).await?.pop() {
            // The ledger could not store the order. Its shard has that decision, or is about to get it.
            Some(order) if order.state != OrderState::Reserved => Ok(CancelOutcome::NotCancellable(order.state)),
            Some(_) => Err(Fault::Unavailable(format!("order {id} is being revoked; try again"))),
            // Redis lost the order between the reading and the drain.
            None => Err(Fault::Unavailable(format!("order {id} has gone from the stock"))),
        },
        None => Err(Fault::Unavailable(
            "the order is still on its way to the ledger; try again".to_owned(),
        )),
    }
}

/// The ledger's decision; `None` if it does not have the order.
async fn decide(app: &App, id: OrderId, user: &UserId) -> Result<Option<CancelOutcome>, Fault> {
    let cancel = app.ledger.cancel(id, user);
    Ok(match cancel.instrument(tracing::debug_span!("cancellation")).await? {
        Cancellation::Now(decided) => {
            crash::point("cancel.after_commit");
            release_now(app, &decided).await;
            Some(CancelOutcome::Cancelled(decided.order))
        }
        Cancellation::Already(order) => Some(CancelOutcome::Cancelled(order)),
        Cancellation::NotCancellable(state) => Some(CancelOutcome::NotCancellable(state)),
        Cancellation::NotFound => None,
        Cancellation::Locked => {
            return Err(Fault::Unavailable(
                "the sale's ledger is locked for a moment; try again".to_owned(),
            ));
        }
    })
}
