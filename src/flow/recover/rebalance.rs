//! Rebalance: even the shards out ahead of need, so that few purchases have to borrow. The shards that answer are evened
//! out among themselves.
//!
//! Each move is a transfer of its own; a crash leaves at most units in transit.

use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::sale::{Item, Sale};
use crate::flow::sale_book::whole;
use crate::flow::sell::borrow::transfer;
use crate::flow::{App, RunTotals};
use crate::stock::read_shard::ShardReading;
use std::time::Duration;

/// Moves of one item in one run.
const MOVES_MAX: usize = 16;
/// How long a node of a cluster may take to answer before its shards are left out.
const PATIENCE: Duration = Duration::from_millis(300);

/// Moves of units of an item, as (from, to, units).
type Moves<'a> = Vec<(&'a Sku, (u16, u16, i64))>;

/// Moves units to the shards that have less than half of their share; returns the number of moves. One process at a
/// time does it. Two that plan by the same reading would move the same units back and forth, second after second. Fails
/// with the first fault of a shard or a move. The others are made all the same.
pub async fn rebalance(app: &App, sale: &Sale) -> Result<usize, Fault> {
    if sale.shards < 2 {
        return Ok(0);
    }
    let mut totals = RunTotals::default();
    let (planned, unread) = plans(app, sale).await;
    totals.note(unread.map_or(Ok(0), Err));
    if planned.is_empty() {
        return totals.finish();
    }
    let Some(turn) = app.ledger.turn_to_rebalance(sale.id).await? else {
        return totals.finish();
    };
    // Another process may have evened them out since the first reading.
    let (planned, _) = plans(app, sale).await;
    for (sku, (from, to, units)) in planned {
        totals.note(transfer(app, sale, sku, (from, to), units).await.map(|()| 1));
    }
    turn.end().await?;
    totals.finish()
}

/// The moves of every item, by the units that the shards have now, and the fault of a shard that could not be read.
async fn plans<'a>(app: &App, sale: &'a Sale) -> (Moves<'a>, Option<Fault>) {
    let mut unread = None;
    let mut readings: Vec<ShardReading> = Vec::new();
    for reading in app.stock.read_shards_soon(sale, PATIENCE).await {
        match reading {
            Ok(reading) => readings.push(reading),
            Err(fault) => _ = unread.get_or_insert(fault),
        }
    }
    let plan_of = |item: &'a Item| {
        let available = readings.iter().map(|it| (it.shard, it.counters(&item.sku).available));
        let moves = plan(&available.collect::<Vec<(u16, i64)>>());
        moves.into_iter().map(|it| (&item.sku, it))
    };
    (sale.items.iter().flat_map(plan_of).collect(), unread)
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
    use super::plan;
    use proptest::prelude::*;

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
