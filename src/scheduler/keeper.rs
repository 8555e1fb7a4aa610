//! What every process does for the shards that it knows, also one that runs no jobs: it renews permits, reconciles, and
//! notes that it lives.

use super::END_MAX;
use super::news::News;
use crate::domain::fault::Fault;
use crate::flow::{self, App};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often permits are renewed; they hold for longer.
const PERMIT_EVERY: Duration = Duration::from_millis(750);
/// How long one round of renewals may take.
const PERMIT_ROUND_MAX: Duration = Duration::from_secs(2);
/// How often reconciling begins a round without being woken.
const RECONCILE_EVERY: Duration = Duration::from_millis(500);
/// The same while all shards sell.
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
        // A ledger that does not answer is noticed at once.
        let next = timeout(MEASURE_EVERY, app.bulletins.lost());
        if stop.run_until_cancelled(next).await.is_none() {
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

#[cfg(test)]
mod tests {
    use super::*;

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
