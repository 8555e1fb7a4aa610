//! A sale as operators watch it: a sample about once a second, as server-sent events.
//!
//! Everybody who watches a sale on this instance is given the same samples, so a sale costs the same whether one looks or
//! sixty do, and nothing when nobody does. How purchases are answered and how long that takes is counted by each instance
//! for sales that somebody watches on any, and told to the others ([`crate::flow::pulse`]).

use super::extract::{OpenSession, Operator, SalePath};
use super::problem::{Code, Problem};
use super::session::{LOOK_EVERY, has_ended};
use super::{Api, OTHERS_WAIT, event_stream};
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Alerts, Health, ItemStats, OrderCounts, ShardStats, Stats};
use crate::domain::sale::SaleState;
use crate::domain::time::{self, Millis};
use crate::domain::waiting_room::RoomCount;
use crate::flow;
use crate::flow::pulse::{Beat, Watcher, quantiles};
use crate::flow::stats::StockStats;
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

/// After a sample comes a pause that is so much longer than it, so that taking them is at most a quarter of the time; and
/// then as long as it takes to the middle of a second, because instances tell what they have counted at its beginning.
const PAUSE_FACTOR: u32 = 3;
/// How long one may take, and where it does not come to anything, what Redis alone tells.
const SAMPLE_MAX: Duration = Duration::from_secs(5);
const STOCK_MAX: Duration = Duration::from_secs(2);
/// For so long a sale is sampled that nobody watches any more: whoever loads the page again finds its plots.
const LINGER: Duration = Duration::from_secs(15);
/// Samples of which whoever comes is told the course.
const COURSE_MAX: usize = 300;
/// Who may watch at once on one instance, and how many sales between them.
const VIEWERS_MAX: usize = 64;
const SALES_MAX: usize = 16;
/// Items times shards of which each is told by itself; of more, each item and each shard.
const CELLS_MAX: usize = 4096;
/// How long a client that has lost its stream waits before it asks again, in milliseconds.
const RETRY_MS: u32 = 2000;
/// The shortest pause between two samples.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// What is watched on this instance.
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

/// One sale that is watched.
struct Feed {
    /// The last sample, as it is sent.
    latest: watch::Sender<Bytes>,
    course: Mutex<VecDeque<Point>>,
}

/// What the plots show of one sample.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "LivePoint")]
pub(super) struct Point {
    /// Milliseconds since the epoch, by the clock of Redis, which is the same for whoever tells.
    at: Millis,
    /// How long it stands for, in seconds.
    seconds: f64,
    /// Orders that were accepted, by all instances; none where that cannot be told.
    accepted: Option<i64>,
    /// Purchases that were answered, by what was said, on the instances that have told of it.
    answers: BTreeMap<String, u64>,
    /// Milliseconds in which they had answered half of them; none where they answered nothing.
    p50: Option<f64>,
    /// The same of 95 in a hundred.
    p95: Option<f64>,
    /// The same of 99 in a hundred.
    p99: Option<f64>,
}

/// A sale at one moment.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LiveSample")]
pub(super) struct Sample {
    /// What the plots show of it.
    point: Point,
    /// Of whom the point tells, beside those that are silent; this instance first.
    instances: Vec<LiveInstance>,
    /// Why other instances are not among them, if that is not known.
    others_fault: Option<String>,
    /// How Redis and Postgres answer.
    health: Health,
    /// The numbers, if both told theirs.
    sale: Option<LiveSale>,
    /// What Redis alone tells, where the numbers are not there.
    stock: Option<LiveStock>,
    /// Why there are no numbers.
    fault: Option<String>,
}

/// An instance that has told within the last ten seconds how it answers.
#[derive(Serialize, JsonSchema)]
struct LiveInstance {
    /// What operators call it by.
    name: String,
    /// How long ago that was, where it should have told more by now.
    silent_seconds: Option<f64>,
}

/// A sale's numbers, with the shards made small.
#[derive(Serialize, JsonSchema)]
struct LiveSale {
    /// Its state by Redis's clock.
    state: SaleState,
    /// When it begins.
    #[serde(serialize_with = "time::serialize")]
    starts_at: DateTime<Utc>,
    /// When it ends.
    #[serde(serialize_with = "time::serialize")]
    ends_at: DateTime<Utc>,
    /// Redis's clock.
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
    /// Where each item's units are.
    items: Vec<ItemStats>,
    /// Each shard.
    shards: Vec<LiveShard>,
    /// Events that the ledger has not taken in.
    undrained_events: i64,
    /// Orders in the ledger.
    orders: OrderCounts,
    /// Who is in its waiting room, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_room: Option<RoomCount>,
    /// What needs an operator's eye.
    alerts: Alerts,
    /// Requests that each layer of the guards has stopped.
    stopped: BTreeMap<String, i64>,
    /// How long ago the oldest hold ended that has not expired.
    expiry_lag_seconds: f64,
}

/// What Redis alone tells of a sale.
#[derive(Serialize, JsonSchema)]
struct LiveStock {
    /// Where each item's units are.
    items: Vec<ItemStats>,
    /// Each shard.
    shards: Vec<LiveShard>,
    /// Events that the ledger has not taken in.
    undrained_events: i64,
}

/// Available, held and sold units, those that were sent to other shards and received from them, in total, and those that are
/// on their way from here.
type Units = [i64; 6];

/// One shard.
#[derive(Serialize, JsonSchema)]
struct LiveShard {
    /// Its number.
    shard: u16,
    /// Its generation.
    epoch: i64,
    /// Events that the ledger has not taken in.
    undrained_events: i64,
    /// Available, held and sold units, those that were sent to other shards and received from them, in total, and those
    /// that are on their way from here; over all items.
    units: Units,
    /// The same by SKU; none where those are too many.
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

/// Somebody who watches.
struct Viewer {
    api: Arc<Api>,
    latest: watch::Receiver<Bytes>,
    /// Whose session it is; who comes with the key has none. The look at it shows that the stream is alive.
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
    // What came before, so that plots do not begin anew with each connection.
    let first = format!("retry: {RETRY_MS}\n\n{}", event("course", &course));
    let first = once(ready(Ok::<_, Infallible>(Bytes::from(first))));
    Ok(event_stream().streaming(first.chain(unfold(viewer, next))))
}

/// A place to watch from, and what was seen before; none when there is no more room.
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
            // It is counted from now on; the first sample only tells where the second one begins.
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

/// What is sent next; the end of the stream when the session or the instance ends.
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
    /// Whether the session has ended.
    async fn is_signed_out(&self) -> bool {
        match &self.session {
            Some(session) => has_ended(&self.api, session).await,
            None => false,
        }
    }
}

/// Takes samples of a sale for as long as somebody watches it.
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
        // There may be nobody any more.
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

/// How long it is to the middle of a second, at least as long as this.
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

/// Orders that had been accepted.
#[derive(Default)]
struct Accepted {
    /// The most that were counted. The two servers are read one after the other, so an order that moves in between is seen
    /// twice, and the next count may be lower.
    highest: Option<i64>,
    /// The epochs of all shards, added up.
    epochs: i64,
    /// How many counts in a row have been lower.
    lower: u32,
}

/// After so many lower counts in a row, orders were not seen twice but have been lost.
const LOWER_MAX: u32 = 3;

impl Accepted {
    /// How many are new; none where that cannot be told, because there was no count before, or because orders have been
    /// lost since.
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

/// The clock of Redis, as far as it has been heard.
#[derive(Default)]
struct Clock {
    /// How far it was ahead of this host's the last time.
    ahead: TimeDelta,
}

impl Clock {
    /// What it shows: what was `told`, or else by this host's, which shows `here`.
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
            Box::pin(flow::ready::health(&api.app)),
            timeout(SAMPLE_MAX.min(OTHERS_WAIT), Box::pin(read(api, id))),
            self.watcher.look(&api.app, &api.instance)
        );
        let (sale, fault) = match read {
            Ok(Ok(Some(sale))) => (Some(sale), None),
            Ok(Ok(None)) => (None, Some("there is no such sale".to_owned())),
            Ok(Err(fault)) => (None, Some(fault.to_string())),
            Err(_) => (None, Some("no answer in time".to_owned())),
        };
        // What waits for Postgres is what operators want to see while it is away.
        let stock = match &sale {
            Some(_) => None,
            None => {
                let told = timeout(STOCK_MAX, Box::pin(flow::stats::stock_stats(&api.app, id))).await;
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
    let Some(stats) = flow::stats::stats(app, id).await? else {
        return Ok(None);
    };
    let Some(sale) = flow::sale_book::find(app, id).await? else {
        return Ok(None);
    };
    let lag = flow::expire::lag(app, Some(id), stats.server_time).await?;
    Ok(Some(LiveSale::of(stats, (sale.starts_at, sale.ends_at), lag)))
}

fn event(name: &str, data: &impl Serialize) -> String {
    // JSON escapes line breaks, so it is one line.
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
        // One that moves from one server to the other is seen twice, and is one all the same.
        let usual = counted(&[(100, 4), (111, 4), (110, 4), (115, 4)]);
        assert_eq!(usual[1..], [Some(11), Some(0), Some(4)]);
        // A shard was written anew without 50 of them.
        let rebuilt = counted(&[(100, 4), (110, 4), (60, 5), (70, 5)]);
        assert_eq!(rebuilt[1..], [Some(10), None, Some(10)]);
        // They are gone, and no epoch tells of it yet.
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
        // Also while it is not heard.
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
