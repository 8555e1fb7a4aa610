//! `flashsale dead-letters`: lists events that the ledger could not store, and settles them.

use super::client::{Client, Connection, sale_path};
use super::output::Table;
use super::{Failure, answer, output, pages, sale};
use crate::domain::dead_letter::{LetterId, Note};
use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

/// Arguments of `dead-letters`.
#[derive(clap::Args)]
#[command(after_help = "\
A dead letter is an event that Postgres could not store. Its order is revoked, if the event names the order. Notify the
shopper, rebuild the sale to free the units, then settle the dead letter here; until then it stays listed. Needs
FLASHSALE_ADMIN_KEY.

Examples:
  flashsale dead-letters list 3f2c…
  flashsale dead-letters settle 3f2c… 0:1-2 --note 'told ada, who bought again'")]
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
    /// List the dead letters of a sale, with the reason for each.
    #[command(after_help = "\
Examples:
  flashsale dead-letters list 3f2c… --json | jq -r '.[].event.user'
  flashsale dead-letters list 3f2c… --settled")]
    List {
        /// The sale's id.
        #[arg(value_name = "SALE", value_parser = sale::sale_id)]
        sale_id: Uuid,
        /// List the settled dead letters instead.
        #[arg(long)]
        settled: bool,
    },
    /// Settle a dead letter. Repeating this with the same note is no error; another note is refused.
    #[command(after_help = "Example:\n  flashsale dead-letters settle 3f2c… 0:1-2 --note 'told ada, who bought again'")]
    Settle {
        /// The sale's id.
        #[arg(value_name = "SALE", value_parser = sale::sale_id)]
        sale_id: Uuid,
        /// The position of the event, as `dead-letters list` prints it.
        #[arg(value_parser = position)]
        position: LetterId,
        /// What was done about the dead letter.
        #[arg(long, value_name = "TEXT", value_parser = note)]
        note: Note,
    },
}

fn position(text: &str) -> Result<LetterId, String> {
    text.parse().map_err(|wrong| format!("it {wrong}"))
}

fn note(text: &str) -> Result<Note, String> {
    text.parse().map_err(|wrong| format!("it {wrong}"))
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator()?;
    match &args.verb {
        Verb::List { sale_id, settled } => {
            let letters = all_pages(&operator, sale_id, *settled)?;
            if args.json {
                return output::print_json(&Value::Array(letters));
            }
            output::print(&table(&letters))
        }
        Verb::Settle {
            sale_id,
            position,
            note,
        } => {
            let body = json!({"position": position.to_string(), "note": note.as_str()}).to_string();
            let settled = operator.post(&sale_path(sale_id, "/dead-letters/settle"), &[], &body);
            let settled = settled.map_err(|error| error.with_advice("it is safe to repeat the command"))?;
            if args.json {
                return output::print_json(&settled.body);
            }
            let line = format!("{position} is dealt with: {}", note.as_str());
            output::print(&format!("{}\n", output::one_line(&line)))
        }
    }
}

fn all_pages(client: &Client, sale: &Uuid, is_settled: bool) -> Result<Vec<Value>, Failure> {
    let path = sale_path(sale, &format!("/dead-letters?settled={is_settled}"));
    pages::all(client, &path, "position")
}

fn table(letters: &[Value]) -> String {
    let mut table = Table::new([
        "POSITION", "SINCE", "USER", "SKU", "UNITS", "REVOKED", "WHY", "SETTLED", "NOTE",
    ]);
    for letter in letters {
        let shown = |value: Option<&Value>| match value {
            None | Some(Value::Null) => "-".to_owned(),
            Some(value) => answer::scalar(value),
        };
        let cell = |name: &str| shown(letter.get(name));
        let said = |name: &str| shown(letter.get("event").and_then(|event| event.get(name)));
        table.row([
            cell("position"),
            cell("created_at"),
            said("user"),
            said("sku"),
            said("quantity"),
            cell("order_id"),
            cell("reason"),
            cell("settled_at"),
            cell("note"),
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
    fn a_list_shows_also_what_says_nothing_of_its_order() {
        let letters = [
            json!({"position": "0:1-2", "reason": "no order id", "order_id": null, "event": null, "bytes": "\\x00",
                "created_at": "then", "settled_at": null, "note": null}),
            json!({"position": "0:1-3", "reason": "no\nroom", "order_id": "o", "bytes": null, "created_at": "then",
                "event": {"user": "ada", "sku": "mug", "quantity": 3}, "settled_at": "later", "note": "told her"}),
        ];
        let shown = table(&letters);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert!(lines[1].starts_with("0:1-2") && lines[1].ends_with('-'), "{shown}");
        for told in ["ada", "mug", "no room", "told her"] {
            assert!(lines[2].contains(told), "{told}: {shown}");
        }
    }

    #[test]
    fn every_page_of_a_sale_is_read() {
        let server = MockServer::answering(&[
            (200, r#"{"data":[{"position":"0:1-2"}],"has_more":true}"#),
            (200, r#"{"data":[{"position":"1:1-1"}],"has_more":false}"#),
        ]);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let letters = all_pages(&client, &Uuid::nil(), false).unwrap();
        assert_eq!(letters.len(), 2);
        let requests = server.requests();
        assert!(requests[0].contains("/dead-letters?settled=false HTTP"), "{requests:?}");
        assert!(
            requests[1].contains("&starting_after=%30%3A%31%2D%32 HTTP"),
            "{requests:?}"
        );
    }
}
