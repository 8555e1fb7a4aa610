//! The report of `bench compare`.

use super::promises::{Rushes, breaches, promises};
use super::scarce::{KILL_PROGRAM_AT, KILL_REDIS_AT};
use super::{Kind, Stage, Steady, WAYS};
use crate::cost;
use crate::load::{Percentiles, real};
use crate::numbers::{cell, median_of, ratio};
use crate::plot::{Plot, Series};
use crate::report::{Goal, Report, Table};
use serde_json::json;

/// Fills in the report; the second value lists the promises that ours broke.
pub(super) fn of(
    mut report: Report,
    stage: &Stage<'_>,
    steady: &[Vec<Steady>],
    scarce: &[Rushes<'_>],
) -> (Report, Vec<String>) {
    report.intro = intro(stage, scarce);
    report.goals = goals(steady);
    let mut broken = Vec::new();
    for ((name, _, kind), it) in WAYS.iter().zip(scarce) {
        if let Kind::Ours(_) = kind {
            report.goals.extend(promise_goals(name, it));
            broken.extend(breaches(name, it));
        }
    }
    report.tables = vec![ways(steady, scarce), details(scarce)];
    report.plots.push(plot(scarce));
    for ((name, _, _), rounds) in WAYS.iter().zip(steady) {
        for (number, round) in (1..).zip(rounds) {
            let remarks = round.remarks.iter();
            report
                .notes
                .extend(remarks.map(|remark| format!("{name}, round {number}: {remark}")));
        }
    }
    report.notes.push(
        "Durability of the orders differs where they are acknowledged: the database and the basic script answer after the \
         commit of the order, as does \"full, durability postgres\"; \"full\" answers when Redis has the order on disk."
            .to_owned(),
    );
    let ways: Vec<_> = WAYS
        .iter()
        .zip(steady.iter().zip(scarce))
        .map(|((name, _, _), (steady, scarce))| json!({"way": name, "steady": steady, "scarce": scarce.0}))
        .collect();
    let seconds = stage.window.measured.as_secs_f64();
    report.figures = json!({"clients": stage.clients(), "window_seconds": seconds, "ways": ways});
    report.end();
    (report, broken)
}

fn intro(stage: &Stage<'_>, scarce: &[Rushes<'_>]) -> Vec<String> {
    let rounds = stage.rounds;
    let shoppers = scarce.first().and_then(|it| it.0.first()).map_or(0, |it| it.shoppers);
    vec![
        format!(
            "The same HTTP server, checks of tokens and bodies, answers, Redis (append-only file, fsync always) and Postgres \
             for all. Speed: {} clients as fast as they are answered, for {:.1} s in each of {rounds} rounds, in which the \
             ways take turns, another one first in each; every purchase is of a shopper who has not bought before. No Redis \
             rewrites its file meanwhile, and Postgres is vacuumed and has everything in place before each window.",
            stage.clients(),
            stage.window.measured.as_secs_f64(),
        ),
        format!(
            "Correctness, {rounds} rushes of each way: {shoppers} shoppers want {} units. They wait 2 s for an answer and ask again under the same key. When {KILL_PROGRAM_AT} % \
             of the units are sold, the application is killed (kill -9) and started again; at {KILL_REDIS_AT} %, Redis. When all have a \
             reply, late shoppers come. Orders are counted in Postgres and compared with the replies to shoppers.",
            stage.stock,
        ),
    ]
}

/// A count with its share of all units; a bare 0 without the share.
fn share(rushes: &Rushes<'_>, count: usize) -> String {
    if count == 0 {
        return "0".to_owned();
    }
    let share = real(count) / real(rushes.sum(|it| it.stock).max(1));
    format!("{count} ({:.2} %)", 100.0 * share)
}

fn ways(steady: &[Vec<Steady>], scarce: &[Rushes<'_>]) -> Table {
    let mut table = Table::new(
        "Five ways to sell",
        "Latencies in milliseconds; medians of the rounds, as is recovery: seconds from the kill of Redis to the next \
         new order; the database alone does not use it. What went wrong is the sum of all rushes.",
        &[
            "way",
            "purchases a second",
            "p50",
            "p99",
            "p99.9",
            "oversold",
            "leaked",
            "duplicate orders",
            "acknowledged orders lost",
            "sold after \"sold out\"",
            "false \"sold out\"",
            "no reply",
            "recovery",
        ],
    );
    for ((name, _, _), (rounds, it)) in WAYS.iter().zip(steady.iter().zip(scarce)) {
        let latency = |of: fn(&Percentiles) -> Option<f64>| cell(median_of(rounds, |round| of(&round.latency)), 2);
        table.row([
            (*name).to_owned(),
            cell(median_of(rounds, |it| it.a_second), 0),
            latency(|it| it.p50_ms),
            latency(|it| it.p99_ms),
            latency(|it| it.p999_ms),
            share(it, it.sum(|it| it.oversold)),
            it.leaked().map_or_else(|| cell(None, 0), |leaked| share(it, leaked)),
            share(it, it.sum(|it| it.duplicates)),
            share(it, it.sum(|it| it.lost)),
            share(it, it.sum(|it| it.sold_after_sold_out)),
            share(it, it.sum(|it| it.false_sold_out)),
            it.sum(|it| it.unanswered).to_string(),
            cell(it.middle(|it| it.recovery_seconds), 2),
        ]);
    }
    table
}

fn details(scarce: &[Rushes<'_>]) -> Table {
    let mut table = Table::new(
        "The rush",
        "Of all rounds together, counted in Postgres and by the replies to shoppers; seconds are medians. Refused with an \
         order: shoppers who have one and were refused in the end. Refused otherwise: not with sold_out.",
        &[
            "way",
            "seconds",
            "acknowledged",
            "in Postgres",
            "recovery of the application",
            "refused with an order",
            "refused otherwise",
            "other answers than 201",
        ],
    );
    for ((name, _, _), it) in WAYS.iter().zip(scarce) {
        let answers = it.0.iter().map(|it| it.answers.as_str()).filter(|it| !it.is_empty());
        let refused_otherwise = Some(it.refused_otherwise()).filter(|codes| !codes.is_empty());
        table.row([
            (*name).to_owned(),
            cell(it.middle(|it| Some(it.seconds)), 1),
            it.sum(|it| it.acknowledged).to_string(),
            it.sum(|it| it.booked).to_string(),
            cell(it.middle(|it| it.program_recovery_seconds), 2),
            it.sum(|it| it.denied).to_string(),
            refused_otherwise.unwrap_or_else(|| "0".to_owned()),
            answers.collect::<Vec<_>>().join("; "),
        ]);
    }
    table
}

fn plot(scarce: &[Rushes<'_>]) -> Plot {
    let series = WAYS.iter().zip(scarce).map(|((name, _, _), it)| {
        let first = it.0.first();
        Series {
            name: (*name).to_owned(),
            points: first.map(|it| it.timeline.clone()).unwrap_or_default(),
            marks: first.map(|it| it.marks.clone()).unwrap_or_default(),
        }
    });
    Plot {
        title: "Purchases a second in the first rush".to_owned(),
        x: "s".to_owned(),
        y: "purchases a second".to_owned(),
        is_stacked: true,
        series: series.collect(),
        ..Plot::default()
    }
}

fn promise_goals(name: &str, rushes: &Rushes<'_>) -> impl Iterator<Item = Goal> {
    promises(rushes).into_iter().map(move |promise| {
        let counted: Vec<f64> = promise.broken.map(real).into_iter().collect();
        Goal::at_most(&format!("{name}: {}", promise.what), 0.0, &counted).with_remark(promise.remark)
    })
}

/// The speed of ours as a share of each rival's, by round.
fn goals(steady: &[Vec<Steady>]) -> Vec<Goal> {
    let [_, database, basic, full, _] = steady else {
        return Vec::new();
    };
    let goal = |name: &str, bound: f64, rival: &[Steady]| {
        let pairs = full.iter().zip(rival);
        let shares: Vec<f64> = pairs
            .filter_map(|(ours, by)| ratio(ours.a_second, by.a_second))
            .collect();
        let words = |steady: &[Steady]| cost::in_words(steady.iter().map(|it| it.micros));
        let figure = format!("full ÷ {name}, purchases a second");
        Goal::at_least(&figure, bound, &shares).if_missed(format!(
            "a purchase takes {} with full, {} with {name}",
            words(full),
            words(rival)
        ))
    };
    vec![goal("database only", 10.0, database), goal("basic script", 0.8, basic)]
}
