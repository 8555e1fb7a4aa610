//! The checker: the rules that must hold of a round, after any faults. It sees the requests, the answers and the final state,
//! and nothing of the program's own reasons.
//!
//! A rule compares only unambiguous data. A request took effect, if at all, between its question and its answer, or after an
//! answer that left it open. Times of the ledger are whole milliseconds, so a decision in the millisecond of a purchase counts
//! as one before it. Units are free in Redis only a while after the ledger's decision. Of two possible readings the one
//! without a violation counts.

mod facts;
mod honesty;
mod kept;
mod keys;
mod money;
mod order;
mod replies;
mod rest;
mod states;
mod stock;

use super::history::{History, Micros, Millis, Violation};
use crate::support::poll::Stopwatch;
use facts::Facts;
use std::collections::BTreeMap;
use std::time::Duration;

/// The rules, each with its statement.
pub mod rule {
    /// The units of live orders are never more than the sale owns.
    pub const OVERSOLD: &str = "H1 never oversold";
    /// A shopper's key stands for one order or none, and every answer to it says so.
    pub const KEY: &str = "H2 one outcome a key";
    /// No shopper has more units of an item than the limit.
    pub const LIMIT: &str = "H3 never above the limit";
    /// An acknowledged order is in the ledger as shown.
    pub const KEPT: &str = "H4 nothing acknowledged is lost";
    /// At rest every unit is free or paid for.
    pub const LEAK: &str = "H5 no unit leaks";
    /// The rest of the stock can be bought to the last unit, and no more.
    pub const LEFT: &str = "H6 what is left is sold";
    /// No shopper is let through more often than the rate.
    pub const RATE: &str = "H7 never above the rate";
    /// A payment is recorded once, as the webhook said, and pays one order of its amount.
    pub const MONEY: &str = "H8 money is recorded once";
    /// Later events in real time come later in their shard.
    pub const REAL_TIME: &str = "H9 real time";
    /// No answer says that an item is sold out while it is not.
    pub const SOLD_OUT: &str = "H10 sold out is the truth";
    /// No answer reports a limit that the shopper has not reached.
    pub const LIMIT_TRUE: &str = "H11 the limit is the truth";
    /// No answer reports a rate that the shopper has not reached.
    pub const RATE_TRUE: &str = "H12 the rate is the truth";
    /// No copy of a request gets `sold_out` while another copy gets the order.
    pub const ONE_ANSWER: &str = "H13 one answer to all copies";
    /// Every shard accounts for the units that it was given.
    pub const BALANCE: &str = "R2 every shard balances";
    /// A shopper's row in Redis fits the ledger's orders of the shopper.
    pub const BUYER: &str = "R3 rows are as the ledger";
    /// A shard's events have numbers without gaps.
    pub const NUMBERS: &str = "R4 numbers without gaps";
    /// At rest Redis and Postgres count the same.
    pub const AGREE: &str = "C2 both sides agree";
    /// At rest nothing is pending, and nothing was put aside.
    pub const AT_REST: &str = "X1 nothing is on its way";
    /// An order leaves `reserved` once, and every answer says so.
    pub const STATE: &str = "S1 states go forward";
    /// An order that Postgres has stays confirmed.
    pub const CONFIRMED: &str = "S2 confirmed stays confirmed";
    /// An order that was shown is found again.
    pub const FOUND: &str = "S3 no order vanishes";
    /// An order is held until its deadline, which moves only away.
    pub const HOLD: &str = "S4 holds last";
    /// A restock is applied once or refused, as in its answer.
    pub const RESTOCK: &str = "S5 restocks are applied once";
    /// Only answers that the contract knows.
    pub const CONTRACT: &str = "P1 answers of the contract";
    /// After the last fault it sells again.
    pub const SELLS: &str = "L1 sells again";
    /// While nothing is wrong, no request waits long.
    pub const HANG: &str = "L2 never a hang";
    /// All of them.
    pub const ALL: &[&str] = &[
        OVERSOLD, KEY, LIMIT, KEPT, LEAK, LEFT, RATE, MONEY, REAL_TIME, SOLD_OUT, LIMIT_TRUE, RATE_TRUE, ONE_ANSWER,
        BALANCE, BUYER, NUMBERS, AGREE, AT_REST, STATE, CONFIRMED, FOUND, HOLD, RESTOCK, CONTRACT, SELLS, HANG,
    ];
}

/// How long units that the ledger has freed or added may need to be free in Redis.
const RELEASE_SLACK: Millis = 5_000;
/// How long after a fault units that could not be freed during it are tried again at the latest.
const RETRY: Millis = 60_000;
/// How long after a fault its consequences may be seen.
const AFTER_FAULT: Micros = 10_000_000;
/// How long after a request without an answer it may still take effect.
const LATE: Micros = 10_000_000;
/// How long a shopper's request may take while nothing is wrong: the promise of 2 s, and a tenth for a machine that many
/// worlds share.
pub const HANG: Micros = 2_200_000;
/// The same of operators and of the payment provider, whose requests may wait for an order to be drained.
const HANG_OF_OTHERS: Micros = 5_000_000;
/// Within this time the sale sells again once all is healed.
const SELLS_AGAIN: Micros = 2_000_000;
/// A read that takes longer may have been answered without Postgres.
const LEDGER_WAIT: Micros = 1_000_000;
/// How much two readings of the one clock may differ: by a rounding.
const TICK: Millis = 1;
/// Violations listed for one rule.
const LISTED_MAX: usize = 20;

/// All violations of a round; the first few of each rule.
pub fn check(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let mut found = Found::default();
    let rules = [
        stock::check,
        keys::check,
        kept::check,
        states::check,
        order::check,
        money::check,
        rest::check,
        replies::check,
        honesty::check,
    ];
    for rules in rules {
        rules(&facts, &mut found);
    }
    found.violations()
}

/// Whether a round broke nothing but the time until it sells again, and the machine stood still meanwhile.
pub fn is_only_late(violations: &[Violation], watch: Stopwatch) -> bool {
    let is_late = !violations.is_empty() && violations.iter().all(|it| it.rule == rule::SELLS);
    is_late && watch.stood_still() > Duration::from_millis(200)
}

/// Orders that a round lost, which only a fault may do that takes acknowledged orders from Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Acknowledged, and not in the ledger.
    pub lost: usize,
    /// Refused by the ledger.
    pub revoked: usize,
}

/// Counts the losses of a round.
pub fn losses(history: &History) -> Losses {
    let facts = Facts::of(history);
    Losses {
        lost: kept::lost(&facts),
        revoked: history.end.orders.iter().filter(|it| it.state == "revoked").count(),
    }
}

/// The violations found, with a bound on how many are listed.
#[derive(Default)]
struct Found(BTreeMap<&'static str, (Vec<String>, usize)>);

impl Found {
    /// Adds a violation; the text is only made if it is listed.
    fn add(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        let (listed, more) = self.0.entry(rule).or_default();
        if listed.len() < LISTED_MAX {
            listed.push(what());
        } else {
            *more += 1;
        }
    }

    fn unless(&mut self, holds: bool, rule: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.add(rule, what);
        }
    }

    fn violations(self) -> Vec<Violation> {
        let mut all = Vec::new();
        for (rule, (listed, more)) in self.0 {
            all.extend(listed.into_iter().map(|what| Violation { rule, what }));
            if more > 0 {
                let what = format!("and {more} more");
                all.push(Violation { rule, what });
            }
        }
        all
    }
}
