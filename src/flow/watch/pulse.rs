//! Pulse: count how purchases of a sale are answered, and add up the counts of all instances. Every instance counts
//! while an operator watches the sale on any of them, and publishes its counts through Postgres.
//!
//! A crash loses what was counted and not published. Published counts are out of date after ten seconds.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::pulse::{Counts, InstanceReport};
use crate::flow::{App, in_time, whole};
use chrono::Utc;
use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// How long a sale counts as watched after its watcher's last reading.
const WATCH_LASTS: Duration = Duration::from_secs(10);
/// Sales that an instance counts at once. Further ones are not counted.
pub(in crate::flow) const COUNTED_MAX: usize = 64;
/// Other instances whose counts are added to this one's.
const OTHERS_MAX: i64 = 63;
/// How long a call waits for Postgres.
const REPORT_MAX: Duration = Duration::from_secs(2);
/// If an instance's new counts span more than the time between two readings and this slack, they are left out. They
/// cannot be placed in time.
const SLACK: Duration = Duration::from_secs(3);
/// The longest latency, in microseconds; longer ones count as this.
const LATENCY_MAX: u64 = 60_000_000;
/// Latencies that differ by no more than a sixteenth share a bucket, so some hundred buckets hold all.
const LATENCY_DIGITS: u8 = 1;

pub struct Pulse {
    instance: Uuid,
    /// How many sales are counted; purchases read this first.
    counted: AtomicUsize,
    sales: RwLock<HashMap<SaleId, Counting>>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            instance: Uuid::new_v4(),
            counted: AtomicUsize::default(),
            sales: RwLock::default(),
        }
    }
}

struct Counting {
    began: Instant,
    /// After this no operator watches, unless a watcher moves it on.
    until: Instant,
    answer_counts: Mutex<AnswerCounts>,
}

/// The answers to a sale's purchases, and how long they took.
pub(super) struct AnswerCounts {
    by_answer: BTreeMap<&'static str, u64>,
    /// In microseconds. If the histogram cannot be made, no latency is counted.
    latency: Option<Histogram<u64>>,
}

impl Default for AnswerCounts {
    fn default() -> Self {
        Self {
            by_answer: BTreeMap::new(),
            latency: histogram(),
        }
    }
}

impl AnswerCounts {
    pub(super) fn count(&mut self, answer: &'static str, took: Option<Duration>) {
        *self.by_answer.entry(answer).or_default() += 1;
        if let (Some(latency), Some(took)) = (&mut self.latency, took) {
            let micros = u64::try_from(took.as_micros()).unwrap_or(LATENCY_MAX);
            latency.saturating_record(micros.clamp(1, LATENCY_MAX));
        }
    }

    pub(super) fn add(&mut self, others: &Self) {
        for (answer, count) in &others.by_answer {
            *self.by_answer.entry(answer).or_default() += count;
        }
        if let (Some(latency), Some(others)) = (&mut self.latency, &others.latency) {
            // Both have the same bounds, so that each value has its place.
            let _added = latency.add(others);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let answers = self.by_answer.iter();
        let latency = self.latency.iter().flat_map(Histogram::iter_recorded);
        Counts {
            answers: answers.map(|(answer, count)| ((*answer).to_owned(), *count)).collect(),
            latency: latency
                .map(|it| (it.value_iterated_to(), it.count_at_value()))
                .collect(),
        }
    }
}

impl Counting {
    fn begin() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            until: now,
            answer_counts: Mutex::default(),
        }
    }

    fn answer_counts(&self) -> MutexGuard<'_, AnswerCounts> {
        self.answer_counts.lock()
    }

    fn counts(&self) -> Counts {
        self.answer_counts().counts()
    }
}

fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX, LATENCY_DIGITS).ok()
}

impl Pulse {
    /// Counts the answer to a purchase of a watched sale. `took` is how long the answer took, if the request was
    /// examined.
    pub fn count(&self, sale: SaleId, answer: &'static str, took: Option<Duration>) {
        if self.counted.load(Ordering::Relaxed) == 0 {
            return;
        }
        let sales = self.sales.read();
        let Some(counting) = sales.get(&sale) else { return };
        counting.answer_counts().count(answer, took);
    }

    /// Counts these sales from now on, and drops those that have not been watched for a while.
    pub(in crate::flow) fn follow(&self, watched: impl IntoIterator<Item = SaleId>) {
        let now = Instant::now();
        let mut sales = self.alone();
        for sale in watched {
            if sales.len() < COUNTED_MAX || sales.contains_key(&sale) {
                sales.entry(sale).or_insert_with(Counting::begin).until = now + WATCH_LASTS;
            }
        }
        sales.retain(|_, counting| counting.until > now);
        self.counted.store(sales.len(), Ordering::Relaxed);
    }

    /// The counts of each sale, and for how long they were counted. The order is fixed, so that two processes do not
    /// wait for each other.
    fn counted(&self) -> Vec<(SaleId, Duration, Counts)> {
        let sales = self.sales.read();
        let all = sales
            .iter()
            .map(|(sale, counting)| (*sale, counting.began.elapsed(), counting.counts()));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(sale, ..)| sale.0);
        all
    }

    /// This instance's own counts of a sale.
    fn own(&self, sale: SaleId, name: &str) -> Option<InstanceReport> {
        let sales = self.sales.read();
        let counting = sales.get(&sale)?;
        Some(InstanceReport {
            id: self.instance,
            instance: name.to_owned(),
            age_seconds: 0.0,
            counted_seconds: counting.began.elapsed().as_secs_f64(),
            counts: counting.counts(),
        })
    }

    fn alone(&self) -> RwLockWriteGuard<'_, HashMap<SaleId, Counting>> {
        // No step under this lock can leave the map half changed.
        self.sales.write()
    }
}

/// Counts the watched sales and publishes the counts under this name, for as long as the process runs.
pub async fn keep(app: &App, name: &str) {
    let mut is_broken = false;
    loop {
        // On the second, so that a reader between two seconds finds one new set of counts of each instance.
        sleep(until_second(Utc::now().timestamp_subsec_millis())).await;
        let reported = timeout(REPORT_MAX, report(app, name)).await;
        if !matches!(reported, Ok(Ok(()))) {
            // Sales that are watched on this very instance go on; the others end with their time.
            app.pulse.follow([]);
        }
        let broken = reported.ok().and_then(Result::err).filter(|fault| !fault.is_passing());
        // Logged once, and not again every second.
        if let Some(fault) = broken.as_ref().filter(|_| !is_broken) {
            tracing::error!(%fault, "cannot publish to other instances how purchases are answered");
        }
        is_broken = broken.is_some();
    }
}

fn until_second(millis: u32) -> Duration {
    Duration::from_millis(u64::from(1000_u32.saturating_sub(millis).max(1)))
}

async fn report(app: &App, name: &str) -> Result<(), Fault> {
    // Each bulletin names them, too.
    if app.bulletins.are_fresh() {
        app.pulse.follow([]);
    } else {
        app.pulse.follow(app.ledger.watched_sales(whole(COUNTED_MAX)).await?);
    }
    let counted = app.pulse.counted();
    if counted.is_empty() {
        return Ok(());
    }
    // Counts that cannot be published now are part of the next ones.
    app.ledger.report_counts(app.pulse.instance, name, &counted).await
}

/// One operator's view of a sale.
pub struct Watcher {
    sale: SaleId,
    last: Instant,
    /// Whether there was a reading before: only then is it known which counts are new.
    has_looked: bool,
    /// What each instance had published at the last reading.
    before: HashMap<Uuid, InstanceReport>,
}

/// The answers of all instances since the last reading.
pub struct Beat {
    /// How long ago that was.
    pub lasted: Duration,
    pub counts: Counts,
    /// The counts that instances have published in the last ten seconds; this instance first.
    pub reports: Vec<InstanceReport>,
    /// Why the counts of the others are missing, if they are.
    pub fault: Option<Fault>,
}

impl Watcher {
    #[must_use]
    pub fn begin(app: &App, sale: SaleId) -> Self {
        app.pulse.follow([sale]);
        Self::new(sale)
    }

    fn new(sale: SaleId) -> Self {
        Self {
            sale,
            last: Instant::now(),
            has_looked: false,
            before: HashMap::new(),
        }
    }

    /// Reads what all instances have answered since the last time, and keeps them counting.
    pub async fn read(&mut self, app: &App, name: &str) -> Beat {
        app.pulse.follow([self.sale]);
        let (ledger, instance) = (&app.ledger, app.pulse.instance);
        let reading = ledger.watch_sale(self.sale, WATCH_LASTS, instance, OTHERS_MAX);
        let (others, fault) = match in_time(REPORT_MAX, reading).await {
            Ok(others) => (others, None),
            Err(fault) => (Vec::new(), Some(fault)),
        };
        let reports = app.pulse.own(self.sale, name).into_iter().chain(others).collect();
        self.beat(reports, fault)
    }

    fn beat(&mut self, reports: Vec<InstanceReport>, fault: Option<Fault>) -> Beat {
        let lasted = self.last.elapsed();
        self.last = Instant::now();
        let mut counts = Counts::default();
        for report in reports.iter().filter(|_| self.has_looked) {
            counts.add(&new_of(report, self.before.get(&report.id), lasted + SLACK));
        }
        self.has_looked = true;
        if fault.is_none() {
            self.before.clear();
        }
        self.before
            .extend(reports.iter().map(|report| (report.id, report.clone())));
        Beat {
            lasted,
            counts,
            reports,
            fault,
        }
    }
}

/// What an instance has counted since the reading before, if that spans no more than `longest`.
fn new_of(report: &InstanceReport, before: Option<&InstanceReport>, longest: Duration) -> Counts {
    // The instance may have stopped and started again since.
    let before = before.filter(|before| before.counted_seconds <= report.counted_seconds);
    let since = before.map_or(0.0, |before| before.counted_seconds);
    if report.counted_seconds - since > longest.as_secs_f64() {
        return Counts::default();
    }
    before.map_or_else(|| report.counts.clone(), |before| report.counts.since(&before.counts))
}

/// The milliseconds that these shares of the answers took at most; `None` where there was no answer.
pub fn quantiles<const N: usize>(counts: &Counts, shares: [f64; N]) -> [Option<f64>; N] {
    let Some(mut latency) = histogram() else {
        return [None; N];
    };
    for (micros, count) in &counts.latency {
        latency.saturating_record_n(*micros, *count);
    }
    shares.map(|share| {
        let micros = (!latency.is_empty()).then(|| latency.value_at_quantile(share))?;
        u32::try_from(micros).ok().map(|micros| f64::from(micros) / 1000.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(number: u128) -> SaleId {
        SaleId(Uuid::from_u128(number))
    }

    fn report(instance: u128, counted_seconds: f64, sold_out: u64) -> InstanceReport {
        InstanceReport {
            id: Uuid::from_u128(instance),
            instance: format!("shop-{instance}"),
            age_seconds: 0.5,
            counted_seconds,
            counts: Counts {
                answers: BTreeMap::from([("sold_out".to_owned(), sold_out)]),
                latency: BTreeMap::from([(1023, sold_out)]),
            },
        }
    }

    #[test]
    fn purchases_are_counted_for_sales_that_are_watched() {
        let pulse = Pulse::default();
        pulse.count(sale(1), "reserved", Some(Duration::from_millis(1)));
        assert!(pulse.own(sale(1), "me").is_none());
        pulse.follow([sale(1)]);
        for (number, millis) in [(1, 10), (1, 10), (2, 10), (1, 5000)] {
            let answer = if millis == 10 { "reserved" } else { "sold_out" };
            pulse.count(sale(number), answer, Some(Duration::from_millis(millis)));
        }
        pulse.count(sale(1), "unavailable", Some(Duration::from_secs(3600)));
        pulse.count(sale(1), "overloaded", None);
        let counts = pulse.own(sale(1), "me").unwrap().counts;
        let all = [("overloaded", 1), ("reserved", 2), ("sold_out", 1), ("unavailable", 1)];
        let all: BTreeMap<_, _> = all.map(|(answer, count)| (answer.to_owned(), count)).into();
        assert_eq!(counts.answers, all);
        assert_eq!(
            counts.latency.values().sum::<u64>(),
            4,
            "what was not counted took no time"
        );
        let [p50, p99] = quantiles(&counts, [0.5, 0.99]).map(Option::unwrap);
        assert!((10.0..10.7).contains(&p50), "{p50}");
        assert!(p99 >= 60_000.0, "{p99}");
        assert_eq!(quantiles(&Counts::default(), [0.5]), [None]);
        assert!(pulse.own(sale(2), "me").is_none());
    }

    #[test]
    fn a_sale_is_counted_for_as_long_as_somebody_says_that_it_is_watched() {
        let pulse = Pulse::default();
        pulse.follow((0..100).map(sale));
        assert_eq!(pulse.counted().len(), COUNTED_MAX, "no more than that");
        let one = pulse.counted()[0].0;
        pulse.count(one, "sold_out", None);
        pulse.follow([one]);
        let past = Instant::now();
        for (sale, counting) in pulse.alone().iter_mut() {
            if *sale != one {
                counting.until = past;
            }
        }
        pulse.follow([]);
        let left = pulse.counted();
        assert_eq!(left.iter().map(|(sale, ..)| *sale).collect::<Vec<_>>(), [one]);
        assert_eq!(left[0].2.answers["sold_out"], 1, "it goes on with what it has");
        pulse.alone().values_mut().for_each(|counting| counting.until = past);
        pulse.follow([]);
        assert_eq!(pulse.counted.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_instances_report_is_added_up_once() {
        let mut watcher = Watcher::new(sale(1));
        let sold_out = |beat: &Beat| beat.counts.answers.get("sold_out").copied().unwrap_or_default();
        // Counts from before the first reading do not belong to the time since it.
        let beat = watcher.beat(vec![report(1, 0.5, 5)], None);
        assert!(beat.counts.answers.is_empty() && beat.counts.latency.is_empty());
        // The other instance has only just begun, so all of its counts are new.
        let beat = watcher.beat(vec![report(1, 0.5, 5), report(2, 1.0, 7)], None);
        assert_eq!((sold_out(&beat), beat.counts.latency[&1023]), (7, 7));
        // One instance publishes the same counts once more, the other has 3 more.
        let beat = watcher.beat(vec![report(1, 0.5, 5), report(2, 2.0, 10)], None);
        assert_eq!(sold_out(&beat), 3);
        // One instance has started again. A third one has counted for longer than this watcher has watched.
        let beat = watcher.beat(
            vec![report(1, 0.2, 4), report(2, 3.0, 10), report(3, 600.0, 1000)],
            None,
        );
        assert_eq!(sold_out(&beat), 4);
        let beat = watcher.beat(vec![report(3, 601.0, 1001)], None);
        assert_eq!(sold_out(&beat), 1);
        // An instance returns after a long silence. The time of its new counts is unknown.
        let beat = watcher.beat(vec![report(2, 33.0, 500), report(3, 601.0, 1001)], None);
        assert_eq!(sold_out(&beat), 0);
        assert!(beat.counts.answers.is_empty());
        let beat = watcher.beat(vec![report(2, 34.0, 502)], None);
        assert_eq!(sold_out(&beat), 2);
    }

    #[test]
    fn instances_report_on_the_second() {
        for (millis, wait) in [(0, 1000), (1, 999), (999, 1), (1000, 1), (1999, 1)] {
            assert_eq!(until_second(millis), Duration::from_millis(wait));
        }
    }
}
