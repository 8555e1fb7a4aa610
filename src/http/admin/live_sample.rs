//! A sample of a sale for operators: its numbers, and the answers to its purchases since the sample before.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{Alerts, Health, ItemStats, OrderCounts, ShardStats, Stats};
use crate::domain::sale::SaleState;
use crate::domain::shopper::waiting_room::RoomCount;
use crate::domain::time::{self, Millis};
use crate::flow;
use crate::flow::watch::pulse::{Beat, Watcher, quantiles};
use crate::flow::watch::stats::StockStats;
use crate::http::admin::health;
use crate::http::{Api, OPERATOR_WAIT};
use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// The longest that a sample may take; and if it fails, the longest for the numbers from Redis alone.
const SAMPLE_MAX: Duration = Duration::from_secs(5);
const STOCK_MAX: Duration = Duration::from_secs(2);
/// The most items times shards to send singly. Beyond that, only the sums by item and by shard are sent.
const CELLS_MAX: usize = 4096;

/// What the plots show of one sample.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct LivePoint {
    /// When the sample was taken: Unix milliseconds, by the clock of Redis, so that all instances agree.
    pub at: Millis,
    /// How many seconds the sample covers.
    pub seconds: f64,
    /// Orders accepted by all instances in that time; null if that cannot be known.
    pub accepted: Option<i64>,
    /// Purchases answered in that time, by outcome, on the instances that have reported.
    pub answers: BTreeMap<String, u64>,
    /// The median duration of those answers in milliseconds; null without answers.
    pub p50: Option<f64>,
    /// The 95th percentile of the durations in milliseconds; null without answers.
    pub p95: Option<f64>,
    /// The 99th percentile of the durations in milliseconds; null without answers.
    pub p99: Option<f64>,
}

/// A sale at one moment.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveSample {
    /// What the plots show of this sample.
    pub point: LivePoint,
    /// The instances that have reported lately, this one first.
    pub instances: Vec<LiveInstance>,
    /// Why the reports of other instances are missing, if they are.
    pub others_fault: Option<String>,
    /// Whether Redis and Postgres answer, and how fast.
    pub health: Health,
    /// The sale's numbers; null if Redis or Postgres did not answer.
    pub sale: Option<LiveSale>,
    /// The numbers from Redis alone; null if `sale` is there, or Redis did not answer.
    pub stock: Option<LiveStock>,
    /// Why `sale` is null.
    pub fault: Option<String>,
}

/// An instance that has reported its answers within the last ten seconds.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveInstance {
    /// The instance's name for operators.
    pub name: String,
    /// Seconds since its last report, if the next one is overdue; else null.
    pub silent_seconds: Option<f64>,
}

/// A sale's numbers, with its shards in short form.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveSale {
    /// The sale's state by the clock of Redis.
    pub state: SaleState,
    /// When the sale begins.
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    /// When the sale ends.
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    /// The clock of Redis.
    #[serde(serialize_with = "time::serialize")]
    pub server_time: DateTime<Utc>,
    /// Where the units of each item are.
    pub items: Vec<ItemStats>,
    /// The shards.
    pub shards: Vec<LiveShard>,
    /// Events that are not in Postgres yet.
    pub undrained_events: i64,
    /// Orders in Postgres, by state.
    pub orders: OrderCounts,
    /// How many shoppers are in the waiting room, if the sale has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_room: Option<RoomCount>,
    /// Findings that need an operator.
    pub alerts: Alerts,
    /// Requests that each guard has refused.
    #[serde(rename = "stopped")]
    pub refusal_counts: BTreeMap<String, i64>,
    /// Requests that each guard in shadow would have refused.
    #[serde(default)]
    pub would_stop: BTreeMap<String, i64>,
    /// How long ago the oldest hold passed its deadline without expiring.
    pub expiry_lag_seconds: f64,
}

/// A sale's numbers from Redis alone.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveStock {
    /// Where the units of each item are.
    pub items: Vec<ItemStats>,
    /// The shards.
    pub shards: Vec<LiveShard>,
    /// Events that are not in Postgres yet.
    pub undrained_events: i64,
}

/// Six counts of units: available, held, sold, sent to other shards in total, received from them in total, and in
/// transit from this shard.
type Units = [i64; 6];

/// One shard.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveShard {
    /// The shard's number.
    pub shard: u16,
    /// The shard's generation.
    pub epoch: i64,
    /// Events that are not in Postgres yet.
    pub undrained_events: i64,
    /// Six counts of units over all items: available, held, sold, sent to other shards in total, received from them in
    /// total, and in transit from this shard.
    pub units: Units,
    /// The same six counts for each SKU; null if the sale has too many items and shards.
    pub items: Option<BTreeMap<Sku, Units>>,
}

impl LiveShard {
    fn of(shard: ShardStats, is_whole: bool) -> Self {
        let units = |sku: &Sku| -> Units {
            [
                &shard.available,
                &shard.held,
                &shard.sold,
                &shard.sent,
                &shard.received,
                &shard.in_transit,
            ]
            .map(|counts| counts.get(sku).copied().unwrap_or_default())
        };
        let sum = shard.available.keys().map(units).fold([0; 6], |mut sum: Units, units| {
            for (sum, units) in sum.iter_mut().zip(units) {
                *sum += units;
            }
            sum
        });
        let items = is_whole.then(|| shard.available.keys().map(|sku| (sku.clone(), units(sku))).collect());
        Self {
            shard: shard.shard,
            epoch: shard.epoch,
            undrained_events: shard.undrained_events,
            units: sum,
            items,
        }
    }
}

/// The shards of a sale with so many items.
fn shards_of(shards: Vec<ShardStats>, items: usize) -> Vec<LiveShard> {
    let is_whole = items * shards.len() <= CELLS_MAX;
    shards.into_iter().map(|shard| LiveShard::of(shard, is_whole)).collect()
}

impl LiveStock {
    fn of(stats: StockStats) -> Self {
        Self {
            shards: shards_of(stats.shards, stats.items.len()),
            items: stats.items,
            undrained_events: stats.undrained_events,
        }
    }
}

impl LiveSale {
    fn of(stats: Stats, times: (DateTime<Utc>, DateTime<Utc>), lag: Duration) -> Self {
        Self {
            state: stats.state,
            starts_at: times.0,
            ends_at: times.1,
            server_time: stats.server_time,
            shards: shards_of(stats.shards, stats.items.len()),
            items: stats.items,
            undrained_events: stats.undrained_events,
            orders: stats.orders,
            waiting_room: stats.waiting_room,
            alerts: stats.alerts,
            refusal_counts: stats.refusal_counts,
            would_stop: stats.would_stop,
            expiry_lag_seconds: lag.as_secs_f64(),
        }
    }
}

/// What the next sample is compared with.
pub struct Sampler {
    accepted: Accepted,
    clock: Clock,
    watcher: Watcher,
}

/// Counts the accepted orders, to find the new ones.
#[derive(Default)]
struct Accepted {
    /// The highest count so far. Redis and Postgres are read one after the other. An order that moves in between is
    /// counted twice, so the next count may be lower.
    highest: Option<i64>,
    /// The epochs of all shards, added up.
    epochs: i64,
    /// How many counts in a row have been lower.
    lower: u32,
}

/// After so many lower counts in a row, orders were lost rather than counted twice.
const LOWER_MAX: u32 = 3;

impl Accepted {
    /// How many orders are new. None without an earlier count, or if orders were lost since.
    fn since_last(&mut self, count: i64, epochs: i64) -> Option<i64> {
        let before = self.highest;
        self.lower = if before.is_some_and(|before| count < before) {
            self.lower + 1
        } else {
            0
        };
        let starts_over = epochs > self.epochs || self.lower >= LOWER_MAX;
        self.epochs = self.epochs.max(epochs);
        if starts_over {
            (self.highest, self.lower) = (Some(count), 0);
            return None;
        }
        self.highest = Some(before.unwrap_or(count).max(count));
        before.map(|before| (count - before).max(0))
    }
}

/// The clock of Redis, as last read.
#[derive(Default)]
struct Clock {
    /// How far it was ahead of this host's clock when last read.
    ahead: TimeDelta,
}

impl Clock {
    /// The time by the clock of Redis: the time `read` from it, or else this host's time `here`, corrected.
    fn at(&mut self, read: Option<DateTime<Utc>>, here: DateTime<Utc>) -> Millis {
        if let Some(read) = read {
            self.ahead = read - here;
        }
        (here + self.ahead).timestamp_millis()
    }
}

impl Sampler {
    /// The first sample has none before it to be compared with.
    pub fn new(watcher: Watcher) -> Self {
        Self {
            accepted: Accepted::default(),
            clock: Clock::default(),
            watcher,
        }
    }

    pub async fn take(&mut self, api: &Api, id: SaleId) -> LiveSample {
        let (health, read, beat) = tokio::join!(
            Box::pin(flow::watch::readiness::health(&api.app, None)),
            timeout(SAMPLE_MAX.min(OPERATOR_WAIT), Box::pin(read(api, id))),
            self.watcher.read(&api.app, &api.instance)
        );
        let (sale, fault) = match read {
            Ok(Ok(Some(sale))) => (Some(sale), None),
            Ok(Ok(None)) => (None, Some("there is no such sale".to_owned())),
            Ok(Err(fault)) => (None, Some(fault.to_string())),
            Err(_) => (None, Some("no answer in time".to_owned())),
        };
        // While Postgres is away, operators want to see what waits for it in Redis.
        let stock = match &sale {
            Some(_) => None,
            None => {
                let counted = timeout(STOCK_MAX, Box::pin(flow::watch::stats::stock_stats(&api.app, id))).await;
                counted.ok().and_then(Result::ok).flatten().map(LiveStock::of)
            }
        };
        let point = self.point(sale.as_ref(), &beat);
        let instances = beat.reports.into_iter().map(|report| LiveInstance {
            silent_seconds: report.is_silent().then_some(report.age_seconds),
            name: report.instance,
        });
        LiveSample {
            point,
            instances: instances.collect(),
            others_fault: beat.fault.map(|fault| fault.to_string()),
            health,
            sale,
            stock,
            fault,
        }
    }

    fn point(&mut self, sale: Option<&LiveSale>, beat: &Beat) -> LivePoint {
        let accepted = sale.and_then(|sale| {
            let OrderCounts {
                reserved,
                paid,
                cancelled,
                expired,
                revoked,
            } = sale.orders;
            let now = reserved + paid + cancelled + expired + revoked + sale.undrained_events;
            self.accepted
                .since_last(now, sale.shards.iter().map(|shard| shard.epoch).sum())
        });
        let [p50, p95, p99] = quantiles(&beat.counts, [0.5, 0.95, 0.99]);
        LivePoint {
            at: self.clock.at(sale.map(|sale| sale.server_time), Utc::now()),
            seconds: beat.lasted.as_secs_f64(),
            accepted,
            answers: beat.counts.answers.clone(),
            p50,
            p95,
            p99,
        }
    }
}

async fn read(api: &Api, id: SaleId) -> Result<Option<LiveSale>, Fault> {
    let app = &api.operators;
    let Some(stats) = flow::watch::stats::stats(app, id).await? else {
        return Ok(None);
    };
    let Some(sale) = flow::sale_book::find(app, id).await? else {
        return Ok(None);
    };
    let lag = flow::settle::expire::lag(app, Some(id), stats.server_time).await?;
    Ok(Some(LiveSale::of(stats, (sale.starts_at, sale.ends_at), lag)))
}

/// A sample in examples.
pub fn example() -> Value {
    json!({
        "point": {"at": 1_795_338_012_500_i64, "seconds": 1.0, "accepted": 30, "answers": {"reserved": 30, "sold_out": 2},
            "p50": 1.4, "p95": 3.1, "p99": 6.2},
        "instances": [{"name": "a", "silent_seconds": null}], "others_fault": null,
        "health": health::example(),
        "sale": {"state": "open", "starts_at": "2026-11-22T09:00:00.000Z", "ends_at": "2026-11-22T10:00:00.000Z",
            "server_time": "2026-11-22T09:00:12.000Z",
            "items": [{"sku": "TSHIRT-M", "total": 100, "available": 69, "held": 30, "sold": 1, "in_transit": 0}],
            "shards": [{"shard": 0, "epoch": 1, "undrained_events": 0, "units": [69, 30, 1, 0, 0, 0],
                "items": {"TSHIRT-M": [69, 30, 1, 0, 0, 0]}}],
            "undrained_events": 0, "orders": {"reserved": 30, "paid": 1, "cancelled": 2, "expired": 0, "revoked": 0},
            "alerts": {"dead_letters": 0, "failed_releases": 0, "refunds_due": 0, "unmatched_payments": 0, "lost_orders": 0},
            "stopped": {"window": 12}, "would_stop": {"account": 3}, "expiry_lag_seconds": 0.0},
        "stock": null, "fault": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(shard: u16, units: &[(&str, Units)]) -> ShardStats {
        let of = |at: usize| {
            units
                .iter()
                .map(|(sku, units)| (sku.parse().unwrap(), units[at]))
                .collect()
        };
        ShardStats {
            shard,
            epoch: 1,
            available: of(0),
            held: of(1),
            sold: of(2),
            sent: of(3),
            received: of(4),
            in_transit: of(5),
            undrained_events: 0,
        }
    }

    #[test]
    fn a_shard_is_sent_by_item_or_where_those_are_many_as_a_whole() {
        let units = [("a", [1, 2, 3, 4, 5, 6]), ("b", [10, 20, 30, 40, 50, 60])];
        for is_whole in [false, true] {
            let live = LiveShard::of(shard(3, &units), is_whole);
            assert_eq!((live.shard, live.units), (3, [11, 22, 33, 44, 55, 66]));
            let items = live.items.map(|items| items.into_values().collect::<Vec<_>>());
            assert_eq!(items, is_whole.then(|| vec![units[0].1, units[1].1]));
        }
    }

    #[test]
    fn after_a_loss_accepted_orders_are_counted_from_zero() {
        let counted = |counts: &[(i64, i64)]| {
            let mut accepted = Accepted::default();
            let each = counts
                .iter()
                .map(|(count, epochs)| accepted.since_last(*count, *epochs));
            each.collect::<Vec<_>>()
        };
        // An order that moves from Redis to Postgres is counted twice, but is still one order.
        let usual = counted(&[(100, 4), (111, 4), (110, 4), (115, 4)]);
        assert_eq!(usual[1..], [Some(11), Some(0), Some(4)]);
        // A shard was rebuilt without 50 of the orders.
        let rebuilt = counted(&[(100, 4), (110, 4), (60, 5), (70, 5)]);
        assert_eq!(rebuilt[1..], [Some(10), None, Some(10)]);
        // Orders are gone, but no epoch has changed yet.
        let lost = counted(&[(100, 4), (60, 4), (62, 4), (64, 4), (70, 4), (71, 5), (80, 5)]);
        assert_eq!(lost[1..], [Some(0), Some(0), None, Some(6), None, Some(9)]);
    }

    #[test]
    fn samples_of_all_hosts_go_by_one_clock() {
        let noon = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let (slow, fast) = (noon - TimeDelta::minutes(10), noon + TimeDelta::minutes(3));
        let second = TimeDelta::seconds(1);
        let (mut here, mut there) = (Clock::default(), Clock::default());
        assert_eq!(here.at(Some(noon), slow), noon.timestamp_millis());
        assert_eq!(there.at(Some(noon + second), fast), (noon + second).timestamp_millis());
        // The clocks also agree while Redis is not heard.
        let later = noon + second + second;
        assert_eq!(here.at(None, slow + second + second), later.timestamp_millis());
    }
}
