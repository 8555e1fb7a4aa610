//! How far a process has taken the messages of all sales.
//!
//! Postgres passes over every deleted message that a snapshot may still see, such as that of `pg_dump`. Batches that all
//! began at the oldest message would get slower for as long as the snapshot lasts.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A process looks for what was left behind this often. Another process may have had the message meanwhile, or its
/// transaction may have lasted for longer than [`OVERLAP`].
const WHOLE_EVERY: Duration = Duration::from_secs(5);
/// How long before the end of one batch the next one begins. A message is dated when its transaction begins, and is there
/// when that ends.
const OVERLAP: Duration = Duration::from_secs(1);

/// Clones share it.
#[derive(Clone, Default)]
pub(in crate::ledger) struct Progress(Arc<Mutex<Marks>>);

#[derive(Default)]
struct Marks {
    /// When the last batch began that looked at all messages.
    whole_at: Option<Instant>,
    /// What was due before then is taken.
    until: Option<Instant>,
}

/// One batch on the way through the messages.
pub(super) struct Stride {
    progress: Progress,
    begun: Instant,
    /// It takes what was due from then on; `None`: from the oldest message on.
    from: Option<Instant>,
    /// It took all that was due before then; `None`: it left messages out.
    until: Option<Instant>,
}

impl Progress {
    /// The next batch.
    pub(super) fn next(&self, now: Instant) -> Stride {
        let marks = self.0.lock();
        let is_recent = |at: Instant| now.duration_since(at) < WHOLE_EVERY;
        Stride {
            progress: self.clone(),
            begun: now,
            from: marks.until.filter(|_| marks.whole_at.is_some_and(is_recent)),
            until: None,
        }
    }
}

impl Stride {
    /// How many seconds before its beginning a message may have become due; `None`: any number.
    pub(super) fn seconds_back(&self) -> Option<f64> {
        let from = self.from?;
        Some((self.begun.duration_since(from) + OVERLAP).as_secs_f64())
    }

    /// The last message that it took was due for so many seconds; zero if it took all that were due.
    pub(super) fn reach(&mut self, age: Option<f64>) {
        let age = age.and_then(|age| Duration::try_from_secs_f64(age).ok());
        self.until = age.and_then(|age| self.begun.checked_sub(age));
    }

    /// What it took is settled.
    pub(super) fn note(&self) {
        if self.until.is_some() {
            let mut marks = self.progress.0.lock();
            if self.from.is_none() {
                marks.whole_at = Some(self.begun);
            }
            marks.until = self.until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_begins_where_the_last_one_ended_and_now_and_then_at_the_oldest_message() {
        let (progress, start) = (Progress::default(), Instant::now() + Duration::from_secs(100));
        let second = Duration::from_secs(1);
        let back = |time: Duration| Some((time + OVERLAP).as_secs_f64());
        let mut first = progress.next(start);
        assert_eq!(first.seconds_back(), None);
        first.note();
        assert_eq!(
            progress.next(start + second).seconds_back(),
            None,
            "messages were left out"
        );

        first.reach(Some(30.0));
        first.note();
        let mut next = progress.next(start + second);
        assert_eq!(next.seconds_back(), back(31 * second));
        next.reach(Some(0.0));
        next.note();
        assert_eq!(progress.next(start + 3 * second).seconds_back(), back(2 * second));

        let mut whole = progress.next(start + WHOLE_EVERY);
        assert_eq!(whole.seconds_back(), None);
        whole.reach(Some(0.0));
        whole.note();
        assert_eq!(progress.next(start + WHOLE_EVERY).seconds_back(), back(Duration::ZERO));
    }
}
