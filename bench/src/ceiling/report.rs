//! The report of `bench ceiling`.

use super::{Round, SHARE_OF_PEAK, Stage};
use crate::cost::{self, Micros};
use crate::load::real;
use crate::numbers::{cell, grouped, median, median_of, range, ratio};
use crate::plot::{Plot, Series};
use crate::report::{Goal, Report, Table};
use serde_json::json;

/// A figure of a round.
type Figure = fn(&Round) -> Option<f64>;

/// The shares that have goals.
const ACCEPTED: Figure = |it| ratio(it.peak(), it.script_on_disk);
const SCRIPT: Figure = |it| ratio(it.script, it.set);
const SOLD_OUT: Figure = |it| ratio(it.sold_out, it.endpoint);
const DRAIN: Figure = |it| ratio(it.drain, it.insert);

/// Fills in the report. `memory` is a number of purchases, and the bytes that each left in Redis.
pub(super) fn of(mut report: Report, stage: &Stage<'_>, rounds: &[Round], memory: (usize, f64)) -> Report {
    let (orders, bytes) = memory;
    report.intro = vec![intro(stage, rounds.len())];
    report.goals = vec![
        script_goal(rounds),
        micros_goal(rounds, "a purchase", "application", 20.0, |it| it.micros),
        micros_goal(rounds, "a purchase", "Redis", 16.0, |it| it.micros),
        micros_goal(rounds, "a purchase", "Postgres", 11.0, |it| it.micros),
        micros_goal(rounds, "a refusal", "Redis", 5.0, |it| it.sold_out_micros),
        sold_out_goal(rounds),
        drain_goal(rounds, stage.orders()),
        latency_goal(rounds, report.machine.cores),
        Goal::at_most("Redis bytes a purchase after the drain", 350.0, &[bytes])
            .with_remark(format!("{} purchases", grouped(real(orders)))),
    ];
    report.tables = vec![rates(stage, rounds), latency(stage, rounds), costs(stage, rounds)];
    report.plots.push(plot(rounds));
    report.notes = stage.bench.remarks.take();
    report.notes.push(format!(
        "Memory was measured with {} purchases by the script on one shard, each of another shopper, after their events \
         had been trimmed as the drain does.",
        grouped(real(orders))
    ));
    report.figures = json!({
        "crowds": stage.crowds,
        "window_seconds": stage.window.measured.as_secs_f64(),
        "script_calls": stage.calls(),
        "rounds": rounds,
        "memory": {"orders": orders, "bytes_a_purchase": bytes},
    });
    report.end();
    report
}

fn intro(stage: &Stage<'_>, rounds: usize) -> String {
    format!(
        "Parts by themselves, and the whole of them: {rounds} rounds, in each of which everything is measured once, one after \
         the other, for {:.1} s after a quarter of that which is not counted; SET and the script for half as long, in stretches of {} and {} commands \
         on a Redis that is empty before each, of which only the time counts in which commands were under way. The drain and the \
         raw insert are {} orders, however long they take. Redis has everything on disk before it answers (append-only file, fsync always) unless said \
         otherwise; so has Postgres. No Redis rewrites its file while anything is measured, and Postgres is vacuumed \
         and has everything in place before each window, the drain and the raw insert. Every purchase is of a shopper who has \
         not bought before.",
        stage.window.measured.as_secs_f64(),
        grouped(real(stage.calls() * 3)),
        grouped(real(stage.calls())),
        grouped(real(stage.orders())),
    )
}

/// The figure of each round that has one.
fn all(rounds: &[Round], of: Figure) -> Vec<f64> {
    rounds.iter().filter_map(of).collect()
}

fn words(rounds: &[Round], of: fn(&Round) -> Micros) -> String {
    cost::in_words(rounds.iter().map(of))
}

fn script_goal(rounds: &[Round]) -> Goal {
    let times = |of: Figure| cell(median_of(rounds, of), 2);
    Goal::at_least(
        "purchase script ÷ pipelined SET, no append-only file",
        0.16,
        &all(rounds, SCRIPT),
    )
    .with_remark("the script's four commands alone, in one that decides nothing, are the row below it")
    .if_missed(format!(
        "those four commands come to {} of SET, and the script to {} of them",
        times(|it| ratio(it.bare, it.set)),
        times(|it| ratio(it.script, it.bare))
    ))
}

/// The processor time that one of the four may take for an answer.
fn micros_goal(rounds: &[Round], answer: &str, who: &str, most: f64, of: fn(&Round) -> Micros) -> Goal {
    let at = cost::WHO.iter().position(|it| *it == who);
    let micros: Vec<f64> = rounds.iter().filter_map(|it| cost::part(&of(it), at?)).collect();
    Goal::at_most(&format!("µs {answer}, {who}"), most, &micros)
}

fn sold_out_goal(rounds: &[Round]) -> Goal {
    Goal::at_least(
        "sold-out answers ÷ an empty endpoint (GET /healthz)",
        0.45,
        &all(rounds, SOLD_OUT),
    )
    .if_missed(format!(
        "a refusal takes {}, an empty answer {}",
        words(rounds, |it| it.sold_out_micros),
        words(rounds, |it| it.endpoint_micros)
    ))
}

fn drain_goal(rounds: &[Round], rows: usize) -> Goal {
    Goal::at_least("drain ÷ raw batch insert of the same rows", 0.7, &all(rounds, DRAIN))
        .with_remark(format!(
            "{} rows each, once, without a part that is not counted; each is first in turn",
            grouped(real(rows))
        ))
        .if_missed(
            "the raw insert has neither foreign keys nor the arbiter's counts nor Redis to read from and to trim",
        )
}

fn latency_goal(rounds: &[Round], cores: usize) -> Goal {
    let busy = |it: &Round| {
        let micros: f64 = it.at_share_micros.iter().flatten().sum();
        ratio(Some(it.at_share_rate? * micros * 100.0), Some(real(cores) * 1e6))
    };
    let spread = all(rounds, |it| ratio(it.at_share_p99_ms, it.at_share_p50_ms));
    Goal::at_most("p99 ÷ p50 at 70 % of the peak", 5.0, &spread).if_missed(format!(
        "a purchase at that rate takes {}; all together keep the processors {} % busy, so that who comes beside another's \
         work waits for it",
        words(rounds, |it| it.at_share_micros),
        cell(median_of(rounds, busy), 0)
    ))
}

fn rates(stage: &Stage<'_>, rounds: &[Round]) -> Table {
    let most = stage.clients_max();
    let mut table = Table::new(
        "A second",
        "The median of the rounds. Pipelined: over 16 connections with 32 commands under way on each. By HTTP: as fast as \
         answers come, with the drain at work beside it.",
        &["what", "a second", "lowest", "highest"],
    );
    let mut row = |what: &str, of: &dyn Fn(&Round) -> Option<f64>| {
        let figures: Vec<f64> = rounds.iter().filter_map(of).collect();
        let (low, high) = range(&figures).unzip();
        table.row([what.to_owned(), cell(median(&figures), 0), cell(low, 0), cell(high, 0)]);
    };
    row("SET, pipelined, no append-only file", &|it| it.set);
    row("purchase script, pipelined, no append-only file", &|it| it.script);
    row("its four commands in a script that decides nothing, the same", &|it| {
        it.bare
    });
    row("SET, pipelined", &|it| it.set_on_disk);
    row("purchase script, pipelined", &|it| it.script_on_disk);
    row(&format!("GET /healthz, {most} clients"), &|it| it.endpoint);
    for (at, clients) in stage.crowds.iter().enumerate() {
        row(&format!("accepted purchases, {clients} clients"), &|it| {
            it.accepted.get(at).copied().flatten()
        });
    }
    row(&format!("sold-out answers, {most} clients"), &|it| it.sold_out);
    row("orders drained, one worker, four shards", &|it| it.drain);
    row("such rows inserted raw, four connections", &|it| it.insert);
    table
}

fn latency(stage: &Stage<'_>, rounds: &[Round]) -> Table {
    let mut table = Table::new(
        "Latency in milliseconds",
        "At a rate, counted from when a request was due.",
        &["how", "p50", "p99"],
    );
    for (at, clients) in stage.crowds.iter().enumerate() {
        let middle =
            |of: fn(&Round) -> &[Option<f64>]| cell(median_of(rounds, |it| of(it).get(at).copied().flatten()), 2);
        table.row([
            format!("{clients} clients as fast as they are answered"),
            middle(|it| &it.accepted_p50_ms),
            middle(|it| &it.accepted_p99_ms),
        ]);
    }
    table.row([
        format!(
            "at {:.0} % of the peak, {} a second",
            SHARE_OF_PEAK * 100.0,
            cell(median_of(rounds, |it| it.at_share_rate), 0)
        ),
        cell(median_of(rounds, |it| it.at_share_p50_ms), 2),
        cell(median_of(rounds, |it| it.at_share_p99_ms), 2),
    ]);
    table
}

fn costs(stage: &Stage<'_>, rounds: &[Round]) -> Table {
    let mut table = Table::new(
        "Processor time an answer",
        &format!(
            "Microseconds for each accepted purchase, its drain included: of {} clients as fast as they are answered, and at \
             {:.0} % of the peak; for each refusal of a sold-out sale; for each answer of the empty endpoint.",
            stage.crowds.last().copied().unwrap_or_default(),
            SHARE_OF_PEAK * 100.0,
        ),
        &["who", "purchase", "below the peak", "refusal", "empty"],
    );
    let costs: [fn(&Round) -> Micros; 4] = [
        |it| it.micros,
        |it| it.at_share_micros,
        |it| it.sold_out_micros,
        |it| it.endpoint_micros,
    ];
    let costs = costs.map(|of| cost::middle(rounds.iter().map(of)));
    for (at, who) in cost::WHO.into_iter().enumerate() {
        let [first, second, third, fourth] = costs.map(|it| cell(cost::part(&it, at), 1));
        table.row([who.to_owned(), first, second, third, fourth]);
    }
    table
}

/// Plots the shares that have goals, by round.
fn plot(rounds: &[Round]) -> Plot {
    let line = |(name, of): (&str, Figure)| Series {
        name: name.to_owned(),
        points: (1..)
            .zip(rounds)
            .filter_map(|(number, it)| Some((real(number), of(it)?)))
            .collect(),
        marks: Vec::new(),
    };
    let lines = [
        ("accepted ÷ script", ACCEPTED),
        ("script ÷ SET", SCRIPT),
        ("sold out ÷ empty", SOLD_OUT),
        ("drain ÷ insert", DRAIN),
    ];
    Plot {
        title: "Shares, round by round".to_owned(),
        x: "rounds".to_owned(),
        y: "share of the ceiling".to_owned(),
        series: lines.into_iter().map(line).collect(),
        ..Plot::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn shares_are_of_the_same_round_and_what_is_missing_is_not_measured() {
        let round = |sold_out, endpoint| Round {
            sold_out,
            endpoint,
            micros: [Some(9.0), None, None, None],
            ..Round::default()
        };
        let rounds = [
            round(Some(70.0), Some(100.0)),
            round(Some(30.0), Some(50.0)),
            round(None, Some(9.0)),
        ];
        assert_eq!(sold_out_goal(&rounds).rounds, [0.7, 0.6]);
        let of_redis = micros_goal(&rounds, "a purchase", "Redis", 16.0, |it| it.micros);
        assert_eq!((of_redis.verdict(), of_redis.rounds.len()), (Verdict::Reached, 3));
        let of_postgres = micros_goal(&rounds, "a purchase", "Postgres", 11.0, |it| it.micros);
        assert_eq!(of_postgres.verdict(), Verdict::NotMeasured);
        assert_eq!(script_goal(&rounds).measured, None);
    }
}
