//! The promises that our program must keep in a rush with kills.

use super::scarce::Scarce;
use crate::numbers::median_of;
use std::collections::BTreeMap;

/// All rushes of one way to sell.
pub(super) struct Rushes<'a>(pub(super) &'a [Scarce]);

impl Rushes<'_> {
    /// The sum over the rushes, so that one broken promise stays visible beside clean rushes.
    pub(super) fn sum(&self, of: impl Fn(&Scarce) -> usize) -> usize {
        self.0.iter().map(of).sum()
    }

    /// Leaked units of the rushes where the leak is known; `None` if it is known in no rush.
    pub(super) fn leaked(&self) -> Option<usize> {
        self.0.iter().filter_map(|it| it.leaked).reduce(|all, it| all + it)
    }

    /// The refusals other than `sold_out`, counted by code, in words; empty if there were none.
    pub(super) fn refused_otherwise(&self) -> String {
        let mut all: BTreeMap<&str, usize> = BTreeMap::new();
        for (code, count) in self.0.iter().flat_map(|it| &it.refused_otherwise) {
            *all.entry(code).or_default() += count;
        }
        let each: Vec<String> = all.iter().map(|(code, count)| format!("{count} × {code}")).collect();
        each.join(", ")
    }

    pub(super) fn middle(&self, of: impl Fn(&Scarce) -> Option<f64>) -> Option<f64> {
        median_of(self.0, of)
    }
}

/// The promises that ours broke, in words.
pub(super) fn breaches(name: &str, rushes: &Rushes<'_>) -> Vec<String> {
    let broken = promises(rushes)
        .into_iter()
        .filter(|it| it.broken.is_some_and(|it| it > 0));
    broken
        .map(|it| format!("{name}: {} {}", it.broken.unwrap_or_default(), it.what))
        .collect()
}

/// A promise that ours must keep.
pub(super) struct Promise {
    pub(super) what: &'static str,
    /// How many times ours broke it in all rushes; `None` where that is unknown.
    pub(super) broken: Option<usize>,
    pub(super) remark: String,
}

/// The promises that ours must keep, and how many times it broke each. A program that never recovers oversells nothing.
/// Recovery after a kill is therefore a promise too.
pub(super) fn promises(rushes: &Rushes<'_>) -> Vec<Promise> {
    let is_down = |it: &Scarce| it.recovery_seconds.is_none() || it.program_recovery_seconds.is_none();
    let promise = |what, broken| Promise {
        what,
        broken,
        remark: String::new(),
    };
    let sum = |what, of: fn(&Scarce) -> usize| promise(what, Some(rushes.sum(of)));
    vec![
        sum("units oversold", |it| it.oversold),
        promise("units leaked", rushes.leaked()),
        sum("duplicate orders", |it| it.duplicates),
        sum("acknowledged orders lost", |it| it.lost),
        sum("orders whose shopper was refused", |it| it.denied),
        Promise {
            remark: rushes.refused_otherwise(),
            ..sum("refusals other than sold_out", |it| it.refused_otherwise.values().sum())
        },
        sum("units sold to late shoppers after \"sold out\"", |it| {
            it.sold_after_sold_out
        }),
        Promise {
            remark:
                "orders of the rush that Redis made, by its clock in whole milliseconds, after a shopper got sold_out"
                    .to_owned(),
            ..sum("false \"sold out\" while a unit was free", |it| it.false_sold_out)
        },
        sum("shoppers without a reply", |it| it.unanswered),
        promise(
            "rushes without a new order after each kill",
            Some(rushes.sum(|it| usize::from(is_down(it)))),
        ),
    ]
}
