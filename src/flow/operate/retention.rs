//! Retention: forgets what is older than the settings say, ended sessions, and outages that extend no hold. Orders,
//! payments and counts of units stay.
//!
//! A crash leaves what was committed; the next run goes on. Workers may run it side by side.

use crate::domain::fault::Fault;
use crate::flow::{App, RunTotals};

/// Rows of one transaction.
const BATCH_MAX: i64 = 5000;
/// Batches of one kind in a run.
const BATCHES_MAX: usize = 20;

/// Returns the number of rows that were deleted or changed by the settings. Fails with the first fault. The run goes on
/// with the other kinds.
pub async fn forget_old(app: &App) -> Result<usize, Fault> {
    let (ledger, kept) = (&app.ledger, app.retention);
    let mut totals = RunTotals::default();
    if let Some(days) = kept.warnings {
        totals.note(in_batches("guard warnings", || ledger.forget_warnings(days, BATCH_MAX)).await);
    }
    if let Some(days) = kept.audit_log {
        totals.note(in_batches("audit log", || ledger.forget_actions(days, BATCH_MAX)).await);
    }
    if let Some(days) = kept.history {
        totals.note(in_batches("history of sales", || ledger.forget_history(days, BATCH_MAX)).await);
    }
    if let Some(days) = kept.accounts {
        totals.note(in_batches("accounts in orders", || ledger.forget_accounts(days, BATCH_MAX)).await);
    }
    totals.note(ledger.forget_sessions().await.map(|()| 0));
    totals.note(ledger.forget_outages().await.map(|()| 0));
    totals.finish()
}

async fn in_batches<F>(what: &'static str, batch: impl Fn() -> F) -> Result<usize, Fault>
where
    F: Future<Output = Result<Option<u64>, Fault>>,
{
    let mut rows = 0;
    for _ in 0..BATCHES_MAX {
        let Some(more) = batch().await? else { break };
        rows += more;
    }
    if rows > 0 {
        tracing::info!(what, rows, "old rows were forgotten");
    }
    Ok(usize::try_from(rows).unwrap_or(usize::MAX))
}
