//! Limits the requests of each account in one process. A crash forgets the counts.

use crate::domain::ids::UserId;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// With more accounts than this, quiet accounts are forgotten each second.
const ACCOUNTS_MAX: usize = 50_000;

pub struct Accounts {
    limiter: DefaultKeyedRateLimiter<UserId>,
    /// When quiet accounts were last forgotten (Unix seconds).
    forgotten_at: AtomicI64,
}

impl Accounts {
    /// Gives each account this quota.
    pub fn new(quota: Quota) -> Self {
        Self {
            limiter: RateLimiter::dashmap(quota),
            forgotten_at: AtomicI64::default(),
        }
    }

    /// Counts a request of an account at the cost of so many cells; else how long it has to wait.
    pub fn pass(&self, user: &UserId, cost: NonZeroU32) -> Result<(), Duration> {
        let now = chrono::Utc::now().timestamp();
        if self.limiter.len() > ACCOUNTS_MAX && self.forgotten_at.swap(now, Ordering::Relaxed) != now {
            self.limiter.retain_recent();
        }
        match self.limiter.check_key_n(user, cost) {
            Ok(Err(not_until)) => Err(not_until.wait_time_from(DefaultClock::default().now())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_its_quota_and_no_other_has_less_for_it() {
        let accounts = Accounts::new(Quota::per_minute(NonZeroU32::MIN.saturating_add(9)));
        let (ada, bob) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let passed = (0..100)
            .filter(|_| accounts.pass(&ada, NonZeroU32::MIN).is_ok())
            .count();
        assert_eq!(passed, 10);
        let wait = accounts.pass(&ada, NonZeroU32::MIN).unwrap_err();
        assert!(wait <= Duration::from_secs(6), "{wait:?}");
        assert!(accounts.pass(&bob, NonZeroU32::MIN).is_ok());
    }
}
