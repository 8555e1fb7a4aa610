//! The report of a whole sale: what was sold, how its purchases were answered, and when.

use super::SaleState;
use super::fairness::FairnessReport;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::names::names;
use crate::domain::operator::report::OrderCounts;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most steps of a course.
pub const STEPS_MAX: i64 = 600;

/// A part of the report as a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportTable {
    /// A row for each step of the course.
    #[default]
    Course,
    /// A row for each item.
    Items,
    /// A row for each number of the whole sale.
    Totals,
}

names! { ReportTable as "table of a report": Course "course", Items "items", Totals "totals" }

/// A whole sale, during it and after it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SaleReport {
    /// The sale.
    pub sale_id: SaleId,
    /// The sale's name.
    pub name: String,
    /// The sale's state at `server_time`.
    pub state: SaleState,
    /// The clock of Redis.
    #[serde(serialize_with = "time::serialize")]
    pub server_time: DateTime<Utc>,
    /// When the sale starts to sell.
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    /// When the sale stops selling.
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    /// When an operator closed it before its end; absent otherwise.
    #[serde(serialize_with = "time::serialize_option", skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<DateTime<Utc>>,
    /// The items.
    pub items: Vec<ItemReport>,
    /// Orders in Postgres, by state.
    pub orders: OrderCounts,
    /// Of the orders that were paid, cancelled or expired, the share that was not paid; null without such orders.
    pub unpaid_share: Option<f64>,
    /// Purchases by their answer: `reserved`, `replayed`, or the code of a problem.
    pub answers: BTreeMap<String, u64>,
    /// Requests that each guard has refused.
    pub stopped: BTreeMap<String, i64>,
    /// Who got the units.
    pub fairness: FairnessReport,
    /// Requests that each guard in shadow would have refused.
    pub would_stop: BTreeMap<String, i64>,
    /// How long the answers to purchases took.
    pub latency_ms: Latency,
    /// How many seconds a step of the course lasts.
    pub step_seconds: i64,
    /// The course of the sale, at most 600 steps. Steps without a purchase are left out.
    pub course: Vec<CourseStep>,
}

/// What became of one item.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ItemReport {
    /// The item.
    pub sku: Sku,
    /// The item's name.
    pub name: String,
    /// Units that the sale owns.
    pub total: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// Units of reserved orders.
    pub held: i64,
    /// The money of paid orders, in the currency's minor unit.
    pub money_minor: i64,
    /// The currency, in ISO 4217.
    pub currency: String,
    /// Seconds from the sale's start to the purchase that took the last free unit for the first time; null if none did.
    pub sold_out_after_seconds: Option<f64>,
    /// Of its orders that were paid, cancelled or expired, the share that was not paid; null without such orders.
    pub unpaid_share: Option<f64>,
}

/// Durations that these shares of the answers took at most, in milliseconds; null without answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Latency {
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// One step of the course.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CourseStep {
    /// When the step began.
    #[serde(serialize_with = "time::serialize")]
    pub at: DateTime<Utc>,
    /// Purchases by their answer in this step.
    pub answers: BTreeMap<String, u64>,
    /// How long these answers took.
    pub latency_ms: Latency,
}

/// The share of ended orders that was not paid; `None` without such orders.
pub fn unpaid_share(paid: i64, unpaid: i64) -> Option<f64> {
    let ended = paid + unpaid;
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sale has fewer orders than a double is exact for"
    )]
    (ended > 0).then(|| unpaid as f64 / ended as f64)
}

/// The seconds of a step, so that a course of `seconds` has at most [`STEPS_MAX`] steps.
pub fn step_of(seconds: i64) -> i64 {
    // One more, since a course begins and ends within a step.
    const WIDTHS: [i64; 11] = [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600];
    let fits = |width: &i64| seconds / width + 2 <= STEPS_MAX;
    WIDTHS.into_iter().find(fits).unwrap_or(seconds / (STEPS_MAX - 2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ended_orders_there_is_no_unpaid_share() {
        assert_eq!(unpaid_share(0, 0), None);
        assert_eq!((unpaid_share(6, 2), unpaid_share(0, 1)), (Some(0.25), Some(1.0)));
    }

    #[test]
    fn a_course_of_any_length_has_few_steps() {
        assert_eq!((step_of(0), step_of(598), step_of(599), step_of(3600)), (1, 1, 2, 10));
        for seconds in [1, 86_400, 40_000_000, i64::from(u32::MAX)] {
            assert!(seconds / step_of(seconds) + 2 <= STEPS_MAX, "{seconds}");
        }
    }
}
