//! At rest: every unit is counted on both sides.

use super::facts::{Facts, is_decided};
use super::{Found, rule};
use crate::torture::history::Shard;
use flashsale::domain::operator::report::Counters;
use std::collections::{BTreeMap, BTreeSet};

pub fn check(facts: &Facts, found: &mut Found) {
    shards_balance(facts, found);
    nothing_is_on_its_way(facts, found);
    no_unit_leaks(facts, found);
    both_sides_agree(facts, found);
    rows_are_as_the_ledger(facts, found);
    left_is_sold(facts, found);
}

/// R1, R2. Every shard has every item, none of its counts is negative, and it accounts for the units that it was given.
/// Units of revoked orders are withheld only after a fault that may have lost something.
fn shards_balance(facts: &Facts, found: &mut Found) {
    let shards = &facts.history.end.shards;
    let expected: BTreeSet<u16> = (0..facts.history.terms.shards).collect();
    let numbers: BTreeSet<u16> = shards.iter().map(|it| it.shard).collect();
    found.unless(
        numbers == expected && shards.len() == expected.len(),
        rule::BALANCE,
        || format!("there are the shards {numbers:?}"),
    );
    for shard in shards {
        let items: BTreeSet<&str> = shard.items.keys().map(|sku| sku.as_str()).collect();
        found.unless(items.iter().eq(facts.items.keys()), rule::BALANCE, || {
            format!("shard {} has the items {items:?}", shard.shard)
        });
        for (sku, counters) in &shard.items {
            let holds = counters.balance() && (counters.revoked == 0 || facts.is_lossy()) && counters.revoked >= 0;
            found.unless(holds, rule::BALANCE, || {
                format!("shard {} does not account for {sku}: {counters:?}", shard.shard)
            });
        }
    }
}

/// X1. No unit, event, message, payment or restock is pending, and nothing was put aside for an operator; dead letters
/// come from a Redis that had lost its last events.
fn nothing_is_on_its_way(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    for Shard {
        shard,
        in_transit,
        undrained,
        ..
    } in &end.shards
    {
        found.unless((*in_transit, *undrained) == (0, 0), rule::AT_REST, || {
            format!("shard {shard} has {in_transit} units on their way and {undrained} events that are not drained")
        });
    }
    for (sku, sum) in sums(facts) {
        found.unless(sum.in_transit() == 0, rule::AT_REST, || {
            format!("{} units of {sku} have left a shard and reached none", sum.in_transit())
        });
    }
    found.unless(end.waiting == 0, rule::AT_REST, || {
        format!("{} messages wait", end.waiting)
    });
    found.unless(end.dead_letters == 0 || facts.is_lossy(), rule::AT_REST, || {
        format!("{} dead letters", end.dead_letters)
    });
    for line in &end.audit {
        found.add(rule::AT_REST, || format!("the audit says: {line}"));
    }
}

/// All shards' counts of each item.
fn sums<'a>(facts: &Facts<'a>) -> BTreeMap<&'a str, Counters> {
    let mut sums: BTreeMap<&str, Counters> = BTreeMap::new();
    for (sku, counters) in facts.history.end.shards.iter().flat_map(|it| &it.items) {
        let sum = sums.entry(sku.as_str()).or_default();
        *sum = sum.plus(counters);
    }
    sums
}

/// H5. Once every hold has ended, the units are free or sold (or withheld for orders that the ledger refused), and they are
/// as many as the sale owns. The shards' grants, less the withdrawn units, are as many, by R2 and X1.
fn no_unit_leaks(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    for order in end.orders.iter().filter(|it| !is_decided(&it.state)) {
        found.add(rule::LEAK, || format!("still reserved: {order:?}"));
    }
    let sums = sums(facts);
    for sku in facts.items.keys() {
        let (sum, stock) = (sums.get(sku).copied().unwrap_or_default(), end.stock.get(*sku));
        let all = sum.available + sum.held + sum.sold + sum.revoked;
        let holds = stock == Some(&all) && sum.held == 0;
        found.unless(holds, rule::LEAK, || {
            format!("of {sku} the sale owns {stock:?}, and the shards have {all}: {sum:?}")
        });
    }
}

/// C2. Each shard's held and sold units in Redis are those of its grant in Postgres, and those of its orders. The grants
/// of an item add up to its stock.
fn both_sides_agree(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    let mut counts: BTreeMap<(&str, u16), [(i64, i64); 3]> = BTreeMap::new();
    for shard in &end.shards {
        for (sku, counters) in &shard.items {
            counts.entry((sku.as_str(), shard.shard)).or_default()[0] = (counters.held, counters.sold);
        }
    }
    let mut granted: BTreeMap<&str, i64> = BTreeMap::new();
    for grant in &end.grants {
        counts.entry((grant.sku.as_str(), grant.shard)).or_default()[1] = (grant.held, grant.sold);
        *granted.entry(grant.sku.as_str()).or_default() += grant.granted;
        found.unless(grant.held + grant.sold <= grant.granted, rule::AGREE, || {
            format!("more than was granted: {grant:?}")
        });
    }
    for order in &end.orders {
        let (held, sold) = &mut counts.entry((order.sku.as_str(), order.shard)).or_default()[2];
        match order.state.as_str() {
            "reserved" => *held += order.quantity,
            "paid" => *sold += order.quantity,
            _ => {}
        }
    }
    for ((sku, shard), [redis, grants, orders]) in counts {
        found.unless(redis == grants && grants == orders, rule::AGREE, || {
            format!("held and sold of {sku} on shard {shard}: Redis {redis:?}, grants {grants:?}, orders {orders:?}")
        });
    }
    for (sku, stock) in &end.stock {
        found.unless(granted.get(sku.as_str()) == Some(stock), rule::AGREE, || {
            format!(
                "the grants of {sku} add up to {:?}, its stock is {stock}",
                granted.get(sku.as_str())
            )
        });
    }
}

/// R3. A shopper's row counts the live orders, and knows every reserved order. It may have left decided ones to the ledger,
/// and it may be gone if the shopper has nothing.
fn rows_are_as_the_ledger(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    let mut live: BTreeMap<&str, BTreeMap<&str, i64>> = BTreeMap::new();
    for order in &end.orders {
        if matches!(order.state.as_str(), "reserved" | "paid") {
            let units = live.entry(&order.user).or_default();
            *units.entry(&order.sku).or_default() += order.quantity;
        }
    }
    for (user, row) in &end.buyers {
        let row = row.clone().unwrap_or_default();
        let units = row.units.iter().filter(|(_, units)| **units != 0);
        let units: BTreeMap<&str, i64> = units.map(|(sku, units)| (sku.as_str(), *units)).collect();
        let expected = live.remove(user.as_str()).unwrap_or_default();
        found.unless(units == expected, rule::BUYER, || {
            format!("{user} has {units:?} in Redis and {expected:?} in the ledger")
        });
        for (id, state) in &row.orders {
            let order = facts.orders.get(id.as_str());
            let holds = match order {
                Some(order) => order.user == *user && order.state == *state,
                // Its event went to the dead letters.
                None => facts.is_lossy() && end.dead_letters > 0,
            };
            found.unless(holds, rule::BUYER, || {
                format!("{user}'s row says that {id} is {state}; the ledger has {order:?}")
            });
        }
    }
    let reserved = end.orders.iter().filter(|order| !is_decided(&order.state));
    for order in reserved {
        let row = end.buyers.get(&order.user);
        let holds = row.is_none_or(|row| row.as_ref().is_some_and(|row| row.orders.contains_key(&order.id)));
        found.unless(holds, rule::BUYER, || format!("the row does not have {order:?}"));
    }
}

/// H6. Every unit that was neither sold nor withdrawn could be bought afterwards, and not one more. It says nothing of a
/// round in which nobody bought afterwards.
fn left_is_sold(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    if end.sold_afterwards.is_empty() {
        return;
    }
    let mut left = end.stock.clone();
    for order in end.orders.iter().filter(|it| it.state == "paid") {
        *left.entry(order.sku.clone()).or_default() -= order.quantity;
    }
    for (sku, left) in left {
        let sold = end.sold_afterwards.get(&sku).copied().unwrap_or(0);
        found.unless(sold == left, rule::LEFT, || {
            format!("{left} units of {sku} were left, and {sold} could be bought")
        });
    }
}
