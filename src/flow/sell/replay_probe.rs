//! Replay probes: how often an account may have Redis asked whether a key has an order, although the request lacks
//! what the sale asks for. No window counts such requests, and they must not cost more than those that are counted.
//!
//! Counted in this process alone; a crash forgets the counts.

use crate::domain::ids::UserId;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Probes of an account in a second, and at once: more than any client needs that repeats its requests.
const A_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// With more accounts than this, quiet ones are forgotten.
const ACCOUNTS_MAX: usize = 50_000;

pub struct ReplayProbes {
    accounts: DefaultKeyedRateLimiter<UserId>,
    /// When quiet accounts were last forgotten, in Unix seconds.
    forgotten_at: AtomicI64,
}

impl Default for ReplayProbes {
    fn default() -> Self {
        Self {
            accounts: RateLimiter::dashmap(Quota::per_second(A_SECOND)),
            forgotten_at: AtomicI64::default(),
        }
    }
}

impl ReplayProbes {
    /// Counts a probe; returns how long to wait if there have been too many.
    pub(in crate::flow) fn take(&self, user: &UserId) -> Option<Duration> {
        let now = chrono::Utc::now().timestamp();
        if self.accounts.len() > ACCOUNTS_MAX && self.forgotten_at.swap(now, Ordering::Relaxed) != now {
            self.accounts.retain_recent();
        }
        let wait = self.accounts.check_key(user).err()?;
        Some(wait.wait_time_from(DefaultClock::default().now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_looks_and_no_other_has_fewer_for_them() {
        let probes = ReplayProbes::default();
        let (ada, bob) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let passed = (0..100).filter(|_| probes.take(&ada).is_none()).count();
        assert!((10..30).contains(&passed), "{passed}");
        let wait = probes.take(&ada).unwrap();
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        assert!(probes.take(&bob).is_none());
    }
}
