//! Units of an item and of a shopper over time: never above the stock, never above the limit.

use super::facts::{Facts, ShownOrder, code, is_unknown, millis};
use super::{Found, Millis, TICK, rule};
use crate::torture::history::{LedgerOrder, Request};
use std::collections::{BTreeMap, HashMap};

pub fn check(facts: &Facts, found: &mut Found) {
    never_oversold(facts, found);
    never_above_the_limit(facts, found);
    never_above_the_rate(facts, found);
}

/// A change of how many units are taken, or may be.
struct Change<'a> {
    at: Millis,
    /// Releases come first within a millisecond.
    takes: bool,
    units: i64,
    bound: i64,
    /// The shopper who takes them.
    order: &'a str,
}

impl<'a> Change<'a> {
    const fn take(at: Millis, units: i64, order: &'a str) -> Self {
        Self {
            at,
            takes: true,
            units,
            bound: 0,
            order,
        }
    }

    const fn free(at: Millis, units: i64) -> Self {
        Self {
            at,
            takes: false,
            units: -units,
            bound: 0,
            order: "",
        }
    }

    const fn bound(at: Millis, by: i64) -> Self {
        Self {
            at,
            takes: false,
            units: 0,
            bound: by,
            order: "",
        }
    }
}

/// Goes through changes in the order of time and reports every purchase after which more is taken than allowed.
fn sweep<'a>(mut changes: Vec<Change<'a>>, bound: i64, mut above: impl FnMut(&Change<'a>, i64, i64)) {
    changes.sort_by_key(|change| (change.at, change.takes));
    let (mut taken, mut bound) = (0, bound);
    for change in &changes {
        taken += change.units;
        bound += change.bound;
        if change.takes && taken > bound {
            above(change, taken, bound);
        }
    }
}

/// How long an order counts: from its purchase until it was given back; a paid one for ever. The ledger's decision comes
/// before the units are free in Redis, so at any moment Redis counts all that is counted here, and more.
fn counted<'a>(order: &'a LedgerOrder, from: Millis, changes: &mut Vec<Change<'a>>) {
    let until = order.resolved_at.filter(|_| order.state != "paid");
    if until.is_some_and(|until| until <= from) {
        return;
    }
    changes.push(Change::take(from, order.quantity, &order.id));
    changes.extend(until.map(|until| Change::free(until, order.quantity)));
}

/// H1. At each purchase the units of live orders are at most what the sale owned at that moment.
///
/// Revoked orders are those that the ledger refused, so they never count. The units of a restock count from its request,
/// which is before any shard has them. The units of a withdrawal count until its first answer: the ledger's own time for it is
/// when its transaction began, before the units left the shards, and purchases may come between.
///
/// A Redis that has lost data may accept an order that is drained later, when other orders have expired: so an order
/// accepted during such a fault counts once its consequences are over, if it is still there.
///
/// Orders that were acknowledged and are missing in the ledger count for ever, unless a fault may have lost them.
fn never_oversold(facts: &Facts, found: &mut Found) {
    let end = &facts.history.end;
    let mut changes: BTreeMap<&str, Vec<Change>> = BTreeMap::new();
    for order in end.orders.iter().filter(|it| it.state != "revoked") {
        let in_loss = facts
            .losses
            .iter()
            .any(|(from, until)| (*from..=*until).contains(&order.created_at));
        let from = if in_loss { facts.last_loss_noticed() } else { None };
        let from = from.unwrap_or(order.created_at);
        counted(order, from, changes.entry(&order.sku).or_default());
    }
    if !facts.is_lossy() {
        for (id, shown) in facts.shown.iter().filter(|(id, _)| !facts.orders.contains_key(*id)) {
            if let Some(ShownOrder { order, .. }) = shown.iter().find(|it| it.key.is_some()) {
                let of_item = changes.entry(&order.sku).or_default();
                of_item.push(Change::take(order.created_at, order.quantity, id));
            }
        }
    }
    let mut withdrawn: HashMap<&str, Millis> = HashMap::new();
    for op in &facts.history.ops {
        if let Request::Restock { key, .. } = &op.request
            && !is_unknown(&op.reply)
            && code(&op.reply).is_empty()
        {
            let at = withdrawn.entry(key).or_insert(Millis::MAX);
            *at = millis(op.returned).min(*at);
        }
    }
    for restock in end.restocks.iter().filter(|it| it.state == "applied") {
        let at = if restock.quantity > 0 {
            Some(restock.created_at)
        } else {
            withdrawn.get(restock.key.as_str()).map(|at| at + TICK)
        };
        let of_item = changes.entry(&restock.sku).or_default();
        of_item.extend(at.map(|at| Change::bound(at, restock.quantity)));
    }
    for (sku, changes) in changes {
        let stock = facts.items.get(sku).map_or(0, |item| item.stock);
        sweep(changes, stock, |change, taken, bound| {
            let (order, at) = (change.order, change.at);
            found.add(rule::OVERSOLD, || {
                format!("{sku}: with order {order} at {at} ms, {taken} units are taken of {bound}")
            });
        });
    }
}

/// H3. At each purchase a shopper's live orders of an item are within the limit. The script counts all orders that the
/// ledger has not released by then, and more.
fn never_above_the_limit(facts: &Facts, found: &mut Found) {
    let mut changes: BTreeMap<(&str, &str), Vec<Change>> = BTreeMap::new();
    for order in facts.history.end.orders.iter().filter(|it| it.state != "revoked") {
        let of_user = changes.entry((&order.user, &order.sku)).or_default();
        counted(order, order.created_at, of_user);
    }
    for ((user, sku), changes) in changes {
        let limit = facts.items.get(sku).map_or(0, |item| item.limit);
        sweep(changes, limit, |change, taken, limit| {
            let (order, at) = (change.order, change.at);
            found.add(rule::LIMIT, || {
                format!("{user} has {taken} of {sku} with order {order} at {at} ms, and may have {limit}")
            });
        });
    }
}

/// H7. At most as many purchases as the rate are let through in one window.
///
/// A key counts once in a window, from when it was first let through: a request that was refused as sold out and is
/// repeated does not count again. So an order was counted at a moment between the first question with its key, or one
/// window before the purchase, and the purchase; those count that were certainly in the same window.
fn never_above_the_rate(facts: &Facts, found: &mut Found) {
    let (rate, window) = (facts.history.terms.rate, facts.history.terms.rate_window);
    let mut counted: BTreeMap<&str, Vec<(Millis, Millis)>> = BTreeMap::new();
    for order in &facts.history.end.orders {
        let asked = facts.buys.get(&(order.user.as_str(), order.key.as_str()));
        let first = asked.and_then(|buys| buys.first()).map(|buy| millis(buy.op.invoked));
        let earliest = (order.created_at - window + 1).max(first.unwrap_or(order.created_at) - TICK);
        let of_user = counted.entry(&order.user).or_default();
        of_user.push((earliest.min(order.created_at), order.created_at));
    }
    for (user, counted) in counted {
        let (mut earliest, mut latest): (Vec<_>, Vec<_>) = counted.into_iter().unzip();
        earliest.sort_unstable();
        latest.sort_unstable();
        for (before, from) in earliest.iter().enumerate() {
            // None is wider than a window, so each that begins before `from` also ends before the window's end.
            let inside = latest.partition_point(|at| *at < from + window).saturating_sub(before);
            if inside > rate {
                found.add(rule::RATE, || {
                    format!(
                        "{user} was let through {inside} times within {window} ms from {from} ms; the rate is {rate}"
                    )
                });
                break;
            }
        }
    }
}
