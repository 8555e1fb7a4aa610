//! Flows: verbs that order steps over the stock and the ledger. Each says what a crash between two of its steps
//! leaves, and who finishes it. All are safe to run twice and side by side.

pub mod audit;
pub mod borrow;
pub mod cancel;
pub mod drain;
pub mod expire;
pub mod inspect;
pub mod order;
pub mod pay;
pub mod preload;
pub mod purchase;
pub mod ready;
pub mod rebalance;
pub mod release;
pub mod restock;
pub mod retire;
pub mod sale_book;
pub mod stats;
pub mod sweep;
pub mod transition;

use crate::ledger::Ledger;
use crate::stock::Stock;
use tokio::sync::Notify;

/// What every flow works on.
pub struct App {
    /// Redis.
    pub stock: Stock,
    /// Postgres.
    pub ledger: Ledger,
    /// Sales that this process knows.
    pub sales: sale_book::SaleBook,
    /// Shortages that are being covered.
    pub shortages: borrow::Shortages,
    /// What shoppers saw of each sale a moment ago.
    pub glances: stats::Glances,
    /// What this process has seen of each shard's events.
    pub drains: drain::Drains,
    /// Wakes the drain of this process: there is something to take in.
    pub drain_wanted: Notify,
}

impl App {
    /// An application over these two.
    #[must_use]
    pub fn new(stock: Stock, ledger: Ledger) -> Self {
        Self {
            sales: sale_book::SaleBook::new(ledger.clone()),
            shortages: borrow::Shortages::default(),
            glances: stats::Glances::default(),
            drains: drain::Drains::default(),
            drain_wanted: Notify::new(),
            stock,
            ledger,
        }
    }
}
