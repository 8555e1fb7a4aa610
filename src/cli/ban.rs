//! `flashsale ban`: bans accounts, lists bans and lifts them.

use super::client::Connection;
use super::output::Table;
use super::{Failure, duration, output, pages};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::Subcommand;
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/admin/bans";

/// Arguments of `ban`.
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
    connection: Connection,
    /// Print JSON: the server's answer, or all entries of a list as one array.
    #[arg(long, global = true)]
    json: bool,
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
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
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
    let operator = args.connection.operator()?;
    match &args.verb {
        Verb::List => {
            let bans = pages::all(&operator, PATH, "user")?;
            if args.json {
                return output::print_json(&Value::Array(bans));
            }
            output::print(&table(&bans))
        }
        Verb::Add {
            user,
            reason,
            lasts,
            end_sessions,
        } => {
            let until = lasts.map(|lasts| Utc::now() + lasts);
            let until = until.map(|until: DateTime<Utc>| until.to_rfc3339_opts(SecondsFormat::Millis, true));
            let body = json!({"user": user, "reason": reason, "until": until, "end_sessions": end_sessions});
            let ban = operator.post(PATH, &[], &body.to_string())?.body;
            if args.json {
                return output::print_json(&ban);
            }
            output::print(&table(&[ban]))
        }
        Verb::Lift { user } => {
            let lifted = operator.post(&format!("{PATH}/lift"), &[], &json!({"user": user}).to_string())?;
            if args.json {
                return output::print_json(&lifted.body);
            }
            output::print(&format!("{} may buy again\n", output::one_line(user)))
        }
    }
}

fn table(bans: &[Value]) -> String {
    let mut table = Table::new(["ACCOUNT", "UNTIL", "BY", "SINCE", "REASON"]);
    for ban in bans {
        let cell = |name: &str| ban.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
        let until = ban.get("banned_until").and_then(Value::as_str).unwrap_or("for ever");
        table.row([
            cell("user"),
            until.to_owned(),
            cell("banned_by"),
            cell("banned_at"),
            cell("reason"),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_without_an_end_is_shown_as_one() {
        let bans = [json!({"user": "bot", "banned_until": null, "banned_by": "operator", "reason": "r"})];
        let shown = table(&bans);
        assert!(
            shown.lines().nth(1).unwrap().starts_with("bot      for ever  operator"),
            "{shown}"
        );
    }
}
