//! Progress of long work on standard error, with the time that has passed. A terminal shows a bar or a spinner.
//! Elsewhere a plain line is printed every few seconds, and short work prints nothing.
//!
//! A bar needs a count and a known end, as the events and shards of a rebuild have. The server reports nothing of a
//! count of all units before it is done, nor does Postgres of a migration. There a spinner turns: a bar would claim
//! to know the share that is done.

use crate::stderr;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a spinner turns.
const TURN_EVERY: Duration = Duration::from_millis(100);
/// How often a plain line is written.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often the stage of the work is read. After a slow read, the pause is three times as long as the read.
const READ_EVERY: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u32 = 3;
const SPINNER: &str = "{spinner} {msg} {elapsed}";
const BAR: &str = "{bar:30} {msg} {elapsed}";

/// How far the work is: `done` of `of` things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkStage {
    pub done: u64,
    pub of: u64,
    /// What is counted, with its verb: `events drained`.
    pub what: &'static str,
}

/// Shows progress until it is dropped.
#[must_use]
pub struct Progress {
    /// Hidden if standard error is no terminal. Then it only keeps the text of the lines.
    bar: ProgressBar,
    lines: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows this work, without a count.
    pub fn of(work: &'static str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(work);
        if bar.is_hidden() {
            return Self::lines(bar, LINE_EVERY, stderr::line);
        }
        set_style(&bar, SPINNER);
        bar.enable_steady_tick(TURN_EVERY);
        Self { bar, lines: None }
    }

    /// Shows this work, with the stage that `read` returns.
    pub fn reading(work: &'static str, read: impl FnMut() -> Option<WorkStage> + Send + 'static) -> Self {
        let progress = Self::of(work);
        follow(progress.bar.clone(), work, READ_EVERY, read);
        progress
    }

    /// Prints the text of the bar again and again.
    fn lines(bar: ProgressBar, every: Duration, print: impl Fn(String) + Send + 'static) -> Self {
        let (done, is_done) = mpsc::channel();
        let shown = bar.clone();
        let printing = thread::spawn(move || {
            while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let seconds = shown.elapsed().as_secs();
                print(format!("flashsale: {}, {seconds} s", shown.message()));
            }
        });
        let lines = Some((done, printing));
        Self { bar, lines }
    }
}

/// Shows the stage of the work on the bar until the bar is finished. Nothing waits for a read that is under way.
fn follow(
    bar: ProgressBar,
    work: &'static str,
    every: Duration,
    mut read: impl FnMut() -> Option<WorkStage> + Send + 'static,
) {
    thread::spawn(move || {
        while !bar.is_finished() {
            let began = Instant::now();
            if let Some(stage) = read() {
                show(&bar, work, &stage);
            }
            thread::sleep(every.max(began.elapsed() * PAUSE_FACTOR));
        }
    });
}

fn show(bar: &ProgressBar, work: &str, stage: &WorkStage) {
    let WorkStage { done, of, what } = stage;
    // When everything is counted, the rest of the work has no known end.
    set_style(bar, if done < of { BAR } else { SPINNER });
    bar.set_length(*of);
    bar.set_position(*done);
    bar.set_message(format!("{work}: {done} of {of} {what}"));
}

fn set_style(bar: &ProgressBar, template: &str) {
    // Both templates are valid constants.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, printing)) = self.lines.take() {
            drop(done);
            let _ended = printing.join();
        }
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(1);

    #[test]
    fn the_lines_of_long_work_have_its_last_stage_and_end_with_it() {
        assert!([SPINNER, BAR].iter().all(|it| ProgressStyle::with_template(it).is_ok()));
        let (sender, lines) = mpsc::channel();
        let bar = ProgressBar::hidden().with_message("rebuilding");
        let progress = Progress::lines(bar.clone(), BRIEF, move |line| {
            let _unread = sender.send(line);
        });
        assert_eq!(lines.recv().unwrap(), "flashsale: rebuilding, 0 s");
        let mut reads = 0;
        let (kept, reads_end) = mpsc::channel::<()>();
        follow(bar, "rebuilding", BRIEF, move || {
            let _while_it_reads = &kept;
            reads += 1;
            let (done, of, what) = (reads, 2, "shards begun");
            (reads <= 2).then_some(WorkStage { done, of, what })
        });
        let last = "flashsale: rebuilding: 2 of 2 shards begun, 0 s";
        assert!(lines.iter().any(|line| line == last));
        drop(progress);
        assert!(lines.iter().all(|line| line == last));
        assert!(reads_end.recv().is_err(), "nothing is read any more");
    }

    #[test]
    fn short_work_prints_no_line() {
        let (sender, lines) = mpsc::channel();
        drop(Progress::lines(
            ProgressBar::hidden(),
            Duration::from_secs(60),
            move |line| {
                let _unread = sender.send(line);
            },
        ));
        assert_eq!(lines.iter().count(), 0);
    }
}
