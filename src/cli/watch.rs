//! `flashsale sale watch`: follows a sale live. The server sends a sample about once a second. On a terminal the view
//! is redrawn in place, with the last minute as sparklines. Elsewhere a line is printed when something has changed.
//! `--json` prints each sample on a line of its own.

mod frame;
mod history;

use super::answer::{self, LiveSale, Point, Sale, Sample};
use super::client::{CallError, Client, Connection, sale_path};
use super::events::{Event, read_event};
use super::output::Reader;
use super::{Failure, output};
use crate::stderr;
use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use console::{Term, measure_text_width};
use frame::Frame;
use history::History;
use serde::de::DeserializeOwned;
use std::io::{BufReader, IsTerminal as _, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long one answer may take: the server's own limit for a request of an operator.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How many attempts the first sample gets, if the failure may be temporary.
const FIRST_TRIES: u32 = 3;
/// Samples come about once a second, and at most half a minute apart if a sample takes long. A later sample is
/// overdue.
const LATE: Duration = Duration::from_secs(30);
/// Room for the sample of a sale with many items and shards.
const EVENT_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How many events may wait to be shown.
const EVENTS_MAX: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Redraw,
    Lines,
    Json,
}

/// The waits between two attempts to open the stream. The wait doubles after each attempt without a sample, from
/// `shortest` to `longest`. During a wait the view is redrawn each `tick`.
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

/// Follows a sale until it is closed and drained, the reader of standard output is gone, or Ctrl-C.
///
/// # Errors `No` when the server refuses, `Fault` when it does not answer the first attempts. After the first sample
/// it is retried without end.
pub fn run(connection: &Connection, id: &Uuid, json: bool) -> Result<(), Failure> {
    let style = match (json, std::io::stdout().is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Redraw,
        (false, false) => Style::Lines,
    };
    follow(&connection.operator_within(ANSWER_LIMIT)?, id, style, PAUSES)
}

fn follow(client: &Client, id: &Uuid, style: Style, pauses: Pauses) -> Result<(), Failure> {
    let mut view = View {
        style,
        shown: String::new(),
        lost_since: None,
    };
    let mut watched = Watched::default();
    let mut failed = 0;
    loop {
        let samples = watched.samples;
        let trouble = match connect(client, id, &mut watched)? {
            Ok(events) => match show_all(&events, &mut view, &mut watched, pauses.tick)? {
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
        let pause = pause_after(failed, pauses);
        if view.wait(&trouble.to_string(), &watched, pause, pauses.tick)? == Reader::Gone {
            return Ok(());
        }
    }
}

/// The wait after this many attempts in a row without a sample.
fn pause_after(failed: u32, pauses: Pauses) -> Duration {
    let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
    pauses.shortest.saturating_mul(doubled).min(pauses.longest)
}

/// Opens the stream of the sale. Only the first call also reads the sale, for its name.
fn connect(
    client: &Client,
    id: &Uuid,
    watched: &mut Watched,
) -> Result<Result<Receiver<std::io::Result<Event>>, CallError>, Failure> {
    if watched.sale.is_none() {
        match client.get(&sale_path(id, "")) {
            Ok(answer) => watched.sale = Some(answer::read(&answer.body)?),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(client.stream(&sale_path(id, "/live"), None).map(read_on))
}

/// Reads a stream on a thread of its own, so that the view can show how long the stream has been silent.
fn read_on(stream: impl Read + Send + 'static) -> Receiver<std::io::Result<Event>> {
    let (sender, events) = mpsc::sync_channel(EVENTS_MAX);
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        while let Some(event) = read_event(&mut stream, EVENT_BYTES_MAX).transpose() {
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
    events: &Receiver<std::io::Result<Event>>,
    view: &mut View,
    watched: &mut Watched,
    tick: Duration,
) -> Result<Option<String>, Failure> {
    let mut heard = Instant::now();
    loop {
        let event = match events.recv_timeout(tick) {
            Ok(Ok(event)) => event,
            Ok(Err(error)) => {
                let error = output::one_line(&error.to_string());
                return Ok(Some(format!("the stream broke off: {error}")));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Some("the stream has ended".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                let is_late = heard.elapsed() >= LATE;
                if is_late && view.silent(heard, "the stream is open but silent", watched)? == Reader::Gone {
                    return Ok(None);
                }
                continue;
            }
        };
        match event.name.as_deref() {
            Some("course") => watched.history.course(&parsed::<Vec<Point>>(&event.data)?),
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

/// What is known of the sale so far.
#[derive(Default)]
struct Watched {
    sale: Option<Sale>,
    /// The last numbers. While Postgres is away, the units in them are those of Redis alone.
    numbers: LiveSale,
    point: Point,
    troubles: Vec<(String, String)>,
    history: History,
    samples: u64,
}

impl Watched {
    /// Adds a sample; returns whether the sale is over.
    fn take(&mut self, sample: Sample) -> bool {
        self.samples += 1;
        self.troubles = troubles(&sample);
        self.history
            .note(&sample.point, sample.sale.as_ref().or(sample.stock.as_ref()));
        self.point = sample.point;
        match (sample.sale, sample.stock) {
            (Some(sale), _) => self.numbers = sale,
            (None, Some(stock)) => {
                self.numbers.items = stock.items;
                self.numbers.shards = stock.shards;
                self.numbers.undrained_events = stock.undrained_events;
                return false;
            }
            (None, None) => return false,
        }
        self.numbers.state == "closed" && self.numbers.undrained_events == 0
    }

    fn frame(&self) -> Frame {
        let sale = self.sale.as_ref();
        Frame {
            id: sale.map(|sale| sale.id.clone()).unwrap_or_default(),
            name: sale.map(|sale| sale.name.clone()).unwrap_or_default(),
            sale: self.numbers.clone(),
            now: DateTime::from_timestamp_millis(self.point.at).unwrap_or_default(),
            point: self.point.clone(),
            troubles: self.troubles.clone(),
            history: self.history.lines(size().map(|(_, columns)| columns)),
        }
    }
}

/// What a sample lacks, and why.
fn troubles(sample: &Sample) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |what: String, why: Option<&String>| {
        if let Some(why) = why {
            all.push((what, why.clone()));
        }
    };
    add("Redis does not answer".to_owned(), sample.health.redis.fault.as_ref());
    add(
        "Postgres does not answer".to_owned(),
        sample.health.postgres.fault.as_ref(),
    );
    let what = match (&sample.sale, &sample.stock) {
        (Some(_), _) => None,
        (None, Some(_)) => Some("the units are what Redis alone tells, the orders are old"),
        (None, None) => Some("units and orders are old"),
    };
    if let Some(what) = what {
        let unknown = "no reason given".to_owned();
        add(what.to_owned(), Some(sample.fault.as_ref().unwrap_or(&unknown)));
    }
    add(
        "refusals and times are of one instance alone".to_owned(),
        sample.others_fault.as_ref(),
    );
    for instance in &sample.instances {
        let why = instance.silent_seconds.map(|silent| format!("for {silent:.0} s"));
        add(format!("{} is silent", output::one_line(&instance.name)), why.as_ref());
    }
    all
}

/// The text on the screen, and since when the server has been silent.
struct View {
    style: Style,
    shown: String,
    lost_since: Option<Instant>,
}

impl View {
    fn show(&mut self, data: &str, watched: &Watched) -> Result<Reader, Failure> {
        match self.style {
            Style::Json => output::tell(&format!("{}\n", output::one_line(data))),
            Style::Redraw => self.redraw(&watched.frame().screen()),
            Style::Lines => {
                let frame = watched.frame();
                let line = frame.line();
                if line == self.shown {
                    return Ok(Reader::There);
                }
                let reader = output::tell(&format!("{} {line}\n", frame.now.format("%H:%M:%S%.3fZ")))?;
                self.shown = line;
                Ok(reader)
            }
        }
    }

    /// Waits before the next attempt. On a terminal it meanwhile shows how long there has been no news.
    fn wait(&mut self, trouble: &str, watched: &Watched, pause: Duration, tick: Duration) -> Result<Reader, Failure> {
        let began = Instant::now();
        let since = *self.lost_since.get_or_insert_with(|| {
            // Once an outage: a log with a line a second would be of no use.
            if self.style != Style::Redraw {
                stderr::line(format_args!("flashsale: {trouble}; trying again"));
            }
            began
        });
        let trouble = format!("{trouble}; trying again");
        while let Some(left) = pause.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            if self.silent(since, &trouble, watched)? == Reader::Gone {
                return Ok(Reader::Gone);
            }
            thread::sleep(left.min(tick));
        }
        Ok(Reader::There)
    }

    /// On a terminal, shows below the last view how long there has been no news.
    fn silent(&mut self, since: Instant, trouble: &str, watched: &Watched) -> Result<Reader, Failure> {
        if self.style != Style::Redraw {
            return Ok(Reader::There);
        }
        let old = if watched.samples > 0 {
            watched.frame().screen()
        } else {
            String::new()
        };
        let silent = since.elapsed().as_secs();
        self.redraw(&format!("{old}\nno news for {silent} s: {trouble}\n"))
    }

    fn regained(&mut self) {
        if self.lost_since.take().is_some() && self.style != Style::Redraw {
            stderr::line("flashsale: the server answers again");
        }
    }

    /// Overwrites the old view line by line: clearing the whole screen first would flicker.
    fn redraw(&mut self, screen: &str) -> Result<Reader, Failure> {
        let clear_once = if self.shown.is_empty() { "\x1b[2J" } else { "" };
        let lines: String = fitted(screen, size())
            .iter()
            .map(|line| format!("{line}\x1b[K\n"))
            .collect();
        let reader = output::tell(&format!("{clear_once}\x1b[H{lines}\x1b[J"))?;
        screen.clone_into(&mut self.shown);
        Ok(reader)
    }
}

/// The rows and columns of the terminal, if they are known.
fn size() -> Option<(usize, usize)> {
    let (rows, columns) = Term::stdout().size_checked()?;
    (rows > 1 && columns > 1).then(|| (rows.into(), columns.into()))
}

/// Cuts a screen to the rows and columns of the terminal, if they are known. A longer line would wrap, and more lines
/// would scroll the terminal, so that the next view would not cover this one.
fn fitted(screen: &str, size: Option<(usize, usize)>) -> Vec<String> {
    let Some((rows, columns)) = size else {
        return screen.lines().map(str::to_owned).collect();
    };
    let rows = rows - 1;
    let cut = |line: &str| {
        if measure_text_width(line) <= columns {
            return line.to_owned();
        }
        // Counted in columns of the terminal: a Chinese character takes two.
        let mut taken = 0;
        let fits = |it: &char| {
            taken += measure_text_width(it.encode_utf8(&mut [0; 4]));
            taken < columns
        };
        line.chars().take_while(fits).chain(['…']).collect()
    };
    let all = screen.lines().count();
    let mut lines: Vec<String> = screen.lines().take(rows).map(cut).collect();
    if all > rows
        && let Some(last) = lines.last_mut()
    {
        *last = cut(&format!("… and {} more lines", all - rows + 1));
    }
    lines
}

/// Seconds until `then`, rounded up; `None` once it has passed.
fn seconds_until(then: DateTime<Utc>, now: DateTime<Utc>) -> Option<u64> {
    let left = then - now;
    if left <= TimeDelta::zero() {
        return None;
    }
    u64::try_from((left.num_milliseconds() + 999) / 1_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;
    use serde_json::json;

    const OPEN: &str = "retry: 2000\n\nevent: course\ndata: []\n\n:\n\nevent: sample\n\
        data: {\"sale\":{\"state\":\"open\",\"undrained_events\":3}}\n\n";
    const CLOSED: &str = "event: sample\ndata: {\"sale\":{\"state\":\"closed\",\"undrained_events\":0}}\n\n";

    fn follow_mock(answers: &[(u16, &str)]) -> (Result<(), Failure>, usize) {
        let server = MockServer::answering(answers);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let brief = Duration::from_millis(1);
        let pauses = Pauses {
            shortest: brief,
            longest: brief,
            tick: Duration::from_millis(20),
        };
        let outcome = follow(&client, &Uuid::from_u128(1), Style::Lines, pauses);
        (outcome, server.requests().len())
    }

    #[test]
    fn it_ends_when_the_sale_is_closed_and_drained() {
        let not_drained = "event: sample\ndata: {\"sale\":{\"state\":\"closed\",\"undrained_events\":1}}\n\n";
        let both = format!("{OPEN}{not_drained}{CLOSED}{OPEN}");
        let (outcome, requests) = follow_mock(&[(200, "{}"), (200, &both), (404, "")]);
        assert!(outcome.is_ok() && requests == 2, "{outcome:?} {requests}");
    }

    #[test]
    fn it_goes_on_when_the_stream_is_lost_and_asks_for_the_name_once() {
        let (outcome, requests) = follow_mock(&[(200, "{}"), (200, OPEN), (503, ""), (429, ""), (200, CLOSED)]);
        assert!(outcome.is_ok() && requests == 5, "{outcome:?} {requests}");
    }

    #[test]
    fn it_ends_soon_when_it_never_worked_and_at_once_when_it_never_will() {
        assert!(matches!(follow_mock(&[(503, "")]), (Err(Failure::No(_)), 3)));
        assert!(matches!(follow_mock(&[(401, "")]), (Err(Failure::No(_)), 1)));
        // A stream without a sample counts as a failed attempt.
        let (outcome, requests) = follow_mock(&[(200, "{}"), (200, ":\n\n")]);
        assert!(matches!(outcome, Err(Failure::Fault(_))) && requests == 4, "{requests}");
        // Two failures are not the end if the third attempt works.
        let (outcome, requests) = follow_mock(&[(503, ""), (503, ""), (200, "{}"), (200, CLOSED)]);
        assert!(outcome.is_ok() && requests == 4, "{outcome:?} {requests}");
        assert!(matches!(
            follow_mock(&[(200, "{}"), (200, OPEN), (404, "")]),
            (Err(Failure::No(_)), 3)
        ));
        let (outcome, _) = follow_mock(&[(200, "{}"), (200, "event: sample\ndata: <html>\n\n")]);
        assert!(matches!(outcome, Err(Failure::Fault(_))), "{outcome:?}");
    }

    #[test]
    fn a_server_that_stays_away_is_asked_less_and_less_often() {
        let pauses = [0, 1, 2, 5, 6, 7, 1000].map(|failed| pause_after(failed, PAUSES).as_secs());
        assert_eq!(pauses, [1, 1, 2, 16, 30, 30, 30]);
    }

    #[test]
    fn while_postgres_is_away_the_units_are_those_of_redis() {
        let sample = |value: serde_json::Value| answer::read::<Sample>(&value).unwrap();
        let mut watched = Watched::default();
        let item = |available: i64| json!([{"sku": "a", "total": 9, "available": available}]);
        let sale = json!({"state": "closed", "items": item(9), "orders": {"paid": 2}, "undrained_events": 1});
        assert!(!watched.take(sample(json!({"sale": sale}))));
        assert!(watched.troubles.is_empty(), "{:?}", watched.troubles);
        let away = json!({"sale": null, "stock": {"items": item(4), "undrained_events": 0}, "fault": "no answer in time",
            "health": {"redis": {"fault": null}, "postgres": {"fault": "refused"}}, "others_fault": "the same",
            "instances": [{"name": "a:1", "silent_seconds": null}, {"name": "b:1", "silent_seconds": 4.2}]});
        // The state of Postgres is unknown, so the sale is not over.
        assert!(!watched.take(sample(away)));
        let line = watched.frame().line();
        for part in [
            "closed undrained 0",
            "available 4",
            "orders paid 2",
            "| TROUBLE Postgres does not answer | TROUBLE the units are what Redis alone tells, the orders are old",
            "| TROUBLE refusals and times are of one instance alone | TROUBLE b:1 is silent",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        assert!(!line.contains("a:1"), "{line}");
        assert!(!watched.take(sample(json!({"fault": "nothing answers"}))));
        assert!(
            watched
                .frame()
                .screen()
                .contains("TROUBLE units and orders are old: nothing answers")
        );
        let over = json!({"state": "closed", "items": item(4), "undrained_events": 0});
        assert!(watched.take(sample(json!({"sale": over}))));
    }

    #[test]
    fn what_is_drawn_fits_the_terminal() {
        let screen = "Launch\n\nSKU  TOTAL  ██████\nlast\n";
        let whole = ["Launch", "", "SKU  TOTAL  ██████", "last"];
        for size in [None, Some((5, 18)), Some((24, 80))] {
            assert_eq!(fitted(screen, size), whole, "{size:?}");
        }
        assert_eq!(fitted(screen, Some((24, 14))), ["Launch", "", "SKU  TOTAL  █…", "last"]);
        assert_eq!(fitted(screen, Some((4, 80))), ["Launch", "", "… and 2 more lines"]);
        assert_eq!(fitted(screen, Some((2, 6))), ["… and…"]);
        // Each character takes two columns, and half a character cannot be shown.
        let names = "冬季特卖  3f2c\n";
        assert_eq!(fitted(names, Some((5, 14))), ["冬季特卖  3f2c"]);
        assert_eq!(fitted(names, Some((5, 8))), ["冬季特…"]);
        assert_eq!(fitted(names, Some((5, 7))), ["冬季特…"]);
        assert_eq!(fitted(names, Some((5, 6))), ["冬季…"]);
    }

    #[test]
    fn a_countdown_rounds_up() {
        let now: DateTime<Utc> = "2026-11-27T20:00:00Z".parse().unwrap();
        assert_eq!(seconds_until(now + TimeDelta::milliseconds(1), now), Some(1));
        assert_eq!(seconds_until(now + TimeDelta::milliseconds(2_000), now), Some(2));
        assert_eq!(seconds_until(now, now), None);
    }
}
