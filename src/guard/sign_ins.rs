//! How often one address may try to sign in at the console of one instance.

use super::address::Client;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use moka::sync::Cache;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Tries at once, and after that in a minute.
const TRIES: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// Addresses that are remembered: some megabytes. Whoever has more of them has a new one for each try anyway, and the key
/// is too long to be guessed.
const ADDRESSES_MAX: u64 = 10_000;
/// After so long an address has all its tries again.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// See the module.
pub struct SignIns(Cache<Client, Arc<DefaultDirectRateLimiter>>);

impl Default for SignIns {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(ADDRESSES_MAX).time_to_idle(FORGOTTEN);
        Self(cache.build())
    }
}

impl SignIns {
    /// Counts a try, if there is one left.
    ///
    /// # Errors
    /// How long to wait for the next one.
    pub fn count(&self, client: Client) -> Result<(), Duration> {
        let tries = || Arc::new(RateLimiter::direct(Quota::per_minute(TRIES)));
        let checked = self.0.get_with(client, tries).check();
        checked.map_err(|not_until| not_until.wait_time_from(DefaultClock::default().now()))
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
        let wait = sign_ins.count(client("192.0.2.1")).unwrap_err();
        assert!(
            wait > Duration::from_secs(1) && wait <= Duration::from_secs(6),
            "{wait:?}"
        );
        assert!(sign_ins.count(client("192.0.2.2")).is_ok());
    }
}
