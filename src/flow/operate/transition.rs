//! Transition: an operator opens, pauses, resumes or closes a sale, or amends it.
//!
//! The ledger decides and leaves a message for each shard. The shards get the new state and times, all at once, before
//! the operator is answered. A crash in between leaves the messages.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::amendment::{Amendment, CannotAmend};
use crate::domain::sale::{Sale, Transition};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::operate::preload::deliver_state;
pub use crate::ledger::operate::sale::TransitionOutcome;
use chrono::Utc;
use std::sync::Arc;
use std::time::Duration;

/// A silent server delays the pause of the others by this long. The pause must hold within a second.
const SILENT_MAX: Duration = Duration::from_millis(150);

/// Changes a sale's state, by Redis's clock. After a fault some shards may lack the new state; the same call again
/// delivers it.
pub async fn transition(app: &App, id: SaleId, transition: Transition) -> Result<TransitionOutcome, Fault> {
    let now = match transition {
        Transition::Pause | Transition::Close => clock_to_stop(app).await,
        // An opening sale must be open by every server's clock.
        Transition::Open | Transition::Resume => app.stock.slowest_clock().await?,
    };
    let outcome = app.ledger.transition(id, transition, now).await?;
    if let TransitionOutcome::Done(sale) = &outcome {
        deliver(app, sale).await?;
    }
    Ok(outcome)
}

/// Amends a published sale, by Redis's clock. With `versions`, the sale must have one of them. `None` if there is no
/// such sale. Fails as [`transition`].
pub async fn amend(
    app: &App,
    id: SaleId,
    amendment: &Amendment,
    versions: Option<&[String]>,
) -> Result<Option<Result<Sale, CannotAmend>>, Fault> {
    let now = app.stock.slowest_clock().await?;
    let outcome = app.ledger.amend(id, amendment, versions, now).await?;
    if let Some(Ok(sale)) = &outcome {
        deliver(app, sale).await?;
    }
    Ok(outcome)
}

async fn deliver(app: &App, sale: &Sale) -> Result<(), Fault> {
    crash::point("transition.after_commit");
    let delivered = deliver_state(app, sale).await;
    app.sales.changed(&Arc::new(sale.clone()));
    delivered
}

/// The moment of a pause or a close, for which no server need answer.
async fn clock_to_stop(app: &App) -> Millis {
    if let Ok(now) = app.stock.slowest_clock_within(SILENT_MAX).await {
        return now;
    }
    let now = app.stock.slowest_clock().await;
    now.unwrap_or_else(|_| Utc::now().timestamp_millis())
}
