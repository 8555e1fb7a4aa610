//! The order of events: each shard's numbers against real time.

use super::facts::{Facts, describe, millis};
use super::{Found, Micros, TICK, rule};
use crate::torture::history::{LedgerOrder, Op, Reply};
use std::collections::{BTreeMap, HashMap};

pub fn check(facts: &Facts, found: &mut Found) {
    accepted_while_asked(facts, found);
    later_is_later(facts, found);
    numbers(facts, found);
    homes(facts, found);
}

/// H9. An order is accepted between its question and its 201, and no order is shown before it was accepted.
fn accepted_while_asked(facts: &Facts, found: &mut Found) {
    for it in facts.shown.values().flatten() {
        let created = it.order.created_at;
        let is_new = it.key.is_some() && matches!(it.op.reply, Reply::Order { status: 201, .. });
        let early = is_new && created + TICK < millis(it.op.invoked);
        found.unless(
            !early && created - TICK <= millis(it.op.returned),
            rule::REAL_TIME,
            || format!("accepted at another time than it was asked for: {}", describe(it.op)),
        );
    }
}

/// H9. If one 201 came back before another purchase began at the same shard, its event comes before: a shard decides one
/// purchase at a time, each during its request.
fn later_is_later(facts: &Facts, found: &mut Found) {
    let mut placed: Vec<(&LedgerOrder, &Op)> = Vec::new();
    for it in facts.shown.values().flatten().filter(|it| it.key.is_some()) {
        let order = facts.orders.get(it.order.id.as_str());
        // An order that was lost and bought again has the second place.
        let order = order.filter(|order| order.created_at == it.order.created_at);
        if let (Some(order), Reply::Order { status: 201, .. }) = (order, &it.op.reply) {
            placed.push((order, it.op));
        }
    }
    let mut returned = placed.clone();
    placed.sort_by_key(|(_, op)| op.invoked);
    returned.sort_by_key(|(_, op)| op.returned);
    let mut returned = returned.into_iter().peekable();
    let mut last: HashMap<u16, (&LedgerOrder, &Op)> = HashMap::new();
    for (order, op) in placed {
        while let Some(it) = returned.next_if(|(_, it)| it.returned < op.invoked) {
            let last = last.entry(it.0.shard).or_insert(it);
            if place(last.0) < place(it.0) {
                *last = it;
            }
        }
        if let Some((before, its)) = last.get(&order.shard).filter(|(it, _)| place(it) >= place(order)) {
            found.add(rule::REAL_TIME, || {
                let (a, b) = (place(before), place(order));
                let until: Micros = its.returned;
                format!(
                    "order {} is event {a:?} and returned at {until} µs; event {b:?} is later: {}",
                    before.id,
                    describe(op)
                )
            });
        }
    }
}

const fn place(order: &LedgerOrder) -> (i64, i64) {
    (order.epoch, order.seq)
}

/// R4, H9. In one generation of a shard the events are numbered from 1 without gaps, and time goes with the numbers, over
/// all generations. A gap is an order that was lost, so there must have been a fault before that may lose one. No order is of a generation that its shard has not come to.
fn numbers(facts: &Facts, found: &mut Found) {
    let mut shards: BTreeMap<u16, Vec<&LedgerOrder>> = BTreeMap::new();
    for order in &facts.history.end.orders {
        shards.entry(order.shard).or_default().push(order);
    }
    for (shard, mut orders) in shards {
        orders.sort_by_key(|order| place(order));
        let mut before: Option<&LedgerOrder> = None;
        for order in orders {
            let expected = match before {
                Some(before) if before.epoch == order.epoch => before.seq + 1,
                _ => 1,
            };
            let lost = facts.first_loss().is_some_and(|at| at <= order.created_at);
            let holds = order.seq == expected || (order.seq > expected && lost);
            found.unless(holds, rule::NUMBERS, || {
                format!("shard {shard}: {expected} should come after {before:?}, not {order:?}")
            });
            if let Some(before) = before {
                found.unless(before.created_at - TICK <= order.created_at, rule::REAL_TIME, || {
                    format!("shard {shard}: {order:?} was accepted before {before:?}")
                });
            }
            before = Some(order);
        }
        let of_shard = facts.history.end.shards.iter().find(|it| it.shard == shard);
        if let (Some(last), Some(of_shard)) = (before, of_shard) {
            found.unless(last.epoch <= of_shard.epoch, rule::NUMBERS, || {
                format!("shard {shard} is in generation {}: {last:?}", of_shard.epoch)
            });
        }
    }
}

/// H9. A shopper's home is one shard, which decides alone.
fn homes(facts: &Facts, found: &mut Found) {
    let mut homes: HashMap<&str, u16> = HashMap::new();
    for order in &facts.history.end.orders {
        let home = *homes.entry(&order.user).or_insert(order.shard);
        let holds = home == order.shard && home < facts.history.terms.shards;
        found.unless(holds, rule::REAL_TIME, || {
            format!("{} has orders on shard {home} and {order:?}", order.user)
        });
    }
}
