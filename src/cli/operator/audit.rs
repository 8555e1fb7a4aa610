//! `flashsale audit`: runs the stock audit of a sale and prints where every unit is, in Redis and in Postgres, and
//! what does not agree.

use super::sale::SaleArg;
use crate::cli::Failure;
use crate::cli::shared::answer::{Form, cell, text};
use crate::cli::shared::client::{ApiArgs, Client, sale_path};
use crate::cli::shared::output::{self, Table};
use crate::cli::shared::pages;
use crate::cli::shared::progress::Progress;
use serde_json::{Map, Value};
use std::time::Duration;

/// The columns in the order in which a unit moves. Other counts come after these.
const COLUMNS: [&str; 6] = ["total", "available", "free", "in_transit", "held", "sold"];

/// The limit of the request: a little longer than the server may take.
const AUDIT_LIMIT: Duration = Duration::from_secs(130);

#[derive(clap::Args)]
#[command(after_help = "\
Exit code 1 when anything does not balance. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale audit 3f2c…
  flashsale audit 3f2c… --json | jq .differences")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    sale: SaleArg,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator_within(AUDIT_LIMIT)?;
    let path = sale_path(args.sale.id.whole(&operator)?, "/audit");
    let progress = Progress::of("counting every unit");
    let body = audited(&operator, &path);
    drop(progress);
    let body = body?;
    if args.api.form() == Form::Json {
        output::print_json(&body)?
    } else {
        output::print(&report(&body))?
    }
    verdict(&body)
}

/// The first answer, with the differences of all result pages.
fn audited(client: &Client, path: &str) -> Result<Value, Failure> {
    let (mut audit, differences) = pages::list(client, path, "differences", usize::MAX, "")?;
    audit["differences"] = Value::Array(differences);
    audit["has_more"] = Value::Bool(false);
    Ok(audit)
}

/// Fails closed: without `"balanced": true` in the answer, the command fails.
fn verdict(body: &Value) -> Result<(), Failure> {
    match body["balanced"].as_bool() {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::No(format!(
            "the sale does not balance, differences: {}",
            list(body, "differences").len()
        ))),
        None => Err(Failure::No(
            "the server did not say whether the sale balances: is it flashsale?".to_owned(),
        )),
    }
}

fn list<'a>(body: &'a Value, name: &str) -> &'a [Value] {
    body[name].as_array().map_or(&[], Vec::as_slice)
}

fn report(body: &Value) -> String {
    let mut report = units(list(body, "items"));
    for difference in list(body, "differences") {
        report.push_str(&format!("difference: {}\n", output::one_line(&text(difference))));
    }
    let is_ledger_only = body["ledger_only"] == true;
    if is_ledger_only {
        report.push_str("only Postgres was counted: Redis has nothing of a sale that is not loaded, or was put away after its end\n");
    }
    if body["balanced"] == true {
        report.push_str(if is_ledger_only {
            "balanced: the units and orders in Postgres fit each other\n"
        } else {
            "balanced: every unit is accounted for on both sides\n"
        });
    }
    report
}

/// A table with a row for each side of each item. An object within an item is a side, named by its key. Counts that
/// this version does not know are shown too, and counts that a side does not have are a dash.
fn units(items: &[Value]) -> String {
    let mut rows: Vec<(&Value, String, Value)> = Vec::new();
    for item in items {
        let members = item.as_object().cloned().unwrap_or_default().into_iter();
        let members = members.filter(|(name, _)| name != "sku");
        let (sides, both): (Map<String, Value>, Map<String, Value>) = members.partition(|(_, value)| value.is_object());
        rows.push((item, "both".to_owned(), both.into()));
        rows.extend(sides.into_iter().map(|(side, counts)| (item, side, counts)));
    }
    let mut columns: Vec<&str> = Vec::new();
    let counts = rows.iter().filter_map(|(_, _, counts)| counts.as_object());
    for name in counts.flat_map(Map::keys) {
        if !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    columns.sort_by_key(|name| COLUMNS.iter().position(|known| known == name).unwrap_or(COLUMNS.len()));
    let headings = columns.iter().map(|name| name.to_uppercase().replace('_', " "));
    let mut table = Table::new(["SKU".to_owned(), "SIDE".to_owned()].into_iter().chain(headings));
    for (item, side, counts) in &rows {
        let cells = columns.iter().map(|name| cell(counts, name));
        table.row([cell(item, "sku"), side.clone()].into_iter().chain(cells));
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;
    use serde_json::json;

    #[test]
    fn the_sides_of_an_item_stand_under_each_other_with_counts_of_a_later_version() {
        let body = json!({"balanced": true, "differences": [], "items": [{
            "sku": "phone", "total": 100,
            "stock": {"sold": 30, "held": 10, "available": 55, "in_transit": 5, "lent": 1},
            "ledger": {"held": 10, "sold": 30},
        }]});
        assert_eq!(
            report(&body),
            "SKU    SIDE    TOTAL  AVAILABLE  IN TRANSIT  HELD  SOLD  LENT\n\
             phone  both      100          -           -     -     -     -\n\
             phone  stock       -         55           5    10    30     1\n\
             phone  ledger      -          -           -    10    30     -\n\
             balanced: every unit is accounted for on both sides\n"
        );
    }

    #[test]
    fn where_one_side_was_counted_nothing_is_said_of_both() {
        let body = json!({"balanced": true, "ledger_only": true, "differences": [], "items": []});
        let text = report(&body);
        assert!(
            text.contains("only Postgres was counted") && !text.contains("both sides"),
            "{text}"
        );
    }

    #[test]
    fn only_a_sale_that_balances_is_a_yes() {
        assert!(verdict(&json!({"balanced": true})).is_ok());
        let body = json!({"balanced": false, "items": [], "differences": ["one unit\nshort"]});
        assert!(report(&body).contains("difference: one unit short\n"));
        assert!(matches!(verdict(&body), Err(Failure::No(line)) if line.ends_with("differences: 1")));
        assert!(verdict(&json!({})).is_err());
    }

    #[test]
    fn the_differences_of_all_pages_are_printed() {
        let page = |differences: &str, has_more: bool| {
            format!(r#"{{"balanced":false,"items":[],"differences":[{differences}],"has_more":{has_more}}}"#)
        };
        let (first, second) = (page(r#""a","b c""#, true), page(r#""d""#, false));
        let server = MockServer::answering(&[(200, &first), (200, &second)]);
        let audit = audited(&server.client(), "/audit").unwrap();
        assert_eq!(audit["differences"], json!(["a", "b c", "d"]));
        assert_eq!(audit["has_more"], false);
        assert!(server.requests()[1].starts_with("GET /audit?starting_after=b+c "));
    }
}
