//! Borrow: bring free units of an item to a shard that ran short, or prove that there are none.
//!
//! A transfer has three steps:
//! - out of the lender, which writes the transfer down,
//! - into the borrower, which remembers the transfer's id,
//! - marked done at the lender.
//!
//! A crash between two steps leaves the lender's record. The scheduler, or the next shopper who is short, finishes it
//! ([`finish`]).
//!
//! *Sold out* needs a proof: two surveys of all shards, one after the other, that find every shard's version
//! unchanged. Then no unit became free, arrived or left between the surveys, and purchases only lower what is free. So
//! at the moment between them, no more was free than the first survey saw. Both begin after the request's arrival.
//!
//! Within a process, at most one survey per item runs at a time. Its result answers every request that arrived before
//! it began. The next begins a few milliseconds later. So the cost of proofs depends on time and shards, not on how
//! many shoppers wait.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::{Durability, Sale};
use crate::domain::time::Millis;
use crate::flow::{App, RunTotals};
use crate::stock::keys::ShardKey;
use crate::stock::survey::Surveyed;
use crate::stock::transfer::{Destination, Sent, Transfer};
use futures_util::future::try_join_all;
use moka::future::Cache;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// Attempts of one shortage while units are moving.
const SURVEYS_MAX: u32 = 12;

/// The pause after a survey of an item before the next one begins. A survey that brought units needs none.
const PACE: Duration = Duration::from_millis(4);

/// How long the results of an item's surveys are kept after its last shortage: some kilobytes each, with many shards.
const DESK_IDLE: Duration = Duration::from_secs(10);

/// The outcome of a shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Units were brought, or have arrived: ask the shard again.
    Brought,
    /// At a moment since the request arrived, too few units were free, on any shard or in transit.
    SoldOut,
}

/// Shortages that this process is covering, by sale and item. One of them surveys, and the result answers all requests
/// that arrived before it began.
pub struct Shortages {
    desks: Cache<(SaleId, Sku), Arc<Desk>>,
    /// Surveys begun so far, of all items. A purchase notes this number before it knows which item will be short.
    begun: AtomicU64,
}

impl Default for Shortages {
    fn default() -> Self {
        Self {
            desks: Cache::builder().max_capacity(10_000).time_to_idle(DESK_IDLE).build(),
            begun: AtomicU64::new(0),
        }
    }
}

/// When a purchase arrived, as a number of surveys. A survey that begins later can prove that nothing is left for it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival(u64);

impl Shortages {
    /// Call this before asking the shopper's shard.
    #[must_use]
    pub fn came(&self) -> Arrival {
        Arrival(self.begun.load(Ordering::SeqCst))
    }
}

/// The meeting point of one item's shortages. All that wait are woken at once. In turns, each would wake the next,
/// mostly on another thread.
struct Desk {
    /// The results of the surveys.
    results: watch::Sender<SurveyResults>,
    /// The shortage that holds the lock surveys. The value says when the next survey may begin.
    next: Mutex<Instant>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            results: watch::Sender::new(SurveyResults::default()),
            next: Mutex::new(Instant::now()),
        }
    }
}

/// The results of surveys, each with the number of its survey.
#[derive(Default)]
struct SurveyResults {
    /// The newest proof: so few units were free.
    proof: Option<(u64, i64)>,
    /// The newest survey that brought units, by shard.
    brought: HashMap<u16, u64>,
    /// The newest survey that failed, and why.
    failed: Option<(Survey, Fault)>,
}

impl SurveyResults {
    /// The answer to a purchase whose shard was short since `short_since`, a number of surveys.
    fn answer(&self, shortage: &Shortage<'_>, short_since: u64) -> Option<Result<Cover, Fault>> {
        let quantity = i64::from(shortage.quantity);
        // Others have bought what was brought before the shard reported the shortage.
        if self
            .brought
            .get(&shortage.home)
            .is_some_and(|survey| *survey > short_since)
        {
            return Some(Ok(Cover::Brought));
        }
        // Too few units were free at a moment since the purchase arrived. That is an answer even if the survey had
        // ended before the shard reported the shortage.
        if self
            .proof
            .is_some_and(|(survey, free)| survey > shortage.came.0 && free < quantity)
        {
            return Some(Ok(Cover::SoldOut));
        }
        // The survey failed for all that waited for it. If each repeated it, one after the other, all would wait for a
        // hanging node as often as there are shoppers. A request that arrived during the survey may find the node well
        // again.
        let (survey, fault) = self.failed.as_ref()?;
        (survey.number > short_since && survey.free < quantity).then(|| Err(fault.clone()))
    }
}

/// A turn to survey. However it ends, those that wait are woken.
struct Turn<'a> {
    desk: &'a Desk,
    next: Option<MutexGuard<'a, Instant>>,
    /// The pause before the next survey.
    pace: Duration,
}

impl Turn<'_> {
    /// Waits until this survey may begin.
    async fn begin(&self) {
        if let Some(next) = &self.next {
            sleep_until(**next).await;
        }
    }

    /// Notes the result. The others read it once the turn is over and one of them can have the next.
    fn note(&self, note: impl FnOnce(&mut SurveyResults)) {
        self.desk.results.send_if_modified(|results| {
            results.failed = None;
            note(results);
            false
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(mut next) = self.next.take() {
            *next = Instant::now() + self.pace;
        }
        self.desk.results.send_modify(|_| ());
    }
}

/// A survey that has begun.
#[derive(Debug, Clone, Copy)]
struct Survey {
    number: u64,
    /// The units that it has found free, at least. Its failure is no answer to those who want no more than that.
    free: i64,
}

/// Whether, between two surveys of all shards, no unit became free, arrived or left, and only the `leaving` units were
/// in transit.
fn is_still(first: &[Surveyed], second: &[Surveyed], leaving: i64) -> bool {
    let same = |(a, b): (&Surveyed, &Surveyed)| (a.epoch, a.counters.version) == (b.epoch, b.counters.version);
    let in_transit: i64 = second.iter().map(|it| it.counters.in_transit()).sum();
    first.len() == second.len() && first.iter().zip(second).all(same) && in_transit == leaving
}

fn free(survey: &[Surveyed]) -> i64 {
    survey.iter().map(|it| it.counters.available).sum()
}

#[derive(Debug)]
pub struct Shortage<'a> {
    pub sale: &'a Sale,
    pub sku: &'a Sku,
    pub home: u16,
    pub quantity: u32,
    pub came: Arrival,
}

/// Brings a shard what it lacks for a purchase.
///
/// # Errors
/// A fault says nothing about the stock: units may be free or not.
pub async fn cover(app: &App, shortage: &Shortage<'_>) -> Result<Cover, Fault> {
    let began = Instant::now();
    let covered = bring_or_prove(app, shortage).await;
    let outcome = match &covered {
        Ok(Cover::Brought) => "brought",
        Ok(Cover::SoldOut) => "sold_out",
        Err(_) => "failed",
    };
    app.metrics.shortages.of([outcome]).inc();
    app.metrics.shortage_duration.observe(began.elapsed());
    covered
}

async fn bring_or_prove(app: &App, shortage: &Shortage<'_>) -> Result<Cover, Fault> {
    let shortages = &app.shortages;
    let desk = shortages
        .desks
        .get_with((shortage.sale.id, shortage.sku.clone()), async { Arc::default() });
    let desk = desk.await;
    let short_since = shortages.begun.load(Ordering::SeqCst);
    let mut results = desk.results.subscribe();
    let mut turn = loop {
        if let Some(answer) = results.borrow_and_update().answer(shortage, short_since) {
            return answer;
        }
        if let Ok(next) = desk.next.try_lock() {
            let turn = Turn {
                desk: &desk,
                next: Some(next),
                pace: PACE,
            };
            // The turn before may have ended since.
            if let Some(answer) = results.borrow_and_update().answer(shortage, short_since) {
                return answer;
            }
            break turn;
        }
        // The desk holds the sender, so there is no error.
        let _changed = results.changed().await;
    };
    let mut survey = Survey {
        number: 0,
        free: i64::MAX,
    };
    let covered = survey_shards(app, shortage, &mut turn, &mut survey).await;
    if let Err(fault) = &covered {
        turn.note(|results| results.failed = Some((survey, fault.clone())));
    }
    covered
}

/// Surveys all shards until the result is certain. Leaves the last survey's number and what it found free in `at`.
async fn survey_shards(
    app: &App,
    shortage: &Shortage<'_>,
    turn: &mut Turn<'_>,
    at: &mut Survey,
) -> Result<Cover, Fault> {
    let Shortage { sale, sku, home, .. } = *shortage;
    let quantity = i64::from(shortage.quantity);
    turn.begin().await;
    for round in 0..SURVEYS_MAX {
        let number = app.shortages.begun.fetch_add(1, Ordering::SeqCst) + 1;
        at.number = number;
        let first = app.stock.survey_soon(sale.id, sale.shards, sku, quantity).await;
        // A silent shard keeps no other from lending. It only keeps *sold out* from being certain.
        let seen: Vec<i64> = first
            .iter()
            .map(|it| it.as_ref().map_or(0, |it| it.counters.available))
            .collect();
        at.free = seen.iter().sum();
        if at.free >= quantity {
            // A failed transfer says nothing to others: they may have another home shard, or find another lender.
            at.free = i64::MAX;
            bring(app, sale, sku, home, quantity, &seen).await?;
            turn.note(|results| {
                results.brought.insert(home, number);
            });
            turn.pace = Duration::ZERO;
            return Ok(Cover::Brought);
        }
        let first = first.into_iter().collect::<Result<Vec<Surveyed>, Fault>>()?;
        if finish_between_shards(app, sale, sku).await? > 0 {
            continue;
        }
        let second = app.stock.survey_soon(sale.id, sale.shards, sku, i64::MAX).await;
        let second = second.into_iter().collect::<Result<Vec<Surveyed>, Fault>>()?;
        let in_transit: i64 = second.iter().map(|it| it.counters.in_transit()).sum();
        let leaving = leaving(app, sale, sku, in_transit).await?;
        // Units that leave the sale come back if the withdrawal is refused, so they count as free here.
        let free = free(&first) + leaving;
        if is_still(&first, &second, leaving) && free < quantity {
            turn.note(|results| results.proof = Some((number, free)));
            return Ok(Cover::SoldOut);
        }
        // Units are moving: let them arrive. The random pause keeps processes that survey the same item out of step.
        tokio::time::sleep(Duration::from_millis(rand::random_range(1..=4 << round.min(4)))).await;
    }
    // The failure is no answer to others: their attempts may succeed.
    at.free = i64::MAX;
    Err(Fault::Unavailable(
        "the last units are in transit; try again".to_owned(),
    ))
}

/// Units in transit that leave the sale: no shard can have them.
async fn leaving(app: &App, sale: &Sale, sku: &Sku, in_transit: i64) -> Result<i64, Fault> {
    if in_transit == 0 {
        return Ok(0);
    }
    let transfers = app.stock.transfers(sale.id, sale.shards).await?;
    let leaving = transfers
        .iter()
        .filter(|(_, it)| it.sku == *sku && it.to == Destination::Ledger);
    Ok(leaving.map(|(_, it)| it.units).sum())
}

/// Moves units from the richest shards to `home`, a shard of the sale.
async fn bring(app: &App, sale: &Sale, sku: &Sku, home: u16, quantity: i64, seen: &[i64]) -> Result<(), Fault> {
    let own = seen.get(usize::from(home)).copied().unwrap_or_default();
    let mut lenders: Vec<(u16, i64)> = (0..)
        .zip(seen.iter().copied())
        .filter(|(shard, _)| *shard != home)
        .collect();
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

/// Moves up to `units` from one shard to another.
///
/// # Errors
/// A fault leaves the units where they are, or in transit.
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
async fn finish_between_shards(app: &App, sale: &Sale, sku: &Sku) -> Result<usize, Fault> {
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
///
/// # Errors
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::report::Counters;

    fn shard(epoch: i64, version: i64, out: i64) -> Surveyed {
        let counters = Counters {
            version,
            out,
            ..Counters::default()
        };
        Surveyed { epoch, counters }
    }

    #[test]
    fn units_that_moved_in_another_life_or_on_their_way_leave_nothing_still() {
        let before = [shard(1, 5, 0), shard(2, 7, 0)];
        assert!(is_still(&before, &before, 0));
        assert!(
            !is_still(&before, &[shard(1, 5, 0), shard(2, 8, 0)], 0),
            "one became free"
        );
        assert!(!is_still(&before, &[shard(1, 5, 0), shard(3, 7, 0)], 0), "another life");
        assert!(!is_still(&before, &before[..1], 0), "a shard is missing");
        let leaving = [shard(1, 5, 3), shard(2, 7, 0)];
        assert!(!is_still(&leaving, &leaving, 0), "three are on their way");
        assert!(is_still(&leaving, &leaving, 3), "all three leave the sale");
    }
}
