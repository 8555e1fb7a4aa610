//! Stock audit: count every unit in Redis and in Postgres, and explain every difference.
//!
//! Each shard is read in one atomic script and the ledger in one snapshot, but not at the same moment. While units
//! move, the two may differ. So a shard or an item that differs is counted again; one that has agreed once is done.
//! The events that the ledger lacks are added up page by page, so memory does not grow with the backlog.

use crate::domain::event::{Event, Position};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::order::OrderState;
use crate::domain::report::{Audit, Counters, ItemAudit, LedgerSide, StockSide};
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::ledger::audit::{Misfit, ShardBooks, ShardSums, Sums};
use crate::ledger::outbox::Message;
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::total;
use crate::stock::read_shard::{EVENTS_MAX, ShardReading};
use crate::stock::transfer::{Destination, Transfer};
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Rounds of comparing the two sides while they differ.
const ROUNDS_MAX: u32 = 20;
/// No further round begins after this.
const ROUNDS_FOR: Duration = Duration::from_secs(60);
/// Shards read at once; each has a page of events in memory.
const SHARDS_AT_ONCE: usize = 32;

/// Counts every unit of a sale; `None` when there is no such sale.
pub async fn audit(app: &App, id: SaleId) -> Result<Option<Audit>, Fault> {
    let (began, mut count) = (Instant::now(), Count::default());
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
        if count.agrees() || began.elapsed() > ROUNDS_FOR {
            break;
        }
        if round < ROUNDS_MAX {
            tokio::time::sleep(Duration::from_millis(25) * round).await;
        }
    }
    let differences = count.findings().flat_map(|it| it.differences.clone()).collect();
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
            differences.push(format!(
                "{sku}: {held} units are held for orders that nobody has decided"
            ));
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

/// The differences of a shard or an item.
#[derive(Debug, Clone, Default)]
pub(in crate::flow) struct Findings {
    differences: Vec<String>,
    /// Units that no place accounts for, or that two places do.
    pub(in crate::flow) conservation: i64,
    /// Held and sold units in which the two stores differ.
    pub(in crate::flow) drift: i64,
    /// Events that were not added up, so the drift is not known.
    pub(in crate::flow) uncounted_events: i64,
}

/// What a shard should hold of an item, by the ledger, its events and the decisions that were not delivered to it yet.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    held: i64,
    sold: i64,
    undrained: i64,
    undelivered: i64,
}

/// The comparison of a sale's two sides so far.
#[derive(Default)]
pub(in crate::flow) struct Count {
    /// The compared shards, by number; one without findings has agreed.
    shards: BTreeMap<u16, (Findings, BTreeMap<Sku, Expected>)>,
    /// The compared items.
    items: BTreeMap<Sku, Findings>,
    audits: Vec<ItemAudit>,
}

impl Count {
    /// Whether everything has agreed, each shard and each item at a moment of its own.
    pub(in crate::flow) fn agrees(&self) -> bool {
        self.findings().all(|it| it.differences.is_empty())
    }

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

/// Reads a shard, and adds up the first `events` events after this position, which the ledger lacks.
pub(in crate::flow) async fn read(
    app: &App,
    sale: &Sale,
    shard: u16,
    drained: Option<Position>,
    events: usize,
) -> Result<(ShardReading, Backlog), Fault> {
    let mut reading = app.stock.read_shard(sale, shard, events).await?;
    let mut backlog = Backlog::of(shard, drained, reading.undrained);
    backlog.add(sale, &std::mem::take(&mut reading.events));
    Ok((reading, backlog))
}

/// The events of a shard that the ledger lacks, added up page by page.
pub(in crate::flow) struct Backlog {
    shard: u16,
    /// The ledger has the events up to here.
    drained: Position,
    /// The last event that was read.
    read_to: Position,
    /// Events of the reading that were not read yet.
    left: i64,
    added: usize,
    pub(in crate::flow) units: BTreeMap<Sku, i64>,
    /// The first and the last event of each gap.
    pub(in crate::flow) gaps: Vec<(i64, i64)>,
    /// The first and the last event of each run of events that cannot be read.
    unreadable: Vec<(i64, i64)>,
}

impl Backlog {
    /// A shard's backlog of `left` events. The ledger has those up to `drained`.
    pub(in crate::flow) fn of(shard: u16, drained: Option<Position>, left: i64) -> Self {
        Self {
            shard,
            drained: drained.unwrap_or(Position { epoch: 0, seq: 0 }),
            read_to: Position { epoch: 0, seq: 0 },
            left,
            added: 0,
            units: BTreeMap::new(),
            gaps: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// Adds the rest, up to about `events_max` events in all.
    pub(in crate::flow) async fn read_on(mut self, app: &App, sale: &Sale, events_max: usize) -> Result<Self, Fault> {
        let key = ShardKey::new(sale.id, self.shard);
        while self.left > 0 && self.added < events_max {
            let page = app.stock.events_after(key, self.read_to, EVENTS_MAX).await?;
            if page.is_empty() {
                break;
            }
            self.add(sale, &page);
        }
        Ok(self)
    }

    /// Adds those events of a page that belong to the reading; later purchases are left out.
    fn add(&mut self, sale: &Sale, page: &[Event]) {
        let left = usize::try_from(self.left).unwrap_or_default();
        for event in page.iter().take(left) {
            self.left -= 1;
            self.added += 1;
            // Events that the ledger has, and that are not trimmed yet, go first.
            let (before, position) = (self.read_to.max(self.drained), event.position);
            self.read_to = position;
            if position <= self.drained {
                continue;
            }
            if position.epoch == before.epoch && position.seq != before.seq + 1 {
                self.gaps.push((before.seq + 1, position.seq - 1));
            }
            let reserved = event.reserved.as_ref().ok();
            match reserved.and_then(|it| Some((sale.items.get(usize::from(it.item))?, it.quantity))) {
                Some((item, quantity)) => *self.units.entry(item.sku.clone()).or_default() += i64::from(quantity),
                None => match self.unreadable.last_mut() {
                    Some((_, last)) if *last + 1 == position.seq => *last = position.seq,
                    _ => self.unreadable.push((position.seq, position.seq)),
                },
            }
        }
    }
}

/// The differences between a shard and what the ledger expects of it.
pub(in crate::flow) fn shard_differences(sale: &Sale, books: &ShardBooks, reading: &ShardReading) -> Vec<String> {
    let mut backlog = Backlog::of(reading.shard, books.position, reading.undrained);
    backlog.add(sale, &reading.events);
    let mut sums = ShardSums {
        position: books.position,
        units: books.units.clone(),
        undelivered: BTreeMap::new(),
    };
    for message in &books.waiting {
        if let Message::Resolve {
            sku, quantity, state, ..
        } = message
            && let Ok(sku) = sku.parse::<Sku>()
        {
            let (units, paid) = sums.undelivered.entry(sku).or_default();
            *units += quantity;
            *paid += if state == OrderState::Paid.as_str() {
                *quantity
            } else {
                0
            };
        }
    }
    compare_shard(sale, &sums, &backlog, reading).0.differences
}

fn compare_shard(
    sale: &Sale,
    sums: &ShardSums,
    backlog: &Backlog,
    reading: &ShardReading,
) -> (Findings, BTreeMap<Sku, Expected>) {
    let at = format!("shard {}", reading.shard);
    let (mut findings, mut cells) = (Findings::default(), BTreeMap::new());
    let differences = &mut findings.differences;
    if backlog.left > 0 {
        findings.uncounted_events = backlog.left;
        differences.push(format!(
            "{at}: {} events wait for the ledger, more than are counted",
            reading.undrained
        ));
    }
    for (first, last) in &backlog.gaps {
        differences.push(format!("{at}: events {first} to {last} are missing"));
    }
    for (first, last) in &backlog.unreadable {
        differences.push(match first == last {
            true => format!("{at}: event {first} cannot be read"),
            false => format!("{at}: events {first} to {last} cannot be read"),
        });
    }
    for item in &sale.items {
        let of = |units: &BTreeMap<Sku, (i64, i64)>| units.get(&item.sku).copied().unwrap_or_default();
        let undrained = backlog.units.get(&item.sku).copied().unwrap_or_default();
        let ((held, sold), (undelivered, paid)) = (of(&sums.units), of(&sums.undelivered));
        let cell = Expected {
            held: held + undrained + undelivered,
            sold: sold - paid,
            undrained,
            undelivered,
        };
        let (sku, counters) = (&item.sku, reading.counters(&item.sku));
        if !counters.balance() {
            findings.conservation += counters.imbalance().abs();
            differences.push(format!(
                "{sku}, {at}: the shard's own counters do not add up: {counters:?}"
            ));
        }
        if backlog.left == 0 && (counters.held, counters.sold) != (cell.held, cell.sold) {
            findings.drift += (counters.held - cell.held).abs() + (counters.sold - cell.sold).abs();
            differences.push(format!(
                "{sku}, {at}: the stock has {} held and {} sold, the ledger expects {} and {}",
                counters.held, counters.sold, cell.held, cell.sold
            ));
        }
        if counters.revoked > 0 {
            differences.push(format!(
                "{sku}, {at}: {} units are withheld for revoked orders",
                counters.revoked
            ));
        }
        cells.insert(sku.clone(), cell);
    }
    (findings, cells)
}

fn compare_item(sku: &Sku, expected: Expected, sums: &Sums, readings: &[ShardReading]) -> (ItemAudit, Findings) {
    let owned = sums.stock.get(sku).copied().unwrap_or_default();
    let counters = total(sku, readings);
    let transfers = readings.iter().flat_map(|reading| &reading.transfers);
    let transfers: Vec<&Transfer> = transfers.filter(|it| it.sku == *sku).collect();
    let mut findings = Findings::default();
    findings.check_granted(sku, owned, &counters, ungranted(sku, &sums.waiting, &transfers));
    findings.check_transit(sku, &counters, &transfers);
    if sums.pending_restocks == 0 {
        findings.check_withdrawn(sku, &sums.waiting, &transfers);
    }
    let (held, sold) = units(sums, sku);
    let audit = ItemAudit {
        sku: sku.clone(),
        total: owned,
        stock: StockSide {
            available: counters.available,
            held: counters.held,
            sold: counters.sold,
            revoked: counters.revoked,
            in_transit: counters.in_transit(),
            undrained: expected.undrained,
        },
        ledger: LedgerSide {
            held,
            sold,
            free: owned - held - sold,
            unreleased: expected.undelivered,
        },
    };
    (audit, findings)
}

/// The units of an item that wait for a grant, by the messages in the outbox. Below 0, they wait to be taken off one.
fn ungranted(sku: &Sku, waiting: &[Message], transfers: &[&Transfer]) -> i64 {
    let units = waiting.iter().map(|message| match message {
        Message::Restock { sku: of, units, .. } if of == sku.as_str() => *units,
        Message::Withdrawn { transfer } => {
            let withdrawn = transfers.iter().filter(|it| it.id == *transfer);
            -withdrawn.map(|it| it.units).sum::<i64>()
        }
        Message::Restock { .. }
        | Message::State
        | Message::Resolve { .. }
        | Message::Ban { .. }
        | Message::GiveBack { .. } => 0,
    });
    units.sum()
}

impl Findings {
    /// Whether the shards account for what the sale owns.
    fn check_granted(&mut self, sku: &Sku, owned: i64, counters: &Counters, ungranted: i64) {
        let accounted = counters.granted - counters.withdrawn;
        if accounted + ungranted != owned {
            self.conservation += (accounted + ungranted - owned).abs();
            self.differences.push(format!(
                "{sku}: the sale owns {owned} units, its shards account for {accounted} and wait for {ungranted}"
            ));
        }
    }

    /// Whether the transfers of an item account for its units in transit.
    fn check_transit(&mut self, sku: &Sku, counters: &Counters, transfers: &[&Transfer]) {
        let in_transit = counters.in_transit();
        let on_their_way: i64 = transfers.iter().map(|it| it.units).sum();
        if in_transit < 0 || in_transit > on_their_way {
            self.conservation += (in_transit - in_transit.clamp(0, on_their_way)).abs();
            self.differences.push(format!(
                "{sku}: {in_transit} units are in transit, {on_their_way} are written down"
            ));
        }
    }

    /// Whether units left for a withdrawal that was decided without them.
    fn check_withdrawn(&mut self, sku: &Sku, waiting: &[Message], transfers: &[&Transfer]) {
        let waiting: Vec<Uuid> = waiting.iter().filter_map(transfer_of).collect();
        let to_ledger = transfers.iter().filter(|it| it.to == Destination::Ledger);
        for it in to_ledger.filter(|it| !waiting.contains(&it.id)) {
            self.differences.push(format!(
                "{sku}: {} units left for a restock that is decided, and wait to come back",
                it.units
            ));
        }
    }
}

fn transfer_of(message: &Message) -> Option<Uuid> {
    match message {
        Message::Withdrawn { transfer } | Message::GiveBack { transfer, .. } => Some(*transfer),
        Message::State | Message::Resolve { .. } | Message::Ban { .. } | Message::Restock { .. } => None,
    }
}
