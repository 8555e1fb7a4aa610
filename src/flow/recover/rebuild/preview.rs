//! What a rebuild of a sale would change. It reads both sides and writes nothing. While the sale sells, the numbers
//! move on.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{ItemPreview, RebuildPreview, ShardPreview, Units};
use crate::domain::sale::Sale;
use crate::domain::sale::shard::part;
use crate::flow::watch::audit::{Backlog, read};
use crate::flow::{App, sale_book};
use crate::ledger::watch::audit::Sums;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::{EVENTS_MAX, ShardReading};
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::collections::BTreeMap;

const SHARDS_AT_ONCE: usize = 32;
/// Attempts at reading both sides while the drain takes events in.
const ROUNDS_MAX: u32 = 5;

/// A shard's reading, if it can be read, and the units of its events that the ledger lacks.
type ShardContents = (Option<ShardReading>, BTreeMap<Sku, i64>);

/// The changes that a rebuild of all shards would make; `None` when there is no such sale, or Redis does not hold it.
pub async fn preview(app: &App, id: SaleId) -> Result<Option<RebuildPreview>, Fault> {
    let Some(sale) = sale_book::find(app, id).await? else {
        return Ok(None);
    };
    if !sale.is_in_stock() || sale.leaving {
        return Ok(None);
    }
    for _ in 0..ROUNDS_MAX {
        let sums = app.ledger.sums(id, sale.shards).await?;
        if let Some(found) = find(app, &sale, &sums).await? {
            return Ok(Some(compare(&sale, &sums, &found)));
        }
    }
    Err(Fault::Unavailable(
        "events are drained while the shards are read".to_owned(),
    ))
}

/// Reads all shards; `None` when the drain has stored some of their events since `sums` was read.
async fn find(app: &App, sale: &Sale, sums: &Sums) -> Result<Option<Vec<ShardContents>>, Fault> {
    let found = futures_util::stream::iter(0..sale.shards).map(|shard| async move {
        let position = sums.shards.get(usize::from(shard)).and_then(|it| it.position);
        match read(app, sale, shard, position, EVENTS_MAX).await {
            Ok((reading, backlog)) => {
                let backlog = backlog.read_on(app, sale, usize::MAX).await?;
                let is_whole = backlog.gaps.is_empty();
                Ok(is_whole.then_some((Some(reading), backlog.units)))
            }
            // The shard has lost something; its events may still be there.
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {
                let left = app.stock.undrained(&[ShardKey::new(sale.id, shard)]).await?;
                let left = left.first().copied().unwrap_or_default();
                let backlog = Backlog::of(shard, position, left)
                    .read_on(app, sale, usize::MAX)
                    .await?;
                Ok(Some((None, backlog.units)))
            }
            Err(fault) => Err(fault),
        }
    });
    let found: Vec<Option<ShardContents>> = found.buffered(SHARDS_AT_ONCE).try_collect().await?;
    Ok(found.into_iter().collect())
}

fn compare(sale: &Sale, sums: &Sums, found: &[ShardContents]) -> RebuildPreview {
    let kept = |shard: usize, sku: &Sku| {
        let of = |units: &BTreeMap<Sku, (i64, i64)>| units.get(sku).copied().unwrap_or_default();
        let (held, sold) = sums.shards.get(shard).map_or((0, 0), |it| of(&it.units));
        // A rebuild takes the shard's events in first.
        let undrained = found.get(shard).and_then(|(_, units)| units.get(sku));
        (held + undrained.copied().unwrap_or_default(), sold)
    };
    let free: BTreeMap<&Sku, i64> = sale
        .items
        .iter()
        .map(|item| {
            let kept: i64 = (0..found.len())
                .map(|shard| kept(shard, &item.sku))
                .map(|(held, sold)| held + sold)
                .sum();
            let owned = sums.stock.get(&item.sku).copied().unwrap_or_default();
            (&item.sku, (owned - kept).max(0))
        })
        .collect();
    let shards = (0..sale.shards).zip(found).map(|(shard, (reading, _))| {
        let items = sale.items.iter().map(|item| {
            let (held, sold) = kept(usize::from(shard), &item.sku);
            let free = free.get(&item.sku).copied().unwrap_or_default();
            ItemPreview {
                sku: item.sku.clone(),
                before: reading.as_ref().map(|reading| {
                    let counters = reading.counters(&item.sku);
                    Units {
                        available: counters.available,
                        held: counters.held,
                        sold: counters.sold,
                    }
                }),
                after: Units {
                    available: part(free, sale.shards, shard),
                    held,
                    sold,
                },
            }
        });
        ShardPreview {
            shard,
            undrained_events: reading.as_ref().map_or(0, |reading| reading.undrained),
            items: items.collect(),
        }
    });
    RebuildPreview {
        sale_id: sale.id,
        dry_run: true,
        shards: shards.collect(),
    }
}
