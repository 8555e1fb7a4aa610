//! `flashsale sale watch`: follows a sale live. The server sends a sample about once a second. On a terminal the view
//! is redrawn in place, with the last minute as sparklines and keys to scroll and search. Elsewhere a line is printed
//! when something has changed. `--json` prints each sample on a line of its own.

mod frame;
mod history;
mod screen;
mod view;
mod watched;

use crate::cli::Failure;
use crate::cli::shared::answer::{self, Form, ShownSale};
use crate::cli::shared::client::{ApiArgs, CallError, Client, sale_path};
use crate::cli::shared::events::{Event, EventStream};
use crate::cli::shared::output::Reader;
use crate::http::admin::live_sample::LivePoint;
use anyhow::Context as _;
use clap::ColorChoice;
use frame::Frame;
use screen::Wish;
use serde::de::DeserializeOwned;
use std::io::{IsTerminal as _, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;
use view::{Style, View};
use watched::Watched;

/// How long one answer may take: a little longer than the server's own limit for a request of an operator.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How many attempts the first sample gets, if the failure may be temporary.
const FIRST_TRIES: u32 = 3;
/// Samples come about once a second, and at most half a minute apart if a sample takes long. A later sample is
/// overdue.
const LATE: Duration = Duration::from_secs(30);
/// Room for the sample of a sale with many items and shards.
const EVENT_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How many events may wait to be shown.
const EVENTS_MAX: usize = 16;

/// The waits between two attempts to open the stream. The wait doubles after each attempt without a sample, from
/// `shortest` to `longest`. Each `tick` the view notices silence and, on a terminal, keys.
#[derive(Clone, Copy)]
struct Pauses {
    shortest: Duration,
    longest: Duration,
    tick: Duration,
}

const PAUSES: Pauses = Pauses {
    shortest: Duration::from_secs(1),
    longest: Duration::from_secs(30),
    tick: Duration::from_secs(1),
};

/// How long a pressed key may wait.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// Follows a sale until it is closed and drained, the reader of standard output is gone, or Ctrl-C. After the first
/// sample, a server that does not answer is asked again without end.
pub fn run(api: &ApiArgs, id: &Uuid, color: ColorChoice) -> Result<(), Failure> {
    let style = match (api.form() == Form::Json, std::io::stdout().is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Redraw,
        (false, false) => Style::Lines,
    };
    let pauses = match style {
        Style::Redraw => Pauses {
            tick: KEYS_EVERY,
            ..PAUSES
        },
        Style::Lines | Style::Json => PAUSES,
    };
    let has_color = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
    };
    follow(&api.operator_within(ANSWER_LIMIT)?, id, style, has_color, pauses)
}

fn follow(client: &Client, id: &Uuid, style: Style, has_color: bool, pauses: Pauses) -> Result<(), Failure> {
    let mut view = View {
        style,
        has_color,
        pauses,
        screen: None,
        shown: String::new(),
        lost_since: None,
    };
    let mut watched = Watched::default();
    let outcome = follow_with(client, id, &mut view, &mut watched);
    view.close(&watched)?;
    outcome
}

fn follow_with(client: &Client, id: &Uuid, view: &mut View, watched: &mut Watched) -> Result<(), Failure> {
    let mut failed = 0;
    loop {
        let samples = watched.samples;
        let Some(stream) = connect(client, id, view, watched)? else {
            return Ok(());
        };
        let trouble = match stream {
            Ok(events) => match show_all(&events, view, watched)? {
                Some(trouble) => Failure::Fault(anyhow::Error::msg(trouble)),
                None => return Ok(()),
            },
            Err(error) if error.may_pass() => error.into(),
            Err(error) => return Err(error.into()),
        };
        failed = if watched.samples > samples { 0 } else { failed + 1 };
        if watched.samples == 0 && failed >= FIRST_TRIES {
            return Err(trouble);
        }
        let pause = pause_after(failed, view.pauses);
        if view.wait(&trouble.to_string(), watched, pause)? == Wish::Leave {
            return Ok(());
        }
    }
}

/// The wait after this many attempts in a row without a sample.
fn pause_after(failed: u32, pauses: Pauses) -> Duration {
    let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
    pauses.shortest.saturating_mul(doubled).min(pauses.longest)
}

/// The events of a sale, or why there is no stream of them.
type Stream = Result<Receiver<Result<Event, String>>, CallError>;

/// Opens the stream of the sale; `None` if the operator leaves meanwhile. Only the first call also reads the sale, for
/// its name.
fn connect(client: &Client, id: &Uuid, view: &mut View, watched: &mut Watched) -> Result<Option<Stream>, Failure> {
    if watched.frame.is_none() {
        match client.get(&sale_path(id, "")) {
            Ok(answer) => watched.frame = Some(Frame::of(answer::read::<ShownSale>(&answer.body)?)),
            Err(error) => return Ok(Some(Err(error))),
        }
    }
    // While a server does not answer, keys must still be read.
    let (client, path) = (client.clone(), sale_path(id, "/live"));
    let (sender, opened) = mpsc::sync_channel(1);
    thread::spawn(move || sender.send(client.stream(&path, None).map(read_on)));
    loop {
        match opened.recv_timeout(view.pauses.tick) {
            Ok(stream) => return Ok(Some(stream)),
            Err(RecvTimeoutError::Timeout) if view.attend(watched)? == Wish::Leave => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Fault(anyhow::anyhow!("the stream was dropped")));
            }
        }
    }
}

/// Reads a stream on a thread of its own, so that the view can show how long the stream has been silent.
fn read_on(stream: impl Read + Send + 'static) -> Receiver<Result<Event, String>> {
    let (sender, events) = mpsc::sync_channel(EVENTS_MAX);
    thread::spawn(move || {
        let mut stream = EventStream::of(stream, EVENT_BYTES_MAX);
        loop {
            let event = stream.next_event();
            let is_last = event.is_err();
            if sender.send(event).is_err() || is_last {
                return;
            }
        }
    });
    events
}

/// Shows the events of the stream. Returns why the stream ended, or `None` when there is nothing more to follow.
fn show_all(
    events: &Receiver<Result<Event, String>>,
    view: &mut View,
    watched: &mut Watched,
) -> Result<Option<String>, Failure> {
    let mut heard = Instant::now();
    loop {
        let event = match events.recv_timeout(view.pauses.tick) {
            Ok(Ok(event)) => event,
            Ok(Err(trouble)) => return Ok(Some(trouble)),
            // The thread that reads the stream has ended without a reason.
            Err(RecvTimeoutError::Disconnected) => return Ok(Some("the stream has ended".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                let is_late = heard.elapsed() >= LATE;
                if is_late {
                    view.silent(heard, "the stream is open but silent", watched)?;
                }
                if view.attend(watched)? == Wish::Leave {
                    return Ok(None);
                }
                continue;
            }
        };
        match event.name.as_deref() {
            Some("course") => watched.history.course(&parsed::<Vec<LivePoint>>(&event.data)?),
            Some("sample") => {
                heard = Instant::now();
                view.regained();
                let is_over = watched.take(parsed(&event.data)?);
                if view.show(&event.data, watched)? == Reader::Gone || is_over {
                    return Ok(None);
                }
            }
            // The server's keep-alive.
            _ => {}
        }
    }
}

fn parsed<T: DeserializeOwned>(data: &str) -> Result<T, Failure> {
    let value =
        serde_json::from_str(data).context("the server has sent something that is not JSON: is it flashsale?")?;
    answer::read(&value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::{MockServer, live_sample};

    const COURSE: &str = "retry: 2000\n\nevent: course\ndata: []\n\n:\n\n";

    fn event(state: &str, undrained: u64) -> String {
        let changes = [
            ("/sale/state", state.into()),
            ("/sale/undrained_events", undrained.into()),
        ];
        format!("event: sample\ndata: {}\n\n", live_sample(&changes))
    }

    /// Follows a sale with these answers. `sale`, `open` and `closed` stand for the sale and the streams.
    fn follow_mock(answers: &[(u16, &str)]) -> (Result<(), Failure>, usize) {
        let answers: Vec<(u16, String)> = answers
            .iter()
            .map(|(status, body)| match *body {
                "sale" => (*status, crate::http::admin::sales::example("open").to_string()),
                "open" => (*status, format!("{COURSE}{}", event("open", 3))),
                "closed" => (*status, event("closed", 0)),
                body => (*status, body.to_owned()),
            })
            .collect();
        let answers: Vec<(u16, &str)> = answers.iter().map(|(status, body)| (*status, body.as_str())).collect();
        let server = MockServer::answering(&answers);
        let brief = Duration::from_millis(1);
        let pauses = Pauses {
            shortest: brief,
            longest: brief,
            tick: Duration::from_millis(20),
        };
        let outcome = follow(&server.client(), &Uuid::from_u128(1), Style::Lines, false, pauses);
        (outcome, server.requests().len())
    }

    #[test]
    fn it_ends_when_the_sale_is_closed_and_drained() {
        let all = [
            COURSE,
            &event("open", 3),
            &event("closed", 1),
            &event("closed", 0),
            "event: sample\ndata: x\n\n",
        ];
        let (outcome, requests) = follow_mock(&[(200, "sale"), (200, &all.concat()), (404, "")]);
        assert!(outcome.is_ok() && requests == 2, "{outcome:?} {requests}");
    }

    #[test]
    fn it_retries_what_may_pass_and_ends_where_it_never_will() {
        let sale = (200, "sale");
        for (answers, ends_well, expected) in [
            (
                &[sale, (200, "open"), (503, ""), (429, ""), (200, "closed")][..],
                true,
                5,
            ),
            (&[(503, ""), (503, ""), sale, (200, "closed")], true, 4),
            // It never worked.
            (&[(503, "")], false, 3),
            (&[(401, "")], false, 1),
            // A stream without a sample counts as a failed attempt.
            (&[sale, (200, ":\n\n")], false, 4),
            (&[sale, (200, "open"), (404, "")], false, 3),
            (&[sale, (200, "event: sample\ndata: <html>\n\n")], false, 2),
            // The server is of an older version, without some members.
            (&[(200, r#"{"id":"x"}"#)], false, 1),
        ] {
            let (outcome, requests) = follow_mock(answers);
            assert_eq!(
                (outcome.is_ok(), requests),
                (ends_well, expected),
                "{answers:?}: {outcome:?}"
            );
        }
    }

    #[test]
    fn a_server_that_stays_away_is_asked_less_and_less_often() {
        let pauses = [0, 1, 2, 5, 6, 7, 1000].map(|failed| pause_after(failed, PAUSES).as_secs());
        assert_eq!(pauses, [1, 1, 2, 16, 30, 30, 30]);
    }
}
