//! `flashsale alerts`: lists guard warnings, or prints new ones as they come.

use crate::cli::Failure;
use crate::cli::shared::answer::{Column, Form, cell, show_list};
use crate::cli::shared::client::{ApiArgs, Client};
use crate::cli::shared::events::EventStream;
use crate::cli::shared::output::Reader;
use crate::cli::shared::{output, pages};
use crate::stderr;
use clap::Subcommand;
use serde_json::Value;
use std::io::Read;
use std::time::Duration;

const PATH: &str = "/v1/admin/alerts";
const STREAM: &str = "/v1/admin/alerts/stream";
/// The wait before the next attempt to open the stream.
const RETRY: Duration = Duration::from_secs(2);
/// More than any event of this stream has. A wrong address may send without end.
const EVENT_BYTES_MAX: u64 = 64 * 1024;
const COLUMNS: [Column; 6] = [
    ("ID", "id"),
    ("RAISED", "raised_at"),
    ("KIND", "kind"),
    ("ACCOUNT", "user"),
    ("DELIVERED", "delivered_at"),
    ("DETAIL", "detail"),
];

#[derive(clap::Args)]
#[command(after_help = "\
The server keeps guard warnings for thirty days, or FLASHSALE_RETENTION_WARNINGS_DAYS. With --json, `follow` prints each
on a line of its own. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale alerts list
  flashsale alerts follow --json | jq .user")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
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

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    match args.verb {
        Verb::List => show_list(pages::all(&operator, PATH, "id")?, args.api.form(), &COLUMNS, given_up),
        Verb::Follow => follow(&operator, args.api.form() == Form::Json, RETRY),
    }
}

fn given_up(alert: &Value, member: &str) -> Option<String> {
    let is_given_up = member == "delivered_at" && alert[member].is_null() && alert["given_up_at"].is_string();
    is_given_up.then(|| "given up".to_owned())
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
                match print_events(EventStream::of(stream, EVENT_BYTES_MAX), &mut last, json)? {
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
fn print_events(
    mut events: EventStream<impl Read>,
    last: &mut Option<String>,
    json: bool,
) -> Result<Option<String>, Failure> {
    loop {
        let event = match events.next_event() {
            Ok(event) => event,
            Err(trouble) => return Ok(Some(trouble)),
        };
        if !event.data.is_empty() && output::write(&line(&event.data, json))? == Reader::Gone {
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
    use crate::cli::shared::mock_server::MockServer;
    use serde_json::json;

    #[test]
    fn an_alert_that_was_given_up_is_shown_as_such() {
        for (delivered, given_up_at, shown) in [
            (json!("then"), Value::Null, None),
            (Value::Null, json!("now"), Some("given up".to_owned())),
            (Value::Null, Value::Null, None),
        ] {
            let alert = json!({"delivered_at": delivered, "given_up_at": given_up_at});
            assert_eq!(given_up(&alert, "delivered_at"), shown, "{alert}");
        }
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
        let ended = follow(&server.client(), false, Duration::ZERO);
        assert!(matches!(ended, Err(Failure::Refused { text, .. }) if text.starts_with("unauthenticated")));
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
        assert!(matches!(
            follow(&server.client(), false, Duration::ZERO),
            Err(Failure::Refused { .. })
        ));
    }
}
