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
use std::sync::Arc;
use tokio::sync::Notify;

/// What every flow works on.
pub struct App {
    /// Redis.
    pub stock: Stock,
    /// Postgres.
    pub ledger: Ledger,
    /// Sales that this process knows.
    pub sales: Arc<sale_book::SaleBook>,
    /// Shortages that are being covered.
    pub shortages: Arc<borrow::Shortages>,
    /// What shoppers saw of each sale a moment ago.
    pub glances: Arc<stats::Glances>,
    /// What this process has seen of each shard's events.
    pub drains: Arc<drain::Drains>,
    /// Wakes the drain of this process: there is something to take in.
    pub drain_wanted: Arc<Notify>,
}

impl App {
    /// An application over these two.
    #[must_use]
    pub fn new(stock: Stock, ledger: Ledger) -> Self {
        Self {
            sales: Arc::new(sale_book::SaleBook::new(ledger.clone())),
            shortages: Arc::default(),
            glances: Arc::default(),
            drains: Arc::default(),
            drain_wanted: Arc::default(),
            stock,
            ledger,
        }
    }

    /// The same application over another connection to the stock.
    #[must_use]
    pub fn over(&self, stock: Stock) -> Self {
        Self {
            stock,
            ledger: self.ledger.clone(),
            sales: Arc::clone(&self.sales),
            shortages: Arc::clone(&self.shortages),
            glances: Arc::clone(&self.glances),
            drains: Arc::clone(&self.drains),
            drain_wanted: Arc::clone(&self.drain_wanted),
        }
    }
}
