//! `flashsale sale report`: what a sale sold and who got it, how its purchases were answered, and how fast.

use crate::cli::Failure;
use crate::cli::shared::answer::{self, Column, Form, cell, show, words};
use crate::cli::shared::client::{Client, sale_path};
use crate::cli::shared::output;
use crate::domain::sale::report::ReportTable;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::Value;
use uuid::Uuid;

const ITEMS: [Column; 7] = [
    ("SKU", "sku"),
    ("TOTAL", "total"),
    ("SOLD", "sold"),
    ("HELD", "held"),
    ("MONEY", "money_minor"),
    ("SOLD OUT AFTER, s", "sold_out_after_seconds"),
    ("NAME", "name"),
];

/// Reads the name of a table; completion offers them all.
pub fn table_name() -> impl TypedValueParser<Value = ReportTable> {
    let names = ReportTable::ALL.iter().map(|table| table.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<ReportTable>())
}

/// Prints the report of a sale, or one table of it as CSV.
pub fn report(client: &Client, id: &Uuid, csv: Option<ReportTable>, form: Form) -> Result<(), Failure> {
    let path = sale_path(id, "/report");
    if let Some(table) = csv {
        form.allow_csv()?;
        return output::copy(client.table(&format!("{path}?table={table}"))?);
    }
    let report = client.get(&path)?.body;
    show(&report, form, |report: Value| describe(&report))
}

fn describe(report: &Value) -> String {
    let entries = |member: &str| report[member].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let counts = |member: &str| words(report.pointer(&format!("/{member}")));
    let share = |member: &str| {
        let share = report.pointer(&format!("/{member}")).and_then(Value::as_f64);
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    let [name, state, starts, ends, closed] =
        ["name", "state", "starts_at", "ends_at", "closed_at"].map(|member| cell(report, member));
    let end = if report["closed_at"].is_null() {
        ends
    } else {
        format!("{closed} (planned end: {ends})")
    };
    let [p50, p95, p99] = ["p50", "p95", "p99"].map(|quantile| cell(report, &format!("latency_ms/{quantile}")));
    let mut shown = answer::table(entries("items"), &ITEMS, |_, _| None);
    shown += &format!(
        "\nsale {name} is {state}; {starts} to {end}\n\
         orders: {}; unpaid share of ended orders: {}\n\
         answers: {}\n\
         refused by guards: {}\n\
         counted in shadow: {}\n\
         answers within, ms: p50 {p50}, p95 {p95}, p99 {p99}\n\
         units by purchases sent: {}\n\
         units by first view: {}\n",
        counts("orders"),
        share("unpaid_share"),
        counts("answers"),
        counts("stopped"),
        counts("would_stop"),
        counts("fairness/attempts"),
        counts("fairness/first_seen")
    );
    for (group, name) in [("clients", "address"), ("networks", "network")] {
        let [largest, largest_ten] = ["largest", "largest_ten"].map(|rank| share(&format!("fairness/{group}/{rank}")));
        shown += &format!("units by {name}: largest {largest}, ten largest {largest_ten}\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::human;
    use serde_json::json;

    #[test]
    fn a_report_shows_money_and_counts_and_a_dash_for_what_is_not_known() {
        let times = ["2026-11-22T09:00:00Z", "2026-11-22T10:00:00Z", "2026-11-22T09:40:00Z"];
        let mut report = json!({
            "name": "Winter drop", "state": "closed", "unpaid_share": 0.115,
            "starts_at": times[0], "ends_at": times[1], "closed_at": times[2],
            "items": [{"sku": "M", "name": "Shirt", "total": 100, "sold": 92, "held": 0, "money_minor": 230_000,
                "currency": "EUR", "sold_out_after_seconds": 1.84}],
            "orders": {"paid": 92}, "answers": {"reserved": 104, "sold_out": 4210}, "stopped": {}, "would_stop": {"holds": 3},
            "latency_ms": {"p50": 2.1, "p95": null, "p99": 9.2},
            "fairness": {"attempts": {"one": 90, "two": 14}, "first_seen": {"none": 3, "longer": 101},
                "clients": {"units": 104, "largest": 0.029, "largest_ten": 0.144},
                "networks": {"units": 0, "largest": null, "largest_ten": null}},
        });
        let [starts, ends, closed] = times.map(|at| human::moment(at).unwrap());
        let text = describe(&report);
        for part in [
            "2300.00 EUR",
            "1.84",
            &format!("sale Winter drop is closed; {starts} to {closed} (planned end: {ends})\n"),
            "unpaid share of ended orders: 11.5 %",
            "answers: reserved 104, sold_out 4210",
            "refused by guards: -",
            "counted in shadow: holds 3",
            "p50 2.1, p95 -, p99 9.2",
            "units by purchases sent: one 90, two 14",
            "units by first view: none 3, longer 101",
            "units by address: largest 2.9 %, ten largest 14.4 %",
            "units by network: largest -, ten largest -",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        report["closed_at"] = Value::Null;
        let text = describe(&report);
        assert!(text.contains(&format!("closed; {starts} to {ends}\n")), "{text}");
    }
}
