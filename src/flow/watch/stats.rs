//! Stats: a sale in numbers, for operators and, coarsely, for shoppers. Reads only.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Alerts, Counters, ItemStats, ShardStats, Stats};
use crate::domain::sale::{Lifecycle, Sale};
use crate::domain::time::{Millis, from_millis};
use crate::flow::App;
use crate::flow::sale_book::shared;
use crate::flow::sell::waiting_room;
use crate::ledger::audit::Sums;
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::ShardReading;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use moka::future::Cache;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a glance is served from memory: concurrent page views share one reading.
const FRESH: Duration = Duration::from_millis(200);

/// Shards asked at once for their oldest event.
const SHARDS_AT_ONCE: usize = 32;

/// The pause between two readings for callers that need one that begins after they ask.
const PACE: Duration = Duration::from_millis(50);

/// How long the last good glance is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// A sale's stock as shoppers may see it.
#[derive(Debug, Clone)]
pub struct Glance {
    /// The sale as the ledger had it a moment ago, or as its shards have it if they are newer.
    pub sale: Arc<Sale>,
    /// Units that are free, or in transit between two shards, by SKU; absent before the sale is loaded.
    pub free: BTreeMap<Sku, i64>,
    read_at: Millis,
    read: Instant,
}

impl Glance {
    /// Whether no unit of any item is free.
    #[must_use]
    pub fn is_sold_out(&self) -> bool {
        self.free.values().all(|units| *units <= 0)
    }

    /// Redis's clock at this moment.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.read_at + Millis::try_from(self.read.elapsed().as_millis()).unwrap_or(0)
    }
}

/// Three caches by sale:
/// - glances of a moment ago,
/// - the last good ones, for callers to whom an old one is better than none,
/// - readings for callers that need one that begins after they ask.
pub struct Glances(
    Cache<SaleId, Option<Arc<Glance>>>,
    Cache<SaleId, Arc<Glance>>,
    Cache<SaleId, Arc<Rereadings>>,
);

impl Default for Glances {
    fn default() -> Self {
        let fresh = Cache::builder().max_capacity(10_000).time_to_live(FRESH);
        let remembered = Cache::builder().max_capacity(10_000).time_to_live(REMEMBERED);
        let rereadings = Cache::builder().max_capacity(10_000).time_to_idle(REMEMBERED);
        Self(fresh.build(), remembered.build(), rereadings.build())
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

/// Reads a sale's numbers; `None` when there is no such sale.
///
/// # Errors
/// `Unavailable` when either side does not answer, `Incomplete` when a shard is incomplete.
pub async fn stats(app: &App, id: SaleId) -> Result<Option<Stats>, Fault> {
    let Some(sale) = app.ledger.sale(id).await? else {
        return Ok(None);
    };
    let readings = readings(app, &sale).await?;
    let now = match readings.first() {
        Some(reading) => reading.now,
        None => app.stock.now().await?,
    };
    let orders = app.ledger.order_counts(id).await?;
    let waiting_room = if sale.guards.waiting_room && sale.is_in_stock() {
        Some(waiting_room::count(app, &sale).await?)
    } else {
        None
    };
    let alerts = app.ledger.alerts(Some(id)).await?;
    let mut items = item_stats_of(&sale, &readings);
    if sale.retired {
        by_ledger(&mut items, &app.ledger.sums(id, sale.shards).await?);
    }
    Ok(Some(Stats {
        sale_id: id,
        state: sale.state_at(now),
        server_time: from_millis(now),
        items,
        shards: readings.iter().map(shard_stats).collect(),
        undrained_events: readings.iter().map(|reading| reading.undrained).sum(),
        orders,
        waiting_room,
        alerts,
        stopped: app.ledger.stopped(id).await?,
    }))
}

/// A sale's numbers from Redis alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockStats {
    pub items: Vec<ItemStats>,
    pub shards: Vec<ShardStats>,
    /// Events that the ledger has not taken in.
    pub undrained_events: i64,
}

/// Reads a sale's numbers from Redis alone, for while Postgres does not answer; `None` for a sale that this process
/// does not remember.
///
/// # Errors
/// `Unavailable` when Redis does not answer, `Incomplete` when a shard is incomplete.
pub async fn stock_stats(app: &App, id: SaleId) -> Result<Option<StockStats>, Fault> {
    let Some(sale) = app.sales.remembered(id).await.filter(|sale| sale.is_in_stock()) else {
        return Ok(None);
    };
    let readings = readings(app, &sale).await?;
    Ok(Some(StockStats {
        items: item_stats_of(&sale, &readings),
        shards: readings.iter().map(shard_stats).collect(),
        undrained_events: readings.iter().map(|reading| reading.undrained).sum(),
    }))
}

fn item_stats_of(sale: &Sale, readings: &[ShardReading]) -> Vec<ItemStats> {
    let items = sale.items.iter();
    items
        .map(|item| item_stats(&item.sku, item.stock, &total(&item.sku, readings)))
        .collect()
}

async fn readings(app: &App, sale: &Sale) -> Result<Vec<ShardReading>, Fault> {
    if !sale.is_in_stock() {
        return Ok(Vec::new());
    }
    app.stock.read_shards(sale).await
}

/// Audit findings that need an operator, in any sale.
pub async fn alerts(app: &App) -> Result<Alerts, Fault> {
    app.ledger.alerts(None).await
}

/// Bytes of memory that each Redis server with stock uses, and may use.
pub async fn stock_memory(app: &App) -> Result<Vec<(i64, i64)>, Fault> {
    app.stock.memory().await
}

/// The events of all sales that wait for the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    pub events: i64,
    /// How long the oldest of them has waited.
    pub oldest: Duration,
}

/// Counts the events that wait for the ledger, also while it does not answer. Shards that do not answer are left out.
///
/// # Errors
/// `Unavailable` when Postgres has never returned the list of sales, or Redis does not return the time.
pub async fn backlog(app: &App) -> Result<Backlog, Fault> {
    let sales = app.sales.last_live().await?;
    let of = |sale: &Arc<Sale>| {
        let id = sale.id;
        (0..sale.shards).map(move |shard| ShardKey { sale: id, shard })
    };
    // No event waits in a sale that rests.
    let may_wait = |sale: &&Arc<Sale>| sale.is_in_stock() && !app.permits.is_resting(sale.id);
    let shards: Vec<ShardKey> = sales.iter().filter(may_wait).flat_map(of).collect();
    let waiting = app.stock.undrained_each(&shards).await;
    let waiting: Vec<(ShardKey, i64)> = shards
        .into_iter()
        .zip(waiting)
        .filter_map(|(shard, events)| Some((shard, events.ok()?)))
        .filter(|(_, events)| *events > 0)
        .collect();
    if waiting.is_empty() {
        return Ok(Backlog::default());
    }
    let now = app.stock.now().await?;
    let events = waiting.iter().map(|(_, events)| events).sum();
    let oldest: Vec<Millis> = futures_util::stream::iter(waiting)
        .map(|(shard, _)| async move {
            let first = app.stock.events(shard, 1).await.ok()?;
            Some(first.first()?.reserved.as_ref().ok()?.created_at)
        })
        .buffer_unordered(SHARDS_AT_ONCE)
        .filter_map(|created_at| async move { created_at })
        .collect()
        .await;
    let waited = oldest.into_iter().min().map_or(0, |created_at| now - created_at);
    Ok(Backlog {
        events,
        oldest: Duration::from_millis(u64::try_from(waited).unwrap_or_default()),
    })
}

/// Fills in the units of a retired sale, which only the ledger has.
fn by_ledger(items: &mut [ItemStats], sums: &Sums) {
    for item in items {
        for shard in &sums.shards {
            let (held, sold) = shard.units.get(&item.sku).copied().unwrap_or_default();
            item.held += held;
            item.sold += sold;
        }
        item.available = item.total - item.held - item.sold;
    }
}

/// A sale's free units a moment ago; `None` when there is no such sale. While Postgres does not answer, this works for
/// sales that this process remembers.
///
/// # Errors
/// `Unavailable` when the sale is not known, or none of its shards answers; `Incomplete` when all of them are
/// incomplete.
pub async fn glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    app.glances
        .0
        .try_get_with(id, Box::pin(look(app, id)))
        .await
        .map_err(shared)
}

/// [`glance`] by a reading that begins after this call: units that were sold before the call are not free in it.
pub async fn glance_anew(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let rereadings = app.glances.2.get_with(id, async { Arc::default() }).await;
    let begun = rereadings.begun.load(Ordering::SeqCst);
    let mut last = rereadings.last.lock().await;
    if let Some(last) = &*last {
        if last.number > begun {
            return last.glance.clone();
        }
        tokio::time::sleep(PACE.saturating_sub(last.ended.elapsed())).await;
    }
    let number = rereadings.begun.fetch_add(1, Ordering::SeqCst) + 1;
    let glance = Box::pin(look(app, id)).await;
    if let Ok(glance) = &glance {
        app.glances.0.insert(id, glance.clone()).await;
    }
    *last = Some(Rereading {
        number,
        ended: Instant::now(),
        glance: glance.clone(),
    });
    glance
}

/// [`glance`] or, if that fails, the last good one. Postgres may be away, or a shard be rebuilt, while the others
/// sell.
///
/// # Errors
/// As [`glance`], when there was no good one for long.
pub async fn last_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    match glance(app, id).await {
        Err(fault) => match app.glances.1.get(&id).await {
            Some(glance) => Ok(Some(glance)),
            None => Err(fault),
        },
        told => told,
    }
}

async fn look(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let Some(sale) = app.sales.latest(id).await? else {
        return Ok(None);
    };
    let mut fault = None;
    let mut readings = Vec::new();
    if sale.is_in_stock() {
        for reading in app.stock.read_shards_each(&sale).await {
            match reading {
                Ok(reading) => readings.push(reading),
                Err(why) => fault = Some(why),
            }
        }
    }
    // One silent shard takes nothing from what the others sell, and its units do not count as gone.
    let last = match fault {
        Some(fault) if readings.is_empty() => return Err(fault),
        Some(fault) => Some(app.glances.1.get(&id).await.ok_or(fault)?),
        None => None,
    };
    let sale = as_told_to_shards(sale, &readings);
    let read_at = match readings.first() {
        Some(reading) => reading.now,
        None => app.stock.now().await?,
    };
    let mut free = BTreeMap::new();
    // A sale that has left Redis, a day after its end, has no free unit. A sale that is not loaded has no entries.
    if sale.retired || !readings.is_empty() {
        for item in &sale.items {
            let counters = total(&item.sku, &readings);
            let seen = counters.available + counters.in_transit().max(0);
            let before = last.as_ref().and_then(|last| last.free.get(&item.sku)).copied();
            free.insert(item.sku.clone(), before.map_or(seen, |before| before.max(seen)));
        }
    }
    let glance = Arc::new(Glance {
        sale,
        free,
        read_at,
        read: Instant::now(),
    });
    if last.is_none() {
        app.glances.1.insert(id, Arc::clone(&glance)).await;
    }
    Ok(Some(glance))
}

/// The sale with the newest state that any shard has. While Postgres does not answer, another process may have changed
/// the sale since this one read it.
fn as_told_to_shards(sale: Arc<Sale>, readings: &[ShardReading]) -> Arc<Sale> {
    let records = readings.iter().map(|reading| &reading.record);
    let told = records.filter(|it| it.lifecycle != Lifecycle::Loading && it.state_version > sale.state_version);
    match told.max_by_key(|record| record.state_version) {
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
/// cannot be read keeps no other out. It appears as it was last, or is left out.
///
/// # Errors
/// As [`glance`], when all of them would be left out.
pub async fn glances(app: &App, max: usize, after: Option<SaleId>) -> Result<(Vec<Arc<Glance>>, bool), Fault> {
    let mut sales = app.sales.newest(max + 1, after).await?;
    let has_more = sales.len() > max;
    sales.truncate(max);
    let looks = join_all(sales.iter().map(|sale| glance(app, sale.id))).await;
    let mut found = Vec::with_capacity(looks.len());
    let mut fault = None;
    for (sale, look) in sales.iter().zip(looks) {
        match look {
            Ok(glance) => found.extend(glance),
            Err(why) => {
                found.extend(app.glances.1.get(&sale.id).await);
                fault = Some(why);
            }
        }
    }
    if let (true, Some(fault)) = (found.is_empty(), fault) {
        return Err(fault);
    }
    Ok((found, has_more))
}

/// An item's counters over all shards.
#[must_use]
pub fn total(sku: &Sku, readings: &[ShardReading]) -> Counters {
    readings
        .iter()
        .fold(Counters::default(), |sum, reading| sum.plus(&reading.counters(sku)))
}

fn item_stats(sku: &Sku, owned: i64, counters: &Counters) -> ItemStats {
    ItemStats {
        sku: sku.clone(),
        total: owned,
        available: counters.available,
        held: counters.held,
        sold: counters.sold,
        // Shards are read one after the other, so units may have arrived that had not left yet. The sum is negative
        // then.
        in_transit: counters.in_transit().max(0),
    }
}

#[must_use]
pub fn shard_stats(reading: &ShardReading) -> ShardStats {
    let by_sku = |count: fn(&Counters) -> i64| -> BTreeMap<Sku, i64> {
        reading
            .items
            .iter()
            .map(|(sku, counters)| (sku.clone(), count(counters)))
            .collect()
    };
    let mut in_transit = by_sku(|_| 0);
    for transfer in &reading.transfers {
        *in_transit.entry(transfer.sku.clone()).or_default() += transfer.units;
    }
    ShardStats {
        shard: reading.shard,
        epoch: reading.record.epoch,
        available: by_sku(|counters| counters.available),
        held: by_sku(|counters| counters.held),
        sold: by_sku(|counters| counters.sold),
        sent: by_sku(|counters| counters.out),
        received: by_sku(|counters| counters.r#in),
        in_transit,
        undrained_events: reading.undrained,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_came_in_while_shards_were_read_are_not_fewer_than_none_on_their_way() {
        let sku: Sku = "phone".parse().unwrap();
        // The borrower was read after the units had arrived, the lender before they had left.
        let counters = Counters {
            available: 8,
            r#in: 3,
            granted: 5,
            ..Counters::default()
        };
        let stats = item_stats(&sku, 5, &counters);
        assert_eq!((stats.available, stats.in_transit), (8, 0));
    }
}
