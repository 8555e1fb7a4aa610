//! One view of a sale, as the lines of a screen or as one line.

use crate::cli::shared::answer::ShownSale;
use crate::cli::shared::output::one_line;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::{Alerts, ItemStats, OrderCounts};
use crate::domain::sale::SaleState;
use crate::domain::time::from_millis;
use crate::http::admin::live_sample::{LivePoint, LiveShard};
use chrono::{DateTime, TimeDelta, Utc};
use indicatif::FormattedDuration;
use std::fmt::Write as _;
use std::time::Duration;

/// Up to this many shards are shown as numbers, more of them as a row of blocks.
const SHARDS_AS_NUMBERS: usize = 8;
const SHARDS_A_LINE: usize = 64;
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The answers to a purchase that are no refusals.
const GOOD: [&str; 2] = ["reserved", "replayed"];

/// The state of a sale at one moment.
#[derive(Debug)]
pub struct Frame {
    pub id: SaleId,
    pub name: String,
    pub state: SaleState,
    pub starts_at: DateTime<Utc>,
    pub ends_at: DateTime<Utc>,
    pub items: Vec<ItemStats>,
    pub shards: Vec<LiveShard>,
    /// Events that Postgres does not have yet.
    pub undrained_events: i64,
    /// What Postgres has; `None` until it has answered.
    pub findings: Option<(OrderCounts, Alerts)>,
    /// Its purchases and how they were answered.
    pub point: LivePoint,
    /// What the view lacks, and why.
    pub troubles: Vec<(String, String)>,
}

impl Frame {
    /// The view of a sale before the first sample.
    pub fn of(sale: ShownSale) -> Self {
        Self {
            id: sale.id,
            name: sale.terms.name,
            state: sale.state,
            starts_at: sale.terms.starts_at,
            ends_at: sale.terms.ends_at,
            items: Vec::new(),
            shards: Vec::new(),
            undrained_events: 0,
            findings: None,
            point: LivePoint::default(),
            troubles: Vec::new(),
        }
    }

    /// The time by Redis's clock.
    pub fn now(&self) -> DateTime<Utc> {
        from_millis(self.point.at)
    }

    /// What the view begins with: the sale, its state and times, the rates, and the latencies.
    pub fn head(&self) -> [String; 4] {
        let state = self.state.as_str().to_uppercase();
        let LivePoint { p50, p95, p99, .. } = self.point;
        [
            format!("{}  {}", one_line(&self.name), self.id),
            format!(
                "{state}{}   {}",
                self.clock(),
                self.now().format("%Y-%m-%d %H:%M:%S UTC")
            ),
            format!(
                "purchases a second {}   refused a second {}   undrained events {}",
                tenths(purchases_a_second(&self.point)),
                tenths(refusals_a_second(&self.point)),
                self.undrained_events
            ),
            format!(
                "milliseconds to answer: p50 {}  p95 {}  p99 {}",
                tenths(p50),
                tenths(p95),
                tenths(p99)
            ),
        ]
    }

    /// What the view lacks and what needs an operator's attention, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let troubles = self.troubles.iter();
        let troubles = troubles.map(|(what, why)| format!("TROUBLE {what}: {}", one_line(why)));
        let attention = self
            .attention()
            .into_iter()
            .map(|finding| format!("ATTENTION {finding}"));
        troubles.chain(attention).collect()
    }

    /// The view on one line, without the time.
    pub fn line(&self) -> String {
        let mut line = format!("{} undrained {}", self.state, self.undrained_events);
        if let Some(pace) = purchases_a_second(&self.point) {
            let _ = write!(line, " purchases/s {pace:.1}");
        }
        if let Some(pace) = refusals_a_second(&self.point) {
            let _ = write!(line, " refused/s {pace:.1}");
        }
        for (reason, count) in refusals(&self.point) {
            let _ = write!(line, " {} {count}", one_line(reason));
        }
        let LivePoint { p50, p95, p99, .. } = self.point;
        if p99.is_some() {
            let _ = write!(line, " p50 {} p95 {} p99 {} ms", tenths(p50), tenths(p95), tenths(p99));
        }
        for item in &self.items {
            let ItemStats {
                sku,
                total,
                available,
                held,
                sold,
                in_transit,
            } = item;
            let _ = write!(
                line,
                " | {sku} total {total} available {available} held {held} sold {sold} in_transit {in_transit}"
            );
            let units: Vec<String> = on_shards(&self.shards, sku).iter().map(ToString::to_string).collect();
            if !units.is_empty() {
                let _ = write!(line, " shards {}", units.join(","));
            }
        }
        if self.findings.is_some() {
            let _ = write!(line, " | orders {}", self.orders().join(" "));
        }
        for finding in self.attention() {
            let _ = write!(line, " | ATTENTION {finding}");
        }
        // Without the reason: its words may change each second, and each change would print a line.
        for (what, _) in &self.troubles {
            let _ = write!(line, " | TROUBLE {what}");
        }
        line
    }

    /// An item's free units on each shard, as lines. If the server sent no units by item, those of all items together.
    pub fn shards_of(&self, sku: &Sku) -> Vec<String> {
        let all = &self.shards;
        if all.iter().any(|shard| shard.items.is_none()) {
            let units: Vec<i64> = all.iter().map(|shard| shard.units[0]).collect();
            return shards("all items", &units);
        }
        shards(sku.as_str(), &on_shards(all, sku))
    }

    /// The countdown to the start of the sale, then to its end.
    fn clock(&self) -> String {
        let (what, then) = match self.state {
            SaleState::Closed => return String::new(),
            // A draft does not start by itself, even after its start time.
            SaleState::Draft => return "   does not start before it is preloaded".to_owned(),
            SaleState::Scheduled if self.starts_at > self.now() => ("starts", self.starts_at),
            _ => ("ends", self.ends_at),
        };
        let left = then - self.now();
        if left <= TimeDelta::zero() {
            return "   its end has passed".to_owned();
        }
        // Rounded up: it reads 0 only when the time has come.
        let seconds = u64::try_from((left.num_milliseconds() + 999) / 1000).unwrap_or(0);
        format!("   {what} in {}", FormattedDuration(Duration::from_secs(seconds)))
    }

    /// Orders by state, in the order in which an order passes the states.
    pub fn orders(&self) -> Vec<String> {
        let Some((orders, _)) = self.findings else {
            return Vec::new();
        };
        let counts = [
            ("reserved", orders.reserved),
            ("paid", orders.paid),
            ("cancelled", orders.cancelled),
            ("expired", orders.expired),
            ("revoked", orders.revoked),
        ];
        counts.map(|(state, count)| format!("{state} {count}")).into()
    }

    /// What needs an operator's attention.
    fn attention(&self) -> Vec<String> {
        let alerts = self.findings.map(|(_, alerts)| alerts).unwrap_or_default();
        // A payment without an order belongs to no sale.
        let counts = [
            ("dead letter", "dead letters", alerts.dead_letters),
            ("refused message", "refused messages", alerts.failed_releases),
            ("lost order", "lost orders", alerts.lost_orders),
            ("refund due", "refunds due", alerts.refunds_due),
            (
                "unmatched payment, of any sale",
                "unmatched payments, of any sale",
                alerts.unmatched_payments,
            ),
        ];
        let some = counts.iter().filter(|(_, _, count)| *count > 0);
        some.map(|(one, more, count)| format!("{count} {}", if *count == 1 { one } else { more }))
            .collect()
    }
}

/// Purchases that were refused, by reason.
pub fn refusals(point: &LivePoint) -> impl Iterator<Item = (&str, u64)> {
    let all = point.answers.iter().map(|(reason, count)| (reason.as_str(), *count));
    all.filter(|(reason, count)| !GOOD.contains(reason) && *count > 0)
}

/// Purchases refused a second; `None` if the sample covers no time.
pub fn refusals_a_second(point: &LivePoint) -> Option<f64> {
    let refused: u64 = refusals(point).map(|(_, count)| count).sum();
    per_second(point, i64::try_from(refused).unwrap_or(i64::MAX))
}

/// Orders accepted a second, if known.
pub fn purchases_a_second(point: &LivePoint) -> Option<f64> {
    per_second(point, point.accepted?)
}

fn per_second(point: &LivePoint, count: i64) -> Option<f64> {
    (point.seconds > 0.0).then(|| real(count) / point.seconds)
}

/// The value with one digit behind the point, or a dash.
fn tenths(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// An item's free units on each shard; empty if the server sent no units by item.
fn on_shards(shards: &[LiveShard], sku: &Sku) -> Vec<i64> {
    let items = shards.iter().filter_map(|shard| shard.items.as_ref());
    items.map(|items| items.get(sku).map_or(0, |units| units[0])).collect()
}

/// Free units on each shard, so that a shard that sells faster than the others stands out.
fn shards(name: &str, units: &[i64]) -> Vec<String> {
    let (Some(least), Some(most)) = (units.iter().min(), units.iter().max()) else {
        return Vec::new();
    };
    let head = format!("  {name} on {} shards, {least} to {most}:", units.len());
    if units.len() <= SHARDS_AS_NUMBERS {
        let numbers: Vec<String> = units.iter().map(ToString::to_string).collect();
        return vec![format!("{head} {}", numbers.join(" "))];
    }
    let blocks = units.chunks(SHARDS_A_LINE).map(|line| {
        let blocks = line.iter().map(|count| block(real(*count), real(*most)));
        format!("  {}", blocks.collect::<String>())
    });
    std::iter::once(head).chain(blocks).collect()
}

/// A count as a float. Rounding does not show: a block has eight steps.
pub fn real(count: i64) -> f64 {
    f64::from(i32::try_from(count).unwrap_or(i32::MAX))
}

/// A block as high as the value's share of the `most`. Zero is a dot, so that it differs from a small value.
pub fn block(value: f64, most: f64) -> char {
    if value <= 0.0 || most <= 0.0 {
        return '·';
    }
    let share = value / most;
    let step = (1..8).filter(|step| share > f64::from(*step) / 8.0).count();
    BLOCKS.get(step).copied().unwrap_or('█')
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli::shared::answer::read;
    use serde_json::json;

    pub fn frame(state: &str) -> Frame {
        let mut sale = crate::http::admin::sales::example(state);
        sale["starts_at"] = json!("2026-11-27T20:00:00Z");
        sale["ends_at"] = json!("2026-11-28T20:00:00Z");
        let shard = |shard: u16, units: [i64; 6]| json!({"shard": shard, "epoch": 1, "undrained_events": 0, "units": units, "items": {"a": units}});
        Frame {
            name: "Launch".to_owned(),
            items: read(&json!([{"sku": "a", "total": 90, "available": 50, "held": 9, "sold": 30, "in_transit": 1}]))
                .unwrap(),
            shards: read(&json!([shard(0, [30, 5, 9, 0, 1, 1]), shard(1, [20, 4, 21, 1, 0, 0])])).unwrap(),
            undrained_events: 7,
            findings: Some((
                OrderCounts {
                    reserved: 9,
                    paid: 30,
                    ..OrderCounts::default()
                },
                Alerts {
                    dead_letters: 2,
                    ..Alerts::default()
                },
            )),
            point: read(
                &json!({"at": at("2026-11-27T19:59:00Z"), "seconds": 2.0, "accepted": 25,
                "answers": {"reserved": 25, "replayed": 1, "sold_out": 6, "sale_not_open": 1, "unavailable": 0},
                "p50": 0.54, "p95": 4.0, "p99": 12.0}),
            )
            .unwrap(),
            ..Frame::of(read(&sale).unwrap())
        }
    }

    fn at(time: &str) -> i64 {
        time.parse::<DateTime<Utc>>().unwrap().timestamp_millis()
    }

    #[test]
    fn the_line_says_where_every_unit_is_and_how_shoppers_are_answered() {
        assert_eq!(
            frame("open").line(),
            "open undrained 7 purchases/s 12.5 refused/s 3.5 sale_not_open 1 sold_out 6 p50 0.5 p95 4.0 p99 12.0 ms \
             | a total 90 available 50 held 9 sold 30 in_transit 1 shards 30,20 \
             | orders reserved 9 paid 30 cancelled 0 expired 0 revoked 0 | ATTENTION 2 dead letters"
        );
    }

    #[test]
    fn a_payment_without_an_order_is_of_any_sale() {
        let mut frame = frame("open");
        let counts = |dead_letters, unmatched_payments| Alerts {
            refunds_due: 1,
            dead_letters,
            unmatched_payments,
            ..Alerts::default()
        };
        for (alerts, said) in [
            (counts(0, 1), ["1 refund due", "1 unmatched payment, of any sale"]),
            (counts(0, 2), ["1 refund due", "2 unmatched payments, of any sale"]),
            (counts(1, 0), ["1 dead letter", "1 refund due"]),
        ] {
            frame.findings = frame.findings.map(|(orders, _)| (orders, alerts));
            assert_eq!(frame.attention(), said);
        }
    }

    #[test]
    fn a_trouble_has_its_reason_on_the_screen_alone() {
        let mut blind = frame("open");
        blind.troubles = vec![("Postgres does not answer".to_owned(), "after\n5 s".to_owned())];
        assert_eq!(
            blind.warnings(),
            [
                "TROUBLE Postgres does not answer: after 5 s",
                "ATTENTION 2 dead letters"
            ]
        );
        // The line leaves out the reason: its words change, and each change would print a line.
        assert!(blind.line().ends_with(" | TROUBLE Postgres does not answer"));
    }

    #[test]
    fn the_clock_counts_to_what_comes_next() {
        for (state, now, shown) in [
            ("open", "2026-11-27T19:59:00Z", "   ends in 1d 00:01:00"),
            ("scheduled", "2026-11-27T19:59:59.999Z", "   starts in 00:00:01"),
            ("closed", "2026-11-27T19:59:00Z", ""),
            // A draft does not start by itself, even after its start time.
            (
                "draft",
                "2026-11-28T10:00:00Z",
                "   does not start before it is preloaded",
            ),
            ("open", "2026-11-28T20:00:00Z", "   its end has passed"),
        ] {
            let mut frame = frame(state);
            frame.point.at = at(now);
            assert_eq!(frame.clock(), shown, "{state} at {now}");
        }
    }

    #[test]
    fn before_postgres_has_answered_nothing_is_said_of_orders() {
        let mut first = frame("open");
        (first.findings, first.point) = (None, LivePoint::default());
        assert!(first.head()[2].starts_with("purchases a second -   refused a second -"));
        assert!(!first.line().contains("orders"), "{}", first.line());
    }

    #[test]
    fn of_too_many_items_the_shards_are_shown_as_a_whole() {
        let mut many = frame("open");
        for shard in &mut many.shards {
            shard.items = None;
        }
        let sku = many.items[0].sku.clone();
        assert_eq!(many.shards_of(&sku), ["  all items on 2 shards, 20 to 30: 30 20"]);
        assert!(!many.line().contains("shards"), "{}", many.line());
    }

    #[test]
    fn many_shards_are_blocks_with_empty_ones_visible() {
        let many: Vec<i64> = (0..66).map(|shard| i64::from(shard > 0) * 8).collect();
        let lines = shards("a", &many);
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].contains("66 shards, 0 to 8") && lines[1].starts_with("  ·███"),
            "{lines:?}"
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
}
