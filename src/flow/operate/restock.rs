//! Restock: an operator adds units, or takes unsold ones back.
//!
//! Added units go onto the ledger's books first and reach the shards by the outbox. Withdrawn units leave the shards
//! first, as transfers to the ledger. Then they go off its books, or back if there were too few.
//!
//! The request is written down before anything moves. A crash anywhere leaves it pending, and the scheduler, or the
//! same request again, finishes it. An addition is reported as done once every shard has its part.

use crate::crash;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, Sku};
use crate::domain::sale::{Sale, SaleState};
use crate::domain::time::Millis;
use crate::flow::recover::attend::attend;
use crate::flow::sell::borrow::{finish, finish_left};
use crate::flow::settle::release::release_of;
use crate::flow::{App, RunTotals, sale_book};
use crate::ledger::operate::restock::{PendingRestock, RestockState, Taken, TakenRestock};
use crate::stock::keys::ShardKey;
use crate::stock::sell::survey::Surveyed;
use crate::stock::sell::transfer::{Destination, Sent, Transfer};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

/// Attempts of a withdrawal while units are moving.
const ATTEMPTS_MAX: u16 = 3;
/// The time between two attempts, and the attempts while the same request, which came just before, is being decided.
const WAIT: Duration = Duration::from_millis(20);
const WAITS_MAX: u32 = 100;
/// How long a restock waits for its units to reach their shards. A delivery that came too early is repeated a second
/// later.
const DELIVER_MAX: Duration = Duration::from_secs(3);
/// Pending restocks finished in one run.
const PENDING_MAX: i64 = 100;
/// A run finishes no further restock after this: payments that are pending share its turn.
const SETTLE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub enum RestockOutcome {
    /// The units were added, or are gone.
    Applied(Arc<Sale>),
    /// There are too few free units, or the item would have more than it may. `free` are its free units now, unless a
    /// shard does not answer.
    Insufficient {
        free: Option<i64>,
    },
    KeyReused,
    /// The sale has no shards: it is not loaded yet, or leaves Redis.
    NotLoaded(SaleState),
    SaleNotFound,
    ItemNotFound,
}

/// Adds units to an item or, with a negative quantity, takes unsold ones back. After a fault the outcome is unknown;
/// the same key finds it.
pub async fn restock(
    app: &App,
    id: SaleId,
    key: &IdempotencyKey,
    sku: &Sku,
    quantity: i64,
) -> Result<RestockOutcome, Fault> {
    let Some(sale) = sale_book::find(app, id).await?.map(Arc::new) else {
        return Ok(RestockOutcome::SaleNotFound);
    };
    if sale.item(sku).is_none() {
        return Ok(RestockOutcome::ItemNotFound);
    }
    // A restock needs the epoch of a permit, and shards of a sale that is leaving Redis get none.
    let leaves = sale.leaving;
    if leaves || !sale.is_in_stock() {
        let state = if leaves || sale.retired {
            SaleState::Closed
        } else {
            SaleState::Draft
        };
        return Ok(RestockOutcome::NotLoaded(state));
    }
    if app.permits.is_resting(id) {
        attend(app, &sale).await?;
    }
    let (restock, state) = app.ledger.begin_restock(id, key, sku, quantity).await?;
    crash::point("restock.after_begin");
    let applied = match state {
        RestockState::KeyReused => return Ok(RestockOutcome::KeyReused),
        RestockState::Applied => true,
        RestockState::Refused => false,
        RestockState::Pending => decide(app, &sale, restock).await?,
    };
    deliver(app, id, restock).await?;
    if !applied {
        let survey = app.stock.survey(id, sale.shards, sku).await.into_iter();
        let free = survey.map(|it| it.ok().map(|it| it.counters.available)).sum();
        return Ok(RestockOutcome::Insufficient { free });
    }
    let Some(sale) = app.ledger.sale(id).await?.map(Arc::new) else {
        return Ok(RestockOutcome::SaleNotFound);
    };
    app.sales.changed(&sale);
    Ok(RestockOutcome::Applied(sale))
}

/// Delivers to the shards at once, and waits until they have their parts: until then, shoppers see none of the added
/// units. Another process may hold the messages, and keeps trying.
async fn deliver(app: &App, sale: SaleId, restock: Uuid) -> Result<(), Fault> {
    let until = Instant::now() + DELIVER_MAX;
    loop {
        let delivered = timeout_at(until, release_of(app, sale)).await;
        if let Ok(Err(fault)) = &delivered {
            tracing::debug!(%fault, "a restock has not reached its shards yet");
        }
        if !app.ledger.is_restock_on_its_way(sale, restock).await? {
            return Ok(());
        }
        if delivered.is_err() || Instant::now() >= until {
            return Err(Fault::Unavailable(
                "the units are on their way to their shards; the same request says when they are there".to_owned(),
            ));
        }
        tokio::time::sleep(WAIT).await;
    }
}

async fn decide(app: &App, sale: &Sale, id: Uuid) -> Result<bool, Fault> {
    let mut waits = 0..WAITS_MAX;
    let pending = loop {
        match app.ledger.take_restock(id).await? {
            TakenRestock::Decided { applied } => return Ok(applied),
            TakenRestock::Pending(pending) => break pending,
            // The same request came twice at once; the other one is about to finish.
            TakenRestock::Busy if waits.next().is_some() => tokio::time::sleep(WAIT).await,
            TakenRestock::Busy => return Err(Fault::Unavailable("this restock is being decided".to_owned())),
        }
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
    let wanted = -pending.restock.quantity;
    // Ask before any unit is taken. The ledger agrees only if it lists the shards on these servers.
    let keys: Vec<ShardKey> = ShardKey::all(sale).collect();
    // A shard that does not answer lends nothing, so its server's name may be empty.
    let servers = app.stock.servers(&keys).await.into_iter();
    let servers: Vec<Server> = servers.map(Result::unwrap_or_default).collect();
    let withdrawal = Withdrawal {
        app,
        sale,
        restock: pending.restock.id,
        sku: pending.restock.sku.clone(),
        wanted,
    };
    let mut taken: Vec<Taken> = Vec::new();
    for attempt in 0..ATTEMPTS_MAX {
        taken = withdrawal.take(attempt).await?;
        let missing = wanted - units_of(&taken);
        if missing == 0 {
            return pending.withdraw(&taken, &servers).await;
        }
        // With too many units, the next attempt leaves some out.
        match finish_left(app, sale, 0).await {
            Ok(0) if missing > 0 => break,
            Err(fault) if missing > 0 => return Err(fault),
            Ok(_) | Err(_) => {}
        }
    }
    if units_of(&taken) > wanted {
        return Err(Fault::Unavailable("more units came than were asked for".to_owned()));
    }
    pending.give_back(&taken, &servers).await?;
    Ok(false)
}

/// A restock that takes units out of the shards.
struct Withdrawal<'a> {
    app: &'a App,
    sale: &'a Sale,
    restock: Uuid,
    sku: Sku,
    wanted: i64,
}

impl Withdrawal<'_> {
    /// Takes the missing units out of the shards at one attempt; returns all that were taken so far.
    async fn take(&self, attempt: u16) -> Result<Vec<Taken>, Fault> {
        // Units that an earlier attempt took are in transit to the ledger, so they count first.
        let known = already_taken(self.app, self.sale, self.restock).await?;
        let is_known = |transfer: Uuid| known.iter().any(|it| it.transfer == transfer);
        let mut taken = at_most(self.wanted, known.clone());
        let mut missing = self.wanted - units_of(&taken);
        let stock = &self.app.stock;
        let survey = stock.survey(self.sale.id, self.sale.shards, &self.sku).await;
        let free = |it: &Result<Surveyed, Fault>| it.as_ref().map_or(0, |it| it.counters.available);
        let silent = survey.iter().find_map(|it| it.as_ref().err().cloned());
        if let Some(silent) = silent.filter(|_| survey.iter().map(free).sum::<i64>() < missing) {
            // The silent shards may have enough. Until they answer, units stay where they can be sold.
            return Err(silent);
        }
        for (shard, seen) in (0u16..).zip(survey) {
            let transfer = transfer_id(self.restock, shard, attempt);
            if missing <= 0 {
                break;
            }
            if free(&seen) == 0 || is_known(transfer) {
                continue;
            }
            if let Some(out) = self.take_from(shard, transfer, missing).await? {
                missing -= out.units;
                taken.push(out);
            }
        }
        Ok(taken)
    }

    /// Takes up to `missing` units out of one shard.
    async fn take_from(&self, shard: u16, transfer: Uuid, missing: i64) -> Result<Option<Taken>, Fault> {
        let from = ShardKey::new(self.sale.id, shard);
        let now = chrono::Utc::now().timestamp_millis();
        let stock = &self.app.stock;
        let sent = stock
            .transfer_out(from, transfer, &self.sku, Destination::Ledger, missing, now)
            .await?;
        crash::point("restock.after_take");
        Ok(match sent {
            Sent::Out { units, epoch } => Some(Taken {
                shard,
                transfer,
                units,
                epoch,
            }),
            Sent::None | Sent::Done => None,
        })
    }
}

fn units_of(taken: &[Taken]) -> i64 {
    taken.iter().map(|it| it.units).sum()
}

/// As many of these transfers as make up no more than the wanted units. An earlier attempt that missed a transfer may
/// have taken the same units elsewhere. A transfer that is left out is an orphan, and its units go back.
fn at_most(wanted: i64, mut taken: Vec<Taken>) -> Vec<Taken> {
    taken.sort_by_key(|it| it.units);
    loop {
        let surplus = units_of(&taken) - wanted;
        if surplus <= 0 {
            return taken;
        }
        // The smallest one that covers the surplus, or else the largest.
        let enough = taken.iter().position(|it| it.units >= surplus);
        taken.remove(enough.unwrap_or(taken.len() - 1));
    }
}

async fn already_taken(app: &App, sale: &Sale, restock: Uuid) -> Result<Vec<Taken>, Fault> {
    let (transfers, _) = app.stock.transfers_each(sale.id, sale.shards).await?;
    let ours = transfers
        .into_iter()
        .filter(|(shard, it)| restock_of(it.id, *shard).any(|id| id == restock));
    Ok(ours
        .map(|(shard, transfer)| Taken {
            shard,
            transfer: transfer.id,
            units: transfer.units,
            epoch: transfer.epoch,
        })
        .collect())
}

/// The id of the transfer that takes a withdrawal's units out of a shard at one attempt. A repeated request has the
/// same ids.
fn transfer_id(restock: Uuid, shard: u16, attempt: u16) -> Uuid {
    Uuid::from_u128(restock.as_u128() ^ (u128::from(attempt) << 16 | u128::from(shard)))
}

/// The restocks that a transfer out of this shard could belong to, one for each attempt.
fn restock_of(transfer: Uuid, shard: u16) -> impl Iterator<Item = Uuid> {
    (0..ATTEMPTS_MAX).map(move |attempt| transfer_id(transfer, shard, attempt))
}

/// Gives back units that left for the ledger for nothing: their restock was decided without them, because the call
/// that took them came late. Returns how many transfers that were.
pub async fn give_back_orphans(app: &App, sale: &Sale, age: Millis) -> Result<usize, Fault> {
    let now = chrono::Utc::now().timestamp_millis();
    let (transfers, silent) = app.stock.transfers_each(sale.id, sale.shards).await?;
    let old = |it: &Transfer| it.to == Destination::Ledger && (now - it.sent_at >= age || it.sent_at > now);
    let leaving: Vec<(u16, Transfer)> = transfers.into_iter().filter(|(_, it)| old(it)).collect();
    if leaving.is_empty() {
        return silent.map_or(Ok(0), Err);
    }
    let pairs: Vec<(Uuid, Uuid)> = leaving
        .iter()
        .flat_map(|(shard, it)| restock_of(it.id, *shard).map(|restock| (it.id, restock)))
        .collect();
    // One id stands for several candidates. It is an orphan only if none of them needs it.
    let free = app.ledger.orphans(sale.id, &pairs).await?;
    let is_orphan = |it: &Transfer| free.iter().filter(|id| **id == it.id).count() == usize::from(ATTEMPTS_MAX);
    let mut totals = RunTotals::default();
    for (shard, it) in leaving.iter().filter(|(_, it)| is_orphan(it)) {
        tracing::warn!(sale = %sale.id, shard, units = it.units, "giving back units that a late call took out");
        let back = Transfer {
            to: Destination::Shard(*shard),
            ..it.clone()
        };
        totals.note(finish(app, sale, *shard, &back).await.map(usize::from));
    }
    totals.note(silent.map_or(Ok(0), Err));
    totals.finish()
}

pub async fn settle_pending(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    let pending = app.ledger.pending_restocks(PENDING_MAX).await?;
    let began = Instant::now();
    for id in pending {
        if began.elapsed() >= SETTLE_MAX {
            break;
        }
        totals.note(settle_one(app, id).await);
    }
    totals.finish()
}

async fn settle_one(app: &App, id: Uuid) -> Result<usize, Fault> {
    let TakenRestock::Pending(pending) = app.ledger.take_restock(id).await? else {
        return Ok(0);
    };
    let Some(sale) = app.sales.fresh(pending.restock.sale).await? else {
        return Ok(0);
    };
    if sale.leaving {
        // Units that were taken out of shards go with the shards' keys; they are still on the books.
        pending.refuse().await?;
    } else if pending.restock.quantity > 0 {
        pending.add(&sale).await?;
    } else {
        app.permits.need(sale.id);
        withdraw(app, &sale, pending).await?;
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPTS_MAX, Taken, at_most, restock_of, transfer_id};
    use std::collections::HashSet;
    use uuid::Uuid;

    #[test]
    fn of_what_was_taken_twice_only_what_was_wanted_counts() {
        for (units, wanted, counts) in [
            (&[4, 10][..], 10, &[10][..]),
            (&[10], 4, &[]),
            (&[3, 3, 3], 4, &[3]),
            (&[5, 2, 1], 6, &[1, 5]),
            (&[5, 1], 6, &[1, 5]),
            (&[], 6, &[]),
        ] {
            let taken = units.iter().map(|units| Taken {
                shard: 0,
                transfer: Uuid::nil(),
                units: *units,
                epoch: 1,
            });
            let left: Vec<i64> = at_most(wanted, taken.collect()).iter().map(|it| it.units).collect();
            assert_eq!(left, counts, "{units:?} for {wanted}");
        }
    }

    #[test]
    fn each_shard_has_its_own_transfer_of_a_withdrawal() {
        let restock = uuid::Uuid::now_v7();
        let all =
            |id| (0..256).flat_map(move |shard| (0..ATTEMPTS_MAX).map(move |attempt| transfer_id(id, shard, attempt)));
        assert_eq!(
            all(restock).collect::<HashSet<_>>().len(),
            256 * usize::from(ATTEMPTS_MAX)
        );
        assert!(restock_of(transfer_id(restock, 7, 2), 7).any(|id| id == restock));
        assert!(restock_of(transfer_id(restock, 7, 2), 6).all(|id| id != restock));
    }
}
