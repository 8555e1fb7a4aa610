//! Flows: verbs that order steps over the stock and the ledger. Each flow says what a crash between two of its steps
//! leaves, and who finishes it. Every flow may run twice and side by side.

pub mod operate;
pub mod recover;
pub mod sale_book;
pub mod sell;
pub mod settle;
pub mod watch;

use crate::domain::deployment::retention::Retention;
use crate::domain::fault::Fault;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::stock::Stock;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How long the flows that add up counts wait for Postgres. If Postgres commits later, some are counted twice.
const ADD_MAX: Duration = Duration::from_secs(2);

/// All entries of a list, as the ledger has them at one moment, part by part. Fails with `Unavailable` when the ledger does
/// not answer, or the last part was read more than a minute ago.
pub type Export<T> = BoxStream<'static, Result<Vec<T>, Fault>>;
/// Entries that an export holds in memory at once.
const EXPORT_PART: i64 = 1000;

/// Counts the work of a run over many things. One failure must not keep the others from their turn: the first fault is
/// kept and the run goes on.
#[derive(Default)]
struct RunTotals {
    done: usize,
    fault: Option<Fault>,
}

impl RunTotals {
    fn note(&mut self, outcome: Result<usize, Fault>) {
        match outcome {
            Ok(done) => self.done += done,
            Err(fault) => {
                self.fault.get_or_insert(fault);
            }
        }
    }

    /// The amount of work done, or the first fault.
    fn finish(self) -> Result<usize, Fault> {
        self.fault.map_or(Ok(self.done), Err)
    }
}

/// Rotates the list to a random start, so that a run that hits its time limit does not always skip the same things.
fn rotate_start<T>(things: &mut [T]) {
    if !things.is_empty() {
        let first = rand::random_range(0..things.len());
        things.rotate_left(first);
    }
}

/// Limits the wait for a query that its caller can do without.
async fn in_time<T>(wait: Duration, asked: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = tokio::time::timeout(wait, asked).await;
    answer.unwrap_or_else(|_| Err(Fault::Unavailable("Postgres did not answer in time".to_owned())))
}

/// A count, as the ledger and the metrics take it.
fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The state that all flows share; clones share all of it.
#[derive(Clone)]
pub struct App {
    pub stock: Stock,
    pub ledger: Ledger,
    pub sales: Arc<sale_book::SaleBook>,
    /// Shortages that this process is covering.
    pub shortages: Arc<sell::shortage::Shortages>,
    pub late_requests: Arc<sell::sold_out::LateRequests>,
    /// Each sale's free units, as of a moment ago.
    pub glances: Arc<sell::glance::Glances>,
    /// Each sale's waiting lines, as of a moment ago.
    pub lines: Arc<sell::waiting_room::Lines>,
    /// Drains of this process, by shard.
    pub drains: Arc<settle::drain::Drains>,
    /// Payments of this process that are decided together.
    pub payment_groups: Arc<settle::pay::PaymentGroups>,
    /// Decisions of this process that are delivered together.
    pub delivery_groups: Arc<settle::release::DeliveryGroups>,
    /// Wakes the job `release`.
    pub releases_wanted: Arc<Notify>,
    /// Wakes the deliveries of guard warnings to the webhook.
    pub deliveries_wanted: Arc<Notify>,
    /// The shards that this process lets sell.
    pub permits: Arc<recover::permits::Permits>,
    /// What the ledger said a moment ago of all that each instance follows.
    pub bulletins: Arc<recover::bulletin::Bulletins>,
    /// The sales that are even, and sell nothing.
    pub rests: Arc<recover::rebalance::Rests>,
    /// The other instances that live.
    pub instances: Arc<recover::instances::Instances>,
    /// Orders whose shoppers wait for the ledger.
    pub arrivals: Arc<sell::await_durability::Arrivals>,
    /// Wakes the tasks that follow the operators' settings, the bans and the list of sales.
    pub settings_changed: Arc<Notify>,
    /// Accounts whose tokens are refused.
    pub bans: Arc<operate::bans::Bans>,
    /// Refusals by the guards of this process.
    pub refusal_counts: Arc<sell::refusal_counts::RefusalCounts>,
    /// Whom guards in shadow would have refused in the last second.
    pub shadow_refusals: Arc<sell::shadow_refusals::ShadowRefusals>,
    /// Counts of purchase answers, for sales that an operator watches.
    pub pulse: Arc<watch::pulse::Pulse>,
    /// Counts of purchase answers, for the reports of sales.
    pub history: Arc<watch::history::History>,
    /// What this process knows of the accounts that ask and buy.
    pub fairness: Arc<watch::fairness::Fairness>,
    /// Replay probes by account, limited.
    pub replay_probes: Arc<sell::replay_probe::ReplayProbes>,
    /// New alerts, for their followers.
    pub alert_feed: Arc<watch::alert_feed::AlertFeed>,
    /// The readiness of this process, as of a moment ago.
    pub readiness: Arc<watch::readiness::Readiness>,
    /// How long this process, if it runs the jobs, keeps what the ledger may forget.
    pub retention: Retention,
    pub metrics: Arc<Metrics>,
}

impl App {
    pub fn new(stock: Stock, ledger: Ledger) -> Self {
        let metrics = Arc::new(Metrics::default());
        Self {
            stock: stock.counted(&metrics.stock),
            metrics,
            sales: Arc::new(sale_book::SaleBook::new(ledger.for_upkeep())),
            shortages: Arc::default(),
            late_requests: Arc::default(),
            glances: Arc::default(),
            lines: Arc::default(),
            drains: Arc::default(),
            payment_groups: Arc::default(),
            delivery_groups: Arc::default(),
            releases_wanted: Arc::default(),
            deliveries_wanted: Arc::default(),
            permits: Arc::default(),
            bulletins: Arc::default(),
            rests: Arc::default(),
            instances: Arc::default(),
            arrivals: Arc::default(),
            settings_changed: Arc::default(),
            bans: Arc::default(),
            refusal_counts: Arc::default(),
            shadow_refusals: Arc::default(),
            pulse: Arc::default(),
            history: Arc::default(),
            fairness: Arc::default(),
            replay_probes: Arc::default(),
            alert_feed: Arc::default(),
            readiness: Arc::default(),
            retention: Retention::default(),
            ledger,
        }
    }

    /// The same state on the operators' connections to the ledger.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            ledger: self.ledger.for_operators(),
            ..self.clone()
        }
    }

    /// The same state on the connections for what each process follows.
    #[must_use]
    pub fn for_upkeep(&self) -> Self {
        Self {
            ledger: self.ledger.for_upkeep(),
            ..self.clone()
        }
    }

    /// The same state over another connection to the stock.
    #[must_use]
    pub fn over(&self, stock: Stock) -> Self {
        Self {
            stock: stock.counted(&self.metrics.stock),
            ..self.clone()
        }
    }
}
