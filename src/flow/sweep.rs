//! Sweep: go over the sales that are in Redis and finish or even out what is there. Each step is another flow's.

use super::App;
use super::{borrow, pay, preload, rebalance as even, restock};
use crate::domain::fault::Fault;
use crate::domain::sale::{Lifecycle, SaleState};
use crate::domain::time::Millis;

/// Transfers younger than this are still in the hands of whoever began them.
const LEFT_AFTER: Millis = 2_000;

/// Finishes transfers that were left between two shards; returns how many.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn finish_transfers(app: &App) -> Result<usize, Fault> {
    let mut finished = 0;
    for sale in app
        .sales
        .live()
        .await?
        .iter()
        .filter(|sale| sale.lifecycle != Lifecycle::Loading)
    {
        finished += borrow::finish_left(app, sale, LEFT_AFTER).await?;
    }
    Ok(finished)
}

/// Evens out the shards of sales that sell, or are about to; returns how many moves that took.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn rebalance(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    if sales.is_empty() {
        return Ok(0);
    }
    let now = app.stock.now().await?;
    let mut moved = 0;
    for sale in sales
        .iter()
        .filter(|sale| matches!(sale.state_at(now), SaleState::Scheduled | SaleState::Open))
    {
        moved += even::rebalance(app, sale).await?;
    }
    Ok(moved)
}

/// Settles payments and restocks that were left pending; returns how many.
///
/// # Errors
/// The first fault; the other kind has been seen to all the same.
pub async fn settle(app: &App) -> Result<usize, Fault> {
    let (payments, restocks) = (pay::settle_pending(app).await, restock::settle_pending(app).await);
    Ok(payments? + restocks?)
}

/// Finishes the loading of sales whose loading was broken off; returns how many.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn finish_loading(app: &App) -> Result<usize, Fault> {
    let mut loaded = 0;
    for sale in app
        .sales
        .live()
        .await?
        .iter()
        .filter(|sale| sale.lifecycle == Lifecycle::Loading)
    {
        preload::preload(app, sale.id).await?;
        loaded += 1;
    }
    Ok(loaded)
}
