//! One view of a sale, as a screen for a terminal or as one line.

use super::seconds_until;
use crate::cli::answer::{ItemStats, LiveSale, LiveShard, Point};
use crate::cli::duration::countdown;
use crate::cli::output::{Table, one_line};
use chrono::{DateTime, Utc};
use std::fmt::Write as _;

/// Up to this many shards are shown as numbers, more of them as a row of blocks.
const SHARDS_AS_NUMBERS: usize = 8;
const SHARDS_A_LINE: usize = 64;
const BAR_WIDTH: u64 = 30;
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The state of a sale at one moment.
#[derive(Debug, Default)]
pub struct Frame {
    pub id: String,
    pub name: String,
    /// Its units and orders.
    pub sale: LiveSale,
    /// The time by Redis's clock.
    pub now: DateTime<Utc>,
    /// Its purchases and how they were answered.
    pub point: Point,
    /// What the view lacks, and why.
    pub troubles: Vec<(String, String)>,
    /// The sparklines of the last minute; empty if there are none.
    pub history: String,
}

impl Frame {
    /// The view on several lines.
    #[must_use]
    pub fn screen(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}  {}", one_line(&self.name), one_line(&self.id));
        let state = one_line(&self.sale.state).to_uppercase();
        let _ = writeln!(
            text,
            "{state}{}   {}",
            self.clock(),
            self.now.format("%Y-%m-%d %H:%M:%S UTC")
        );
        let _ = writeln!(
            text,
            "purchases a second {}   refused a second {}   undrained events {}",
            tenths(self.purchases()),
            tenths(self.refused()),
            self.sale.undrained_events
        );
        let Point { p50, p95, p99, .. } = self.point;
        let _ = writeln!(
            text,
            "milliseconds to answer: p50 {}  p95 {}  p99 {}\n",
            tenths(p50),
            tenths(p95),
            tenths(p99)
        );
        for (what, why) in &self.troubles {
            let _ = writeln!(text, "TROUBLE {what}: {}", one_line(why));
        }
        text.push_str(&self.items());
        for (name, units) in self.by_shard() {
            text.push_str(&shards(&name, &units));
        }
        let orders: Vec<String> = self.orders();
        let _ = writeln!(text, "\norders  {}", orders.join("  "));
        if !self.history.is_empty() {
            let _ = writeln!(text, "\n{}", self.history.trim_end());
        }
        for (kind, count) in self.sale.alerts.iter().filter(|(_, count)| **count > 0) {
            let _ = writeln!(text, "ALERT   {count} {}", kind.replace('_', " "));
        }
        text
    }

    /// The view on one line, without the time.
    #[must_use]
    pub fn line(&self) -> String {
        let sale = &self.sale;
        let mut line = format!("{} undrained {}", one_line(&sale.state), sale.undrained_events);
        if let Some(pace) = self.purchases() {
            let _ = write!(line, " purchases/s {pace:.1}");
        }
        if let Some(pace) = self.refused() {
            let _ = write!(line, " refused/s {pace:.1}");
        }
        for (reason, count) in self.point.refusals() {
            let _ = write!(line, " {} {count}", one_line(reason));
        }
        let Point { p50, p95, p99, .. } = self.point;
        if p99.is_some() {
            let _ = write!(line, " p50 {} p95 {} p99 {} ms", tenths(p50), tenths(p95), tenths(p99));
        }
        for item in &sale.items {
            let sku = one_line(&item.sku);
            let ItemStats {
                total,
                available,
                held,
                sold,
                in_transit,
                ..
            } = item;
            let _ = write!(
                line,
                " | {sku} total {total} available {available} held {held} sold {sold} in_transit {in_transit}"
            );
            let units: Vec<String> = on_shards(&sale.shards, &item.sku)
                .iter()
                .map(ToString::to_string)
                .collect();
            if !units.is_empty() {
                let _ = write!(line, " shards {}", units.join(","));
            }
        }
        if !sale.orders.is_empty() {
            let _ = write!(line, " | orders {}", self.orders().join(" "));
        }
        for (kind, count) in sale.alerts.iter().filter(|(_, count)| **count > 0) {
            let _ = write!(line, " | ALERT {count} {}", kind.replace('_', " "));
        }
        // Without the reason: its words may change each second, and each change would print a line.
        for (what, _) in &self.troubles {
            let _ = write!(line, " | TROUBLE {what}");
        }
        line
    }

    /// Orders accepted a second, if known.
    fn purchases(&self) -> Option<f64> {
        self.point.accepted.and_then(|count| self.point.per_second(count))
    }

    /// Purchases refused a second, if known.
    fn refused(&self) -> Option<f64> {
        let refused = self.point.refusals().map(|(_, count)| count).sum();
        self.point.per_second(refused)
    }

    /// Each item's free units on each shard. If the server sent no units by item, the units of all items together.
    fn by_shard(&self) -> Vec<(String, Vec<i64>)> {
        let sale = &self.sale;
        if sale.shards.iter().any(|shard| shard.items.is_none()) {
            return vec![(
                "all items".to_owned(),
                sale.shards.iter().map(|it| free(&it.units)).collect(),
            )];
        }
        let items = sale.items.iter();
        items
            .map(|item| (one_line(&item.sku), on_shards(&sale.shards, &item.sku)))
            .collect()
    }

    /// The countdown to the start of the sale, then to its end.
    fn clock(&self) -> String {
        let left = |time: Option<DateTime<Utc>>| time.and_then(|time| seconds_until(time, self.now));
        match (
            self.sale.state.as_str(),
            left(self.sale.starts_at),
            left(self.sale.ends_at),
        ) {
            ("closed", _, _) => String::new(),
            ("draft", _, _) => "   does not start before it is preloaded".to_owned(),
            ("scheduled", Some(seconds), _) => format!("   starts in {}", countdown(seconds)),
            (_, _, Some(seconds)) => format!("   ends in {}", countdown(seconds)),
            (_, _, None) if self.sale.ends_at.is_some() => "   its end has passed".to_owned(),
            _ => String::new(),
        }
    }

    fn items(&self) -> String {
        let mut table = Table::new(["SKU", "TOTAL", "AVAILABLE", "HELD", "SOLD", "IN TRANSIT", ""]);
        for item in &self.sale.items {
            let numbers = [item.total, item.available, item.held, item.sold, item.in_transit];
            let cells = std::iter::once(item.sku.clone()).chain(numbers.iter().map(ToString::to_string));
            table.row(cells.chain([bar(item)]));
        }
        table.render()
    }

    /// Orders by state: known states in the order in which an order passes them, then unknown states.
    fn orders(&self) -> Vec<String> {
        let known = ["reserved", "paid", "cancelled", "expired", "revoked"];
        let orders = &self.sale.orders;
        let first = known.iter().filter_map(|state| Some((*state, orders.get(*state)?)));
        let rest = orders.iter().map(|(state, count)| (state.as_str(), count));
        let rest = rest.filter(|(state, _)| !known.contains(state));
        first
            .chain(rest)
            .map(|(state, count)| format!("{} {count}", one_line(state)))
            .collect()
    }
}

/// `█` sold, `▒` held, `·` free. Rounding never hides sold or held units.
fn bar(item: &ItemStats) -> String {
    let units = |count: i64| u64::try_from(count).unwrap_or(0);
    let total = units(item.total).max(1);
    let width = |count: i64| match units(count) {
        0 => 0,
        count => (u128::from(count.min(total)) * u128::from(BAR_WIDTH) / u128::from(total)).max(1),
    };
    let sold = width(item.sold);
    let held = width(item.held).min(u128::from(BAR_WIDTH) - sold);
    let free = u128::from(BAR_WIDTH) - sold - held;
    let part = |symbol: &str, width: u128| symbol.repeat(usize::try_from(width).unwrap_or(0));
    format!("{}{}{}", part("█", sold), part("▒", held), part("·", free))
}

/// The value with one digit behind the point, or a dash.
fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// The free units of a shard.
fn free(units: &[i64]) -> i64 {
    units.first().copied().unwrap_or(0)
}

/// An item's free units on each shard; empty if the server sent no units by item.
fn on_shards(shards: &[LiveShard], sku: &str) -> Vec<i64> {
    let items = shards.iter().filter_map(|shard| shard.items.as_ref());
    items
        .map(|items| items.get(sku).map_or(0, |units| free(units)))
        .collect()
}

/// Free units on each shard, so that a shard that sells faster than the others stands out.
fn shards(name: &str, units: &[i64]) -> String {
    let (Some(least), Some(most)) = (units.iter().min(), units.iter().max()) else {
        return String::new();
    };
    let head = format!("  {name} on {} shards, {least} to {most}:", units.len());
    if units.len() <= SHARDS_AS_NUMBERS {
        let numbers: Vec<String> = units.iter().map(ToString::to_string).collect();
        return format!("{head} {}\n", numbers.join(" "));
    }
    let mut text = format!("{head}\n");
    for line in units.chunks(SHARDS_A_LINE) {
        let blocks: String = line
            .iter()
            .map(|count| block(units_of(*count), units_of(*most)))
            .collect();
        let _ = writeln!(text, "  {blocks}");
    }
    text
}

/// Units as a float. Rounding does not show: a block has eight steps.
fn units_of(count: i64) -> f64 {
    f64::from(i32::try_from(count).unwrap_or(i32::MAX))
}

/// A block as high as the value's share of the `most`. Zero is a dot, so that it differs from a small value.
#[must_use]
pub fn block(value: f64, most: f64) -> char {
    if value <= 0.0 || most <= 0.0 {
        return '·';
    }
    let share = value / most;
    let step = (1..8).filter(|step| share > f64::from(*step) / 8.0).count();
    BLOCKS.get(step).copied().unwrap_or('█')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::answer::read;
    use serde_json::json;

    fn frame(state: &str) -> Frame {
        let sale = json!({"state": state, "starts_at": "2026-11-27T20:00:00Z", "ends_at": "2026-11-28T20:00:00Z",
            "undrained_events": 7,
            "items": [{"sku": "a", "total": 90, "available": 50, "held": 9, "sold": 30, "in_transit": 1}],
            "shards": [{"shard": 0, "units": [30, 5, 9, 0, 1, 1], "items": {"a": [30, 5, 9, 0, 1, 1]}},
                {"shard": 1, "units": [20, 4, 21, 1, 0, 0], "items": {"a": [20, 4, 21, 1, 0, 0]}}],
            "orders": {"paid": 30, "reserved": 9, "frozen": 1},
            "alerts": {"dead_letters": 2, "refunds_due": 0}});
        let point = json!({"seconds": 2.0, "accepted": 25, "p50": 0.54, "p95": 4.0, "p99": 12.0,
            "answers": {"reserved": 25, "sold_out": 6, "sale_not_open": 1}});
        Frame {
            id: "3f2c".to_owned(),
            name: "Launch".to_owned(),
            sale: read(&sale).unwrap(),
            now: "2026-11-27T19:59:00Z".parse().unwrap(),
            point: read(&point).unwrap(),
            troubles: Vec::new(),
            history: String::new(),
        }
    }

    #[test]
    fn the_screen_shows_where_every_unit_is_and_how_shoppers_are_answered() {
        assert_eq!(
            frame("scheduled").screen(),
            "\
Launch  3f2c
SCHEDULED   starts in 00:01:00   2026-11-27 19:59:00 UTC
purchases a second 12.5   refused a second 3.5   undrained events 7
milliseconds to answer: p50 0.5  p95 4.0  p99 12.0

SKU  TOTAL  AVAILABLE  HELD  SOLD  IN TRANSIT
a       90         50     9    30           1  ██████████▒▒▒·················
  a on 2 shards, 20 to 30: 30 20

orders  reserved 9  paid 30  frozen 1
ALERT   2 dead letters
"
        );
    }

    #[test]
    fn the_line_says_the_same() {
        assert_eq!(
            frame("open").line(),
            "open undrained 7 purchases/s 12.5 refused/s 3.5 sale_not_open 1 sold_out 6 p50 0.5 p95 4.0 p99 12.0 ms \
             | a total 90 available 50 held 9 sold 30 in_transit 1 shards 30,20 \
             | orders reserved 9 paid 30 frozen 1 | ALERT 2 dead letters"
        );
    }

    #[test]
    fn what_cannot_be_told_is_said_with_its_reason() {
        let mut blind = frame("open");
        blind.troubles = vec![("Postgres does not answer".to_owned(), "after\n5 s".to_owned())];
        assert!(
            blind
                .screen()
                .contains("\nTROUBLE Postgres does not answer: after 5 s\n"),
            "{}",
            blind.screen()
        );
        // The line leaves out the reason: its words change, and each change would print a line.
        assert!(blind.line().ends_with(" | TROUBLE Postgres does not answer"));
    }

    #[test]
    fn the_clock_counts_to_what_comes_next() {
        assert_eq!(frame("open").clock(), "   ends in 1d 00:01:00");
        assert_eq!(frame("closed").clock(), "");
        // A draft does not start by itself, even after its start time.
        let mut draft = frame("draft");
        assert_eq!(draft.clock(), "   does not start before it is preloaded");
        draft.now = "2026-11-28T10:00:00Z".parse().unwrap();
        assert_eq!(draft.clock(), "   does not start before it is preloaded");
        let mut over = frame("open");
        over.now = "2026-11-28T20:00:00Z".parse().unwrap();
        assert_eq!(over.clock(), "   its end has passed");
    }

    #[test]
    fn an_empty_answer_still_makes_a_view() {
        let empty = Frame::default();
        assert!(empty.screen().contains("purchases a second -   refused a second -"));
        assert_eq!(empty.line(), " undrained 0");
    }

    #[test]
    fn of_too_many_items_the_shards_are_shown_as_a_whole() {
        let mut many = frame("open");
        for shard in &mut many.sale.shards {
            shard.items = None;
        }
        assert!(
            many.screen().contains("\n  all items on 2 shards, 20 to 30: 30 20\n"),
            "{}",
            many.screen()
        );
        assert!(!many.line().contains("shards"), "{}", many.line());
    }

    #[test]
    fn many_shards_are_blocks_with_empty_ones_visible() {
        let many: Vec<i64> = (0..66).map(|shard| i64::from(shard > 0) * 8).collect();
        let text = shards("a", &many);
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.contains("66 shards, 0 to 8") && text.contains("\n  ·███"),
            "{text}"
        );
        assert_eq!(
            (
                block(1.0, 8.0),
                block(8.0, 8.0),
                block(4.0, 8.0),
                block(-1.0, 8.0),
                block(0.0, 0.0)
            ),
            ('▁', '█', '▄', '·', '·')
        );
    }

    #[test]
    fn a_bar_is_always_as_wide_and_hides_nothing() {
        for (total, held, sold) in [
            (100, 0, 0),
            (100_000, 1, 1),
            (10, 0, 10),
            (10, 10, 10),
            (0, 0, 0),
            (5, -1, 9),
        ] {
            let item = ItemStats {
                total,
                held,
                sold,
                ..ItemStats::default()
            };
            assert_eq!(bar(&item).chars().count(), 30, "{item:?}");
        }
        let item = ItemStats {
            total: 100_000,
            held: 1,
            sold: 1,
            ..ItemStats::default()
        };
        assert!(bar(&item).starts_with("█▒·"));
    }
}
