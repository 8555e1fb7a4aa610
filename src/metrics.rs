//! What is counted, in the Prometheus text format. Label sets are bounded: outcomes, jobs and status classes, never
//! users, orders or sales.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

/// Label of purchases and payments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// The outcome's code.
    pub outcome: &'static str,
}

/// Label of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Job {
    /// The job's name.
    pub job: &'static str,
}

/// Label of job runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct JobRun {
    /// The job's name.
    pub job: &'static str,
    /// `done`, `failed`, `timed_out` or `skipped`.
    pub result: &'static str,
}

/// Label of what the guards stop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Guarding {
    /// The layer's name.
    pub layer: &'static str,
}

/// Everything that this process counts.
pub struct Metrics {
    registry: Registry,
    /// Purchases by what came of them.
    pub purchases: Family<Outcome, Counter>,
    /// How long purchases took.
    pub purchase_duration: Histogram,
    /// Payments by what came of them.
    pub payments: Family<Outcome, Counter>,
    /// Orders taken into the ledger.
    pub orders_drained: Counter,
    /// Runs of each job by result.
    pub job_runs: Family<JobRun, Counter>,
    /// When each job last succeeded, seconds since the epoch.
    pub job_last_success: Family<Job, Gauge<f64, AtomicU64>>,
    /// What needs an operator's eye, by kind.
    pub alerts: Family<Outcome, Gauge>,
    /// Tries to deliver alerts to their webhook, by what came of them.
    pub alert_deliveries: Family<Outcome, Counter>,
    /// Requests that the guards have stopped, by layer.
    pub guard_refusals: Family<Guarding, Counter>,
    /// Requests a second that this instance takes; 0 is without a limit.
    pub gateway_rate: Gauge,
    /// Purchases that are being answered.
    pub purchases_in_flight: Gauge,
    /// Memory that the servers with stock use, in bytes.
    pub redis_memory: Gauge,
    /// How many servers that is.
    pub redis_servers: Gauge,
    /// Memory of this process, in bytes; looked up whenever it is told.
    resident_memory: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("flashsale"),
            purchases: Family::default(),
            // 0.5 ms to 8 s, doubling.
            purchase_duration: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
            payments: Family::default(),
            orders_drained: Counter::default(),
            job_runs: Family::default(),
            job_last_success: Family::default(),
            alerts: Family::default(),
            alert_deliveries: Family::default(),
            guard_refusals: Family::default(),
            gateway_rate: Gauge::default(),
            purchases_in_flight: Gauge::default(),
            redis_memory: Gauge::default(),
            redis_servers: Gauge::default(),
            resident_memory: Gauge::default(),
        };
        metrics.registered()
    }
}

impl Metrics {
    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("purchases", "Purchases by outcome", self.purchases.clone());
        registry.register_with_unit(
            "purchase_duration",
            "Time from a purchase's arrival to its answer",
            Unit::Seconds,
            self.purchase_duration.clone(),
        );
        registry.register("payments", "Payments by outcome", self.payments.clone());
        registry.register(
            "orders_drained",
            "Orders that this process's drain job took into the ledger",
            self.orders_drained.clone(),
        );
        registry.register("job_runs", "Runs of each job by result", self.job_runs.clone());
        registry.register_with_unit(
            "job_last_success_timestamp",
            "When each job last succeeded, since the epoch",
            Unit::Seconds,
            self.job_last_success.clone(),
        );
        registry.register("alerts", "What needs an operator's eye, by kind", self.alerts.clone());
        registry.register(
            "alert_deliveries",
            "Tries to deliver alerts to their webhook, by outcome",
            self.alert_deliveries.clone(),
        );
        registry.register(
            "guard_refusals",
            "Requests that the guards have stopped, by layer",
            self.guard_refusals.clone(),
        );
        registry.register(
            "gateway_rate",
            "Requests a second that this instance takes; 0 is without a limit",
            self.gateway_rate.clone(),
        );
        registry.register(
            "purchases_in_flight",
            "Purchases that are being answered",
            self.purchases_in_flight.clone(),
        );
        registry.register_with_unit(
            "redis_memory",
            "Memory that the Redis servers with stock use; told by processes that run the jobs",
            Unit::Bytes,
            self.redis_memory.clone(),
        );
        registry.register(
            "redis_servers",
            "Redis servers with stock: on a cluster its primaries; told by processes that run the jobs",
            self.redis_servers.clone(),
        );
        registry.register_with_unit(
            "resident_memory",
            "Memory of this process",
            Unit::Bytes,
            self.resident_memory.clone(),
        );
        self
    }

    /// The Prometheus text.
    #[must_use]
    pub fn encode(&self) -> String {
        if let Some(bytes) = resident_memory() {
            self.resident_memory.set(bytes);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _infallible = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// What of this process is in memory, in bytes; nothing where the system does not tell.
fn resident_memory() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}
