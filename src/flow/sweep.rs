//! Sweep: go over the sales that are in Redis and finish or even out what is there. Each step is another flow's.

use super::{App, Tally, begin_anywhere};
use super::{borrow, pay, preload, rebalance as even, restock};
use crate::domain::fault::Fault;
use crate::domain::sale::{Lifecycle, Sale, SaleState};
use crate::domain::time::Millis;
use std::sync::Arc;

/// Transfers younger than this are still in the hands of whoever began them.
const LEFT_AFTER: Millis = 2_000;

/// Units that were sent to the ledger for longer than this, by a call that came late, are looked into.
const ORPHANED_AFTER: Millis = 30_000;

/// Finishes transfers that were left between two shards, brings back units that left for nothing, and has sales reconciled of
/// which that was broken off; returns how many transfers that were.
pub async fn finish_transfers(app: &App) -> Result<usize, Fault> {
    let mut tally = Tally::default();
    // Whoever had woken them may have gone in the middle of it, and their messages wait for the end of it.
    for sale in app.ledger.claimed_sales().await? {
        app.permits.need(sale);
    }
    let sales = app.sales.live().await?;
    let mut sales: Vec<&Arc<Sale>> = sales
        .iter()
        .filter(|sale| sale.is_in_stock() && !app.permits.is_resting(sale.id))
        .collect();
    begin_anywhere(&mut sales);
    for sale in sales {
        tally.note(borrow::finish_left(app, sale, LEFT_AFTER).await);
        tally.note(restock::give_back_orphans(app, sale, ORPHANED_AFTER).await);
    }
    tally.finish()
}

/// Evens out the shards of sales that sell, or are about to; returns how many moves that took.
pub async fn rebalance(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    if sales.is_empty() {
        return Ok(0);
    }
    let now = app.stock.now().await?;
    let mut tally = Tally::default();
    for sale in sales
        .iter()
        .filter(|sale| matches!(sale.state_at(now), SaleState::Scheduled | SaleState::Open))
    {
        tally.note(even::rebalance(app, sale).await);
    }
    tally.finish()
}

/// Settles payments and restocks that were left pending; returns how many.
///
/// # Errors
/// The first fault; the other kind has been seen to all the same.
pub async fn settle(app: &App) -> Result<usize, Fault> {
    let mut tally = Tally::default();
    // Beside each other: payments that wait for shards that are silent take their time.
    let (payments, restocks) = tokio::join!(
        Box::pin(pay::settle_pending(app)),
        Box::pin(restock::settle_pending(app))
    );
    tally.note(payments);
    tally.note(restocks);
    tally.finish()
}

/// Finishes the loading of sales whose loading was broken off; returns how many.
pub async fn finish_loading(app: &App) -> Result<usize, Fault> {
    let mut tally = Tally::default();
    for sale in app
        .sales
        .live()
        .await?
        .iter()
        .filter(|sale| sale.lifecycle == Lifecycle::Loading)
    {
        tally.note(preload::preload(app, sale.id).await.map(|_| 1));
    }
    tally.finish()
}
