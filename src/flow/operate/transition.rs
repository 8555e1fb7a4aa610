//! Transition: an operator opens, pauses, resumes or closes a sale.
//!
//! The ledger decides and leaves a message for each shard. The shards get the new state, all at once, before the
//! operator is answered. A crash in between leaves the messages.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::Transition;
use crate::flow::App;
use crate::flow::operate::preload::tell_all_shards;
pub use crate::ledger::sale::TransitionOutcome;
use chrono::Utc;
use std::sync::Arc;

/// Changes a sale's state, by Redis's clock.
///
/// # Errors
/// After a fault some shards may lack the new state; the same call again delivers it.
pub async fn transition(app: &App, id: SaleId, transition: Transition) -> Result<TransitionOutcome, Fault> {
    // An opening sale must be open by every server's clock. To pause or close a sale, no server need answer.
    let stops = matches!(transition, Transition::Pause | Transition::Close);
    let now = match app.stock.slowest_clock().await {
        Err(_) if stops => Utc::now().timestamp_millis(),
        now => now?,
    };
    let outcome = app.ledger.transition(id, transition, now).await?;
    crash::point("transition.after_commit");
    if let TransitionOutcome::Done(sale) = &outcome {
        let told = tell_all_shards(app, sale).await;
        app.sales.changed(&Arc::new(sale.clone())).await;
        told?;
    }
    Ok(outcome)
}
