//! The last minute of a sale as sparklines, with about one sample a second.

use super::frame::{block, purchases_a_second, real, refusals, refusals_a_second};
use crate::cli::shared::output::one_line;
use crate::http::admin::live_sample::{LivePoint, LiveSample};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

/// How many samples are kept: the widest line.
const SAMPLES_MAX: usize = 60;
/// How many samples are drawn on the narrowest terminal.
const SAMPLES_MIN: usize = 10;
/// Columns of the text beside a sparkline.
const BESIDE: usize = 48;
/// How many reasons for refusals have a count of their own; the rest share one.
const REASONS_MAX: usize = 5;

/// One sample. A value that the server did not send is drawn as a gap.
#[derive(Debug, Default)]
struct Moment {
    at: i64,
    purchases: Option<f64>,
    refused: Option<f64>,
    p99: Option<f64>,
    undrained: Option<f64>,
    free: Option<f64>,
    refusals: BTreeMap<String, u64>,
}

impl Moment {
    fn of(point: &LivePoint) -> Self {
        Self {
            at: point.at,
            purchases: purchases_a_second(point),
            refused: refusals_a_second(point),
            p99: point.p99,
            refusals: refusals(point)
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            ..Self::default()
        }
    }
}

/// One sparkline: its name, its digits behind the point, and its value in a sample.
type Kind = (&'static str, usize, fn(&Moment) -> Option<f64>);

/// The last minute.
#[derive(Debug, Default)]
pub struct History {
    moments: VecDeque<Moment>,
}

impl History {
    /// Adds the server's past samples, except those that the history already has.
    pub fn course(&mut self, points: &[LivePoint]) {
        for point in points {
            if self.moments.back().is_none_or(|newest| newest.at < point.at) {
                self.push(Moment::of(point));
            }
        }
    }

    /// Adds a sample, with the units if the server sent them.
    pub fn note(&mut self, sample: &LiveSample) {
        let sale = sample.sale.as_ref().map(|it| (&it.items, it.undrained_events));
        let units = sale.or_else(|| sample.stock.as_ref().map(|it| (&it.items, it.undrained_events)));
        // The last point of the course is the same sample, without its units.
        if self.moments.back().is_some_and(|newest| newest.at == sample.point.at) {
            self.moments.pop_back();
        }
        self.push(Moment {
            undrained: units.map(|(_, undrained)| real(undrained)),
            free: units.map(|(items, _)| real(items.iter().map(|item| item.available).sum())),
            ..Moment::of(&sample.point)
        });
    }

    fn push(&mut self, moment: Moment) {
        self.moments.push_back(moment);
        while self.moments.len() > SAMPLES_MAX {
            self.moments.pop_front();
        }
    }

    /// The sparklines, each with its newest and its highest value, and the reasons for refusals. Empty before the
    /// second sample. If the terminal has too few `columns`, only the newest samples are drawn.
    pub fn lines(&self, columns: usize) -> String {
        let mut text = String::new();
        if self.moments.len() < 2 {
            return text;
        }
        let drawn = columns.saturating_sub(BESIDE).clamp(SAMPLES_MIN, SAMPLES_MAX);
        let kinds: [Kind; 5] = [
            ("purchases a second", 0, |it| it.purchases),
            ("refusals a second", 0, |it| it.refused),
            ("p99, milliseconds", 1, |it| it.p99),
            ("undrained events", 0, |it| it.undrained),
            ("free units", 0, |it| it.free),
        ];
        for (name, digits, value) in kinds {
            let values: Vec<Option<f64>> = self.moments.iter().map(value).collect();
            let most = values.iter().flatten().copied().fold(0.0, f64::max);
            let now = values.last().copied().flatten();
            let now = now.map_or_else(|| "-".to_owned(), |now| format!("{now:.digits$}"));
            let newest = values.iter().skip(values.len().saturating_sub(drawn));
            let line: String = newest
                .map(|value| value.map_or(' ', |value| block(value, most)))
                .collect();
            let _ = writeln!(text, "{name:<18}  {line:<drawn$}  now {now}, most {most:.digits$}");
        }
        let reasons = self.reasons();
        if !reasons.is_empty() {
            let _ = writeln!(text, "refused meanwhile   {}", reasons.join("  "));
        }
        text
    }

    /// The reasons for refusals with their counts, the most frequent first.
    fn reasons(&self) -> Vec<String> {
        let mut all: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in self.moments.iter().flat_map(|it| &it.refusals) {
            *all.entry(reason).or_default() += count;
        }
        let mut all: Vec<(&str, u64)> = all.into_iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let others: u64 = all.iter().skip(REASONS_MAX).map(|(_, count)| count).sum();
        let shown = all.iter().take(REASONS_MAX);
        let mut shown: Vec<String> = shown
            .map(|(reason, count)| format!("{} {count}", one_line(reason)))
            .collect();
        if others > 0 {
            shown.push(format!("others {others}"));
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::answer::read;
    use crate::cli::shared::mock_server::live_sample;
    use serde_json::{Value, json};

    fn point(at: i64, accepted: u64, answers: Value) -> Value {
        json!({"at": at, "seconds": 1.0, "accepted": accepted, "answers": answers, "p50": null, "p95": null, "p99": 12.34})
    }

    /// A sample, with these free units if Postgres answers.
    fn sample(point: Value, free: Option<i64>) -> LiveSample {
        let mut sample = live_sample(&[("/point", point), ("/sale/undrained_events", json!(3))]);
        match free {
            Some(free) => sample["sale"]["items"][0]["available"] = json!(free),
            None => sample["sale"] = Value::Null,
        }
        read(&sample).unwrap()
    }

    fn of<'a>(lines: &'a str, name: &str) -> &'a str {
        lines.lines().find(|line| line.starts_with(name)).unwrap()
    }

    fn drawn(line: &str) -> usize {
        line.chars().filter(|it| "·▁▂▃▄▅▆▇█".contains(*it)).count()
    }

    #[test]
    fn a_minute_of_samples_is_drawn_and_no_more() {
        let mut history = History::default();
        assert_eq!(history.lines(200), "");
        for second in 0..=120_u32 {
            let refused = json!({"reserved": second, "sold_out": 120 - second});
            let point = point(i64::from(second) * 1000, u64::from(second), refused);
            history.note(&sample(point, Some(i64::from(120 - second))));
        }
        let lines = history.lines(200);
        assert_eq!(drawn(of(&lines, "purchases")), 60, "{lines}");
        assert!(of(&lines, "purchases").ends_with("█  now 120, most 120"), "{lines}");
        assert!(of(&lines, "refusals").ends_with("·  now 0, most 59"), "{lines}");
        assert!(of(&lines, "p99").ends_with("█  now 12.3, most 12.3"), "{lines}");
        assert!(
            of(&lines, "free").contains("  █") && of(&lines, "free").ends_with("·  now 0, most 59"),
            "{lines}"
        );
        assert!(of(&lines, "undrained").ends_with("now 3, most 3"), "{lines}");
        // The text beside the sparkline has room for numbers of seven digits.
        let narrow = history.lines(80);
        assert!(narrow.lines().all(|line| line.chars().count() <= 76), "{narrow}");
        assert!(narrow.contains("█  now 120, most 120"), "{narrow}");
        assert_eq!(drawn(history.lines(5).lines().next().unwrap()), 10);
    }

    #[test]
    fn the_biggest_reasons_are_numbers_and_the_rest_is_one() {
        let mut history = History::default();
        let many = json!({"reserved": 900, "sold_out": 5, "a": 9, "b": 8, "c": 7, "d": 6, "e": 4, "f": 3});
        history.note(&sample(point(1, 0, json!({"sold_out": 2})), None));
        history.note(&sample(point(2, 0, many), None));
        assert_eq!(
            of(&history.lines(200), "refused"),
            "refused meanwhile   a 9  b 8  c 7  sold_out 7  d 6  others 7"
        );
    }

    #[test]
    fn what_came_before_a_connection_is_drawn_once() {
        let mut history = History::default();
        let course = |from: i64, to: i64| -> Vec<LivePoint> {
            (from..=to).map(|at| read(&point(at, 1, json!({}))).unwrap()).collect()
        };
        history.course(&course(1, 3));
        // The server sends the last point again, now with the units. Older points have no units.
        history.note(&sample(point(3, 1, json!({})), Some(4)));
        assert_eq!(of(&history.lines(200), "purchases").matches('█').count(), 3);
        assert_eq!(drawn(of(&history.lines(200), "free")), 1);
        // The stream was lost and came back.
        history.course(&course(2, 5));
        assert_eq!(of(&history.lines(200), "purchases").matches('█').count(), 5);
        assert!(of(&history.lines(200), "free").ends_with("now -, most 4"));
    }
}
