//! `flashsale actions`: the audit log of operators' actions.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, cell, listed, show_list, text};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::sale_ref::SaleRef;
use crate::cli::shared::search::{PeriodArgs, query};
use crate::cli::shared::{number, output, pages};
use console::truncate_str;
use serde_json::Value;

/// The most columns of a terminal that an action's parameters take.
const DETAIL_WIDTH: usize = 100;
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
FLASHSALE_RETENTION_AUDIT_LOG_DAYS. The table has a request's main parts, --json all that the server keeps of it.
With the shared key, operators choose their names, unchecked. A named key proves its own. An action without an outcome
is under way, or its outcome is unknown. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale actions
  flashsale actions --sale 3f2c… --limit 200
  flashsale actions --from 2026-11-22T09:00:00Z --to 2026-11-22T10:00:00Z
  flashsale actions --json | jq -r '.[] | select(.outcome != \"done\").action'")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Only actions on this sale.
    #[arg(long, value_name = "SALE_ID")]
    sale: Option<SaleRef>,
    #[command(flatten)]
    period: PeriodArgs,
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
    let sale = args.sale.as_ref().map(|sale| sale.whole(&operator)).transpose()?;
    let [from, to] = args.period.parameters();
    let asked = query([
        ("limit", Some(args.limit.min(PAGE).to_string())),
        ("sale_id", sale.map(|sale| sale.to_string())),
        from,
        to,
    ]);
    let path = format!("/v1/admin/actions?{asked}");
    let actions = pages::newest(&operator, &path, "id", args.limit as usize)?;
    show_list(actions, args.api.form(), &COLUMNS, detail)
}

/// The parameters of an action in a few words; `--json` has all of them.
fn detail(action: &Value, member: &str) -> Option<String> {
    // A guard that is null goes back to what is configured.
    let none = if action["action"] == "guards.change" {
        "configured"
    } else {
        "none"
    };
    let shown = (member == "detail").then(|| brief(&action[member], none))?;
    Some(truncate_str(&output::one_line(&shown), DETAIL_WIDTH, "…").into_owned())
}

/// The members of an object, such as `sku phone, quantity 5`. Null is shown as `none`.
fn brief(object: &Value, none: &str) -> String {
    let members = object.as_object().into_iter().flatten();
    // An amount names its currency.
    let members = members.filter(|(name, _)| *name != "currency");
    let words = members.map(|(name, value)| {
        let shown = match value {
            Value::Null => none.to_owned(),
            Value::Object(_) => format!("({})", brief(value, none)),
            Value::Array(entries) => entries.iter().map(entry).collect::<Vec<_>>().join("; "),
            _ => cell(object, name),
        };
        format!("{} {shown}", name.trim_end_matches("_minor"))
    });
    listed(&words.collect::<Vec<_>>())
}

/// An entry of a list: an item of a sale by its SKU and its price.
fn entry(entry: &Value) -> String {
    match entry["sku"].as_str() {
        Some(sku) => format!("{sku} {}", cell(entry, "price_minor")),
        None => text(entry),
    }
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

    #[test]
    fn a_long_request_is_short_and_readable() {
        let detail =
            |action: &str, request: Value| detail(&json!({"action": action, "detail": request}), "detail").unwrap();
        let item = json!({"sku": "phone", "name": "A phone", "price_minor": 49_900, "currency": "EUR", "stock": 10});
        let created = detail("sales.create", json!({"name": "Launch", "items": [&item]}));
        assert_eq!(created, "name Launch, items phone 499.00 EUR");
        let many = detail("sales.create", json!({"name": "Launch", "items": vec![item; 20]}));
        assert!(
            many.starts_with("name Launch, items phone 499.00 EUR; phone "),
            "{many}"
        );
        assert_eq!((many.chars().count(), many.ends_with('…')), (DETAIL_WIDTH, true));
        let stage = json!({"value": 7, "percent": 10});
        assert_eq!(
            detail("guards.change", json!({"address_rate": null, "shared_rate": stage})),
            "address_rate configured, shared_rate (value 7, percent 10)"
        );
        assert_eq!(detail("bans.create", json!({"until": null})), "until none");
    }
}
