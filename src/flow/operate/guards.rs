//! Guards: operators change the limits on shoppers, and read the guard warnings. Every process follows a change at once,
//! and reads the settings every few seconds besides. A crash leaves the settings as they were, or changed.

use crate::domain::alert::ListedAlert;
use crate::domain::fault::Fault;
use crate::domain::guard::GuardChanges;
use crate::flow::App;
use crate::flow::sale_book::whole;
use serde_json::{Map, Value};

/// The operators' settings, which override the configuration.
pub async fn changes(app: &App) -> Result<GuardChanges, Fault> {
    app.ledger.guard_changes().await
}

/// Applies `changes` to the settings, as [`crate::ledger::Ledger::change_guards`] does. Returns the new settings, or
/// what is wrong.
pub async fn change<E>(
    app: &App,
    changes: Map<String, Value>,
    is_right: impl FnOnce(Value) -> Result<GuardChanges, E>,
) -> Result<Result<GuardChanges, E>, Fault> {
    app.ledger.change_guards(changes, is_right).await
}

/// Up to `max` guard warnings, newest first, older than the one with this number.
pub async fn warnings(app: &App, before: Option<i64>, max: usize) -> Result<Vec<ListedAlert>, Fault> {
    app.ledger.guard_alerts(before, whole(max)).await
}
