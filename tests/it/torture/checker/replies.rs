//! Answers by themselves: those of the contract, in time; and operators' answers.

use super::facts::{Facts, code, describe, is_unknown};
use super::{Found, HANG, HANG_OF_OTHERS, rule};
use crate::torture::history::{Reply, Request};
use std::collections::{BTreeMap, HashMap};

pub fn check(facts: &Facts, found: &mut Found) {
    for op in &facts.history.ops {
        found.unless(is_in_contract(&op.request, &op.reply), rule::CONTRACT, || {
            format!("no such answer: {}", describe(op))
        });
        // A request that needs a server that is away, or comes back, may wait as long as that takes.
        let most = match op.request {
            Request::Buy { .. } | Request::Read { .. } | Request::Cancel { .. } => HANG,
            Request::Pay { .. } | Request::Restock { .. } => HANG_OF_OTHERS,
        };
        let slow = op.returned - op.invoked > most && !facts.is_disturbed(op.invoked, op.returned);
        found.unless(!slow, rule::HANG, || describe(op));
    }
    restocks(facts, found);
}

/// P1. The answers that the contract knows for a sale that sells: anything else, above all a 500, is a defect. A 404 for an
/// order may be right.
fn is_in_contract(request: &Request, reply: &Reply) -> bool {
    let (status, code) = match reply {
        Reply::None => return true,
        Reply::Order { status, .. } => (*status, "order"),
        Reply::Done { status, outcome } => (*status, outcome.as_str()),
        Reply::Problem { status, code } => (*status, code.as_str()),
    };
    if matches!((status, code), (503, "unavailable" | "overloaded")) {
        return matches!(reply, Reply::Problem { .. });
    }
    match request {
        // The sales of a round sell, have every item and no guards.
        Request::Buy { .. } => matches!(
            (status, code),
            (200 | 201, "order")
                | (409, "purchase_limit_reached" | "sold_out")
                | (422, "idempotency_key_reused")
                | (429, "rate_limited")
        ),
        Request::Read { .. } => matches!((status, code), (200, "order") | (404, "not_found")),
        Request::Cancel { .. } => matches!(
            (status, code),
            (200, "order") | (404, "not_found") | (409, "order_not_cancellable")
        ),
        Request::Pay { .. } => matches!(
            (status, code),
            (200, "applied" | "duplicate" | "refund_due" | "unmatched" | "pending")
        ),
        Request::Restock { .. } => {
            let done = status == 200 && matches!(reply, Reply::Done { .. });
            done || matches!(
                (status, code),
                (409, "insufficient_stock") | (422, "idempotency_key_reused")
            )
        }
    }
}

/// S5. A restock is recorded under its key before anything else, so every answer but an unknown one has its row: applied
/// after 200, refused after 409, and of another body after 422. No row lacks a request, every row is decided, and the stock
/// is the sum of all applied restocks.
fn restocks(facts: &Facts, found: &mut Found) {
    let (history, end) = (facts.history, &facts.history.end);
    let mut rows = HashMap::new();
    let mut stock: BTreeMap<&str, i64> = history
        .terms
        .items
        .iter()
        .map(|it| (it.sku.as_str(), it.stock))
        .collect();
    for row in &end.restocks {
        if let Some(other) = rows.insert(row.key.as_str(), row) {
            found.add(rule::RESTOCK, || format!("twice under one key: {other:?} and {row:?}"));
        }
        if row.state == "applied" {
            *stock.entry(&row.sku).or_default() += row.quantity;
        }
        let decided = matches!(row.state.as_str(), "applied" | "refused") && row.decided_at.is_some();
        found.unless(decided, rule::RESTOCK, || format!("not decided: {row:?}"));
    }
    for (sku, owned) in stock {
        found.unless(end.stock.get(sku) == Some(&owned), rule::RESTOCK, || {
            format!(
                "the stock of {sku} is {:?}, and the restocks make {owned}",
                end.stock.get(sku)
            )
        });
    }
    let mut asked = HashMap::new();
    for op in &history.ops {
        let Request::Restock { key, sku, quantity } = &op.request else {
            continue;
        };
        asked
            .entry(key.as_str())
            .or_insert_with(Vec::new)
            .push((sku, *quantity));
        let row = rows.get(key.as_str());
        let same = row.is_some_and(|row| (&row.sku, row.quantity) == (sku, *quantity));
        let state = row.map_or("", |row| row.state.as_str());
        let holds = match code(&op.reply) {
            _ if is_unknown(&op.reply) => true,
            "insufficient_stock" => same && state == "refused",
            "idempotency_key_reused" => row.is_some() && !same,
            _ => same && state == "applied",
        };
        found.unless(holds, rule::RESTOCK, || {
            format!("the ledger has {row:?}: {}", describe(op))
        });
    }
    for row in &end.restocks {
        let asked = asked.get(row.key.as_str());
        let holds = asked.is_some_and(|asked| asked.contains(&(&row.sku, row.quantity)));
        found.unless(holds, rule::RESTOCK, || format!("nobody asked for {row:?}"));
    }
}
