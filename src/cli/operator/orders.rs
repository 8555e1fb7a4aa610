//! `flashsale orders`: lists orders, or shows one with its shopper, its state and its payments.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, cell, listed, show, show_list, table};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::order_ref::{OPERATORS, OrderRef};
use crate::cli::shared::search::SearchArgs;
use crate::cli::shared::{output, pages};
use crate::domain::order::OrderState;
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::Value;

const COLUMNS: [Column; 9] = [
    ("ORDER", "id"),
    ("STATE", "state"),
    ("CREATED", "created_at"),
    ("ACCOUNT", "user"),
    ("SALE", "sale_id"),
    ("SKU", "sku"),
    ("UNITS", "quantity"),
    ("AMOUNT", "amount_minor"),
    ("PAYMENTS", "payments"),
];
const PAYMENT_COLUMNS: [Column; 6] = [
    ("PAYMENT", "payment_id"),
    ("OUTCOME", "outcome"),
    ("AMOUNT", "amount_minor"),
    ("RECEIVED", "received_at"),
    ("WHY", "reason"),
    ("REFERENCE", "settled_reference"),
];

#[derive(clap::Args)]
#[command(after_help = "\
Use it if a shopper has paid and sees no order, or to find revoked orders. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale orders list --user ada
  flashsale orders list --sale 3f2c… --state revoked
  flashsale orders show 4c6f1a37")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the orders of a sale, of an account, or of both, newest first, as Postgres has them.
    #[command(after_help = "\
Examples:
  flashsale orders list --user ada
  flashsale orders list --sale 3f2c… --state revoked --json | jq -r '.[].user'
  flashsale orders list --sale 3f2c… --from 2026-11-22T09:00:00Z --csv > orders.csv")]
    #[command(group = clap::ArgGroup::new("whose").required(true).multiple(true).args(["sale", "user"]))]
    List {
        #[command(flatten)]
        search: SearchArgs,
        /// Only orders in this state.
        #[arg(long, value_name = "STATE", value_parser = state())]
        state: Option<OrderState>,
        /// Print CSV for a spreadsheet: the orders at one moment, with their payments in one cell.
        #[arg(long)]
        csv: bool,
    },
    /// Show one order with its shopper and its payments.
    #[command(after_help = "\
An id in part, and @latest, are searched in the newest 1,000 orders of each of the newest ten sales that have been
preloaded.

Examples:
  flashsale orders show 4c6f1a37
  flashsale orders show 00000001-a3f7-8c21-8e55-0d9b4c6f1a37
  flashsale orders show @latest")]
    Show {
        /// The last eight characters of the order's id, which pages show. Or all of it, its first characters (the orders
        /// of a sale share the first eight), or @latest for the newest order.
        #[arg(value_name = "ORDER_ID")]
        id: OrderRef,
    },
}

/// Reads a state; completion offers them all.
fn state() -> impl TypedValueParser<Value = OrderState> {
    let names = OrderState::ALL.iter().map(|state| state.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<OrderState>())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    match &args.verb {
        Verb::List { search, state, csv } => {
            if *csv {
                args.api.form().allow_csv()?;
            }
            let query = search.query(&operator, ("state", state.map(|state| state.to_string())))?;
            let path = format!("{}?{query}", OPERATORS.orders);
            if !csv {
                let orders = pages::all(&operator, &path, "id")?;
                return show_list(orders, args.api.form(), &COLUMNS, payment_ids);
            }
            output::copy(operator.table(&path)?)
        }
        Verb::Show { id } => {
            let order = match id {
                OrderRef::Id(id) => operator.get(&format!("{}/{id}", OPERATORS.orders))?.body,
                part => part.find(&operator, OPERATORS)?,
            };
            show(&order, args.api.form(), |order: Value| describe(&order))
        }
    }
}

fn payments(order: &Value) -> &[Value] {
    order["payments"].as_array().map_or(&[], Vec::as_slice)
}

/// The ids of an order's payments. Money that does not pay it is marked.
fn payment_ids(order: &Value, member: &str) -> Option<String> {
    let marked = |payment: &Value| {
        let id = cell(payment, "payment_id");
        match (payment["outcome"] == "refund_due", payment["settled_at"].is_null()) {
            (false, _) => id,
            (true, true) => format!("{id} (refund due)"),
            (true, false) => format!("{id} (refunded)"),
        }
    };
    (member == "payments").then(|| listed(&payments(order).iter().map(marked).collect::<Vec<_>>()))
}

fn describe(order: &Value) -> String {
    let line = |name: &String| {
        let shown = output::one_line(&cell(order, name));
        format!("{:<13} {shown}\n", name.trim_end_matches("_minor"))
    };
    let members = order.as_object().into_iter().flat_map(|order| order.keys());
    // The amount names its currency.
    let lines = members
        .filter(|name| !["payments", "currency"].contains(&name.as_str()))
        .map(line);
    let payments = match payments(order) {
        [] => "no payment was matched with it\n".to_owned(),
        payments => table(payments, &PAYMENT_COLUMNS, |_, _| None),
    };
    lines.chain([payments]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_order_is_printed_with_its_payments_whatever_they_are_called() {
        let order = json!({"id": "o", "state": "expired", "user": "a\u{1b}da", "paid_at": null, "amount_minor": 49_900,
            "currency": "EUR", "payments": [
            {"payment_id": "pay\n1", "outcome": "refund_due", "reason": "the order was expired already"},
            {"payment_id": "pay2", "outcome": "applied"},
            {"payment_id": "pay3", "outcome": "refund_due", "settled_at": "2026-11-22T09:00:00.000Z"}]});
        let shown = describe(&order);
        for part in [
            "user          a da\n",
            "paid_at       -\namount        499.00 EUR\n",
            "pay 1    refund_due",
            "expired already",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let orders = [order, json!({"id": "p", "user": "bob", "payments": []})];
        let listed = table(&orders, &COLUMNS, payment_ids);
        let ends: Vec<&str> = listed
            .lines()
            .skip(1)
            .map(|row| row.rsplit("  ").next().unwrap())
            .collect();
        assert_eq!(ends, ["pay 1 (refund due), pay2, pay3 (refunded)", "-"], "{listed}");
        assert!(describe(&json!({})).ends_with("no payment was matched with it\n"));
    }
}
