//! A job's runs: one at a time, each in this worker's turn, within its time, and counted.

use crate::domain::fault::Fault;
use crate::flow::App;
use crate::flow::recover::instances::{Instances, Rank};
use crate::metrics::{self, Metrics};
use chrono::Utc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long a run waits for the job's run before it, such as that of a job that runs for nearly a second each second.
const TURN_MAX: Duration = Duration::from_secs(1);

/// When a worker that is not the first for a job runs it.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Those in reserve: at each so many of the job's times.
    pub(super) reserve: u32,
    /// Never at none: those in reserve may hang as the first does.
    pub(super) others: Others,
}

/// When the workers behind those in reserve run a job.
#[derive(Clone, Copy)]
pub(super) enum Others {
    /// Each of them, at each so many of the job's times.
    Each(u32),
    /// One of them every so many seconds.
    InTurn(u32),
}

/// The turns that a worker takes at a job.
#[derive(Default)]
pub(super) struct Turns {
    /// The slot of time of the last one.
    last: AtomicI64,
}

impl Turns {
    /// Whether the worker takes a turn now: a slot lasts so many seconds, and one worker takes its turn once.
    pub(super) fn comes(&self, instances: &Instances, name: &str, seconds: u32) -> bool {
        let slot = Utc::now().timestamp() / i64::from(seconds);
        instances.has_turn(name, slot) && self.last.swap(slot, Ordering::Relaxed) != slot
    }
}

/// Keeps the runs of a job one at a time, bounded and counted.
pub(super) struct JobLease {
    name: &'static str,
    pace: Pace,
    /// How often the job's time has come.
    times: AtomicU32,
    turns: Turns,
    /// Whether its last run found work.
    finds_work: AtomicBool,
    /// How long after its time a run starts.
    starts_after: Duration,
    time_max: Duration,
    alone: Mutex<()>,
    instances: Arc<Instances>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl JobLease {
    /// A job that has only just begun, and is not late yet.
    pub(super) fn begin(
        app: &App,
        name: &'static str,
        seconds_max: u64,
        pace: Pace,
        starts_after: Duration,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        app.metrics.job_last_success.of([name]).set(metrics::now());
        Arc::new(Self {
            name,
            pace,
            times: AtomicU32::default(),
            turns: Turns::default(),
            finds_work: AtomicBool::default(),
            starts_after,
            time_max: Duration::from_secs(seconds_max),
            alone: Mutex::default(),
            instances: Arc::clone(&app.instances),
            metrics: Arc::clone(&app.metrics),
            stop: stop.clone(),
        })
    }

    /// Runs the job if it is this worker's turn.
    pub(super) async fn run_in_turn(&self, body: impl Future<Output = Result<usize, Fault>>) {
        if self.is_turn() {
            self.run(body).await;
        }
    }

    /// Whether this worker runs the job at this time.
    pub(super) fn is_turn(&self) -> bool {
        let times = self.times.fetch_add(1, Ordering::Relaxed);
        let is_turn = match (self.instances.rank_of_job(self.name), self.pace.others) {
            (Rank::First, _) => true,
            (Rank::Second | Rank::Third, _) => times.is_multiple_of(self.pace.reserve),
            (Rank::Other, Others::Each(every)) => times.is_multiple_of(every),
            (Rank::Other, Others::InTurn(seconds)) => self.turns.comes(&self.instances, self.name, seconds),
        };
        is_turn || self.finds_work.load(Ordering::Relaxed)
    }

    pub(super) async fn run(&self, body: impl Future<Output = Result<usize, Fault>>) {
        let turn = async {
            sleep(self.starts_after).await;
            timeout(TURN_MAX, self.alone.lock()).await
        };
        let Some(turn) = self.stop.run_until_cancelled(turn).await else {
            return;
        };
        let Ok(_alone) = turn else {
            return self.count("skipped");
        };
        let began = Instant::now();
        let outcome = timeout(self.time_max, body).await;
        self.finds_work.store(matches!(outcome, Ok(Ok(1..))), Ordering::Relaxed);
        self.metrics.job_duration.of([self.name]).observe(began.elapsed());
        match outcome {
            Ok(Ok(done)) => {
                if done > 0 {
                    tracing::debug!(job = self.name, done, "a job found something to do");
                }
                self.metrics.job_items.of([self.name]).inc_by(done as u64);
                self.metrics.job_last_success.of([self.name]).set(metrics::now());
                self.count("done");
            }
            Ok(Err(fault)) => {
                if fault.is_passing() {
                    tracing::debug!(job = self.name, %fault, "a job has to try again");
                } else {
                    tracing::error!(job = self.name, %fault, "a job hit an unexpected fault");
                }
                self.count("failed");
            }
            Err(_) => {
                tracing::warn!(job = self.name, "a job ran out of time; the next run goes on");
                self.count("timed_out");
            }
        }
    }

    fn count(&self, result: &'static str) {
        self.metrics.job_runs.of([self.name, result]).inc();
    }
}
