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
//! ([`flow::recover::instances`]). Two in reserve do so now and then. All others take turns. Each helps for as long as
//! it finds some.

mod drain;
mod keeper;
mod lease;
mod news;

use self::drain::{DrainRound, DrainRounds, keep_drained, report_silence};
pub use self::keeper::Keeper;
use self::lease::Others::{Each, InTurn};
use self::lease::{JobLease, Pace};
use self::news::News;
use crate::domain::fault::Fault;
use crate::domain::operator::alert::AlertWebhook;
use crate::flow::recover::instances::Instances;
use crate::flow::settle::drain::Lane;
use crate::flow::watch::alert_webhook::{Sender, Sent};
use crate::flow::{self, App};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The time between the starts of two jobs that are due at the same time. All of them start within a second.
const STAGGER: Duration = Duration::from_millis(90);
/// How long the end waits for jobs that are running; others finish what they leave.
const END_MAX: Duration = Duration::from_secs(10);

/// How often decisions are released without being woken.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

/// How often the webhook's task checks for guard warnings to deliver.
const DELIVER_EVERY: Duration = Duration::from_secs(1);
/// The same while each bulletin says whether there is one.
const DELIVER_TOLD: Duration = Duration::from_secs(30);
/// How long the end waits for a warning that is being sent; if it takes longer, the warning is sent once more.
const DELIVER_END_MAX: Duration = Duration::from_secs(2);

type Run = fn(Arc<App>) -> Pin<Box<dyn Future<Output = Result<usize, Fault>> + Send>>;

/// The paces of the jobs that the scheduler starts by itself. Each worker shows what the second one measures.
const PACE_OF_RELEASE: Pace = Pace {
    reserve: 3,
    others: InTurn(30),
};
const PACE_OF_ALERTS: Pace = Pace {
    reserve: 6,
    others: Each(6),
};

/// The name of a job, when it runs, how many seconds one run may take, its pace, and the flow that it runs.
macro_rules! job {
    ($name:literal, $schedule:literal, $seconds_max:literal, ($reserve:literal, $others:expr), $($flow:ident)::+) => {
        ($name, $schedule, $seconds_max, Pace { reserve: $reserve, others: $others }, |app| {
            Box::pin(async move { flow::$($flow)::+(&app).await })
        })
    };
}

/// Every job but `release`, and the one that watches the drain. Each worker runs `beat` each second, so that its gaps stay
/// below those that count as an outage, also while three dead workers are still on the list.
const JOBS: [(&str, &str, u64, Pace, Run); 9] = [
    job!("beat", "* * * * * *", 5, (1, Each(1)), settle::expire::beat_if_due),
    job!(
        "expire",
        "* * * * * *",
        55,
        (3, InTurn(30)),
        settle::expire::expire_on_time
    ),
    job!(
        "transfers",
        "*/2 * * * * *",
        30,
        (3, InTurn(60)),
        recover::upkeep::finish_transfers
    ),
    job!(
        "rebalance",
        "* * * * * *",
        20,
        (5, InTurn(60)),
        recover::upkeep::rebalance
    ),
    job!("settle", "* * * * * *", 55, (3, InTurn(30)), recover::upkeep::settle),
    job!(
        "conservation",
        "*/5 * * * * *",
        55,
        (3, InTurn(60)),
        watch::conservation::check_sales
    ),
    job!(
        "load",
        "*/10 * * * * *",
        55,
        (1, InTurn(60)),
        recover::upkeep::finish_loading
    ),
    job!(
        "retire",
        "30 * * * * *",
        600,
        (1, InTurn(60)),
        operate::retire::retire_ended
    ),
    job!(
        "retention",
        "45 * * * * *",
        55,
        (3, InTurn(600)),
        operate::retention::forget_old
    ),
];

pub struct Scheduler {
    cron: JobScheduler,
    instances: Arc<Instances>,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Scheduler {
    /// Starts every job, the drain and, if there is a webhook for guard warnings, its deliveries. Fails when the
    /// scheduler does not start.
    pub async fn start(app: Arc<App>, alert_webhook: Option<AlertWebhook>) -> Result<Self, JobSchedulerError> {
        let scheduler = Self {
            cron: JobScheduler::new().await?,
            instances: Arc::clone(&app.instances),
            stop: CancellationToken::new(),
            running: TaskTracker::new(),
        };
        app.instances.note_works(true);
        let rounds: DrainRounds = Lane::ALL.map(|_| DrainRound::begin());
        scheduler.add_jobs(&app, &rounds).await?;
        let (stop, running) = (&scheduler.stop, &scheduler.running);
        let release = JobLease::begin(&app, "release", 55, PACE_OF_RELEASE, Duration::ZERO, stop);
        running.spawn(keep_released(Arc::clone(&app), release, stop.clone()));
        if let Some(hook) = alert_webhook {
            let sender = Arc::new(Sender::new(hook));
            running.spawn(deliver_alerts(Arc::clone(&app), sender, stop.clone()));
        }
        for (lane, own) in Lane::ALL.into_iter().zip(&rounds) {
            let (own, all) = (Arc::clone(own), rounds.clone());
            running.spawn(keep_drained(Arc::clone(&app), lane, own, all, stop.clone()));
        }
        scheduler.cron.start().await?;
        Ok(scheduler)
    }

    /// Adds every job but `release`. The last one also watches the drain.
    async fn add_jobs(&self, app: &Arc<App>, rounds: &DrainRounds) -> Result<(), JobSchedulerError> {
        let mut starts_after = Duration::ZERO;
        for (name, schedule, seconds_max, pace, run) in JOBS {
            let lease = JobLease::begin(app, name, seconds_max, pace, starts_after, &self.stop);
            starts_after += STAGGER;
            let (app, running) = (Arc::clone(app), self.running.clone());
            let job = Job::new_async(schedule, move |_, _| {
                let (lease, app) = (Arc::clone(&lease), Arc::clone(&app));
                Box::pin(running.track_future(async move { lease.run_in_turn(run(app)).await }))
            })?;
            self.cron.add(job).await?;
        }
        let lease = JobLease::begin(app, "alerts", 20, PACE_OF_ALERTS, starts_after, &self.stop);
        let (app, running, rounds) = (Arc::clone(app), self.running.clone(), rounds.clone());
        let watch = Job::new_async("*/5 * * * * *", move |_, _| {
            report_silence(&rounds);
            let (lease, app) = (Arc::clone(&lease), Arc::clone(&app));
            let measure = async move { lease.run_in_turn(flow::watch::gauges::measure_sales(&app)).await };
            Box::pin(running.track_future(measure))
        })?;
        self.cron.add(watch).await.map(drop)
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
        let is_read = sent.is_ok();
        match sent.unwrap_or(Sent::Nothing) {
            Sent::Delivered => {
                count("delivered");
                webhook.report(&Ok(()));
            }
            Sent::Failed(reason) => {
                count("failed");
                webhook.report(&Err::<(), _>(Fault::Unavailable(reason)));
            }
            Sent::Nothing => {
                let is_told = is_read && app.bulletins.are_fresh();
                let most = if is_told { DELIVER_TOLD } else { DELIVER_EVERY };
                let wanted = timeout(most, app.deliveries_wanted.notified());
                _ = stop.run_until_cancelled(wanted).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

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
    fn no_job_is_left_to_three_workers_alone() {
        let paces = JOBS.iter().map(|(name, _, _, pace, _)| (*name, *pace));
        for (name, pace) in paces.chain([("release", PACE_OF_RELEASE), ("alerts", PACE_OF_ALERTS)]) {
            let (Each(others) | InTurn(others)) = pace.others;
            assert!((1..=others).contains(&pace.reserve), "{name}");
        }
    }
}
