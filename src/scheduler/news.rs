//! News: what does not work, and that it works again, each logged once.

use crate::domain::fault::Fault;
use std::time::{Duration, Instant};

/// A fault is over after so long without one: a server that comes back answers some calls before it answers all.
const CALM: Duration = Duration::from_secs(2);

/// Logs once that something does not work, and once that it works again.
pub(super) struct News {
    what: &'static str,
    /// How long without a fault.
    calm: Duration,
    failed_at: Option<Instant>,
}

impl News {
    pub(super) const fn new(what: &'static str) -> Self {
        Self::after(CALM, what)
    }

    pub(super) const fn after(calm: Duration, what: &'static str) -> Self {
        Self {
            what,
            calm,
            failed_at: None,
        }
    }

    pub(super) fn report<T>(&mut self, outcome: &Result<T, Fault>) {
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
