//! How often one address may show one instance a key that is not the operators'.
//!
//! Only wrong keys are counted. Somebody who guesses would otherwise keep out all who share an address with him, and gains
//! nothing by this: the key is too long to be guessed at any rate.

use super::address::Client;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use moka::sync::Cache;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Tries at once, and after that in a minute.
const TRIES: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// How often it is said of an address that it has no tries left.
const SAID_A_MINUTE: NonZeroU32 = NonZeroU32::MIN;
/// Addresses that are remembered: some megabytes. Whoever has more of them has a new one for each try anyway.
const ADDRESSES_MAX: u64 = 10_000;
/// After so long an address has all its tries again.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// See the module.
pub struct SignIns(Cache<Client, Arc<Tries>>);

/// What is left to one address.
struct Tries {
    left: DefaultDirectRateLimiter,
    to_be_said: DefaultDirectRateLimiter,
}

/// An address has no tries left.
#[derive(Debug, Clone, Copy)]
pub struct Exhausted {
    /// How long until the next one.
    pub wait: Duration,
    /// Whether that has not been said for a while.
    pub is_news: bool,
}

impl Default for SignIns {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(ADDRESSES_MAX).time_to_idle(FORGOTTEN);
        Self(cache.build())
    }
}

impl SignIns {
    /// Counts a wrong key, if there is a try left.
    ///
    /// # Errors
    /// There is none.
    pub fn count(&self, client: Client) -> Result<(), Exhausted> {
        let fresh = || {
            Arc::new(Tries {
                left: RateLimiter::direct(Quota::per_minute(TRIES)),
                to_be_said: RateLimiter::direct(Quota::per_minute(SAID_A_MINUTE)),
            })
        };
        let tries = self.0.get_with(client, fresh);
        tries.left.check().map_err(|not_until| Exhausted {
            wait: not_until.wait_time_from(DefaultClock::default().now()),
            is_news: tries.to_be_said.check().is_ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_ten_tries_and_the_next_one_has_its_own() {
        let sign_ins = SignIns::default();
        let client = |address: &str| Client::of(address.parse().unwrap());
        for _ in 0..10 {
            assert!(sign_ins.count(client("192.0.2.1")).is_ok());
        }
        let first = sign_ins.count(client("192.0.2.1")).unwrap_err();
        assert!(
            first.wait > Duration::from_secs(1) && first.wait <= Duration::from_secs(6),
            "{first:?}"
        );
        assert!(first.is_news);
        for _ in 0..5 {
            let again = sign_ins.count(client("192.0.2.1")).unwrap_err();
            assert!(!again.is_news, "it is said once in a while, not each time");
        }
        assert!(sign_ins.count(client("192.0.2.2")).is_ok());
    }
}
