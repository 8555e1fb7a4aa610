//! Balance: whether the shards of a sale together account for every unit that it owns, to the unit, while they sell.
//!
//! The ledger is read in one snapshot between two readings of all shards. If nothing was granted, sent, received or
//! struck between the two, it stood like that at the moment of the snapshot. What was told and not struck yet is known by
//! its id, so that nothing that is on its way can make up for something that Redis has lost.

use super::App;
use crate::domain::fault::Fault;
use crate::domain::sale::Sale;
use crate::ledger::audit::Owned;
use crate::ledger::outbox::Message;
use crate::stock::read_shard::ShardReading;
use crate::stock::transfer::Destination;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

/// How often shards between which units move are looked at.
const LOOKS_MAX: u32 = 50;

/// Whether all units are accounted for. Of shards that are being rebuilt nothing can be said, and need not be: they get
/// what the others do not have.
///
/// # Errors
/// `Unavailable` when one side cannot tell, or units move at every look.
pub(super) async fn is_even(app: &App, sale: &Sale) -> Result<bool, Fault> {
    for look in 1..=LOOKS_MAX {
        match look_once(app, sale).await {
            Ok(Some(even)) => return Ok(even),
            Ok(None) => tokio::time::sleep(Duration::from_millis(u64::from(look))).await,
            Err(Fault::Incomplete(_)) => return Ok(true),
            Err(fault) => return Err(fault),
        }
    }
    Err(Fault::Unavailable("units move between the shards".to_owned()))
}

/// `None` when something moved meanwhile.
async fn look_once(app: &App, sale: &Sale) -> Result<Option<bool>, Fault> {
    let readings = app.stock.read_shards(sale).await?;
    let owned = app.ledger.owned(sale.id).await?;
    let settled = settled(app, sale, &readings, &owned).await?;
    let after = app.stock.read_shards(sale).await?;
    if !readings.iter().zip(&after).all(|(a, b)| stood_still(a, b)) {
        return Ok(None);
    }
    let withdrawn = owned.waiting.iter().filter_map(|(_, message)| match message {
        Message::Withdrawn { transfer } => Some(*transfer),
        _ => None,
    });
    let withdrawn: HashSet<Uuid> = withdrawn.collect();
    let mut even = true;
    for item in &sale.items {
        let mut granted = owned.waiting.iter().fold(0, |sum, (shard, message)| match message {
            Message::Restock { id, sku, units } if *sku == item.sku.as_str() && !settled.contains(&(*shard, *id)) => {
                sum + units
            }
            _ => sum,
        });
        let (mut in_transit, mut on_their_way) = (0, 0);
        for reading in &readings {
            let counters = reading.counters(&item.sku);
            granted += counters.granted - counters.withdrawn;
            in_transit += counters.in_transit();
            for transfer in reading.transfers.iter().filter(|it| it.sku == item.sku) {
                let to = match transfer.to {
                    Destination::Shard(to) => to,
                    Destination::Ledger => reading.shard,
                };
                if !settled.contains(&(to, transfer.id)) {
                    on_their_way += transfer.units;
                }
                // They are off the sale's books already.
                if withdrawn.contains(&transfer.id) {
                    granted -= transfer.units;
                }
            }
        }
        let stock = owned.stock.get(&item.sku).copied().unwrap_or_default();
        if granted != stock || in_transit != on_their_way {
            tracing::debug!(
                sale = %sale.id, sku = %item.sku, stock, granted, in_transit, on_their_way,
                "the shards do not account for what the sale owns"
            );
            even = false;
        }
    }
    Ok(Some(even))
}

/// Whether no units came to a shard, left it or arrived from it between two readings.
fn stood_still(a: &ShardReading, b: &ShardReading) -> bool {
    let moves = |it: &ShardReading| -> Vec<[i64; 4]> {
        let counters = it.items.values();
        counters.map(|it| [it.granted, it.out, it.r#in, it.withdrawn]).collect()
    };
    let sent = |it: &ShardReading| -> HashSet<Uuid> { it.transfers.iter().map(|it| it.id).collect() };
    a.record.epoch == b.record.epoch && moves(a) == moves(b) && sent(a) == sent(b)
}

/// What a shard knows already of what is written down as on its way: transfers that have arrived, or have come back, and
/// restocks that it has been told.
async fn settled(
    app: &App,
    sale: &Sale,
    readings: &[ShardReading],
    owned: &Owned,
) -> Result<HashSet<(u16, Uuid)>, Fault> {
    let sent = readings.iter().flat_map(|reading| {
        reading.transfers.iter().map(|it| match it.to {
            Destination::Shard(to) => (to, it.id),
            // Given back by the ledger, it arrives where it came from.
            Destination::Ledger => (reading.shard, it.id),
        })
    });
    let due = owned.waiting.iter().filter_map(|(shard, message)| match message {
        Message::Restock { id, .. } => Some((*shard, *id)),
        _ => None,
    });
    let ids: Vec<(u16, Uuid)> = sent.chain(due).collect();
    app.stock.applied(sale.id, &ids).await
}
