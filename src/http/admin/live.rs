//! A sale in live numbers for operators: a sample about once a second, as server-sent events.
//!
//! All viewers of a sale on this instance get the same samples. So a sale costs the same for one viewer or sixty, and
//! nothing without viewers. Every instance counts the answers to purchases and their durations for sales with a viewer
//! on any instance, and reports them to the others ([`crate::flow::watch::pulse`]).

use crate::domain::code::Code;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Alerts, Health, ItemStats, OrderCounts, ShardStats, Stats};
use crate::domain::sale::SaleState;
use crate::domain::time::{self, Millis};
use crate::domain::waiting_room::RoomCount;
use crate::flow;
use crate::flow::watch::pulse::{Beat, Watcher, quantiles};
use crate::flow::watch::stats::StockStats;
use crate::http::admin::session::{LOOK_EVERY, has_ended};
use crate::http::extract::{OpenSession, Operator, SalePath};
use crate::http::problem::Problem;
use crate::http::{Api, OTHERS_WAIT, event_stream};
use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::stream::{StreamExt as _, once, unfold};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A pause follows each sample. It is at least this many times as long as the sample took, so sampling takes at most a
/// quarter of the time. It then lasts until the middle of a second, because instances report their counts at the
/// beginning of one.
const PAUSE_FACTOR: u32 = 3;
/// The longest that a sample may take; and if it fails, the longest for the numbers from Redis alone.
const SAMPLE_MAX: Duration = Duration::from_secs(5);
const STOCK_MAX: Duration = Duration::from_secs(2);
/// How long sampling goes on without viewers, so that a page that is loaded again finds its plots.
const LINGER: Duration = Duration::from_secs(15);
/// How many samples back a new viewer gets the course.
const COURSE_MAX: usize = 300;
/// The most viewers at once on one instance, and the most sales that they watch.
const VIEWERS_MAX: usize = 64;
const SALES_MAX: usize = 16;
/// The most items times shards to send singly. Beyond that, only the sums by item and by shard are sent.
const CELLS_MAX: usize = 4096;
/// How long a client waits after it lost its stream before it connects again, in milliseconds.
const RETRY_MS: u32 = 2000;
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The sales that viewers watch on this instance.
pub struct Live {
    feeds: Mutex<HashMap<SaleId, Arc<Feed>>>,
    places: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            feeds: Mutex::default(),
            places: Arc::new(Semaphore::new(VIEWERS_MAX)),
        }
    }
}

/// One watched sale.
struct Feed {
    /// The last sample, as it is sent.
    latest: watch::Sender<Bytes>,
    course: Mutex<VecDeque<Point>>,
}

/// What the plots show of one sample.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "LivePoint")]
pub(in crate::http) struct Point {
    /// When the sample was taken: Unix milliseconds, by the clock of Redis, so that all instances agree.
    at: Millis,
    /// How many seconds the sample covers.
    seconds: f64,
    /// Orders accepted by all instances in that time; null if that cannot be known.
    accepted: Option<i64>,
    /// Purchases answered in that time, by outcome, on the instances that have reported.
    answers: BTreeMap<String, u64>,
    /// The median duration of those answers in milliseconds; null without answers.
    p50: Option<f64>,
    /// The 95th percentile of the durations in milliseconds; null without answers.
    p95: Option<f64>,
    /// The 99th percentile of the durations in milliseconds; null without answers.
    p99: Option<f64>,
}

/// A sale at one moment.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveSample")]
pub(in crate::http) struct Sample {
    /// What the plots show of this sample.
    point: Point,
    /// The instances that have reported lately, this one first.
    instances: Vec<LiveInstance>,
    /// Why the reports of other instances are missing, if they are.
    others_fault: Option<String>,
    /// Whether Redis and Postgres answer, and how fast.
    health: Health,
    /// The sale's numbers; null if Redis or Postgres did not answer.
    sale: Option<LiveSale>,
    /// The numbers from Redis alone; null if `sale` is there, or Redis did not answer.
    stock: Option<LiveStock>,
    /// Why `sale` is null.
    fault: Option<String>,
}

/// An instance that has reported its answers within the last ten seconds.
#[derive(Serialize, JsonSchema)]
struct LiveInstance {
    /// The instance's name for operators.
    name: String,
    /// Seconds since its last report, if the next one is overdue; else null.
    silent_seconds: Option<f64>,
}

/// A sale's numbers, with its shards in short form.
#[derive(Serialize, JsonSchema)]
struct LiveSale {
    /// The sale's state by the clock of Redis.
    state: SaleState,
    /// When the sale begins.
    #[serde(serialize_with = "time::serialize")]
    starts_at: DateTime<Utc>,
    /// When the sale ends.
    #[serde(serialize_with = "time::serialize")]
    ends_at: DateTime<Utc>,
    /// The clock of Redis.
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
    /// Where the units of each item are.
    items: Vec<ItemStats>,
    /// The shards.
    shards: Vec<LiveShard>,
    /// Events that are not in Postgres yet.
    undrained_events: i64,
    /// Orders in Postgres, by state.
    orders: OrderCounts,
    /// How many shoppers are in the waiting room, if the sale has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_room: Option<RoomCount>,
    /// Findings that need an operator.
    alerts: Alerts,
    /// Requests that each guard has refused.
    stopped: BTreeMap<String, i64>,
    /// How long ago the oldest hold passed its deadline without expiring.
    expiry_lag_seconds: f64,
}

/// A sale's numbers from Redis alone.
#[derive(Serialize, JsonSchema)]
struct LiveStock {
    /// Where the units of each item are.
    items: Vec<ItemStats>,
    /// The shards.
    shards: Vec<LiveShard>,
    /// Events that are not in Postgres yet.
    undrained_events: i64,
}

/// Six counts of units: available, held, sold, sent to other shards in total, received from them in total, and in
/// transit from this shard.
type Units = [i64; 6];

/// One shard.
#[derive(Serialize, JsonSchema)]
struct LiveShard {
    /// The shard's number.
    shard: u16,
    /// The shard's generation.
    epoch: i64,
    /// Events that are not in Postgres yet.
    undrained_events: i64,
    /// Six counts of units over all items: available, held, sold, sent to other shards in total, received from them in
    /// total, and in transit from this shard.
    units: Units,
    /// The same six counts for each SKU; null if the sale has too many items and shards.
    items: Option<BTreeMap<Sku, Units>>,
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
            stopped: stats.stopped,
            expiry_lag_seconds: lag.as_secs_f64(),
        }
    }
}

/// One viewer's stream.
struct Viewer {
    api: Arc<Api>,
    latest: watch::Receiver<Bytes>,
    /// The viewer's session; none for a client with the operators' key. Its check also shows that the stream is open.
    session: Option<OpenSession>,
    look_at: Instant,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `GET /v1/admin/sales/{id}/live`
pub async fn follow(api: Data<Api>, operator: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api
        .for_others(move |app| async move { flow::sale_book::find(&app, id).await })
        .await?;
    if sale.is_none() {
        return Err(Problem::not_found("such sale"));
    }
    let (viewer, course) = watch_sale(&api.into_inner(), id, operator.session).ok_or_else(|| {
        Problem::wait(
            Code::Overloaded,
            &format!("this instance shows {SALES_MAX} sales to {VIEWERS_MAX} viewers at the most"),
            LINGER,
        )
    })?;
    // The course so far, so that plots do not start empty with each connection.
    let first = format!("retry: {RETRY_MS}\n\n{}", event("course", &course));
    let first = once(ready(Ok::<_, Infallible>(Bytes::from(first))));
    Ok(event_stream().streaming(first.chain(unfold(viewer, next))))
}

/// A viewer of a sale, and the course so far. None if the instance has no room for another viewer or sale.
fn watch_sale(api: &Arc<Api>, sale: SaleId, session: Option<OpenSession>) -> Option<(Viewer, Vec<Point>)> {
    let live = &api.live;
    let place = Arc::clone(&live.places).try_acquire_owned().ok()?;
    let mut feeds = locked(&live.feeds);
    let feed = match feeds.get(&sale) {
        Some(feed) => Arc::clone(feed),
        None if feeds.len() >= SALES_MAX => return None,
        None => {
            let feed = Arc::new(Feed {
                latest: watch::Sender::new(Bytes::new()),
                course: Mutex::default(),
            });
            feeds.insert(sale, Arc::clone(&feed));
            // Counting begins now. The first sample only sets the start of the second.
            let watcher = Watcher::begin(&api.app, sale);
            tokio::spawn(sample(Arc::clone(api), sale, watcher, Arc::clone(&feed)));
            feed
        }
    };
    let mut latest = feed.latest.subscribe();
    // The last sample at once, if there is one.
    if !latest.borrow().is_empty() {
        latest.mark_changed();
    }
    let course = locked(&feed.course).iter().cloned().collect();
    let viewer = Viewer {
        api: Arc::clone(api),
        latest,
        session,
        look_at: Instant::now() + LOOK_EVERY,
        has_ended: false,
        _place: place,
    };
    Some((viewer, course))
}

/// The next piece of the stream. None ends it: the session or the instance has ended.
async fn next(mut viewer: Viewer) -> Option<(Result<Bytes, Infallible>, Viewer)> {
    if viewer.has_ended {
        return None;
    }
    let ending = viewer.api.ending.clone();
    let sent = tokio::select! {
        biased;
        () = ending.cancelled() => return None,
        () = sleep_until(viewer.look_at) => {
            viewer.look_at = Instant::now() + LOOK_EVERY;
            viewer.has_ended = viewer.is_signed_out().await;
            if viewer.has_ended { Bytes::from(event("signed_out", &true)) } else { Bytes::from_static(b":\n\n") }
        }
        changed = viewer.latest.changed() => {
            changed.ok()?;
            viewer.latest.borrow_and_update().clone()
        }
    };
    Some((Ok(sent), viewer))
}

impl Viewer {
    async fn is_signed_out(&self) -> bool {
        match &self.session {
            Some(session) => has_ended(&self.api, session).await,
            None => false,
        }
    }
}

/// Takes samples of a sale for as long as it has viewers.
async fn sample(api: Arc<Api>, sale: SaleId, watcher: Watcher, feed: Arc<Feed>) {
    let mut sampler = Sampler {
        accepted: Accepted::default(),
        clock: Clock::default(),
        watcher,
    };
    let mut unwatched_since = None;
    loop {
        let began = Instant::now();
        let taken = Box::pin(sampler.take(&api, sale, &feed)).await;
        // `send` would fail without receivers.
        feed.latest.send_replace(Bytes::from(event("sample", &taken)));
        let took = began.elapsed();
        tokio::select! {
            () = api.ending.cancelled() => break,
            () = sleep(until_half(Utc::now().timestamp_subsec_millis(), (took * PAUSE_FACTOR).max(PAUSE_MIN))) => {}
        }
        let mut feeds = locked(&api.live.feeds);
        if feed.latest.receiver_count() > 0 {
            unwatched_since = None;
        } else if unwatched_since.get_or_insert_with(Instant::now).elapsed() >= LINGER {
            feeds.remove(&sale);
            break;
        }
    }
}

/// The time to the middle of a second, at least `least`.
fn until_half(millis: u32, least: Duration) -> Duration {
    let after = u64::from(millis) + u64::try_from(least.as_millis()).unwrap_or(u64::MAX / 2);
    least + Duration::from_millis((1500 - after % 1000) % 1000)
}

/// What the next sample is compared with.
struct Sampler {
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
        let is_anew = epochs > self.epochs || self.lower >= LOWER_MAX;
        self.epochs = self.epochs.max(epochs);
        if is_anew {
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
    /// The time by the clock of Redis: the time `told` by it, or else this host's time `here`, corrected.
    fn at(&mut self, told: Option<DateTime<Utc>>, here: DateTime<Utc>) -> Millis {
        if let Some(told) = told {
            self.ahead = told - here;
        }
        (here + self.ahead).timestamp_millis()
    }
}

impl Sampler {
    async fn take(&mut self, api: &Api, id: SaleId, feed: &Feed) -> Sample {
        let (health, read, beat) = tokio::join!(
            Box::pin(flow::watch::readiness::health(&api.app)),
            timeout(SAMPLE_MAX.min(OTHERS_WAIT), Box::pin(read(api, id))),
            self.watcher.look(&api.app, &api.instance)
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
                let told = timeout(STOCK_MAX, Box::pin(flow::watch::stats::stock_stats(&api.app, id))).await;
                told.ok().and_then(Result::ok).flatten().map(LiveStock::of)
            }
        };
        let point = self.point(sale.as_ref(), &beat);
        let mut course = locked(&feed.course);
        course.push_back(point.clone());
        if course.len() > COURSE_MAX {
            course.pop_front();
        }
        let instances = beat.told.into_iter().map(|told| LiveInstance {
            silent_seconds: told.is_silent().then_some(told.age_seconds),
            name: told.instance,
        });
        Sample {
            point,
            instances: instances.collect(),
            others_fault: beat.fault.map(|fault| fault.to_string()),
            health,
            sale,
            stock,
            fault,
        }
    }

    fn point(&mut self, sale: Option<&LiveSale>, beat: &Beat) -> Point {
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
        Point {
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

async fn read(api: &Api, id: SaleId) -> Result<Option<LiveSale>, crate::domain::fault::Fault> {
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

fn event(name: &str, data: &impl Serialize) -> String {
    // JSON escapes line breaks, so the data is one line.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
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
    fn a_shard_is_told_by_item_or_where_those_are_many_as_a_whole() {
        let units = [("a", [1, 2, 3, 4, 5, 6]), ("b", [10, 20, 30, 40, 50, 60])];
        for is_whole in [false, true] {
            let live = LiveShard::of(shard(3, &units), is_whole);
            assert_eq!((live.shard, live.units), (3, [11, 22, 33, 44, 55, 66]));
            let items = live.items.map(|items| items.into_values().collect::<Vec<_>>());
            assert_eq!(items, is_whole.then(|| vec![units[0].1, units[1].1]));
        }
    }

    #[test]
    fn after_a_loss_accepted_orders_are_counted_anew() {
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

    #[test]
    fn samples_are_taken_in_the_middle_of_a_second() {
        for (millis, least, wait) in [
            (500, 250, 1000),
            (510, 250, 990),
            (200, 250, 300),
            (300, 250, 1200),
            (800, 900, 1700),
            (1999, 250, 501),
        ] {
            let waits = until_half(millis, Duration::from_millis(least));
            assert_eq!(waits, Duration::from_millis(wait), "{millis} ms, at least {least} ms");
        }
    }
}
