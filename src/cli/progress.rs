//! Long work: that it goes on is seen on standard error, with the time that has passed: beside a spinner on a terminal, and as a
//! plain line now and then elsewhere. Work that is soon done shows nothing elsewhere.
//!
//! What a server does in one request, it does not tell of before it has done it. So there is no bar, which would claim to know
//! how much of it is done; what else can be asked for meanwhile is shown in words.

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
/// How often it is looked how far the work is; a look that takes long is followed by a pause that is three times as long.
const LOOKS: Duration = Duration::from_secs(1);
const PAUSE_FACTOR: u32 = 3;

/// How far the work is, in words; nothing while that is not known.
type Stage = Arc<Mutex<String>>;

/// Work that goes on until this is dropped.
#[must_use]
pub struct Progress {
    bar: Option<ProgressBar>,
    telling: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Shows that this is being done.
    pub fn of(what: &str) -> Self {
        Self::begin(what, Stage::default())
    }

    /// Shows that this is being done, and how far it is by what `look` says.
    pub fn looking(what: &str, look: impl FnMut() -> Option<String> + Send + 'static) -> Self {
        let stage = Stage::default();
        look_on(&stage, LOOKS, look);
        Self::begin(what, stage)
    }

    fn begin(what: &str, stage: Stage) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::lines(what.to_owned(), stage, TELLS, |line| eprintln!("{line}"));
        }
        let bar = ProgressBar::new_spinner();
        // The template is fixed and good.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        let (moved, what) = (bar.clone(), what.to_owned());
        let telling = tell_every(MOVES, move |_| {
            moved.set_message(in_words(&what, &stage));
            moved.tick();
        });
        Self {
            bar: Some(bar),
            telling: Some(telling),
        }
    }

    fn lines(what: String, stage: Stage, every: Duration, tell: impl Fn(String) + Send + 'static) -> Self {
        let telling = tell_every(every, move |elapsed| {
            let what = in_words(&what, &stage);
            tell(format!("flashsale: {what}, {} s", elapsed.as_secs()));
        });
        Self {
            bar: None,
            telling: Some(telling),
        }
    }
}

/// What is being done, and how far that is.
fn in_words(what: &str, stage: &Stage) -> String {
    let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    if stage.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {stage}")
    }
}

/// Looks now and then how far the work is, for as long as somebody shows it; nobody waits for a look that is under way.
fn look_on(stage: &Stage, every: Duration, mut look: impl FnMut() -> Option<String> + Send + 'static) {
    let shown = Arc::downgrade(stage);
    thread::spawn(move || {
        while shown.strong_count() > 0 {
            let began = Instant::now();
            let seen = look();
            if let (Some(seen), Some(stage)) = (seen, shown.upgrade()) {
                *stage.lock().unwrap_or_else(PoisonError::into_inner) = seen;
            }
            thread::sleep(every.max(began.elapsed() * PAUSE_FACTOR));
        }
    });
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
        let progress = Progress::lines("counting".to_owned(), Stage::default(), BRIEF, move |line| {
            let _unread = tell.send(line);
        });
        assert_eq!(told.recv().unwrap(), "flashsale: counting, 0 s");
        drop(progress);
        // Whoever told is gone: this ends.
        assert!(told.iter().all(|line| line.starts_with("flashsale: counting")));
    }

    #[test]
    fn how_far_work_is_comes_from_looking_and_what_was_last_known_stays() {
        let stage = Stage::default();
        let mut looks = 0;
        let (looked, looks_end) = mpsc::channel::<()>();
        look_on(&stage, BRIEF, move || {
            let _until_nobody_shows_it = &looked;
            looks += 1;
            (looks <= 2).then(|| format!("{looks} of 2 shards"))
        });
        let (tell, told) = mpsc::channel();
        let progress = Progress::lines("rebuilding".to_owned(), stage, BRIEF, move |line| {
            let _unread = tell.send(line);
        });
        assert!(
            told.iter()
                .any(|line| line == "flashsale: rebuilding: 2 of 2 shards, 0 s")
        );
        drop(progress);
        assert!(looks_end.recv().is_err(), "nobody looks any more");
    }

    #[test]
    fn work_that_is_soon_done_is_not_told_of() {
        let (tell, told) = mpsc::channel();
        let long = Duration::from_secs(60);
        drop(Progress::lines(
            "counting".to_owned(),
            Stage::default(),
            long,
            move |line| {
                let _unread = tell.send(line);
            },
        ));
        assert_eq!(told.iter().count(), 0);
    }
}
