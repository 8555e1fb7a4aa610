//! Guards: operators change the limits on shoppers, and read the guard warnings. Every process follows a change at once,
//! and reads the settings every few seconds besides. A crash leaves the settings as they were, or changed.

use crate::domain::fault::Fault;
use crate::domain::guard::GuardOverrides;
use crate::domain::operator::alert::ListedAlert;
use crate::flow::{App, in_time, whole};
use serde_json::{Map, Value};
use std::time::Duration;

/// How long a guard warning counts as recent. Nobody settles one, so it must not count for ever.
const RECENT: Duration = Duration::from_secs(15 * 60);
/// The most recent warnings that are counted.
const RECENT_MAX: i64 = 100;
/// How long the count may take.
const COUNT_MAX: Duration = Duration::from_secs(1);

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

/// How many guard warnings the last quarter of an hour had, at most a hundred. Names no account.
pub async fn recent_warnings(app: &App) -> Result<i64, Fault> {
    in_time(COUNT_MAX, app.ledger.recent_alerts(RECENT, RECENT_MAX)).await
}
