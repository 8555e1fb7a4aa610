//! The API's answers, as far as the commands show them. Fields may be missing or more may come: a command of
//! another version than the server's shows what it knows.

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
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `draft`, `scheduled`, `open`, `paused` or `closed`.
    pub state: String,
    /// When buying begins.
    pub starts_at: Option<DateTime<Utc>>,
    /// When buying ends.
    pub ends_at: Option<DateTime<Utc>>,
    /// How many shards it has.
    pub shards: Option<u64>,
    /// How long an order may stay unpaid.
    pub payment_window_seconds: Option<u64>,
    /// How fast one shopper may ask.
    pub purchase_rate: Option<PurchaseRate>,
    /// What an acknowledgement means.
    pub durability: Option<String>,
    /// What it asks of its shoppers, by name.
    pub guards: BTreeMap<String, Value>,
    /// What is sold.
    pub items: Vec<SaleItem>,
}

/// How fast one shopper may ask.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct PurchaseRate {
    /// Requests in a window.
    pub limit: u64,
    /// The window's length in milliseconds.
    pub window_ms: u64,
}

/// An item of a sale.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct SaleItem {
    /// Its key in the sale.
    pub sku: String,
    /// Its name.
    pub name: String,
    /// Its price in the currency's minor unit.
    pub price_minor: u64,
    /// Its currency.
    pub currency: String,
    /// How many units there are to sell.
    pub stock: u64,
    /// How many units one shopper may have.
    pub per_user_limit: Option<u64>,
}

/// What a shard has to sell.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Shard {
    /// Its number.
    pub shard: u64,
    /// Free units by SKU.
    pub available: BTreeMap<String, i64>,
}

/// A sale at one moment, as it is followed live.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// What was asked of it since the one before.
    pub point: Point,
    /// The instances that tell how they answer.
    pub instances: Vec<Instance>,
    /// Why others cannot be heard.
    pub others_fault: Option<String>,
    /// How Redis and Postgres answer.
    pub health: Health,
    /// The numbers, if both tell theirs.
    pub sale: Option<LiveSale>,
    /// What Redis alone tells, where they do not.
    pub stock: Option<LiveSale>,
    /// Why the numbers are not there.
    pub fault: Option<String>,
}

/// What was asked of a sale in a stretch of time, and how it was answered.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Milliseconds since the epoch, by the clock of Redis.
    pub at: i64,
    /// How long the stretch is.
    pub seconds: f64,
    /// Orders that were accepted, if that can be told.
    pub accepted: Option<u64>,
    /// Purchases by what was answered.
    pub answers: BTreeMap<String, u64>,
    /// Milliseconds in which half of them were answered.
    pub p50: Option<f64>,
    /// The same of 95 in a hundred.
    pub p95: Option<f64>,
    /// The same of 99 in a hundred.
    pub p99: Option<f64>,
}

/// What a purchase is answered that is no refusal.
const GOOD: [&str; 2] = ["reserved", "replayed"];

impl Point {
    /// Purchases that were refused, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.answers.iter().map(|(reason, count)| (reason.as_str(), *count));
        all.filter(|(reason, count)| !GOOD.contains(reason) && *count > 0)
    }

    /// How many of these that is a second.
    #[must_use]
    pub fn per_second(&self, count: u64) -> Option<f64> {
        (self.seconds > 0.0).then(|| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / self.seconds)
    }
}

/// An instance that tells how it answers.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// What operators call it by.
    pub name: String,
    /// For how long it has said nothing, where it should have.
    pub silent_seconds: Option<f64>,
}

/// How Redis and Postgres answer.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Health {
    /// The stock's.
    pub redis: ServerHealth,
    /// The ledger's.
    pub postgres: ServerHealth,
}

/// How a server answers.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct ServerHealth {
    /// Why it does not.
    pub fault: Option<String>,
}

/// Where a sale's units are now.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct LiveSale {
    /// The sale's state.
    pub state: String,
    /// When buying begins.
    pub starts_at: Option<DateTime<Utc>>,
    /// When buying ends.
    pub ends_at: Option<DateTime<Utc>>,
    /// The units of each item.
    pub items: Vec<ItemStats>,
    /// The units of each shard.
    pub shards: Vec<LiveShard>,
    /// Events that Postgres has not taken yet.
    pub undrained_events: u64,
    /// Orders by state.
    pub orders: BTreeMap<String, u64>,
    /// How much of each kind operators should look at.
    pub alerts: BTreeMap<String, u64>,
}

/// A shard's units: free ones first, then those that are elsewhere.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct LiveShard {
    /// Over all items.
    pub units: Vec<i64>,
    /// By SKU; none where those are too many.
    pub items: Option<BTreeMap<String, Vec<i64>>>,
}

/// Where an item's units are now.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct ItemStats {
    /// The item.
    pub sku: String,
    /// All units.
    pub total: i64,
    /// Free units.
    pub available: i64,
    /// Units kept for unpaid orders.
    pub held: i64,
    /// Units paid for.
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

/// An alert or a difference on one line, whether it came as a text or as an object.
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

/// A value as a cell: texts without quotes.
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
