//! `flashsale guards`: shows and changes the guards on shoppers' requests, as all instances follow them now.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, cell, show, show_list, text};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::output::Table;
use crate::cli::shared::sale_ref::SaleRef;
use crate::cli::shared::{number, pages};
use crate::domain::stage::Stage;
use clap::Subcommand;
use serde_json::{Map, Value, json};

const PATH: &str = "/v1/admin/guards";
/// Guards of which 0 is no limit. The others are off at 0.
const UNLIMITED: [&str; 5] = [
    "address_rate",
    "account_rate",
    "instance_rate",
    "shared_rate",
    "holds_max",
];
const SHADOW_COLUMNS: [Column; 5] = [
    ("LAST", "last_at"),
    ("GUARD", "layer"),
    ("SALE", "sale_id"),
    ("ACCOUNT", "user"),
    ("ADDRESS", "address"),
];

#[derive(clap::Args)]
#[command(after_help = "\
Every instance follows a change within a second, until you take the change back. Rates are requests a second; 0 is off.
Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale guards show
  flashsale guards set address_rate=20 instance_rate=5000
  flashsale guards set address_rate 50 --percent 10 --shadow
  flashsale guards set instance_rate=configured")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show the configured values, the operators' changes, and the values in effect.
    #[command(after_help = "Example:\n  flashsale guards show --json | jq .effective")]
    Show,
    /// Change settings on every instance, for all shoppers or for a part of them.
    #[command(after_help = "\
Each guard picks its own part of the shoppers. A larger part keeps those of a smaller one; 0 picks nobody.
A value without --percent is for all, and ends the stage.

Examples:
  flashsale guards set address_rate=20 instance_rate=configured
  flashsale guards set address_rate 50 --percent 10 --shadow
  flashsale guards set address_rate 50 --percent 0")]
    Set {
        /// NAME=NUMBER or NAME NUMBER; NAME=configured takes back a change, and ends its stage.
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
        /// Set the values for so many of a hundred shoppers; the others keep theirs.
        #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = number::whole(0_u32, 100))]
        percent: Option<u32>,
        /// Refuse nobody by these values: only count what they would refuse.
        #[arg(long, requires = "percent")]
        shadow: bool,
    },
    /// List whom guards in shadow would have refused, each shopper once for each guard and sale, the latest first.
    #[command(after_help = "\
Lists the last 1,000 of a day, at any instance.

Examples:
  flashsale guards shadow
  flashsale guards shadow --sale 3f2c… --json | jq -r '.[].user'")]
    Shadow {
        /// Only refusals of requests for this sale.
        #[arg(long, value_name = "SALE_ID")]
        sale: Option<SaleRef>,
    },
}

/// The members of a patch for these words: `NAME=VALUE`, or a name and a value.
fn patch(words: &[String], percent: Option<u32>, shadow: bool) -> Result<Map<String, Value>, String> {
    let wrong = || "write a setting as NAME=NUMBER or NAME NUMBER, or NAME=configured".to_owned();
    let (mut words, mut members) = (words.iter(), Map::new());
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some(pair) => pair,
            None => (word.as_str(), words.next().ok_or_else(wrong)?.as_str()),
        };
        let value = match (value, percent) {
            ("configured", None) => Value::Null,
            ("configured", Some(_)) => return Err(format!("{name}=configured is for all: leave out --percent")),
            (number, None) => number.parse::<u32>().map_err(|_error| wrong())?.into(),
            (number, Some(percent)) => {
                let value: u32 = number.parse().map_err(|_error| wrong())?;
                json!(Stage { value, percent, shadow })
            }
        };
        members.insert(name.to_owned(), value);
    }
    Ok(members)
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    let answer = match &args.verb {
        Verb::Show => operator.get(PATH)?,
        Verb::Set {
            settings,
            percent,
            shadow,
        } => {
            let patch = patch(settings, *percent, *shadow).map_err(Failure::Usage)?;
            operator.send("PATCH", PATH, &[], &Value::Object(patch).to_string())?
        }
        Verb::Shadow { sale } => {
            let mut path = format!("{PATH}/shadow");
            if let Some(sale) = sale {
                path += &format!("?sale_id={}", sale.whole(&operator)?);
            }
            let refusals = pages::all(&operator, &path, "last_at")?;
            return show_list(refusals, args.api.form(), &SHADOW_COLUMNS, |_, _| None);
        }
    };
    show(&answer.body, args.api.form(), |guards: Value| table(&guards))
}

/// The value of a guard. A bare 0 could be read as "lets nobody in".
fn limit(name: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(0) if UNLIMITED.contains(&name) => "no limit".to_owned(),
        Some(0) => "off".to_owned(),
        _ if value.is_null() => "-".to_owned(),
        _ => text(value),
    }
}

/// A stage of a guard, such as `20 for 10 %, in shadow`.
pub(super) fn describe_stage(name: &str, stage: &Value) -> String {
    if stage.is_null() {
        return "-".to_owned();
    }
    let shadow = if stage["shadow"] == true { ", in shadow" } else { "" };
    format!("{} for {} %{shadow}", limit(name, &stage["value"]), stage["percent"])
}

fn table(guards: &Value) -> String {
    let mut table = Table::new(["SETTING", "CONFIGURED", "CHANGED", "EFFECTIVE", "STAGED"]);
    for name in guards["effective"].as_object().into_iter().flat_map(Map::keys) {
        let of = |part: &str| limit(name, &guards[part][name]);
        let staged = describe_stage(name, &guards["staged"][name]);
        table.row([name.clone(), of("configured"), of("changed"), of("effective"), staged]);
    }
    let rate = match guards["rate"].as_u64() {
        Some(0) => "has no limit of its own".to_owned(),
        _ => format!("takes {} requests a second", cell(guards, "rate")),
    };
    format!(
        "{}\nthis instance {rate}, and is answering {} purchases\n",
        table.render(),
        cell(guards, "in_flight")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(words: &[&str], percent: Option<u32>) -> Result<Value, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        patch(&words, percent, percent.is_some()).map(Value::Object)
    }

    #[test]
    fn a_setting_is_a_name_and_a_number_or_configured() {
        let several = patched(
            &["address_rate=20", "shared_rate", "5", "instance_rate=configured"],
            None,
        );
        let expected = json!({"address_rate": 20, "shared_rate": 5, "instance_rate": null});
        assert_eq!(several, Ok(expected));
        for wrong in ["address_rate", "address_rate=-1", "address_rate=many", "address_rate="] {
            assert!(patched(&[wrong], None).is_err(), "{wrong}");
            assert!(patched(&[wrong], Some(10)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_percentage_makes_a_stage_of_each_value() {
        let staged = patched(&["address_rate", "50"], Some(10));
        let stage = json!({"value": 50, "percent": 10, "shadow": true});
        assert_eq!(staged, Ok(json!({"address_rate": stage})));
        assert!(patched(&["address_rate=configured"], Some(10)).is_err());
    }

    #[test]
    fn what_counts_stands_beside_what_is_configured_and_changed() {
        let guards = json!({
            "configured": {"address_rate": 0, "shared_rate": 5},
            "changed": {"address_rate": 20},
            "staged": {"address_rate": {"value": 7, "percent": 10, "shadow": true}},
            "effective": {"address_rate": 20, "shared_rate": 5},
            "rate": 0,
            "in_flight": 3,
        });
        let shown = table(&guards);
        for row in [
            "address_rate  no limit         20         20  7 for 10 %, in shadow\n",
            "shared_rate   5                 -          5  -\n",
        ] {
            assert!(shown.contains(row), "{row}: {shown}");
        }
        assert!(
            shown.ends_with("this instance has no limit of its own, and is answering 3 purchases\n"),
            "{shown}"
        );
        assert_eq!(limit("browsing_ban_above", &json!(0)), "off");
    }
}
