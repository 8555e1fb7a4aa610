//! `flashsale actions`: the audit log of operators' actions.

use super::client::{Client, Connection};
use super::output::Table;
use super::{Failure, answer, output, sale};
use serde_json::Value;
use uuid::Uuid;

const PATH: &str = "/v1/admin/actions";
/// The most actions on one result page of the server.
const PAGE: u32 = 100;

/// Arguments of `actions`.
#[derive(clap::Args)]
#[command(after_help = "\
Lists what operators did at the console, by command or over the API, newest first. The server keeps ninety days.
Operators choose their own names, and the server does not check them. An action without an outcome is under way, or its
outcome is unknown. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale actions
  flashsale actions --sale 3f2c… --limit 200
  flashsale actions --json | jq -r '.[] | select(.outcome != \"done\").action'")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON: the actions as one array.
    #[arg(long)]
    json: bool,
    /// Only actions on this sale.
    #[arg(long, value_name = "SALE_ID", value_parser = sale::sale_id)]
    sale: Option<Uuid>,
    /// The most actions to print.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let actions = newest(&args.connection.operator()?, args.sale.as_ref(), args.limit)?;
    if args.json {
        return output::print_json(&Value::Array(actions));
    }
    output::print(&table(&actions))
}

/// The newest actions. Each result page starts after the last action of the page before.
fn newest(client: &Client, sale: Option<&Uuid>, limit: u32) -> Result<Vec<Value>, Failure> {
    let sale = sale.map_or_else(String::new, |id| format!("&sale_id={id}"));
    let mut actions: Vec<Value> = Vec::new();
    let mut left = limit;
    while left > 0 {
        let after = match actions.last() {
            Some(last) => match last.get("id").and_then(Value::as_i64) {
                Some(id) => format!("&starting_after={id}"),
                None => break,
            },
            None => String::new(),
        };
        let mut page = client
            .get(&format!("{PATH}?limit={}{sale}{after}", left.min(PAGE)))?
            .body;
        let data = page.get_mut("data").map(Value::take).unwrap_or_default();
        let data: Vec<Value> = answer::read(&data)?;
        left = left.saturating_sub(u32::try_from(data.len()).unwrap_or(u32::MAX));
        let is_last = data.is_empty() || page.get("has_more") != Some(&Value::Bool(true));
        actions.extend(data);
        if is_last {
            break;
        }
    }
    Ok(actions)
}

fn table(actions: &[Value]) -> String {
    let mut table = Table::new([
        "ID", "BEGUN", "ACTION", "OUTCOME", "BY", "VIA", "FROM", "SALE", "DETAIL",
    ]);
    for action in actions {
        let cell = |name: &str| match action.get(name) {
            None | Some(Value::Null) => "-".to_owned(),
            Some(value) => answer::scalar(value),
        };
        let detail = action.get("detail").filter(|detail| **detail != serde_json::json!({}));
        table.row([
            cell("id"),
            cell("begun_at"),
            cell("action"),
            cell("outcome"),
            cell("operator"),
            cell("actor"),
            cell("address"),
            cell("sale_id"),
            detail.map_or_else(|| "-".to_owned(), answer::sentence),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn pages_are_read_up_to_the_limit_and_no_further() {
        let server = MockServer::answering(&[
            (200, r#"{"data":[{"id":9},{"id":8}],"has_more":true}"#),
            (200, r#"{"data":[{"id":7}],"has_more":true}"#),
        ]);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let sale = Uuid::from_u128(7);
        assert_eq!(newest(&client, Some(&sale), 3).unwrap().len(), 3);
        let asked: Vec<String> = server
            .requests()
            .iter()
            .map(|it| it.lines().next().unwrap().to_owned())
            .collect();
        let first = format!("GET /v1/admin/actions?limit=3&sale_id={sale} HTTP/1.1");
        let second = format!("GET /v1/admin/actions?limit=1&sale_id={sale}&starting_after=8 HTTP/1.1");
        assert_eq!(asked, [first, second]);
        let server = MockServer::answering(&[(200, r#"{"data":[{"id":9}],"has_more":false}"#)]);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        assert_eq!(newest(&client, None, 500).unwrap().len(), 1);
        assert!(server.requests()[0].starts_with("GET /v1/admin/actions?limit=100 "));
    }

    #[test]
    fn an_action_is_a_row_whatever_it_says() {
        let shown = table(&[
            json!({"id": 3, "begun_at": "then", "actor": "api_key", "operator": "a\u{1b}da", "address": null,
            "action": "sales.restock", "sale_id": "s", "detail": {"sku": "phone", "quantity": 5}, "outcome": null}),
        ]);
        let row = shown.lines().nth(1).unwrap();
        assert!(row.starts_with(" 3  then   sales.restock  -"), "{shown}");
        assert!(
            row.contains("a da") && row.ends_with("sku phone, quantity 5"),
            "{shown}"
        );
    }
}
