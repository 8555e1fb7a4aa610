//! The API's answers, as far as the commands show them. Missing and unknown fields are no error: a command of another
//! version than the server shows the fields that it knows.

use super::Failure;
use super::output::one_line;
use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// A sale, as operators see it.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Sale {
    pub id: String,
    pub name: String,
    /// `draft`, `scheduled`, `open`, `paused` or `closed`.
    pub state: String,
    pub starts_at: Option<DateTime<Utc>>,
    pub ends_at: Option<DateTime<Utc>>,
    /// How many shards it has.
    pub shards: Option<u64>,
    /// How long an order may stay unpaid.
    pub payment_window_seconds: Option<u64>,
    pub purchase_rate: Option<PurchaseRate>,
    /// `redis`, `replica` or `postgres`: where a purchase is stored before it is acknowledged.
    pub durability: Option<String>,
    /// The value of each guard, by name.
    pub guards: BTreeMap<String, Value>,
    pub items: Vec<SaleItem>,
}

/// How many purchase requests a shopper may send in a window.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct PurchaseRate {
    pub limit: u64,
    /// The window's length in milliseconds.
    pub window_ms: u64,
}

/// An item of a sale.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct SaleItem {
    pub sku: String,
    pub name: String,
    /// The price of a unit in the currency's minor unit.
    pub price_minor: u64,
    pub currency: String,
    /// All units of the item.
    pub stock: u64,
    /// How many units one shopper may have.
    pub per_user_limit: Option<u64>,
}

/// The free units of a shard.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Shard {
    /// The number of the shard.
    pub shard: u64,
    /// Free units by SKU.
    pub available: BTreeMap<String, i64>,
}

/// A sale at one moment, in the live stream.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The purchases since the sample before.
    pub point: Point,
    /// The instances that report their answers.
    pub instances: Vec<Instance>,
    /// Why the reports of other instances are missing.
    pub others_fault: Option<String>,
    /// Whether Redis and Postgres answer.
    pub health: Health,
    /// The numbers, if both Redis and Postgres answered.
    pub sale: Option<LiveSale>,
    /// The units by Redis alone, if `sale` is missing.
    pub stock: Option<LiveSale>,
    /// Why `sale` is missing.
    pub fault: Option<String>,
}

/// The purchases of a sale in a stretch of time, and their answers.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Milliseconds since the epoch, by the clock of Redis.
    pub at: i64,
    /// The length of the stretch.
    pub seconds: f64,
    /// Accepted orders, if known.
    pub accepted: Option<u64>,
    /// Purchases by answer: `reserved`, `replayed` or the code of the refusal.
    pub answers: BTreeMap<String, u64>,
    /// Milliseconds to the answer, by percentile.
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
}

/// The answers to a purchase that are no refusals.
const GOOD: [&str; 2] = ["reserved", "replayed"];

impl Point {
    /// Purchases that were refused, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.answers.iter().map(|(reason, count)| (reason.as_str(), *count));
        all.filter(|(reason, count)| !GOOD.contains(reason) && *count > 0)
    }

    /// A count of this stretch as a rate; `None` if the stretch has no length.
    #[must_use]
    pub fn per_second(&self, count: u64) -> Option<f64> {
        (self.seconds > 0.0).then(|| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / self.seconds)
    }
}

/// An instance that reports its answers.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// The name that operators see.
    pub name: String,
    /// Seconds since its last report, if its next report is overdue.
    pub silent_seconds: Option<f64>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Health {
    pub redis: ServerHealth,
    pub postgres: ServerHealth,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct ServerHealth {
    /// Why the server does not answer; `None` if it does.
    pub fault: Option<String>,
}

/// Where a sale's units are now.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct LiveSale {
    pub state: String,
    pub starts_at: Option<DateTime<Utc>>,
    pub ends_at: Option<DateTime<Utc>>,
    /// The units of each item.
    pub items: Vec<ItemStats>,
    /// The units of each shard.
    pub shards: Vec<LiveShard>,
    /// Events that Postgres does not have yet.
    pub undrained_events: u64,
    /// Orders by state.
    pub orders: BTreeMap<String, u64>,
    /// What needs an operator's attention: the count of each kind.
    pub alerts: BTreeMap<String, u64>,
}

/// A shard's units. Each list begins with the free units.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct LiveShard {
    /// The units of all items.
    pub units: Vec<i64>,
    /// The units by SKU; `None` if the sale has too many items and shards.
    pub items: Option<BTreeMap<String, Vec<i64>>>,
}

/// Where an item's units are now.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct ItemStats {
    pub sku: String,
    /// All units.
    pub total: i64,
    /// Free units.
    pub available: i64,
    /// Units of unpaid orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
    /// Free units on their way between two shards.
    pub in_transit: i64,
}

/// Reads an answer as a `T`.
///
/// # Errors
/// `Fault` when a field has another type than the API promises.
pub fn read<T: DeserializeOwned>(body: &Value) -> Result<T, Failure> {
    let read = T::deserialize(body).context("the server's answer is not as expected: is it of the same version?")?;
    Ok(read)
}

/// A detail or a difference on one line, whether it is a text or an object.
#[must_use]
pub fn sentence(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let told = ["detail", "message"]
                .iter()
                .find_map(|name| fields.get(*name)?.as_str());
            let rest = fields
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "detail" | "message"));
            let rest: Vec<String> = rest.map(|(name, value)| format!("{name} {}", scalar(value))).collect();
            match told {
                Some(told) if rest.is_empty() => told.to_owned(),
                Some(told) => format!("{told} ({})", rest.join(", ")),
                None => rest.join(", "),
            }
        }
        other => other.to_string(),
    };
    one_line(&text)
}

/// A value as a cell of a table. A text has no quotes there.
#[must_use]
pub fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_may_be_missing_or_more_than_known() {
        let sale: LiveSale = read(&json!({"state": "open", "new": 1, "items": [{"sku": "a", "new": {}}]})).unwrap();
        assert_eq!(
            (sale.state.as_str(), sale.undrained_events, sale.items[0].total),
            ("open", 0, 0)
        );
        assert!(read::<LiveSale>(&json!({"items": 5})).is_err());
    }

    #[test]
    fn what_was_sold_is_no_refusal() {
        let answers = json!({"reserved": 5, "replayed": 1, "sold_out": 3, "unavailable": 0});
        let point: Point = read(&json!({"seconds": 2.0, "answers": answers})).unwrap();
        assert_eq!(point.refusals().collect::<Vec<_>>(), [("sold_out", 3)]);
        assert_eq!((point.per_second(3), Point::default().per_second(3)), (Some(1.5), None));
    }

    #[test]
    fn alerts_read_as_sentences_whatever_their_shape() {
        assert_eq!(sentence(&json!("drain\nstalled")), "drain stalled");
        assert_eq!(
            sentence(&json!({"detail": "drain stalled", "shard": 2})),
            "drain stalled (shard 2)"
        );
        assert_eq!(
            sentence(&json!({"ledger": 2, "redis": 1, "sku": "a"})),
            "ledger 2, redis 1, sku a"
        );
    }
}
