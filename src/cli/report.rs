//! `flashsale sale report`: what a sale sold and who got it, how its purchases were answered, and how fast.

use super::Failure;
use super::answer::{self, Column, Form, cell, show, text};
use super::client::{Client, sale_path};
use serde_json::Value;
use std::fmt::Write as _;
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

/// Prints the report of a sale.
pub fn report(client: &Client, id: &Uuid, form: Form) -> Result<(), Failure> {
    let report = client.get(&sale_path(id, "/report"))?.body;
    show(&report, form, |report: Value| describe(&report))
}

fn describe(report: &Value) -> String {
    let entries = |member: &str| report[member].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let counts = |member: &str| {
        let counts = report.pointer(&format!("/{member}")).and_then(Value::as_object);
        let counts = counts.into_iter().flatten();
        let counts: Vec<String> = counts.map(|(name, count)| format!("{name} {}", text(count))).collect();
        if counts.is_empty() {
            "-".to_owned()
        } else {
            counts.join(", ")
        }
    };
    let mut shown = answer::table(entries("items"), &ITEMS, |_, _| None);
    let share = |member: &str| {
        let share = report.pointer(&format!("/{member}")).and_then(Value::as_f64);
        share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    let _ = writeln!(shown, "\nsale {} is {}", cell(report, "name"), cell(report, "state"));
    let _ = writeln!(
        shown,
        "orders: {}; unpaid share of ended orders: {}",
        counts("orders"),
        share("unpaid_share")
    );
    let _ = writeln!(shown, "answers: {}", counts("answers"));
    let _ = writeln!(shown, "refused by guards: {}", counts("stopped"));
    let _ = writeln!(shown, "counted in shadow: {}", counts("would_stop"));
    let _ = writeln!(
        shown,
        "answers within, ms: p50 {}, p95 {}, p99 {}",
        cell(report, "latency_ms/p50"),
        cell(report, "latency_ms/p95"),
        cell(report, "latency_ms/p99")
    );
    let _ = writeln!(shown, "units by purchases sent: {}", counts("fairness/attempts"));
    let _ = writeln!(shown, "units by first view: {}", counts("fairness/first_seen"));
    for (group, name) in [("clients", "address"), ("networks", "network")] {
        let [largest, largest_ten] = ["largest", "largest_ten"].map(|rank| share(&format!("fairness/{group}/{rank}")));
        let _ = writeln!(shown, "units by {name}: largest {largest}, ten largest {largest_ten}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_shows_money_and_counts_and_a_dash_for_what_is_not_known() {
        let text = describe(&json!({
            "name": "Winter drop", "state": "closed", "unpaid_share": 0.115,
            "items": [{"sku": "M", "name": "Shirt", "total": 100, "sold": 92, "held": 0, "money_minor": 230_000,
                "currency": "EUR", "sold_out_after_seconds": 1.84}],
            "orders": {"paid": 92}, "answers": {"reserved": 104, "sold_out": 4210}, "stopped": {}, "would_stop": {"holds": 3},
            "latency_ms": {"p50": 2.1, "p95": null, "p99": 9.2},
            "fairness": {"attempts": {"one": 90, "two": 14}, "first_seen": {"none": 3, "longer": 101},
                "clients": {"units": 104, "largest": 0.029, "largest_ten": 0.144},
                "networks": {"units": 0, "largest": null, "largest_ten": null}},
        }));
        for part in [
            "2300.00 EUR",
            "1.84",
            "sale Winter drop is closed",
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
    }
}
