//! Drain: take a shard's events into the ledger.
//!
//! A crash before the commit leaves the events in the stream; after it, they are behind the shard's position and
//! the next drain only trims them.

use super::App;
use crate::crash;
use crate::domain::event::{Event, Position};
use crate::domain::fault::Fault;
use crate::domain::sale::{Lifecycle, Sale};
use crate::ledger::drain::Drained;
use crate::stock::keys::ShardKey;
use futures_util::StreamExt;
use moka::future::Cache;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Events in one transaction.
pub const BATCH_MAX: usize = 1000;
/// Batches of one shard before the others get a turn.
const BATCHES_MAX: usize = 10;
/// Shards drained at once by one process.
const SHARDS_AT_ONCE: usize = 4;

/// What one batch came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Somebody else has the shard.
    Busy,
    /// Nothing is left.
    Empty,
    /// A batch was taken in.
    Drained(Drained),
}

/// How far this process has seen each shard taken in. Its lock lets one drain of a shard run at a time here: those
/// who wait for it often find that it has taken in what they wait for.
pub struct Drains(Cache<ShardKey, Arc<Mutex<Position>>>);

impl Default for Drains {
    fn default() -> Self {
        Self(Cache::new(100_000))
    }
}

impl Drains {
    async fn of(&self, shard: ShardKey) -> Arc<Mutex<Position>> {
        self.0
            .get_with(shard, async { Arc::new(Mutex::new(Position { epoch: 0, seq: 0 })) })
            .await
    }
}

/// Takes in the next batch of one shard.
///
/// # Errors
/// A fault leaves the batch for the next run; nothing is taken in twice.
pub async fn drain_batch(app: &App, sale: &Sale, shard: u16) -> Result<DrainOutcome, Fault> {
    let seen = app.drains.of(ShardKey { sale: sale.id, shard }).await;
    let Ok(mut seen) = seen.try_lock() else {
        return Ok(DrainOutcome::Busy);
    };
    drain_claimed(app, sale, shard, &mut seen).await
}

async fn drain_claimed(app: &App, sale: &Sale, shard: u16, seen: &mut Position) -> Result<DrainOutcome, Fault> {
    let key = ShardKey { sale: sale.id, shard };
    let Some(claim) = app.ledger.claim_shard(sale.id, shard).await? else {
        return Ok(DrainOutcome::Busy);
    };
    let before = claim.position;
    *seen = before;
    let events = app.stock.events_after(key, before, BATCH_MAX).await?;
    let Some(last) = events.last().map(|event| event.position) else {
        drop(claim);
        // A crash after the commit left them.
        app.stock.trim_events(key, before).await?;
        return Ok(DrainOutcome::Empty);
    };
    report_gaps(sale, shard, before, &events);
    crash::point("drain.before_commit");
    let drained = claim
        .apply(sale, &events, chrono::Utc::now().timestamp_millis())
        .await?;
    crash::point("drain.after_commit");
    *seen = last;
    app.stock.trim_events(key, last).await?;
    Ok(DrainOutcome::Drained(drained))
}

/// Numbers follow each other; a missing one is a lost order, which must be seen.
fn report_gaps(sale: &Sale, shard: u16, before: Position, events: &[Event]) {
    let mut last = before;
    for event in events {
        let expected = if event.position.epoch == last.epoch {
            last.seq + 1
        } else {
            1
        };
        if event.position.seq != expected {
            let (epoch, seq) = (event.position.epoch, event.position.seq);
            tracing::error!(sale = %sale.id, shard, epoch, seq, expected, "events are missing from the stream");
        }
        last = event.position;
    }
}

/// Drains every shard that has something, several at once; returns how many orders came in.
///
/// # Errors
/// The first fault; the other shards have been drained all the same.
pub async fn drain_all(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    let mut shards = Vec::new();
    for sale in sales.iter().filter(|sale| sale.lifecycle != Lifecycle::Loading) {
        shards.extend((0..sale.shards).map(|shard| (Arc::clone(sale), ShardKey { sale: sale.id, shard })));
    }
    let keys: Vec<ShardKey> = shards.iter().map(|(_, key)| *key).collect();
    let mut backlog = app.stock.undrained(&keys).await?.into_iter();
    shards.retain(|_| backlog.next().is_some_and(|events| events > 0));
    let drained: Vec<Result<usize, Fault>> = futures_util::stream::iter(shards)
        .map(|(sale, key)| async move { drain_shard(app, &sale, key.shard).await })
        .buffer_unordered(SHARDS_AT_ONCE)
        .collect()
        .await;
    let mut orders = 0;
    for outcome in drained {
        orders += outcome?;
    }
    Ok(orders)
}

async fn drain_shard(app: &App, sale: &Sale, shard: u16) -> Result<usize, Fault> {
    let mut orders = 0;
    for _ in 0..BATCHES_MAX {
        match drain_batch(app, sale, shard).await? {
            DrainOutcome::Drained(drained) => orders += drained.inserted,
            DrainOutcome::Busy | DrainOutcome::Empty => break,
        }
    }
    Ok(orders)
}

/// Waits, until `deadline`, for the ledger to take in what these shards have written by now, and takes part in it.
/// `false` when the time was too short.
///
/// # Errors
/// A fault says nothing about what was taken in.
pub async fn drain_to_now(app: &App, sale: &Sale, shards: &[u16], deadline: Instant) -> Result<bool, Fault> {
    for shard in shards {
        let key = ShardKey {
            sale: sale.id,
            shard: *shard,
        };
        // Only what is still in the stream can be missing: a trimmed event has been committed.
        let Some(target) = app.stock.last_event(key).await? else {
            continue;
        };
        match tokio::time::timeout_at(deadline, drain_up_to(app, sale, *shard, target)).await {
            Ok(outcome) => outcome?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns once the ledger has taken in the shard's events up to `target`.
async fn drain_up_to(app: &App, sale: &Sale, shard: u16, target: Position) -> Result<(), Fault> {
    let seen = app.drains.of(ShardKey { sale: sale.id, shard }).await;
    loop {
        let mut seen = seen.lock().await;
        if *seen >= target {
            return Ok(());
        }
        if drain_claimed(app, sale, shard, &mut seen).await? == DrainOutcome::Busy {
            // Another process is at it; look again when it may have committed.
            drop(seen);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
