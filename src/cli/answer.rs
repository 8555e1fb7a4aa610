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
    /// The server's clock when it answered.
    pub server_time: Option<DateTime<Utc>>,
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

/// Where a sale's units are now.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// The sale's state.
    pub state: String,
    /// The server's clock when it answered.
    pub server_time: Option<DateTime<Utc>>,
    /// The units of each item.
    pub items: Vec<ItemStats>,
    /// The units of each shard.
    pub shards: Vec<Shard>,
    /// Events that Postgres has not taken yet.
    pub undrained_events: u64,
    /// Orders by state.
    pub orders: BTreeMap<String, u64>,
    /// How much of each kind operators should look at.
    pub alerts: BTreeMap<String, u64>,
    /// Requests that each guard has stopped.
    pub stopped: BTreeMap<String, u64>,
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
        let stats: Stats = read(&json!({"state": "open", "new": 1, "items": [{"sku": "a", "new": {}}]})).unwrap();
        assert_eq!(
            (stats.state.as_str(), stats.undrained_events, stats.items[0].total),
            ("open", 0, 0)
        );
        assert!(read::<Stats>(&json!({"items": 5})).is_err());
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
