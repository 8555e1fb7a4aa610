//! `flashsale refunds`: lists payments that must be refunded, and marks them as refunded.

use crate::cli::shared::answer::{Column, show, show_list};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::search::SearchArgs;
use crate::cli::shared::{output, pages};
use crate::cli::{Failure, parsed};
use crate::domain::order::payment::RefundReference;
use clap::Subcommand;
use serde_json::{Value, json};
use std::cmp::Reverse;

const PATH: &str = "/v1/admin/payments";
/// The outcomes of payments that must be refunded.
const OWED: [&str; 2] = ["refund_due", "unmatched"];
const COLUMNS: [Column; 7] = [
    ("PAYMENT", "payment_id"),
    ("RECEIVED", "received_at"),
    ("AMOUNT", "amount_minor"),
    ("ORDER", "order_id"),
    ("WHY", "reason"),
    ("SETTLED", "settled_at"),
    ("REFERENCE", "settled_reference"),
];

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
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List payments that must be refunded, newest first, with the reason.
    #[command(after_help = "\
A payment without an order is of no sale and of no account.

Examples:
  flashsale refunds list --json | jq -r '.[].payment_id'
  flashsale refunds list --user ada
  flashsale refunds list --settled --from 2026-11-22T09:00:00Z")]
    List {
        #[command(flatten)]
        search: SearchArgs,
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
        #[arg(long, value_name = "TEXT", value_parser = parsed::<RefundReference>)]
        reference: RefundReference,
    },
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    match &args.verb {
        Verb::List { search, settled } => {
            let query = search.query(&operator, ("settled", Some(settled.to_string())))?;
            let mut payments = Vec::new();
            for outcome in OWED {
                let path = format!("{PATH}?outcome={outcome}&{query}");
                payments.extend(pages::all(&operator, &path, "payment_id")?);
            }
            // RFC 3339 in UTC, all of one length: the texts sort as the times do.
            payments.sort_by_cached_key(|payment| Reverse(payment["received_at"].as_str().map(str::to_owned)));
            show_list(payments, args.api.form(), &COLUMNS, why)
        }
        Verb::Settle { payment_id, reference } => {
            let body = json!({"payment_id": payment_id, "reference": reference.as_str()}).to_string();
            let settled = operator.post(&format!("{PATH}/settle"), &body);
            let settled = settled.map_err(|error| error.with_advice("it is safe to repeat the command"))?;
            show(&settled.body, args.api.form(), |_: Value| {
                let line = format!("{payment_id} was paid back as {}", reference.as_str());
                format!("{}\n", output::one_line(&line))
            })
        }
    }
}

/// The reason for a refund without an order.
fn why(payment: &Value, member: &str) -> Option<String> {
    let has_no_order = member == "reason" && payment[member].is_null() && payment["outcome"] == "unmatched";
    has_no_order.then(|| "there is no such order".to_owned())
}
