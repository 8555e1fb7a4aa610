//! Conservation check: the stock audit at a bounded cost, as a job, for every sale that is not over.
//!
//! It reads counters of the shards and sums of the ledger, not orders, and writes only what it finds. Processes claim
//! sales one by one in the ledger, so one process at a time checks a sale. A crash leaves the sale to the next claim.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Sale, SaleState};
use crate::flow::watch::audit::Count;
use crate::flow::{App, Tally};
use crate::ledger::conservation::Conservation;
use crate::stock::keys::ShardKey;
use std::sync::Arc;
use std::time::Duration;

/// How long a claim holds: a little less than the job's period.
const EVERY: Duration = Duration::from_secs(4);
/// Rounds of comparing the two sides while they differ; units that move differ for a moment.
const ROUNDS_MAX: u32 = 5;
/// Events of one shard that are added up. A sale with a longer backlog is not checked: the ledger is far behind, which
/// has alerts of its own, and Redis is busy.
const EVENTS_MAX: usize = 1000;

/// Checks the sales that no process has checked a moment ago; returns how many.
pub async fn check_sales(app: &App) -> Result<usize, Fault> {
    let now = app.stock.slowest_clock().await?;
    let sales = app.sales.live().await?;
    let is_on = |sale: &&Arc<Sale>| sale.is_in_stock() && sale.state_at(now) != SaleState::Closed;
    let sales: Vec<Arc<Sale>> = sales.iter().filter(is_on).cloned().collect();
    let ids: Vec<SaleId> = sales.iter().map(|sale| sale.id).collect();
    app.ledger.keep_conservation(&ids).await?;
    let mut tally = Tally::default();
    for sale in sales {
        match app.ledger.claim_conservation(sale.id, EVERY).await {
            Ok(true) => tally.note(check_unless_behind(app, &sale).await.map(usize::from)),
            Ok(false) => {}
            Err(fault) => tally.note(Err(fault)),
        }
    }
    tally.finish()
}

/// Returns whether the sale was checked.
async fn check_unless_behind(app: &App, sale: &Sale) -> Result<bool, Fault> {
    let shards: Vec<ShardKey> = (0..sale.shards)
        .map(|shard| ShardKey { sale: sale.id, shard })
        .collect();
    let events = app.stock.undrained(&shards).await?;
    if events
        .into_iter()
        .any(|events| usize::try_from(events).unwrap_or(0) > EVENTS_MAX)
    {
        return Ok(false);
    }
    check(app, sale).await.map(|_| true)
}

/// Checks one sale, and stores the finding if the sale is claimed.
pub async fn check(app: &App, sale: &Sale) -> Result<Conservation, Fault> {
    let mut count = Count::default();
    for round in 1..=ROUNDS_MAX {
        count.compare(app, sale, EVENTS_MAX).await?;
        if count.agrees() || round == ROUNDS_MAX {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50) * round).await;
    }
    let found = Conservation {
        sale: sale.id,
        difference: count.findings().map(|it| it.conservation).sum(),
        drift: count.findings().map(|it| it.drift).sum(),
    };
    if (found.difference, found.drift) != (0, 0) {
        tracing::warn!(sale = %sale.id, difference = found.difference, drift = found.drift, "the two stores do not agree on the units of a sale");
    }
    app.ledger.note_conservation(found).await?;
    Ok(found)
}
