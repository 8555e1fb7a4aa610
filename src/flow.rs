//! Flows: verbs that order steps over the stock and the ledger. Each says what a crash between two of its steps
//! leaves, and who finishes it. All are safe to run twice and side by side.

pub mod alert_feed;
pub mod alert_webhook;
pub mod audit;
pub mod balance;
pub mod bans;
pub mod borrow;
pub mod browse;
pub mod cancel;
pub mod conservation;
pub mod console;
pub mod drain;
pub mod durable;
pub mod expire;
mod gap;
pub mod inspect;
pub mod letters;
pub mod locked_sales;
pub mod looks;
pub mod measure;
pub mod order;
pub mod pay;
pub mod permit;
pub mod preload;
pub mod pulse;
pub mod purchase;
pub mod ready;
pub mod rebalance;
pub mod rebuild;
pub mod reconcile;
pub mod release;
pub mod restock;
pub mod retire;
pub mod sale_book;
pub mod stats;
pub mod stopped;
pub mod sweep;
pub mod transition;
pub mod waiting_room;

use crate::domain::fault::Fault;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::stock::Stock;
use std::sync::Arc;
use tokio::sync::Notify;

/// Counts what a run over many things did. One that fails must not keep the others from their turn, so its fault is
/// noted and the run goes on.
#[derive(Default)]
struct Tally {
    done: usize,
    fault: Option<Fault>,
}

impl Tally {
    fn note(&mut self, outcome: Result<usize, Fault>) {
        match outcome {
            Ok(done) => self.done += done,
            Err(fault) => {
                self.fault.get_or_insert(fault);
            }
        }
    }

    /// How much was done, or the first fault.
    fn finish(self) -> Result<usize, Fault> {
        self.fault.map_or(Ok(self.done), Err)
    }
}

/// Has another one come first, so that those who come last in a run that has no time for all are not always the same.
fn begin_anywhere<T>(things: &mut [T]) {
    if !things.is_empty() {
        let first = rand::random_range(0..things.len());
        things.rotate_left(first);
    }
}

/// What every flow works on; clones share all of it.
#[derive(Clone)]
pub struct App {
    pub stock: Stock,
    pub ledger: Ledger,
    /// Sales that this process knows.
    pub sales: Arc<sale_book::SaleBook>,
    /// Shortages that are being covered.
    pub shortages: Arc<borrow::Shortages>,
    /// What shoppers saw of each sale a moment ago.
    pub glances: Arc<stats::Glances>,
    /// What this process has seen of each shard's events.
    pub drains: Arc<drain::Drains>,
    /// Which shards this process lets sell.
    pub permits: Arc<permit::Permits>,
    /// Orders whose shoppers wait for the ledger.
    pub arrivals: Arc<durable::Arrivals>,
    /// Wakes whoever follows what operators change.
    pub settings_changed: Arc<Notify>,
    /// Accounts whose tokens are no longer taken.
    pub bans: Arc<bans::Bans>,
    /// What the guards of this process have stopped.
    pub stopped: Arc<stopped::Stopped>,
    /// How this process answers purchases of sales that somebody watches.
    pub pulse: Arc<pulse::Pulse>,
    /// Sales that another transaction has locked for long.
    pub locked_sales: Arc<locked_sales::LockedSales>,
    /// How often accounts had Redis asked without bringing what a sale asks for.
    pub looks: Arc<looks::Looks>,
    /// Alerts as they come, for those who follow them.
    pub alert_feed: Arc<alert_feed::AlertFeed>,
    /// Whether this process can work, as of a moment ago.
    pub readiness: Arc<ready::Readiness>,
    pub metrics: Arc<Metrics>,
}

impl App {
    /// An application over these two.
    #[must_use]
    pub fn new(stock: Stock, ledger: Ledger) -> Self {
        let metrics = Arc::new(Metrics::default());
        Self {
            stock: stock.counted(&metrics.stock),
            metrics,
            sales: Arc::new(sale_book::SaleBook::new(ledger.clone())),
            shortages: Arc::default(),
            glances: Arc::default(),
            drains: Arc::default(),
            permits: Arc::default(),
            arrivals: Arc::default(),
            settings_changed: Arc::default(),
            bans: Arc::default(),
            stopped: Arc::default(),
            pulse: Arc::default(),
            locked_sales: Arc::default(),
            looks: Arc::default(),
            alert_feed: Arc::default(),
            readiness: Arc::default(),
            ledger,
        }
    }

    /// The same application on the operators' connections to the ledger.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            ledger: self.ledger.for_operators(),
            ..self.clone()
        }
    }

    /// The same application over another connection to the stock.
    #[must_use]
    pub fn over(&self, stock: Stock) -> Self {
        Self {
            stock: stock.counted(&self.metrics.stock),
            ..self.clone()
        }
    }
}
