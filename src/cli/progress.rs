//! Progress of long work on standard error, with the time that has passed. A terminal shows a bar or a spinner.
//! Elsewhere a plain line is printed every few seconds, and short work prints nothing.
//!
//! A bar needs a count and a known end, as the events and shards of a rebuild have. The server reports nothing of a
//! count of all units before it is done, nor does Postgres of a migration. There a spinner turns: a bar would claim
//! to know the share that is done.

use crate::stderr;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a spinner turns.
const MOVES: Duration = Duration::from_millis(100);
/// How often a plain line is written.
const TELLS: Duration = Duration::from_secs(5);
/// How often the stage of the work is read. After a slow read, the pause is three times as long as the read.
const LOOKS: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u32 = 3;
const SPINNER: &str = "{spinner} {msg} {elapsed}";
const BAR: &str = "{bar:30} {msg} {elapsed}";

/// How far the work is: `done` of `of` things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub done: u64,
    pub of: u64,
    /// What is counted, with its verb: `events taken in`.
    pub what: &'static str,
}

/// The last known stage; `None` before the first.
type Latest = Arc<Mutex<Option<Stage>>>;

/// Shows progress until it is dropped.
#[must_use]
pub struct Progress {
    bar: Option<ProgressBar>,
    telling: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows this work, without a count.
    pub fn of(what: &str) -> Self {
        Self::begin(what, Latest::default())
    }

    /// Shows this work, with the stage that `look` returns.
    pub fn looking(what: &str, look: impl FnMut() -> Option<Stage> + Send + 'static) -> Self {
        let stage = Latest::default();
        look_on(&stage, LOOKS, look);
        Self::begin(what, stage)
    }

    fn begin(what: &str, stage: Latest) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::lines(what.to_owned(), stage, TELLS, stderr::line);
        }
        let bar = ProgressBar::new_spinner();
        set_style(&bar, SPINNER);
        bar.set_message(what.to_owned());
        let (moved, what, mut has_bar) = (bar.clone(), what.to_owned(), false);
        let telling = tell_every(MOVES, move |_| {
            draw(&moved, &mut has_bar, &what, latest(&stage).as_ref());
            moved.tick();
        });
        Self {
            bar: Some(bar),
            telling: Some(telling),
        }
    }

    fn lines(what: String, stage: Latest, every: Duration, tell: impl Fn(String) + Send + 'static) -> Self {
        let telling = tell_every(every, move |elapsed| {
            let what = in_words(&what, latest(&stage).as_ref());
            tell(format!("flashsale: {what}, {} s", elapsed.as_secs()));
        });
        Self {
            bar: None,
            telling: Some(telling),
        }
    }
}

fn draw(bar: &ProgressBar, has_bar: &mut bool, what: &str, stage: Option<&Stage>) {
    // When everything is counted, the rest of the work has no known end.
    let counted = stage.filter(|stage| stage.done < stage.of);
    if *has_bar != counted.is_some() {
        *has_bar = counted.is_some();
        set_style(bar, if *has_bar { BAR } else { SPINNER });
    }
    if let Some(stage) = counted {
        bar.set_length(stage.of);
        bar.set_position(stage.done);
    }
    bar.set_message(in_words(what, stage));
}

fn set_style(bar: &ProgressBar, template: &str) {
    // Both templates are valid constants.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

fn latest(stage: &Latest) -> Option<Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The work and its stage, as text.
fn in_words(what: &str, stage: Option<&Stage>) -> String {
    stage.map_or_else(
        || what.to_owned(),
        |stage| format!("{what}: {} of {} {}", stage.done, stage.of, stage.what),
    )
}

/// Calls `look` again and again, for as long as the stage is shown, and keeps its last result. Nothing waits for a
/// call that is under way.
fn look_on(stage: &Latest, every: Duration, mut look: impl FnMut() -> Option<Stage> + Send + 'static) {
    let shown = Arc::downgrade(stage);
    thread::spawn(move || {
        while shown.strong_count() > 0 {
            let began = Instant::now();
            let seen = look();
            if let (Some(seen), Some(stage)) = (seen, shown.upgrade()) {
                *stage.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            }
            thread::sleep(every.max(began.elapsed() * PAUSE_FACTOR));
        }
    });
}

/// Calls `tell` with the time that has passed, again and again, until the sender is dropped.
fn tell_every(every: Duration, mut tell: impl FnMut(Duration) + Send + 'static) -> (Sender<()>, JoinHandle<()>) {
    let (done, is_done) = mpsc::channel();
    let began = Instant::now();
    let teller = thread::spawn(move || {
        while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            tell(began.elapsed());
        }
    });
    (done, teller)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, teller)) = self.telling.take() {
            drop(done);
            let _ended = teller.join();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(1);

    #[test]
    fn work_that_lasts_is_told_of_until_it_is_done() {
        let (tell, told) = mpsc::channel();
        let progress = Progress::lines("counting".to_owned(), Latest::default(), BRIEF, move |line| {
            let _unread = tell.send(line);
        });
        assert_eq!(told.recv().unwrap(), "flashsale: counting, 0 s");
        drop(progress);
        // The sender is gone, so the iteration ends.
        assert!(told.iter().all(|line| line.starts_with("flashsale: counting")));
    }

    #[test]
    fn how_far_work_is_comes_from_looking_and_what_was_last_known_stays() {
        let stage = Latest::default();
        let mut looks = 0;
        let (looked, looks_end) = mpsc::channel::<()>();
        look_on(&stage, BRIEF, move || {
            let _until_nobody_shows_it = &looked;
            looks += 1;
            (looks <= 2).then_some(Stage {
                done: looks,
                of: 2,
                what: "shards begun anew",
            })
        });
        let (tell, told) = mpsc::channel();
        let progress = Progress::lines("rebuilding".to_owned(), stage, BRIEF, move |line| {
            let _unread = tell.send(line);
        });
        assert!(
            told.iter()
                .any(|line| line == "flashsale: rebuilding: 2 of 2 shards begun anew, 0 s")
        );
        drop(progress);
        assert!(looks_end.recv().is_err(), "nobody looks any more");
    }

    #[test]
    fn what_is_counted_is_a_bar_until_all_of_it_is_done() {
        assert!([SPINNER, BAR].iter().all(|it| ProgressStyle::with_template(it).is_ok()));
        let (bar, mut has_bar) = (ProgressBar::hidden(), false);
        let mut drawn = |stage: Option<&Stage>| {
            draw(&bar, &mut has_bar, "rebuilding", stage);
            let share = has_bar.then(|| (bar.position(), bar.length()));
            (share, bar.message())
        };
        let at = |done| Stage {
            done,
            of: 9,
            what: "events taken in",
        };
        assert_eq!(drawn(None), (None, "rebuilding".to_owned()));
        let words = "rebuilding: 7 of 9 events taken in".to_owned();
        assert_eq!(drawn(Some(&at(7))), (Some((7, Some(9))), words));
        let words = "rebuilding: 9 of 9 events taken in".to_owned();
        assert_eq!(drawn(Some(&at(9))), (None, words));
    }

    #[test]
    fn work_that_is_soon_done_is_not_told_of() {
        let (tell, told) = mpsc::channel();
        let long = Duration::from_secs(60);
        drop(Progress::lines(
            "counting".to_owned(),
            Latest::default(),
            long,
            move |line| {
                let _unread = tell.send(line);
            },
        ));
        assert_eq!(told.iter().count(), 0);
    }
}
