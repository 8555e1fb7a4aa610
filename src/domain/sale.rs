//! A sale: what is sold, when, to whom how much, and in which state it is.

use super::ids::{SaleId, Sku};
use super::sale_guards::SaleGuards;
use super::time::{self, Millis, from_millis};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Datelike, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// The most units of one item that a sale may hold.
pub const STOCK_MAX: i64 = 1_000_000_000;
/// The most items in one sale.
pub const ITEMS_MAX: usize = 1000;
/// The most shards that a sale's stock is spread over.
const SHARDS_MAX: i64 = 256;
/// The longest that a hold lasts, in seconds: a day.
const PAYMENT_WINDOW_MAX: i64 = 86_400;
/// The most requests that a shopper's window lets through: each is 12 bytes of the row that every purchase reads.
const RATE_LIMIT_MAX: i64 = 1000;
/// The longest window, in milliseconds: a day.
const RATE_WINDOW_MAX: i64 = 86_400_000;
/// The highest price of a unit. With the largest quantity, an amount stays below 2^53, which every JSON reader keeps
/// exactly.
const PRICE_MAX: i64 = 10_000_000_000;
/// The most units of an item that one shopper may be allowed.
const PER_USER_LIMIT_MAX: i64 = 100_000;
/// The most characters of a name for people.
const NAME_MAX: usize = 200;
/// What a name for people looks like: no control characters, and not only white space.
const NAME_PATTERN: &str = concat!(
    r"^[^\u0000-\u001f\u007f-\u009f]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"[^\u0000-\u001f\u007f-\u009f]*$"
);
/// What a currency looks like.
const CURRENCY_PATTERN: &str = "^[A-Z]{3}$";

/// A sale's state as everybody sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Created; no stock is loaded.
    Draft,
    /// Loaded; it starts by itself.
    Scheduled,
    /// Selling.
    Open,
    /// Held by an operator.
    Paused,
    /// Over.
    Closed,
}

impl SaleState {
    /// The state's name, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Scheduled => "scheduled",
            Self::Open => "open",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }

    /// The state with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Draft, Self::Scheduled, Self::Open, Self::Paused, Self::Closed];
        all.into_iter().find(|state| state.as_str() == name)
    }
}

impl fmt::Display for SaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is stored of a sale's state; the times do the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    /// Created.
    Draft,
    /// Its shards are being created; nothing sells yet.
    Loading,
    /// Sells between `starts_at` and `ends_at`.
    Active,
    /// Held by an operator.
    Paused,
    /// Closed by an operator.
    Closed,
}

impl Lifecycle {
    /// The name in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Loading => "loading",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }

    /// The code in a shard's packed records.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Draft | Self::Loading => 0,
            Self::Active => 1,
            Self::Paused => 2,
            Self::Closed => 3,
        }
    }

    /// The state that a shard's code stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Loading),
            1 => Some(Self::Active),
            2 => Some(Self::Paused),
            3 => Some(Self::Closed),
            _ => None,
        }
    }

    /// What everybody sees at `now`: the stored state and the times together.
    #[must_use]
    pub const fn seen_at(self, now: Millis, starts_at: Millis, ends_at: Millis) -> SaleState {
        match self {
            Self::Draft | Self::Loading => SaleState::Draft,
            Self::Closed => SaleState::Closed,
            Self::Active | Self::Paused if now >= ends_at => SaleState::Closed,
            Self::Paused => SaleState::Paused,
            Self::Active if now < starts_at => SaleState::Scheduled,
            Self::Active => SaleState::Open,
        }
    }
}

impl FromStr for Lifecycle {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Draft, Self::Loading, Self::Active, Self::Paused, Self::Closed];
        let found = all.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| format!("no sale state is called {text:?}"))
    }
}

/// What an operator does to a sale's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Start selling now, also ahead of `starts_at`.
    Open,
    /// Stop selling for a while. A scheduled sale does not open by itself.
    Pause,
    /// End a pause: the sale is open, or scheduled before `starts_at`.
    Resume,
    /// Stop selling for good.
    Close,
}

/// What a transition makes of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It becomes this.
    To(Lifecycle),
    /// It is that already: asking again is no error.
    Already,
    /// It makes no sense.
    Invalid,
}

impl Transition {
    /// What this transition makes of a sale that is seen in `state`.
    #[must_use]
    pub const fn from(self, state: SaleState) -> Step {
        match (self, state) {
            (Self::Open, SaleState::Scheduled) | (Self::Resume, SaleState::Paused) => Step::To(Lifecycle::Active),
            (Self::Pause, SaleState::Scheduled | SaleState::Open) => Step::To(Lifecycle::Paused),
            (Self::Close, SaleState::Scheduled | SaleState::Open | SaleState::Paused) => Step::To(Lifecycle::Closed),
            (Self::Open, SaleState::Open) | (Self::Pause, SaleState::Paused) | (Self::Close, SaleState::Closed) => {
                Step::Already
            }
            _ => Step::Invalid,
        }
    }
}

/// What a sale's acknowledgement of a purchase means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The script ran; with `appendfsync always` the disk has it.
    Redis,
    /// A replica of Redis has it too.
    Replica,
    /// Postgres has committed it.
    Postgres,
}

impl Durability {
    /// The name in SQL and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Replica => "replica",
            Self::Postgres => "postgres",
        }
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Redis, Self::Replica, Self::Postgres];
        let found = all.into_iter().find(|durability| durability.as_str() == text);
        found.ok_or_else(|| format!("durability must be \"redis\", \"replica\" or \"postgres\", not {text:?}"))
    }
}

/// An exact sliding window: so many requests in any so many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseRate {
    /// Requests that a window lets through, 1 to 1,000; a sale of an earlier version may have more.
    pub limit: u32,
    /// The window's length, 1 to 86,400,000 milliseconds.
    pub window_ms: i64,
}

/// One product in a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Item {
    /// Its SKU, unique in the sale.
    pub sku: Sku,
    /// Its name for people.
    pub name: String,
    /// Price of one unit in the currency's minor unit.
    pub price_minor: i64,
    /// ISO 4217.
    pub currency: String,
    /// Units that the sale owns, restocks and withdrawals included.
    pub stock: i64,
    /// Units that one shopper may hold and own.
    pub per_user_limit: u32,
}

/// A sale as the ledger has it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Sale {
    /// Its id.
    pub id: SaleId,
    /// Its number, which the ids of its orders carry.
    #[serde(skip)]
    pub number: u32,
    /// Its name for people.
    pub name: String,
    /// The stored state.
    #[serde(skip)]
    pub lifecycle: Lifecycle,
    /// Goes up by one with every change of the state; shards follow the newest.
    #[serde(skip)]
    pub state_version: i64,
    /// When it starts to sell.
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    /// When it stops.
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    /// How many shards hold its stock.
    pub shards: u16,
    /// How long a hold lasts, in seconds.
    pub payment_window_seconds: u32,
    /// How often one shopper may ask.
    pub purchase_rate: PurchaseRate,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// What it asks of its shoppers.
    pub guards: SaleGuards,
    /// What is sold.
    pub items: Vec<Item>,
    /// Keys the shoppers' home shards and the orders' ids.
    #[serde(skip)]
    pub secret: SaleSecret,
    /// When it was created.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// Whether its keys have been removed from Redis: from then on only the ledger knows it.
    #[serde(skip)]
    pub retired: bool,
    /// Whether its keys are about to be removed, by Postgres's clock: nothing is sold, lent or rebuilt any more.
    #[serde(skip)]
    pub leaving: bool,
}

impl Sale {
    /// The version of its terms: whatever of them is changed, it is another one.
    #[must_use]
    pub fn version(&self) -> String {
        // Half of the digest tells versions apart.
        URL_SAFE_NO_PAD.encode(&digest(self)[..16])
    }
}

/// A sale's secret, which no log shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaleSecret(pub [u8; 32]);

impl fmt::Debug for SaleSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Sale {
    /// The state that everybody sees at `now`.
    #[must_use]
    pub fn state_at(&self, now: Millis) -> SaleState {
        self.lifecycle
            .seen_at(now, self.starts_at.timestamp_millis(), self.ends_at.timestamp_millis())
    }

    /// Whether Redis holds its stock.
    #[must_use]
    pub const fn is_in_stock(&self) -> bool {
        !self.retired && !matches!(self.lifecycle, Lifecycle::Draft | Lifecycle::Loading)
    }

    /// The item with this SKU, and its position.
    #[must_use]
    pub fn item(&self, sku: &Sku) -> Option<(u16, &Item)> {
        let position = self.items.iter().position(|item| item.sku == *sku)?;
        Some((u16::try_from(position).ok()?, self.items.get(position)?))
    }

    /// How long a hold lasts.
    #[must_use]
    pub fn payment_window_ms(&self) -> Millis {
        i64::from(self.payment_window_seconds) * 1000
    }
}

/// Why a sale cannot be as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSale(pub String);

/// A sale as an operator asks for it, not checked yet.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "A sale as an operator asks for it.")]
pub struct SaleRequest {
    /// Its name for people: not only white space, no control characters.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    name: String,
    /// When it starts to sell, in the years 1970 to 9999.
    starts_at: DateTime<Utc>,
    /// When it stops, after `starts_at`.
    ends_at: DateTime<Utc>,
    /// How many shards hold its stock.
    #[serde(default = "default_shards")]
    #[schemars(range(min = 1, max = SHARDS_MAX))]
    shards: i64,
    /// How long a hold lasts, in seconds.
    #[serde(default = "default_payment_window")]
    #[schemars(range(min = 1, max = PAYMENT_WINDOW_MAX))]
    payment_window_seconds: i64,
    /// How often one shopper may ask.
    #[serde(default = "default_purchase_rate")]
    purchase_rate: RateRequest,
    /// What an acknowledgement means.
    #[serde(default = "default_durability")]
    #[schemars(with = "Durability")]
    durability: String,
    /// What it asks of its shoppers. What is left out is as the instance is configured.
    #[serde(default)]
    #[schemars(with = "SaleGuards")]
    guards: Map<String, Value>,
    /// What is sold. Each SKU is there once.
    #[schemars(length(min = 1, max = ITEMS_MAX))]
    items: Vec<ItemRequest>,
}

/// An exact sliding window: so many requests in any so many milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RateRequest {
    /// Requests that a window lets through.
    #[schemars(range(min = 1, max = RATE_LIMIT_MAX))]
    limit: i64,
    /// The window's length in milliseconds.
    #[schemars(range(min = 1, max = RATE_WINDOW_MAX))]
    window_ms: i64,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(description = "One product in a sale.")]
struct ItemRequest {
    /// Its SKU, unique in the sale.
    #[schemars(with = "Sku")]
    sku: String,
    /// Its name for people, as the sale's.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    name: String,
    /// Price of one unit in the currency's minor unit.
    #[schemars(range(min = 0, max = PRICE_MAX))]
    price_minor: i64,
    /// ISO 4217.
    #[schemars(regex(pattern = CURRENCY_PATTERN))]
    currency: String,
    /// Units that the sale owns.
    #[schemars(range(min = 0, max = STOCK_MAX))]
    stock: i64,
    /// Units that one shopper may hold and own.
    #[schemars(range(min = 1, max = PER_USER_LIMIT_MAX))]
    per_user_limit: i64,
}

const fn default_shards() -> i64 {
    4
}
const fn default_payment_window() -> i64 {
    900
}
const fn default_purchase_rate() -> RateRequest {
    RateRequest {
        limit: 5,
        window_ms: 60_000,
    }
}
fn default_durability() -> String {
    Durability::Redis.as_str().to_owned()
}

/// A sale that may be created.
#[derive(Debug, Clone, Serialize)]
pub struct NewSale {
    /// See [`Sale`].
    pub name: String,
    /// See [`Sale`].
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    /// See [`Sale`].
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    /// See [`Sale`].
    pub shards: u16,
    /// See [`Sale`].
    pub payment_window_seconds: u32,
    /// See [`Sale`].
    pub purchase_rate: PurchaseRate,
    /// See [`Sale`].
    pub durability: Durability,
    /// See [`Sale`].
    pub guards: SaleGuards,
    /// See [`Sale`].
    pub items: Vec<Item>,
}

impl NewSale {
    /// What tells one that is asked for in another way.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        digest(self)
    }
}

/// A digest of what this says.
fn digest(of: &impl Serialize) -> [u8; 32] {
    // Infallible: all of it has a form in JSON.
    Sha256::digest(serde_json::to_vec(of).unwrap_or_default()).into()
}

/// `value` as the smaller type if it lies within the bounds, else a sentence that names the field and them.
fn bounded<T: TryFrom<i64>>(field: &str, value: i64, low: i64, high: i64) -> Result<T, InvalidSale> {
    let wrong = || InvalidSale(format!("{field} must be {low} to {high}, not {value}"));
    if value < low || value > high {
        return Err(wrong());
    }
    T::try_from(value).map_err(|_| wrong())
}

fn text(field: &str, value: &str) -> Result<String, InvalidSale> {
    let length = value.chars().count();
    if value.trim().is_empty() || length > NAME_MAX || value.chars().any(char::is_control) {
        return Err(InvalidSale(format!(
            "{field} must be 1 to {NAME_MAX} characters, none of them a control character"
        )));
    }
    Ok(value.to_owned())
}

fn instant(field: &str, at: DateTime<Utc>) -> Result<DateTime<Utc>, InvalidSale> {
    if !(1970..=9999).contains(&at.year()) {
        return Err(InvalidSale(format!("{field} must lie in the years 1970 to 9999")));
    }
    // Whole milliseconds: what Redis compares and what the API shows are the same instant. Not by way of nanoseconds, of
    // which a number has room until the year 2262.
    Ok(from_millis(at.timestamp_millis()))
}

impl SaleRequest {
    /// Checks every field; guards of which nothing is said are as `usual`.
    ///
    /// # Errors
    /// A sentence that names the first field that is wrong and what it may be.
    pub fn check(self, usual: SaleGuards) -> Result<NewSale, InvalidSale> {
        let starts_at = instant("starts_at", self.starts_at)?;
        let ends_at = instant("ends_at", self.ends_at)?;
        if ends_at <= starts_at {
            return Err(InvalidSale("ends_at must be after starts_at".to_owned()));
        }
        let durability = self.durability.parse().map_err(InvalidSale)?;
        if self.items.is_empty() || self.items.len() > ITEMS_MAX {
            return Err(InvalidSale(format!(
                "items must be 1 to {ITEMS_MAX}, not {}",
                self.items.len()
            )));
        }
        let mut seen = HashSet::new();
        let mut items = Vec::with_capacity(self.items.len());
        for (position, item) in self.items.into_iter().enumerate() {
            let item = item.check(&format!("items[{position}]"))?;
            if !seen.insert(item.sku.clone()) {
                return Err(InvalidSale(format!(
                    "items[{position}].sku: {} is there twice",
                    item.sku
                )));
            }
            items.push(item);
        }
        Ok(NewSale {
            name: text("name", &self.name)?,
            starts_at,
            ends_at,
            shards: bounded("shards", self.shards, 1, SHARDS_MAX)?,
            payment_window_seconds: bounded(
                "payment_window_seconds",
                self.payment_window_seconds,
                1,
                PAYMENT_WINDOW_MAX,
            )?,
            purchase_rate: PurchaseRate {
                limit: bounded("purchase_rate.limit", self.purchase_rate.limit, 1, RATE_LIMIT_MAX)?,
                window_ms: bounded(
                    "purchase_rate.window_ms",
                    self.purchase_rate.window_ms,
                    1,
                    RATE_WINDOW_MAX,
                )?,
            },
            durability,
            guards: usual
                .with(self.guards)
                .map_err(|wrong| InvalidSale(format!("guards: {wrong}")))?,
            items,
        })
    }
}

impl ItemRequest {
    fn check(self, at: &str) -> Result<Item, InvalidSale> {
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidSale(format!(
                "{at}.currency must be three capital letters, as in ISO 4217"
            )));
        }
        Ok(Item {
            sku: self
                .sku
                .parse()
                .map_err(|wrong| InvalidSale(format!("{at}.sku: {wrong}")))?,
            name: text(&format!("{at}.name"), &self.name)?,
            price_minor: bounded(&format!("{at}.price_minor"), self.price_minor, 0, PRICE_MAX)?,
            currency: self.currency,
            stock: bounded(&format!("{at}.stock"), self.stock, 0, STOCK_MAX)?,
            per_user_limit: bounded(
                &format!("{at}.per_user_limit"),
                self.per_user_limit,
                1,
                PER_USER_LIMIT_MAX,
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request() -> Value {
        json!({"name": "n", "starts_at": "2026-01-01T00:00:00.1234Z", "ends_at": "2026-01-01T01:00:00+01:30",
            "shards": 256, "payment_window_seconds": 86400, "purchase_rate": {"limit": 1, "window_ms": 1},
            "durability": "redis", "items": [{"sku": "A", "name": "a", "price_minor": 0, "currency": "EUR",
            "stock": 0, "per_user_limit": 1}]})
    }

    fn check(change: impl FnOnce(&mut Value)) -> Result<NewSale, String> {
        let mut value = request();
        value["ends_at"] = json!("2026-01-02T00:00:00Z");
        change(&mut value);
        serde_json::from_value::<SaleRequest>(value)
            .map_err(|e| e.to_string())?
            .check(SaleGuards::default())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let sale = check(|v| {
            for field in ["shards", "payment_window_seconds", "purchase_rate", "durability"] {
                v.as_object_mut().unwrap().remove(field);
            }
        })
        .unwrap();
        assert_eq!((sale.shards, sale.payment_window_seconds), (4, 900));
        assert_eq!(
            sale.purchase_rate,
            PurchaseRate {
                limit: 5,
                window_ms: 60_000
            }
        );
        assert_eq!(time::format(&sale.starts_at), "2026-01-01T00:00:00.123Z");
    }

    #[test]
    fn a_sale_may_lie_in_any_year_that_is_promised() {
        let sale = check(|v| {
            v["starts_at"] = json!("1970-01-01T00:00:00Z");
            v["ends_at"] = json!("9999-12-31T23:59:59.9999Z");
        })
        .unwrap();
        assert_eq!(time::format(&sale.starts_at), "1970-01-01T00:00:00.000Z");
        assert_eq!(time::format(&sale.ends_at), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_durability_has_a_name_and_only_those_are_known() {
        for durability in [Durability::Redis, Durability::Replica, Durability::Postgres] {
            let name = durability.as_str();
            assert_eq!(check(|v| v["durability"] = json!(name)).unwrap().durability, durability);
            assert_eq!(serde_json::to_value(durability).unwrap(), json!(name));
        }
        let error = check(|v| v["durability"] = json!("Replica")).unwrap_err();
        assert!(error.contains("\"replica\""), "{error}");
    }

    #[test]
    fn each_field_is_refused_just_outside_its_bounds_and_named() {
        let item = |field: &'static str, value: Value| move |v: &mut Value| v["items"][0][field] = value;
        let top = |field: &'static str, value: Value| move |v: &mut Value| v[field] = value;
        type Change = Box<dyn FnOnce(&mut Value)>;
        let cases: Vec<(&str, Change)> = vec![
            ("shards", Box::new(top("shards", json!(0)))),
            ("shards", Box::new(top("shards", json!(257)))),
            (
                "payment_window_seconds",
                Box::new(top("payment_window_seconds", json!(0))),
            ),
            (
                "payment_window_seconds",
                Box::new(top("payment_window_seconds", json!(86_401))),
            ),
            (
                "purchase_rate.limit",
                Box::new(top("purchase_rate", json!({"limit": 0, "window_ms": 1}))),
            ),
            (
                "purchase_rate.window_ms",
                Box::new(top("purchase_rate", json!({"limit": 1, "window_ms": 0}))),
            ),
            (
                "unknown field",
                Box::new(top("purchase_rate", json!({"limit": 1, "window_ms": 1, "x": 1}))),
            ),
            ("durability", Box::new(top("durability", json!("disk")))),
            ("guards: holds_max", Box::new(top("guards", json!({"holds_max": -1})))),
            ("items", Box::new(top("items", json!([])))),
            ("ends_at", Box::new(top("ends_at", json!("2026-01-01T00:00:00.123Z")))),
            ("starts_at", Box::new(top("starts_at", json!("1969-12-31T23:59:59Z")))),
            ("name", Box::new(top("name", json!(" ")))),
            ("name", Box::new(top("name", json!("n".repeat(201))))),
            ("unknown field", Box::new(top("colour", json!(1)))),
            ("sku", Box::new(item("sku", json!("a b")))),
            ("price_minor", Box::new(item("price_minor", json!(-1)))),
            ("price_minor", Box::new(item("price_minor", json!(10_000_000_001i64)))),
            ("currency", Box::new(item("currency", json!("eur")))),
            ("stock", Box::new(item("stock", json!(-1)))),
            ("stock", Box::new(item("stock", json!(1_000_000_001)))),
            ("per_user_limit", Box::new(item("per_user_limit", json!(0)))),
            ("invalid type", Box::new(item("stock", json!(1.5)))),
        ];
        assert!(check(|_| ()).is_ok());
        for (word, change) in cases {
            let error = check(change).unwrap_err();
            assert!(error.contains(word), "{error:?} does not name {word}");
        }
        let twice = check(|v| v["items"] = json!([v["items"][0], v["items"][0]])).unwrap_err();
        assert!(twice.contains("twice"), "{twice}");
    }

    #[test]
    fn the_times_decide_to_the_millisecond_what_a_stored_state_looks_like() {
        use {Lifecycle as L, SaleState as S};
        let table = [
            (L::Draft, 150, S::Draft),
            (L::Loading, 150, S::Draft),
            (L::Active, 99, S::Scheduled),
            (L::Active, 100, S::Open),
            (L::Active, 199, S::Open),
            (L::Active, 200, S::Closed),
            (L::Paused, 199, S::Paused),
            (L::Paused, 200, S::Closed),
            (L::Closed, 99, S::Closed),
        ];
        for (stored, now, seen) in table {
            assert_eq!(stored.seen_at(now, 100, 200), seen, "{stored:?} at {now}");
        }
    }

    #[test]
    fn transitions_that_make_no_sense_are_invalid() {
        use {SaleState as S, Transition as T};
        let states = [S::Draft, S::Scheduled, S::Open, S::Paused, S::Closed];
        let to = |transition: T| {
            states.map(|state| match transition.from(state) {
                Step::To(_) => 't',
                Step::Already => '=',
                Step::Invalid => '.',
            })
        };
        assert_eq!(to(T::Open), ['.', 't', '=', '.', '.']);
        assert_eq!(to(T::Pause), ['.', 't', 't', '=', '.']);
        assert_eq!(to(T::Resume), ['.', '.', '.', 't', '.']);
        assert_eq!(to(T::Close), ['.', 't', 't', 't', '=']);
    }
}
