//! The terms of a sale: as an operator sends them, and checked.

use super::guards::{SaleGuards, SaleStages};
use super::item::ItemRequest;
use super::message::SaleMessage;
use super::rules::{
    DESCRIPTION_MAX, InvalidSale, NAME_MAX, NAME_PATTERN, bounded, description, instant, picture, text,
};
use super::state::Lifecycle;
use super::{Durability, Item, PurchaseRate, Sale, SaleSecret};
use crate::domain::ids::SaleId;
use crate::domain::plain::{LINES_PATTERN, or_empty};
use crate::domain::shop::image_url::{IMAGE_URL_MAX, IMAGE_URL_PATTERN};
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use uuid::Uuid;

pub const ITEMS_MAX: usize = 1000;
/// The most shards of a sale.
const SHARDS_MAX: i64 = 256;
/// The longest payment window, in seconds: a day.
const PAYMENT_WINDOW_MAX: i64 = 86_400;
/// The highest limit of a shopper's window. Each request takes 12 bytes in the record that every purchase reads.
const RATE_LIMIT_MAX: i64 = 1000;
/// The longest window of a shopper, in milliseconds: a day.
const RATE_WINDOW_MAX: i64 = 86_400_000;

/// A sale as an operator sends it, before it is checked. A sale file writes its times in more forms: there they are `T`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(
    rename = "SaleRequest",
    description = "The terms of a sale, as an operator sends them."
)]
pub struct SaleRequest<T = DateTime<Utc>> {
    /// The sale's name: not only white space, no control characters.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NAME_PATTERN))]
    name: String,
    /// What the sale is about: plain text with line breaks. Empty is none.
    #[schemars(length(max = DESCRIPTION_MAX), regex(pattern = or_empty(LINES_PATTERN)))]
    description: Option<String>,
    /// The address of the sale's picture: `https`, or a path. Pages show it if its origin is theirs, or one of
    /// `FLASHSALE_IMAGE_ORIGINS`. Empty is none.
    #[schemars(length(max = IMAGE_URL_MAX), regex(pattern = or_empty(IMAGE_URL_PATTERN)))]
    image_url: Option<String>,
    /// When the sale starts to sell, in the years 1970 to 9999.
    pub starts_at: T,
    /// When the sale stops selling, after `starts_at`.
    pub ends_at: T,
    /// How many shards hold the stock.
    #[serde(default = "default_shards")]
    #[schemars(range(min = 1, max = SHARDS_MAX))]
    shards: i64,
    /// How long a hold lasts, in seconds.
    #[serde(default = "default_payment_window")]
    #[schemars(range(min = 1, max = PAYMENT_WINDOW_MAX))]
    payment_window_seconds: i64,
    /// How many purchases one shopper may attempt in a time window.
    #[serde(default = "default_purchase_rate")]
    purchase_rate: RateRequest,
    /// What is certain once a purchase is acknowledged.
    #[serde(default = "default_durability")]
    #[schemars(with = "Durability")]
    durability: String,
    /// The guards of the sale. Guards that are left out take the instance's defaults.
    #[serde(default)]
    #[schemars(with = "SaleGuards")]
    guards: Map<String, Value>,
    /// The items for sale. SKUs must be unique.
    #[schemars(length(min = 1, max = ITEMS_MAX))]
    items: Vec<ItemRequest>,
}

/// An exact sliding window: at most `limit` requests in any `window_ms` milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RateRequest {
    /// The most requests in a window.
    #[schemars(range(min = 1, max = RATE_LIMIT_MAX))]
    limit: i64,
    /// The length of the window in milliseconds.
    #[schemars(range(min = 1, max = RATE_WINDOW_MAX))]
    window_ms: i64,
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

/// The checked terms of a sale. The fields are those of [`Sale`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewSale {
    pub name: String,
    pub description: Option<String>,
    pub image_url: Option<String>,
    #[serde(serialize_with = "time::serialize")]
    pub starts_at: DateTime<Utc>,
    #[serde(serialize_with = "time::serialize")]
    pub ends_at: DateTime<Utc>,
    pub shards: u16,
    pub payment_window_seconds: u32,
    pub purchase_rate: PurchaseRate,
    pub durability: Durability,
    #[serde(deserialize_with = "SaleGuards::known")]
    pub guards: SaleGuards,
    pub items: Vec<Item>,
}

impl NewSale {
    /// A sale without guards: one shard, holds of 15 minutes, a thousand purchases of a shopper a minute. Benchmarks and
    /// tests begin with it.
    pub fn plain(items: Vec<Item>, starts_at: DateTime<Utc>, ends_at: DateTime<Utc>) -> Self {
        Self {
            name: "A sale".to_owned(),
            description: None,
            image_url: None,
            starts_at,
            ends_at,
            shards: 1,
            payment_window_seconds: 900,
            purchase_rate: PurchaseRate {
                limit: 1000,
                window_ms: 60_000,
            },
            durability: Durability::Redis,
            guards: SaleGuards::default(),
            items,
        }
    }

    /// The active sale that this would be, without a ledger: benchmarks and tests of the scripts need no other.
    pub fn unstored(self) -> Sale {
        Sale {
            id: SaleId(Uuid::nil()),
            number: 1,
            name: self.name,
            description: self.description,
            image_url: self.image_url,
            lifecycle: Lifecycle::Active,
            state_version: 1,
            created_at: self.starts_at,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            closed_at: None,
            shards: self.shards,
            payment_window_seconds: self.payment_window_seconds,
            purchase_rate: self.purchase_rate,
            durability: self.durability,
            guards: self.guards,
            staged_guards: SaleStages::default(),
            items: self.items.into(),
            message: SaleMessage::default(),
            secret: SaleSecret([7; 32]),
            retired: false,
            leaving: false,
        }
    }

    /// Distinguishes requests for sales with other terms.
    pub fn digest(&self) -> [u8; 32] {
        digest(&Self {
            guards: self.guards.as_requested(),
            ..self.clone()
        })
    }
}

/// The digest of a sale's JSON. The ledger keeps digests, so a term of a later version counts only where it is set.
pub(super) fn digest(of: &impl Serialize) -> [u8; 32] {
    // Infallible: all of it has a form in JSON.
    let mut terms = serde_json::to_value(of).unwrap_or_default();
    if let Some(terms) = terms.as_object_mut() {
        terms.retain(|_, value| !value.is_null());
    }
    if let Some(guards) = terms.get_mut("guards").and_then(Value::as_object_mut) {
        SaleGuards::retain_digested(guards);
    }
    Sha256::digest(serde_json::to_vec(&terms).unwrap_or_default()).into()
}

impl SaleRequest {
    /// Checks every field. Guards that are left out are taken from `usual`. The error names the first invalid field and
    /// what it may be.
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
        let (mut seen, mut variants) = (HashSet::new(), HashSet::new());
        let mut items = Vec::with_capacity(self.items.len());
        for (position, item) in self.items.into_iter().enumerate() {
            let item = item.check(&format!("items[{position}]"))?;
            if !seen.insert(item.sku.clone()) {
                return Err(InvalidSale(format!(
                    "items[{position}].sku: {} is there twice",
                    item.sku
                )));
            }
            if let Some(group) = &item.group
                && !variants.insert((group.clone(), item.option.clone()))
            {
                return Err(InvalidSale(format!(
                    "items[{position}].option must differ from the other options of its group"
                )));
            }
            items.push(item);
        }
        let (window, rate) = (self.payment_window_seconds, self.purchase_rate);
        Ok(NewSale {
            name: text("name", &self.name)?,
            description: description("description", self.description.as_deref())?,
            image_url: picture("image_url", self.image_url.as_deref())?,
            starts_at,
            ends_at,
            shards: bounded("shards", self.shards, 1, SHARDS_MAX)?,
            payment_window_seconds: bounded("payment_window_seconds", window, 1, PAYMENT_WINDOW_MAX)?,
            purchase_rate: PurchaseRate {
                limit: bounded("purchase_rate.limit", rate.limit, 1, RATE_LIMIT_MAX)?,
                window_ms: bounded("purchase_rate.window_ms", rate.window_ms, 1, RATE_WINDOW_MAX)?,
            },
            durability,
            guards: usual
                .with(self.guards)
                .map_err(|wrong| InvalidSale(format!("guards: {wrong}")))?,
            items,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    fn check(change: impl FnOnce(&mut Value)) -> Result<NewSale, String> {
        let mut value = json!({"name": "n", "starts_at": "2026-01-01T00:00:00.1234Z", "ends_at": "2026-01-02T00:00:00Z",
            "shards": 256, "payment_window_seconds": 86400, "purchase_rate": {"limit": 1, "window_ms": 1},
            "durability": "redis", "items": [{"sku": "A", "name": "a", "price_minor": 0, "currency": "EUR",
            "stock": 0, "per_user_limit": 1}]});
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
        for durability in Durability::ALL {
            let sale = check(|v| v["durability"] = json!(durability.as_str())).unwrap();
            assert_eq!(sale.durability, *durability);
        }
        let error = check(|v| v["durability"] = json!("Replica")).unwrap_err();
        assert!(error.contains("\"replica\""), "{error}");
    }

    #[test]
    fn each_field_is_refused_just_outside_its_bounds_and_named() {
        let (sale, item) = ("", "/items/0");
        let rate = |limit: i64, window_ms: i64| json!({"limit": limit, "window_ms": window_ms});
        let cases = [
            ("shards", sale, "shards", json!(0)),
            ("shards", sale, "shards", json!(257)),
            ("payment_window_seconds", sale, "payment_window_seconds", json!(0)),
            ("payment_window_seconds", sale, "payment_window_seconds", json!(86_401)),
            ("purchase_rate.limit", sale, "purchase_rate", rate(0, 1)),
            ("purchase_rate.window_ms", sale, "purchase_rate", rate(1, 0)),
            ("unknown field", sale, "purchase_rate", json!({"x": 1})),
            ("durability", sale, "durability", json!("disk")),
            ("guards: holds_max", sale, "guards", json!({"holds_max": -1})),
            ("items", sale, "items", json!([])),
            ("ends_at", sale, "ends_at", json!("2026-01-01T00:00:00.123Z")),
            ("starts_at", sale, "starts_at", json!("1969-12-31T23:59:59Z")),
            ("name", sale, "name", json!(" ")),
            ("name", sale, "name", json!("n".repeat(201))),
            ("unknown field", sale, "colour", json!(1)),
            ("sku", item, "sku", json!("a b")),
            ("price_minor", item, "price_minor", json!(-1)),
            ("price_minor", item, "price_minor", json!(10_000_000_001i64)),
            ("currency", item, "currency", json!("eur")),
            ("stock", item, "stock", json!(-1)),
            ("stock", item, "stock", json!(1_000_000_001)),
            ("per_user_limit", item, "per_user_limit", json!(0)),
            ("invalid type", item, "stock", json!(1.5)),
            ("description", sale, "description", json!("a\tb")),
            ("description", sale, "description", json!("n".repeat(2001))),
            ("image_url", sale, "image_url", json!("http://a.example/")),
            ("items[0].description", item, "description", json!("a\u{202e}b")),
            ("items[0].image_url", item, "image_url", json!("winter.jpg")),
            ("items[0].group", item, "group", json!("a\nb")),
            ("items[0].option needs a group", item, "option", json!("M")),
            (
                "items[0].option must have 1 to 100",
                item,
                "option",
                json!("n".repeat(101)),
            ),
        ];
        assert!(check(|_| ()).is_ok());
        for (word, at, field, value) in cases {
            let error = check(|v| v.pointer_mut(at).unwrap()[field] = value).unwrap_err();
            assert!(error.contains(word), "{error:?} does not name {word}");
        }
        let twice = check(|v| v["items"] = json!([v["items"][0], v["items"][0]])).unwrap_err();
        assert!(twice.contains("twice"), "{twice}");
    }

    #[test]
    fn the_variants_of_one_thing_differ() {
        let items = |variants: &[(&str, Option<&str>)]| {
            check(|v| {
                let item = v["items"][0].clone();
                let items = variants.iter().enumerate().map(|(number, (group, option))| {
                    let mut item = item.clone();
                    item["sku"] = json!(format!("S{number}"));
                    item["group"] = json!(group);
                    item["option"] = json!(option);
                    item
                });
                v["items"] = items.collect();
            })
        };
        let sale = items(&[
            (" Shirt ", Some("M")),
            ("Shirt", Some("L")),
            ("Cap", Some("M")),
            ("", None),
        ])
        .unwrap();
        let groups: Vec<_> = sale.items.iter().map(|item| item.group.as_deref()).collect();
        assert_eq!(groups, [Some("Shirt"), Some("Shirt"), Some("Cap"), None]);
        for same in [Some("M"), None] {
            let refused = items(&[("Shirt", same), ("Cap", same), ("Shirt ", same)]).unwrap_err();
            assert_eq!(
                refused,
                "items[2].option must differ from the other options of its group"
            );
        }
    }

    /// The ledger has digests of earlier versions, by which it knows a repeated request; drafts are changed by versions.
    #[test]
    fn the_digest_of_a_sale_is_that_of_every_earlier_version() {
        let sale = check(|_| ()).unwrap();
        assert_eq!(
            URL_SAFE_NO_PAD.encode(sale.digest()),
            "CKIsXl4Z300Gxzg1-OLXWS3uEev6wXyjRAzCSGOpj6g"
        );
        // Its captcha had no proof of work in its place.
        let guards = SaleGuards {
            captcha_proof_cost: 0,
            ..sale.guards
        };
        let stored = NewSale { guards, ..sale };
        assert_eq!(stored.unstored().version(), "hQB_7I21MjLOR6vcNrv10g");
        // A text that is given counts, of the sale and of an item.
        let mut digests = HashSet::from([check(|_| ()).unwrap().digest()]);
        for member in ["description", "image_url", "group"] {
            for of_item in [false, true] {
                let said = check(|v| {
                    let at = if of_item { &mut v["items"][0] } else { v };
                    at[member] = json!("/a");
                });
                // A sale has no group.
                let is_new = said.map(|sale| digests.insert(sale.digest()));
                assert_eq!(is_new.ok(), (of_item || member != "group").then_some(true), "{member}");
            }
        }
        let empty = check(|v| {
            v["description"] = json!("");
            v["items"][0]["image_url"] = Value::Null;
        });
        assert!(!digests.insert(empty.unwrap().digest()), "empty is none");
    }
}
