//! The results of a torture run, in a few lines.

use super::checker::Losses;
use super::history::{History, Reply, Request};
use std::collections::BTreeMap;
use std::fmt;

/// Sums over rounds.
#[derive(Default)]
pub struct Report {
    rounds: u64,
    /// Faults by their names, without their numbers.
    faults: BTreeMap<String, u64>,
    /// Purchases by reply.
    purchases: BTreeMap<String, u64>,
    others: u64,
    orders: u64,
    lost: u64,
    revoked: u64,
    violations: u64,
    /// The longest time from everything being whole to selling, in microseconds.
    slowest: i64,
    /// How long purchases waited for an answer of any kind while no instance was suspended, in microseconds; every
    /// hundredth, and the longest.
    waits: Vec<i64>,
    longest_wait: i64,
}

impl Report {
    pub fn note(&mut self, history: &History, losses: Losses, violations: usize) {
        self.rounds += 1;
        for injection in &history.injections {
            let name = injection.what.split('(').next().unwrap_or_default();
            *self.faults.entry(name.to_owned()).or_default() += 1;
        }
        for op in &history.ops {
            let Request::Buy { .. } = op.request else {
                self.others += 1;
                continue;
            };
            let answer = match &op.reply {
                Reply::None => "no answer",
                Reply::Order { status: 201, .. } => "201",
                Reply::Order { .. } => "200, the same order",
                Reply::Problem { code, .. } => code,
                Reply::Done { .. } => "something else",
            };
            *self.purchases.entry(answer.to_owned()).or_default() += 1;
            let suspended = history
                .injections
                .iter()
                .any(|it| it.what.starts_with("FreezeInstance") && it.from < op.returned && op.invoked < it.until);
            if op.reply != Reply::None && !suspended {
                let wait = op.returned - op.invoked;
                if self.purchases.values().sum::<u64>().is_multiple_of(100) {
                    self.waits.push(wait);
                }
                self.longest_wait = self.longest_wait.max(wait);
            }
        }
        self.orders += history.end.orders.len() as u64;
        self.lost += losses.lost as u64;
        self.revoked += losses.revoked as u64;
        self.violations += violations as u64;
        if let Some(at) = history.sold_again {
            self.slowest = self.slowest.max(at - history.healed);
        }
    }

    pub fn injections(&self) -> u64 {
        self.faults.values().sum()
    }

    pub fn purchases(&self) -> u64 {
        self.purchases.values().sum()
    }

    pub const fn violations(&self) -> u64 {
        self.violations
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rounds, {} faults, {} purchases asked for, {} orders, {} other requests",
            self.rounds,
            self.injections(),
            self.purchases(),
            self.orders,
            self.others
        )?;
        writeln!(f, "  faults: {:?}", self.faults)?;
        writeln!(f, "  purchases: {:?}", self.purchases)?;
        writeln!(
            f,
            "  acknowledged under durability redis and taken away by a fault: {} lost, {} revoked",
            self.lost, self.revoked
        )?;
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let at = |share: usize| waits.get(waits.len() * share / 1_000).copied().unwrap_or_default() / 1_000;
        writeln!(
            f,
            "  purchases waited {} ms (median), {} ms (99 %), {} ms (99.9 %), {} ms at most; not counted while the \
             instance was suspended",
            at(500),
            at(990),
            at(999),
            self.longest_wait / 1_000
        )?;
        writeln!(
            f,
            "  longest from whole to selling: {} ms; violations: {}",
            self.slowest / 1_000,
            self.violations
        )
    }
}
