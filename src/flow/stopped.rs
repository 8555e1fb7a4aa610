//! Stopped: count what the guards of this process refuse, by sale, and add it up in the ledger.
//!
//! A crash loses what was counted in the last second.

use super::App;
use crate::domain::fault::Fault;
use crate::domain::guard::Layer;
use crate::domain::ids::SaleId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Sales and layers that are counted at once; with more, which only ids that nobody has can come to, the rest is not.
const COUNTED_MAX: usize = 10_000;

/// How long Postgres is waited for. If it comes to it later, something is counted twice.
const ADD_MAX: Duration = Duration::from_secs(2);

/// What has been stopped since it was last added up.
#[derive(Default)]
pub struct Stopped(Mutex<HashMap<(SaleId, Layer), u32>>);

impl Stopped {
    /// Counts one request for this sale.
    pub fn count(&self, sale: SaleId, layer: Layer) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() < COUNTED_MAX || counts.contains_key(&(sale, layer)) {
            let count = counts.entry((sale, layer)).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn take(&self) -> HashMap<(SaleId, Layer), u32> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn give_back(&self, counts: HashMap<(SaleId, Layer), u32>) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, count) in counts {
            if now.len() >= COUNTED_MAX && !now.contains_key(&key) {
                continue;
            }
            let sum = now.entry(key).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

/// Adds up in the ledger what was stopped for sales that there are.
///
/// # Errors
/// `Unavailable` when Postgres does not answer: what was counted is kept for the next time.
pub async fn add_up(app: &App) -> Result<usize, Fault> {
    let counts = app.stopped.take();
    if counts.is_empty() {
        return Ok(0);
    }
    let added = timeout(ADD_MAX, app.ledger.add_stopped(&counts)).await;
    let added = added.unwrap_or_else(|_| Err(Fault::Unavailable("Postgres did not answer in time".to_owned())));
    if added.is_err() {
        app.stopped.give_back(counts);
    }
    added
}
