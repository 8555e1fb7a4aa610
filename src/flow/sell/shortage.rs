//! Shortage: bring units of an item to a shard that ran short, or prove that there are none.
//!
//! *Sold out* needs a proof. One server shows all shards at one moment. On a cluster, two surveys of all shards, one
//! after the other, find every shard's version unchanged. Then no unit became free, arrived or left between the surveys,
//! and purchases only lower what is free. So at the moment between them, no more was free than the first survey saw.
//! All this begins after the request's arrival.
//!
//! Within a process, at most one survey per item runs at a time. Its result answers every request that arrived before
//! it began. The next begins some milliseconds later. So the cost of proofs depends on time and shards, not on how
//! many shoppers wait.
//!
//! A crash while units move leaves them in transit ([`crate::flow::sell::borrow`]).

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::flow::sell::borrow::{bring, finish_between_shards};
use crate::flow::sell::late_queue::LateQueue;
use crate::stock::sell::survey::Surveyed;
use crate::stock::sell::transfer::Destination;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::{Instant, sleep_until};

/// Attempts of one shortage while units are moving.
const SURVEYS_MAX: u32 = 12;

/// The shortest time between the beginnings of two surveys of an item, and so much more for each of its shards. After a
/// survey that found enough units, the next may begin at once.
const PACE: Duration = Duration::from_millis(2);
const PACE_A_SHARD: Duration = Duration::from_micros(30);

/// Items of which the results of surveys are kept: some kilobytes each, with many shards. An old result costs the next
/// purchase one survey.
const ITEMS_MAX: usize = 10_000;

/// The outcome of a shortage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Units were brought, or have arrived: ask the shard again.
    Brought,
    /// At a moment since the request arrived, too few units were free, on any shard or in transit.
    SoldOut,
}

/// Shortages that this process is covering, by sale and the item's position. One of them surveys, and the result answers
/// all requests that arrived before it began.
pub struct Shortages {
    items: Cache<(SaleId, u16), Arc<ItemSurveys>>,
    /// Surveys begun so far, of all items. A purchase notes this number before it knows which item will be short.
    begun: AtomicU64,
}

impl Default for Shortages {
    fn default() -> Self {
        Self {
            items: Cache::new(ITEMS_MAX),
            begun: AtomicU64::new(0),
        }
    }
}

/// When a purchase arrived, as a number of surveys. A survey that begins later can prove that nothing is left for it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival(u64);

impl Shortages {
    /// The arrival of a purchase that comes now. Call this before asking the shopper's shard.
    pub fn arrival(&self) -> Arrival {
        Arrival(self.begun.load(Ordering::SeqCst))
    }

    /// The surveys of an item of which the last one found fewer units free than these.
    pub(in crate::flow) fn without(&self, sale: SaleId, item: u16, quantity: u32) -> Option<Arc<ItemSurveys>> {
        // Spares every purchase a look-up until the first survey.
        if self.begun.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let surveys = self.items.get(&(sale, item))?;
        let free = surveys.results.borrow().free;
        free.is_some_and(|free| free < i64::from(quantity)).then_some(surveys)
    }
}

/// The surveys of one item, where its shortages meet. All that wait are woken at once. In turns, each would wake the
/// next, mostly on another thread.
pub(in crate::flow) struct ItemSurveys {
    /// The results of the surveys.
    results: watch::Sender<SurveyResults>,
    /// The shortage that holds the lock surveys. The value says when the next survey may begin.
    next: Mutex<Instant>,
    /// The requests that a survey and a reading of their rows will answer.
    pub(in crate::flow) late: LateQueue,
}

impl Default for ItemSurveys {
    fn default() -> Self {
        Self {
            results: watch::Sender::new(SurveyResults::default()),
            next: Mutex::new(Instant::now()),
            late: LateQueue::default(),
        }
    }
}

impl ItemSurveys {
    /// Waits for the next turn to survey so many shards.
    pub(in crate::flow) async fn turn(&self, shards: u16) -> Turn<'_> {
        Turn {
            surveys: self,
            next: Some(self.next.lock().await),
            began: Instant::now(),
            pace: PACE + PACE_A_SHARD * u32::from(shards),
        }
    }
}

/// The results of surveys, each with the number of its survey.
#[derive(Default)]
struct SurveyResults {
    /// How many units the last survey found free, at most, if it was certain.
    free: Option<i64>,
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
        let brought = self.brought.get(&shortage.home);
        if brought.is_some_and(|survey| *survey > short_since) {
            return Some(Ok(Cover::Brought));
        }
        // Too few units were free at a moment since the purchase arrived. That is an answer even if the survey had
        // ended before the shard reported the shortage.
        let proves = |(survey, free): (u64, i64)| survey > shortage.arrival.0 && free < quantity;
        if self.proof.is_some_and(proves) {
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
pub(in crate::flow) struct Turn<'a> {
    surveys: &'a ItemSurveys,
    next: Option<MutexGuard<'a, Instant>>,
    began: Instant,
    /// How long after this survey's beginning the next may begin.
    pace: Duration,
}

impl Turn<'_> {
    /// Waits until this survey may begin.
    pub(in crate::flow) async fn begin(&mut self) {
        if let Some(next) = &self.next {
            sleep_until(**next).await;
        }
        self.began = Instant::now();
    }

    /// Surveys all shards until it is certain how many units are free. `None` if there are `enough`, or it does not
    /// become certain. Call [`Turn::begin`] first.
    pub(in crate::flow) async fn prove(&mut self, app: &App, sale: &Sale, sku: &Sku, enough: i64) -> Option<i64> {
        let mut survey = Survey::default();
        for round in 0..SURVEYS_MAX {
            match survey_and_finish(app, sale, sku, enough, &mut survey).await {
                Ok(SurveyFinding::Proof(free)) => {
                    self.note_proof(survey.number, free);
                    return Some(free);
                }
                Ok(SurveyFinding::Moving) => pause_for_transfers(round).await,
                Ok(SurveyFinding::Free(_)) => break,
                Err(fault) => {
                    tracing::debug!(%fault, sale = %sale.id, %sku, "a survey failed; the shards decide");
                    break;
                }
            }
        }
        // Units may be free.
        self.note(|_| ());
        self.pace = Duration::ZERO;
        None
    }

    fn note_proof(&self, number: u64, free: i64) {
        self.note(|results| {
            results.proof = Some((number, free));
            results.free = Some(free);
        });
    }

    /// Notes the result. The others read it once the turn is over and one of them can have the next.
    fn note(&self, note: impl FnOnce(&mut SurveyResults)) {
        self.surveys.results.send_if_modified(|results| {
            results.failed = None;
            results.free = None;
            note(results);
            false
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(mut next) = self.next.take() {
            *next = self.began + self.pace;
        }
        self.surveys.results.send_modify(|_| ());
    }
}

/// A survey that has begun.
#[derive(Debug, Clone, Copy, Default)]
struct Survey {
    number: u64,
    /// The units that it has found free, at least. Its failure is no answer to those who want no more than that.
    free: i64,
}

#[derive(Debug)]
pub struct Shortage<'a> {
    pub sale: &'a Sale,
    /// The item's position in the sale.
    pub item: u16,
    pub sku: &'a Sku,
    pub home: u16,
    pub quantity: u32,
    pub arrival: Arrival,
}

/// Brings a shard what it lacks for a purchase. A fault says nothing about the stock: units may be free or not.
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
    let item = (shortage.sale.id, shortage.item);
    let surveys = shortages.items.get_or_make(&item, Arc::default);
    let short_since = shortages.begun.load(Ordering::SeqCst);
    let mut results = surveys.results.subscribe();
    let mut next = pin!(surveys.turn(shortage.sale.shards));
    let mut turn = loop {
        if let Some(answer) = results.borrow_and_update().answer(shortage, short_since) {
            return answer;
        }
        tokio::select! {
            biased;
            // `surveys` holds the sender, so there is no error.
            _changed = results.changed() => {}
            turn = &mut next => break turn,
        }
    };
    // The turn before may have ended since.
    if let Some(answer) = results.borrow_and_update().answer(shortage, short_since) {
        return answer;
    }
    let mut survey = Survey::default();
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
        match survey_and_finish(app, sale, sku, quantity, at).await? {
            SurveyFinding::Free(seen) => {
                // A failed transfer says nothing to others: they may have another home shard, or find another lender.
                at.free = i64::MAX;
                // Until then, others may buy what is on their shards.
                turn.note(|_| ());
                bring(app, sale, sku, home, quantity, &seen).await?;
                turn.note(|results| {
                    results.brought.insert(home, at.number);
                });
                turn.pace = Duration::ZERO;
                return Ok(Cover::Brought);
            }
            SurveyFinding::Proof(free) => {
                turn.note_proof(at.number, free);
                return Ok(Cover::SoldOut);
            }
            SurveyFinding::Moving => pause_for_transfers(round).await,
        }
    }
    // The failure is no answer to others: their attempts may succeed.
    at.free = i64::MAX;
    Err(Fault::Unavailable(
        "the last units are in transit; try again".to_owned(),
    ))
}

/// Lets units arrive. The random pause keeps processes that survey the same item out of step.
async fn pause_for_transfers(round: u32) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(1..=4 << round.min(4)))).await;
}

/// What a survey of all shards shows.
enum SurveyFinding {
    /// Enough units are free: so many on each shard.
    Free(Vec<i64>),
    /// At a moment since it began, no more units were free.
    Proof(i64),
    /// Units are in transit.
    Moving,
}

/// Surveys all shards, and finishes transfers of an item that looks sold out.
async fn survey_and_finish(
    app: &App,
    sale: &Sale,
    sku: &Sku,
    enough: i64,
    survey: &mut Survey,
) -> Result<SurveyFinding, Fault> {
    *survey = Survey {
        number: app.shortages.begun.fetch_add(1, Ordering::SeqCst) + 1,
        free: i64::MAX,
    };
    let first = app.stock.survey_soon(sale.id, sale.shards, sku, enough).await;
    // A silent shard keeps no other from lending. It only keeps *sold out* from being certain.
    let seen: Vec<i64> = first
        .iter()
        .map(|it| it.as_ref().map_or(0, |it| it.counters.available))
        .collect();
    survey.free = seen.iter().sum();
    if survey.free >= enough {
        return Ok(SurveyFinding::Free(seen));
    }
    let first = first.into_iter().collect::<Result<Vec<Surveyed>, Fault>>()?;
    if in_transit(&first) == 0 {
        // On a cluster, each shard was read at its own moment. The second survey shows whether units moved meanwhile.
        if app.stock.reads_one_moment() {
            return Ok(SurveyFinding::Proof(survey.free));
        }
    } else if finish_between_shards(app, sale, sku).await? > 0 {
        return Ok(SurveyFinding::Moving);
    }
    let second = app.stock.survey_soon(sale.id, sale.shards, sku, i64::MAX).await;
    let second = second.into_iter().collect::<Result<Vec<Surveyed>, Fault>>()?;
    let leaving = leaving(app, sale, sku, in_transit(&second)).await?;
    // Units that leave the sale come back if the withdrawal is refused, so they count as free here.
    let free = survey.free + leaving;
    if is_still(&first, &second, leaving) && free < enough {
        return Ok(SurveyFinding::Proof(free));
    }
    Ok(SurveyFinding::Moving)
}

/// Whether, between two surveys of all shards, no unit became free, arrived or left, and only the `leaving` units were
/// in transit.
fn is_still(first: &[Surveyed], second: &[Surveyed], leaving: i64) -> bool {
    let same = |(a, b): (&Surveyed, &Surveyed)| (a.epoch, a.counters.version) == (b.epoch, b.counters.version);
    first.len() == second.len() && first.iter().zip(second).all(same) && in_transit(second) == leaving
}

fn in_transit(survey: &[Surveyed]) -> i64 {
    survey.iter().map(|it| it.counters.in_transit()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::operator::report::Counters;

    fn shard(epoch: i64, version: i64, out: i64) -> Surveyed {
        let counters = Counters {
            version,
            out,
            ..Counters::default()
        };
        Surveyed { epoch, counters }
    }

    #[tokio::test]
    async fn a_survey_begins_its_pace_after_the_one_before_and_at_once_after_one_that_found_units() {
        let (surveys, shards) = (ItemSurveys::default(), 100);
        let mut first = surveys.turn(shards).await;
        first.begin().await;
        let began = first.began;
        drop(first);
        let mut second = surveys.turn(shards).await;
        second.begin().await;
        assert!(second.began - began >= PACE + PACE_A_SHARD * u32::from(shards));
        second.pace = Duration::ZERO;
        drop(second);
        assert!(*surveys.next.lock().await <= Instant::now());
    }

    #[test]
    fn units_that_moved_in_another_epoch_or_on_their_way_leave_nothing_still() {
        let before = [shard(1, 5, 0), shard(2, 7, 0)];
        assert!(is_still(&before, &before, 0));
        assert!(
            !is_still(&before, &[shard(1, 5, 0), shard(2, 8, 0)], 0),
            "one became free"
        );
        assert!(
            !is_still(&before, &[shard(1, 5, 0), shard(3, 7, 0)], 0),
            "another epoch"
        );
        assert!(!is_still(&before, &before[..1], 0), "a shard is missing");
        let leaving = [shard(1, 5, 3), shard(2, 7, 0)];
        assert!(!is_still(&leaving, &leaving, 0), "three are on their way");
        assert!(is_still(&leaving, &leaving, 3), "all three leave the sale");
    }
}
