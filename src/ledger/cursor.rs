//! A cursor for queries that take rows in the order of a time, for example the messages that are due.
//!
//! Postgres passes over every deleted row that a snapshot may still see, such as that of `pg_dump`. If each query began at
//! the oldest row, queries would get slower for as long as the snapshot lasts.

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A query begins at the oldest row this often: a row with an earlier time may have been committed late, and another
/// process may have left one behind.
const WHOLE_EVERY: Duration = Duration::from_secs(5);

/// Where the queries of a process begin. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Cursor(Arc<Mutex<Option<Position>>>);

struct Position {
    /// When the last query began that took rows of all times.
    whole_at: Instant,
    time: DateTime<Utc>,
}

/// One query.
pub(super) struct CursorQuery {
    cursor: Cursor,
    asked: Instant,
    from: Option<DateTime<Utc>>,
    /// The query leaves no row of an earlier time; `None`: it may.
    to: Option<DateTime<Utc>>,
}

impl Cursor {
    pub(super) fn query(&self, now: Instant) -> CursorQuery {
        let position = self.0.lock();
        let recent = position
            .as_ref()
            .filter(|it| now.duration_since(it.whole_at) < WHOLE_EVERY);
        CursorQuery {
            cursor: self.clone(),
            asked: now,
            from: recent.map(|it| it.time),
            to: None,
        }
    }
}

impl CursorQuery {
    /// The earliest time of a row that it takes; `None`: any time.
    pub(super) const fn from(&self) -> Option<DateTime<Utc>> {
        self.from
    }

    /// It leaves no row of an earlier time.
    pub(super) const fn reach(&mut self, to: DateTime<Utc>) {
        self.to = Some(to);
    }

    /// Its rows are settled: the next query begins where this one has reached to.
    pub(super) fn advance(&self) {
        let Some(time) = self.to else {
            return;
        };
        let mut position = self.cursor.0.lock();
        let last_whole = position.as_ref().filter(|_| self.from.is_some());
        let whole_at = last_whole.map_or(self.asked, |it| it.whole_at);
        *position = Some(Position { whole_at, time });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    #[test]
    fn a_query_begins_where_the_last_one_ended_and_now_and_then_at_the_oldest_row() {
        let (cursor, start, time) = (Cursor::default(), Instant::now(), DateTime::UNIX_EPOCH);
        let mut first = cursor.query(start);
        assert_eq!(first.from(), None);
        first.advance();
        assert_eq!(cursor.query(start).from(), None, "it left out rows");

        first.reach(time);
        assert_eq!(cursor.query(start).from(), None, "its rows are not settled");
        first.advance();
        let mut next = cursor.query(start + Duration::from_secs(1));
        assert_eq!(next.from(), Some(time));
        next.reach(time + TimeDelta::seconds(9));
        next.advance();
        let last = cursor.query(start + Duration::from_secs(2));
        assert_eq!(last.from(), Some(time + TimeDelta::seconds(9)));

        let mut whole = cursor.query(start + WHOLE_EVERY);
        assert_eq!(whole.from(), None);
        whole.reach(time);
        whole.advance();
        assert_eq!(cursor.query(start + WHOLE_EVERY).from(), Some(time));
    }
}
