//! Sales as answers show them, to operators and to shoppers.

use crate::domain::ids::{SaleId, Sku};
use crate::domain::sale::guards::{ChallengeKind, SaleGuards, SaleStages};
use crate::domain::sale::message::SaleMessage;
use crate::domain::sale::{PurchaseRate, Sale, SaleState};
use crate::domain::stage::Stage;
use crate::domain::time::{self, Millis, from_millis};
use crate::flow::sell::glance::{Glance, Releases};
use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// One page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// The entries of this page.
    pub data: Vec<T>,
    /// Whether more entries follow. Ask for them with `starting_after` and the last entry's id.
    pub has_more: bool,
}

/// The most entries of a page, and the default.
const PAGE_MAX: u32 = 100;

/// How many entries a page may have, at most `MAX`.
#[derive(Deserialize, Clone, Copy)]
#[serde(try_from = "u32")]
pub struct PageSize<const MAX: u32 = PAGE_MAX>(u32);

impl<const MAX: u32> PageSize<MAX> {
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

/// Which page of a list to return.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// At most so many entries; 100 by default.
    #[serde(default)]
    pub limit: PageSize,
    /// Lists only the entries after the one with this id.
    pub starting_after: Option<SaleId>,
}

impl<T> Page<T> {
    /// A page of at most `limit` of these. The caller reads one more, which says that another page follows.
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
    /// The message to the sale's shoppers.
    message: SaleMessage,
    /// The sale's state at `server_time`.
    state: SaleState,
    /// The clock of Redis.
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
}

impl AdminSale {
    pub fn at(sale: Sale, now: Millis) -> Self {
        Self {
            state: sale.state_at(now),
            server_time: from_millis(now),
            message: sale.message.clone(),
            sale,
        }
    }
}

/// Roughly how many units of an item are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// More than a tenth of the stock is free.
    Available,
    /// A tenth of the stock, rounded up, or less is free.
    Low,
    /// No unit is free. Held units may come back if they are not paid for.
    SoldOut,
}

/// An item of a sale, as shoppers see it.
#[derive(Serialize, JsonSchema)]
pub struct PublicItem {
    /// The item's SKU, unique in the sale.
    #[schemars(with = "Sku")]
    sku: String,
    /// The item's name.
    pub(super) name: String,
    /// The price of one unit, in the currency's minor unit.
    pub(super) price_minor: i64,
    /// The currency of the price, in ISO 4217.
    pub(super) currency: String,
    /// The most units that one shopper may have, held or paid.
    pub(super) per_user_limit: u32,
    /// Roughly how many units are free.
    pub(super) availability: Availability,
    /// Of a sold-out item: whether unpaid orders hold units, which may come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_hold: Option<bool>,
    /// Of a sold-out item: when the time to pay for the first held unit ends. Missing if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DateTime<Utc>")]
    pub(super) next_release_at: Option<String>,
    /// What the item is, in plain text with line breaks; absent if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    /// The address of the item's picture; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_url: Option<String>,
    /// The thing of which the item is a variant; absent if it is none. The variants of one thing have the same group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    /// Which variant of the group it is, such as a size; absent if it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) option: Option<String>,
}

/// What a purchase in the sale requires of each shopper.
#[derive(Serialize, JsonSchema)]
pub struct PublicGuards {
    /// Whether shoppers wait in a waiting room: then a purchase needs `X-Admission`.
    pub(super) waiting_room: bool,
    /// Whether a purchase needs `X-Purchase-Token`.
    purchase_token: bool,
    /// The challenge to solve for a purchase token.
    challenge: ChallengeKind,
    /// Whether a shopper may solve a proof of work in place of the captcha.
    captcha_proof: bool,
    /// How many unpaid orders an account may have in this sale. Absent without such a limit, and if a stage gives some
    /// shoppers another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    holds_max: Option<u32>,
    /// What some shoppers need while operators try a guard. A refusal tells a shopper that this is one of them. Absent if
    /// no guard is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    staged: Option<StagedGuards>,
}

/// What a purchase in the sale requires of some shoppers.
#[derive(Serialize, JsonSchema, PartialEq, Default)]
pub struct StagedGuards {
    /// Whether they need `X-Admission`. They take their places once the sale is open.
    waiting_room: bool,
    /// Whether they need `X-Purchase-Token`, or purchases without one are counted. Send one with each purchase, if you get
    /// one.
    purchase_token: bool,
    /// The challenge that they solve for a purchase token.
    challenge: ChallengeKind,
}

impl PublicGuards {
    pub(super) fn of(guards: &SaleGuards, stages: &SaleStages) -> Self {
        let (of_all, of_some) = (guards.of_all(stages), guards.with_stages(stages));
        // In shadow, too: then it counts those who buy past the pages.
        let has_token_stage = stages
            .purchase_token
            .is_some_and(|stage| stage.value && stage.picks_some());
        let staged = StagedGuards {
            waiting_room: of_some.waiting_room && !of_all.waiting_room,
            purchase_token: has_token_stage && !of_all.purchase_token,
            challenge: Some(of_some.challenge)
                .filter(|challenge| *challenge != of_all.challenge)
                .unwrap_or_default(),
        };
        let is_one_for_all = |stage: Stage<u32>| !stage.picks_some() || stage.of_all().is_some();
        Self {
            waiting_room: of_all.waiting_room,
            purchase_token: of_all.purchase_token,
            challenge: of_all.challenge,
            captcha_proof: of_some.take_proof_for_captcha(),
            holds_max: Some(of_all.holds_max).filter(|most| *most > 0 && stages.holds_max.is_none_or(is_one_for_all)),
            staged: Some(staged).filter(|staged| *staged != StagedGuards::default()),
        }
    }
}

/// A sale as shoppers see it.
#[derive(Serialize, JsonSchema)]
pub struct PublicSale {
    /// The sale's id.
    pub(super) id: SaleId,
    /// The sale's name.
    pub(super) name: String,
    /// What the sale is about, in plain text with line breaks; absent if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    /// The address of the sale's picture; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_url: Option<String>,
    /// The sale's state at `server_time`.
    pub(super) state: SaleState,
    /// When the sale starts to sell.
    #[serde(serialize_with = "time::serialize")]
    pub(super) starts_at: DateTime<Utc>,
    /// When the sale stops selling.
    #[serde(serialize_with = "time::serialize")]
    pub(super) ends_at: DateTime<Utc>,
    /// The clock of Redis. Use it for a countdown.
    #[serde(serialize_with = "time::serialize")]
    pub(super) server_time: DateTime<Utc>,
    /// How long a hold lasts, in seconds.
    payment_window_seconds: u32,
    /// How many purchases one shopper may attempt in a time window.
    purchase_rate: PurchaseRate,
    /// What a purchase in the sale requires.
    pub(super) guards: PublicGuards,
    /// The message to the sale's shoppers; absent if there is none.
    #[serde(skip_serializing_if = "SaleMessage::is_empty")]
    pub(super) message: SaleMessage,
    /// The items for sale.
    pub(super) items: Vec<PublicItem>,
}

impl PublicSale {
    pub fn of(glance: &Glance, releases: &Releases) -> Self {
        let now = glance.now();
        let sale = &glance.sale;
        let guards = PublicGuards::of(&sale.guards, &sale.staged_guards);
        let items = sale.items.iter().map(|item| {
            // Before the preload, all the stock is free.
            let free = glance.free.get(&item.sku).copied().unwrap_or(item.stock);
            let availability = match free {
                ..=0 => Availability::SoldOut,
                // A tenth, rounded up: the last unit of a few is low, too.
                free if free.saturating_mul(10) < item.stock.saturating_add(10) => Availability::Low,
                _ => Availability::Available,
            };
            let is_sold_out = availability == Availability::SoldOut;
            let release = releases.get(&item.sku).filter(|_| is_sold_out);
            PublicItem {
                sku: item.sku.to_string(),
                name: item.name.clone(),
                price_minor: item.price_minor,
                currency: item.currency.clone(),
                per_user_limit: item.per_user_limit,
                availability,
                on_hold: is_sold_out.then(|| glance.on_hold.contains(&item.sku)),
                next_release_at: release.map(time::format),
                description: item.description.clone(),
                image_url: item.image_url.clone(),
                group: item.group.clone(),
                option: item.option.clone(),
            }
        });
        Self {
            id: sale.id,
            name: sale.name.clone(),
            description: sale.description.clone(),
            image_url: sale.image_url.clone(),
            state: sale.state_at(now),
            starts_at: sale.starts_at,
            ends_at: sale.ends_at,
            server_time: from_millis(now),
            payment_window_seconds: sale.payment_window_seconds,
            purchase_rate: sale.purchase_rate,
            guards,
            message: sale.message.clone(),
            items: items.collect(),
        }
    }
}
