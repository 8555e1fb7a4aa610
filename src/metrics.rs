//! The metrics for Prometheus. Label sets are bounded: outcomes, jobs, layers, scripts and pools, never users or
//! orders. Three gauges have a series for each live sale, up to a bound. The metrics of a purchase need no lock and no
//! allocation.
//!
//! `docs/alerts.md` explains the metrics to operators; `observe/` has the rules and the dashboard.

mod by;
mod by_sale;
mod process;
mod text;
mod timing;

use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::order::purchase::Refusal;
pub use by::By;
pub use by_sale::BySale;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
pub use text::{CLASSIC, OPEN_METRICS};
pub use timing::Timing;
use timing::{ANSWERS, CALLS, WORK};

/// A gauge of seconds or of shares.
pub type Float = Gauge<f64, AtomicU64>;

/// Codes of purchases that end before any refusal of the sale, or by a fault.
const OTHER_CODES: [Code; 6] = [
    Code::Overloaded,
    Code::Unavailable,
    Code::Unauthenticated,
    Code::InvalidRequest,
    Code::IdempotencyKeyMissing,
    Code::PayloadTooLarge,
];

/// The outcomes of a purchase: accepted, replayed, or the code of the refusal. The frequent ones come first, because a
/// count searches from the front.
static PURCHASE_OUTCOMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let refusals = Refusal::each();
    let codes = [Code::SoldOut, Code::RateLimited].into_iter();
    let codes = codes.chain(refusals.iter().map(Refusal::code)).chain(OTHER_CODES);
    let mut names = vec!["reserved", "replayed"];
    for name in codes.map(Code::as_str) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
});

/// The outcomes of a recorded payment. Then `refused`, a delivery with a wrong signature or body, and `failed`, a
/// delivery that could not be recorded.
const PAYMENT_OUTCOMES: &[&str] = &[
    "applied",
    "duplicate",
    "refund_due",
    "unmatched",
    "pending",
    "refused",
    "failed",
];
/// The kinds of clients, by path. `page` is a browser that loads a page, without a sign-in.
const CLIENTS: &[&str] = &["shopper", "operator", "provider", "page", "machine"];
const STATUSES: &[&str] = &["2xx", "4xx", "5xx", "3xx"];
const SCRIPTS: &[&str] = &[
    "purchase",
    "permit",
    "resolve",
    "trim",
    "read_shard",
    "waiting_room",
    "fixed_window",
    "sliding_window",
    "token_bucket",
    "solve_challenge",
    "leave_room",
    "transfer_out",
    "transfer_in",
    "transfer_done",
    "set_state",
    "ban",
    "restock",
    "withdraw_done",
    "preload",
    "stop",
    "barrier",
    "fence",
    "begin_restore",
    "forget_buyers",
    "restore_buyers",
    "end_restore",
];
const FAULTS: &[&str] = &["unavailable", "incomplete", "overloaded", "newer", "bug"];
const JOBS: &[&str] = &[
    "beat",
    "expire",
    "release",
    "transfers",
    "rebalance",
    "settle",
    "load",
    "retire",
    "retention",
    "conservation",
    "alerts",
];
const JOB_RESULTS: &[&str] = &["done", "failed", "timed_out", "skipped"];
/// Why the listener refuses or closes a connection.
const LISTENER_REASONS: &[&str] = &["client_full", "instance_full", "handshake", "idle", "slow"];
/// Findings that need an operator's attention.
const ATTENTION: &[&str] = &[
    "dead_letters",
    "failed_releases",
    "refunds_due",
    "unmatched_payments",
    "lost_orders",
    "revoked_orders",
];
const SERVERS: &[&str] = &["redis", "postgres"];
const POOLS: &[&str] = &["api", "operators", "payments", "jobs", "reports", "upkeep", "news"];

macro_rules! metrics {
    ($($field:ident: $type:ty = $make:expr, $name:literal $(in $unit:ident)?, $help:literal;)*) => {
        /// All metrics of this process.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            /// The metrics of calls to the stock.
            pub stock: StockMetrics,
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                let mut metrics = Self {
                    registry: Registry::default(),
                    stock: StockMetrics::default(),
                    $($field: $make,)*
                };
                let mut registry = Registry::default();
                registry.register_collector(Box::new(process::Process::default()));
                let to = registry.sub_registry_with_prefix("flashsale");
                $(metrics!(to, $name, $help, metrics.$field.clone() $(, $unit)?);)*
                metrics.stock.register(to);
                register_build(to);
                metrics.registry = registry;
                metrics
            }
        }
    };
    ($to:ident, $name:literal, $help:literal, $metric:expr) => {
        $to.register($name, $help, $metric)
    };
    ($to:ident, $name:literal, $help:literal, $metric:expr, $unit:ident) => {
        $to.register_with_unit($name, $help, Unit::$unit, $metric)
    };
}

// A field, its type and labels, its name and unit, and its description. The registry adds the unit and `_total` to the
// name.
metrics! {
    // Requests of shoppers, operators and the provider.
    purchases: By<Counter> = counter("outcome", &PURCHASE_OUTCOMES), "purchases",
        "Purchases by outcome; purchases that the gateway refuses are in guard_refusals only";
    purchase_duration: Timing = Timing::new(ANSWERS), "purchase_duration" in Seconds,
        "Time from a purchase's arrival to its answer, for every purchase that is counted by outcome";
    purchases_in_flight: Gauge = Gauge::default(), "purchases_in_flight",
        "Purchases that are being answered";
    http_connections: Gauge = Gauge::default(), "http_connections",
        "Open connections of clients, at all addresses except that of the metrics";
    http_connections_ended: By<Counter> = counter("reason", LISTENER_REASONS), "http_connections_ended",
        "Connections that the listener has refused or closed: too many of one client or in all, a slow handshake, \
         an idle client, or a client that was slow to send or to read";
    requests: By<Counter, 2> = By::new([("client", CLIENTS), ("status", STATUSES)], Counter::default),
        "http_requests",
        "Requests by kind of client and class of the answer's status";
    request_duration: By<Timing> = By::new([("client", CLIENTS)], || Timing::new(ANSWERS)),
        "http_request_duration" in Seconds,
        "Time from a request's head to the head of its answer, by kind of client";
    payments: By<Counter> = counter("outcome", PAYMENT_OUTCOMES), "payments",
        "Deliveries of the payment provider by outcome; refused and failed deliveries are not recorded";
    payment_duration: Timing = Timing::new(ANSWERS), "payment_duration" in Seconds,
        "Time from a payment's arrival to its answer";
    payment_conflicts: Counter = Counter::default(), "payment_conflicts",
        "Payments that came again with another order, amount or currency, of which only the first is recorded";
    guard_refusals: By<Counter> = counter("layer", Layer::NAMES), "guard_refusals",
        "Requests that the guards have refused, by layer";
    guard_shadow_refusals: By<Counter> = counter("layer", Layer::NAMES), "guard_shadow_refusals",
        "Requests that guards in shadow would have refused, by layer";
    gateway_rate: Gauge = Gauge::default(), "gateway_rate",
        "Requests a second that this instance takes; 0 is no limit";
    shortages: By<Counter> = counter("outcome", &["sold_out", "brought", "failed"]), "shortages",
        "Times that a home shard was short of units, by outcome: another shard brought units, no shard had any, or \
         the search failed";
    shortage_duration: Timing = Timing::new(ANSWERS), "shortage_duration" in Seconds,
        "Time to bring units from another shard, or to prove that there are none";
    transfers: Counter = Counter::default(), "transfers",
        "Transfers of free units between shards, for a shortage or ahead of one";
    transferred_units: Counter = Counter::default(), "transferred_units",
        "Units in those transfers";
    // Jobs and shards.
    drain_batch_duration: Timing = Timing::new(WORK), "drain_batch_duration" in Seconds,
        "Time to store a batch of events in the ledger";
    drain_delay: Timing = Timing::new(WORK), "drain_delay" in Seconds,
        "Time from a purchase to the ledger's commit, of the oldest event of each batch";
    events_drained: Counter = Counter::default(), "events_drained",
        "Events that this process has stored in the ledger";
    orders_drained: Counter = Counter::default(), "orders_drained",
        "Orders that this process has stored in the ledger";
    drain_rounds: By<Counter> = counter("result", &["done", "failed"]), "drain_rounds",
        "Rounds of the drain job by result";
    drain_last_round: Float = Gauge::default(), "drain_last_round_timestamp" in Seconds,
        "When a round of the drain job last succeeded, or this process began to run the job, since the epoch; 0 in \
         a process without jobs";
    backlog_events: Gauge = Gauge::default(), "backlog_events",
        "Events of all sales that wait for the ledger; reported by processes that run the jobs";
    backlog_age: Float = Gauge::default(), "backlog_oldest_age" in Seconds,
        "Age of the oldest event that waits for the ledger; reported by processes that run the jobs";
    shards: By<Gauge> = gauge("state", &["selling", "braked", "stopped", "superseded"]), "shards",
        "Shards of all live sales as this process knows them: selling, braked by too large a backlog, stopped \
         (halted until they are reconciled), or superseded by a promoted replica";
    epoch_max: Gauge = Gauge::default(), "shard_epoch_max",
        "The highest epoch of a shard that sells; it rises when shards are rebuilt";
    permit_renewals: By<Counter> = counter("result", &["renewed", "halted", "refused", "damaged", "failed"]),
        "permit_renewals",
        "Renewals of shards' permits by result";
    permit_round_duration: Timing = Timing::new(ANSWERS), "permit_round_duration" in Seconds,
        "Time to renew the permits of all shards";
    reconciled_shards: By<Counter> = counter("result", &["whole", "rebuilt"]), "reconciled_shards",
        "Shards that this process has reconciled with the ledger, by result";
    unverified_shards: By<Counter> = counter("finding", &["lost_commits", "foreign_entry"]), "unverified_shards",
        "Shards that this process has marked unverified, by finding: Postgres lost commits, or a foreign entry is \
         in the stream";
    recovered_orders: Counter = Counter::default(), "recovered_orders",
        "Orders that Postgres had lost and that this process has brought back from the shoppers' rows";
    rebuild_duration: Timing = Timing::new(WORK), "rebuild_duration" in Seconds,
        "Time to rebuild shards of a sale";
    releases: By<Counter> = counter("result", &["applied", "postponed", "refused"]), "releases",
        "Messages of the ledger that were delivered to the stock, by result";
    conservation_difference: BySale = BySale::default(), "conservation_difference_units",
        "Units of a live sale that are in no place, or in two; nothing for a sale that was not counted yet; \
         reported by processes that run the jobs";
    ledger_drift: BySale = BySale::default(), "ledger_drift_units",
        "Held and sold units of a live sale in which Redis and Postgres differ; nothing for a sale that was not \
         counted completely yet; reported by processes that run the jobs";
    conservation_check_age: BySale = BySale::default(), "conservation_check_age" in Seconds,
        "Time since a live sale's units were last counted completely, or since the check began to wait for its \
         first count; reported by processes that run the jobs";
    outbox_messages: Gauge = Gauge::default(), "outbox_messages",
        "Messages to the stock that wait in the ledger; reported by processes that run the jobs";
    outbox_age: Float = Gauge::default(), "outbox_oldest_age" in Seconds,
        "Age of the oldest message that waits in the ledger; reported by processes that run the jobs";
    expiry_lag: Float = Gauge::default(), "expiry_lag" in Seconds,
        "Time since the deadline of the most overdue unpaid order; reported by processes that run the jobs";
    job_runs: By<Counter, 2> = By::new([("task", JOBS), ("result", JOB_RESULTS)], Counter::default), "job_runs",
        "Runs of each job by result";
    job_items: By<Counter> = counter("task", JOBS), "job_items",
        "Items that each job has processed: orders expired, messages delivered, and so on";
    job_duration: By<Timing> = By::new([("task", JOBS)], || Timing::new(WORK)), "job_duration" in Seconds,
        "Time of each job's runs";
    job_last_success: By<Float> = By::new([("task", JOBS)], Gauge::default), "job_last_success_timestamp" in Seconds,
        "When each job last succeeded, or this process began to run it, since the epoch; 0 in a process without \
         jobs";
    attention: By<Gauge> = gauge("kind", ATTENTION), "needs_attention",
        "Findings that need an operator's attention, by kind; reported by processes that run the jobs";
    alert_deliveries: By<Counter> = counter("outcome", &["delivered", "failed"]), "alert_deliveries",
        "Attempts to deliver guard warnings to their webhook, by outcome";
    // This process, Redis and Postgres.
    up: By<Gauge> = gauge("server", SERVERS), "server_up",
        "Whether Redis (on a cluster, each primary) and Postgres answer this process: 1 or 0";
    ping_duration: By<Float> = By::new([("server", SERVERS)], Gauge::default), "server_ping_duration" in Seconds,
        "Time that Redis and Postgres took for their last answer to this process";
    connections: By<Gauge, 2> = By::new([("pool", POOLS), ("state", &["idle", "busy"])], Gauge::default),
        "postgres_connections",
        "Connections to Postgres by pool and state";
    connections_max: By<Gauge> = gauge("pool", POOLS), "postgres_connections_max",
        "Connections that each pool may have";
    redis_memory: Gauge = Gauge::default(), "redis_memory" in Bytes,
        "Memory that the Redis servers with stock use; reported by processes that run the jobs";
    redis_memory_ratio: Float = Gauge::default(), "redis_memory_used_ratio",
        "The share of its maxmemory that the fullest Redis server uses; 0 if none has one";
    redis_servers: Gauge = Gauge::default(), "redis_servers",
        "Redis servers with stock: on a cluster its primaries; reported by processes that run the jobs";
    resident_memory: Gauge = Gauge::default(), "resident_memory" in Bytes,
        "Memory of this process";
}

fn counter(label: &'static str, values: &[&'static str]) -> By<Counter> {
    By::new([(label, values)], Counter::default)
}

fn gauge(label: &'static str, values: &[&'static str]) -> By<Gauge> {
    By::new([(label, values)], Gauge::default)
}

fn register_build(to: &mut Registry) {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let build: By<Gauge, 2> = By::new(
        [("version", &[env!("CARGO_PKG_VERSION")]), ("profile", &[profile])],
        Gauge::default,
    );
    build.of([env!("CARGO_PKG_VERSION"), profile]).set(1);
    to.register("build_info", "Which build this is; always 1", build);
}

/// The metrics of calls to the stock.
#[derive(Debug, Clone)]
pub struct StockMetrics {
    /// Durations of calls by `script`.
    pub scripts: By<Timing>,
    /// Calls without a proper reply, by `fault`.
    pub faults: By<Counter>,
}

impl Default for StockMetrics {
    fn default() -> Self {
        Self {
            scripts: By::new([("script", SCRIPTS)], || Timing::new(CALLS)),
            faults: By::new([("fault", FAULTS)], Counter::default),
        }
    }
}

impl StockMetrics {
    fn register(&self, to: &mut Registry) {
        to.register_with_unit(
            "script_duration",
            "Time from a script's call to its answer",
            Unit::Seconds,
            self.scripts.clone(),
        );
        to.register(
            "redis_faults",
            "Calls to Redis without a proper reply, by kind of fault",
            self.faults.clone(),
        );
    }
}

impl Metrics {
    /// All metrics, as OpenMetrics or in the older text format.
    pub fn encode(&self, as_open_metrics: bool) -> String {
        if let Some(bytes) = process::resident_memory() {
            self.resident_memory.set(bytes);
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _infallible = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        if as_open_metrics { text } else { text::classic(&text) }
    }
}

/// Now, in seconds since the epoch.
pub fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0.0, Duration::as_secs_f64)
}
