//! When each flow runs; nothing else. Periodic jobs run on tokio-cron-scheduler, by cron expressions only: its
//! repeated jobs can stop for good once they lag. The drain never rests, so it is a plain task that a job watches. The
//! job `release` is a task, too, because an expired hold wakes it.
//!
//! Jobs that are due at the same time start one after another, each after a delay of its own. So they share a few
//! connections to Postgres.
//!
//! Every process keeps permits, also one that runs no jobs: selling must not depend on a worker.
//!
//! A job takes no input and acts on what it finds. No two runs of a job overlap in this process, and each has a time
//! limit. Several processes may run all of them side by side. At each time of a job, one worker looks for work
//! ([`flow::recover::instances`]). The others do so now and then, and help for as long as they find some.

use crate::domain::alert::AlertWebhook;
use crate::domain::fault::Fault;
use crate::flow::recover::instances::{Instances, Rank};
use crate::flow::settle::drain::Lane;
use crate::flow::watch::alert_webhook::{Sender, Sent};
use crate::flow::{self, App};
use crate::metrics::{self, Metrics};
use chrono::{TimeDelta, Utc};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The time between the starts of two jobs that are due at the same time. All of them start within a second.
const STAGGER: Duration = Duration::from_millis(90);
/// How long a run waits for the job's run before it, such as that of a job that runs for nearly a second each second.
const TURN_MAX: Duration = Duration::from_secs(1);

/// How long the drain collects events after the first, so that many share a transaction: with few orders, most of a
/// batch's cost is fixed. The second is for the synchronous lane, whose shoppers wait for the ledger. The third is
/// while some of them wait at this process.
const GATHER: Duration = Duration::from_millis(50);
const GATHER_SYNCHRONOUS: Duration = Duration::from_millis(10);
const GATHER_AWAITED: Duration = Duration::from_millis(2);
/// How long the drain waits at most without being woken: events of other processes do not wake it. The wait doubles
/// after each round that found nothing.
const DRAIN_IDLE_MAX: Duration = Duration::from_millis(200);
/// The same for the workers in reserve, and for all others: until they find events.
const DRAIN_IDLE_RESERVE: Duration = Duration::from_millis(600);
const DRAIN_IDLE_OTHERS: Duration = Duration::from_secs(15);
/// How long one round may take; the next one finds what it leaves.
const DRAIN_ROUND_MAX: Duration = Duration::from_secs(25);
/// How long the drain waits after a fault. The synchronous lane waits less: its shoppers may be on shards that are
/// well.
const AFTER_FAULT: Duration = Duration::from_millis(500);
const AFTER_FAULT_SYNCHRONOUS: Duration = Duration::from_millis(50);
/// After so long without a round, the drain is reported.
const DRAIN_SILENCE_MAX: TimeDelta = TimeDelta::seconds(30);
/// How long the end waits for jobs that are running; others finish what they leave.
const END_MAX: Duration = Duration::from_secs(10);

/// How often permits are renewed; they hold for longer.
const PERMIT_EVERY: Duration = Duration::from_millis(750);
/// How long one round of renewals may take.
const PERMIT_ROUND_MAX: Duration = Duration::from_secs(2);
/// How often reconciling begins a round without being woken; the second is while all shards sell.
const RECONCILE_EVERY: Duration = Duration::from_millis(500);
const RECONCILE_IDLE: Duration = Duration::from_millis(1_500);
/// How long reconciling waits after it was woken, so that one round serves many.
const RECONCILE_GATHER: Duration = Duration::from_millis(50);
/// How long one round of reconciling may take: a rebuild of a hundred million orders.
const RECONCILE_ROUND_MAX: Duration = Duration::from_secs(1800);
/// Rounds at once: while one rebuilds a large sale, the others handle the rest.
const RECONCILE_ROUNDS_MAX: usize = 4;

/// How often an instance notes that it lives.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How long that may take.
const NOTE_MAX: Duration = Duration::from_secs(2);

/// How often every process measures its servers, connections and permits.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// How often decisions are released without being woken.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

/// How often the webhook's task checks for guard warnings to deliver.
const DELIVER_EVERY: Duration = Duration::from_secs(1);
/// How long the end waits for a warning that is being sent; if it takes longer, the warning is sent once more.
const DELIVER_END_MAX: Duration = Duration::from_secs(2);

type Run = fn(Arc<App>) -> Pin<Box<dyn Future<Output = Result<usize, Fault>> + Send>>;

/// At which of a job's times a worker that is not the first for it runs it: each so many, in reserve and otherwise.
#[derive(Clone, Copy)]
struct Pace {
    reserve: u32,
    /// Never at none: those in reserve may hang as the first does.
    others: u32,
}

/// The paces of the jobs that the scheduler starts by itself.
const PACE_OF_RELEASE: Pace = Pace { reserve: 3, others: 30 };
const PACE_OF_ALERTS: Pace = Pace { reserve: 6, others: 6 };

/// The name of a job, when it runs, how many seconds one run may take, its pace, and the flow that it runs.
macro_rules! job {
    ($name:literal, $schedule:literal, $seconds_max:literal, ($reserve:literal, $others:literal), $($flow:ident)::+) => {
        ($name, $schedule, $seconds_max, Pace { reserve: $reserve, others: $others }, |app| {
            Box::pin(async move { flow::$($flow)::+(&app).await })
        })
    };
}

/// Every job but `release`, and the one that watches the drain. The pace of `beat` keeps its gaps below those that count
/// as an outage, also while three dead workers are still on the list.
const JOBS: [(&str, &str, u64, Pace, Run); 9] = [
    job!("beat", "* * * * * *", 5, (1, 4), settle::expire::beat),
    job!("expire", "* * * * * *", 55, (3, 30), settle::expire::expire_on_time),
    job!(
        "transfers",
        "*/2 * * * * *",
        30,
        (3, 30),
        recover::upkeep::finish_transfers
    ),
    job!("rebalance", "* * * * * *", 20, (5, 60), recover::upkeep::rebalance),
    job!("settle", "* * * * * *", 55, (3, 30), recover::upkeep::settle),
    job!(
        "conservation",
        "*/5 * * * * *",
        55,
        (3, 12),
        watch::conservation::check_sales
    ),
    job!("load", "*/10 * * * * *", 55, (1, 6), recover::upkeep::finish_loading),
    job!("retire", "30 * * * * *", 600, (1, 1), operate::retire::retire_ended),
    job!("retention", "45 * * * * *", 55, (3, 10), operate::retention::forget_old),
];

/// Keeps the permits of the sales' shards, and reconciles shards that lost theirs.
pub struct Keeper {
    stop: CancellationToken,
    running: TaskTracker,
}

impl Keeper {
    #[must_use]
    pub fn start(app: &Arc<App>) -> Self {
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        running.spawn(keep_noted(Arc::clone(app), stop.clone()));
        running.spawn(keep_permits(Arc::clone(app), stop.clone()));
        running.spawn(keep_reconciled(Arc::clone(app), stop.clone()));
        running.spawn(keep_measured(Arc::clone(app), stop.clone()));
        Self { stop, running }
    }

    /// Stops renewing, and waits for work in progress, within a limit. Permits end by themselves.
    pub async fn end(self) {
        self.stop.cancel();
        self.running.close();
        if timeout(END_MAX, self.running.wait()).await.is_err() {
            tracing::warn!("a shard was still being reconciled; other processes go on with it");
        }
    }
}

pub struct Scheduler {
    cron: JobScheduler,
    instances: Arc<Instances>,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Scheduler {
    /// Starts every job, the drain and, if there is a webhook for guard warnings, its deliveries.
    ///
    /// # Errors
    /// When the scheduler does not start.
    pub async fn start(app: Arc<App>, alert_webhook: Option<AlertWebhook>) -> Result<Self, JobSchedulerError> {
        let metrics = Arc::clone(&app.metrics);
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        let cron = JobScheduler::new().await?;
        app.instances.note_works(true);
        let instances = Arc::clone(&app.instances);
        let lease = |name, seconds_max, pace, starts_after| {
            // A job that has only just begun is not late yet.
            metrics.job_last_success.of([name]).set(metrics::now());
            Arc::new(JobLease {
                name,
                pace,
                times: AtomicU32::default(),
                finds_work: AtomicBool::default(),
                starts_after,
                time_max: Duration::from_secs(seconds_max),
                alone: Mutex::new(()),
                instances: Arc::clone(&instances),
                metrics: Arc::clone(&metrics),
                stop: stop.clone(),
            })
        };
        let mut starts_after = Duration::ZERO;
        for (name, schedule, seconds_max, pace, run) in JOBS {
            let lease = lease(name, seconds_max, pace, starts_after);
            starts_after += STAGGER;
            let (app, running) = (Arc::clone(&app), running.clone());
            let job = Job::new_async(schedule, move |_, _| {
                let (lease, app) = (Arc::clone(&lease), Arc::clone(&app));
                Box::pin(running.track_future(async move { lease.run_in_turn(run(app)).await }))
            })?;
            cron.add(job).await?;
        }
        let rounds: DrainRounds = Lane::ALL.map(|_| DrainRound::begin());
        let watched = rounds.clone();
        let release = lease("release", 55, PACE_OF_RELEASE, Duration::ZERO);
        running.spawn(keep_released(Arc::clone(&app), release, stop.clone()));
        let lease = lease("alerts", 20, PACE_OF_ALERTS, starts_after);
        let (looked_at, tracked) = (Arc::clone(&app), running.clone());
        let watch = Job::new_async("*/5 * * * * *", move |_, _| {
            let silence = silence(&watched);
            if silence > DRAIN_SILENCE_MAX {
                tracing::error!(
                    seconds = silence.num_seconds(),
                    "no round of the drain has ended for a while; does Redis or Postgres hang?"
                );
            }
            let (lease, app) = (Arc::clone(&lease), Arc::clone(&looked_at));
            let measure = async move { lease.run_in_turn(flow::watch::gauges::measure_sales(&app)).await };
            Box::pin(tracked.track_future(measure))
        })?;
        cron.add(watch).await?;
        if let Some(hook) = alert_webhook {
            let sender = Arc::new(Sender::new(hook));
            running.spawn(deliver_alerts(Arc::clone(&app), sender, stop.clone()));
        }
        for (lane, own) in Lane::ALL.into_iter().zip(&rounds) {
            let (own, all) = (Arc::clone(own), rounds.clone());
            running.spawn(drain(Arc::clone(&app), lane, own, all, stop.clone()));
        }
        cron.start().await?;
        Ok(Self {
            cron,
            instances,
            stop,
            running,
        })
    }

    /// Starts nothing new and waits for what runs, within a limit.
    pub async fn end(mut self) {
        // The runs in progress may take as long as the end may. Others take the next ones at once.
        self.instances.note_works(false);
        self.stop.cancel();
        if let Err(error) = self.cron.shutdown().await {
            tracing::warn!(%error, "could not shut the scheduler down");
        }
        self.running.close();
        if timeout(END_MAX, self.running.wait()).await.is_err() {
            tracing::warn!("jobs were still running; later runs finish their work");
        }
    }
}

/// Keeps the runs of a job one at a time, bounded and counted.
struct JobLease {
    name: &'static str,
    pace: Pace,
    /// How often the job's time has come.
    times: AtomicU32,
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
    /// Runs the job if it is this worker's turn.
    async fn run_in_turn(&self, body: impl Future<Output = Result<usize, Fault>>) {
        if self.is_turn() {
            self.run(body).await;
        }
    }

    /// Whether this worker runs the job at this time.
    fn is_turn(&self) -> bool {
        let times = self.times.fetch_add(1, Ordering::Relaxed);
        let every = match self.instances.rank_of_job(self.name) {
            Rank::First => 1,
            Rank::Second | Rank::Third => self.pace.reserve,
            Rank::Other => self.pace.others,
        };
        times.is_multiple_of(every) || self.finds_work.load(Ordering::Relaxed)
    }

    async fn run(&self, body: impl Future<Output = Result<usize, Fault>>) {
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

/// When a lane of the drain last ended a round, and when it last did so without a fault, in Unix milliseconds.
struct DrainRound {
    ended: AtomicI64,
    done: AtomicI64,
}

impl DrainRound {
    /// A lane that has only just begun is not late yet.
    fn begin() -> Arc<Self> {
        let now = || AtomicI64::new(Utc::now().timestamp_millis());
        Arc::new(Self {
            ended: now(),
            done: now(),
        })
    }
}

/// The last rounds of all lanes.
type DrainRounds = [Arc<DrainRound>; Lane::ALL.len()];

/// How long ago the lane that is furthest behind ended a round.
fn silence(rounds: &DrainRounds) -> TimeDelta {
    let ended = rounds.iter().map(|round| round.ended.load(Ordering::Relaxed)).min();
    TimeDelta::milliseconds(Utc::now().timestamp_millis() - ended.unwrap_or_default())
}

/// Drains a lane for as long as the process runs. Logs once when it cannot, and once when it can again.
async fn drain(app: Arc<App>, lane: Lane, own: Arc<DrainRound>, all: DrainRounds, stop: CancellationToken) {
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
    loop {
        // The metric is of the lane that is furthest behind.
        let done = all.iter().map(|round| round.done.load(Ordering::Relaxed)).min();
        let done = Duration::from_millis(u64::try_from(done.unwrap_or_default()).unwrap_or_default());
        counted.drain_last_round.set(done.as_secs_f64());
        tokio::select! {
            () = stop.cancelled() => break,
            () = app.drains.wanted(lane) => {
                let is_awaited = lane == Lane::Synchronous && app.arrivals.are_awaited();
                sleep(if is_awaited { GATHER_AWAITED } else { gather }).await;
            }
            () = sleep(idle) => {
                let most = match app.instances.rank_of_job("drain") {
                    Rank::Second | Rank::Third if !finds_events => DRAIN_IDLE_RESERVE,
                    Rank::Other if !finds_events => DRAIN_IDLE_OTHERS,
                    _ => Duration::ZERO,
                };
                if last.elapsed() < most {
                    idle = DRAIN_IDLE_MAX;
                    continue;
                }
            }
        }
        last = Instant::now();
        let round = timeout(DRAIN_ROUND_MAX, flow::settle::drain::drain_lane(&app, lane)).await;
        let round = round.unwrap_or_else(|_| Err(Fault::Unavailable("the drain got no answer in time".to_owned())));
        news.report(&round);
        finds_events = !matches!(round, Ok(0));
        match round {
            Ok(orders) => {
                idle = if orders > 0 {
                    gather
                } else {
                    (idle * 2).min(DRAIN_IDLE_MAX)
                };
                counted.drain_rounds.of(["done"]).inc();
                own.done.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
            }
            Err(_) => {
                counted.drain_rounds.of(["failed"]).inc();
                sleep(after_fault).await;
            }
        }
        own.ended.store(Utc::now().timestamp_millis(), Ordering::Relaxed);
    }
}

/// Releases decisions for as long as the process runs, whenever it is woken and at intervals.
async fn keep_released(app: Arc<App>, lease: Arc<JobLease>, stop: CancellationToken) {
    loop {
        let (released, run) = (Arc::clone(&app), Arc::clone(&lease));
        // A task of its own, as each run of the other jobs is: a panic ends one run, not the job.
        let run = tokio::spawn(async move {
            run.run(Box::pin(flow::settle::release::release_waiting(&released)))
                .await
        });
        let _ended = run.await;
        // Without being woken, it waits until it is this worker's turn.
        let next = async {
            while timeout(RELEASE_EVERY, app.releases_wanted.notified()).await.is_err() {
                if lease.is_turn() {
                    break;
                }
            }
        };
        if stop.run_until_cancelled(next).await.is_none() {
            break;
        }
    }
}

/// Notes that this instance lives, for as long as the process runs.
async fn keep_noted(app: Arc<App>, stop: CancellationToken) {
    let mut news = News::new("the list of instances");
    loop {
        let noted = timeout(NOTE_MAX, Box::pin(flow::recover::instances::note(&app))).await;
        news.report(&noted.unwrap_or_else(|_| Err(Fault::Unavailable("no answer in time".to_owned()))));
        if stop.run_until_cancelled(sleep(NOTE_EVERY)).await.is_none() {
            break;
        }
    }
    // Without an answer, the note is soon out of date.
    let _forgotten = timeout(NOTE_MAX, flow::recover::instances::forget(&app)).await;
}

/// Renews permits for as long as the process runs. Logs once when it cannot, and once when it can again.
async fn keep_permits(app: Arc<App>, stop: CancellationToken) {
    let mut news = News::new("permits");
    loop {
        let round = timeout(PERMIT_ROUND_MAX, flow::recover::renew::renew(&app)).await;
        news.report(&round.unwrap_or_else(|_| Err(Fault::Unavailable("Redis did not answer in time".to_owned()))));
        if stop.run_until_cancelled(sleep(PERMIT_EVERY)).await.is_none() {
            break;
        }
    }
}

/// Measures this process for as long as it runs.
async fn keep_measured(app: Arc<App>, stop: CancellationToken) {
    loop {
        Box::pin(flow::watch::gauges::measure_process(&app)).await;
        if stop.run_until_cancelled(sleep(MEASURE_EVERY)).await.is_none() {
            break;
        }
    }
}

/// Reconciles shards that do not sell, whenever it is woken and at intervals.
async fn keep_reconciled(app: Arc<App>, stop: CancellationToken) {
    let mut news = News::new("reconciling");
    let (mut rounds, mut every) = (JoinSet::new(), RECONCILE_EVERY);
    loop {
        if rounds.len() < RECONCILE_ROUNDS_MAX {
            let app = Arc::clone(&app);
            rounds.spawn(async move {
                let round = timeout(RECONCILE_ROUND_MAX, flow::recover::attend::reconcile_all(&app)).await;
                round.unwrap_or_else(|_| Err(Fault::Unavailable("no answer in time".to_owned())))
            });
        }
        let next = async {
            tokio::select! {
                () = sleep(every) => {}
                // Many tasks wake it at once; one round a moment later serves them all.
                () = app.permits.wanted.notified() => sleep(RECONCILE_GATHER).await,
            }
        };
        if stop.run_until_cancelled(next).await.is_none() {
            break;
        }
        let mut ended = Vec::new();
        while let Some(round) = rounds.try_join_next() {
            ended.push(round.unwrap_or_else(|error| Err(Fault::Bug(error.to_string()))));
        }
        let is_calm = rounds.is_empty() && ended.iter().all(|round| matches!(round, Ok(0)));
        every = if is_calm { RECONCILE_IDLE } else { RECONCILE_EVERY };
        if let Some(outcome) = to_report(ended, rounds.is_empty()) {
            news.report(&outcome);
        }
    }
    while rounds.join_next().await.is_some() {}
}

/// The outcome to log of rounds that ended at the same time: any fault. A success counts only if they were the `last`,
/// because a round skips what another one is working on.
fn to_report(mut ended: Vec<Result<usize, Fault>>, last: bool) -> Option<Result<usize, Fault>> {
    let trouble = ended.iter().position(Result::is_err);
    match trouble {
        Some(at) => Some(ended.swap_remove(at)),
        None => ended.pop().filter(|_| last),
    }
}

/// Sends guard warnings to their webhook for as long as the process runs. Logs once when the webhook does not take
/// them, and once when it does again.
async fn deliver_alerts(app: Arc<App>, sender: Arc<Sender>, stop: CancellationToken) {
    let mut ledger = News::new("alerts for the webhook");
    // Deliveries are rare: one success is news.
    let mut webhook = News::after(Duration::ZERO, "the webhook of alerts");
    let count = |outcome| app.metrics.alert_deliveries.of([outcome]).inc();
    let late = async {
        stop.cancelled().await;
        sleep(DELIVER_END_MAX).await;
    };
    let mut late = std::pin::pin!(late);
    while !stop.is_cancelled() {
        let sent = tokio::select! {
            sent = flow::watch::alert_webhook::deliver_next(&app, &sender) => sent,
            () = &mut late => break,
        };
        ledger.report(&sent);
        match sent.unwrap_or(Sent::Nothing) {
            Sent::Delivered => {
                count("delivered");
                webhook.report(&Ok(()));
            }
            Sent::Failed(reason) => {
                count("failed");
                webhook.report(&Err::<(), _>(Fault::Unavailable(reason)));
            }
            Sent::Nothing => _ = stop.run_until_cancelled(sleep(DELIVER_EVERY)).await,
        }
    }
}

/// A fault is over after so long without one: a server that comes back answers some calls before it answers all.
const CALM: Duration = Duration::from_secs(2);

/// Logs once that something does not work, and once that it works again.
struct News {
    what: &'static str,
    /// How long without a fault.
    calm: Duration,
    failed_at: Option<Instant>,
}

impl News {
    const fn new(what: &'static str) -> Self {
        Self::after(CALM, what)
    }

    const fn after(calm: Duration, what: &'static str) -> Self {
        Self {
            what,
            calm,
            failed_at: None,
        }
    }

    fn report<T>(&mut self, outcome: &Result<T, Fault>) {
        match (outcome, self.failed_at) {
            (Ok(_), Some(last)) if last.elapsed() >= self.calm => {
                tracing::info!(what = self.what, "works again");
                self.failed_at = None;
            }
            (Ok(_), _) => {}
            (Err(fault), last) => {
                match last {
                    None => tracing::warn!(what = self.what, %fault, "has to wait"),
                    Some(_) => tracing::debug!(what = self.what, %fault, "still has to wait"),
                }
                self.failed_at = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_counted_under_its_name() {
        let metrics = Metrics::default();
        for name in JOBS.iter().map(|(name, ..)| *name).chain(["release", "alerts"]) {
            for result in ["done", "failed", "timed_out", "skipped"] {
                assert!(metrics.job_runs.knows([name, result]), "{name}");
            }
            assert!(
                metrics.job_items.knows([name]) && metrics.job_last_success.knows([name]),
                "{name}"
            );
        }
    }

    #[test]
    fn every_worker_runs_each_job_now_and_then() {
        let paces = JOBS.iter().map(|(name, _, _, pace, _)| (*name, *pace));
        for (name, pace) in paces.chain([("release", PACE_OF_RELEASE), ("alerts", PACE_OF_ALERTS)]) {
            assert!((1..=pace.others).contains(&pace.reserve), "{name}");
        }
    }

    #[test]
    fn a_round_that_found_nothing_to_do_beside_another_does_not_report_that_all_is_well() {
        let trouble = || Err(Fault::Unavailable("no answer".to_owned()));
        assert!(to_report(vec![Ok(0)], false).is_none());
        assert!(to_report(vec![], true).is_none());
        assert!(matches!(to_report(vec![Ok(0), Ok(1)], true), Some(Ok(_))));
        for last in [false, true] {
            assert!(matches!(to_report(vec![Ok(0), trouble(), Ok(0)], last), Some(Err(_))));
        }
    }
}
