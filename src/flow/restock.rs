//! Restock: an operator adds units, or takes unsold ones back.
//!
//! Units come onto the ledger's books first and reach the shards by the outbox. Units that leave go out of the
//! shards first, as transfers that are bound for the ledger, and then off its books, or back if there were too few.
//! What was asked for is written down before anything moves: a crash anywhere leaves it pending, and the scheduler,
//! or the same request again, finishes it.

use super::App;
use super::borrow::finish_left;
use super::release::release_waiting;
use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, Sku};
use crate::domain::sale::{Sale, SaleState};
use crate::ledger::restock::{PendingRestock, RestockState, Taken};
use crate::stock::keys::ShardKey;
use crate::stock::transfer::{Destination, Sent};
use std::sync::Arc;
use uuid::Uuid;

/// How often a withdrawal looks for units that were on the move.
const LOOKS_MAX: usize = 3;
/// Pending restocks finished in one run.
const PENDING_MAX: i64 = 100;

/// What came of a restock.
#[derive(Debug, Clone)]
pub enum RestockOutcome {
    /// The units are there, or gone.
    Applied(Arc<Sale>),
    /// There are not that many free units, or there would be more than an item may have.
    Insufficient,
    /// The key belongs to another restock.
    KeyReused,
    /// The sale has no shards, not yet or not any more.
    NotLoaded(SaleState),
    /// There is no such sale.
    SaleNotFound,
    /// The sale has no such item.
    ItemNotFound,
}

/// Adds units to an item or, with a negative quantity, takes unsold ones back.
///
/// # Errors
/// A fault says that the outcome is unknown; the same key finds it.
pub async fn restock(
    app: &App,
    id: SaleId,
    key: &IdempotencyKey,
    sku: &Sku,
    quantity: i64,
) -> Result<RestockOutcome, Fault> {
    let Some(sale) = app.sales.fresh(id).await? else {
        return Ok(RestockOutcome::SaleNotFound);
    };
    if sale.item(sku).is_none() {
        return Ok(RestockOutcome::ItemNotFound);
    }
    if !sale.is_in_stock() {
        let state = if sale.retired {
            SaleState::Closed
        } else {
            SaleState::Draft
        };
        return Ok(RestockOutcome::NotLoaded(state));
    }
    let (restock, state) = app.ledger.begin_restock(id, key, sku, quantity).await?;
    crash::point("restock.after_begin");
    let applied = match state {
        RestockState::KeyReused => return Ok(RestockOutcome::KeyReused),
        RestockState::Applied => true,
        RestockState::Refused => false,
        RestockState::Pending => decide(app, &sale, restock).await?,
    };
    // At once, as far as it goes; the relay does the rest.
    if let Err(fault) = release_waiting(app).await {
        tracing::warn!(%fault, "a restock reaches its shards later");
    }
    if !applied {
        return Ok(RestockOutcome::Insufficient);
    }
    match app.ledger.sale(id).await? {
        Some(sale) => {
            let sale = Arc::new(sale);
            app.sales.changed(&sale).await;
            Ok(RestockOutcome::Applied(sale))
        }
        None => Ok(RestockOutcome::SaleNotFound),
    }
}

/// Decides a pending restock, or waits for whoever does; returns whether it was applied.
async fn decide(app: &App, sale: &Sale, id: Uuid) -> Result<bool, Fault> {
    let Some(pending) = app.ledger.take_restock(id).await? else {
        return app.ledger.restock_applied(id).await;
    };
    let applied = if pending.restock.quantity > 0 {
        pending.add(sale).await?
    } else {
        withdraw(app, sale, pending).await?
    };
    crash::point("restock.after_decision");
    Ok(applied)
}

async fn withdraw(app: &App, sale: &Sale, pending: PendingRestock) -> Result<bool, Fault> {
    let (id, sku, wanted) = (
        pending.restock.id,
        pending.restock.sku.clone(),
        -pending.restock.quantity,
    );
    let mut taken: Vec<Taken> = Vec::new();
    for _ in 0..LOOKS_MAX {
        // What an earlier try took is still on its way to the ledger: it counts first.
        taken = already_taken(app, sale, id).await?;
        let mut missing = wanted - taken.iter().map(|taken| taken.units).sum::<i64>();
        let survey = app.stock.survey(sale.id, sale.shards, &sku).await?;
        for (shard, counters) in (0u16..).zip(survey) {
            if missing <= 0 {
                break;
            }
            if counters.available == 0 || taken.iter().any(|taken| taken.shard == shard) {
                continue;
            }
            let transfer = transfer_id(id, shard);
            let from = ShardKey { sale: sale.id, shard };
            let now = chrono::Utc::now().timestamp_millis();
            let sent = app
                .stock
                .transfer_out(from, transfer, &sku, Destination::Ledger, missing, now)
                .await?;
            crash::point("restock.after_take");
            if let Sent::Out(units) = sent {
                taken.push(Taken { shard, transfer, units });
                missing -= units;
            }
        }
        if missing <= 0 {
            return pending.withdraw(&taken).await;
        }
        if finish_left(app, sale, 0).await? == 0 {
            break;
        }
    }
    pending.give_back(&taken).await?;
    Ok(false)
}

async fn already_taken(app: &App, sale: &Sale, restock: Uuid) -> Result<Vec<Taken>, Fault> {
    let transfers = app.stock.transfers(sale.id, sale.shards).await?;
    let ours = transfers
        .into_iter()
        .filter(|(shard, transfer)| transfer.id == transfer_id(restock, *shard));
    Ok(ours
        .map(|(shard, transfer)| Taken {
            shard,
            transfer: transfer.id,
            units: transfer.units,
        })
        .collect())
}

/// The id of the transfer that takes a withdrawal's units out of a shard: the same on every try.
fn transfer_id(restock: Uuid, shard: u16) -> Uuid {
    Uuid::from_u128(restock.as_u128() ^ u128::from(shard))
}

/// Finishes restocks that were left; returns how many.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn settle_pending(app: &App) -> Result<usize, Fault> {
    let mut settled = 0;
    for id in app.ledger.pending_restocks(PENDING_MAX).await? {
        let Some(pending) = app.ledger.take_restock(id).await? else {
            continue;
        };
        let Some(sale) = app.sales.fresh(pending.restock.sale).await? else {
            continue;
        };
        if pending.restock.quantity > 0 {
            pending.add(&sale).await?;
        } else {
            withdraw(app, &sale, pending).await?;
        }
        settled += 1;
    }
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use super::transfer_id;
    use std::collections::HashSet;

    #[test]
    fn each_shard_has_its_own_transfer_of_a_withdrawal() {
        let restock = uuid::Uuid::now_v7();
        let ids: HashSet<_> = (0..256).map(|shard| transfer_id(restock, shard)).collect();
        assert_eq!(ids.len(), 256);
    }
}
