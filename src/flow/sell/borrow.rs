//! Borrow: bring free units of an item to a shard that ran short.
//!
//! A transfer has three steps:
//! - out of the lender, which writes the transfer down,
//! - into the borrower, which remembers the transfer's id,
//! - marked done at the lender.
//!
//! A crash between two steps leaves the lender's record. The scheduler, or the next shopper who is short, finishes it
//! ([`finish`]).

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::sale::{Durability, Sale};
use crate::domain::time::Millis;
use crate::flow::{App, RunTotals};
use crate::stock::keys::ShardKey;
use crate::stock::sell::transfer::{Destination, Sent, Transfer};
use futures_util::future::try_join_all;
use uuid::Uuid;

/// Moves units from the richest shards to `home`, a shard of the sale.
pub(in crate::flow::sell) async fn bring(
    app: &App,
    sale: &Sale,
    sku: &Sku,
    home: u16,
    quantity: i64,
    seen: &[i64],
) -> Result<(), Fault> {
    let own = seen.get(usize::from(home)).copied().unwrap_or_default();
    let lenders = (0..).zip(seen.iter().copied()).filter(|(shard, _)| *shard != home);
    let mut lenders: Vec<(u16, i64)> = lenders.collect();
    lenders.sort_by_key(|(_, available)| std::cmp::Reverse(*available));
    let mut missing = quantity - own;
    let mut moves = Vec::new();
    for (lender, available) in lenders {
        if missing <= 0 || available <= 0 {
            break;
        }
        // Half of the difference, so that the next shopper here need not borrow at once.
        let units = missing.max((available - own) / 2).min(available);
        missing -= units;
        moves.push(transfer(app, sale, sku, (lender, home), units));
    }
    try_join_all(moves).await?;
    Ok(())
}

/// Moves up to `units` from one shard to another. A fault leaves the units where they are, or in transit.
pub async fn transfer(app: &App, sale: &Sale, sku: &Sku, (from, to): (u16, u16), units: i64) -> Result<(), Fault> {
    let (lender, id) = (ShardKey::new(sale.id, from), Uuid::now_v7());
    let borrower = ShardKey::new(sale.id, to);
    let server = app.stock.server_of_both(lender, borrower).await?;
    let to_epoch = app.stock.epoch(borrower).await?;
    let sent_at = chrono::Utc::now().timestamp_millis();
    let sent = app
        .stock
        .transfer_out(lender, id, sku, Destination::Shard(to), units, sent_at)
        .await?;
    crash::point("transfer.after_out");
    if let Sent::Out { units, epoch } = sent {
        app.metrics.transfers.inc();
        app.metrics.transferred_units.inc_by(units.unsigned_abs());
        let sent = Transfer {
            id,
            to: Destination::Shard(to),
            units,
            sent_at,
            epoch,
            to_epoch,
            sku: sku.clone(),
            server,
        };
        finish(app, sale, from, &sent).await?;
    }
    Ok(())
}

/// Finishes the transfers of an item between shards; returns how many.
pub(in crate::flow::sell) async fn finish_between_shards(app: &App, sale: &Sale, sku: &Sku) -> Result<usize, Fault> {
    let transfers = app.stock.transfers(sale.id, sale.shards).await?;
    let mut finished = 0;
    for (lender, transfer) in transfers {
        if transfer.sku == *sku && finish(app, sale, lender, &transfer).await? {
            finished += 1;
        }
    }
    Ok(finished)
}

/// Finishes one transfer; `false` if it leaves the sale, which the restock decides. At durability `replica`, a replica
/// of the lender has the transfer before the units arrive. Otherwise a promoted replica could sell them a second time.
/// A fault leaves the transfer to be finished later.
pub async fn finish(app: &App, sale: &Sale, lender: u16, transfer: &Transfer) -> Result<bool, Fault> {
    let Destination::Shard(to) = transfer.to else {
        return Ok(false);
    };
    let lending = ShardKey::new(sale.id, lender);
    let borrower = ShardKey::new(sale.id, to);
    if sale.durability == Durability::Replica {
        app.stock.replicate_transfer(lending, transfer.id).await?;
    }
    app.stock.transfer_in(borrower, lender, transfer).await?;
    crash::point("transfer.after_in");
    app.stock.transfer_done(lending, transfer.id).await?;
    Ok(true)
}

/// Finishes transfers between two shards that are older than `age`; returns how many.
pub async fn finish_left(app: &App, sale: &Sale, age: Millis) -> Result<usize, Fault> {
    let now = chrono::Utc::now().timestamp_millis();
    let mut totals = RunTotals::default();
    let (transfers, silent) = app.stock.transfers_each(sale.id, sale.shards).await?;
    for (lender, transfer) in transfers {
        // A clock that went back must not keep a transfer open for ever.
        let left = now - transfer.sent_at >= age || transfer.sent_at > now;
        if left {
            totals.note(finish(app, sale, lender, &transfer).await.map(usize::from));
        }
    }
    totals.note(silent.map_or(Ok(0), Err));
    totals.finish()
}
