//! When the drain runs: it never rests, so it is a task for each lane, and not a job.

use super::lease::Turns;
use super::news::News;
use crate::domain::fault::Fault;
use crate::flow::App;
use crate::flow::recover::instances::{Instances, Rank};
use crate::flow::settle::drain::{BATCH_MAX, Lane, drain_lane};
use chrono::{TimeDelta, Utc};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long the drain collects events after the first, so that many share a transaction: with few orders, most of a
/// batch's cost is fixed.
const GATHER: Duration = Duration::from_millis(50);
/// The same for the synchronous lane, whose shoppers wait for the ledger.
const GATHER_SYNCHRONOUS: Duration = Duration::from_millis(10);
/// The same while some of them wait at this process.
const GATHER_AWAITED: Duration = Duration::from_millis(2);
/// After a round that stored so many orders, the next one begins at once unless purchases wake it. Such a round takes
/// longer than to gather, and may have left events behind.
const LONG_ROUND: usize = 10 * BATCH_MAX;
/// How long the drain waits at most without being woken: events of other processes do not wake it. The wait doubles
/// after each round that found nothing.
const DRAIN_IDLE: DrainIdle = DrainIdle {
    first: Duration::from_millis(200),
    reserve: Duration::from_millis(600),
};
/// The same while every instance drains what it sells. Then only the events of one that has died wait for another.
const DRAIN_IDLE_ALL_WORK: DrainIdle = DrainIdle {
    first: Duration::from_secs(1),
    reserve: Duration::from_secs(3),
};
/// Once in so many seconds, one of all other workers asks for events.
const DRAIN_OTHERS: u32 = 15;
/// How long one round may take; the next one finds what it leaves.
const DRAIN_ROUND_MAX: Duration = Duration::from_secs(25);
/// How long the drain waits after a fault.
const AFTER_FAULT: Duration = Duration::from_millis(500);
/// The same for the synchronous lane: its shoppers may be on shards that are well.
const AFTER_FAULT_SYNCHRONOUS: Duration = Duration::from_millis(50);
/// After so long without a round, the drain is reported.
const DRAIN_SILENCE_MAX: TimeDelta = TimeDelta::seconds(30);

/// How long the drain waits at most without being woken.
#[derive(Clone, Copy)]
struct DrainIdle {
    /// Of the first worker.
    first: Duration,
    /// Of the workers in reserve, until they find events.
    reserve: Duration,
}

impl DrainIdle {
    fn of(lane: Lane, instances: &Instances) -> Self {
        // A shopper of the synchronous lane may wait at another instance than the one that has sold.
        if lane == Lane::Asynchronous && instances.all_work() {
            DRAIN_IDLE_ALL_WORK
        } else {
            DRAIN_IDLE
        }
    }
}

/// When a lane of the drain last ended a round or left one to other workers, and when it last ended one without a fault,
/// in Unix milliseconds.
pub(super) struct DrainRound {
    ended: AtomicI64,
    done: AtomicI64,
}

impl DrainRound {
    /// A lane that has only just begun is not late yet.
    pub(super) fn begin() -> Arc<Self> {
        let now = || AtomicI64::new(Utc::now().timestamp_millis());
        Arc::new(Self {
            ended: now(),
            done: now(),
        })
    }
}

/// The last rounds of all lanes.
pub(super) type DrainRounds = [Arc<DrainRound>; Lane::ALL.len()];

/// Reports that the lane that is furthest behind has not ended a round for long.
pub(super) fn report_silence(rounds: &DrainRounds) {
    let ended = rounds.iter().map(|round| round.ended.load(Ordering::Relaxed)).min();
    let silence = TimeDelta::milliseconds(Utc::now().timestamp_millis() - ended.unwrap_or_default());
    if silence > DRAIN_SILENCE_MAX {
        tracing::error!(
            seconds = silence.num_seconds(),
            "no round of the drain has ended for a while; does Redis or Postgres hang?"
        );
    }
}

/// Drains a lane for as long as the process runs. Logs once when it cannot, and once when it can again.
pub(super) async fn keep_drained(
    app: Arc<App>,
    lane: Lane,
    own: Arc<DrainRound>,
    all: DrainRounds,
    stop: CancellationToken,
) {
    let counted = Arc::clone(&app.metrics);
    let (what, gather, after_fault) = match lane {
        Lane::Synchronous => (
            "the drain of orders that are waited for",
            GATHER_SYNCHRONOUS,
            AFTER_FAULT_SYNCHRONOUS,
        ),
        Lane::Asynchronous => ("the drain of other orders", GATHER, AFTER_FAULT),
    };
    let mut news = News::new(what);
    let (mut idle, mut last, mut finds_events) = (gather, Instant::now(), true);
    let turns = Turns::default();
    loop {
        // The metric is of the lane that is furthest behind.
        let done = all.iter().map(|round| round.done.load(Ordering::Relaxed)).min();
        let done = Duration::from_millis(u64::try_from(done.unwrap_or_default()).unwrap_or_default());
        counted.drain_last_round.set(done.as_secs_f64());
        let most = DrainIdle::of(lane, &app.instances);
        tokio::select! {
            () = stop.cancelled() => break,
            () = app.drains.wanted(lane) => {
                let is_awaited = lane == Lane::Synchronous && app.arrivals.are_awaited();
                sleep(if is_awaited { GATHER_AWAITED } else { gather }).await;
            }
            () = sleep(idle.min(most.first)) => {
                let is_turn = finds_events || match app.instances.rank_of_job("drain") {
                    Rank::First => true,
                    Rank::Second | Rank::Third => last.elapsed() >= most.reserve,
                    Rank::Other => turns.comes(&app.instances, "drain", DRAIN_OTHERS),
                };
                if !is_turn {
                    idle = DRAIN_IDLE.first;
                    own.ended.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
                    continue;
                }
            }
        }
        last = Instant::now();
        let round = timeout(DRAIN_ROUND_MAX, drain_lane(&app, lane)).await;
        let round = round.unwrap_or_else(|_| Err(Fault::Unavailable("the drain got no answer in time".to_owned())));
        news.report(&round);
        finds_events = !matches!(round, Ok(0));
        match round {
            Ok(orders) => {
                idle = match orders {
                    LONG_ROUND.. => Duration::ZERO,
                    1.. => gather,
                    0 => (idle * 2).max(gather).min(most.first),
                };
                counted.drain_rounds.of(["done"]).inc();
                own.done.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
            }
            Err(_) => {
                idle = idle.min(DRAIN_IDLE.first);
                counted.drain_rounds.of(["failed"]).inc();
                sleep(after_fault).await;
            }
        }
        own.ended.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
    }
}
