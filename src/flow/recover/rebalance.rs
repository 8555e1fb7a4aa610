//! Rebalance: even the shards out ahead of need, so that few purchases have to borrow.
//!
//! Each move is a transfer of its own; a crash leaves at most units in transit.

use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::sale::{Item, Sale};
use crate::flow::App;
use crate::flow::sell::borrow::transfer;

/// Moves of one item in one run.
const MOVES_MAX: usize = 16;

/// Moves units to the shards that have less than half of their share; returns the number of moves. One process at a
/// time does it. Two that plan by the same reading would move the same units back and forth, second after second.
pub async fn rebalance(app: &App, sale: &Sale) -> Result<usize, Fault> {
    if sale.shards < 2 || plans(app, sale).await?.is_empty() {
        return Ok(0);
    }
    let Some(turn) = app.ledger.turn_to_rebalance(sale.id).await? else {
        return Ok(0);
    };
    // Another process may have evened them out since the first reading.
    let mut moved = 0;
    for (sku, (from, to, units)) in plans(app, sale).await? {
        transfer(app, sale, sku, (from, to), units).await?;
        moved += 1;
    }
    turn.end().await?;
    Ok(moved)
}

/// The moves of every item, by the units that its shards have now.
async fn plans<'a>(app: &App, sale: &'a Sale) -> Result<Vec<(&'a Sku, (u16, u16, i64))>, Fault> {
    let readings = app.stock.read_shards(sale).await?;
    let plan_of = |item: &'a Item| {
        let available = readings.iter().map(|reading| reading.counters(&item.sku).available);
        let moves = plan(&available.collect::<Vec<i64>>());
        moves.into_iter().map(|it| (&item.sku, it))
    };
    Ok(sale.items.iter().flat_map(plan_of).collect())
}

/// The moves, as (from, to, units), that bring each shard with less than half of its share up to it. There are none
/// while there are fewer than two units a shard: moving the last ones only hinders purchases.
fn plan(available: &[i64]) -> Vec<(u16, u16, i64)> {
    let shards = i64::try_from(available.len()).unwrap_or(i64::MAX).max(1);
    let share = available.iter().sum::<i64>() / shards;
    if share < 2 {
        return Vec::new();
    }
    let indexed = || (0u16..).zip(available.iter().copied());
    let mut rich: Vec<(u16, i64)> = indexed()
        .filter(|(_, units)| *units > share)
        .map(|(shard, units)| (shard, units - share))
        .collect();
    let mut moves = Vec::new();
    for (to, units) in indexed().filter(|(_, units)| *units < share / 2 + share % 2) {
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
        assert!(plan(&[10, 10, 9, 11]).is_empty());
        assert!(plan(&[7, 0, 0, 0]).is_empty());
        assert!(plan(&[]).is_empty());
        assert_eq!(plan(&[40, 0, 0, 0]), [(0, 1, 10), (0, 2, 10), (0, 3, 10)]);
    }

    proptest! {
        #[test]
        fn moves_keep_every_unit_and_take_no_shard_below_its_share(units in prop::collection::vec(0..10_000i64, 1..40)) {
            let mut after = units.clone();
            for (from, to, moved) in plan(&units) {
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
