//! `flashsale audit`: runs the stock audit of a sale and prints where every unit is, in Redis and in Postgres, and
//! what does not agree.

use super::answer::{scalar, sentence};
use super::client::{Client, Connection, sale_path};
use super::output::{self, Table};
use super::progress::Progress;
use super::{Failure, sale};
use serde_json::{Map, Value};
use std::time::Duration;
use uuid::Uuid;

/// The columns in the order in which a unit moves. Unknown columns come after these.
const COLUMNS: [&str; 13] = [
    "total",
    "preloaded",
    "stock",
    "granted",
    "available",
    "free",
    "in_transit",
    "held",
    "reserved",
    "sold",
    "paid",
    "cancelled",
    "expired",
];

/// The limit of the request: a little longer than the server may take.
const AUDIT_LIMIT: Duration = Duration::from_secs(130);

/// How many result pages of differences are read at most.
const PAGES_MAX: usize = 10_000;

/// Arguments of `audit`.
#[derive(clap::Args)]
#[command(after_help = "\
Exit code 1 when anything does not balance. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale audit 3f2c…
  flashsale audit 3f2c… --json | jq .differences")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print the server's answer as JSON.
    #[arg(long)]
    json: bool,
    /// The sale's id.
    #[arg(value_parser = sale::sale_id)]
    sale_id: Uuid,
}

/// # Errors
/// `No` when the sale does not balance or the server refuses, `Fault` when it does not answer.
pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator_within(AUDIT_LIMIT)?;
    let progress = Progress::of("counting every unit");
    let body = all_differences(&operator, &sale_path(&args.sale_id, "/audit"));
    drop(progress);
    let body = body?;
    if args.json {
        output::print_json(&body)?
    } else {
        output::print(&report(&body))?
    }
    verdict(&body)
}

/// The first answer, with the differences of all result pages.
fn all_differences(client: &Client, path: &str) -> Result<Value, Failure> {
    let mut audit = client.get(path)?.body;
    for _ in 0..PAGES_MAX {
        if audit.get("has_more") != Some(&Value::Bool(true)) {
            return Ok(audit);
        }
        let Some(known) = audit.get_mut("differences").and_then(Value::as_array_mut) else {
            break;
        };
        let Some(last) = known.last().and_then(Value::as_str) else {
            break;
        };
        let next = format!("{path}?starting_after={}", output::encoded(last));
        let mut page = client.get(&next)?.body;
        if let Some(more) = page.get_mut("differences").and_then(Value::as_array_mut) {
            known.append(more);
        }
        let has_more = page.get_mut("has_more").map(Value::take).unwrap_or_default();
        if let Some(fields) = audit.as_object_mut() {
            fields.insert("has_more".to_owned(), has_more);
        }
    }
    Err(Failure::Fault(anyhow::anyhow!(
        "the server's list of differences does not end: is it of the same version?"
    )))
}

/// Fails closed: without `"balanced": true` in the answer, the command fails.
fn verdict(body: &Value) -> Result<(), Failure> {
    let differences = body.get("differences").and_then(Value::as_array).map_or(0, Vec::len);
    match body.get("balanced").and_then(Value::as_bool) {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::No(format!(
            "the sale does not balance, differences: {differences}"
        ))),
        None => Err(Failure::No(
            "the server did not say whether the sale balances: is it flashsale?".to_owned(),
        )),
    }
}

fn report(body: &Value) -> String {
    let list = |name: &str| body.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut text = units(&list("items"));
    for difference in list("differences") {
        text.push_str(&format!("difference: {}\n", sentence(&difference)));
    }
    let is = |name: &str| body.get(name) == Some(&Value::Bool(true));
    if is("ledger_only") {
        text.push_str("only Postgres was counted: Redis has nothing of a sale that is not loaded, or was put away after its end\n");
    }
    if is("balanced") {
        let what = if is("ledger_only") {
            "the units and orders in Postgres fit each other"
        } else {
            "every unit is accounted for on both sides"
        };
        text.push_str(&format!("balanced: {what}\n"));
    }
    text
}

/// A table with a row for each side of each item. Every object within an item is a side, named by its key.
fn units(items: &[Value]) -> String {
    let rows: Vec<(String, String, Map<String, Value>)> =
        items.iter().filter_map(Value::as_object).flat_map(sides).collect();
    let mut columns: Vec<&String> = Vec::new();
    for name in rows.iter().flat_map(|(_, _, counts)| counts.keys()) {
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    columns.sort_by_key(|name| COLUMNS.iter().position(|known| known == name).unwrap_or(COLUMNS.len()));
    let headings = columns.iter().map(|name| name.to_uppercase().replace('_', " "));
    let mut table = Table::new(["SKU".to_owned(), "SIDE".to_owned()].into_iter().chain(headings));
    for (sku, side, counts) in &rows {
        let cells = columns
            .iter()
            .map(|name| counts.get(*name).map_or_else(|| "-".to_owned(), scalar));
        table.row([sku.clone(), side.clone()].into_iter().chain(cells));
    }
    table.render()
}

fn sides(item: &Map<String, Value>) -> Vec<(String, String, Map<String, Value>)> {
    let sku = item.get("sku").map_or_else(|| "-".to_owned(), scalar);
    let mut both = Map::new();
    let mut sides = Vec::new();
    for (name, value) in item {
        match value {
            Value::Object(counts) => sides.push((sku.clone(), name.clone(), counts.clone())),
            Value::Array(_) | Value::Null => {}
            _ if name == "sku" => {}
            count => {
                both.insert(name.clone(), count.clone());
            }
        }
    }
    if !both.is_empty() || sides.is_empty() {
        sides.insert(0, (sku, "both".to_owned(), both));
    }
    // Redis first: units are sold from there.
    sides.sort_by_key(|(_, side, _)| match side.as_str() {
        "both" => 0,
        "redis" => 1,
        _ => 2,
    });
    sides
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;
    use serde_json::json;

    #[test]
    fn both_sides_of_an_item_stand_under_each_other() {
        let body = json!({"balanced": true, "differences": [], "items": [{
            "sku": "phone", "total": 100,
            "postgres": {"held": 10, "sold": 30},
            "redis": {"sold": 30, "held": 10, "available": 55, "in_transit": 5},
        }]});
        assert_eq!(
            report(&body),
            "SKU    SIDE      TOTAL  AVAILABLE  IN TRANSIT  HELD  SOLD\n\
             phone  both        100          -           -     -     -\n\
             phone  redis         -         55           5    10    30\n\
             phone  postgres      -          -           -    10    30\n\
             balanced: every unit is accounted for on both sides\n"
        );
        assert!(verdict(&body).is_ok());
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
    fn a_flat_item_is_one_row() {
        assert_eq!(
            units(&[json!({"sku": "a", "held": 1})]),
            "SKU  SIDE  HELD\na    both     1\n"
        );
    }

    #[test]
    fn what_does_not_balance_is_listed_and_a_no() {
        let body = json!({"balanced": false, "items": [], "differences": [{"detail": "one unit short", "sku": "a"}]});
        assert!(report(&body).contains("difference: one unit short (sku a)\n"));
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
        let client = Client::new(server.url(), Some("key".to_owned()), Duration::from_secs(2)).unwrap();
        let audit = all_differences(&client, "/audit").unwrap();
        assert_eq!(audit["differences"], json!(["a", "b c", "d"]));
        assert_eq!(audit["has_more"], false);
        assert!(server.requests()[1].starts_with("GET /audit?starting_after=%62%20%63 "));
    }
}
