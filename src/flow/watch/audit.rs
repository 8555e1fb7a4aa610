//! Stock audit: count every unit in Redis and in Postgres, and explain every difference.
//!
//! Each shard is read in one atomic script and the ledger in one snapshot, but not at the same moment. While units
//! move, the two may differ. So a shard or an item that differs is counted again; one that has agreed once is done.
//! The events that the ledger lacks are added up page by page, so memory does not grow with the backlog.

mod backlog;
mod compare;

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{Audit, ItemAudit, LedgerSide, StockSide};
use crate::domain::order::event::Position;
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::ledger::watch::audit::{Misfit, Sums};
use crate::stock::operate::read_shard::ShardReading;
pub(in crate::flow) use backlog::{Backlog, read};
pub(in crate::flow) use compare::shard_differences;
use compare::{Expected, Findings, compare_item, compare_shard};
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Rounds of comparing the two sides while they differ.
const ROUNDS_MAX: u32 = 20;
/// Differences that this many rounds in a row repeat word for word do not come from units that move.
const SAME_ROUNDS: u32 = 10;
/// No further round begins after this.
const ROUNDS_FOR: Duration = Duration::from_secs(60);
/// Shards read at once; each has a page of events in memory.
const SHARDS_AT_ONCE: usize = 32;

/// Counts every unit of a sale; `None` when there is no such sale.
pub async fn audit(app: &App, id: SaleId) -> Result<Option<Audit>, Fault> {
    let (began, mut count) = (Instant::now(), Count::default());
    let (mut differences, mut same): (Vec<String>, u32) = (Vec::new(), 0);
    for round in 1..=ROUNDS_MAX {
        let Some(sale) = app.ledger.sale(id).await? else {
            return Ok(None);
        };
        if !sale.is_in_stock() {
            // Before the sale is loaded and after it is retired, only the ledger has it.
            let (items, differences) = count_ledger(&sale, &app.ledger.sums(id, sale.shards).await?);
            return finish(app, id, true, items, differences).await.map(Some);
        }
        count.compare(app, &sale, usize::MAX).await?;
        let found: Vec<String> = count.findings().flat_map(|it| it.differences.clone()).collect();
        same = if found == differences { same + 1 } else { 1 };
        differences = found;
        if differences.is_empty() || same >= SAME_ROUNDS || began.elapsed() > ROUNDS_FOR {
            break;
        }
        if round < ROUNDS_MAX {
            tokio::time::sleep(Duration::from_millis(25) * round).await;
        }
    }
    finish(app, id, false, count.audits, differences).await.map(Some)
}

/// Adds the ledger's own findings, and sorts the differences: readers page through them by their text.
async fn finish(
    app: &App,
    id: SaleId,
    ledger_only: bool,
    items: Vec<ItemAudit>,
    mut differences: Vec<String>,
) -> Result<Audit, Fault> {
    differences.extend(app.ledger.misfits(id).await?.iter().map(misfit));
    for (shard, Position { epoch, seq }, reason) in app.ledger.unreadable_events(id).await? {
        // Such events move no units, so a shard that has them is intact.
        differences.push(format!(
            "shard {shard}: event {epoch}-{seq} could not be stored (`flashsale dead-letters`): {reason}"
        ));
    }
    differences.sort();
    differences.dedup();
    Ok(Audit {
        sale_id: id,
        balanced: differences.is_empty(),
        ledger_only,
        items,
        differences,
    })
}

fn misfit(misfit: &Misfit) -> String {
    let Misfit {
        shard,
        sku,
        granted,
        ordered,
    } = misfit;
    format!(
        "{sku}, shard {shard}: the ledger's grant says {} held and {} sold, its orders {} and {}",
        granted.0, granted.1, ordered.0, ordered.1
    )
}

/// Counts a sale that Redis does not hold: whether the ledger's granted units fit what the sale owns, and whether
/// every order is decided.
fn count_ledger(sale: &Sale, sums: &Sums) -> (Vec<ItemAudit>, Vec<String>) {
    let (mut items, mut differences) = (Vec::new(), Vec::new());
    for item in &sale.items {
        let sku = &item.sku;
        let owned = sums.stock.get(sku).copied().unwrap_or_default();
        let (held, sold) = units(sums, sku);
        if held + sold > owned {
            differences.push(format!(
                "{sku}: the sale owns {owned} units, {held} are held and {sold} sold"
            ));
        }
        if held > 0 {
            differences.push(format!("{sku}: {held} units are held for undecided orders"));
        }
        items.push(ItemAudit {
            sku: sku.clone(),
            total: owned,
            stock: StockSide::default(),
            ledger: LedgerSide {
                held,
                sold,
                free: owned - held - sold,
                unreleased: 0,
            },
        });
    }
    (items, differences)
}

/// An item's held and sold units by the grants of all shards.
fn units(sums: &Sums, sku: &Sku) -> (i64, i64) {
    sums.shards.iter().fold((0, 0), |sum, shard| {
        let (held, sold) = shard.units.get(sku).copied().unwrap_or_default();
        (sum.0 + held, sum.1 + sold)
    })
}

/// The comparison of a sale's two sides so far. A shard and an item have agreed at moments of their own.
#[derive(Default)]
pub(in crate::flow) struct Count {
    /// The compared shards, by number; one without findings has agreed.
    shards: BTreeMap<u16, (Findings, BTreeMap<Sku, Expected>)>,
    /// The compared items.
    items: BTreeMap<Sku, Findings>,
    audits: Vec<ItemAudit>,
}

impl Count {
    pub(in crate::flow) fn findings(&self) -> impl Iterator<Item = &Findings> {
        let shards = self.shards.values().map(|(findings, _)| findings);
        shards.chain(self.items.values())
    }

    /// Compares every shard and item that has not agreed yet. Adds up at most `events_max` events of each shard's
    /// stream. The drift of a shard with more is not counted.
    pub(in crate::flow) async fn compare(&mut self, app: &App, sale: &Sale, events_max: usize) -> Result<(), Fault> {
        let agreed: BTreeSet<u16> = {
            let agreed = self.shards.iter().filter(|(_, (it, _))| it.differences.is_empty());
            agreed.map(|(shard, _)| *shard).collect()
        };
        let sums = app.ledger.sums(sale.id, sale.shards).await?;
        // Read all counters before paging through any stream: events that the drain stores meanwhile are not
        // missing.
        let (at, skipped) = (&sums.shards, &agreed);
        let first = futures_util::stream::iter(0..sale.shards).map(|shard| async move {
            let position = at.get(usize::from(shard)).and_then(|it| it.position);
            let events = if skipped.contains(&shard) { 0 } else { events_max };
            read(app, sale, shard, position, events).await
        });
        let first: Vec<(ShardReading, Backlog)> = first.buffered(SHARDS_AT_ONCE).try_collect().await?;
        let (readings, mut open): (Vec<ShardReading>, Vec<Backlog>) = first.into_iter().unzip();
        open.retain(|backlog| !agreed.contains(&backlog.shard));
        let whole = futures_util::stream::iter(open).map(|backlog| backlog.read_on(app, sale, events_max));
        let whole: Vec<Backlog> = whole.buffer_unordered(SHARDS_AT_ONCE).try_collect().await?;
        for backlog in whole {
            let at = usize::from(backlog.shard);
            if let (Some(reading), Some(sums)) = (readings.get(at), sums.shards.get(at)) {
                let compared = compare_shard(sale, sums, &backlog, reading);
                self.shards.insert(backlog.shard, compared);
            }
        }
        self.audits.clear();
        for item in &sale.items {
            let cells = self.shards.values().filter_map(|(_, cells)| cells.get(&item.sku));
            let expected = cells.fold(Expected::default(), |sum, it| Expected {
                held: sum.held + it.held,
                sold: sum.sold + it.sold,
                undrained: sum.undrained + it.undrained,
                undelivered: sum.undelivered + it.undelivered,
            });
            let (audit, findings) = compare_item(&item.sku, expected, &sums, &readings);
            self.audits.push(audit);
            let before = self.items.get(&item.sku);
            if before.is_none_or(|before| !before.differences.is_empty()) {
                self.items.insert(item.sku.clone(), findings);
            }
        }
        Ok(())
    }
}
