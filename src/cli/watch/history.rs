//! The last minute of a sale, a sample a second, as sparklines.

use super::frame::block;
use crate::cli::answer::Stats;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How far apart samples are.
const STEP: Duration = Duration::from_secs(1);
/// How many are kept, and so how wide a line is.
const SAMPLES_MAX: usize = 60;
/// How many are drawn on the narrowest terminal, and how wide is what stands beside them.
const SAMPLES_MIN: usize = 10;
const BESIDE: usize = 48;

/// One moment.
#[derive(Debug, Default, Clone, Copy)]
struct Sample {
    purchases: f64,
    stopped: f64,
    undrained: f64,
    free: f64,
}

/// What is drawn: its name, and what it was.
type Kind = (&'static str, fn(&Sample) -> f64);

/// The last minute.
#[derive(Debug, Default)]
pub struct History {
    newest: Option<Instant>,
    samples: VecDeque<Sample>,
}

impl History {
    /// Takes in what was seen `at`: as a new sample, or in place of the newest while that is no step old.
    pub fn note(&mut self, at: Instant, (purchases, stopped): (Option<f64>, Option<f64>), stats: &Stats) {
        let is_new = self.newest.is_none_or(|newest| at.duration_since(newest) >= STEP);
        if is_new {
            self.newest = Some(at);
        } else {
            self.samples.pop_back();
        }
        self.samples.push_back(Sample {
            purchases: purchases.unwrap_or_default(),
            stopped: stopped.unwrap_or_default(),
            undrained: real(i64::try_from(stats.undrained_events).unwrap_or(i64::MAX)),
            free: real(stats.items.iter().map(|item| item.available).sum()),
        });
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// The sparklines, each with what it is now and what it was at most; nothing before there are two samples. On a
    /// terminal of less `columns` than they take, only the newest are drawn.
    #[must_use]
    pub fn lines(&self, columns: Option<usize>) -> String {
        let mut text = String::new();
        if self.samples.len() < 2 {
            return text;
        }
        let drawn = columns.map_or(SAMPLES_MAX, |columns| {
            columns.saturating_sub(BESIDE).clamp(SAMPLES_MIN, SAMPLES_MAX)
        });
        let kinds: [Kind; 4] = [
            ("purchases a second", |it| it.purchases),
            ("stopped a second", |it| it.stopped),
            ("undrained events", |it| it.undrained),
            ("free units", |it| it.free),
        ];
        for (name, value) in kinds {
            let values: Vec<f64> = self.samples.iter().map(value).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            let now = values.last().copied().unwrap_or_default();
            let newest = values.iter().skip(values.len().saturating_sub(drawn));
            let line: String = newest.map(|value| block(*value, most)).collect();
            let _ = writeln!(text, "{name:<18}  {line:<drawn$}  now {now:.0}, most {most:.0}");
        }
        text
    }
}

/// A count, for a line that is eight steps high.
fn real(count: i64) -> f64 {
    f64::from(i32::try_from(count).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::answer::read;
    use serde_json::json;

    fn stats(free: i64) -> Stats {
        read(&json!({"undrained_events": 3, "items": [{"sku": "a", "available": free}]})).unwrap()
    }

    #[test]
    fn a_sample_a_second_is_kept_for_a_minute() {
        let (begun, mut history) = (Instant::now(), History::default());
        assert_eq!(history.lines(None), "");
        for half in 0..=240 {
            let pace = (Some(f64::from(half)), None);
            history.note(
                begun + Duration::from_millis(500) * half,
                pace,
                &stats(i64::from(240 - half)),
            );
        }
        let lines = history.lines(None);
        let of = |name: &str| lines.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let drawn = |line: &str| line.chars().filter(|it| "·▁▂▃▄▅▆▇█".contains(*it)).count();
        assert_eq!(drawn(&of("purchases")), 60, "{lines}");
        assert!(of("purchases").ends_with("█  now 240, most 240"), "{lines}");
        assert!(
            of("free").contains("  █") && of("free").ends_with("·  now 0, most 117"),
            "{lines}"
        );
        assert!(
            of("undrained").ends_with("now 3, most 3") && of("stopped").ends_with("now 0, most 0"),
            "{lines}"
        );
        // With six figures beside them.
        let narrow = history.lines(Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 74), "{narrow}");
        assert!(narrow.contains("█  now 240, most 240"), "{narrow}");
        assert_eq!(drawn(history.lines(Some(5)).lines().next().unwrap()), 10);
    }

    #[test]
    fn what_comes_within_a_second_replaces_what_came_before() {
        let (begun, mut history) = (Instant::now(), History::default());
        for (millis, free) in [(0, 9), (400, 8), (900, 7), (1_000, 6)] {
            history.note(begun + Duration::from_millis(millis), (None, None), &stats(free));
        }
        assert!(
            history.lines(None).ends_with("now 6, most 7\n"),
            "{}",
            history.lines(None)
        );
    }
}
