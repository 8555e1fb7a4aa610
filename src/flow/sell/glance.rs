//! Glance: a sale's stock, coarsely, as shoppers may see it. Reads only.

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::Counters;
use crate::domain::sale::{Lifecycle, Sale};
use crate::domain::time::{Millis, from_millis};
use crate::flow::App;
use crate::stock::operate::read_shard::ShardUnits;
use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a glance is served from memory: concurrent page views share one reading.
const FRESH: Duration = Duration::from_millis(200);

/// The pause between two readings for callers that need one that begins after they ask.
const PACE: Duration = Duration::from_millis(50);

/// Sales remembered; further ones are read again.
const SALES_MAX: usize = 10_000;

/// How long the last good glance is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// How long the times of the next releases are served from memory, also if Postgres did not answer.
const RELEASES_FRESH: Duration = Duration::from_secs(2);

/// No page view waits longer for Postgres to answer when the next units may come back, nor for its turn to ask.
const RELEASES_MAX: Duration = Duration::from_millis(200);

/// No page waits longer for a reading before it shows the last good one.
const PAGE_MAX: Duration = Duration::from_millis(500);

/// When the first held unit of an item may come back, by SKU.
pub type Releases = BTreeMap<Sku, DateTime<Utc>>;

/// A sale's stock as shoppers may see it.
#[derive(Debug, Clone)]
pub struct Glance {
    /// The sale as the ledger had it a moment ago, or as its shards have it if they are newer.
    pub sale: Arc<Sale>,
    /// Units that are free, or in transit between two shards, by SKU; absent before the sale is loaded.
    pub free: BTreeMap<Sku, i64>,
    /// The items of which unpaid orders hold units.
    pub on_hold: BTreeSet<Sku>,
    read_at: Millis,
    read: Instant,
}

impl Glance {
    /// Whether no unit of any item is free.
    #[must_use]
    pub fn is_sold_out(&self) -> bool {
        self.free.values().all(|units| *units <= 0)
    }

    /// Whether unpaid orders hold units of a sold-out item.
    fn awaits_release(&self) -> bool {
        self.free
            .iter()
            .any(|(sku, free)| *free <= 0 && self.on_hold.contains(sku))
    }

    /// Redis's clock at this moment.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.read_at + Millis::try_from(self.read.elapsed().as_millis()).unwrap_or(0)
    }
}

/// What is in memory of each sale.
pub struct Glances {
    /// Glances of a moment ago.
    fresh: Cache<SaleId, Option<Arc<Glance>>, Fault>,
    /// The last good ones, for callers to whom an old one is better than none.
    last: Cache<SaleId, Arc<Glance>>,
    /// Readings for callers that need one that begins after they ask.
    rereadings: Cache<SaleId, Arc<Rereadings>>,
    /// When the next units may come back.
    releases: Cache<SaleId, Arc<Releases>>,
    /// One list at a time reads the releases of its sales.
    turn: Mutex<()>,
}

impl Glances {
    /// What is in memory of the next releases of these sales.
    fn known_releases(&self, sales: &[SaleId]) -> BTreeMap<SaleId, Arc<Releases>> {
        let known = sales.iter().filter_map(|sale| Some((*sale, self.releases.get(sale)?)));
        known.collect()
    }
}

impl Default for Glances {
    fn default() -> Self {
        Self {
            fresh: Cache::fresh_for(FRESH, SALES_MAX),
            last: Cache::fresh_for(REMEMBERED, SALES_MAX),
            rereadings: Cache::new(SALES_MAX),
            releases: Cache::fresh_for(RELEASES_FRESH, SALES_MAX),
            turn: Mutex::default(),
        }
    }
}

/// Readings of one sale, one at a time. Each answers all callers that asked before it began.
#[derive(Default)]
struct Rereadings {
    begun: AtomicU64,
    last: Mutex<Option<Rereading>>,
}

/// The last reading, by its number.
struct Rereading {
    number: u64,
    ended: Instant,
    glance: Result<Option<Arc<Glance>>, Fault>,
}

/// A sale's free units a moment ago; `None` when there is no such sale. While Postgres does not answer, this works for
/// sales that this process remembers. Fails with `Unavailable` when the sale is not known, or none of its shards
/// answers; `Incomplete` when all of them are incomplete.
pub async fn glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let read = Box::pin(take_glance(app, id));
    app.glances.fresh.try_get_or_read(&id, read).await
}

/// [`glance`] by a reading that begins after this call: units that were sold before the call are not free in it.
pub async fn fresh_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let rereadings = app.glances.rereadings.get_or_make(&id, Arc::default);
    let begun = rereadings.begun.load(Ordering::SeqCst);
    let mut last = rereadings.last.lock().await;
    if let Some(last) = &*last {
        if last.number > begun {
            return last.glance.clone();
        }
        tokio::time::sleep(PACE.saturating_sub(last.ended.elapsed())).await;
    }
    let number = rereadings.begun.fetch_add(1, Ordering::SeqCst) + 1;
    let glance = Box::pin(take_glance(app, id)).await;
    if let Ok(glance) = &glance {
        app.glances.fresh.insert(id, glance.clone());
    }
    *last = Some(Rereading {
        number,
        ended: Instant::now(),
        glance: glance.clone(),
    });
    glance
}

/// [`glance`] or, if that fails, the last good one. Postgres may be away, or a shard be rebuilt, while the others sell.
/// Fails as [`glance`], when there was no good one for long.
pub async fn last_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    match glance(app, id).await {
        Err(fault) => app.glances.last.get(&id).map(Some).ok_or(fault),
        read => read,
    }
}

/// [`last_glance`] for a page, which soon shows an old glance if the servers hang. Fails as [`last_glance`].
pub async fn quick_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    match timeout(PAGE_MAX, glance(app, id)).await {
        Ok(Ok(read)) => Ok(read),
        failed => {
            let late = || Fault::Unavailable("no reading in time".to_owned());
            let fault = failed.ok().and_then(Result::err).unwrap_or_else(late);
            app.glances.last.get(&id).map(Some).ok_or(fault)
        }
    }
}

async fn take_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let Some(sale) = app.sales.latest(id).await? else {
        return Ok(None);
    };
    let mut fault = None;
    let mut readings = Vec::new();
    if sale.is_in_stock() {
        for reading in app.stock.read_units_each(&sale).await {
            match reading {
                Ok(reading) => readings.push(reading),
                Err(why) => fault = Some(why),
            }
        }
    }
    // One silent shard takes nothing from what the others sell, and its units do not count as gone.
    let last = match fault {
        Some(fault) if readings.is_empty() => return Err(fault),
        Some(fault) => Some(app.glances.last.get(&id).ok_or(fault)?),
        None => None,
    };
    let sale = as_shards_have_it(sale, &readings);
    let read_at = match readings.first() {
        Some(reading) => reading.now,
        None => app.stock.now().await?,
    };
    let mut free = BTreeMap::new();
    let mut on_hold = BTreeSet::new();
    // A sale that has left Redis, a day after its end, has no free unit. A sale that is not loaded has no entries.
    if sale.retired || !readings.is_empty() {
        for (at, item) in sale.items.iter().enumerate() {
            let of_shards = readings.iter().filter_map(|reading| reading.items.get(at));
            let counters = of_shards.fold(Counters::default(), |sum, counters| sum.plus(counters));
            let seen = counters.available + counters.in_transit().max(0);
            let before = last.as_ref().and_then(|last| last.free.get(&item.sku)).copied();
            free.insert(item.sku.clone(), before.map_or(seen, |before| before.max(seen)));
            if counters.held > 0 || last.as_ref().is_some_and(|last| last.on_hold.contains(&item.sku)) {
                on_hold.insert(item.sku.clone());
            }
        }
    }
    let glance = Arc::new(Glance {
        sale,
        free,
        on_hold,
        read_at,
        read: Instant::now(),
    });
    if last.is_none() {
        app.glances.last.insert(id, Arc::clone(&glance));
    }
    Ok(Some(glance))
}

/// When the first held unit of each sold-out item may come back. Items for which that is not known are left out, as all
/// are while Postgres does not answer.
pub async fn next_releases(app: &App, glance: &Glance) -> Arc<Releases> {
    if !glance.awaits_release() {
        return Arc::default();
    }
    let sale = glance.sale.id;
    let read = Box::pin(async {
        let mut read = read_releases(app, &[sale]).await;
        Arc::new(read.remove(&sale).unwrap_or_default())
    });
    app.glances.releases.get_or_read(&sale, read).await
}

/// [`next_releases`] of each sale of a list. One query reads all sales that are not in memory, and one list asks at a
/// time. Sales without an entry have no known release.
pub async fn next_releases_each(app: &App, glances: &[Arc<Glance>]) -> BTreeMap<SaleId, Arc<Releases>> {
    let awaiting = glances.iter().filter(|glance| glance.awaits_release());
    let mut wanted: Vec<SaleId> = awaiting.map(|glance| glance.sale.id).collect();
    let mut known = app.glances.known_releases(&wanted);
    if known.len() == wanted.len() {
        return known;
    }
    let Ok(_turn) = timeout(RELEASES_MAX, app.glances.turn.lock()).await else {
        return known;
    };
    // The list before may have read them.
    known = app.glances.known_releases(&wanted);
    wanted.retain(|sale| !known.contains_key(sale));
    if wanted.is_empty() {
        return known;
    }
    let mut read = Box::pin(read_releases(app, &wanted)).await;
    for sale in wanted {
        let releases = Arc::new(read.remove(&sale).unwrap_or_default());
        app.glances.releases.insert(sale, Arc::clone(&releases));
        known.insert(sale, releases);
    }
    known
}

async fn read_releases(app: &App, sales: &[SaleId]) -> BTreeMap<SaleId, Releases> {
    let answer = timeout(RELEASES_MAX, app.ledger.next_releases(sales)).await;
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// The sale with the newest state that any shard has. While Postgres does not answer, another process may have changed
/// the sale since this one read it.
fn as_shards_have_it(sale: Arc<Sale>, readings: &[ShardUnits]) -> Arc<Sale> {
    let records = readings.iter().map(|reading| &reading.record);
    let newer = records.filter(|it| it.lifecycle != Lifecycle::Loading && it.state_version > sale.state_version);
    match newer.max_by_key(|record| record.state_version) {
        Some(record) => Arc::new(Sale {
            lifecycle: record.lifecycle,
            state_version: record.state_version,
            starts_at: from_millis(record.starts_at),
            ends_at: from_millis(record.ends_at),
            ..Sale::clone(&sale)
        }),
        None => sale,
    }
}

/// Up to `max` sales that shoppers may see, newest first, after the one given, and whether more follow. A sale that
/// cannot be read keeps no other out. It appears as it was last, or is left out. Fails as [`glance`], when all of them
/// would be left out.
pub async fn glances(app: &App, max: usize, after: Option<SaleId>) -> Result<(Vec<Arc<Glance>>, bool), Fault> {
    let mut sales = app.sales.newest(max + 1, after).await?;
    let has_more = sales.len() > max;
    sales.truncate(max);
    let glances = join_all(sales.iter().map(|sale| glance(app, sale.id))).await;
    let mut found = Vec::with_capacity(glances.len());
    let mut fault = None;
    for (sale, glance) in sales.iter().zip(glances) {
        match glance {
            Ok(glance) => found.extend(glance),
            Err(why) => {
                found.extend(app.glances.last.get(&sale.id));
                fault = Some(why);
            }
        }
    }
    if let (true, Some(fault)) = (found.is_empty(), fault) {
        return Err(fault);
    }
    Ok((found, has_more))
}
