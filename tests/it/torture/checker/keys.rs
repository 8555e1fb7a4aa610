//! One outcome a key.

use super::facts::{Buy, Facts, ShownOrder, code, describe, is_unknown, millis};
use super::{Found, Millis, TICK, rule};
use crate::torture::history::{LedgerOrder, Order, Reply};
use std::collections::{BTreeMap, HashSet};

pub fn check(facts: &Facts, found: &mut Found) {
    for ((user, key), buys) in &facts.buys {
        one_order(facts, found, buys);
        after_a_success(facts, found, buys);
        reused_keys(facts, found, buys);
        if let Some(order) = facts.by_key.get(&(*user, *key)) {
            somebody_got_it(facts, found, order, buys);
        }
    }
    ids_are_unique(facts, found);
}

fn success<'a>(buy: &Buy<'a>) -> Option<ShownOrder<'a>> {
    buy.order().map(|order| ShownOrder {
        op: buy.op,
        order,
        user: buy.user,
        key: Some(buy.key),
    })
}

/// H2. All successes of a key show one order, the requested one; one of them is 201, the replays are 200. Only after a fault
/// that lost the order may the same request buy again: then the order has the same id and was accepted at another time.
fn one_order(facts: &Facts, found: &mut Found, buys: &[Buy]) {
    let mut created: HashSet<Millis> = HashSet::new();
    let mut first: Option<&Order> = None;
    for buy in buys {
        let (Some(order), Reply::Order { status, replayed, .. }) = (buy.order(), &buy.op.reply) else {
            continue;
        };
        found.unless(buy.asks_for(&order.sku, order.quantity), rule::KEY, || {
            format!("the order differs from the request: {}", describe(buy.op))
        });
        found.unless((*status == 200) == *replayed, rule::KEY, || {
            format!("200 is the first answer again, and 201 is not: {}", describe(buy.op))
        });
        // Two primaries may each accept it at the same moment, where neither asks the ledger or another server.
        let is_twice = facts.forgets() && facts.has_two_primaries(buy.op.invoked);
        if *status == 201 && !created.insert(order.created_at) && !is_twice {
            found.add(rule::KEY, || {
                format!("the second 201 for this key: {}", describe(buy.op))
            });
        }
        let first = *first.get_or_insert(order);
        let is = (&order.sku, order.quantity, order.amount, order.created_at);
        let was = (&first.sku, first.quantity, first.amount, first.created_at);
        // A lost order may be bought again, also with another body.
        let is_same = order.id == first.id && (is == was || (facts.forgets() && order.created_at != first.created_at));
        found.unless(is_same, rule::KEY, || {
            format!("this key was answered {first:?} and then: {}", describe(buy.op))
        });
    }
}

/// H2. A request after a returned success gets the same order, with another body 422, or no outcome. No other check comes
/// before the key, not even the rate. Not so if a fault may have lost the order meanwhile.
fn after_a_success(facts: &Facts, found: &mut Found, buys: &[Buy]) {
    let successes = buys.iter().filter_map(success);
    let earliest = |it: &ShownOrder| it.op.returned;
    let firm = successes
        .clone()
        .filter(|it| !facts.may_be_lost(it))
        .min_by_key(earliest);
    let any = successes.min_by_key(earliest);
    for buy in buys.iter().filter(|buy| !is_unknown(&buy.op.reply)) {
        // A replaced primary does not know the later orders of the promoted one. Until its permits have ended, it may refuse by
        // its own data, or accept the same order once more, which is never stored twice.
        let is_same_order = |shown: &ShownOrder| shown.order.id == buy.order().map_or("", |order| &order.id);
        let is_by_old_side = match &buy.op.reply {
            Reply::Problem { .. } => true,
            Reply::Order { status: 201, .. } => facts.forgets() && any.is_some_and(|it| is_same_order(&it)),
            _ => false,
        };
        if is_by_old_side && facts.has_two_primaries(buy.op.invoked) {
            continue;
        }
        let before = |it: &ShownOrder| it.op.returned < buy.op.invoked;
        let undisturbed = facts.first_loss().is_none_or(|at| millis(buy.op.returned) < at);
        let success = firm.filter(before).or(any.filter(|it| before(it) && undisturbed));
        let Some(success) = success else { continue };
        let holds = if buy.asks_for(&success.order.sku, success.order.quantity) {
            matches!(&buy.op.reply, Reply::Order { status: 200, order, .. } if order.id == success.order.id)
        } else {
            code(&buy.op.reply) == "idempotency_key_reused"
        };
        found.unless(holds, rule::KEY, || {
            format!("after {}, this: {}", describe(success.op), describe(buy.op))
        });
    }
}

/// H2. A key is reused only if there was a request with another body that may have succeeded. Such an answer shows that
/// there is an order, which the ledger then has, unless a fault may have lost it.
fn reused_keys(facts: &Facts, found: &mut Found, buys: &[Buy]) {
    for buy in buys
        .iter()
        .filter(|buy| code(&buy.op.reply) == "idempotency_key_reused")
    {
        let in_ledger = facts.by_key.get(&(buy.user, buy.key));
        let is_other = in_ledger.is_some_and(|it| !buy.asks_for(&it.sku, it.quantity));
        let asked_before = |other: &&Buy| {
            other.op.invoked <= buy.op.returned
                && !other.asks_for(buy.sku, buy.quantity)
                && (other.order().is_some() || is_unknown(&other.op.reply) || is_other)
        };
        let holds = buys.iter().any(|other| asked_before(&other)) && (is_other || facts.is_lossy());
        found.unless(holds, rule::KEY, || {
            format!(
                "no other request has this key; the ledger has {in_ledger:?}: {}",
                describe(buy.op)
            )
        });
    }
}

/// H2. Each order has a request that was not refused, between its question and its answer, or later if the answer left
/// it open. Refused orders of a sale that waits for the ledger were answered as sold out.
fn somebody_got_it(facts: &Facts, found: &mut Found, order: &LedgerOrder, buys: &[Buy]) {
    let may_have_got = |buy: &Buy| {
        let revoked = order.state == "revoked" && facts.history.terms.durability == "postgres";
        let open = is_unknown(&buy.op.reply);
        let in_time = open || millis(buy.op.returned) + TICK >= order.created_at;
        buy.asks_for(&order.sku, order.quantity)
            && millis(buy.op.invoked) - TICK <= order.created_at
            && in_time
            && (open || buy.order().is_some() || (revoked && code(&buy.op.reply) == "sold_out"))
    };
    found.unless(buys.iter().any(may_have_got), rule::KEY, || {
        let asked: Vec<_> = buys.iter().map(|buy| describe(buy.op)).collect();
        format!("nobody can have got {order:?}: {}", asked.join("; "))
    });
}

/// H2. An id is of one shopper and key, in the answers and in the ledger, and the ledger has no order without a request.
fn ids_are_unique(facts: &Facts, found: &mut Found) {
    for (id, shown) in &facts.shown {
        let keys: HashSet<_> = shown.iter().filter_map(|it| Some((it.user, it.key?))).collect();
        found.unless(keys.len() <= 1, rule::KEY, || {
            format!("order {id} is shown for several keys: {keys:?}")
        });
    }
    let (mut ids, mut keys) = (BTreeMap::new(), BTreeMap::new());
    for order in &facts.history.end.orders {
        let key = (order.user.as_str(), order.key.as_str());
        let others = [ids.insert(&order.id, order), keys.insert(key, order)];
        for other in others.into_iter().flatten() {
            found.add(rule::KEY, || format!("the ledger has {other:?} and {order:?}"));
        }
        found.unless(facts.buys.contains_key(&key), rule::KEY, || {
            format!("nobody asked for {order:?}")
        });
    }
}
