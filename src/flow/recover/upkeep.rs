//! Upkeep: go over the sales in Redis, and finish or even out what is there. Each step is another flow's, and so is
//! what a crash leaves.

use crate::domain::fault::Fault;
use crate::domain::sale::{Lifecycle, Sale, SaleState};
use crate::domain::time::Millis;
use crate::flow::operate::{preload, restock};
use crate::flow::recover::rebalance as even;
use crate::flow::sell::borrow;
use crate::flow::settle::pay;
use crate::flow::{App, RunTotals, rotate_start};
use std::sync::Arc;

/// Transfers younger than this may still be in progress.
const LEFT_AFTER: Millis = 2_000;

/// Units in transit to the ledger for longer than this are checked: a late call may have sent them.
const ORPHANED_AFTER: Millis = 30_000;

/// Finishes transfers that were left between two shards, and gives back units that left for nothing. Also wakes sales
/// whose reconcile was broken off. Returns the number of transfers.
pub async fn finish_transfers(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    // The process that reconciled these sales may be gone. Their messages wait for the end of the reconcile.
    for sale in app.ledger.claimed_sales().await? {
        app.permits.need(sale);
    }
    let sales = app.sales.live().await?;
    let mut sales: Vec<&Arc<Sale>> = sales
        .iter()
        .filter(|sale| sale.is_in_stock() && !app.permits.is_resting(sale.id))
        .collect();
    rotate_start(&mut sales);
    for sale in sales {
        totals.note(borrow::finish_left(app, sale, LEFT_AFTER).await);
        totals.note(restock::give_back_orphans(app, sale, ORPHANED_AFTER).await);
    }
    totals.finish()
}

/// Evens out the shards of sales that are scheduled or open, except those at rest; returns the number of moves.
pub async fn rebalance(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    if sales.is_empty() {
        return Ok(0);
    }
    let now = app.stock.now().await?;
    let is_on = |sale: &&Arc<Sale>| matches!(sale.state_at(now), SaleState::Scheduled | SaleState::Open);
    let mut sales: Vec<&Arc<Sale>> = sales.iter().filter(is_on).collect();
    app.rests.keep(&sales.iter().map(|sale| sale.id).collect());
    // Sales with a silent shard take longer, and the run ends in time.
    rotate_start(&mut sales);
    let mut totals = RunTotals::default();
    for sale in sales {
        totals.note(even::rebalance_unless_at_rest(app, sale).await);
    }
    totals.finish()
}

/// Settles payments and restocks that were left pending; returns how many. Fails with the first fault; the other kind
/// is settled all the same.
pub async fn settle(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    // Side by side: payments that wait for silent shards take their time.
    let (payments, restocks) = tokio::join!(
        Box::pin(pay::settle_pending(app)),
        Box::pin(restock::settle_pending(app))
    );
    totals.note(payments);
    totals.note(restocks);
    totals.finish()
}

/// Finishes the loading of sales whose loading was broken off; returns how many.
pub async fn finish_loading(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    let sales = app.sales.live().await?;
    for sale in sales.iter().filter(|sale| sale.lifecycle == Lifecycle::Loading) {
        totals.note(preload::load(app, sale.id).await.map(|_| 1));
    }
    totals.finish()
}
