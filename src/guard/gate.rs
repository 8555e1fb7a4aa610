//! The gate of one process: whether a request may enter, by the cheapest check first. A restart forgets its counts.

use super::accounts::Accounts;
use super::adaptive::AdaptiveRate;
use super::address::{Client, NETWORK_CLIENTS, Network};
use super::shared::SharedBucket;
use crate::domain::guard::{GuardSettings, GuardStages, Layer, PageViewLimits};
use crate::domain::ids::UserId;
use crate::domain::stage::StageKey;
use crate::flow::App;
use crate::stock::Stock;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::RwLock;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The capacity of a bucket, and its refill per second, in cells. A request costs this divided by the rate. So the rate
/// may change at any time, and the bucket stays.
const CELLS: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999_999);
/// How often quiet addresses are forgotten. An address's count is gone after as long. So the memory holds at most the
/// addresses of the requests of twice this time.
pub const FORGET: Duration = Duration::from_secs(1);

/// A limit of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Address,
    Account,
    Instance,
    Shared,
}

/// Why a request may not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub limit: Limit,
    /// How long until the same request may succeed, if no other request comes first.
    pub wait: Duration,
}

pub struct Gate {
    settings: RwLock<GuardSettings>,
    stages: RwLock<GuardStages>,
    /// Whether any stage picks anybody. Without one, a request pays no more than this.
    is_staged: AtomicBool,
    stage_key: StageKey,
    address_rate: AtomicU32,
    account_rate: AtomicU32,
    /// The rate of this instance now: fixed, or adapted.
    instance_rate: AtomicU32,
    shared_rate: AtomicU32,
    buckets: Buckets,
    /// The buckets of staged values that stand beside those in force.
    staged: Buckets,
    adaptive: AdaptiveRate,
    in_flight: AtomicU32,
}

/// One bucket for each limit of the gate.
struct Buckets {
    addresses: DefaultKeyedRateLimiter<Client>,
    networks: DefaultKeyedRateLimiter<Network>,
    accounts: Accounts,
    instance: DefaultDirectRateLimiter,
    shared: SharedBucket,
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
    /// A gate with these settings and no stages.
    pub fn new(settings: GuardSettings, stage_key: StageKey) -> Self {
        let gate = Self {
            settings: RwLock::default(),
            stages: RwLock::default(),
            is_staged: AtomicBool::default(),
            stage_key,
            address_rate: AtomicU32::default(),
            account_rate: AtomicU32::default(),
            instance_rate: AtomicU32::default(),
            shared_rate: AtomicU32::default(),
            buckets: Buckets::new("gateway"),
            staged: Buckets::new("gateway-staged"),
            adaptive: AdaptiveRate::default(),
            in_flight: AtomicU32::default(),
        };
        gate.follow(settings, GuardStages::default());
        gate
    }

    /// The settings in force.
    pub fn settings(&self) -> GuardSettings {
        *self.settings.read()
    }

    /// The stages that may pick anybody.
    pub fn stages(&self) -> GuardStages {
        if self.is_staged.load(Ordering::Relaxed) {
            *self.stages.read()
        } else {
            GuardStages::default()
        }
    }

    /// Puts settings and stages in force.
    pub fn follow(&self, settings: GuardSettings, stages: GuardStages) {
        let stages = stages.in_force();
        *self.stages.write() = stages;
        self.is_staged
            .store(stages != GuardStages::default(), Ordering::Relaxed);
        *self.settings.write() = settings;
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
    pub fn rate(&self) -> u32 {
        self.instance_rate.load(Ordering::Relaxed)
    }

    /// How many purchases are in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Forgets quiet addresses; see [`FORGET`].
    pub fn forget(&self) {
        self.buckets.forget();
        self.staged.forget();
    }

    /// Whether a request may enter; else the limit that refused it, and the wait. `would_stop` gets each layer in shadow
    /// that would have refused it.
    pub async fn admit(
        &self,
        app: &App,
        client: impl FnOnce() -> Option<Client>,
        would_stop: impl Fn(Layer),
    ) -> Result<(), Refusal> {
        let refused = |limit| move |wait| Refusal { limit, wait };
        let stages = self.stages();
        let rate = self.address_rate.load(Ordering::Relaxed);
        let is_named = rate > 0 || stages != GuardStages::default();
        let client = is_named.then(client).flatten();
        let shopper = client.map(Client::bytes);
        let shopper = shopper.as_ref().map(<[u8; 16]>::as_slice);
        if let Some(client) = client {
            let stage = stages.address_rate;
            let rate = self.stage_key.apply("address_rate", shopper, rate, stage);
            if let Some(rate) = rate.shadow
                && self.staged.pass_address(client, rate).is_err()
            {
                would_stop(Layer::Address);
            }
            let passed = self.buckets.pass_address(client, rate.value);
            passed.map_err(refused(Limit::Address))?;
        }
        // Where all shoppers share a bucket, each request also takes from that of the staged rate. So both are as full
        // as if their rates held for everybody. The stage only says whose requests obey which of them.
        let passed = self.buckets.pass_instance(self.rate());
        let staged = stages.instance_rate.filter(|_| !self.is_adaptive());
        let staged = staged.map(|stage| stage.with(self.staged.pass_instance(stage.value)));
        let passed = self.stage_key.apply("instance_rate", shopper, passed, staged);
        if let Some(Err(_)) = passed.shadow {
            would_stop(Layer::Instance);
        }
        passed.value.map_err(refused(Limit::Instance))?;

        let rate = self.shared_rate.load(Ordering::Relaxed);
        if rate == 0 && stages.shared_rate.is_none() {
            return Ok(());
        }
        // Boxed, so that the futures of requests without this limit stay small.
        Box::pin(async {
            let passed = self.buckets.pass_shared(&app.stock, rate).await;
            let staged = match stages.shared_rate {
                Some(stage) => Some(stage.with(self.staged.pass_shared(&app.stock, stage.value).await)),
                None => None,
            };
            let passed = self.stage_key.apply("shared_rate", shopper, passed, staged);
            if let Some(Err(_)) = passed.shadow {
                would_stop(Layer::Shared);
            }
            passed.value.map_err(refused(Limit::Shared))
        })
        .await
    }

    /// Counts a purchase as in flight until the returned value is dropped.
    #[must_use]
    pub fn enter(&self) -> Inside<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.adaptive.in_flight(now);
        Inside(self, Instant::now())
    }

    /// Whether a request of an account may enter; else the wait. `would_stop` is called if the limit is in shadow and
    /// would have refused it.
    pub fn admit_account(&self, user: &UserId, would_stop: impl FnOnce()) -> Result<(), Refusal> {
        let rate = self.account_rate.load(Ordering::Relaxed);
        let stage = self.stages().account_rate;
        let rate = self
            .stage_key
            .apply("account_rate", Some(user.as_str().as_bytes()), rate, stage);
        if let Some(rate) = rate.shadow
            && self.staged.pass_account(user, rate).is_err()
        {
            would_stop();
        }
        let passed = self.buckets.pass_account(user, rate.value);
        passed.map_err(|wait| Refusal {
            limit: Limit::Account,
            wait,
        })
    }

    /// The limits on an account's page views.
    pub fn page_view_limits(&self, user: &UserId) -> PageViewLimits {
        let (settings, stages) = (self.settings(), self.stages());
        let apply = |guard, value, stage| {
            let shopper = Some(user.as_str().as_bytes());
            self.stage_key.apply(guard, shopper, value, stage)
        };
        let alert = apply(
            "browsing_alert_above",
            settings.browsing_alert_above,
            stages.browsing_alert_above,
        );
        let ban = apply(
            "browsing_ban_above",
            settings.browsing_ban_above,
            stages.browsing_ban_above,
        );
        PageViewLimits {
            alert_above: alert.value,
            ban_above: ban.value,
            ban_seconds: settings.browsing_ban_seconds,
            shadow_ban_above: ban.shadow.unwrap_or_default(),
        }
    }

    fn is_adaptive(&self) -> bool {
        self.settings().adaptive_max_rate > 0
    }
}

impl Buckets {
    /// Full buckets. `shared` names the one that all instances share.
    fn new(shared: &'static str) -> Self {
        let quota = Quota::per_second(CELLS);
        Self {
            addresses: RateLimiter::dashmap(quota),
            networks: RateLimiter::dashmap(quota),
            accounts: Accounts::new(quota),
            instance: RateLimiter::direct(quota),
            shared: SharedBucket::new(shared),
        }
    }

    fn forget(&self) {
        self.addresses.retain_recent();
        self.addresses.shrink_to_fit();
        self.networks.retain_recent();
        self.networks.shrink_to_fit();
    }

    fn pass_address(&self, client: Client, rate: u32) -> Result<(), Duration> {
        pass(&self.addresses, &client, rate)?;
        let network = client.network();
        network.map_or(Ok(()), |network| {
            pass(&self.networks, &network, rate.saturating_mul(NETWORK_CLIENTS.into()))
        })
    }

    fn pass_account(&self, user: &UserId, rate: u32) -> Result<(), Duration> {
        cost(rate).map_or(Ok(()), |cost| self.accounts.pass(user, cost))
    }

    fn pass_instance(&self, rate: u32) -> Result<(), Duration> {
        // A cost never exceeds the bucket's capacity, so the outer result is always `Ok`.
        match cost(rate).map(|cost| self.instance.check_n(cost)) {
            Some(Ok(Err(not_until))) => Err(not_until.wait_time_from(DefaultClock::default().now())),
            _ => Ok(()),
        }
    }

    async fn pass_shared(&self, stock: &Stock, rate: u32) -> Result<(), Duration> {
        if rate == 0 {
            return Ok(());
        }
        self.shared.take(stock, rate).await
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
    use crate::domain::stage::Stage;
    use std::cell::Cell;

    #[test]
    fn a_network_has_what_sixteen_of_its_clients_have() {
        let buckets = Buckets::new("gateway");
        let client = |number: usize| Client::of(format!("2001:db8:1:{number:x}::1").parse().unwrap());
        assert!(buckets.pass_address(client(0), 1).is_ok());
        assert!(
            buckets.pass_address(client(0), 1).is_err(),
            "one client has its own limit"
        );
        let passed = (1..1000).filter(|number| buckets.pass_address(client(*number), 1).is_ok());
        // Sixteen at once, and sixteen per second.
        assert!((15..500).contains(&passed.count()));
        let other = Client::of("2001:db8:2::1".parse().unwrap());
        assert!(buckets.pass_address(other, 1).is_ok());
    }

    #[test]
    fn a_stage_in_shadow_counts_what_it_would_refuse_and_refuses_nothing() {
        let gate = Gate::new(GuardSettings::default(), StageKey::derived(&[1; 32]));
        let ada = "ada".parse().unwrap();
        let would_stop = |shadow, percent| {
            let stage = Stage {
                value: 1,
                percent,
                shadow,
            };
            let stages = GuardStages {
                account_rate: Some(stage),
                ..GuardStages::default()
            };
            gate.follow(GuardSettings::default(), stages);
            let counted = Cell::new(0);
            let passed = (0..100).filter(|_| gate.admit_account(&ada, || counted.set(counted.get() + 1)).is_ok());
            (passed.count(), counted.get())
        };
        let (passed, counted) = would_stop(true, 100);
        assert_eq!(passed, 100);
        assert!(counted > 50, "{counted}");
        assert_eq!(would_stop(true, 0), (100, 0));
        assert_eq!(would_stop(false, 0), (100, 0));
        let (passed, counted) = would_stop(false, 100);
        assert!(passed < 50 && counted == 0, "{passed} {counted}");
    }
}
