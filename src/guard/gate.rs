//! The gate of one process: whether a request may enter, by the cheapest check first. A restart forgets its counts.

use super::accounts::Accounts;
use super::adaptive::AdaptiveRate;
use super::address::{Client, NETWORK_CLIENTS, Network};
use super::shared::SharedBucket;
use crate::domain::guard::{GuardSettings, Layer};
use crate::domain::ids::UserId;
use crate::flow::App;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The capacity of a bucket, and its refill per second, in cells. A request costs this divided by the rate. So the rate
/// may change at any time, and the bucket stays.
const CELLS: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999_999);
/// How often quiet addresses are forgotten. An address's count is gone after as long. So the memory holds at most the
/// addresses of the requests of twice this time.
pub const FORGET: Duration = Duration::from_secs(1);

/// Why a request may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub layer: Layer,
    /// How long until the same request may succeed, if no other request comes first.
    pub wait: Duration,
}

pub struct Gate {
    settings: RwLock<GuardSettings>,
    address_rate: AtomicU32,
    account_rate: AtomicU32,
    /// The rate of this instance now: fixed, or adapted.
    instance_rate: AtomicU32,
    shared_rate: AtomicU32,
    addresses: DefaultKeyedRateLimiter<Client>,
    networks: DefaultKeyedRateLimiter<Network>,
    accounts: Accounts,
    instance: DefaultDirectRateLimiter,
    shared: SharedBucket,
    adaptive: AdaptiveRate,
    in_flight: AtomicU32,
}

/// A purchase in flight, until this is dropped.
pub struct Inside<'a>(&'a Gate, Instant);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        let settings = self.0.settings();
        let latency_max = Duration::from_millis(settings.adaptive_latency_ms.into());
        self.0.adaptive.answered(self.1.elapsed(), latency_max);
    }
}

impl Gate {
    #[must_use]
    pub fn new(settings: GuardSettings) -> Self {
        let quota = Quota::per_second(CELLS);
        let gate = Self {
            settings: RwLock::default(),
            address_rate: AtomicU32::default(),
            account_rate: AtomicU32::default(),
            instance_rate: AtomicU32::default(),
            shared_rate: AtomicU32::default(),
            addresses: RateLimiter::dashmap(quota),
            networks: RateLimiter::dashmap(quota),
            accounts: Accounts::new(quota),
            instance: RateLimiter::direct(quota),
            shared: SharedBucket::default(),
            adaptive: AdaptiveRate::default(),
            in_flight: AtomicU32::default(),
        };
        gate.follow(settings);
        gate
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> GuardSettings {
        *self.settings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts settings in force.
    pub fn follow(&self, settings: GuardSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        self.address_rate.store(settings.address_rate, Ordering::Relaxed);
        self.account_rate.store(settings.account_rate, Ordering::Relaxed);
        self.shared_rate.store(settings.shared_rate, Ordering::Relaxed);
        self.adapt();
    }

    /// Adapts the rate of this instance to the counts since the last time; see [`super::adaptive::STEP`].
    pub fn adapt(&self) {
        let settings = self.settings();
        let rate = match settings.adaptive_max_rate {
            0 => settings.instance_rate,
            _ => self.adaptive.step(&settings),
        };
        self.instance_rate.store(rate, Ordering::Relaxed);
    }

    /// The rate of this instance now, in requests per second; 0 is no limit.
    #[must_use]
    pub fn rate(&self) -> u32 {
        self.instance_rate.load(Ordering::Relaxed)
    }

    /// How many purchases are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Forgets quiet addresses; see [`FORGET`].
    pub fn forget(&self) {
        self.addresses.retain_recent();
        self.addresses.shrink_to_fit();
        self.networks.retain_recent();
        self.networks.shrink_to_fit();
    }

    /// Whether a request may enter; else the layer that refused it, and the wait.
    pub async fn admit(&self, app: &App, client: impl FnOnce() -> Option<Client>) -> Result<(), Refusal> {
        let refused = |layer| move |wait| Refusal { layer, wait };
        let rate = self.address_rate.load(Ordering::Relaxed);
        if rate > 0
            && let Some(client) = client()
        {
            self.pass_address(client, rate).map_err(refused(Layer::Address))?;
        }
        if let Some(cost) = cost(self.rate()) {
            // A cost never exceeds the bucket's capacity, so the outer result is always `Ok`.
            if let Ok(Err(not_until)) = self.instance.check_n(cost) {
                let wait = not_until.wait_time_from(DefaultClock::default().now());
                return Err(refused(Layer::Instance)(wait));
            }
        }
        let rate = self.shared_rate.load(Ordering::Relaxed);
        if rate > 0 {
            self.shared
                .take(&app.stock, rate)
                .await
                .map_err(refused(Layer::Shared))?;
        }
        Ok(())
    }

    /// Counts a purchase as in flight until the returned value is dropped.
    #[must_use]
    pub fn enter(&self) -> Inside<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.adaptive.in_flight(now);
        Inside(self, Instant::now())
    }

    /// Whether a request of an account may enter; else the wait.
    pub fn admit_account(&self, user: &UserId) -> Result<(), Refusal> {
        let Some(cost) = cost(self.account_rate.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        self.accounts.pass(user, cost).map_err(|wait| Refusal {
            layer: Layer::Account,
            wait,
        })
    }

    fn pass_address(&self, client: Client, rate: u32) -> Result<(), Duration> {
        pass(&self.addresses, &client, rate)?;
        let network = client.network();
        network.map_or(Ok(()), |network| {
            pass(&self.networks, &network, rate.saturating_mul(NETWORK_CLIENTS.into()))
        })
    }
}

/// Counts a request in the bucket of its key; else how long to wait.
fn pass<K: Hash + Eq + Clone>(buckets: &DefaultKeyedRateLimiter<K>, key: &K, rate: u32) -> Result<(), Duration> {
    match cost(rate).map(|cost| buckets.check_key_n(key, cost)) {
        Some(Ok(Err(not_until))) => Err(not_until.wait_time_from(DefaultClock::default().now())),
        _ => Ok(()),
    }
}

/// The cost of a request at a rate per second; none without a limit.
fn cost(rate: u32) -> Option<NonZeroU32> {
    let rate = NonZeroU32::new(rate)?;
    NonZeroU32::new(CELLS.get() / rate).or(Some(NonZeroU32::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_what_sixteen_of_its_clients_have() {
        let gate = Gate::new(GuardSettings {
            address_rate: 1,
            ..GuardSettings::default()
        });
        let client = |number: usize| Client::of(format!("2001:db8:1:{number:x}::1").parse().unwrap());
        assert!(gate.pass_address(client(0), 1).is_ok());
        assert!(gate.pass_address(client(0), 1).is_err(), "one client has its own limit");
        let passed = (1..1000).filter(|number| gate.pass_address(client(*number), 1).is_ok());
        // Sixteen at once, and sixteen per second.
        assert!((15..500).contains(&passed.count()));
        let other = Client::of("2001:db8:2::1".parse().unwrap());
        assert!(gate.pass_address(other, 1).is_ok());
    }
}
