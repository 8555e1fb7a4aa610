//! Long work: that it goes on is seen on standard error, as a bar on a terminal, and as a plain line now and then
//! elsewhere. Work that is soon done shows nothing elsewhere.
//!
//! What a server does in one request, it does not tell of before it has done it. So the bar is one of time: how much of what
//! the command waits at the most has passed. It says so beside it, and is never full while the work goes on.

use indicatif::{FormattedDuration, ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a bar moves.
const MOVES: Duration = Duration::from_millis(100);
/// How often a plain line is written.
const TELLS: Duration = Duration::from_secs(5);

/// Work that goes on until this is dropped.
#[must_use]
pub struct Progress {
    bar: Option<ProgressBar>,
    telling: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows that this is being done, and how much has passed of the time after which nobody waits for it any more.
    pub fn within(limit: Duration, what: &str) -> Self {
        Self::begin(Some(limit), what)
    }

    /// Shows that this is being done, for which somebody waits for as long as it takes: there is no bar for that.
    pub fn of(what: &str) -> Self {
        Self::begin(None, what)
    }

    fn begin(limit: Option<Duration>, what: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::lines(limit, what.to_owned(), TELLS, |line| eprintln!("{line}"));
        }
        let (bar, template) = match limit {
            Some(limit) => (
                ProgressBar::new(millis(limit)).with_prefix(FormattedDuration(limit).to_string()),
                "{msg} {bar:30} {elapsed_precise} of at most {prefix}",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}"),
        };
        // The templates are fixed and good.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        let moved = bar.clone();
        let telling = tell_every(MOVES, move |elapsed| moved.set_position(millis(elapsed)));
        Self {
            bar: Some(bar),
            telling: Some(telling),
        }
    }

    fn lines(limit: Option<Duration>, what: String, every: Duration, tell: impl Fn(String) + Send + 'static) -> Self {
        let telling = tell_every(every, move |elapsed| {
            let most = limit.map(|limit| format!(" of at most {} s", limit.as_secs()));
            let (passed, most) = (elapsed.as_secs(), most.unwrap_or_default());
            tell(format!("flashsale: {what}, {passed} s{most}"));
        });
        Self {
            bar: None,
            telling: Some(telling),
        }
    }
}

/// Tells now and then how much time has passed, until the sender is dropped.
fn tell_every(every: Duration, tell: impl Fn(Duration) + Send + 'static) -> (Sender<()>, JoinHandle<()>) {
    let (done, is_done) = mpsc::channel();
    let began = Instant::now();
    let teller = thread::spawn(move || {
        while is_done.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            tell(began.elapsed());
        }
    });
    (done, teller)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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

    #[test]
    fn work_that_lasts_is_told_of_until_it_is_done() {
        let (tell, told) = mpsc::channel();
        let limit = Some(Duration::from_secs(130));
        let progress = Progress::lines(limit, "counting".to_owned(), Duration::from_millis(1), move |line| {
            let _unread = tell.send(line);
        });
        assert_eq!(told.recv().unwrap(), "flashsale: counting, 0 s of at most 130 s");
        drop(progress);
        // Whoever told is gone: this ends.
        assert!(told.iter().all(|line| line.starts_with("flashsale: counting")));
    }

    #[test]
    fn work_that_is_soon_done_is_not_told_of() {
        let (tell, told) = mpsc::channel();
        drop(Progress::lines(
            None,
            "counting".to_owned(),
            Duration::from_secs(60),
            move |line| {
                let _unread = tell.send(line);
            },
        ));
        assert_eq!(told.iter().count(), 0);
    }
}
