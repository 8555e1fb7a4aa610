//! `flashsale refunds`: lists payments that must be refunded, and marks them as refunded.

use super::client::{Client, Connection};
use super::output::Table;
use super::{Failure, answer, output, pages};
use crate::domain::payment::RefundReference;
use clap::Subcommand;
use serde_json::{Value, json};

const PATH: &str = "/v1/admin/payments";
/// The outcomes of payments that must be refunded.
const OWED: [&str; 2] = ["refund_due", "unmatched"];

/// Arguments of `refunds`.
#[derive(clap::Args)]
#[command(after_help = "\
A payment must be refunded if there is no such order, or if the order could not take it. Refund it at the provider, then
settle it here; until then it counts as owed. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale refunds list
  flashsale refunds settle pay_7 --reference re_19
  flashsale refunds list --settled")]
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
    /// List payments that must be refunded, newest first, with the reason.
    #[command(after_help = "\
Examples:
  flashsale refunds list --json | jq -r '.[].payment_id'
  flashsale refunds list --settled")]
    List {
        /// List the refunded payments instead.
        #[arg(long)]
        settled: bool,
    },
    /// Mark a payment as refunded. Repeating this with the same reference is no error; another reference is refused.
    #[command(after_help = "Example:\n  flashsale refunds settle pay_7 --reference re_19")]
    Settle {
        /// The provider's id of the payment, as `refunds list` prints it.
        payment_id: String,
        /// The provider's id of the refund.
        #[arg(long, value_name = "TEXT", value_parser = reference)]
        reference: String,
    },
}

fn reference(text: &str) -> Result<String, String> {
    let reference: RefundReference = text.parse().map_err(|wrong| format!("it {wrong}"))?;
    Ok(reference.as_str().to_owned())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator()?;
    match &args.verb {
        Verb::List { settled } => {
            let mut payments = Vec::new();
            for outcome in OWED {
                payments.extend(all_pages(&operator, outcome, *settled)?);
            }
            // RFC 3339 in UTC, all of one length: the texts sort as the times do.
            let received = |payment: &Value| payment.get("received_at").and_then(Value::as_str).map(str::to_owned);
            payments.sort_by_key(|payment| std::cmp::Reverse(received(payment)));
            if args.json {
                return output::print_json(&Value::Array(payments));
            }
            output::print(&table(&payments))
        }
        Verb::Settle { payment_id, reference } => {
            let body = json!({"payment_id": payment_id, "reference": reference}).to_string();
            let settled = operator.post(&format!("{PATH}/settle"), &[], &body);
            let settled = settled.map_err(|error| error.with_advice("it is safe to repeat the command"))?;
            if args.json {
                return output::print_json(&settled.body);
            }
            let line = format!("{payment_id} was paid back as {reference}");
            output::print(&format!("{}\n", output::one_line(&line)))
        }
    }
}

fn all_pages(client: &Client, outcome: &str, is_settled: bool) -> Result<Vec<Value>, Failure> {
    let path = format!("{PATH}?outcome={outcome}&settled={is_settled}");
    pages::all(client, &path, "payment_id")
}

fn table(payments: &[Value]) -> String {
    let mut table = Table::new([
        "PAYMENT",
        "RECEIVED",
        "AMOUNT",
        "CURRENCY",
        "ORDER",
        "WHY",
        "SETTLED",
        "REFERENCE",
    ]);
    for payment in payments {
        let cell = |name: &str| match payment.get(name) {
            None | Some(Value::Null) => "-".to_owned(),
            Some(value) => answer::scalar(value),
        };
        let why = match cell("reason") {
            none if none == "-" && cell("outcome") == "unmatched" => "there is no such order".to_owned(),
            why => why,
        };
        table.row([
            cell("payment_id"),
            cell("received_at"),
            cell("amount_minor"),
            cell("currency"),
            cell("order_id"),
            why,
            cell("settled_at"),
            cell("settled_reference"),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;
    use std::time::Duration;

    #[test]
    fn a_list_says_why_money_is_owed_also_where_there_is_no_order() {
        let payments = [
            json!({"payment_id": "pay_1", "amount_minor": 100, "currency": "EUR", "order_id": "o", "outcome": "refund_due",
                "reason": "the order was paid already", "received_at": "then", "settled_at": null}),
            json!({"payment_id": "pay\n2", "amount_minor": 5, "currency": "EUR", "order_id": "x", "outcome": "unmatched",
                "reason": null, "received_at": "now", "settled_at": "later", "settled_reference": "re_1"}),
        ];
        let shown = table(&payments);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(
            lines[1].contains("the order was paid already") && lines[1].ends_with('-'),
            "{shown}"
        );
        assert!(
            lines[2].starts_with("pay 2") && lines[2].contains("there is no such order"),
            "{shown}"
        );
        assert!(lines[2].ends_with("later    re_1"), "{shown}");
    }

    #[test]
    fn every_page_is_read_whatever_payments_are_called() {
        let server = MockServer::answering(&[
            (200, r#"{"data":[{"payment_id":"pay &1"}],"has_more":true}"#),
            (200, r#"{"data":[{"payment_id":"pay_2"}],"has_more":false}"#),
        ]);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let payments = all_pages(&client, "unmatched", true).unwrap();
        assert_eq!(payments.len(), 2);
        let requests = server.requests();
        assert!(
            requests[0].starts_with("GET /v1/admin/payments?outcome=unmatched&settled=true HTTP"),
            "{requests:?}"
        );
        assert!(
            requests[1].contains("&starting_after=%70%61%79%20%26%31 HTTP"),
            "{requests:?}"
        );
    }

    #[test]
    fn a_reference_is_a_few_words_on_one_line() {
        assert_eq!(reference(" re_1 "), Ok("re_1".to_owned()));
        for wrong in ["", " ", "a\nb", &"x".repeat(201)] {
            assert!(reference(wrong).is_err_and(|said| said.starts_with("it must have 1 to 200")));
        }
    }
}
