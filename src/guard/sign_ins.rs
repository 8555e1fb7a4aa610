//! Limits how often one address may send one instance a wrong operators' key.
//!
//! Only wrong keys count. Otherwise a client that guesses could lock out others behind its address. Guessing gains
//! nothing from that: the key is too long to guess at any rate. A restart forgets the counts.

use super::address::{Client, Network};
use crate::cache::Cache;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Attempts at once, and then per minute.
const TRIES: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
/// How often the log mentions an address that has no attempts left.
const SAID_A_MINUTE: NonZeroU32 = NonZeroU32::MIN;
/// How many addresses are remembered: some megabytes. An attacker with more addresses has a fresh one for each attempt
/// anyway. After a minute without an attempt, a remembered address has as many attempts as a new one.
const ADDRESSES_MAX: usize = 10_000;
/// Log lines per minute about the addresses of one network, and about all addresses.
const LINES_OF_NETWORK: NonZeroU32 = NonZeroU32::MIN.saturating_add(19);
const LINES: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

/// Refusals that one instance writes into the audit log per minute, over all clients.
const RECORDED_A_MINUTE: NonZeroU32 = NonZeroU32::MIN.saturating_add(59);

pub struct SignIns {
    addresses: Cache<Client, Arc<Tries>>,
    lines_of_networks: Cache<Network, Arc<DefaultDirectRateLimiter>>,
    lines: DefaultDirectRateLimiter,
    /// Wrong keys since the last log line, which got no line themselves.
    unlogged: AtomicU64,
    to_be_recorded: DefaultDirectRateLimiter,
}

/// The limits of one address.
struct Tries {
    left: DefaultDirectRateLimiter,
    to_be_said: DefaultDirectRateLimiter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongKey {
    /// How long the address has to wait, if it has no attempt left.
    pub wait: Option<Duration>,
    /// If this wrong key gets a log line: how many before it got none.
    pub line: Option<u64>,
}

impl Default for SignIns {
    fn default() -> Self {
        Self {
            addresses: Cache::new(ADDRESSES_MAX),
            lines_of_networks: Cache::new(ADDRESSES_MAX),
            lines: RateLimiter::direct(Quota::per_minute(LINES)),
            unlogged: AtomicU64::default(),
            to_be_recorded: RateLimiter::direct(Quota::per_minute(RECORDED_A_MINUTE)),
        }
    }
}

impl SignIns {
    /// Whether the audit log may get one more refusal now.
    pub fn may_record(&self) -> bool {
        self.to_be_recorded.check().is_ok()
    }

    pub fn count(&self, client: Client) -> WrongKey {
        let fresh = || {
            Arc::new(Tries {
                left: RateLimiter::direct(Quota::per_minute(TRIES)),
                to_be_said: RateLimiter::direct(Quota::per_minute(SAID_A_MINUTE)),
            })
        };
        let tries = self.addresses.get_or_make(&client, fresh);
        let wait = tries.left.check().err();
        let wait = wait.map(|not_until| not_until.wait_time_from(DefaultClock::default().now()));
        let is_news = wait.is_none() || tries.to_be_said.check().is_ok();
        let has_line = is_news && self.has_line(client);
        let line = has_line.then(|| self.unlogged.swap(0, Ordering::Relaxed));
        if !has_line {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
        }
        WrongKey { wait, line }
    }

    /// Whether the log may get a line about this client now.
    fn has_line(&self, client: Client) -> bool {
        let of_network = client.network().is_none_or(|network| {
            let fresh = || Arc::new(RateLimiter::direct(Quota::per_minute(LINES_OF_NETWORK)));
            let lines = self.lines_of_networks.get_or_make(&network, fresh);
            lines.check().is_ok()
        });
        of_network && self.lines.check().is_ok()
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
            let counted = sign_ins.count(client("192.0.2.1"));
            assert_eq!((counted.wait, counted.line), (None, Some(0)));
        }
        let first = sign_ins.count(client("192.0.2.1"));
        let wait = first.wait.unwrap();
        assert!(
            wait > Duration::from_secs(1) && wait <= Duration::from_secs(6),
            "{first:?}"
        );
        assert_eq!(first.line, Some(0));
        for _ in 0..5 {
            let again = sign_ins.count(client("192.0.2.1"));
            assert!(again.wait.is_some());
            assert_eq!(again.line, None, "it is said once in a while, not each time");
        }
        let other = sign_ins.count(client("192.0.2.2"));
        assert_eq!((other.wait, other.line), (None, Some(5)), "how many got no line");
    }

    #[test]
    fn no_network_and_not_all_of_them_flood_the_log() {
        let sign_ins = SignIns::default();
        let lines = |network: usize, clients: usize| {
            let client = |n: usize| Client::of(format!("2001:db8:{network:x}:{n:x}::1").parse().unwrap());
            (0..clients)
                .filter(|n| sign_ins.count(client(*n)).line.is_some())
                .count()
        };
        // A network has 20 lines at once and 20 per minute. This test takes less than a minute.
        let one = lines(1, 1000);
        assert!((20..40).contains(&one), "{one}");
        let others: usize = (2..60).map(|network| lines(network, 30)).sum();
        assert!((60..200).contains(&others), "{others}");
    }
}
