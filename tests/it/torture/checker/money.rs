//! Money: every payment is recorded once, as the webhook said, and pays one order of its amount.

use super::facts::{Facts, describe, millis};
use super::{Found, TICK, rule};
use crate::torture::history::{LedgerPayment, Op, Reply, Request};
use std::collections::{BTreeMap, HashMap};

/// A payment as a webhook named it, and the answer.
struct Webhook<'a> {
    op: &'a Op,
    payment: &'a str,
    webhook: &'a str,
    order: &'a str,
    amount: i64,
}

impl<'a> Webhook<'a> {
    fn of(op: &'a Op) -> Option<Self> {
        match &op.request {
            Request::Pay {
                payment,
                webhook,
                order,
                amount,
            } => Some(Self {
                op,
                payment,
                webhook,
                order,
                amount: *amount,
            }),
            _ => None,
        }
    }

    /// The outcome, if there was an answer; a webhook without one may be recorded or not.
    fn outcome(&self) -> Option<&'a str> {
        match &self.op.reply {
            Reply::Done { status: 200, outcome } => Some(outcome),
            _ => None,
        }
    }

    fn is(&self, row: &LedgerPayment) -> bool {
        (self.payment, self.webhook, self.order, self.amount) == (&row.payment, &row.webhook, &row.order, row.amount)
    }
}

pub fn check(facts: &Facts, found: &mut Found) {
    let webhooks: Vec<Webhook> = facts.history.ops.iter().filter_map(Webhook::of).collect();
    recorded_as_sent(facts, found, &webhooks);
    answered_as_recorded(facts, found, &webhooks);
    paid_once(facts, found);
}

/// H8. No payment is recorded without a webhook, none twice, and each outcome fits the order: applied to a paid one of
/// that amount, owed back for another reason than that, unmatched only if there was no such order at the first webhook.
fn recorded_as_sent(facts: &Facts, found: &mut Found, all: &[Webhook]) {
    let mut by_payment: HashMap<&str, Vec<&Webhook>> = HashMap::new();
    for webhook in all {
        by_payment.entry(webhook.payment).or_default().push(webhook);
    }
    let (mut payments, mut webhooks) = (HashMap::new(), HashMap::new());
    for row in &facts.history.end.payments {
        let twice = [payments.insert(&row.payment, row), webhooks.insert(&row.webhook, row)];
        for other in twice.into_iter().flatten() {
            found.add(rule::MONEY, || format!("recorded twice: {other:?} and {row:?}"));
        }
        let of_row = by_payment.get(row.payment.as_str());
        let sent = of_row.is_some_and(|all| all.iter().any(|it| it.is(row)));
        found.unless(sent, rule::MONEY, || format!("no webhook for {row:?}"));
        let order = facts.orders.get(row.order.as_str());
        let matched = row.matched.as_deref() == Some(&row.order);
        let fits = match row.outcome.as_str() {
            "applied" => matched && order.is_some_and(|it| it.state == "paid" && it.amount == row.amount),
            "refund_due" => matched && order.is_some_and(|it| it.state != "reserved" || it.amount != row.amount),
            "unmatched" => {
                let first = of_row.and_then(|all| all.iter().map(|it| millis(it.op.invoked)).min());
                // An order that Redis lost may be there again later.
                let known = order.is_some_and(|it| Some(it.created_at) < first) && !facts.is_lossy();
                row.matched.is_none() && !known
            }
            _ => false,
        };
        found.unless(fits, rule::MONEY, || {
            format!("{row:?} does not fit its order: {order:?}")
        });
    }
}

/// H8. A payment was recorded as in its answer; a pending one has been decided. Only one webhook was the first, and each
/// duplicate has another webhook.
fn answered_as_recorded(facts: &Facts, found: &mut Found, all: &[Webhook]) {
    let rows = &facts.history.end.payments;
    let by_payment: HashMap<&str, &LedgerPayment> = rows.iter().map(|it| (it.payment.as_str(), it)).collect();
    let by_webhook: HashMap<&str, &LedgerPayment> = rows.iter().map(|it| (it.webhook.as_str(), it)).collect();
    // The webhooks of each name, in the order in which they began: two are enough to know whether there is another.
    let mut by_name: HashMap<(bool, &str), Vec<usize>> = HashMap::new();
    let mut sorted: Vec<usize> = (0..all.len()).collect();
    sorted.sort_by_key(|at| all[*at].op.invoked);
    for at in sorted {
        by_name.entry((true, all[at].payment)).or_default().push(at);
        by_name.entry((false, all[at].webhook)).or_default().push(at);
    }
    let mut first: BTreeMap<&str, &Webhook> = BTreeMap::new();
    for (at, it) in all.iter().enumerate() {
        let Some(outcome) = it.outcome() else { continue };
        let row = by_payment.get(it.payment).or_else(|| by_webhook.get(it.webhook));
        let Some(row) = row else {
            found.add(rule::MONEY, || format!("not recorded: {}", describe(it.op)));
            continue;
        };
        if outcome == "duplicate" {
            let names = [(true, it.payment), (false, it.webhook)];
            let mut others = names
                .iter()
                .filter_map(|name| by_name.get(name))
                .flat_map(|all| all.iter().take(2));
            let holds = others.any(|other| *other != at && all[*other].op.invoked <= it.op.returned);
            found.unless(holds, rule::MONEY, || {
                format!("a duplicate of nothing: {}", describe(it.op))
            });
            continue;
        }
        if let Some(other) = first.insert(it.payment, it) {
            found.add(rule::MONEY, || {
                format!("taken in twice: {} and {}", describe(other.op), describe(it.op))
            });
        }
        let same = it.is(row) && (row.outcome == outcome || outcome == "pending");
        found.unless(same && in_time(facts, it, outcome), rule::MONEY, || {
            let order = facts.orders.get(it.order);
            format!("recorded as {row:?}, for {order:?}: {}", describe(it.op))
        });
    }
}

/// Whether the order was decided in time for this answer: by an applied payment during the request, and before the answer
/// if the money is owed back although the amount is right.
fn in_time(facts: &Facts, it: &Webhook, outcome: &str) -> bool {
    let Some(order) = facts.orders.get(it.order) else {
        return matches!(outcome, "unmatched" | "pending");
    };
    let (invoked, returned) = (millis(it.op.invoked) - TICK, millis(it.op.returned) + TICK);
    match outcome {
        "applied" => order.resolved_at.is_some_and(|at| (invoked..=returned).contains(&at)),
        "refund_due" if it.amount == order.amount => order.resolved_at.is_some_and(|at| at <= returned),
        _ => true,
    }
}

/// H8. A paid order has one applied payment, and every order costs the price of its units.
fn paid_once(facts: &Facts, found: &mut Found) {
    let mut applied: HashMap<&str, usize> = HashMap::new();
    for row in facts.history.end.payments.iter().filter(|it| it.outcome == "applied") {
        *applied.entry(&row.order).or_default() += 1;
    }
    for order in &facts.history.end.orders {
        let times = applied.get(order.id.as_str()).copied().unwrap_or(0);
        found.unless(times == 1 || order.state != "paid", rule::MONEY, || {
            format!("{times} payments are applied to {order:?}")
        });
        let price = facts.items.get(order.sku.as_str()).map(|item| item.price);
        found.unless(
            price.map(|it| it * order.quantity) == Some(order.amount),
            rule::MONEY,
            || format!("at {price:?} each, this amount is wrong: {order:?}"),
        );
    }
}
