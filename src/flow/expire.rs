//! Expire: orders whose deadline has passed by Redis's clock, which set it, leave `reserved`; the relay gives their
//! units back. Before that, every hold is extended by the time in which nobody could come to the ledger.
//!
//! A crash after the decision leaves its messages in the outbox.

use super::{App, Tally};
use crate::domain::fault::Fault;

/// Orders in one transaction.
const BATCH_MAX: i64 = 500;
/// Batches of one shard in one run.
const BATCHES_MAX: usize = 100;

/// Expires what is due; returns how many orders that were.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn expire_due(app: &App) -> Result<usize, Fault> {
    if let Some(outage) = app.ledger.beat().await? {
        tracing::warn!(
            seconds = outage.num_seconds(),
            "no worker had come to Postgres; unpaid orders are held that much longer"
        );
    }
    for (sale, shard) in app.ledger.shards_to_extend().await? {
        app.ledger.extend_holds(sale, shard).await?;
    }
    let shards = app.ledger.shards_with_due_orders().await?;
    if shards.is_empty() {
        return Ok(0);
    }
    let now = app.stock.now().await?;
    let mut tally = Tally::default();
    for (sale, shard) in shards {
        for _ in 0..BATCHES_MAX {
            let batch = app.ledger.expire_due(sale, shard, now, BATCH_MAX).await;
            let full = batch
                .as_ref()
                .is_ok_and(|expired| i64::try_from(*expired) == Ok(BATCH_MAX));
            tally.note(batch);
            if !full {
                break;
            }
        }
    }
    tally.finish()
}
