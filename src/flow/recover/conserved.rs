//! Conserved: whether the shards of a sale together account for every unit that the sale owns, while they sell.
//!
//! The ledger is read in one snapshot between two readings of all shards. If no unit was granted, sent, received or
//! marked done between the two, the shards stood like that at the moment of the snapshot. A message that was delivered
//! and is not marked delivered yet is known by its id. So units on their way cannot make up for units that Redis has
//! lost.

use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::ledger::outbox::Message;
use crate::stock::operate::read_shard::ShardReading;
use crate::stock::sell::transfer::{Destination, Transfer};
use futures_util::future::try_join_all;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;
use uuid::Uuid;

/// Attempts at reading shards between which units move.
const ATTEMPTS_MAX: u32 = 50;

/// Whether all units are accounted for, each item at a moment of its own. Fails with `Unavailable` when one side does
/// not answer, a shard is being rebuilt, or units of an item move at every attempt.
pub(in crate::flow) async fn is_conserved(app: &App, sale: &Sale) -> Result<bool, Fault> {
    let mut open: Vec<&Sku> = sale.items.iter().map(|item| &item.sku).collect();
    for attempt in 1..=ATTEMPTS_MAX {
        match read_once(app, sale, &mut open).await {
            Ok(false) => return Ok(false),
            Ok(true) if open.is_empty() => return Ok(true),
            Ok(true) => tokio::time::sleep(Duration::from_millis(u64::from(attempt))).await,
            Err(fault) => return Err(passing(fault)),
        }
    }
    Err(Fault::Unavailable("units move between the shards".to_owned()))
}

/// Removes the items that stood still from `open`; `false` if one of them is not accounted for.
async fn read_once(app: &App, sale: &Sale, open: &mut Vec<&Sku>) -> Result<bool, Fault> {
    let readings = app.stock.read_shards(sale).await?;
    let owned = app.ledger.owned(sale.id).await?;
    let settled = settled(app, sale, &readings, &owned.waiting).await?;
    let after = app.stock.read_shards(sale).await?;
    let (mut undelivered, mut withdrawn): (HashMap<&str, i64>, HashSet<Uuid>) = (HashMap::new(), HashSet::new());
    for (shard, message) in &owned.waiting {
        match message {
            Message::Restock { id, sku, units } if !settled.contains(&(*shard, *id)) => {
                *undelivered.entry(sku).or_default() += units;
            }
            Message::Withdrawn { transfer } => {
                withdrawn.insert(*transfer);
            }
            Message::Restock { .. }
            | Message::State
            | Message::Resolve { .. }
            | Message::Ban { .. }
            | Message::GiveBack { .. } => {}
        }
    }
    let mut conserved = true;
    open.retain(|sku| {
        if !readings.iter().zip(&after).all(|(a, b)| stood_still(sku, a, b)) {
            return true;
        }
        let mut granted = undelivered.get(sku.as_str()).copied().unwrap_or_default();
        let (mut in_transit, mut on_their_way) = (0, 0);
        for reading in &readings {
            let counters = reading.counters(sku);
            granted += counters.granted - counters.withdrawn;
            in_transit += counters.in_transit();
            for transfer in reading.transfers.iter().filter(|it| it.sku == **sku) {
                if !settled.contains(&(transfer.arrives_at(reading.shard), transfer.id)) {
                    on_their_way += transfer.units;
                }
                // The ledger has taken these units off the sale's books already.
                if withdrawn.contains(&transfer.id) {
                    granted -= transfer.units;
                }
            }
        }
        let stock = owned.stock.get(sku).copied().unwrap_or_default();
        if granted != stock || in_transit != on_their_way {
            tracing::debug!(
                sale = %sale.id, %sku, stock, granted, in_transit, on_their_way,
                "the shards do not account for the units that the sale owns"
            );
            conserved = false;
        }
        false
    });
    Ok(conserved)
}

/// Whether the other shards account for no more than the sale owns, less what the ledger knows as held and sold on the
/// `missing` ones: these are silent, or have lost data. Their other units are unknown. Each is reconciled with the
/// others before it sells again. Fails with `Unavailable` as for [`is_conserved`].
pub(in crate::flow) async fn fits_without(app: &App, sale: &Sale, missing: &BTreeSet<u16>) -> Result<bool, Fault> {
    let answering: Vec<u16> = (0..sale.shards).filter(|shard| !missing.contains(shard)).collect();
    let read = || try_join_all(answering.iter().map(|shard| app.stock.read_shard(sale, *shard, 0)));
    let mut open: Vec<&Sku> = sale.items.iter().map(|item| &item.sku).collect();
    for attempt in 1..=ATTEMPTS_MAX {
        let readings = read().await.map_err(passing)?;
        let owned = app.ledger.owned(sale.id).await?;
        let kept = app.ledger.kept_on(sale.id, missing).await?;
        let settled = settled(app, sale, &readings, &owned.waiting).await?;
        let after = read().await.map_err(passing)?;
        let mut fits = true;
        open.retain(|sku| {
            if !readings.iter().zip(&after).all(|(a, b)| stood_still(sku, a, b)) {
                return true;
            }
            let mut units = kept.get(*sku).copied().unwrap_or_default();
            let mut withdrawn = HashSet::new();
            for (shard, message) in &owned.waiting {
                match message {
                    Message::Restock {
                        id,
                        sku: of,
                        units: due,
                    } if of == sku.as_str() && !missing.contains(shard) && !settled.contains(&(*shard, *id)) => {
                        units += due;
                    }
                    // The ledger has taken these units off the sale's books already.
                    Message::Withdrawn { transfer } => _ = withdrawn.insert(*transfer),
                    Message::Restock { .. }
                    | Message::State
                    | Message::Resolve { .. }
                    | Message::Ban { .. }
                    | Message::GiveBack { .. } => {}
                }
            }
            for reading in &readings {
                let counters = reading.counters(sku);
                units += counters.available + counters.held + counters.sold + counters.revoked;
                let is_counted = |it: &Transfer| match it.to {
                    Destination::Shard(to) => !missing.contains(&to),
                    Destination::Ledger => !withdrawn.contains(&it.id),
                };
                let sent = reading.transfers.iter().filter(|it| it.sku == **sku);
                let sent = sent.filter(|it| !settled.contains(&(it.arrives_at(reading.shard), it.id)));
                units += sent.filter(|it| is_counted(it)).map(|it| it.units).sum::<i64>();
            }
            fits &= units <= owned.stock.get(*sku).copied().unwrap_or_default();
            false
        });
        if !fits || open.is_empty() {
            return Ok(fits);
        }
        tokio::time::sleep(Duration::from_millis(u64::from(attempt))).await;
    }
    Err(Fault::Unavailable("units move between the shards".to_owned()))
}

fn passing(fault: Fault) -> Fault {
    match fault {
        Fault::Incomplete(why) => Fault::Unavailable(why),
        fault => fault,
    }
}

/// Whether no unit of an item reached a shard, left it or arrived from it between two readings.
fn stood_still(sku: &Sku, a: &ShardReading, b: &ShardReading) -> bool {
    let moves = |it: &ShardReading| {
        let it = it.counters(sku);
        [it.granted, it.out, it.r#in, it.withdrawn]
    };
    let sent = |it: &ShardReading| -> HashSet<Uuid> {
        let sent = it.transfers.iter().filter(|it| it.sku == *sku);
        sent.map(|it| it.id).collect()
    };
    a.record.epoch == b.record.epoch && moves(a) == moves(b) && sent(a) == sent(b)
}

/// The ids that these shards have applied: transfers that arrived or came back from the ledger, and restocks.
pub(in crate::flow) async fn settled(
    app: &App,
    sale: &Sale,
    readings: &[ShardReading],
    waiting: &[(u16, Message)],
) -> Result<HashSet<(u16, Uuid)>, Fault> {
    let sent = readings.iter().flat_map(|reading| {
        let sent = reading.transfers.iter();
        sent.map(|it| (it.arrives_at(reading.shard), it.id))
    });
    let due = waiting.iter().filter_map(|(shard, message)| match message {
        Message::Restock { id, .. } => Some((*shard, *id)),
        Message::State
        | Message::Resolve { .. }
        | Message::Ban { .. }
        | Message::Withdrawn { .. }
        | Message::GiveBack { .. } => None,
    });
    let is_read = |(shard, _): &(u16, Uuid)| readings.iter().any(|reading| reading.shard == *shard);
    let ids: Vec<(u16, Uuid)> = sent.chain(due).filter(is_read).collect();
    app.stock.applied(sale.id, &ids).await
}
