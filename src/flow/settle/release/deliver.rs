//! Delivers one message of the outbox to its shard.

use super::{leaving, shard_of};
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId};
use crate::domain::order::OrderState;
use crate::flow::App;
use crate::flow::sell::borrow::finish;
use crate::ledger::outbox::{Delivery, Message, Outgoing};
use crate::stock::keys::ShardKey;
use crate::stock::sell::transfer::{Destination, Transfer};
use crate::stock::settle::resolve::Resolved;
use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

/// Attempts to deliver a decision about an order that its shard does not know, before the message counts as refused.
const UNKNOWN_MAX: i32 = 5;

/// Delivers one message; returns why, if it has to wait.
pub(super) async fn deliver(
    app: &App,
    outgoing: &Outgoing,
    epochs: &HashMap<ShardKey, i64>,
) -> (Delivery, Option<Fault>) {
    match deliver_to_shard(app, outgoing, epochs).await {
        // The shard is leaving Redis and need not know.
        Ok(Delivery::Later | Delivery::Failed(_)) | Err(Fault::Incomplete(_) | Fault::Bug(_))
            if leaving(app, std::slice::from_ref(outgoing))
                .await
                .contains(&outgoing.sale) =>
        {
            (Delivery::Applied { by: None }, None)
        }
        Ok(delivery) => (delivery.reported(outgoing), None),
        Err(Fault::Bug(reason)) => (Delivery::Failed(reason).reported(outgoing), None),
        Err(_) if bugs::has("a release that failed counts as delivered") => (Delivery::Applied { by: None }, None),
        Err(fault) => {
            // The attempts have taken a quarter of an hour, or forty seconds for what operators did.
            if outgoing.attempts == 20 {
                tracing::error!(%fault, message = outgoing.id, "a release cannot be delivered");
            }
            (Delivery::Later, Some(fault))
        }
    }
}

impl Delivery {
    /// The result as the metric counts it.
    pub(super) const fn result(&self) -> &'static str {
        match self {
            Self::Applied { .. } => "applied",
            Self::Later => "postponed",
            Self::Failed(_) => "refused",
        }
    }

    /// Logs a refusal, since it needs an operator.
    fn reported(self, outgoing: &Outgoing) -> Self {
        if let Self::Failed(reason) = &self {
            tracing::error!(
                message = outgoing.id, sale = %outgoing.sale, shard = outgoing.shard, %reason,
                "the stock refuses a decision of the ledger (its sale's `refused-messages`)"
            );
        }
        self
    }
}

/// Delivers one message to its shard.
async fn deliver_to_shard(app: &App, outgoing: &Outgoing, epochs: &HashMap<ShardKey, i64>) -> Result<Delivery, Fault> {
    let shard = shard_of(outgoing);
    match &outgoing.message {
        Message::State => {
            let Some(sale) = app.ledger.sale(outgoing.sale).await? else {
                return Ok(gone(outgoing.sale));
            };
            app.stock.set_state(&sale, outgoing.shard).await?;
        }
        Message::Resolve {
            order,
            user,
            sku,
            state,
            at,
            quantity: _,
        } => {
            let (order, state) = (OrderId(*order), parsed(state)?);
            let (user, sku) = (parsed(user)?, parsed(sku)?);
            let resolved = app.stock.resolve(shard, &user, order, &sku, state, *at).await?;
            return Ok(after_resolve(app, outgoing, (order, state), resolved));
        }
        Message::Ban { user } => {
            if let Some(ban) = app.ledger.ban_of(&parsed(user)?).await? {
                app.stock.ban(shard, &ban, None).await?;
            }
        }
        Message::Restock { id, sku, units } => {
            let sku = parsed(sku)?;
            let Some(epoch) = epochs.get(&shard) else {
                app.permits.need(shard.sale);
                return Ok(Delivery::Later);
            };
            app.stock.restock(shard, *id, &sku, *units, *epoch).await?;
        }
        Message::Withdrawn { transfer } => app.stock.withdraw_done(shard, *transfer).await?,
        Message::GiveBack {
            transfer,
            sku,
            units,
            epoch,
        } => {
            let back = Transfer {
                id: *transfer,
                to: Destination::Shard(outgoing.shard),
                units: *units,
                sent_at: 0,
                // Its own units: no fence keeps them out.
                epoch: i64::MAX,
                to_epoch: *epoch,
                sku: parsed(sku)?,
                server: None,
            };
            return give_back(app, shard, &back).await;
        }
    }
    Ok(Delivery::Applied { by: None })
}

/// A value of a message.
fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, Fault> {
    text.parse().map_err(|error| Fault::Bug(format!("{error}")))
}

/// The outcome of a decision's delivery, by the shard's answer.
fn after_resolve(
    app: &App,
    outgoing: &Outgoing,
    (order, state): (OrderId, OrderState),
    resolved: Resolved,
) -> Delivery {
    match resolved {
        Resolved::Now | Resolved::Already => Delivery::Applied { by: None },
        // The shard has lost something. After a rebuild it has the order and this decision.
        Resolved::Unknown if outgoing.attempts < UNKNOWN_MAX => {
            app.permits.mark_unverified(shard_of(outgoing));
            Delivery::Later
        }
        Resolved::Unknown => Delivery::Failed(format!("the shard does not know order {}", order.0)),
        Resolved::Conflict(other) => {
            Delivery::Failed(format!("order {} should become {state}, but is {other:?}", order.0))
        }
    }
}

/// Gives units of an undone withdrawal back to the shard that they left.
async fn give_back(app: &App, shard: ShardKey, back: &Transfer) -> Result<Delivery, Fault> {
    let Some(sale) = app.ledger.sale(shard.sale).await? else {
        return Ok(gone(shard.sale));
    };
    // Otherwise the shard was rebuilt since the units left it, and has them.
    if app.stock.epoch(shard).await? <= back.to_epoch {
        finish(app, &sale, shard.shard, back).await?;
    }
    Ok(Delivery::Applied { by: None })
}

fn gone(sale: SaleId) -> Delivery {
    Delivery::Failed(format!("there is no sale {sale}"))
}
