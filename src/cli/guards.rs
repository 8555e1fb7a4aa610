//! `flashsale guards`: shows and changes the guards on shoppers' requests, as all instances follow them now.

use super::Failure;
use super::answer::{cell, show};
use super::client::ApiArgs;
use super::output::Table;
use clap::Subcommand;
use serde_json::{Map, Value};

const PATH: &str = "/v1/admin/guards";

#[derive(clap::Args)]
#[command(after_help = "\
Every instance follows a change within a second, until you take the change back. Rates are requests a second; 0 is off.
Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale guards show
  flashsale guards set address_rate=20 instance_rate=5000
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
    /// Change settings on every instance.
    #[command(after_help = "Example:\n  flashsale guards set address_rate=20 instance_rate=configured")]
    Set {
        /// NAME=NUMBER, or NAME=configured to take back a change.
        #[arg(required = true, value_name = "NAME=VALUE", value_parser = setting)]
        settings: Vec<(String, Value)>,
    },
}

fn setting(text: &str) -> Result<(String, Value), String> {
    let wrong = || "write it as NAME=NUMBER, or NAME=configured".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let value = match value {
        "configured" => Value::Null,
        number => number.parse::<u32>().map_err(|_error| wrong())?.into(),
    };
    Ok((name.to_owned(), value))
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    let answer = match &args.verb {
        Verb::Show => operator.get(PATH)?,
        Verb::Set { settings } => {
            let changes: Map<String, Value> = settings.iter().cloned().collect();
            operator.send("PATCH", PATH, &[], &Value::Object(changes).to_string())?
        }
    };
    show(&answer.body, args.api.form(), |guards: Value| table(&guards))
}

fn table(guards: &Value) -> String {
    let mut table = Table::new(["SETTING", "CONFIGURED", "CHANGED", "EFFECTIVE"]);
    for name in guards["effective"].as_object().into_iter().flat_map(Map::keys) {
        let of = |part: &str| cell(guards, &format!("{part}/{name}"));
        table.row([name.clone(), of("configured"), of("changed"), of("effective")]);
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

    #[test]
    fn a_setting_is_a_name_and_a_number_or_configured() {
        assert_eq!(
            setting("address_rate=20").unwrap(),
            ("address_rate".to_owned(), json!(20))
        );
        assert_eq!(setting("address_rate=configured").unwrap().1, Value::Null);
        for wrong in ["address_rate", "address_rate=-1", "address_rate=many", "address_rate="] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_counts_stands_beside_what_is_configured_and_changed() {
        let guards = json!({
            "configured": {"address_rate": 0, "shared_rate": 5},
            "changed": {"address_rate": 20},
            "effective": {"address_rate": 20, "shared_rate": 5},
            "rate": 0,
            "in_flight": 3,
        });
        let shown = table(&guards);
        for row in [
            "address_rate           0       20         20\n",
            "shared_rate            5        -          5\n",
        ] {
            assert!(shown.contains(row), "{row}: {shown}");
        }
        assert!(
            shown.ends_with("this instance has no limit of its own, and is answering 3 purchases\n"),
            "{shown}"
        );
    }
}
