//! Guards: operators change the limits on shoppers, and read the guard warnings. Every process follows a change at once,
//! and reads the settings every few seconds besides. A crash leaves the settings as they were, or changed.

use crate::domain::fault::Fault;
use crate::domain::guard::GuardOverrides;
use crate::domain::operator::alert::ListedAlert;
use crate::flow::{App, whole};
use serde_json::{Map, Value};

/// The operators' settings and stages, which override the configuration.
pub async fn overrides(app: &App) -> Result<GuardOverrides, Fault> {
    app.ledger.guard_overrides().await
}

/// Applies a patch to the settings, as [`crate::ledger::Ledger::change_guards`] does. Returns the new ones, or what is
/// wrong.
pub async fn change<E>(
    app: &App,
    patch: Map<String, Value>,
    is_right: impl FnOnce(Value, Value) -> Result<GuardOverrides, E>,
) -> Result<Result<GuardOverrides, E>, Fault> {
    app.ledger.change_guards(patch, is_right).await
}

/// Up to `max` guard warnings, newest first, older than the one with this number.
pub async fn warnings(app: &App, before: Option<i64>, max: usize) -> Result<Vec<ListedAlert>, Fault> {
    app.ledger.guard_alerts(before, whole(max)).await
}
