//! Conservation check: the stock audit at a bounded cost, as a job, for every sale whose units can still move.
//!
//! It reads counters of the shards and sums of the ledger, not orders, and writes only what it finds. Processes claim
//! sales one by one in the ledger, so one process at a time checks a sale. A crash leaves the sale to the next claim.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Sale, SaleState};
use crate::flow::watch::audit::Count;
use crate::flow::{App, RunTotals};
use crate::ledger::watch::conservation::Conservation;
use crate::stock::keys::ShardKey;
use std::sync::Arc;
use std::time::Duration;

/// How long a claim holds: a little less than the job's period.
const EVERY: Duration = Duration::from_secs(4);
/// Rounds of comparing the two sides while they differ; units that move differ for a moment.
const ROUNDS_MAX: u32 = 5;
/// Events of one shard that are added up. With a longer backlog, Redis is busy: only the counters of the sale's shards
/// are read, which show a difference, but no drift of a shard with events.
const EVENTS_MAX: usize = 1000;

/// Checks the sales that no process has checked a moment ago; returns how many were counted completely.
pub async fn check_sales(app: &App) -> Result<usize, Fault> {
    let due = sales_to_check(app).await?;
    let ids: Vec<SaleId> = due.iter().map(|it| it.sale.id).collect();
    app.ledger.keep_conservation(&ids).await?;
    let mut totals = RunTotals::default();
    for it in due {
        match app.ledger.claim_conservation(it.sale.id, EVERY).await {
            Ok(true) => totals.note(check_due(app, &it).await.map(|it| usize::from(it.is_complete))),
            Ok(false) => {}
            Err(fault) => totals.note(Err(fault)),
        }
    }
    totals.finish()
}

/// A sale to check.
struct DueSale {
    sale: Arc<Sale>,
    /// Whether none of its units will move again. A complete check without a finding is then the last one.
    is_settled: bool,
}

async fn check_due(app: &App, due: &DueSale) -> Result<Conservation, Fault> {
    let found = check(app, &due.sale).await?;
    if due.is_settled && found.is_complete && (found.difference, found.drift) == (0, 0) {
        app.ledger.forget_conservation(due.sale.id).await?;
    }
    Ok(found)
}

/// - Sales that are not closed.
/// - Closed sales whose holds are not all decided, or whose shards do not know it yet.
/// - Closed sales that were not counted since, or whose last count had a finding, until they leave Redis.
async fn sales_to_check(app: &App) -> Result<Vec<DueSale>, Fault> {
    let now = app.stock.slowest_clock().await?;
    let sales = app.sales.live().await?;
    let (closed, open): (Vec<Arc<Sale>>, Vec<Arc<Sale>>) = sales
        .iter()
        .filter(|sale| sale.is_in_stock())
        .cloned()
        .partition(|sale| sale.state_at(now) == SaleState::Closed);
    let unsettled = |sale| DueSale {
        sale,
        is_settled: false,
    };
    let mut due: Vec<DueSale> = open.into_iter().map(unsettled).collect();
    let ids: Vec<SaleId> = closed.iter().map(|sale| sale.id).collect();
    let known = app.ledger.closed_conservation(&ids).await?;
    for sale in closed {
        let (has_open_holds, has_check) = known.get(&sale.id).copied().unwrap_or_default();
        // A shard that does not answer may have orders too. The check then fails, and the job reports it.
        if has_open_holds || !matches!(longest_backlog(app, &sale).await, Ok(0)) {
            due.push(unsettled(sale));
        } else if has_check && !sale.leaving {
            due.push(DueSale { sale, is_settled: true });
        }
    }
    Ok(due)
}

/// The most events of one shard that the ledger may lack.
async fn longest_backlog(app: &App, sale: &Sale) -> Result<i64, Fault> {
    // No event waits in a sale that rests.
    if app.permits.is_resting(sale.id) {
        return Ok(0);
    }
    let shards: Vec<ShardKey> = ShardKey::all(sale).collect();
    let events = app.stock.undrained(&shards).await?;
    Ok(events.into_iter().max().unwrap_or_default())
}

/// Checks one sale, and stores the finding if the sale is claimed.
pub async fn check(app: &App, sale: &Sale) -> Result<Conservation, Fault> {
    let counted = count(app, sale).await;
    if matches!(counted, Err(Fault::Incomplete(_))) {
        // A key is missing. A sale that rests has no permits to renew, so nothing else would find that.
        app.permits.need(sale.id);
    }
    let found = counted?;
    if (found.difference, found.drift) != (0, 0) {
        tracing::warn!(sale = %sale.id, difference = found.difference, drift = found.drift, "the two stores do not agree on the units of a sale");
    }
    app.ledger.note_conservation(found).await?;
    Ok(found)
}

async fn count(app: &App, sale: &Sale) -> Result<Conservation, Fault> {
    let backlog = longest_backlog(app, sale).await?;
    let is_behind = usize::try_from(backlog).is_ok_and(|events| events > EVENTS_MAX);
    let events_max = if is_behind { 0 } else { EVENTS_MAX };
    let (mut count, mut round) = (Count::default(), 0);
    loop {
        count.compare(app, sale, events_max).await?;
        let found = Conservation {
            sale: sale.id,
            difference: count.findings().map(|it| it.conservation).sum(),
            drift: count.findings().map(|it| it.drift).sum(),
            is_complete: count.findings().all(|it| it.uncounted_events == 0),
        };
        round += 1;
        if (found.difference, found.drift) == (0, 0) || round == ROUNDS_MAX {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(50) * round).await;
    }
}
