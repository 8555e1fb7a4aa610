//! `flashsale sale watch`: a sale followed live. On a terminal the view is redrawn in place, with the last minute as
//! sparklines; elsewhere a line is
//! printed whenever something has changed; `--json` prints every answer on a line of its own.

mod frame;
mod history;
mod pace;

use super::answer::{self, Sale, Stats};
use super::client::{Answer, CallError, Client, Connection};
use super::output::Reader;
use super::{Failure, output, sale};
use chrono::{DateTime, TimeDelta, Utc};
use console::{Term, measure_text_width};
use frame::Frame;
use history::History;
use pace::Pace;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};
use uuid::Uuid;

const INTERVAL: Duration = Duration::from_millis(500);
/// How long one answer may take: what the server takes at the most for one of an operator's.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// After answers comes a pause that is so much longer than they took, so that a server that is busy is not kept so; but
/// none is longer than this.
const PAUSE_FACTOR: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often the first answer is asked for, if what keeps it may pass.
const FIRST_TRIES: usize = 3;

/// How the view is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Redraw,
    Lines,
    Json,
}

/// Follows a sale until it is closed and everything is in Postgres, nobody reads it any more, or Ctrl-C.
///
/// # Errors
/// `No` when the server refuses, `Fault` when it does not answer the first times that it is asked; later it is waited for.
pub fn run(connection: &Connection, id: &Uuid, json: bool) -> Result<(), Failure> {
    let style = match (json, std::io::stdout().is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Redraw,
        (false, false) => Style::Lines,
    };
    follow(&connection.operator_within(ANSWER_LIMIT)?, id, style, INTERVAL)
}

fn follow(client: &Client, id: &Uuid, style: Style, interval: Duration) -> Result<(), Failure> {
    let mut view = View {
        style,
        shown: String::new(),
        lost_since: None,
    };
    let (mut purchases, mut stopped, mut history) = (Pace::default(), Pace::default(), History::default());
    let mut last: Option<Frame> = None;
    let (mut accepted, mut tries) = (0, 0);
    loop {
        let begun = Instant::now();
        match poll(client, id) {
            Ok(poll) => {
                view.regained();
                // The two servers are read one after the other, so one that moves in between is seen twice: it never goes
                // down.
                accepted = accepted.max(purchases_in(&poll.stats));
                purchases.note(begun, accepted);
                stopped.note(begun, poll.stats.stopped.values().sum());
                let per_second = purchases.per_second();
                history.note(begun, (per_second, stopped.per_second()), &poll.stats);
                if style == Style::Json && output::tell(&format!("{}\n", poll.raw))? == Reader::Gone {
                    return Ok(());
                }
                let frame = Frame {
                    sale: poll.sale,
                    stats: poll.stats,
                    now: poll.now,
                    per_second,
                    history: history.lines(size().map(|(_, columns)| columns)),
                };
                if view.show(&frame)? == Reader::Gone {
                    return Ok(());
                }
                if frame.stats.state == "closed" && frame.stats.undrained_events == 0 {
                    return Ok(());
                }
                last = Some(frame);
            }
            Err(PollError::Call(error)) if error.may_pass() && (last.is_some() || tries + 1 < FIRST_TRIES) => {
                tries += 1;
                if view.lost(begun, &error, last.as_ref())? == Reader::Gone {
                    return Ok(());
                }
            }
            Err(PollError::Call(error)) => return Err(error.into()),
            Err(PollError::Unreadable(failure)) => return Err(failure),
        }
        std::thread::sleep(pause_after(begun.elapsed(), interval));
    }
}

/// How long to wait after answers that took so long, if all goes well one comes in each interval.
fn pause_after(took: Duration, interval: Duration) -> Duration {
    let long = (took * PAUSE_FACTOR).min(PAUSE_MAX);
    // What takes a quarter of the interval or less leaves the rest of it.
    long.max(interval.saturating_sub(took))
}

/// Purchases that were accepted so far. Orders of every state: one that expires or is paid changes its state and is still
/// one purchase. What waits to be drained is none of them yet.
fn purchases_in(stats: &Stats) -> u64 {
    stats.orders.values().sum::<u64>() + stats.undrained_events
}

struct Poll {
    sale: Sale,
    stats: Stats,
    raw: serde_json::Value,
    now: DateTime<Utc>,
}

enum PollError {
    Call(CallError),
    Unreadable(Failure),
}

impl From<CallError> for PollError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

fn poll(client: &Client, id: &Uuid) -> Result<Poll, PollError> {
    let Answer { body: raw, date } = client.get(&sale::path(id, "/stats"))?;
    let stats: Stats = answer::read(&raw).map_err(PollError::Unreadable)?;
    let sale: Sale = answer::read(&client.get(&sale::path(id, ""))?.body).map_err(PollError::Unreadable)?;
    // The Date header counts whole seconds only, so it is the second choice.
    let now = stats.server_time.or(sale.server_time).or(date).unwrap_or_else(Utc::now);
    Ok(Poll { sale, stats, raw, now })
}

/// What is on the screen, and for how long the server has been silent.
struct View {
    style: Style,
    shown: String,
    lost_since: Option<Instant>,
}

impl View {
    fn show(&mut self, frame: &Frame) -> Result<Reader, Failure> {
        match self.style {
            Style::Json => Ok(Reader::There),
            Style::Redraw => self.redraw(&frame.screen()),
            Style::Lines => {
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

    fn lost(&mut self, now: Instant, error: &CallError, last: Option<&Frame>) -> Result<Reader, Failure> {
        let is_new = self.lost_since.is_none();
        let since = *self.lost_since.get_or_insert(now);
        if self.style != Style::Redraw {
            // Once an outage: a log that repeats itself every half second helps nobody.
            if is_new {
                eprintln!("flashsale: {error}; trying again");
            }
            return Ok(Reader::There);
        }
        let old = last.map(Frame::screen).unwrap_or_default();
        let silent = now.duration_since(since).as_secs();
        self.redraw(&format!("{old}\nno news for {silent} s, trying again: {error}\n"))
    }

    fn regained(&mut self) {
        if self.lost_since.take().is_some() && self.style != Style::Redraw {
            eprintln!("flashsale: the server answers again");
        }
    }

    /// Writes over the old view line by line: clearing the whole screen first would flicker.
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

/// The rows and columns of the terminal, if it tells them.
fn size() -> Option<(usize, usize)> {
    let (rows, columns) = Term::stdout().size_checked()?;
    (rows > 1 && columns > 1).then(|| (rows.into(), columns.into()))
}

/// The lines of a screen, as far as they fit a terminal of so many rows and columns, if it tells them: longer ones would
/// wrap, and with more of them the terminal would scroll, so that the next view would be drawn beside this one.
fn fitted(screen: &str, size: Option<(usize, usize)>) -> Vec<String> {
    let Some((rows, columns)) = size else {
        return screen.lines().map(str::to_owned).collect();
    };
    let rows = rows - 1;
    let cut = |line: &str| {
        if measure_text_width(line) <= columns {
            return line.to_owned();
        }
        // By the columns of the terminal: a Chinese character takes two.
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

/// Time left until `then`, rounded up so that it says 00:00:00 only when it is over.
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

    const OPEN: &str = r#"{"state":"open","undrained_events":3}"#;
    const CLOSED: &str = r#"{"state":"closed","undrained_events":0}"#;

    fn follow_mock(answers: &[(u16, &str)]) -> (Result<(), Failure>, usize) {
        let server = MockServer::answering(answers);
        let client = Client::new(server.url(), None, Duration::from_secs(2)).unwrap();
        let outcome = follow(&client, &Uuid::from_u128(1), Style::Lines, Duration::from_millis(1));
        (outcome, server.requests().len())
    }

    #[test]
    fn it_ends_when_the_sale_is_closed_and_drained() {
        let not_drained = r#"{"state":"closed","undrained_events":1}"#;
        let (outcome, requests) = follow_mock(&[
            (200, OPEN),
            (200, "{}"),
            (200, not_drained),
            (200, "{}"),
            (200, CLOSED),
            (200, "{}"),
        ]);
        assert!(outcome.is_ok());
        assert_eq!(requests, 6);
    }

    #[test]
    fn it_goes_on_after_a_failed_poll() {
        let (outcome, _) = follow_mock(&[
            (200, OPEN),
            (200, "{}"),
            (503, ""),
            (429, ""),
            (200, CLOSED),
            (200, "{}"),
        ]);
        assert!(outcome.is_ok());
    }

    #[test]
    fn it_ends_soon_when_it_never_worked_and_at_once_when_it_never_will() {
        assert!(matches!(follow_mock(&[(503, "")]), (Err(Failure::No(_)), FIRST_TRIES)));
        assert!(matches!(follow_mock(&[(401, "")]), (Err(Failure::No(_)), 1)));
        // What passes in time is not the end of it.
        let (outcome, requests) = follow_mock(&[(503, ""), (503, ""), (200, CLOSED), (200, "{}")]);
        assert!(outcome.is_ok() && requests == 4, "{outcome:?} {requests}");
        assert!(matches!(
            follow_mock(&[(200, OPEN), (200, "{}"), (404, "")]),
            (Err(Failure::No(_)), 3)
        ));
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
        // Each takes two columns, and a half of one cannot be shown.
        let names = "冬季特卖  3f2c\n";
        assert_eq!(fitted(names, Some((5, 14))), ["冬季特卖  3f2c"]);
        assert_eq!(fitted(names, Some((5, 8))), ["冬季特…"]);
        assert_eq!(fitted(names, Some((5, 7))), ["冬季特…"]);
        assert_eq!(fitted(names, Some((5, 6))), ["冬季…"]);
    }

    #[test]
    fn a_slow_server_is_asked_less_often() {
        let pause = |took: u64| pause_after(Duration::from_millis(took), INTERVAL).as_millis();
        assert_eq!([0, 100, 200, 2_000, 15_000].map(pause), [500, 400, 600, 6_000, 30_000]);
    }

    #[test]
    fn purchases_that_are_not_drained_yet_are_counted() {
        let undrained = |orders: u64, undrained: u64| Stats {
            orders: [("reserved".to_owned(), orders)].into(),
            undrained_events: undrained,
            ..Stats::default()
        };
        assert_eq!(purchases_in(&undrained(2, 5)), 7);
        assert_eq!(purchases_in(&undrained(7, 0)), 7, "the drain is no purchase");
    }

    #[test]
    fn a_countdown_rounds_up() {
        let now: DateTime<Utc> = "2026-11-27T20:00:00Z".parse().unwrap();
        assert_eq!(seconds_until(now + TimeDelta::milliseconds(1), now), Some(1));
        assert_eq!(seconds_until(now + TimeDelta::milliseconds(2_000), now), Some(2));
        assert_eq!(seconds_until(now, now), None);
    }
}
