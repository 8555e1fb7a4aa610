//! Rebalance: even the shards out ahead of need, so that few purchases have to borrow. The shards that answer are evened
//! out among themselves.
//!
//! Each move is a transfer of its own; a crash leaves at most units in transit.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::Sale;
use crate::flow::sell::borrow::transfer;
use crate::flow::{App, RunTotals, whole};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

/// Moves of one item in one run.
const MOVES_MAX: usize = 16;
/// How many items times shards one command reads: Redis does nothing else meanwhile.
const UNITS_MAX: u16 = 1_000;
/// How long a sale rests whose free units two surveys in a row found on the same shards, with nothing to move.
const REST: Duration = Duration::from_secs(5);

/// Moves of units of an item, as (from, to, units).
type Moves<'a> = Vec<(&'a Sku, (u16, u16, i64))>;

/// The last surveys of this process that found nothing to move.
#[derive(Default)]
pub struct Rests(Mutex<HashMap<SaleId, EvenSurvey>>);

struct EvenSurvey {
    /// A hash of the free units on each shard.
    free: u64,
    /// [`crate::flow::recover::permits::Permits::last_events`] before the survey.
    events: i64,
    /// Until then the sale rests, unless something is sold.
    rests_until: Instant,
}

impl Rests {
    /// Whether a sale with these last events rests.
    fn lasts(&self, sale: SaleId, events: i64) -> bool {
        let rest = |it: &EvenSurvey| it.events == events && Instant::now() < it.rests_until;
        self.all().get(&sale).is_some_and(rest)
    }

    /// Notes a survey of all shards that found nothing to move.
    fn note(&self, sale: SaleId, free: u64, events: i64) {
        let now = Instant::now();
        let mut all = self.all();
        let is_as_before = all.get(&sale).is_some_and(|it| (it.free, it.events) == (free, events));
        let rests_until = if is_as_before { now + REST } else { now };
        let survey = EvenSurvey {
            free,
            events,
            rests_until,
        };
        all.insert(sale, survey);
    }

    fn end(&self, sale: SaleId) {
        self.all().remove(&sale);
    }

    /// Forgets all other sales.
    pub(super) fn keep(&self, sales: &HashSet<SaleId>) {
        self.all().retain(|sale, _| sales.contains(sale));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SaleId, EvenSurvey>> {
        self.0.lock()
    }
}

/// Like [`rebalance`], except while nothing is sold and the shards are even.
pub async fn rebalance_unless_at_rest(app: &App, sale: &Sale) -> Result<usize, Fault> {
    if app.rests.lasts(sale.id, app.permits.last_events(sale)) {
        return Ok(0);
    }
    rebalance(app, sale).await
}

/// Moves units to the shards that have less than half of their share; returns the number of moves. One process at a
/// time does it. Two that plan by the same survey would move the same units back and forth, second after second. Fails
/// with the first fault of a shard or a move. The others are made all the same.
pub async fn rebalance(app: &App, sale: &Sale) -> Result<usize, Fault> {
    if sale.shards < 2 {
        return Ok(0);
    }
    let mut totals = RunTotals::default();
    let events = app.permits.last_events(sale);
    let survey = survey(app, sale).await;
    if survey.moves.is_empty() && survey.is_whole {
        app.rests.note(sale.id, survey.free, events);
    } else {
        app.rests.end(sale.id);
    }
    totals.note(survey.silent.map_or(Ok(0), Err));
    if survey.moves.is_empty() {
        return totals.finish();
    }
    let Some(turn) = app.ledger.turn_to_rebalance(sale.id).await? else {
        return totals.finish();
    };
    // Another process may have evened them out since the first survey.
    for (sku, (from, to, units)) in self::survey(app, sale).await.moves {
        totals.note(transfer(app, sale, sku, (from, to), units).await.map(|()| 1));
    }
    turn.end().await?;
    totals.finish()
}

/// What a survey of all items of a sale found.
struct SaleSurvey<'a> {
    moves: Moves<'a>,
    /// A hash of the free units on each shard.
    free: u64,
    /// Whether each shard answered, and has a permit.
    is_whole: bool,
    /// The fault of a shard that could not be read.
    silent: Option<Fault>,
}

/// Surveys the items of a sale, many with one command for each server.
async fn survey<'a>(app: &App, sale: &'a Sale) -> SaleSurvey<'a> {
    let (mut moves, mut hasher) = (Moves::new(), DefaultHasher::new());
    let (mut is_whole, mut silent) = (true, None);
    let at_once = usize::from(UNITS_MAX / sale.shards.max(1)).max(1);
    for items in sale.items.chunks(at_once) {
        let skus: Vec<&Sku> = items.iter().map(|item| &item.sku).collect();
        // One wait for a silent node of a cluster is enough.
        let enough = if silent.is_some() { 0 } else { i64::MAX };
        let surveyed = app.stock.survey_items_soon(sale.id, sale.shards, &skus, enough).await;
        for (sku, surveyed) in skus.into_iter().zip(surveyed) {
            let mut available = Vec::with_capacity(surveyed.len());
            for (shard, surveyed) in (0..).zip(surveyed) {
                match surveyed {
                    Ok(surveyed) => available.push((shard, surveyed.counters.available)),
                    // It has no permit, so it can neither lend nor borrow.
                    Err(Fault::Incomplete(_)) => is_whole = false,
                    Err(fault) => {
                        is_whole = false;
                        silent.get_or_insert(fault);
                    }
                }
            }
            available.hash(&mut hasher);
            moves.extend(plan(&available).into_iter().map(|it| (sku, it)));
        }
    }
    SaleSurvey {
        moves,
        free: hasher.finish(),
        is_whole,
        silent,
    }
}

/// The moves, as (from, to, units), that bring each shard with less than half of its share up to it. There are none
/// while there are fewer than two units a shard: moving the last ones only hinders purchases.
fn plan(available: &[(u16, i64)]) -> Vec<(u16, u16, i64)> {
    let shards = whole(available.len()).max(1);
    let share = available.iter().map(|(_, units)| units).sum::<i64>() / shards;
    if share < 2 {
        return Vec::new();
    }
    let shards = || available.iter().copied();
    let mut rich: Vec<(u16, i64)> = shards()
        .filter(|(_, units)| *units > share)
        .map(|(shard, units)| (shard, units - share))
        .collect();
    let mut moves = Vec::new();
    for (to, units) in shards().filter(|(_, units)| *units < share / 2 + share % 2) {
        let mut missing = share - units;
        while missing > 0 && moves.len() < MOVES_MAX {
            let Some((from, spare)) = rich.iter_mut().max_by_key(|(_, spare)| *spare) else {
                return moves;
            };
            let taken = missing.min(*spare);
            if taken <= 0 {
                break;
            }
            moves.push((*from, to, taken));
            *spare -= taken;
            missing -= taken;
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    #[test]
    fn a_sale_rests_once_two_surveys_found_the_same_until_something_is_sold() {
        let (rests, sale, other) = (Rests::default(), SaleId(Uuid::from_u128(1)), SaleId(Uuid::from_u128(2)));
        rests.note(sale, 7, 3);
        assert!(!rests.lasts(sale, 3), "one survey shows no rest");
        rests.note(sale, 8, 3);
        assert!(!rests.lasts(sale, 3), "units have moved");
        rests.note(sale, 8, 3);
        assert!(rests.lasts(sale, 3) && !rests.lasts(other, 3));
        assert!(!rests.lasts(sale, 4), "a shard has written an event");
        rests.note(sale, 8, 4);
        assert!(!rests.lasts(sale, 4));
        rests.note(sale, 8, 4);
        rests.keep(&HashSet::from([sale]));
        assert!(rests.lasts(sale, 4));
        rests.all().get_mut(&sale).unwrap().rests_until = Instant::now();
        assert!(!rests.lasts(sale, 4), "a rest has an end");
        rests.note(sale, 8, 4);
        rests.end(sale);
        assert!(!rests.lasts(sale, 4));
    }

    #[test]
    fn even_shards_and_last_units_are_left_alone() {
        let plan_of = |units: &[i64]| plan(&(0..).zip(units.iter().copied()).collect::<Vec<_>>());
        assert!(plan_of(&[10, 10, 9, 11]).is_empty());
        assert!(plan_of(&[7, 0, 0, 0]).is_empty());
        assert!(plan_of(&[]).is_empty());
        assert_eq!(plan_of(&[40, 0, 0, 0]), [(0, 1, 10), (0, 2, 10), (0, 3, 10)]);
        assert_eq!(plan(&[(3, 0), (7, 10)]), [(7, 3, 5)], "the others do not answer");
    }

    proptest! {
        #[test]
        fn moves_keep_every_unit_and_take_no_shard_below_its_share(units in prop::collection::vec(0..10_000i64, 1..40)) {
            let mut after = units.clone();
            for (from, to, moved) in plan(&(0..).zip(units.clone()).collect::<Vec<_>>()) {
                prop_assert!(moved > 0 && from != to);
                after[usize::from(from)] -= moved;
                after[usize::from(to)] += moved;
            }
            let share = units.iter().sum::<i64>() / i64::try_from(units.len()).unwrap();
            prop_assert_eq!(after.iter().sum::<i64>(), units.iter().sum::<i64>());
            for (before, after) in units.iter().zip(&after) {
                prop_assert!(*after >= (*before).min(share) && *after >= 0);
            }
        }
    }
}
