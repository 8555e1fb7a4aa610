//! The report of a whole sale, as JSON, and its parts as tables.

use crate::domain::fault::Fault;
use crate::domain::sale::report::{ReportTable, SaleReport};
use crate::domain::time;
use crate::flow::watch::history;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, Query, SalePath, accepts};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::{Api, csv, found};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/v1/admin/sales/{id}/report", handler!(report), |it| {
    it.of_operators("reportSale", "Report a whole sale")
        .says(
            "What was sold, how purchases were answered, and when, from the sale's first second on; during the sale, \
             up to some seconds ago. With `Accept: text/csv`, the part that `table` names, as a table.",
        )
        .query::<ReportQuery>(&[])
        .answers::<SaleReport>(200, "The report.", example())
        .or_as(csv::CSV)
})];

/// Which part of the report to return.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportQuery {
    /// Leaves out the course before this moment.
    from: Option<DateTime<Utc>>,
    /// Leaves out the course from this moment on.
    to: Option<DateTime<Utc>>,
    /// The table to answer as CSV: `course` (the default) has a row for each step and a column for each answer, `items`
    /// a row for each item, `totals` a row for each other member, such as `answers.sold_out`. JSON has all three.
    #[schemars(with = "Option<String>", extend("enum" = ReportTable::ALL))]
    table: Option<ReportTable>,
}

async fn report(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(ReportQuery { from, to, table }): Query<ReportQuery>,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    // Postgres has no time long before the first sale.
    let [from, to] = [from, to].map(|bound| bound.map(|at| at.max(DateTime::<Utc>::UNIX_EPOCH)));
    let report = api.for_operator(move |app| async move { history::report(&app, id, from, to).await });
    let report = found(report.await?, "such sale")?;
    if accepts(&request, csv::CSV) {
        let table = table.unwrap_or_default();
        let rows = match table {
            ReportTable::Course => course(&report),
            ReportTable::Items => items(&json_of(&report)?),
            ReportTable::Totals => totals(&json_of(&report)?),
        };
        return Ok(csv::answer(&format!("sale-{id}-{table}")).body(rows));
    }
    Ok(HttpResponse::Ok().json(report))
}

fn json_of(report: &SaleReport) -> Result<Value, Fault> {
    serde_json::to_value(report).map_err(|error| Fault::Bug(format!("a report is no JSON: {error}")))
}

/// The items as a table with a column for each member that they have in JSON.
fn items(report: &Value) -> String {
    let mut table = String::new();
    let items = report["items"].as_array().into_iter().flatten();
    for (at, item) in items.filter_map(Value::as_object).enumerate() {
        if at == 0 {
            csv::add_row(&mut table, item.keys());
        }
        csv::add_row(&mut table, item.values().map(cell));
    }
    table
}

/// What the report has beside its lists.
fn totals(report: &Value) -> String {
    let mut table = String::new();
    csv::add_row(&mut table, ["member", "value"]);
    add_totals(&mut table, "", report);
    table
}

/// Adds a row for this value, or for each value in it; `path` has the names of the members that lead to it.
fn add_totals(table: &mut String, path: &str, value: &Value) {
    let Value::Object(members) = value else {
        csv::add_row(table, [path, cell(value).as_str()]);
        return;
    };
    for (name, value) in members.iter().filter(|(_, value)| !value.is_array()) {
        let dot = if path.is_empty() { "" } else { "." };
        add_totals(table, &format!("{path}{dot}{name}"), value);
    }
}

/// A cell with this number or text; an unknown one is empty.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The course as a table with a column for each answer.
fn course(report: &SaleReport) -> String {
    let answers: BTreeSet<&String> = report.answers.keys().collect();
    let mut table = String::new();
    let names = answers.iter().map(|answer| answer.as_str());
    let heads = ["at", "seconds"].into_iter().chain(names);
    csv::add_row(&mut table, heads.chain(["p50_ms", "p95_ms", "p99_ms"]));
    for step in &report.course {
        let count = |answer: &&String| step.answers.get(*answer).copied().unwrap_or_default();
        let counts = answers.iter().map(|answer| count(answer).to_string());
        let latency = step.latency_ms;
        let shares = [latency.p50, latency.p95, latency.p99];
        let shares = shares.map(|share| share.map_or_else(String::new, |share| share.to_string()));
        let step = [time::format(&step.at), report.step_seconds.to_string()];
        csv::add_row(&mut table, step.into_iter().chain(counts).chain(shares));
    }
    table
}

fn example() -> Value {
    let latency = json!({"p50": 2.1, "p95": 4.9, "p99": 9.2});
    json!({
        "sale_id": SALE_ID, "name": "Winter drop", "state": "closed", "server_time": "2026-11-22T11:00:00.000Z",
        "starts_at": "2026-11-22T09:00:00.000Z", "ends_at": "2026-11-22T10:00:00.000Z",
        "closed_at": "2026-11-22T09:40:00.000Z",
        "items": [{"sku": "TSHIRT-M", "name": "T-shirt, medium", "total": 100, "sold": 92, "held": 0,
            "money_minor": 230_000, "currency": "EUR", "sold_out_after_seconds": 1.84,
            "unpaid_share": 0.115}],
        "orders": {"reserved": 0, "paid": 92, "cancelled": 3, "expired": 9, "revoked": 0}, "unpaid_share": 0.115,
        "answers": {"reserved": 104, "sold_out": 4210}, "stopped": {"window": 12}, "would_stop": {},
        "fairness": {
            "attempts": {"one": 71, "two": 20, "three_to_five": 11, "six_to_ten": 2, "eleven_to_fifty": 0, "more": 0},
            "first_seen": {"none": 3, "under_one_second": 0, "under_ten_seconds": 4, "under_one_minute": 22,
                "under_ten_minutes": 51, "longer": 24},
            "clients": {"units": 104, "largest": 0.029, "largest_ten": 0.144},
            "networks": {"units": 104, "largest": 0.048, "largest_ten": 0.212},
        },
        "latency_ms": latency,
        "step_seconds": 1,
        "course": [{"at": "2026-11-22T09:00:00.000Z", "answers": {"reserved": 61}, "latency_ms": latency}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use crate::domain::operator::report::OrderCounts;
    use crate::domain::sale::SaleState;
    use crate::domain::sale::fairness::FairnessReport;
    use crate::domain::sale::report::{CourseStep, Latency};
    use crate::domain::time::from_millis;
    use std::collections::BTreeMap;
    use uuid::Uuid;

    #[test]
    fn items_and_totals_are_tables_with_the_members_of_the_report() {
        let mut report = example();
        report["items"][0]["name"] = "=T, shirt".into();
        report["items"][0]["sold_out_after_seconds"] = Value::Null;
        assert_eq!(
            items(&report),
            "sku,name,total,sold,held,money_minor,currency,sold_out_after_seconds,unpaid_share\r\n\
             TSHIRT-M,\"'=T, shirt\",100,92,0,230000,EUR,,0.115\r\n"
        );
        let totals = totals(&report);
        assert!(totals.starts_with("member,value\r\nsale_id,"), "{totals}");
        let parts = [
            "answers.sold_out,4210",
            "stopped.window,12",
            "unpaid_share,0.115",
            "fairness.attempts.one,71",
        ];
        for row in parts {
            assert!(totals.contains(&format!("\r\n{row}\r\n")), "{row}: {totals}");
        }
        assert!(!totals.contains("TSHIRT-M") && !totals.contains("course"), "{totals}");
    }

    #[test]
    fn a_course_is_a_table_with_a_column_for_each_answer() {
        let counts = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
            all.iter()
                .map(|(answer, count)| ((*answer).to_owned(), *count))
                .collect()
        };
        let step = |at, answers, p50| CourseStep {
            at: from_millis(at),
            answers,
            latency_ms: Latency {
                p50,
                ..Latency::default()
            },
        };
        let report = SaleReport {
            sale_id: SaleId(Uuid::nil()),
            name: "Winter, \"drop\"".to_owned(),
            state: SaleState::Open,
            server_time: from_millis(0),
            starts_at: from_millis(0),
            ends_at: from_millis(1),
            closed_at: None,
            items: Vec::new(),
            orders: OrderCounts::default(),
            unpaid_share: None,
            answers: counts(&[("reserved", 3), ("sold_out", 7)]),
            stopped: BTreeMap::new(),
            fairness: FairnessReport::default(),
            would_stop: BTreeMap::new(),
            latency_ms: Latency::default(),
            step_seconds: 2,
            course: vec![
                step(0, counts(&[("reserved", 3)]), Some(1.5)),
                step(2000, counts(&[("sold_out", 7)]), None),
            ],
        };
        assert_eq!(
            course(&report),
            "at,seconds,reserved,sold_out,p50_ms,p95_ms,p99_ms\r\n\
             1970-01-01T00:00:00.000Z,2,3,0,1.5,,\r\n\
             1970-01-01T00:00:02.000Z,2,0,7,,,\r\n"
        );
    }
}
