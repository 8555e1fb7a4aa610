//! Stats: a sale in numbers, for operators. Reads only.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{Counters, ItemStats, ShardStats, Stats};
use crate::domain::sale::Sale;
use crate::domain::time::{Millis, from_millis};
use crate::flow::App;
use crate::flow::sell::waiting_room;
use crate::ledger::watch::audit::Sums;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::{ShardReading, total};
use futures_util::StreamExt as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Shards asked at once for their oldest event.
const SHARDS_AT_ONCE: usize = 32;

/// Reads a sale's numbers; `None` when there is no such sale. Fails with `Unavailable` when either side does not
/// answer, `Incomplete` when a shard is incomplete.
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
    let waiting_room = if sale.shown_guards().waiting_room && sale.is_in_stock() {
        Some(waiting_room::count(app, &sale).await?)
    } else {
        None
    };
    let alerts = app.ledger.alerts(Some(id)).await?;
    let refusals = app.ledger.refusal_counts(id).await?;
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
        refusal_counts: refusals.stopped,
        would_stop: refusals.would_stop,
    }))
}

/// A sale's numbers from Redis alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StockStats {
    pub items: Vec<ItemStats>,
    pub shards: Vec<ShardStats>,
    /// Events that are not in the ledger yet.
    pub undrained_events: i64,
}

/// Reads a sale's numbers from Redis alone, for while Postgres does not answer; `None` for a sale that this process
/// does not remember. Fails with `Unavailable` when Redis does not answer, `Incomplete` when a shard is incomplete.
pub async fn stock_stats(app: &App, id: SaleId) -> Result<Option<StockStats>, Fault> {
    let Some(sale) = app.sales.remembered(id).filter(|sale| sale.is_in_stock()) else {
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

/// The events of all sales that wait for the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    pub events: i64,
    /// How long the oldest of them has waited.
    pub oldest: Duration,
}

/// Counts the events that wait for the ledger, also while it does not answer. Shards that do not answer are left out.
/// Fails with `Unavailable` when Postgres has never returned the list of sales, or Redis does not return the time.
pub async fn backlog(app: &App) -> Result<Backlog, Fault> {
    let sales = app.sales.last_live().await?;
    // No event waits in a sale that rests.
    let may_wait = |sale: &&Arc<Sale>| sale.is_in_stock() && !app.permits.is_resting(sale.id);
    let shards = sales.iter().filter(may_wait).flat_map(|sale| ShardKey::all(sale));
    let shards: Vec<ShardKey> = shards.collect();
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
