//! How sales look from outside.

use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::{PurchaseRate, Sale, SaleState};
use crate::domain::sale_guards::ChallengeKind;
use crate::domain::time::{self, Millis, from_millis};
use crate::flow::stats::Glance;
use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// A page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// What is on it.
    pub data: Vec<T>,
    /// Whether another follows; ask for it with `starting_after` and the last one's id.
    pub has_more: bool,
}

/// The most that a page has, and what it has if nothing is said.
const PAGE_MAX: u32 = 100;

/// How many are asked for on a page that has at most `MAX`.
#[derive(Deserialize, Clone, Copy)]
#[serde(try_from = "u32")]
pub struct PageSize<const MAX: u32 = PAGE_MAX>(u32);

impl<const MAX: u32> PageSize<MAX> {
    /// How many that is.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl<const MAX: u32> Default for PageSize<MAX> {
    fn default() -> Self {
        Self(MAX)
    }
}

impl<const MAX: u32> TryFrom<u32> for PageSize<MAX> {
    type Error = String;
    fn try_from(size: u32) -> Result<Self, String> {
        if (1..=MAX).contains(&size) {
            Ok(Self(size))
        } else {
            Err(format!("a page has 1 to {MAX}"))
        }
    }
}

impl<const MAX: u32> JsonSchema for PageSize<MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "PageSize".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": 1, "maximum": MAX})
    }
}

/// Which page is asked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// At most so many; 100 if it is left out.
    #[serde(default)]
    pub limit: PageSize,
    /// Only those after the one with this id.
    pub starting_after: Option<SaleId>,
}

impl<T> Page<T> {
    /// The first `limit` of these, which are one more than that if another page follows.
    #[must_use]
    pub fn of(mut data: Vec<T>, limit: usize) -> Self {
        let has_more = data.len() > limit;
        data.truncate(limit);
        Self { data, has_more }
    }
}

/// A sale as operators see it.
#[derive(Serialize, JsonSchema)]
pub struct AdminSale {
    #[serde(flatten)]
    sale: Sale,
    /// Its state at `server_time`.
    state: SaleState,
    /// Redis's clock.
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
}

impl AdminSale {
    /// The sale at this moment.
    #[must_use]
    pub fn at(sale: Sale, now: Millis) -> Self {
        Self {
            state: sale.state_at(now),
            server_time: from_millis(now),
            sale,
        }
    }
}

/// How much of an item is left, coarsely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// More than a tenth.
    Available,
    /// A tenth or less.
    Low,
    /// Nothing; unpaid holds may still come back.
    SoldOut,
}

/// One product in a sale, as shoppers see it.
#[derive(Serialize, JsonSchema)]
struct PublicItem {
    /// Its SKU, unique in the sale.
    #[schemars(with = "Sku")]
    sku: String,
    /// Its name for people.
    name: String,
    /// Price of one unit in the currency's minor unit.
    price_minor: i64,
    /// ISO 4217.
    currency: String,
    /// Units that one shopper may hold and own.
    per_user_limit: u32,
    /// How much of it is left.
    availability: Availability,
}

/// What a shopper has to bring along.
#[derive(Serialize, JsonSchema)]
struct PublicGuards {
    /// Whether shoppers wait their turn: a purchase needs `X-Admission`.
    waiting_room: bool,
    /// Whether a purchase needs `X-Purchase-Token`.
    purchase_token: bool,
    /// What has to be solved for such a token.
    challenge: ChallengeKind,
    /// Whether a proof of work is taken in place of the picture of a captcha.
    captcha_proof: bool,
}

/// A sale as shoppers see it.
#[derive(Serialize, JsonSchema)]
pub struct PublicSale {
    /// Its id.
    id: SaleId,
    /// Its name for people.
    name: String,
    /// Its state at `server_time`.
    state: SaleState,
    /// When it starts to sell.
    #[serde(serialize_with = "time::serialize")]
    starts_at: DateTime<Utc>,
    /// When it stops.
    #[serde(serialize_with = "time::serialize")]
    ends_at: DateTime<Utc>,
    /// Redis's clock, for a countdown.
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
    /// How long a hold lasts, in seconds.
    payment_window_seconds: u32,
    /// How often one shopper may ask.
    purchase_rate: PurchaseRate,
    /// What a shopper has to bring along.
    guards: PublicGuards,
    /// What is sold.
    items: Vec<PublicItem>,
}

impl From<Arc<Glance>> for PublicSale {
    fn from(glance: Arc<Glance>) -> Self {
        let now = glance.now();
        let sale = &glance.sale;
        let items = sale.items.iter().map(|item| {
            // Before the sale is loaded, everything that it will have is free.
            let free = glance.free.get(&item.sku).copied().unwrap_or(item.stock);
            let availability = match free {
                ..=0 => Availability::SoldOut,
                free if free.saturating_mul(10) <= item.stock => Availability::Low,
                _ => Availability::Available,
            };
            PublicItem {
                sku: item.sku.to_string(),
                name: item.name.clone(),
                price_minor: item.price_minor,
                currency: item.currency.clone(),
                per_user_limit: item.per_user_limit,
                availability,
            }
        });
        Self {
            id: sale.id,
            name: sale.name.clone(),
            state: sale.state_at(now),
            starts_at: sale.starts_at,
            ends_at: sale.ends_at,
            server_time: from_millis(now),
            payment_window_seconds: sale.payment_window_seconds,
            purchase_rate: sale.purchase_rate,
            guards: PublicGuards {
                waiting_room: sale.guards.waiting_room,
                purchase_token: sale.guards.purchase_token,
                challenge: sale.guards.challenge,
                captcha_proof: sale.guards.take_proof_for_captcha(),
            },
            items: items.collect(),
        }
    }
}
