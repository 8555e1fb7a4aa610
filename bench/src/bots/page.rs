//! Renders the report as one HTML file with a picture; it loads no other file.

use super::measure::{Measured, Report};
use crate::page::document;
use crate::plot::escape;
use serde_json::Value;

/// The colours of people and bots, beside those that all reports share.
const PARTIES: &str = "
:root { --people: #2b7fb8; --bots: #d2572b; }
@media (prefers-color-scheme: dark) { :root { --people: #4da3dd; --bots: #ee7b4f; } }
.people { fill: var(--people); } .bots { fill: var(--bots); } .even { stroke: var(--text); stroke-dasharray: 4 3; }
";

/// Renders the report as an HTML page.
pub fn page(report: &Report) -> String {
    let mut goals = String::new();
    for goal in &report.goals {
        let word = if goal.is_reached { "reached" } else { "missed" };
        let (text, measured) = (escape(&goal.goal), escape(&goal.measured));
        goals.push_str(&format!(
            "<li><strong class=\"{word}\">{word}</strong>: {text}: {measured}</li>\n"
        ));
    }
    let probe = report.probe.as_ref().map(|probe| {
        format!(
            "<p>Bursts at the boundary of a window of {} requests in {} ms, {} accounts: {} of {} let through, {} at \
             the most; {} accounts with more than the limit within one window.</p>\n",
            probe.limit, probe.window_ms, probe.accounts, probe.let_through, probe.asked, probe.most, probe.broken
        )
    });
    let size = &report.size;
    let body = format!(
        "<h1>Who gets the units</h1>\n<p>{} people with an account each and bots with {} accounts on {} addresses want \
         {} units. Each row has one guard more. Of all accounts, {:.1} % are the bots' (the broken line).</p>\n{}\n\
         <h2>Goals</h2>\n<ul>\n{goals}</ul>\n{}<h2>Figures</h2>\n{}\n\
         <h2>Refused by guards, by the sale's stats</h2>\n{}\n\
         <h2>Answers</h2>\n{}\n\
         <p class=\"soft\">{}; seed {}; {}. Load average before {}, after {}. The generator, the program, Redis and \
         Postgres share the processors: the figures of one run are for comparing its rounds.</p>\n",
        size.people,
        size.accounts,
        size.bot_addresses,
        size.stock,
        size.bot_share() * 100.0,
        picture(report),
        probe.unwrap_or_default(),
        figures(report),
        counts(report, |it| vec![("", it.stopped.clone())]),
        counts(report, |it| {
            vec![
                ("people", serde_json::to_value(&it.people).unwrap_or_default()),
                ("bots", serde_json::to_value(&it.bots).unwrap_or_default()),
            ]
        }),
        escape(&report.began),
        report.seed,
        escape(&report.machine),
        escape(&report.load_before),
        escape(&report.load_after),
    );
    document("Who gets the units", PARTIES, &body)
}

/// Draws a bar for each round: the people's units and the bots'.
#[expect(clippy::cast_precision_loss, reason = "pixels")]
fn picture(report: &Report) -> String {
    let (left, width, row) = (300.0, 560.0, 34.0);
    let height = report.rounds.len() as f64 * row + 40.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 960 {height}\" role=\"img\" aria-label=\"The bots' share of the units in each round\">\n"
    );
    for (number, it) in report.rounds.iter().enumerate() {
        let y = number as f64 * row + 4.0;
        let bots = width * it.units_to_bots as f64 / report.size.stock as f64;
        let people = width * it.units_to_people as f64 / report.size.stock as f64;
        svg.push_str(&format!(
            "<text x=\"0\" y=\"{:.0}\">{}: {}</text><rect class=\"bots\" x=\"{left}\" y=\"{y}\" width=\"{bots:.1}\" \
             height=\"24\"/><rect class=\"people\" x=\"{:.1}\" y=\"{y}\" width=\"{people:.1}\" height=\"24\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{:.1} % bots</text>\n",
            y + 17.0,
            it.round.name,
            escape(it.round.title),
            left + bots,
            left + width + 10.0,
            y + 17.0,
            it.bots_share * 100.0,
        ));
    }
    let x = left + width * report.size.bot_share();
    let end = height - 36.0;
    svg.push_str(&format!(
        "<line class=\"even\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{end:.0}\"/>\
         <text class=\"soft\" x=\"{left}\" y=\"{y:.0}\">bots, then people; broken line: the bots' share of the \
         accounts, {:.1} %</text>\n</svg>",
        report.size.bot_share() * 100.0,
        y = height - 12.0,
    ));
    svg
}

fn figures(report: &Report) -> String {
    let mut table = String::from(
        "<div class=\"scroll\"><table><tr><th>round</th><th>people</th><th>bots</th><th>of those careful</th>\
         <th>share</th><th>drew lots: people / bots</th><th>accepted/s</th><th>ratio</th><th>refused falsely</th><th>bots' requests/s</th>\
         <th>purchases p50/p99</th>\
         <th>all p50/p99</th><th>generator's processor</th><th>audit</th></tr>\n",
    );
    for it in &report.rounds {
        let ratio = it.pace_ratio.zip(it.compared_with);
        let ratio = ratio.map(|(ratio, with)| format!("{ratio:.2} of {with} ({} units)", it.compared_units));
        let ratio = ratio.unwrap_or_default();
        let lots = if it.round.waiting_room {
            format!("{} / {}", it.people_at_start, it.bots_at_start)
        } else {
            String::new()
        };
        table.push_str(&format!(
            "<tr><td>{}: {}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1} %</td><td>{lots}</td><td>{:.0}</td><td>{ratio}</td>\
             <td>{} ({:.2} %)</td><td>{:.0}</td><td>{:.0} / {:.0} ms</td><td>{:.0} / {:.0} ms</td><td>{:.1} s</td>\
             <td>{}</td></tr>\n",
            it.round.name,
            escape(it.round.title),
            it.units_to_people,
            it.units_to_bots,
            it.units_to_careful_bots,
            it.bots_share * 100.0,
            it.accepted_a_second,
            it.people_refused,
            it.false_share * 100.0,
            it.bot_requests_a_second,
            it.purchase_p50_ms,
            it.purchase_p99_ms,
            it.people_p50_ms,
            it.people_p99_ms,
            it.generator_processor_seconds,
            it.audit(),
        ));
    }
    table + "</table></div>"
}

/// Lists counts by name, with a line for each round and party.
fn counts(report: &Report, of: impl Fn(&Measured) -> Vec<(&'static str, Value)>) -> String {
    let mut list = String::from("<ul>\n");
    for it in &report.rounds {
        for (who, counts) in of(it) {
            let counts = counts.as_object().cloned().unwrap_or_default();
            let counts = counts.iter().map(|(name, count)| format!("{}: {count}", escape(name)));
            let counts = counts.collect::<Vec<_>>().join(", ");
            let counts = if counts.is_empty() { "nothing" } else { &counts };
            list.push_str(&format!("<li>{} {who}: {counts}</li>\n", it.round.name));
        }
    }
    list + "</ul>"
}
