//! The report of `bench scale`.

use super::expiry::Expiry;
use super::stage::{Cost, Measured};
use super::{Common, ITEMS, Results, holds, model};
use crate::cost;
use crate::load::real;
use crate::numbers::{cell, grouped, median, median_of, range, ratio};
use crate::plot::{Plot, Series};
use crate::report::{Goal, Report, Table};
use serde_json::json;

/// A size by its kind and number.
type Name<'a> = (&'a str, usize);

/// Fills in the report.
pub(super) fn of(mut report: Report, common: &Common<'_>, results: &Results) -> Report {
    report.intro = vec![intro(common)];
    report.goals = goals(results, report.is_quick);
    report.notes = common.bench.remarks.take();
    let (sizes, plot) = by_size(&results.sizes);
    let one = Cost::typical(&results.costs);
    let (sums, notes) = model::grow(&one, &results.many, results.on_cluster.as_ref(), &results.upkeep);
    report.tables = vec![sizes, many_at_once(results), costs(&one, results), sums];
    report.plots.push(plot);
    report.notes.extend(notes);
    report.figures = json!({
        "clients": common.clients(),
        "window_seconds": common.window.measured.as_secs_f64(),
        "sizes": results.sizes,
        "costs": results.costs,
        "many": results.many,
        "expiry": results.expired,
        "upkeep_micros_a_shard_and_second": results.upkeep,
        "cluster": results.on_cluster,
    });
    report.end();
    report
}

fn intro(common: &Common<'_>) -> String {
    format!(
        "Accepted purchases over HTTP of {} clients, with the drain at work beside them, in windows of {:.1} s; each round \
         measures all sizes once, in another order; the two sizes of a goal take turns {} times in windows of {:.1} s, another \
         one first each time. Every window of them has servers of its own, which have had nothing else; only a million holds stay \
         where they are. Redis has everything on disk before it answers; so has Postgres. No Redis rewrites its file \
         while anything is measured, and Postgres is vacuumed and has everything in place before each window.",
        common.clients(),
        common.window.measured.as_secs_f64(),
        common.turns,
        common.long.measured.as_secs_f64(),
    )
}

/// The windows of one size; rounds start at 1.
fn windows<'a>(measured: &'a [Measured], (what, size): Name<'a>) -> impl Iterator<Item = &'a Measured> {
    measured.iter().filter(move |it| it.what == what && it.size == size)
}

/// The size that a share compares with: the smallest, in a window of the same length and in the same round. One item
/// has turns with longer windows. In the rounds, one sale stands in for it, because it has one item too.
fn smallest<'a>((what, size): Name<'a>, sizes: &[usize]) -> Name<'a> {
    if what == "items" && ITEMS.get(1..ITEMS.len() - 1).is_some_and(|it| it.contains(&size)) {
        return ("sales", 1);
    }
    (what, sizes.first().copied().unwrap_or_default())
}

/// The share of one size in another, by round.
fn shares(measured: &[Measured], size: Name<'_>, by: Name<'_>) -> Vec<f64> {
    let share = |it: &Measured| {
        let other = windows(measured, by).find(|by| by.round == it.round && it.round > 0)?;
        ratio(it.a_second, other.a_second)
    };
    windows(measured, size).filter_map(share).collect()
}

/// The spread of the smaller size's windows, to read beside a share; empty with one window.
fn spread(measured: &[Measured], size: Name<'_>) -> String {
    let timed = windows(measured, size).filter(|it| it.round > 0);
    let rates: Vec<f64> = timed.filter_map(|it| it.a_second).collect();
    let Some((low, high)) = range(&rates).filter(|_| rates.len() > 1) else {
        return String::new();
    };
    let share = |rate| cell(ratio(Some(rate), median(&rates)), 2);
    format!(
        "{} windows of {} by themselves are from {} to {} of their median",
        rates.len(),
        grouped(real(size.1)),
        share(low),
        share(high)
    )
}

/// The cost of a purchase at both sizes, in words.
fn costs_of(measured: &[Measured], what: &str, sizes: [usize; 2]) -> String {
    let [large, small] = sizes.map(|size| {
        let timed = windows(measured, (what, size)).filter(|it| it.round > 0);
        cost::in_words(timed.map(|it| it.micros))
    });
    format!("a purchase takes {large}, against {small}")
}

fn goals(results: &Results, is_quick: bool) -> Vec<Goal> {
    let Results {
        sizes, many, expired, ..
    } = results;
    let (fewest, most) = holds::ends(is_quick);
    let throughput = |figure: &str, least: f64, what: &str, large: usize, small: usize| {
        Goal::at_least(figure, least, &shares(sizes, (what, large), (what, small)))
            .with_remark(spread(sizes, (what, small)))
    };
    let holds = format!(
        "throughput with {} live holds ÷ with {}",
        grouped(real(most)),
        grouped(real(fewest))
    );
    let bytes: Vec<f64> = many.bytes_a_purchase.into_iter().collect();
    let p99 = expired
        .iter()
        .filter_map(|it| ratio(it.meanwhile.p99_ms, it.before.p99_ms));
    let expiry = format!(
        "{} holds expiring at once: p99 of purchases meanwhile ÷ before",
        grouped(expiring(expired))
    );
    vec![
        throughput(&holds, 0.9, "live holds", most, fewest).if_missed(costs_of(sizes, "live holds", [most, fewest])),
        throughput("throughput with 1,000 items ÷ with 1", 0.95, "items", 1000, 1).if_missed(format!(
            "each batch of the drain updates one row of the ledger for each item in it, which is one row or most of a \
             thousand, on the processors that also sell: {}",
            costs_of(sizes, "items", [1000, 1])
        )),
        Goal::at_most("Redis bytes a purchase after the drain", 350.0, &bytes).with_remark(format!(
            "{} orders, drained by the application",
            grouped(real(many.holds))
        )),
        Goal::at_most(&expiry, 2.0, &p99.collect::<Vec<_>>()).if_missed(Expiry::load_in_words(expired)),
    ]
}

/// The number of holds that expire at once.
fn expiring(expired: &[Expiry]) -> f64 {
    expired.first().map_or(0.0, |it| real(it.holds))
}

fn by_size(measured: &[Measured]) -> (Table, Plot) {
    let mut table = Table::new(
        "By size",
        "The share is of the smallest size in the same round or turn, whose windows are as long. That of 10 and of 100 items is \
         of one sale in the same round, because it has one item; 1 item in the table is that of the turns with 1,000. Of holds, \
         only the fewest and the most took turns, each time on as many holds and those of the windows before.",
        &[
            "what",
            "how many",
            "purchases a second",
            "p99 in ms",
            "share of the smallest",
        ],
    );
    let mut plot = Plot {
        title: "Purchases a second by size".to_owned(),
        x: "of them".to_owned(),
        y: "purchases a second".to_owned(),
        is_logarithmic: true,
        ..Plot::default()
    };
    for what in ["items", "shards", "sales", "live holds"] {
        let mut sizes: Vec<usize> = measured.iter().filter(|it| it.what == what).map(|it| it.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut series = Series {
            name: what.to_owned(),
            ..Series::default()
        };
        for name in sizes.iter().map(|size| (what, *size)) {
            let found: Vec<&Measured> = windows(measured, name).collect();
            let (size, rate) = (real(name.1), median_of(&found, |it| it.a_second));
            table.row([
                what.to_owned(),
                grouped(size),
                cell(rate, 0),
                cell(median_of(&found, |it| it.latency.p99_ms), 2),
                cell(median(&shares(measured, name, smallest(name, &sizes))), 2),
            ]);
            series.points.extend(rate.map(|rate| (size, rate)));
        }
        plot.series.push(series);
    }
    (table, plot)
}

fn many_at_once(results: &Results) -> Table {
    let Results { many, expired, .. } = results;
    let (holds, expiring) = (grouped(real(many.holds)), grouped(expiring(expired)));
    let middle = |of: fn(&Expiry) -> Option<f64>| median_of(expired, of);
    let mut table = Table::new(
        "Many at once",
        "Expiry: medians of the rounds; purchases came at half the peak until all holds had expired, for up to 90 s, those of a \
         millisecond together; latency counts from when they were due.",
        &["what", "figure"],
    );
    let mut row = |what: &str, figure, digits| table.row([what.to_owned(), cell(figure, digits)]);
    row(
        &format!("Redis bytes a purchase, {holds} holds"),
        many.bytes_a_purchase,
        0,
    );
    let event = "Redis bytes more while its event waits for the ledger";
    row(event, many.bytes_an_event, 0);
    let fill = format!("purchases a second by the script, up to {holds}, with the drain beside it");
    row(&fill, many.fill_a_second, 0);
    row(
        &format!("orders drained a second beside {holds} others"),
        many.drain_a_second,
        0,
    );
    let free = format!("seconds until {expiring} expired holds were free again");
    row(&free, middle(|it| it.seconds), 1);
    row("holds expired a second", middle(Expiry::holds_a_second), 0);
    row("purchases a second meanwhile", middle(|it| it.rate), 0);
    row("p50 of purchases before, ms", middle(|it| it.before.p50_ms), 2);
    row("p99 of purchases before, ms", middle(|it| it.before.p99_ms), 2);
    row("p50 of purchases meanwhile, ms", middle(|it| it.meanwhile.p50_ms), 2);
    row("p99 of purchases meanwhile, ms", middle(|it| it.meanwhile.p99_ms), 2);
    table
}

fn costs(one: &Cost, results: &Results) -> Table {
    let mut table = Table::new(
        "What one purchase costs",
        "Processor time in microseconds, the drain included; a sale of twelve shards on one Redis, or on three primaries. All \
         share the same processors. Reads: how often Redis read from a connection, where it finds one command or many.",
        &[
            "where",
            "purchases a second",
            "Redis",
            "application",
            "Postgres",
            "generator",
            "reads",
        ],
    );
    let on_cluster = results.on_cluster.as_ref().map(|it| &it.cost);
    for (name, cost) in [("one Redis", Some(one)), ("three primaries", on_cluster)] {
        let micros = |part: usize| cell(cost.and_then(|it| cost::part(&it.micros, part)), 1);
        let rate = cell(cost.and_then(|it| it.a_second), 0);
        let reads = cell(cost.and_then(|it| it.reads), 2);
        table.row([name.to_owned(), rate, micros(0), micros(1), micros(2), micros(3), reads]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Percentiles;
    use crate::scale::stage::Size;
    use crate::scale::{SHARDS, pair};

    fn measured(round: usize, size: usize, rate: f64) -> Measured {
        Measured {
            round,
            what: "items",
            size,
            a_second: Some(rate),
            micros: [Some(rate), None, None, None],
            latency: Percentiles::default(),
        }
    }

    #[test]
    fn sizes_are_compared_within_a_round() {
        let all = vec![
            measured(0, 1000, 1.0),
            measured(1, 1, 100.0),
            measured(1, 1000, 90.0),
            measured(2, 1, 200.0),
            measured(2, 1000, 160.0),
        ];
        assert_eq!(shares(&all, ("items", 1000), ("items", 1)), [0.9, 0.8]);
        assert!(shares(&all, ("shards", 4), ("shards", 1)).is_empty());
        let results = Results {
            sizes: all,
            ..Results::default()
        };
        let goals = goals(&results, false);
        assert_eq!(goals[0].measured, None, "there were no holds");
        assert!((goals[1].measured.unwrap() - 0.85).abs() < 1e-9);
        assert_eq!((goals[2].measured, goals[3].measured), (None, None));
        // The goal is missed, so its remark gives the spread.
        let remark = &goals[1].remark;
        assert!(
            remark.contains("2 windows of 1 by themselves are from 0.67 to 1.33"),
            "{remark}"
        );
        assert!(remark.contains("Redis 125") && remark.contains("Redis 150"), "{remark}");
        assert_eq!((pair(&ITEMS, 1), pair(&ITEMS, 2)), (vec![1, 1000], vec![1000, 1]));
    }

    #[test]
    fn a_size_of_the_rounds_is_compared_with_no_longer_windows() {
        assert_eq!(smallest(("items", 10), &ITEMS), ("sales", 1));
        assert_eq!(smallest(("items", 100), &ITEMS), ("sales", 1));
        assert_eq!(smallest(("items", 1000), &ITEMS), ("items", 1));
        assert_eq!(smallest(("shards", 16), &SHARDS), ("shards", 1));
        // Both are one sale of one item.
        let terms = |what| Size { what, size: 1 }.terms().unwrap();
        assert_eq!(terms("sales").json()["items"], terms("items").json()["items"]);
        assert_eq!(terms("sales").shards, terms("items").shards);
        let one_sale = Measured {
            what: "sales",
            ..measured(1, 1, 50.0)
        };
        let all = [measured(1, 1, 100.0), measured(1, 10, 45.0), one_sale];
        assert_eq!(shares(&all, ("items", 10), smallest(("items", 10), &ITEMS)), [0.9]);
    }
}
