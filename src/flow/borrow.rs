//! Borrow: bring free units of an item to a shard that ran short, or prove that there are none.
//!
//! A transfer has three steps: out of the lender, which writes it down; into the borrower, which remembers its id;
//! struck at the lender. A crash between two leaves the lender's note, and the scheduler, or the next shopper who
//! is short, finishes it ([`finish`]).
//!
//! *Sold out* is said after a proof. Two surveys of all shards, one after the other, that find every shard's version
//! unchanged mean that between them no unit became free, arrived or left; purchases only lower what is free. So at
//! the moment between the two, no more was free than the first survey saw. Both begin after the question. One look at an item
//! runs at a time in a process, and answers all who asked before it began; the next begins a few milliseconds later. So what
//! proofs cost depends on time and shards, not on how many shoppers wait.

use super::{App, Tally};
use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::{Durability, Sale};
use crate::domain::time::Millis;
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

/// How often one shortage looks again because units were moving.
const LOOKS_MAX: u32 = 12;

/// The time from the end of one look at an item to the beginning of the next, unless the first one brought units.
const PACE: Duration = Duration::from_millis(4);

/// So long after the last shortage of an item what its looks found is kept: some kilobytes for each, with many shards.
const DESK_IDLE: Duration = Duration::from_secs(10);

/// What came of a shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Units were brought, or have come: ask the shard again.
    Brought,
    /// Nothing was left, on any shard or between two, at a moment since the question.
    SoldOut,
}

/// Shortages that this process is covering, by sale and item. One of them looks, and that answers all who had asked when
/// the look began.
pub struct Shortages {
    desks: Cache<(SaleId, Sku), Arc<Desk>>,
    /// Looks begun so far, of all items: so a purchase can note when it came without knowing what it will lack.
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

/// When a purchase came, as looks are counted: those that begin later can tell it that nothing is left.
#[derive(Debug, Clone, Copy)]
pub struct Came(u64);

impl Shortages {
    /// To be asked before the shopper's shard is.
    #[must_use]
    pub fn came(&self) -> Came {
        Came(self.begun.load(Ordering::SeqCst))
    }
}

/// Where shortages of one item meet. All who wait are told at once: were they to take turns, each would wake the next, mostly
/// on another thread.
struct Desk {
    /// What the looks have come to.
    told: watch::Sender<Told>,
    /// The shopper who holds it looks. When the next look may begin.
    next: Mutex<Instant>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            told: watch::Sender::new(Told::default()),
            next: Mutex::new(Instant::now()),
        }
    }
}

/// What the looks found, by the number of the look.
#[derive(Default)]
struct Told {
    /// The newest proof: that few units were free.
    proof: Option<(u64, i64)>,
    /// The newest look that brought units to a shard.
    brought: HashMap<u16, u64>,
    /// The newest look that failed, and why.
    failed: Option<(Look, Fault)>,
}

impl Told {
    /// What answers a purchase whose shard was short since `short_since`, as looks are counted.
    fn answer(&self, shortage: &Shortage<'_>, short_since: u64) -> Option<Result<Cover, Fault>> {
        let quantity = i64::from(shortage.quantity);
        // What was brought before the shard said that it is short has been bought by others.
        if self.brought.get(&shortage.home).is_some_and(|look| *look > short_since) {
            return Some(Ok(Cover::Brought));
        }
        // Nothing was free at a moment since the purchase came: that is an answer to it, also if the look was over by then.
        if self
            .proof
            .is_some_and(|(look, free)| look > shortage.came.0 && free < quantity)
        {
            return Some(Ok(Cover::SoldOut));
        }
        // It failed for all who were waiting for it. Were each to look again for himself, one after the other, all would wait for
        // a node that hangs as often as there are shoppers. Who came while it looked may find the node well again.
        let (look, fault) = self.failed.as_ref()?;
        (look.number > short_since && look.free < quantity).then(|| Err(fault.clone()))
    }
}

/// A turn to look. However it ends, the others hear of its end.
struct Turn<'a> {
    desk: &'a Desk,
    next: Option<MutexGuard<'a, Instant>>,
    /// How long after it the next look begins.
    pace: Duration,
}

impl Turn<'_> {
    /// Waits until this look may begin.
    async fn begin(&self) {
        if let Some(next) = &self.next {
            sleep_until(**next).await;
        }
    }

    /// Notes what came of it; the others hear of it when the turn is over and one of them can have the next.
    fn note(&self, note: impl FnOnce(&mut Told)) {
        self.desk.told.send_if_modified(|told| {
            told.failed = None;
            note(told);
            false
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(mut next) = self.next.take() {
            *next = Instant::now() + self.pace;
        }
        self.desk.told.send_modify(|_| ());
    }
}

/// A look that has begun.
#[derive(Debug, Clone, Copy)]
struct Look {
    number: u64,
    /// What it has found to be free at least; it says nothing to those who want no more than that.
    free: i64,
}

/// Whether nothing became free, arrived or left between two surveys of all shards, and nothing was on its way but
/// `leaving`.
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
    pub came: Came,
}

/// Brings a shard what it lacks for a purchase.
///
/// # Errors
/// A fault says nothing about the stock: neither that it is there nor that it is not.
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
    let mut told = desk.told.subscribe();
    let mut turn = loop {
        if let Some(answer) = told.borrow_and_update().answer(shortage, short_since) {
            return answer;
        }
        if let Ok(next) = desk.next.try_lock() {
            let turn = Turn {
                desk: &desk,
                next: Some(next),
                pace: PACE,
            };
            // The last turn may have ended since.
            if let Some(answer) = told.borrow_and_update().answer(shortage, short_since) {
                return answer;
            }
            break turn;
        }
        // The desk has the other end, so there is no error.
        let _told = told.changed().await;
    };
    let mut look = Look {
        number: 0,
        free: i64::MAX,
    };
    let covered = look_around(app, shortage, &mut turn, &mut look).await;
    if let Err(fault) = &covered {
        turn.note(|told| told.failed = Some((look, fault.clone())));
    }
    covered
}

/// Looks at all shards until that tells something. Says of the last look which it was and what it has seen.
async fn look_around(app: &App, shortage: &Shortage<'_>, turn: &mut Turn<'_>, at: &mut Look) -> Result<Cover, Fault> {
    let Shortage { sale, sku, home, .. } = *shortage;
    let quantity = i64::from(shortage.quantity);
    turn.begin().await;
    for round in 0..LOOKS_MAX {
        let look = app.shortages.begun.fetch_add(1, Ordering::SeqCst) + 1;
        at.number = look;
        let first = app.stock.survey_soon(sale.id, sale.shards, sku, quantity).await;
        // A shard that does not answer keeps nobody from lending; it only keeps *sold out* from being certain.
        let seen: Vec<i64> = first
            .iter()
            .map(|it| it.as_ref().map_or(0, |it| it.counters.available))
            .collect();
        at.free = seen.iter().sum();
        if at.free >= quantity {
            // If that fails it says nothing to others: they may have another home, or find another lender.
            at.free = i64::MAX;
            bring(app, sale, sku, home, quantity, &seen).await?;
            turn.note(|told| {
                told.brought.insert(home, look);
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
        // What leaves the sale comes back if the withdrawal is refused, so it must not be what is missing.
        let free = free(&first) + leaving;
        if is_still(&first, &second, leaving) && free < quantity {
            turn.note(|told| told.proof = Some((look, free)));
            return Ok(Cover::SoldOut);
        }
        // Units are moving: let them arrive. Others who look at the same item are not waited for in step.
        tokio::time::sleep(Duration::from_millis(rand::random_range(1..=4 << round.min(4)))).await;
    }
    // Others may have more luck.
    at.free = i64::MAX;
    Err(Fault::Unavailable(
        "units of this item are on the move; try again".to_owned(),
    ))
}

/// Of the units in transit, those that are leaving the sale: nobody can bring them anywhere.
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

/// Moves units from the richest shards to `home`, which is known to be part of the sale.
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
        // Half of the difference, so that the next shopper here need not borrow again at once.
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
/// A fault leaves the units where they are or on their way.
pub async fn transfer(app: &App, sale: &Sale, sku: &Sku, (from, to): (u16, u16), units: i64) -> Result<(), Fault> {
    let (lender, id) = (
        ShardKey {
            sale: sale.id,
            shard: from,
        },
        Uuid::now_v7(),
    );
    let borrower = ShardKey {
        sale: sale.id,
        shard: to,
    };
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

/// Brings in what is on its way to another shard; returns how many transfers that were.
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

/// Does what is left of one transfer; `false` if it leaves the sale, which the restock decides. At `replica`, a replica of the
/// lender has the transfer before the units arrive. Otherwise a promoted replica could sell them a second time.
///
/// # Errors
/// A fault leaves it to be finished.
pub async fn finish(app: &App, sale: &Sale, lender: u16, transfer: &Transfer) -> Result<bool, Fault> {
    let Destination::Shard(to) = transfer.to else {
        return Ok(false);
    };
    let lending = ShardKey {
        sale: sale.id,
        shard: lender,
    };
    let borrower = ShardKey {
        sale: sale.id,
        shard: to,
    };
    if sale.durability == Durability::Replica {
        app.stock.replicate_transfer(lending, transfer.id).await?;
    }
    app.stock.transfer_in(borrower, lender, transfer).await?;
    crash::point("transfer.after_in");
    app.stock.transfer_done(lending, transfer.id).await?;
    Ok(true)
}

/// Finishes what was left between two shards for longer than `age`; returns how many transfers that were.
pub async fn finish_left(app: &App, sale: &Sale, age: Millis) -> Result<usize, Fault> {
    let now = chrono::Utc::now().timestamp_millis();
    let mut tally = Tally::default();
    let (transfers, silent) = app.stock.transfers_each(sale.id, sale.shards).await?;
    for (lender, transfer) in transfers {
        // A clock that went back must not keep one for ever.
        let left = now - transfer.sent_at >= age || transfer.sent_at > now;
        if left {
            tally.note(finish(app, sale, lender, &transfer).await.map(usize::from));
        }
    }
    tally.note(silent.map_or(Ok(0), Err));
    tally.finish()
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
