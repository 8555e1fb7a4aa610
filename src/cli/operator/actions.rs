//! `flashsale actions`: the audit log of operators' actions.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, show_list, words};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::sale_ref::SaleRef;
use crate::cli::shared::{number, pages};
use serde_json::Value;

/// The most actions on one result page of the server.
const PAGE: u32 = 100;
const COLUMNS: [Column; 9] = [
    ("ID", "id"),
    ("BEGUN", "begun_at"),
    ("ACTION", "action"),
    ("OUTCOME", "outcome"),
    ("BY", "operator"),
    ("VIA", "actor"),
    ("FROM", "address"),
    ("SALE", "sale_id"),
    ("DETAIL", "detail"),
];

#[derive(clap::Args)]
#[command(after_help = "\
Lists what operators did at the console, by command or over the API, newest first. The server keeps ninety days, or
FLASHSALE_RETENTION_AUDIT_LOG_DAYS.
Operators choose their own names, and the server does not check them. An action without an outcome is under way, or its
outcome is unknown. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale actions
  flashsale actions --sale 3f2c… --limit 200
  flashsale actions --json | jq -r '.[] | select(.outcome != \"done\").action'")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Only actions on this sale.
    #[arg(long, value_name = "SALE_ID")]
    sale: Option<SaleRef>,
    /// The most actions to print.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        allow_negative_numbers = true,
        value_parser = number::whole(1_u32, 100_000)
    )]
    limit: u32,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    let mut path = format!("/v1/admin/actions?limit={}", args.limit.min(PAGE));
    if let Some(sale) = &args.sale {
        path += &format!("&sale_id={}", sale.whole(&operator)?);
    }
    let actions = pages::newest(&operator, &path, "id", args.limit as usize)?;
    show_list(actions, args.api.form(), &COLUMNS, detail)
}

/// The parameters of an action in words.
fn detail(action: &Value, member: &str) -> Option<String> {
    (member == "detail").then(|| words(action.get(member)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::answer::table;
    use serde_json::json;

    #[test]
    fn an_action_is_a_row_with_its_parameters_in_words() {
        let shown = table(
            &[
                json!({"id": 3, "action": "sales.restock", "detail": {"sku": "phone", "quantity": 5}, "outcome": null}),
                json!({"id": 2, "action": "sales.open", "detail": {}, "outcome": "done"}),
            ],
            &COLUMNS,
            detail,
        );
        let ends: Vec<&str> = shown
            .lines()
            .skip(1)
            .map(|row| row.rsplit("  ").next().unwrap())
            .collect();
        assert_eq!(ends, ["sku phone, quantity 5", "-"], "{shown}");
    }
}
