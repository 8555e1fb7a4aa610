//! Locked sales: the sales that another transaction was just found to have locked. For a moment no other request waits
//! for that lock on a connection.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a sale counts as locked.
const FOR: Duration = Duration::from_millis(500);

/// Until when each sale counts as locked, by its number.
#[derive(Default)]
pub(super) struct LockedSales(Mutex<HashMap<u32, Instant>>);

impl LockedSales {
    pub(super) fn contains(&self, sale: u32) -> bool {
        let until = self.0.lock();
        until.get(&sale).is_some_and(|until| Instant::now() < *until)
    }

    pub(super) fn note(&self, sale: u32) {
        let now = Instant::now();
        let mut until = self.0.lock();
        until.retain(|_, until| now < *until);
        until.insert(sale, now + FOR);
    }
}
