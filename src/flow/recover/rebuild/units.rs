//! The units of rebuilt shards: what the sale owns, less what the other shards account for.

use super::shoppers::LiveUnits;
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::operator::report::Counters;
use crate::domain::sale::Sale;
use crate::domain::sale::shard::part;
use crate::flow::App;
use crate::flow::recover::conserved::settled;
use crate::flow::sell::borrow::finish;
use crate::ledger::outbox::Message;
use crate::ledger::recover::rebuild::RebuildClaim;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::ShardReading;
use crate::stock::sell::transfer::{Destination, Transfer};
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use uuid::Uuid;

/// Attempts at reading the other shards while units move between them.
const ROUNDS_MAX: u32 = 50;
/// The distance between the versions of two epochs of a shard: more than the moves of one epoch.
const VERSIONS: i64 = 1 << 28;

/// What the other shards of a sale account for.
#[derive(Default)]
pub(super) struct OtherShards {
    /// Their units, and units in transit to the ledger that are still on its books.
    units: BTreeMap<Sku, i64>,
    /// Units that they sent to the rebuilt shards, less those that they got from them.
    sent: BTreeMap<Sku, i64>,
    /// Units that the ledger granted to them and that were not delivered yet.
    undelivered: BTreeMap<Sku, i64>,
    /// Transfers to the rebuilt shards that are written down, by shard.
    pub(super) on_their_way: HashMap<u16, Vec<Uuid>>,
}

/// Reads the shards that are not rebuilt, at a moment when no unit moves between them.
pub(super) async fn read_other_shards(
    app: &App,
    sale: &Sale,
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
) -> Result<OtherShards, Fault> {
    let others: Vec<u16> = (0..sale.shards).filter(|shard| !epochs.contains_key(shard)).collect();
    if others.is_empty() {
        return Ok(OtherShards::default());
    }
    let fences: Vec<(u16, i64)> = epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    for shard in &others {
        app.stock.fence(ShardKey::new(sale.id, *shard), &fences).await?;
    }
    let read = || try_join_all(others.iter().map(|shard| app.stock.read_shard(sale, *shard, 0)));
    for round in 1..=ROUNDS_MAX {
        let first = read().await?;
        let mut finished = 0;
        // A shard without a permit takes nothing in. If this same round reconciles it, it gets the permit only after
        // this call.
        let stands_still = |shard: u16| {
            let reading = first.iter().find(|reading| reading.shard == shard);
            reading.is_none_or(|reading| reading.record.permit_until <= reading.now)
        };
        for reading in &first {
            for transfer in &reading.transfers {
                let Destination::Shard(to) = transfer.to else {
                    continue;
                };
                let is_other = !epochs.contains_key(&to) && !stands_still(to);
                if let Some(standing) = claim.standings.get(&to).filter(|_| is_other) {
                    let transfer = Transfer {
                        to_epoch: standing.epoch,
                        ..transfer.clone()
                    };
                    finish(app, sale, reading.shard, &transfer).await?;
                    finished += 1;
                }
            }
        }
        let settled = settled(app, sale, &first, &claim.waiting).await?;
        let second = read().await?;
        let versions = |readings: &[ShardReading]| -> Vec<i64> {
            readings
                .iter()
                .flat_map(|it| it.items.values().map(|counters| counters.version))
                .collect()
        };
        if finished == 0 && versions(&first) == versions(&second) {
            // The units of `settled` transfers are among those counted, and no other transfer's are.
            return account(&second, claim, epochs, &settled);
        }
        tokio::time::sleep(Duration::from_millis(u64::from(round))).await;
    }
    Err(Fault::Unavailable("units move between the other shards".to_owned()))
}

fn account(
    readings: &[ShardReading],
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
    settled: &HashSet<(u16, Uuid)>,
) -> Result<OtherShards, Fault> {
    let withdrawn: Vec<Uuid> = claim
        .waiting
        .iter()
        .filter_map(|(_, message)| match message {
            Message::Withdrawn { transfer } => Some(*transfer),
            Message::State
            | Message::Resolve { .. }
            | Message::Ban { .. }
            | Message::Restock { .. }
            | Message::GiveBack { .. } => None,
        })
        .collect();
    let mut others = OtherShards::default();
    for reading in readings {
        let here = |id: Uuid| (reading.shard, id);
        for (sku, counters) in &reading.items {
            *others.units.entry(sku.clone()).or_default() +=
                counters.available + counters.held + counters.sold + counters.revoked;
            *others.sent.entry(sku.clone()).or_default() += counters.out - counters.r#in - counters.withdrawn;
        }
        for transfer in &reading.transfers {
            match transfer.to {
                // Back in the shard's units, and not marked done yet.
                Destination::Ledger if settled.contains(&here(transfer.id)) => {}
                Destination::Ledger => {
                    *others.sent.entry(transfer.sku.clone()).or_default() -= transfer.units;
                    if !withdrawn.contains(&transfer.id) {
                        *others.units.entry(transfer.sku.clone()).or_default() += transfer.units;
                    }
                }
                Destination::Shard(to) if epochs.contains_key(&to) => {
                    others.on_their_way.entry(to).or_default().push(transfer.id);
                }
                // Arrived, and not marked done yet.
                Destination::Shard(to) if settled.contains(&(to, transfer.id)) => {}
                // In transit between two of these shards.
                Destination::Shard(_) => {
                    *others.sent.entry(transfer.sku.clone()).or_default() -= transfer.units;
                    *others.units.entry(transfer.sku.clone()).or_default() += transfer.units;
                }
            }
        }
        // Units that the ledger granted to this shard and that were not delivered yet.
        for (of, message) in &claim.waiting {
            if let Message::Restock { id, sku, units } = message
                && *of == reading.shard
                && !settled.contains(&here(*id))
            {
                let sku = sku.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
                *others.undelivered.entry(sku).or_default() += units;
            }
        }
    }
    Ok(others)
}

/// Divides the units that no other shard accounts for among the rebuilt ones; `None` when their orders need more.
pub(super) fn divide(
    sale: &Sale,
    claim: &RebuildClaim,
    others: &OtherShards,
    live: &LiveUnits,
    epochs: &BTreeMap<u16, i64>,
) -> Option<BTreeMap<u16, BTreeMap<Sku, Counters>>> {
    let mut divided: BTreeMap<u16, BTreeMap<Sku, Counters>> = BTreeMap::new();
    let shards = u16::try_from(epochs.len()).unwrap_or(u16::MAX);
    for item in &sale.items {
        let sum = |of: &BTreeMap<Sku, i64>| of.get(&item.sku).copied().unwrap_or_default();
        let owned = sum(&claim.stock) - sum(&others.undelivered);
        let kept = |shard: u16| live.units.get(&(shard, item.sku.clone())).copied().unwrap_or_default();
        let kept_in_all: i64 = epochs.keys().map(|shard| kept(*shard).0 + kept(*shard).1).sum();
        let elsewhere = if bugs::has("a rebuilding forgets the other shards") {
            0
        } else {
            sum(&others.units)
        };
        let free = owned - elsewhere - kept_in_all;
        if free < 0 {
            return None;
        }
        let mut came = sum(&others.sent);
        for ((shard, epoch), at) in epochs.iter().zip(0..) {
            let (held, sold) = kept(*shard);
            let available = part(free, shards, at);
            let units = available + held + sold;
            // Units from other shards and units to them are one sum. Units that arrived and are no longer here have
            // left the sale.
            let (came_in, out) = match came {
                ..0 => (0, -came),
                _ if at + 1 == shards => (came, (came - units).max(0)),
                _ => (came.min(units), 0),
            };
            came = if came < 0 { 0 } else { came - came_in };
            let counters = Counters {
                available,
                held,
                sold,
                revoked: 0,
                out,
                r#in: came_in,
                granted: units + out - came_in,
                withdrawn: if came_in > 0 { out } else { 0 },
                version: epoch * VERSIONS,
            };
            divided.entry(*shard).or_default().insert(item.sku.clone(), counters);
        }
    }
    Some(divided)
}
