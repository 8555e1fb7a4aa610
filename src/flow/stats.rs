//! Stats: a sale in numbers, for operators and, coarsely, for shoppers.

use super::App;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::{Alerts, Counters, ItemStats, ShardStats, Stats};
use crate::domain::sale::{Lifecycle, Sale};
use crate::domain::time::{Millis, from_millis};
use crate::stock::read_shard::ShardReading;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A sale's stock as shoppers may know it.
#[derive(Debug, Clone)]
pub struct Glance {
    /// The sale as the ledger had it a moment ago.
    pub sale: Arc<Sale>,
    /// Redis's clock at this moment.
    pub now: Millis,
    /// Units that are free, or on their way between two shards, by SKU; absent before the sale is loaded.
    pub free: BTreeMap<Sku, i64>,
}

/// Reads a sale's numbers; `None` when there is no such sale.
///
/// # Errors
/// `Unavailable` when either side cannot tell, `Incomplete` when a shard is not all there.
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
    let alerts = app.ledger.alerts(Some(id)).await?;
    Ok(Some(Stats {
        sale_id: id,
        state: sale.state_at(now),
        server_time: from_millis(now),
        items: sale
            .items
            .iter()
            .map(|item| item_stats(&item.sku, item.stock, &readings))
            .collect(),
        shards: readings.iter().map(shard_stats).collect(),
        undrained_events: readings.iter().map(|reading| reading.undrained).sum(),
        orders,
        alerts,
    }))
}

async fn readings(app: &App, sale: &Sale) -> Result<Vec<ShardReading>, Fault> {
    if matches!(sale.lifecycle, Lifecycle::Draft | Lifecycle::Loading) {
        return Ok(Vec::new());
    }
    app.stock.read_shards(sale.id, sale.shards).await
}

/// What needs an operator's eye, in any sale.
///
/// # Errors
/// `Unavailable` when Postgres does not answer.
pub async fn alerts(app: &App) -> Result<Alerts, Fault> {
    app.ledger.alerts(None).await
}

/// What a sale still offers; `None` when there is no such sale.
///
/// # Errors
/// As [`stats`].
pub async fn glance(app: &App, id: SaleId) -> Result<Option<Glance>, Fault> {
    let Some(sale) = app.sales.fresh(id).await? else {
        return Ok(None);
    };
    let readings = readings(app, &sale).await?;
    let now = match readings.first() {
        Some(reading) => reading.now,
        None => app.stock.now().await?,
    };
    let mut free = BTreeMap::new();
    if !readings.is_empty() {
        for item in &sale.items {
            let counters = total(&item.sku, &readings);
            free.insert(item.sku.clone(), counters.available + counters.in_transit().max(0));
        }
    }
    Ok(Some(Glance { sale, now, free }))
}

/// Up to `max` sales that shoppers may know, newest first, after the one given.
///
/// # Errors
/// As [`stats`].
pub async fn glances(app: &App, max: usize, after: Option<SaleId>) -> Result<Vec<Glance>, Fault> {
    let sales = app
        .ledger
        .sales(i64::try_from(max).unwrap_or(i64::MAX), after, false)
        .await?;
    let mut found = Vec::with_capacity(sales.len());
    for sale in sales {
        // One that has left Redis, a day after its end, has nothing to offer.
        found.push(match glance(app, sale.id).await {
            Ok(Some(glance)) => glance,
            Ok(None) => continue,
            Err(Fault::Incomplete(_)) => nothing_left(app, sale).await?,
            Err(fault) => return Err(fault),
        });
    }
    Ok(found)
}

async fn nothing_left(app: &App, sale: Sale) -> Result<Glance, Fault> {
    let free = sale.items.iter().map(|item| (item.sku.clone(), 0)).collect();
    Ok(Glance {
        now: app.stock.now().await?,
        free,
        sale: Arc::new(sale),
    })
}

/// An item over all shards.
#[must_use]
pub fn total(sku: &Sku, readings: &[ShardReading]) -> Counters {
    readings
        .iter()
        .fold(Counters::default(), |sum, reading| sum.plus(&reading.counters(sku)))
}

fn item_stats(sku: &Sku, owned: i64, readings: &[ShardReading]) -> ItemStats {
    let counters = total(sku, readings);
    ItemStats {
        sku: sku.clone(),
        total: owned,
        available: counters.available,
        held: counters.held,
        sold: counters.sold,
        in_transit: counters.in_transit(),
    }
}

/// One shard at a glance.
#[must_use]
pub fn shard_stats(reading: &ShardReading) -> ShardStats {
    let by_sku = |count: fn(&Counters) -> i64| {
        reading
            .items
            .iter()
            .map(|(sku, counters)| (sku.clone(), count(counters)))
            .collect()
    };
    ShardStats {
        shard: reading.shard,
        epoch: reading.epoch,
        available: by_sku(|counters| counters.available),
        held: by_sku(|counters| counters.held),
        sold: by_sku(|counters| counters.sold),
        undrained_events: reading.undrained,
    }
}
