//! Drain: store a shard's events in the ledger.
//!
//! A crash before the commit leaves the events in the stream. A crash after it leaves events that the ledger has; the
//! next drain only trims them.

mod batch;

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::sale::{Durability, Lifecycle, Sale};
use crate::flow::{App, RunTotals, rotate_start};
use crate::ledger::settle::drain::Drained;
use crate::stock::keys::ShardKey;
use batch::drain_claimed;
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, Semaphore};
use tokio::time::Instant;
use tracing::Instrument as _;

pub const BATCH_MAX: usize = 1000;
/// Shards that a process drains at once while it is behind, or while shoppers wait for its commits. Otherwise it
/// drains one after the other: several transactions at once take the processors from selling, in bursts.
const SHARDS_AT_ONCE: usize = 4;
/// How long a shard waits for its turn; then it starts without one. The shard before it may be in trouble.
const TURN_MAX: Duration = Duration::from_millis(200);
/// How long a round waits for a silent node of a cluster before it goes on without it.
const SILENCE_MAX: Duration = Duration::from_millis(300);
/// How long a batch may take that a caller waits for: as long as a round of the drain.
const AWAITED_MAX: Duration = Duration::from_secs(25);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Another process or task drains the shard.
    Busy,
    Empty,
    Drained {
        drained: Drained,
        /// Whether the stream has more events.
        more: bool,
    },
}

/// Sales that are drained apart from the others. A shopper who waits for the ledger waits neither for the other lane's
/// backlog nor for a failing shard there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Sales whose shoppers get their answer once the ledger has the order.
    Synchronous,
    Asynchronous,
}

impl Lane {
    pub const ALL: [Self; 2] = [Self::Synchronous, Self::Asynchronous];

    const fn of(durability: Durability) -> Self {
        match durability {
            Durability::Postgres => Self::Synchronous,
            Durability::Redis | Durability::Replica => Self::Asynchronous,
        }
    }

    /// Batches of one shard before the next shard has its turn.
    const fn batches_max(self) -> usize {
        match self {
            Self::Synchronous => 1,
            Self::Asynchronous => 10,
        }
    }
}

/// The drains of this process.
pub struct Drains {
    /// When the last drain began that reached the end of the shard's stream. The lock lets one drain of a shard run at
    /// a time in this process. A caller that waited for the lock often finds its events drained.
    complete: Cache<ShardKey, Arc<Mutex<Option<Instant>>>>,
    /// Wakes the drain, by lane.
    wanted: [Notify; Lane::ALL.len()],
    /// Limits the drains that callers wait for: the rest of the process needs connections to Postgres, too.
    awaited: Arc<Semaphore>,
}

impl Default for Drains {
    fn default() -> Self {
        Self {
            complete: Cache::new(100_000),
            wanted: Default::default(),
            awaited: Arc::new(Semaphore::new(SHARDS_AT_ONCE)),
        }
    }
}

impl Drains {
    /// Wakes this process's drain for sales of this durability.
    pub fn want(&self, durability: Durability) {
        self.wanted[Lane::of(durability) as usize].notify_one();
    }

    /// Waits until the drain of a lane is woken.
    pub async fn wanted(&self, lane: Lane) {
        self.wanted[lane as usize].notified().await;
    }

    fn of(&self, shard: ShardKey) -> Arc<Mutex<Option<Instant>>> {
        self.complete.get_or_make(&shard, Arc::default)
    }
}

/// Drains the next batch of one shard. A fault leaves the batch for the next run; no event is stored twice.
pub async fn drain_batch(app: &App, sale: &Sale, shard: u16) -> Result<DrainOutcome, Fault> {
    let complete = app.drains.of(ShardKey::new(sale.id, shard));
    let Ok(mut complete) = complete.try_lock() else {
        return Ok(DrainOutcome::Busy);
    };
    drain_claimed(app, sale, shard, &mut complete).await
}

/// Drains every shard of a lane that has events; returns how many orders were new. Fails with the first fault; the
/// other shards are drained all the same.
pub async fn drain_lane(app: &App, lane: Lane) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    let mut shards = Vec::new();
    let is_drained = |sale: &&Arc<Sale>| {
        let is_loaded = sale.lifecycle != Lifecycle::Loading;
        is_loaded && Lane::of(sale.durability) == lane && !app.permits.is_resting(sale.id)
    };
    for sale in sales.iter().filter(is_drained) {
        shards.extend(ShardKey::all(sale).map(|shard| (Arc::clone(sale), shard)));
    }
    // Another process drains the shards that a promoted replica has taken over.
    shards.retain(|(_, key)| !app.permits.has_lost(*key));
    let keys: Vec<ShardKey> = shards.iter().map(|(_, key)| *key).collect();
    let mut totals = RunTotals::default();
    let mut backlog = app.stock.undrained_soon(&keys, SILENCE_MAX).await.into_iter();
    let mut is_urgent = lane == Lane::Synchronous;
    shards.retain(|_| match backlog.next() {
        Some(Ok(events)) => {
            is_urgent |= usize::try_from(events).is_ok_and(|events| events >= BATCH_MAX);
            events > 0
        }
        Some(Err(fault)) => {
            totals.note(Err(fault));
            false
        }
        None => false,
    });
    let turns = Semaphore::new(if is_urgent { SHARDS_AT_ONCE } else { 1 });
    rotate_start(&mut shards);
    let drained: Vec<Result<usize, Fault>> = futures_util::stream::iter(shards)
        .map(|(sale, key)| {
            let turns = &turns;
            async move {
                let _turn = tokio::time::timeout(TURN_MAX, turns.acquire()).await;
                drain_shard(app, &sale, key.shard, lane.batches_max()).await
            }
        })
        .buffer_unordered(SHARDS_AT_ONCE)
        .collect()
        .await;
    drained.into_iter().for_each(|outcome| totals.note(outcome));
    totals.finish()
}

async fn drain_shard(app: &App, sale: &Sale, shard: u16, batches_max: usize) -> Result<usize, Fault> {
    let mut orders = 0;
    for _ in 0..batches_max {
        match drain_batch(app, sale, shard).await? {
            DrainOutcome::Drained { drained, more } => {
                orders += drained.inserted;
                if !more {
                    break;
                }
            }
            DrainOutcome::Busy | DrainOutcome::Empty => break,
        }
    }
    Ok(orders)
}

/// Waits, until `deadline`, for the ledger to store what these shards have written by now, and helps to drain them.
/// Returns `false` when the deadline passes first. After a fault, the events may be in the ledger or not.
pub async fn drain_to_now(app: &App, sale: &Sale, shards: &[u16], deadline: Instant) -> Result<bool, Fault> {
    let asked = Instant::now();
    let keys: Vec<ShardKey> = shards.iter().map(|shard| ShardKey::new(sale.id, *shard)).collect();
    let backlog = app.stock.undrained(&keys).await?;
    // Only events that are still in a stream can be missing: a trimmed event has been committed.
    let waiting = keys.into_iter().zip(backlog).filter(|(_, events)| *events > 0);
    let drains = futures_util::stream::iter(waiting)
        .map(|(key, _)| drain_after(app, sale, key.shard, asked))
        .buffer_unordered(SHARDS_AT_ONCE)
        .try_collect::<()>();
    tokio::time::timeout_at(deadline, drains)
        .await
        .map_or(Ok(false), |drained| drained.map(|()| true))
}

/// Returns once the ledger has stored what the shard had written when `asked`.
async fn drain_after(app: &App, sale: &Sale, shard: u16, asked: Instant) -> Result<(), Fault> {
    let complete = app.drains.of(ShardKey::new(sale.id, shard));
    loop {
        let complete = Arc::clone(&complete).lock_owned().await;
        if complete.is_some_and(|began| began > asked) {
            return Ok(());
        }
        if drain_awaited(app, sale, shard, complete).await? == DrainOutcome::Busy {
            // Another process drains the shard. It may have committed by the next attempt.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Drains a batch in a task of its own, which outlives the caller's wait. If the transaction ended with the wait, a
/// slow batch would be given up by one caller after the other and never be stored.
async fn drain_awaited(
    app: &App,
    sale: &Sale,
    shard: u16,
    mut complete: OwnedMutexGuard<Option<Instant>>,
) -> Result<DrainOutcome, Fault> {
    // The semaphore is never closed.
    let place = Arc::clone(&app.drains.awaited).acquire_owned().await.ok();
    let (app, sale) = (app.clone(), sale.clone());
    let batch = async move {
        let _place = place;
        let drain = drain_claimed(&app, &sale, shard, &mut complete);
        tokio::time::timeout(AWAITED_MAX, drain).await
    };
    match tokio::spawn(batch.in_current_span()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Fault::Unavailable("the drain got no answer in time".to_owned())),
        Err(error) => Err(Fault::Unavailable(format!("a drain ended in the middle: {error}"))),
    }
}
