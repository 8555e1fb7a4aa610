//! Long work: that it goes on is seen on standard error, as a line that moves on a terminal, and as a plain line now and
//! then elsewhere. Work that is soon done shows nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the line on a terminal moves.
const MOVES: Duration = Duration::from_millis(100);
/// How often a plain line is written.
const TELLS: Duration = Duration::from_secs(5);

/// Work that goes on until this is dropped.
pub struct Progress(Shown);

enum Shown {
    Bar(ProgressBar),
    Lines(Option<(Sender<()>, JoinHandle<()>)>),
}

impl Progress {
    /// Shows that this is being done.
    #[must_use]
    pub fn of(what: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::lines(what.to_owned(), TELLS, |line| eprintln!("{line}"));
        }
        let bar = ProgressBar::new_spinner();
        // The template is fixed and good.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(MOVES);
        Self(Shown::Bar(bar))
    }

    fn lines(what: String, every: Duration, tell: impl Fn(String) + Send + 'static) -> Self {
        let (done, is_done) = mpsc::channel();
        let began = Instant::now();
        let teller = thread::spawn(move || {
            while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                tell(format!("flashsale: {what}, {} s", began.elapsed().as_secs()));
            }
        });
        Self(Shown::Lines(Some((done, teller))))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        match &mut self.0 {
            Shown::Bar(bar) => bar.finish_and_clear(),
            Shown::Lines(telling) => {
                if let Some((done, teller)) = telling.take() {
                    drop(done);
                    let _ended = teller.join();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_lasts_is_told_of_until_it_is_done() {
        let (tell, told) = mpsc::channel();
        let progress = Progress::lines("counting".to_owned(), Duration::from_millis(1), move |line| {
            let _unread = tell.send(line);
        });
        assert_eq!(told.recv().unwrap(), "flashsale: counting, 0 s");
        drop(progress);
        // Whoever told is gone: this ends.
        assert!(told.iter().all(|line| line.starts_with("flashsale: counting")));
    }

    #[test]
    fn work_that_is_soon_done_is_not_told_of() {
        let (tell, told) = mpsc::channel();
        drop(Progress::lines(
            "counting".to_owned(),
            Duration::from_secs(60),
            move |line| {
                let _unread = tell.send(line);
            },
        ));
        assert_eq!(told.iter().count(), 0);
    }
}
