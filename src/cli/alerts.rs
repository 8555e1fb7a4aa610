//! `flashsale alerts`: lists guard warnings, or prints new ones as they come.

use super::client::{Client, Connection};
use super::events::read_event;
use super::output::{Reader, Table};
use super::{Failure, answer, output, pages};
use crate::stderr;
use clap::Subcommand;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::time::Duration;

const PATH: &str = "/v1/admin/alerts";
const STREAM: &str = "/v1/admin/alerts/stream";
/// The wait before the next attempt to open the stream.
const RETRY: Duration = Duration::from_secs(2);
/// More than any event of this stream has. A wrong address may send without end.
const EVENT_BYTES_MAX: u64 = 64 * 1024;

/// Arguments of `alerts`.
#[derive(clap::Args)]
#[command(after_help = "\
The server keeps guard warnings for thirty days. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale alerts list
  flashsale alerts follow --json | jq .user")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print JSON: the whole list as one array, or each new guard warning on a line of its own.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List guard warnings, newest first, and when each was delivered to the webhook.
    #[command(after_help = "Example:\n  flashsale alerts list --json | jq '.[0]'")]
    List,
    /// Print each new guard warning as it comes, until Ctrl-C.
    #[command(after_help = "Example:\n  flashsale alerts follow --json | jq -r .user")]
    Follow,
}

/// # Errors
/// `No` when the server refuses, `Fault` when it does not answer. `follow` retries a server that has answered once.
pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator()?;
    match args.verb {
        Verb::List => {
            let alerts = pages::all(&operator, PATH, "id")?;
            if args.json {
                return output::print_json(&Value::Array(alerts));
            }
            output::print(&table(&alerts))
        }
        Verb::Follow => follow(&operator, args.json, RETRY),
    }
}

fn cell(alert: &Value, name: &str) -> String {
    match alert.get(name) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(value) => answer::scalar(value),
    }
}

fn table(alerts: &[Value]) -> String {
    let mut table = Table::new(["ID", "RAISED", "KIND", "ACCOUNT", "DELIVERED", "DETAIL"]);
    for alert in alerts {
        let delivered = match (cell(alert, "delivered_at"), cell(alert, "given_up_at")) {
            (delivered, given_up) if delivered == "-" && given_up != "-" => "given up".to_owned(),
            (delivered, _) => delivered,
        };
        table.row([
            cell(alert, "id"),
            cell(alert, "raised_at"),
            cell(alert, "kind"),
            cell(alert, "user"),
            delivered,
            cell(alert, "detail"),
        ]);
    }
    table.render()
}

/// Prints guard warnings until the server refuses or the reader of standard output is gone.
fn follow(client: &Client, json: bool, retry: Duration) -> Result<(), Failure> {
    let (mut last, mut was_there, mut is_lost) = (None, false, false);
    loop {
        let trouble = match client.stream(STREAM, last.as_deref()) {
            Ok(stream) => {
                if is_lost {
                    stderr::line("flashsale: the server answers again");
                }
                (was_there, is_lost) = (true, false);
                match print_events(&mut BufReader::new(stream), &mut last, json)? {
                    Some(trouble) => trouble,
                    None => return Ok(()),
                }
            }
            // A server that has never answered is not retried.
            Err(error) if error.may_pass() && was_there => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        // Once an outage: a log with a line every two seconds would be of no use.
        if !is_lost {
            stderr::line(format_args!("flashsale: {trouble}; trying again"));
        }
        is_lost = true;
        std::thread::sleep(retry);
    }
}

/// Prints the guard warnings of a stream, and keeps the id of the `last` event. Returns why the stream ended, or
/// `None` if the reader of standard output is gone.
fn print_events(stream: &mut impl BufRead, last: &mut Option<String>, json: bool) -> Result<Option<String>, Failure> {
    loop {
        let event = match read_event(stream, EVENT_BYTES_MAX) {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(Some("the stream has ended".to_owned())),
            Err(error) => {
                let error = output::one_line(&error.to_string());
                return Ok(Some(format!("the stream broke off: {error}")));
            }
        };
        if !event.data.is_empty() && output::tell(&line(&event.data, json))? == Reader::Gone {
            return Ok(None);
        }
        // Only after the print: the server sends an event again that was not printed.
        if event.id.is_some() {
            *last = event.id;
        }
    }
}

/// A guard warning on one line.
fn line(data: &str, json: bool) -> String {
    let alert: Value = serde_json::from_str(data).unwrap_or_default();
    if json || !alert.is_object() {
        return format!("{}\n", output::one_line(data));
    }
    let cells = ["raised_at", "kind", "user", "detail"].map(|name| output::one_line(&cell(&alert, name)));
    format!("{}\n", cells.join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;
    use serde_json::json;

    #[test]
    fn an_alert_that_was_given_up_is_shown_as_such() {
        let alerts = [
            json!({"id": 2, "kind": "browsing", "user": "b", "delivered_at": "then", "given_up_at": null}),
            json!({"id": 1, "kind": "browsing", "user": "a", "delivered_at": null, "given_up_at": "now"}),
            json!({"id": 0, "kind": "browsing", "user": "a", "delivered_at": null}),
        ];
        let shown = table(&alerts);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(
            lines[1].contains("  then  ") && lines[2].contains("  given up  ") && lines[3].contains("  -  "),
            "{shown}"
        );
    }

    #[test]
    fn an_alert_is_one_line_whatever_it_says() {
        let data = r#"{"id":1,"raised_at":"then","kind":"browsing","user":"b","detail":"a\u001b[2J\nb"}"#;
        assert_eq!(line(data, false), "then  browsing  b  a [2J b\n");
        assert_eq!(line(data, true), format!("{data}\n"));
        assert_eq!(line("no\tJSON", false), "no JSON\n");
    }

    #[test]
    fn a_stream_is_asked_for_again_after_the_last_event_until_the_server_refuses() {
        let server = MockServer::answering(&[
            (200, "retry: 2000\nid: 4\n\n"),
            (503, ""),
            (200, "id: 5\nevent: alert\ndata: {}\n\nid: 6\n"),
            (401, r#"{"code":"unauthenticated","detail":"no"}"#),
        ]);
        let client = Client::new(server.url(), Some("key".to_owned()), Duration::from_secs(2)).unwrap();
        let ended = follow(&client, false, Duration::ZERO);
        assert!(matches!(ended, Err(Failure::No(line)) if line.starts_with("unauthenticated")));
        let asked: Vec<Option<String>> = server
            .requests()
            .iter()
            .map(|request| {
                let line = request.lines().find_map(|line| line.strip_prefix("last-event-id: "));
                line.map(str::to_owned)
            })
            .collect();
        let after = |id: &str| Some(id.to_owned());
        assert_eq!(asked, [None, after("4"), after("4"), after("5")]);
    }

    #[test]
    fn a_server_that_has_never_answered_is_not_waited_for() {
        let server = MockServer::answering(&[(503, "")]);
        let client = Client::new(server.url(), Some("key".to_owned()), Duration::from_secs(2)).unwrap();
        assert!(matches!(follow(&client, false, Duration::ZERO), Err(Failure::No(_))));
    }
}
