//! `flashsale ban`: bans accounts, lists bans and lifts them.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, show, show_list, table};
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::{duration, output, pages};
use crate::domain::time;
use chrono::Utc;
use clap::Subcommand;
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/admin/bans";
const COLUMNS: [Column; 5] = [
    ("ACCOUNT", "user"),
    ("UNTIL", "banned_until"),
    ("BY", "banned_by"),
    ("SINCE", "banned_at"),
    ("REASON", "reason"),
];

#[derive(clap::Args)]
#[command(after_help = "\
A banned account cannot buy in any sale. It can still read, pay and cancel its orders. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale ban add bot-17 --reason 'twenty accounts, one card' --for 24h
  flashsale ban add bot-17 --reason 'the same again' --end-sessions
  flashsale ban lift bot-17
  flashsale ban list")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the accounts that are banned now.
    #[command(after_help = "Example:\n  flashsale ban list --json | jq -r '.[].user'")]
    List,
    /// Ban an account, or change its ban.
    #[command(after_help = "Example:\n  flashsale ban add bot-17 --reason 'twenty accounts, one card' --for 24h")]
    Add {
        /// The account: the `sub` of its tokens.
        user: String,
        /// The reason, for operators who read the list later.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// How long the ban lasts, such as 30m, 24h or 7d; default: until it is lifted.
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse_lasting, allow_hyphen_values = true)]
        lasts: Option<Duration>,
        /// Refuse all tokens of the account that were issued before now.
        #[arg(long)]
        end_sessions: bool,
    },
    /// Lift an account's ban.
    #[command(after_help = "Example:\n  flashsale ban lift bot-17")]
    Lift {
        /// The account.
        user: String,
    },
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    match &args.verb {
        Verb::List => show_list(pages::all(&operator, PATH, "user")?, args.api.form(), &COLUMNS, instead),
        Verb::Add {
            user,
            reason,
            lasts,
            end_sessions,
        } => {
            let until = lasts.map(|lasts| time::format(&(Utc::now() + lasts)));
            let body = json!({"user": user, "reason": reason, "until": until, "end_sessions": end_sessions});
            let ban = operator.post(PATH, &body.to_string())?.body;
            show(&ban, args.api.form(), |ban: Value| table(&[ban], &COLUMNS, instead))
        }
        Verb::Lift { user } => {
            let lifted = operator.post(&format!("{PATH}/lift"), &json!({"user": user}).to_string())?;
            show(&lifted.body, args.api.form(), |_: Value| {
                format!("{} may buy again\n", output::one_line(user))
            })
        }
    }
}

/// A ban without an end is for ever, and an operator is shown by name.
fn instead(ban: &Value, member: &str) -> Option<String> {
    match member {
        "banned_until" if ban[member].is_null() => Some("for ever".to_owned()),
        "banned_by" => ban["operator"].as_str().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_without_an_end_is_shown_as_one_and_an_operator_by_name() {
        let by = |operator: Value| {
            json!({"user": "bot", "banned_until": null, "banned_by": "operator", "operator": operator,
                "reason": "r"})
        };
        let shown = table(&[by(Value::Null), by(json!("ada"))], &COLUMNS, instead);
        let rows = "\nbot      for ever  operator  -      r\nbot      for ever  ada       -      r\n";
        assert!(shown.ends_with(rows), "{shown}");
    }
}
