//! Audit: count every unit in Redis and in Postgres, and explain every difference.
//!
//! Each shard is read in one atomic script and the ledger in one snapshot, but not at the same moment: while units
//! move, the two may not fit. Then the audit looks again; what is wrong stays wrong.

use super::App;
use super::stats::total;
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::order::OrderState;
use crate::domain::report::{Audit, ItemAudit, LedgerSide, StockSide};
use crate::domain::sale::Sale;
use crate::ledger::audit::{Books, ShardBooks};
use crate::ledger::outbox::Message;
use crate::stock::read_shard::{EVENTS_MAX, ShardReading};
use crate::stock::transfer::Destination;
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// How often the audit looks while the two sides do not fit.
const LOOKS_MAX: u64 = 20;

/// Counts every unit of a sale; `None` when there is no such sale.
///
/// # Errors
/// `Unavailable` when either side cannot tell, `Incomplete` when a shard is not all there.
pub async fn audit(app: &App, id: SaleId) -> Result<Option<Audit>, Fault> {
    let mut looks = 0;
    loop {
        let Some(sale) = app.ledger.sale(id).await? else {
            return Ok(None);
        };
        if !sale.is_in_stock() {
            // Before it is loaded and after it is retired, there is one side only.
            let books = app.ledger.books(id, sale.shards).await?;
            return Ok(Some(count_ledger(&sale, &books)));
        }
        let books = app.ledger.books(id, sale.shards).await?;
        let shards = (0..sale.shards).map(|shard| app.stock.read_shard(&sale, shard, EVENTS_MAX));
        let readings = try_join_all(shards).await?;
        let mut audit = compare(&sale, &books, &readings);
        looks += 1;
        if audit.balanced || looks == LOOKS_MAX {
            audit.differences.extend(undecided(&books));
            audit.balanced = audit.differences.is_empty();
            return Ok(Some(audit));
        }
        tokio::time::sleep(Duration::from_millis(25 * looks)).await;
    }
}

/// Counts what there is of a sale that Redis does not have: whether the units that the ledger has granted fit its orders and
/// what the sale owns, and whether everything is decided.
fn count_ledger(sale: &Sale, books: &Books) -> Audit {
    let mut differences = undecided(books);
    let mut items = Vec::new();
    for item in &sale.items {
        let sku = &item.sku;
        let owned = books.stock.get(sku).copied().unwrap_or_default();
        let (mut held, mut sold) = (0, 0);
        for (shard, books) in books.shards.iter().enumerate() {
            differences.extend(misfit(sku, &format!("shard {shard}"), books));
            let units = books.units.get(sku).copied().unwrap_or_default();
            (held, sold) = (held + units.0, sold + units.1);
        }
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
    Audit {
        sale_id: sale.id,
        balanced: differences.is_empty(),
        ledger_only: true,
        items,
        differences,
    }
}

/// In what a shard's grant of an item differs from its orders, if it does.
fn misfit(sku: &Sku, at: &str, books: &ShardBooks) -> Option<String> {
    let (held, sold) = books.units.get(sku).copied().unwrap_or_default();
    let by_orders = books.by_orders.get(sku).copied().unwrap_or_default();
    (by_orders != (held, sold)).then(|| {
        format!(
            "{sku}, {at}: the ledger's grant says {held} held and {sold} sold, its orders {} and {}",
            by_orders.0, by_orders.1
        )
    })
}

/// What a shard should hold of an item, by the ledger, its events and what it has not been told.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
    held: i64,
    sold: i64,
    undrained: i64,
    untold: i64,
}

fn compare(sale: &Sale, books: &Books, readings: &[ShardReading]) -> Audit {
    let mut differences = Vec::new();
    let mut expected: BTreeMap<Sku, Expected> = BTreeMap::new();
    for (reading, shard) in readings.iter().zip(&books.shards) {
        for (sku, cell) in compare_shard(sale, shard, reading, &mut differences) {
            let sum = expected.entry(sku).or_default();
            sum.held += cell.held;
            sum.sold += cell.sold;
            sum.undrained += cell.undrained;
            sum.untold += cell.untold;
        }
    }
    let items: Vec<ItemAudit> = sale
        .items
        .iter()
        .map(|item| {
            let expected = expected.get(&item.sku).copied().unwrap_or_default();
            compare_item(&item.sku, expected, books, readings, &mut differences)
        })
        .collect();
    Audit {
        sale_id: sale.id,
        balanced: differences.is_empty(),
        ledger_only: false,
        items,
        differences,
    }
}

/// Events that could not be taken in and do not say of which order they are, until somebody has dealt with them. They
/// move no units, so a shard that has them is whole.
fn undecided(books: &Books) -> Vec<String> {
    let shards = books.shards.iter().enumerate();
    let unreadable = shards.flat_map(|(shard, books)| books.unreadable.iter().map(move |it| (shard, it)));
    let named = unreadable.map(|(shard, (Position { epoch, seq }, reason))| {
        format!("shard {shard}: event {epoch}-{seq} could not be taken in (`flashsale dead-letters`): {reason}")
    });
    named.collect()
}

/// In what a shard differs from what the ledger expects of it.
pub(super) fn shard_differences(sale: &Sale, books: &ShardBooks, reading: &ShardReading) -> Vec<String> {
    let mut differences = Vec::new();
    compare_shard(sale, books, reading, &mut differences);
    differences
}

fn compare_shard(
    sale: &Sale,
    books: &ShardBooks,
    reading: &ShardReading,
    differences: &mut Vec<String>,
) -> BTreeMap<Sku, Expected> {
    let at = format!("shard {}", reading.shard);
    let mut cells: BTreeMap<Sku, Expected> = BTreeMap::new();
    for item in &sale.items {
        let (held, sold) = books.units.get(&item.sku).copied().unwrap_or_default();
        differences.extend(misfit(&item.sku, &at, books));
        cells.insert(
            item.sku.clone(),
            Expected {
                held,
                sold,
                undrained: 0,
                untold: 0,
            },
        );
    }
    let position = books.position.unwrap_or(Position { epoch: 0, seq: 0 });
    let undrained: Vec<_> = reading
        .events
        .iter()
        .filter(|event| event.position > position)
        .collect();
    if usize::try_from(reading.undrained).unwrap_or(usize::MAX) > reading.events.len() {
        differences.push(format!(
            "{at}: {} events wait for the ledger, more than are counted",
            reading.undrained
        ));
    }
    if let Some(first) = undrained.first()
        && first.position.epoch == position.epoch
        && first.position.seq != position.seq + 1
    {
        differences.push(format!(
            "{at}: events {} to {} are missing",
            position.seq + 1,
            first.position.seq - 1
        ));
    }
    for event in undrained {
        let item = event
            .reserved
            .as_ref()
            .ok()
            .and_then(|it| sale.items.get(usize::from(it.item)).zip(Some(it)));
        match item.and_then(|(item, reserved)| cells.get_mut(&item.sku).zip(Some(reserved))) {
            Some((cell, reserved)) => {
                cell.held += i64::from(reserved.quantity);
                cell.undrained += i64::from(reserved.quantity);
            }
            None => differences.push(format!("{at}: event {} cannot be read", event.position.seq)),
        }
    }
    for message in &books.waiting {
        if let Message::Resolve {
            sku, quantity, state, ..
        } = message
            && let Some(cell) = sku.parse().ok().and_then(|sku: Sku| cells.get_mut(&sku))
        {
            cell.held += quantity;
            cell.untold += quantity;
            if state == OrderState::Paid.as_str() {
                cell.sold -= quantity;
            }
        }
    }
    for (sku, cell) in &cells {
        let counters = reading.counters(sku);
        if !counters.balance() {
            differences.push(format!(
                "{sku}, {at}: the shard's own counters do not add up: {counters:?}"
            ));
        }
        if (counters.held, counters.sold) != (cell.held, cell.sold) {
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
    }
    cells
}

fn compare_item(
    sku: &Sku,
    expected: Expected,
    books: &Books,
    readings: &[ShardReading],
    differences: &mut Vec<String>,
) -> ItemAudit {
    let owned = books.stock.get(sku).copied().unwrap_or_default();
    let counters = total(sku, readings);
    let mut ungranted = 0;
    for message in books.shards.iter().flat_map(|shard| &shard.waiting) {
        match message {
            Message::Restock { sku: of, units, .. } if of == sku.as_str() => ungranted += units,
            Message::Withdrawn { transfer } => {
                let sent = readings.iter().flat_map(|reading| &reading.transfers);
                ungranted -= sent
                    .filter(|it| it.id == *transfer && it.sku == *sku)
                    .map(|it| it.units)
                    .sum::<i64>();
            }
            _ => {}
        }
    }
    if counters.granted - counters.withdrawn + ungranted != owned {
        differences.push(format!(
            "{sku}: the sale owns {owned} units, its shards account for {} and wait for {ungranted}",
            counters.granted - counters.withdrawn
        ));
    }
    let in_transit = counters.in_transit();
    let sent = readings
        .iter()
        .flat_map(|reading| &reading.transfers)
        .filter(|it| it.sku == *sku);
    let on_their_way: i64 = sent.map(|it| it.units).sum();
    if in_transit < 0 || in_transit > on_their_way {
        differences.push(format!(
            "{sku}: {in_transit} units are in transit, {on_their_way} are written down"
        ));
    }
    if books.pending_restocks == 0 {
        let waiting: Vec<Uuid> = books
            .shards
            .iter()
            .flat_map(|shard| &shard.waiting)
            .filter_map(transfer_of)
            .collect();
        let sent = readings.iter().flat_map(|reading| &reading.transfers);
        let leaving = sent.filter(|it| it.sku == *sku && it.to == Destination::Ledger && !waiting.contains(&it.id));
        for it in leaving {
            differences.push(format!(
                "{sku}: {} units left for a restock that is decided, and wait to come back",
                it.units
            ));
        }
    }
    let (held, sold) = books.shards.iter().fold((0, 0), |sum, shard| {
        let (held, sold) = shard.units.get(sku).copied().unwrap_or_default();
        (sum.0 + held, sum.1 + sold)
    });
    ItemAudit {
        sku: sku.clone(),
        total: owned,
        stock: StockSide {
            available: counters.available,
            held: counters.held,
            sold: counters.sold,
            revoked: counters.revoked,
            in_transit,
            undrained: expected.undrained,
        },
        ledger: LedgerSide {
            held,
            sold,
            free: owned - held - sold,
            unreleased: expected.untold,
        },
    }
}

/// The transfer that a message is about.
fn transfer_of(message: &Message) -> Option<Uuid> {
    match message {
        Message::Withdrawn { transfer } | Message::GiveBack { transfer, .. } => Some(*transfer),
        _ => None,
    }
}
