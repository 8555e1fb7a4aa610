//! The states of an order, one answer after another.

use super::facts::{Facts, ShownOrder, code, describe, is_decided, millis};
use super::{Found, LEDGER_WAIT, Micros, TICK, rule};
use crate::torture::history::{LedgerOrder, Op, Reply, Request};
use std::collections::{BTreeMap, HashMap};

pub fn check(facts: &Facts, found: &mut Found) {
    let decided = decisions(facts);
    for (id, shown) in &facts.shown {
        let mut shown = shown.clone();
        shown.sort_by_key(|it| it.op.invoked);
        decided_for_good(facts, found, id, &shown, decided.get(id).copied());
        confirmed_for_good(facts, found, &shown);
        held_until_the_deadline(facts, found, id, &shown);
    }
    found_again(facts, found);
    cancelled(facts, found);
    ledger_orders(facts, found);
}

/// When an answer first said that an order has left `reserved`.
fn decisions<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Micros> {
    let mut decided: HashMap<&str, Micros> = HashMap::new();
    for op in &facts.history.ops {
        let order = match (&op.request, &op.reply) {
            (_, Reply::Order { order, .. }) if is_decided(&order.state) => &order.id,
            (Request::Pay { order, .. }, Reply::Done { status: 200, outcome }) if outcome == "applied" => order,
            (Request::Cancel { order, .. }, reply) if code(reply) == "order_not_cancellable" => order,
            _ => continue,
        };
        let at = decided.entry(order).or_insert(Micros::MAX);
        *at = op.returned.min(*at);
    }
    decided
}

/// S1. A decision that was shown is the ledger's decision in the end. A later read from the ledger does not show a reserved
/// order any more. Redis may learn of it later, so a replay may show it reserved for a while; but once it shows the decision,
/// it goes on to, unless a fault has taken that from it.
fn decided_for_good(facts: &Facts, found: &mut Found, id: &str, shown: &[ShownOrder], decided: Option<Micros>) {
    let in_ledger = facts.orders.get(id);
    let of_redis = |it: &&ShownOrder| it.key.is_some() && is_decided(&it.order.state);
    let shown_by_redis = shown.iter().filter(of_redis).map(|it| it.op.returned).min();
    for it in shown {
        let since = if it.is_from_ledger() { decided } else { shown_by_redis };
        let holds = match it.order.state.as_str() {
            "reserved" => {
                let disturbed = !it.is_from_ledger() && facts.is_disturbed(it.op.invoked, it.op.returned);
                let is_read_from_redis = it.key.is_none() && !it.order.confirmed;
                since.is_none_or(|since| it.op.invoked <= since) || disturbed || is_read_from_redis
            }
            state => in_ledger.is_some_and(|order| order.state == state),
        };
        found.unless(holds, rule::STATE, || {
            format!(
                "decided {decided:?} µs, in the ledger {in_ledger:?}: {}",
                describe(it.op)
            )
        });
    }
}

/// S2. A sale that waits for the ledger answers no unconfirmed purchase. A confirmed order stays confirmed for every later
/// reader, and for every replay after a confirmed one. Not so while Postgres may have been away, because then Redis answers;
/// also if it was only slow, which shows in a long answer.
fn confirmed_for_good(facts: &Facts, found: &mut Found, shown: &[ShownOrder]) {
    let confirmed = |bought: bool| {
        let times = shown
            .iter()
            .filter(|it| it.order.confirmed && (!bought || it.key.is_some()));
        times.map(|it| it.op.returned).min()
    };
    let (by_any, by_purchase) = (confirmed(false), confirmed(true));
    for it in shown.iter().filter(|it| !it.order.confirmed) {
        let (since, slow) = match it.key {
            Some(_) => (by_purchase, false),
            None => (by_any, it.op.returned - it.op.invoked >= LEDGER_WAIT),
        };
        let later = since.is_some_and(|since| since < it.op.invoked);
        let excused = slow || facts.is_disturbed(it.op.invoked, it.op.returned);
        let waits = it.key.is_some() && facts.history.terms.durability == "postgres";
        found.unless(!waits && (!later || excused), rule::CONFIRMED, || {
            format!("not confirmed, since {since:?} µs it was: {}", describe(it.op))
        });
    }
}

/// S4. An order is shown with a deadline that is at least the sale's window after it was accepted, and no later than the
/// ledger has it in the end: outages only extend it. Answers of the ledger show it growing. Redis does not know of
/// extensions, so its answers are not compared with those.
fn held_until_the_deadline(facts: &Facts, found: &mut Found, id: &str, shown: &[ShownOrder]) {
    let window = i64::from(facts.history.terms.window_seconds) * 1000;
    let in_ledger = facts.orders.get(id);
    for it in shown {
        let (order, end) = (it.order, in_ledger.filter(|end| end.created_at == it.order.created_at));
        let long_enough = order.expires_at + TICK >= order.created_at + window;
        let at_most = end.is_none_or(|end| order.expires_at <= end.expires_at + TICK);
        found.unless(long_enough && at_most, rule::HOLD, || {
            format!(
                "the deadline should be {window} ms later, at most {end:?}: {}",
                describe(it.op)
            )
        });
    }
    let from_ledger = || shown.iter().filter(|it| it.is_from_ledger());
    let mut returned: Vec<_> = from_ledger().collect();
    returned.sort_by_key(|it| it.op.returned);
    let (mut returned, mut latest) = (returned.into_iter().peekable(), 0);
    for it in from_ledger() {
        while let Some(before) = returned.next_if(|before| before.op.returned < it.op.invoked) {
            latest = latest.max(before.order.expires_at);
        }
        found.unless(it.order.expires_at >= latest, rule::HOLD, || {
            format!("the deadline was {latest} before: {}", describe(it.op))
        });
    }
}

/// S3. A shopper who was shown an order finds it later, unless a fault may have lost it meanwhile; nobody else ever does.
fn found_again(facts: &Facts, found: &mut Found) {
    for op in &facts.history.ops {
        let (Request::Read { user, order } | Request::Cancel { user, order }) = &op.request else {
            continue;
        };
        if code(&op.reply) != "not_found" {
            continue;
        }
        let shown = facts.shown.get(order.as_str()).into_iter().flatten();
        let undisturbed = facts.first_loss().is_none_or(|at| millis(op.returned) < at);
        let is_before = |it: &&ShownOrder| it.op.returned < op.invoked && it.user == user;
        let mut before = shown
            .filter(is_before)
            .filter(|it| undisturbed || !facts.may_be_lost(it));
        if let Some(before) = before.next() {
            found.add(rule::FOUND, || {
                format!("after {}, this: {}", describe(before.op), describe(op))
            });
        }
    }
}

/// S1. The answer to a cancellation is the order's final state; it is refused only once the order has ended otherwise.
fn cancelled(facts: &Facts, found: &mut Found) {
    for op in &facts.history.ops {
        let Request::Cancel { order: id, .. } = &op.request else {
            continue;
        };
        let order = facts.orders.get(id.as_str());
        let holds = match &op.reply {
            Reply::Order { order: shown, .. } => shown.state == "cancelled" && shown.id == *id,
            reply if code(reply) == "order_not_cancellable" => order.is_some_and(|it| ended_otherwise(it, op)),
            _ => true,
        };
        found.unless(holds, rule::STATE, || {
            format!("in the ledger {order:?}: {}", describe(op))
        });
    }
}

fn ended_otherwise(order: &LedgerOrder, op: &Op) -> bool {
    let in_time = order.resolved_at.is_some_and(|at| at <= millis(op.returned) + TICK);
    matches!(order.state.as_str(), "paid" | "expired" | "revoked") && in_time
}

/// S4. By the ledger, no order expires before its deadline, which is at least the sale's window after it was accepted, and
/// none is decided before it was accepted; one that was lost and bought again may be paid by a payment from before.
fn ledger_orders(facts: &Facts, found: &mut Found) {
    let window = i64::from(facts.history.terms.window_seconds) * 1000;
    let states: BTreeMap<&str, bool> = ["reserved", "paid", "cancelled", "expired", "revoked"]
        .map(|state| (state, is_decided(state)))
        .into();
    for order in &facts.history.end.orders {
        let known = states.get(order.state.as_str()) == Some(&order.resolved_at.is_some());
        found.unless(known, rule::STATE, || format!("there is no such state: {order:?}"));
        let resolved = order.resolved_at.unwrap_or(order.created_at);
        let holds = order.expires_at + TICK >= order.created_at + window
            && (order.state != "expired" || resolved + TICK >= order.expires_at)
            && (resolved + TICK >= order.created_at || facts.is_lossy());
        found.unless(holds, rule::HOLD, || format!("the hold was too short: {order:?}"));
    }
}
