//! How fast a count rises: the difference between answers a few seconds apart, so that it does not jump at each one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_secs(3);

/// The last few counts.
#[derive(Debug, Default)]
pub struct Pace {
    counts: VecDeque<(Instant, u64)>,
}

impl Pace {
    /// Takes in what was counted `at`.
    pub fn note(&mut self, at: Instant, count: u64) {
        self.counts.push_back((at, count));
        while self
            .counts
            .get(1)
            .is_some_and(|(second, _)| at.duration_since(*second) >= SPAN)
        {
            self.counts.pop_front();
        }
    }

    /// How many more a second over the span; nothing until there are two answers.
    #[must_use]
    pub fn per_second(&self) -> Option<f64> {
        let (first_at, first) = self.counts.front()?;
        let (last_at, last) = self.counts.back()?;
        let seconds = last_at.duration_since(*first_at).as_secs_f64();
        // A server that was rebuilt may count fewer than before: none more, not negative ones.
        let more = last.saturating_sub(*first);
        (seconds > 0.0).then(|| f64::from(u32::try_from(more).unwrap_or(u32::MAX)) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_difference_over_the_last_seconds() {
        let (begun, mut pace) = (Instant::now(), Pace::default());
        pace.note(begun, 10);
        assert_eq!(pace.per_second(), None);
        pace.note(begun + Duration::from_secs(2), 20);
        assert_eq!(pace.per_second(), Some(5.0));
        pace.note(begun + Duration::from_secs(6), 20);
        assert_eq!(pace.per_second(), Some(0.0), "the first count is too old");
        pace.note(begun + Duration::from_secs(7), 0);
        assert_eq!(pace.per_second(), Some(0.0));
    }
}
