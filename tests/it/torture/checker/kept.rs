//! Nothing acknowledged is lost.

use super::facts::{Facts, ShownOrder, describe};
use super::{Found, rule};
use std::collections::BTreeSet;

pub fn check(facts: &Facts, found: &mut Found) {
    for (id, shown) in &facts.shown {
        for it in shown {
            as_shown(facts, found, id, it);
        }
    }
    revoked_by_losses(facts, found);
}

/// H4. An order that an answer shows is in the ledger, as shown. An order that a fault may have lost can be missing, or be
/// bought again: then it was accepted at another time.
fn as_shown(facts: &Facts, found: &mut Found, id: &str, shown: &ShownOrder) {
    let Some(order) = facts.orders.get(id) else {
        found.unless(facts.may_be_lost(shown), rule::KEPT, || {
            format!("the ledger does not have the order: {}", describe(shown.op))
        });
        return;
    };
    let (is, was) = (order, shown.order);
    let same_key = shown.key.is_none_or(|key| key == is.key);
    let same = (&is.sku, is.quantity, is.amount, is.created_at) == (&was.sku, was.quantity, was.amount, was.created_at);
    let again = is.created_at != was.created_at && facts.may_be_lost(shown);
    found.unless((same || again) && same_key && is.user == shown.user, rule::KEPT, || {
        format!("the ledger has {order:?}: {}", describe(shown.op))
    });
}

/// H4. The ledger refuses orders only after a fault that may have lost something, and none that was acknowledged unless
/// the sale leaves them to Redis alone.
fn revoked_by_losses(facts: &Facts, found: &mut Found) {
    for order in facts.history.end.orders.iter().filter(|it| it.state == "revoked") {
        let explained = facts.first_loss().is_some_and(|at| order.resolved_at >= Some(at));
        found.unless(explained, rule::KEPT, || format!("revoked without a loss: {order:?}"));
        let shown = facts.shown.get(order.id.as_str()).into_iter().flatten();
        for bought in shown.filter(|it| it.key.is_some() && facts.history.terms.durability != "redis") {
            found.add(rule::KEPT, || {
                format!("acknowledged and revoked: {}", describe(bought.op))
            });
        }
    }
}

/// Orders that were acknowledged and are not in the ledger, or not as they were first accepted.
pub fn lost(facts: &Facts) -> usize {
    let bought = facts.shown.values().flatten().filter(|it| it.key.is_some());
    let gone = bought.filter(|it| {
        let kept = facts.orders.get(it.order.id.as_str());
        kept.is_none_or(|kept| kept.created_at != it.order.created_at)
    });
    let gone: BTreeSet<_> = gone.map(|it| (&it.order.id, it.order.created_at)).collect();
    gone.len()
}
