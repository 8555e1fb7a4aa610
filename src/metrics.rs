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
use crate::domain::purchase::Refusal;
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
    "conservation",
    "alerts",
];
const JOB_RESULTS: &[&str] = &["done", "failed", "timed_out", "skipped"];
/// Why the listener refuses or closes a connection.
const LISTENER_REASONS: &[&str] = &["client_full", "instance_full", "handshake", "idle", "slow"];
const SERVERS: &[&str] = &["redis", "postgres"];
const POOLS: &[&str] = &["api", "operators", "payments", "jobs", "reports", "upkeep", "news"];

/// All metrics of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Purchases by `outcome`.
    pub purchases: By<Counter>,
    pub purchase_duration: Timing,
    pub purchases_in_flight: Gauge,
    /// Open connections of clients.
    pub http_connections: Gauge,
    /// Connections that the listener has refused or closed, by `reason`.
    pub http_connections_ended: By<Counter>,
    /// Requests by `client` and `status`.
    pub requests: By<Counter, 2>,
    /// Durations of requests by `client`.
    pub request_duration: By<Timing>,
    pub stock: StockMetrics,
    /// Deliveries of the payment provider by `outcome`.
    pub payments: By<Counter>,
    pub payment_duration: Timing,
    pub drain_batch_duration: Timing,
    /// The age of the oldest event of each batch when the ledger has committed it.
    pub drain_delay: Timing,
    pub events_drained: Counter,
    pub orders_drained: Counter,
    /// Rounds of the drain by `result`.
    pub drain_rounds: By<Counter>,
    /// When a round of the drain last succeeded, in seconds since the epoch.
    pub drain_last_round: Float,
    /// Events that wait for the drain.
    pub backlog_events: Gauge,
    /// The age of the oldest event that waits for the drain.
    pub backlog_age: Float,
    /// Shortages by `outcome`.
    pub shortages: By<Counter>,
    pub shortage_duration: Timing,
    /// Transfers that left a shard.
    pub transfers: Counter,
    pub transferred_units: Counter,
    /// Shards by `state`.
    pub shards: By<Gauge>,
    /// The highest epoch of a shard that sells.
    pub epoch_max: Gauge,
    /// Renewals of permits by `result`.
    pub permit_renewals: By<Counter>,
    /// Durations of rounds that renew all permits.
    pub permit_round_duration: Timing,
    /// Reconciled shards by `result`.
    pub reconciled_shards: By<Counter>,
    /// Shards that became unverified by what their streams show, by `finding`.
    pub unverified_shards: By<Counter>,
    /// Orders that the ledger had lost and got back from the shoppers' rows.
    pub recovered_orders: Counter,
    pub rebuild_duration: Timing,
    /// Messages to the stock by `result`.
    pub releases: By<Counter>,
    /// Units of each sale that are in no place, or in two.
    pub conservation_difference: BySale,
    /// Held and sold units of each sale in which Redis and Postgres differ.
    pub ledger_drift: BySale,
    /// The time since each sale's last complete conservation check, in seconds.
    pub conservation_check_age: BySale,
    pub outbox_messages: Gauge,
    /// The age of the oldest message in the outbox.
    pub outbox_age: Float,
    /// How far the most overdue unpaid order is past its deadline.
    pub expiry_lag: Float,
    /// Runs of each `task` by `result`. A task is a job; the label `job` is Prometheus's own.
    pub job_runs: By<Counter, 2>,
    /// Items that each `task` has processed.
    pub job_items: By<Counter>,
    /// Durations of runs by `task`.
    pub job_duration: By<Timing>,
    /// When each `task` last succeeded, in seconds since the epoch.
    pub job_last_success: By<Float>,
    /// Findings that need an operator's attention, by `kind`.
    pub attention: By<Gauge>,
    /// Attempts to deliver guard warnings, by `outcome`.
    pub alert_deliveries: By<Counter>,
    /// Requests that the guards have refused, by `layer`.
    pub guard_refusals: By<Counter>,
    /// Requests a second that this instance takes; 0 is no limit.
    pub gateway_rate: Gauge,
    /// Whether each `server` answers: 1 or 0.
    pub up: By<Gauge>,
    /// The duration of each `server`'s last answer.
    pub ping_duration: By<Float>,
    /// Connections to Postgres by `pool` and `state`.
    pub connections: By<Gauge, 2>,
    /// The most connections of each `pool`.
    pub connections_max: By<Gauge>,
    /// Memory that the Redis servers with stock use, in bytes.
    pub redis_memory: Gauge,
    /// The share of its `maxmemory` that the fullest Redis server uses.
    pub redis_memory_ratio: Float,
    /// How many Redis servers have stock.
    pub redis_servers: Gauge,
    /// The resident memory of this process, in bytes, read at each scrape.
    resident_memory: Gauge,
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

impl Default for Metrics {
    fn default() -> Self {
        let counter = |label, values| By::new([(label, values)], Counter::default);
        let metrics = Self {
            registry: Registry::default(),
            purchases: counter("outcome", &PURCHASE_OUTCOMES),
            purchase_duration: Timing::new(ANSWERS),
            purchases_in_flight: Gauge::default(),
            http_connections: Gauge::default(),
            http_connections_ended: counter("reason", LISTENER_REASONS),
            requests: By::new([("client", CLIENTS), ("status", STATUSES)], Counter::default),
            request_duration: By::new([("client", CLIENTS)], || Timing::new(ANSWERS)),
            stock: StockMetrics::default(),
            payments: counter("outcome", PAYMENT_OUTCOMES),
            payment_duration: Timing::new(ANSWERS),
            drain_batch_duration: Timing::new(WORK),
            drain_delay: Timing::new(WORK),
            events_drained: Counter::default(),
            orders_drained: Counter::default(),
            drain_rounds: counter("result", &["done", "failed"]),
            drain_last_round: Gauge::default(),
            backlog_events: Gauge::default(),
            backlog_age: Gauge::default(),
            shortages: counter("outcome", &["sold_out", "brought", "failed"]),
            shortage_duration: Timing::new(ANSWERS),
            transfers: Counter::default(),
            transferred_units: Counter::default(),
            shards: By::new(
                [("state", &["selling", "braked", "stopped", "superseded"])],
                Gauge::default,
            ),
            epoch_max: Gauge::default(),
            permit_renewals: counter("result", &["renewed", "halted", "refused", "damaged", "failed"]),
            permit_round_duration: Timing::new(ANSWERS),
            reconciled_shards: counter("result", &["whole", "rebuilt"]),
            unverified_shards: counter("finding", &["lost_commits", "foreign_entry"]),
            recovered_orders: Counter::default(),
            rebuild_duration: Timing::new(WORK),
            releases: counter("result", &["applied", "postponed", "refused"]),
            conservation_difference: BySale::default(),
            ledger_drift: BySale::default(),
            conservation_check_age: BySale::default(),
            outbox_messages: Gauge::default(),
            outbox_age: Gauge::default(),
            expiry_lag: Gauge::default(),
            job_runs: By::new([("task", JOBS), ("result", JOB_RESULTS)], Counter::default),
            job_items: counter("task", JOBS),
            job_duration: By::new([("task", JOBS)], || Timing::new(WORK)),
            job_last_success: By::new([("task", JOBS)], Gauge::default),
            attention: By::new(
                [(
                    "kind",
                    &[
                        "dead_letters",
                        "failed_releases",
                        "refunds_due",
                        "unmatched_payments",
                        "lost_orders",
                        "revoked_orders",
                    ],
                )],
                Gauge::default,
            ),
            alert_deliveries: counter("outcome", &["delivered", "failed"]),
            guard_refusals: counter("layer", Layer::NAMES),
            gateway_rate: Gauge::default(),
            up: By::new([("server", SERVERS)], Gauge::default),
            ping_duration: By::new([("server", SERVERS)], Gauge::default),
            connections: By::new([("pool", POOLS), ("state", &["idle", "busy"])], Gauge::default),
            connections_max: By::new([("pool", POOLS)], Gauge::default),
            redis_memory: Gauge::default(),
            redis_memory_ratio: Gauge::default(),
            redis_servers: Gauge::default(),
            resident_memory: Gauge::default(),
        };
        metrics.registered()
    }
}

impl Metrics {
    /// Registers all metrics by name. The registry adds the units and `_total` to the names.
    fn registered(mut self) -> Self {
        self.registry.register_collector(Box::new(process::Process::default()));
        let mut registry = std::mem::take(&mut self.registry);
        self.register_sales(registry.sub_registry_with_prefix("flashsale"));
        self.register_work(registry.sub_registry_with_prefix("flashsale"));
        self.register_servers(registry.sub_registry_with_prefix("flashsale"));
        self.registry = registry;
        self
    }

    /// The metrics of requests by shoppers, operators and the provider.
    fn register_sales(&self, to: &mut Registry) {
        to.register(
            "purchases",
            "Purchases by outcome; purchases that the gateway refuses are in guard_refusals only",
            self.purchases.clone(),
        );
        to.register_with_unit(
            "purchase_duration",
            "Time from a purchase's arrival to its answer, for every purchase that is counted by outcome",
            Unit::Seconds,
            self.purchase_duration.clone(),
        );
        to.register(
            "purchases_in_flight",
            "Purchases that are being answered",
            self.purchases_in_flight.clone(),
        );
        to.register(
            "http_connections",
            "Open connections of clients, at all addresses except that of the metrics",
            self.http_connections.clone(),
        );
        to.register(
            "http_connections_ended",
            "Connections that the listener has refused or closed: too many of one client or in all, a slow handshake, \
             an idle client, or a client that was slow to send or to read",
            self.http_connections_ended.clone(),
        );
        to.register(
            "http_requests",
            "Requests by kind of client and class of the answer's status",
            self.requests.clone(),
        );
        to.register_with_unit(
            "http_request_duration",
            "Time from a request's head to the head of its answer, by kind of client",
            Unit::Seconds,
            self.request_duration.clone(),
        );
        to.register(
            "payments",
            "Deliveries of the payment provider by outcome; refused and failed deliveries are not recorded",
            self.payments.clone(),
        );
        to.register_with_unit(
            "payment_duration",
            "Time from a payment's arrival to its answer",
            Unit::Seconds,
            self.payment_duration.clone(),
        );
        to.register(
            "guard_refusals",
            "Requests that the guards have refused, by layer",
            self.guard_refusals.clone(),
        );
        to.register(
            "gateway_rate",
            "Requests a second that this instance takes; 0 is no limit",
            self.gateway_rate.clone(),
        );
        to.register(
            "shortages",
            "Times that a home shard was short of units, by outcome: another shard brought units, no shard had any, or \
             the search failed",
            self.shortages.clone(),
        );
        to.register_with_unit(
            "shortage_duration",
            "Time to bring units from another shard, or to prove that there are none",
            Unit::Seconds,
            self.shortage_duration.clone(),
        );
        to.register(
            "transfers",
            "Transfers of free units between shards, for a shortage or ahead of one",
            self.transfers.clone(),
        );
        to.register(
            "transferred_units",
            "Units in those transfers",
            self.transferred_units.clone(),
        );
    }

    /// The metrics of the jobs and of the shards.
    fn register_work(&self, to: &mut Registry) {
        to.register_with_unit(
            "drain_batch_duration",
            "Time to store a batch of events in the ledger",
            Unit::Seconds,
            self.drain_batch_duration.clone(),
        );
        to.register_with_unit(
            "drain_delay",
            "Time from a purchase to the ledger's commit, of the oldest event of each batch",
            Unit::Seconds,
            self.drain_delay.clone(),
        );
        to.register(
            "events_drained",
            "Events that this process has stored in the ledger",
            self.events_drained.clone(),
        );
        to.register(
            "orders_drained",
            "Orders that this process has stored in the ledger",
            self.orders_drained.clone(),
        );
        to.register(
            "drain_rounds",
            "Rounds of the drain job by result",
            self.drain_rounds.clone(),
        );
        to.register_with_unit(
            "drain_last_round_timestamp",
            "When a round of the drain job last succeeded, or this process began to run the job, since the epoch; 0 in \
             a process without jobs",
            Unit::Seconds,
            self.drain_last_round.clone(),
        );
        to.register(
            "backlog_events",
            "Events of all sales that wait for the ledger; reported by processes that run the jobs",
            self.backlog_events.clone(),
        );
        to.register_with_unit(
            "backlog_oldest_age",
            "Age of the oldest event that waits for the ledger; reported by processes that run the jobs",
            Unit::Seconds,
            self.backlog_age.clone(),
        );
        to.register(
            "shards",
            "Shards of all live sales as this process knows them: selling, braked by too large a backlog, stopped \
             (halted until they are reconciled), or superseded by a promoted replica",
            self.shards.clone(),
        );
        to.register(
            "shard_epoch_max",
            "The highest epoch of a shard that sells; it rises when shards are rebuilt",
            self.epoch_max.clone(),
        );
        to.register(
            "permit_renewals",
            "Renewals of shards' permits by result",
            self.permit_renewals.clone(),
        );
        to.register_with_unit(
            "permit_round_duration",
            "Time to renew the permits of all shards",
            Unit::Seconds,
            self.permit_round_duration.clone(),
        );
        to.register(
            "reconciled_shards",
            "Shards that this process has reconciled with the ledger, by result",
            self.reconciled_shards.clone(),
        );
        to.register(
            "unverified_shards",
            "Shards that this process has marked unverified, by finding: Postgres lost commits, or a foreign entry is \
             in the stream",
            self.unverified_shards.clone(),
        );
        to.register(
            "recovered_orders",
            "Orders that Postgres had lost and that this process has brought back from the shoppers' rows",
            self.recovered_orders.clone(),
        );
        to.register_with_unit(
            "rebuild_duration",
            "Time to rebuild shards of a sale",
            Unit::Seconds,
            self.rebuild_duration.clone(),
        );
        to.register(
            "releases",
            "Messages of the ledger that were delivered to the stock, by result",
            self.releases.clone(),
        );
        to.register(
            "conservation_difference_units",
            "Units of a live sale that are in no place, or in two; nothing for a sale that was not counted yet; reported by \
             processes that run the jobs",
            self.conservation_difference.clone(),
        );
        to.register(
            "ledger_drift_units",
            "Held and sold units of a live sale in which Redis and Postgres differ; nothing for a sale that was not counted \
             completely yet; reported by processes that run the jobs",
            self.ledger_drift.clone(),
        );
        to.register_with_unit(
            "conservation_check_age",
            "Time since a live sale's units were last counted completely, or since the check began to wait for its first \
             count; reported by processes that run the jobs",
            Unit::Seconds,
            self.conservation_check_age.clone(),
        );
        to.register(
            "outbox_messages",
            "Messages to the stock that wait in the ledger; reported by processes that run the jobs",
            self.outbox_messages.clone(),
        );
        to.register_with_unit(
            "outbox_oldest_age",
            "Age of the oldest message that waits in the ledger; reported by processes that run the jobs",
            Unit::Seconds,
            self.outbox_age.clone(),
        );
        to.register_with_unit(
            "expiry_lag",
            "Time since the deadline of the most overdue unpaid order; reported by processes that run the jobs",
            Unit::Seconds,
            self.expiry_lag.clone(),
        );
        to.register("job_runs", "Runs of each job by result", self.job_runs.clone());
        to.register(
            "job_items",
            "Items that each job has processed: orders expired, messages delivered, and so on",
            self.job_items.clone(),
        );
        to.register_with_unit(
            "job_duration",
            "Time of each job's runs",
            Unit::Seconds,
            self.job_duration.clone(),
        );
        to.register_with_unit(
            "job_last_success_timestamp",
            "When each job last succeeded, or this process began to run it, since the epoch; 0 in a process without \
             jobs",
            Unit::Seconds,
            self.job_last_success.clone(),
        );
        to.register(
            "needs_attention",
            "Findings that need an operator's attention, by kind; reported by processes that run the jobs",
            self.attention.clone(),
        );
        to.register(
            "alert_deliveries",
            "Attempts to deliver guard warnings to their webhook, by outcome",
            self.alert_deliveries.clone(),
        );
    }

    /// The metrics of this process, Redis and Postgres.
    fn register_servers(&self, to: &mut Registry) {
        to.register_with_unit(
            "script_duration",
            "Time from a script's call to its answer",
            Unit::Seconds,
            self.stock.scripts.clone(),
        );
        to.register(
            "redis_faults",
            "Calls to Redis without a proper reply, by kind of fault",
            self.stock.faults.clone(),
        );
        to.register(
            "server_up",
            "Whether Redis (on a cluster, each primary) and Postgres answer this process: 1 or 0",
            self.up.clone(),
        );
        to.register_with_unit(
            "server_ping_duration",
            "Time that Redis and Postgres took for their last answer to this process",
            Unit::Seconds,
            self.ping_duration.clone(),
        );
        to.register(
            "postgres_connections",
            "Connections to Postgres by pool and state",
            self.connections.clone(),
        );
        to.register(
            "postgres_connections_max",
            "Connections that each pool may have",
            self.connections_max.clone(),
        );
        to.register_with_unit(
            "redis_memory",
            "Memory that the Redis servers with stock use; reported by processes that run the jobs",
            Unit::Bytes,
            self.redis_memory.clone(),
        );
        to.register(
            "redis_memory_used_ratio",
            "The share of its maxmemory that the fullest Redis server uses; 0 if none has one",
            self.redis_memory_ratio.clone(),
        );
        to.register(
            "redis_servers",
            "Redis servers with stock: on a cluster its primaries; reported by processes that run the jobs",
            self.redis_servers.clone(),
        );
        to.register_with_unit(
            "resident_memory",
            "Memory of this process",
            Unit::Bytes,
            self.resident_memory.clone(),
        );
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let build: By<Gauge, 2> = By::new(
            [("version", &[env!("CARGO_PKG_VERSION")]), ("profile", &[profile])],
            Gauge::default,
        );
        build.of([env!("CARGO_PKG_VERSION"), profile]).set(1);
        to.register("build_info", "Which build this is; always 1", build);
    }

    /// All metrics, as OpenMetrics or in the older text format.
    #[must_use]
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
#[must_use]
pub fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0.0, Duration::as_secs_f64)
}
