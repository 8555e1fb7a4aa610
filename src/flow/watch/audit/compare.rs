//! Compares the two sides of a shard and of an item, and explains every difference.

use super::backlog::Backlog;
use super::units;
use crate::domain::ids::Sku;
use crate::domain::operator::report::{Counters, ItemAudit, LedgerSide, StockSide};
use crate::domain::order::OrderState;
use crate::domain::sale::Sale;
use crate::ledger::outbox::Message;
use crate::ledger::watch::audit::{ShardBooks, ShardSums, Sums};
use crate::stock::operate::read_shard::{ShardReading, total};
use crate::stock::sell::transfer::{Destination, Transfer};
use std::collections::BTreeMap;
use uuid::Uuid;

/// The differences of a shard or an item.
#[derive(Debug, Clone, Default)]
pub(in crate::flow) struct Findings {
    pub(super) differences: Vec<String>,
    /// Units that no place accounts for, or that two places do.
    pub(in crate::flow) conservation: i64,
    /// Held and sold units in which the two stores differ.
    pub(in crate::flow) drift: i64,
    /// Events that were not added up, so the drift is not known.
    pub(in crate::flow) uncounted_events: i64,
}

/// What a shard should hold of an item, by the ledger, its events and the decisions that were not delivered to it yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Expected {
    pub(super) held: i64,
    pub(super) sold: i64,
    pub(super) undrained: i64,
    pub(super) undelivered: i64,
}

/// The differences between a shard and what the ledger expects of it.
pub(in crate::flow) fn shard_differences(sale: &Sale, books: &ShardBooks, reading: &ShardReading) -> Vec<String> {
    let mut sums = books.sums.clone();
    let mut backlog = Backlog::of(reading.shard, sums.position, reading.undrained);
    backlog.add(sale, &reading.events);
    for message in &books.waiting {
        if let Message::Resolve {
            sku, quantity, state, ..
        } = message
            && let Ok(sku) = sku.parse::<Sku>()
        {
            let (units, paid) = sums.undelivered.entry(sku).or_default();
            *units += quantity;
            if state == OrderState::Paid.as_str() {
                *paid += quantity;
            }
        }
    }
    compare_shard(sale, &sums, &backlog, reading).0.differences
}

pub(super) fn compare_shard(
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

pub(super) fn compare_item(
    sku: &Sku,
    expected: Expected,
    sums: &Sums,
    readings: &[ShardReading],
) -> (ItemAudit, Findings) {
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
