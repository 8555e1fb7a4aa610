//! A sale: its items, times, limits and state.

pub mod amendment;
pub mod fairness;
pub mod guards;
mod item;
pub mod message;
pub mod pulse;
pub mod report;
mod rules;
pub mod shard;
mod state;
mod terms;

use super::ids::{IdempotencyKey, OrderId, SaleId, Sku, UserId};
use super::names::names;
use super::plain::plain_text;
use super::stage::{Applied, Stage, StageKey};
use super::time::{self, Millis};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use guards::{ChallengeKind, SaleGuards, SaleStages};
pub use item::{Item, Items, PRICE_MAX, STOCK_MAX};
use message::SaleMessage;
pub use rules::InvalidSale;
pub(super) use rules::{DESCRIPTION_MAX, NAME_MAX, NAME_PATTERN, description, instant, picture, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shard::home_shard;
pub use state::{Lifecycle, SaleState, Step, Transition};
use std::fmt;
use std::str::FromStr;
use terms::digest;
pub use terms::{ITEMS_MAX, NewSale, SaleRequest};

/// What is certain once a purchase is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The script has run. With `appendfsync always`, the order is on Redis's disk.
    Redis,
    /// A replica of Redis has the order, too.
    Replica,
    /// Postgres has committed the order.
    Postgres,
}

names! { Durability: Redis "redis", Replica "replica", Postgres "postgres" }

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_name(text)
            .ok_or_else(|| format!("durability must be \"redis\", \"replica\" or \"postgres\", not {text:?}"))
    }
}

/// An exact sliding window: at most `limit` requests in any `window_ms` milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseRate {
    /// The most requests in a window, 1 to 1,000; a sale of an earlier version may have more.
    pub limit: u32,
    /// The length of the window, 1 to 86,400,000 milliseconds.
    pub window_ms: i64,
}

/// A sale as Postgres has it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Sale {
    /// The sale's id.
    pub id: SaleId,
    /// The sale's number, a part of its orders' ids.
    #[serde(skip)]
    pub number: u32,
    /// The sale's name.
    pub name: String,
    /// What the sale is about, in plain text with line breaks; absent if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The address of the sale's picture; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_url: Option<String>,
    /// The stored state.
    #[serde(skip)]
    pub lifecycle: Lifecycle,
    /// Goes up by one with every change of the state; shards take the highest.
    #[serde(skip)]
    pub state_version: i64,
    /// When the sale starts to sell.
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    /// When the sale stops selling.
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    /// When an operator closed it before its end; absent otherwise.
    #[serde(serialize_with = "time::serialize_option", skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<DateTime<Utc>>,
    /// How many shards hold the stock.
    pub shards: u16,
    /// How long a hold lasts, in seconds.
    pub payment_window_seconds: u32,
    /// How many purchases one shopper may attempt in a time window.
    pub purchase_rate: PurchaseRate,
    /// What is certain once a purchase is acknowledged.
    pub durability: Durability,
    /// The guards of the sale.
    pub guards: SaleGuards,
    /// The guards that have another value for a part of the shoppers.
    #[serde(skip_serializing_if = "SaleStages::is_empty")]
    pub staged_guards: SaleStages,
    /// The items for sale.
    #[schemars(with = "Vec<Item>")]
    pub items: Items,
    /// The message to its shoppers: no term of the sale.
    #[serde(skip)]
    pub message: SaleMessage,
    /// The key of the shoppers' home shards and the orders' ids.
    #[serde(skip)]
    pub secret: SaleSecret,
    /// When the sale was created.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// Whether its keys were removed from Redis. Then only Postgres has the sale.
    #[serde(skip)]
    pub retired: bool,
    /// Whether its keys are about to be removed, by the clock of Postgres. Then nothing is sold, lent or rebuilt.
    #[serde(skip)]
    pub leaving: bool,
}

impl Sale {
    /// The version of the sale's terms; every change of them gives another.
    pub fn version(&self) -> String {
        // Half of the digest is enough to distinguish versions.
        URL_SAFE_NO_PAD.encode(&digest(self)[..16])
    }
}

/// The most characters of a search for sales: as many as a name has.
pub const SEARCH_MAX: usize = NAME_MAX;

plain_text! {
    /// A part of the names or SKUs of sales, or the beginning of an id, by which an operator finds sales.
    SaleSearch SEARCH_MAX
}

/// A sale's secret. `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaleSecret(pub [u8; 32]);

impl fmt::Debug for SaleSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Sale {
    /// The sale's state at `now`.
    pub fn state_at(&self, now: Millis) -> SaleState {
        self.lifecycle
            .seen_at(now, self.starts_at.timestamp_millis(), self.ends_at.timestamp_millis())
    }

    /// Whether Redis holds the sale's stock.
    pub const fn is_in_stock(&self) -> bool {
        !self.retired && !matches!(self.lifecycle, Lifecycle::Draft | Lifecycle::Loading)
    }

    /// The item with this SKU, and its position.
    pub fn item(&self, sku: &Sku) -> Option<(u16, &Item)> {
        let position = self.items.position(sku)?;
        Some((position, self.items.get(usize::from(position))?))
    }

    /// The shopper's home shard.
    pub fn home_shard(&self, user: &UserId) -> u16 {
        home_shard(&self.secret.0, user, self.shards)
    }

    /// The id of the order that this shopper's key makes.
    pub fn order_id(&self, user: &UserId, key: &IdempotencyKey) -> OrderId {
        OrderId::derive(self.number, &self.secret.0, user, key)
    }

    /// The guards that some shopper may have to pass.
    pub fn shown_guards(&self) -> SaleGuards {
        self.guards.with_stages(&self.staged_guards)
    }

    /// Whether this shopper needs an admission.
    pub fn waiting_room_for(&self, user: &UserId) -> Applied<bool> {
        self.applied(
            "waiting_room",
            user,
            self.guards.waiting_room,
            self.staged_guards.waiting_room,
        )
    }

    /// Whether this shopper needs a purchase token.
    pub fn purchase_token_for(&self, user: &UserId) -> Applied<bool> {
        self.applied(
            "purchase_token",
            user,
            self.guards.purchase_token,
            self.staged_guards.purchase_token,
        )
    }

    /// What this shopper must solve for a purchase token.
    pub fn challenge_for(&self, user: &UserId) -> Applied<ChallengeKind> {
        self.applied("challenge", user, self.guards.challenge, self.staged_guards.challenge)
    }

    /// The most unpaid holds of this shopper; 0 is no limit.
    pub fn holds_max_for(&self, user: &UserId) -> u32 {
        self.applied("holds_max", user, self.guards.holds_max, self.staged_guards.holds_max)
            .value
    }

    /// How long this shopper may not buy after an unpaid hold; 0 is off.
    pub fn cooldown_ms_for(&self, user: &UserId) -> Millis {
        let (seconds, stage) = (
            self.guards.unpaid_cooldown_seconds,
            self.staged_guards.unpaid_cooldown_seconds,
        );
        i64::from(self.applied("unpaid_cooldown_seconds", user, seconds, stage).value) * 1000
    }

    /// What a guard applies to a shopper. The sale's secret keys the draw, so each sale picks its own shoppers.
    fn applied<T>(&self, guard: &str, user: &UserId, value: T, stage: Option<Stage<T>>) -> Applied<T> {
        if stage.is_none() {
            return Applied { value, shadow: None };
        }
        StageKey::derived(&self.secret.0).apply(guard, Some(user.as_str().as_bytes()), value, stage)
    }

    pub fn payment_window_ms(&self) -> Millis {
        i64::from(self.payment_window_seconds) * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_found_by_its_sku_at_its_position() {
        let items = ["b", "a"].map(|sku| Item::plain(sku.parse().unwrap(), 10, 1));
        let sale = NewSale::plain(items.to_vec(), DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH).unstored();
        let found = |sku: &str| {
            sale.item(&sku.parse().unwrap())
                .map(|(at, item)| (at, item.sku.to_string()))
        };
        assert_eq!(found("a"), Some((1, "a".to_owned())));
        assert_eq!(found("c"), None);
        let terms = serde_json::to_value(&sale).unwrap();
        assert_eq!(terms["items"][0]["sku"], "b");
    }
}
