//! `flashsale orders`: lists orders, or shows one with its shopper, its state and its payments.

use super::client::{Client, Connection};
use super::output::Table;
use super::{Failure, answer, output, pages, sale};
use crate::domain::ids::OrderId;
use crate::domain::order::OrderState;
use clap::Subcommand;
use serde_json::Value;
use std::cmp::Reverse;
use uuid::Uuid;

const PATH: &str = "/v1/admin/orders";

/// Arguments of `orders`.
#[derive(clap::Args)]
#[command(after_help = "\
Use it if a shopper has paid and sees no order, or to find revoked orders. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale orders list --user ada
  flashsale orders list --sale 3f2c… --state revoked
  flashsale orders show 00000001-a3f7-8c21-8e55-0d9b4c6f1a37")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON: the server's answer, or all entries of a list as one array.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the orders of a sale, of an account, or of both, newest first, as Postgres has them.
    #[command(after_help = "\
Examples:
  flashsale orders list --user ada
  flashsale orders list --sale 3f2c… --state revoked --json | jq -r '.[].user'")]
    #[command(group = clap::ArgGroup::new("whose").required(true).multiple(true).args(["sale", "user"]))]
    List {
        /// Only orders of this sale.
        #[arg(long, value_name = "SALE_ID", value_parser = sale::sale_id)]
        sale: Option<Uuid>,
        /// Only orders of this account: the `sub` of its tokens.
        #[arg(long, value_name = "ACCOUNT")]
        user: Option<String>,
        /// Only orders in this state: reserved, paid, cancelled, expired or revoked.
        #[arg(long, value_name = "STATE", value_parser = state)]
        state: Option<OrderState>,
    },
    /// Show one order with its shopper and its payments.
    #[command(after_help = "Example:\n  flashsale orders show 00000001-a3f7-8c21-8e55-0d9b4c6f1a37")]
    Show {
        /// The order's id.
        #[arg(value_parser = order_id)]
        id: OrderId,
    },
}

fn state(text: &str) -> Result<OrderState, String> {
    let names = OrderState::ALL.map(OrderState::as_str).join(", ");
    text.parse().map_err(|_unknown| format!("a state is one of {names}"))
}

fn order_id(text: &str) -> Result<OrderId, String> {
    let wrong = "an order's id is a UUID such as 00000001-a3f7-8c21-8e55-0d9b4c6f1a37";
    text.parse().map_err(|_wrong| wrong.to_owned())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator()?;
    match &args.verb {
        Verb::List { sale, user, state } => {
            let mut orders = all_pages(&operator, &query(*sale, user.as_deref(), *state))?;
            // RFC 3339 in UTC, all of one length: the texts sort as the times do.
            let created = |order: &Value| order.get("created_at").and_then(Value::as_str).map(str::to_owned);
            orders.sort_by_cached_key(|order| Reverse(created(order)));
            if args.json {
                return output::print_json(&Value::Array(orders));
            }
            output::print(&table(&orders))
        }
        Verb::Show { id } => {
            let order = operator.get(&format!("{PATH}/{id}"))?.body;
            if args.json {
                return output::print_json(&order);
            }
            output::print(&describe(&order))
        }
    }
}

fn query(sale: Option<Uuid>, user: Option<&str>, state: Option<OrderState>) -> String {
    let asked = [
        sale.map(|sale| format!("sale_id={sale}")),
        user.map(|user| format!("user={}", output::encoded(user))),
        state.map(|state| format!("state={state}")),
    ];
    asked.into_iter().flatten().collect::<Vec<_>>().join("&")
}

fn all_pages(client: &Client, query: &str) -> Result<Vec<Value>, Failure> {
    pages::all(client, &format!("{PATH}?{query}"), "id")
}

fn cell(of: &Value, name: &str) -> String {
    match of.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => answer::scalar(value),
    }
}

fn payments(order: &Value) -> &[Value] {
    order
        .get("payments")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn table(orders: &[Value]) -> String {
    let mut table = Table::new([
        "ORDER", "STATE", "CREATED", "ACCOUNT", "SALE", "SKU", "UNITS", "AMOUNT", "CURRENCY", "PAYMENTS",
    ]);
    for order in orders {
        let cell = |name: &str| cell(order, name);
        let paid: Vec<String> = payments(order).iter().map(|it| self::cell(it, "payment_id")).collect();
        table.row([
            cell("id"),
            cell("state"),
            cell("created_at"),
            cell("user"),
            cell("sale_id"),
            cell("sku"),
            cell("quantity"),
            cell("amount_minor"),
            cell("currency"),
            if paid.is_empty() {
                "-".to_owned()
            } else {
                paid.join(", ")
            },
        ]);
    }
    table.render()
}

fn describe(order: &Value) -> String {
    let mut text = String::new();
    let members = [
        "id",
        "state",
        "user",
        "sale_id",
        "sku",
        "quantity",
        "amount_minor",
        "currency",
        "created_at",
        "expires_at",
        "paid_at",
    ];
    for name in members {
        let line = format!("{name:<13} {}", output::one_line(&cell(order, name)));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let payments = payments(order);
    if payments.is_empty() {
        text.push_str("no payment was matched with it\n");
        return text;
    }
    let mut table = Table::new([
        "PAYMENT",
        "OUTCOME",
        "AMOUNT",
        "CURRENCY",
        "RECEIVED",
        "WHY",
        "REFERENCE",
    ]);
    for payment in payments {
        let names = [
            "payment_id",
            "outcome",
            "amount_minor",
            "currency",
            "received_at",
            "reason",
            "settled_reference",
        ];
        table.row(names.map(|name| cell(payment, name)));
    }
    text.push_str(&table.render());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn every_page_of_what_was_asked_for_is_read() {
        let server = MockServer::answering(&[
            (200, r#"{"data":[{"id":"b"}],"has_more":true}"#),
            (200, r#"{"data":[{"id":"a"}],"has_more":false}"#),
        ]);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let sale = Uuid::from_u128(7);
        let asked = query(Some(sale), Some("a&b"), Some(OrderState::Revoked));
        assert_eq!(all_pages(&client, &asked).unwrap().len(), 2);
        let first = format!("GET /v1/admin/orders?sale_id={sale}&user=%61%26%62&state=revoked HTTP");
        let requests = server.requests();
        assert!(requests[0].starts_with(&first), "{requests:?}");
        assert!(requests[1].contains("&starting_after=%62 HTTP"), "{requests:?}");
    }

    #[test]
    fn an_order_is_told_with_its_payments_whatever_they_are_called() {
        let order = json!({"id": "o", "state": "expired", "user": "a\u{1b}da", "payments": [
            {"payment_id": "pay\n1", "outcome": "refund_due", "reason": "the order was expired already"}]});
        let told = describe(&order);
        assert!(
            told.contains("user          a da\n") && told.contains("paid_at       -\n"),
            "{told}"
        );
        assert!(
            told.contains("pay 1") && told.contains("the order was expired already"),
            "{told}"
        );
        let listed = table(&[order, json!({"id": "p", "user": "bob", "payments": []})]);
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[1].contains("a da") && lines[1].ends_with("pay 1"), "{listed}");
        assert!(lines[2].ends_with('-'), "{listed}");
        assert!(describe(&json!({})).ends_with("no payment was matched with it\n"));
    }

    #[test]
    fn what_is_no_state_and_what_is_no_id_is_refused() {
        assert_eq!(state("revoked"), Ok(OrderState::Revoked));
        assert!(state("lost").is_err_and(|said| said.contains("reserved, paid")));
        assert!(order_id("7").is_err());
    }
}
