//! Refusals are true, and after the last fault there are purchases again. These rules need units that were certainly free, so
//! every unit that may have been taken counts as taken, for as long as it may have been. Refusals during a fault and right
//! after it are not judged.

use super::facts::{Buy, Facts, code, describe, is_given_back, is_unknown, millis};
use super::{Found, LATE, Micros, Millis, RELEASE_SLACK, RETRY, SELLS_AGAIN, TICK, rule};
use crate::torture::history::{Op, Reply};
use std::collections::{BTreeMap, HashMap};

pub fn check(facts: &Facts, found: &mut Found) {
    let items: HashMap<&str, Units> = facts.items.keys().map(|sku| (*sku, of_item(facts, sku))).collect();
    let shoppers = of_shoppers(facts);
    for buys in facts.buys.values() {
        for buy in buys {
            if !facts.is_disturbed(buy.op.invoked, buy.op.returned) {
                match code(&buy.op.reply) {
                    "sold_out" => {
                        sold_out(facts, found, &items, buy);
                        one_answer(facts, found, buy, buys);
                    }
                    "purchase_limit_reached" => limit(facts, found, &shoppers, buy),
                    _ => {}
                }
            }
        }
    }
    rate(facts, found);
    sells_again(facts, found, &items);
}

type Amounts = Vec<(Millis, i64)>;

/// Amounts by time, to sum up to a moment.
struct Tally(Amounts);

impl Tally {
    fn of(mut amounts: Amounts) -> Self {
        amounts.sort_unstable();
        let mut sum = 0;
        for (_, amount) in &mut amounts {
            sum += *amount;
            *amount = sum;
        }
        Self(amounts)
    }

    fn until(&self, at: Millis) -> i64 {
        let after = self.0.partition_point(|(it, _)| *it <= at);
        after.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// Units that may be taken, and those that are surely free again or new.
struct Units {
    taken: Tally,
    back: Tally,
}

impl Units {
    fn of((taken, back): (Amounts, Amounts)) -> Self {
        Self {
            taken: Tally::of(taken),
            back: Tally::of(back),
        }
    }

    /// The most units that may be taken at a moment of this time, less those that are new.
    fn taken(&self, from: Millis, until: Millis) -> i64 {
        self.taken.until(until) - self.back.until(from - 1)
    }
}

/// When the shards surely have the ledger's decision of this moment. Mostly that is at once; a message that failed because
/// of a fault is delivered again after a pause, which grows.
fn known(facts: &Facts, at: Millis) -> Millis {
    let soon = at + RELEASE_SLACK;
    let disturbed = facts.disturbed_until(at * 1000, soon * 1000);
    disturbed.map_or(soon, |until| soon.max(millis(until)) + RETRY)
}

/// Units taken by orders: from their purchase until a while after the release; those of an order that the ledger refused,
/// for ever. Units that Redis accepted and lost are taken until the loss has been found.
fn of_orders<'a>(facts: &Facts<'a>, mut note: impl FnMut(&'a str, &'a str, (Millis, i64), Option<Millis>)) {
    for order in &facts.history.end.orders {
        let back = order.resolved_at.filter(|_| is_given_back(&order.state));
        let back = back.map(|at| known(facts, at));
        note(&order.user, &order.sku, (order.created_at, order.quantity), back);
    }
    let Some(noticed) = facts.last_loss_noticed() else {
        return;
    };
    for buy in facts.buys.values().flatten() {
        let at = match buy.order() {
            Some(order) => {
                let kept = facts.orders.get(order.id.as_str());
                let is_kept = kept.is_some_and(|kept| kept.created_at == order.created_at);
                (!is_kept).then_some(order.created_at)
            }
            None => is_unknown(&buy.op.reply).then(|| millis(buy.op.invoked)),
        };
        if let Some(at) = at {
            let back = known(facts, noticed.max(at));
            note(buy.user, buy.sku, (at, buy.quantity), Some(back));
        }
    }
}

fn of_item(facts: &Facts, sku: &str) -> Units {
    let (mut taken, mut back) = (Vec::new(), Vec::new());
    of_orders(facts, |_, of, (at, units), until| {
        if of == sku {
            taken.push((at, units));
            back.extend(until.map(|until| (until, units)));
        }
    });
    for restock in facts.history.end.restocks.iter().filter(|it| it.sku == sku) {
        let (units, at) = (restock.quantity.abs(), restock.created_at);
        let known = restock.decided_at.map(|at| known(facts, at));
        if restock.quantity < 0 {
            // A withdrawal takes units out of the shards before it is decided, and gives them back when it is refused.
            taken.push((at, units));
            let decided = restock.decided_at.unwrap_or(at);
            if restock.state == "applied" && facts.is_disturbed(at * 1000, decided * 1000) {
                // A call that comes late may take as many again, which are given back later.
                taken.push((at, units));
                back.extend(known.map(|known| (known, units)));
            }
        }
        if (restock.quantity < 0) == (restock.state == "refused") {
            back.extend(known.map(|known| (known, units)));
        }
    }
    Units::of((taken, back))
}

fn of_shoppers<'a>(facts: &Facts<'a>) -> BTreeMap<(&'a str, &'a str), Units> {
    let mut all: BTreeMap<(&str, &str), (Amounts, Amounts)> = BTreeMap::new();
    of_orders(facts, |user, sku, taken, until| {
        let of_user = all.entry((user, sku)).or_default();
        of_user.0.push(taken);
        of_user.1.extend(until.map(|until| (until, taken.1)));
    });
    all.into_iter().map(|(of, amounts)| (of, Units::of(amounts))).collect()
}

/// Units of an item that were certainly free at every moment of this time.
fn free(facts: &Facts, items: &HashMap<&str, Units>, sku: &str, from: Millis, until: Millis) -> i64 {
    match (facts.items.get(sku), items.get(sku)) {
        (Some(item), Some(units)) => item.stock - units.taken(from, until),
        _ => 0,
    }
}

/// H10. Sold out is answered only if at some moment between question and answer fewer units may have been free than the
/// request wanted. A sale that waits for the ledger also answers it for an order that the ledger refused, to its key for ever.
fn sold_out(facts: &Facts, found: &mut Found, items: &HashMap<&str, Units>, buy: &Buy) {
    let order = facts.by_key.get(&(buy.user, buy.key));
    let revoked = order.is_some_and(|it| it.state == "revoked") && facts.history.terms.durability == "postgres";
    let free = free(facts, items, buy.sku, millis(buy.op.invoked), millis(buy.op.returned));
    found.unless(free < buy.quantity || revoked, rule::SOLD_OUT, || {
        format!("at least {free} were free: {}", describe(buy.op))
    });
}

/// H13. A copy of a request is refused as sold out while another one at the same time gets the order: only if a unit may
/// have come back between the question and the order. Successive requests are for H2 and H10.
fn one_answer(facts: &Facts, found: &mut Found, buy: &Buy, copies: &[Buy]) {
    let meanwhile = |other: &&Buy| other.op.invoked <= buy.op.returned && buy.op.invoked <= other.op.returned;
    let order = copies.iter().filter(meanwhile).find_map(Buy::order);
    let Some(order) = order.filter(|order| buy.asks_for(&order.sku, order.quantity)) else {
        return;
    };
    let (asked, accepted) = (millis(buy.op.invoked) - TICK, order.created_at + TICK);
    if facts.is_disturbed(asked.min(accepted) * 1000, buy.op.returned.max(accepted * 1000)) {
        return;
    }
    found.unless(may_come_back(facts, buy.sku, asked, accepted), rule::ONE_ANSWER, || {
        format!(
            "another copy got the order of {}: {}",
            order.created_at,
            describe(buy.op)
        )
    });
}

/// Whether a unit of an item may have become free in this time.
fn may_come_back(facts: &Facts, sku: &str, from: Millis, until: Millis) -> bool {
    let end = &facts.history.end;
    let orders = end.orders.iter().filter(|it| it.sku == sku && is_given_back(&it.state));
    let orders = orders.filter_map(|it| Some((it.resolved_at?, it.resolved_at)));
    let restocks = end.restocks.iter().filter(|it| it.sku == sku);
    let restocks = restocks.map(|it| (it.created_at, it.decided_at));
    orders
        .chain(restocks)
        .any(|(begun, decided)| begun <= until && decided.is_none_or(|at| known(facts, at) >= from))
}

/// H11. The limit is reported as reached only if with this request the shopper may have had more, at some moment between
/// question and answer.
fn limit(facts: &Facts, found: &mut Found, shoppers: &BTreeMap<(&str, &str), Units>, buy: &Buy) {
    let limit = facts.items.get(buy.sku).map_or(0, |item| item.limit);
    let units = shoppers.get(&(buy.user, buy.sku));
    let mine = units.map_or(0, |it| it.taken(millis(buy.op.invoked), millis(buy.op.returned)));
    found.unless(mine + buy.quantity > limit, rule::LIMIT_TRUE, || {
        format!("at most {mine} of {limit}: {}", describe(buy.op))
    });
}

/// The data to judge a shopper's window.
#[derive(Default)]
struct Window<'a> {
    /// Requests that were refused with a wait.
    limited: Vec<&'a Op>,
    /// From when until when each key may have stood in the window.
    keys: Vec<(Micros, Micros)>,
}

/// H12. A shopper must wait only if requests with as many other keys as the rate may have been let through in the window
/// before. A request that was itself refused with a wait does not count, nor one whose key was known with another body.
fn rate(facts: &Facts, found: &mut Found) {
    let rate = facts.history.terms.rate;
    let length = (facts.history.terms.rate_window + TICK) * 1000;
    let mut by_user: BTreeMap<&str, Window> = BTreeMap::new();
    for ((user, _), buys) in &facts.buys {
        let window = by_user.entry(user).or_default();
        let mut stood: Option<(Micros, Micros)> = None;
        for Buy { op, .. } in buys {
            match code(&op.reply) {
                "rate_limited" => window.limited.push(op),
                "idempotency_key_reused" => {}
                _ => {
                    let until = ended(op) + length;
                    match &mut stood {
                        Some((_, last)) if op.invoked <= *last => *last = until.max(*last),
                        _ => window.keys.extend(stood.replace((op.invoked, until))),
                    }
                }
            }
        }
        window.keys.extend(stood);
    }
    for Window { limited, keys } in by_user.into_values() {
        let (mut since, mut until): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        since.sort_unstable();
        until.sort_unstable();
        for op in limited.iter().filter(|op| !facts.is_disturbed(op.invoked, op.returned)) {
            let begun = since.partition_point(|at| *at < op.returned);
            let gone = until.partition_point(|at| *at < op.invoked);
            found.unless(begun - gone >= rate, rule::RATE_TRUE, || {
                let counted = begun - gone;
                format!(
                    "{counted} other keys may have been counted, the rate is {rate}: {}",
                    describe(op)
                )
            });
        }
    }
}

/// When a request can have taken effect at the latest.
fn ended(op: &Op) -> Micros {
    op.returned + if is_unknown(&op.reply) { LATE } else { 0 }
}

/// L1. Once everything is healed, a purchase is accepted within the promised time. Only requests show it: the sale does
/// not sell again if a request after that time has no outcome, although units were free, and none was accepted before it.
fn sells_again(facts: &Facts, found: &mut Found, items: &HashMap<&str, Units>) {
    let history = facts.history;
    let Some(last) = history.injections.iter().max_by_key(|it| it.until) else {
        return;
    };
    let by = history.healed + SELLS_AGAIN;
    let all = || facts.buys.values().flatten();
    let accepted = all().filter(|buy| matches!(buy.op.reply, Reply::Order { status: 201, .. }));
    let accepted = accepted
        .filter(|buy| buy.op.invoked >= history.healed)
        .map(|buy| buy.op.returned);
    let sold = accepted.chain(history.sold_again).min();
    let asked = |buy: &&Buy| {
        let before = sold.is_none_or(|sold| buy.op.returned < sold);
        buy.op.invoked >= by && before && is_unknown(&buy.op.reply)
    };
    let could = |buy: &&Buy| free(facts, items, buy.sku, millis(by), millis(buy.op.returned)) >= buy.quantity;
    if let Some(buy) = all().filter(asked).find(could) {
        found.add(rule::SELLS, || {
            let (what, healed) = (&last.what, history.healed);
            format!(
                "{what} was healed at {healed} µs, sold again at {sold:?}; units were free: {}",
                describe(buy.op)
            )
        });
    }
}
