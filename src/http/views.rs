//! How sales look from outside.

use crate::domain::ids::SaleId;
use crate::domain::sale::{PurchaseRate, Sale, SaleState};
use crate::domain::sale_guards::ChallengeKind;
use crate::domain::time::{self, Millis, from_millis};
use crate::flow::stats::Glance;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A page of a list.
#[derive(Serialize)]
pub struct Page<T> {
    /// What is on it.
    pub data: Vec<T>,
    /// Whether another follows; ask for it with `starting_after` and the last one's id.
    pub has_more: bool,
}

/// Which page is asked for.
#[derive(Deserialize)]
pub struct PageQuery {
    /// At most so many, 1 to 100.
    pub limit: Option<u32>,
    /// Only those after the one with this id.
    pub starting_after: Option<SaleId>,
}

impl PageQuery {
    /// How many to return.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.map_or(100, |limit| limit.clamp(1, 100) as usize)
    }
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
#[derive(Serialize)]
pub struct AdminSale {
    #[serde(flatten)]
    sale: Sale,
    state: SaleState,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// More than a tenth.
    Available,
    /// A tenth or less.
    Low,
    /// Nothing; unpaid holds may still come back.
    SoldOut,
}

#[derive(Serialize)]
struct PublicItem {
    sku: String,
    name: String,
    price_minor: i64,
    currency: String,
    per_user_limit: u32,
    availability: Availability,
}

/// What a shopper has to bring along.
#[derive(Serialize)]
struct PublicGuards {
    waiting_room: bool,
    purchase_token: bool,
    challenge: ChallengeKind,
}

/// A sale as shoppers see it.
#[derive(Serialize)]
pub struct PublicSale {
    id: SaleId,
    name: String,
    state: SaleState,
    #[serde(serialize_with = "time::serialize")]
    starts_at: DateTime<Utc>,
    #[serde(serialize_with = "time::serialize")]
    ends_at: DateTime<Utc>,
    #[serde(serialize_with = "time::serialize")]
    server_time: DateTime<Utc>,
    payment_window_seconds: u32,
    purchase_rate: PurchaseRate,
    guards: PublicGuards,
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
            },
            items: items.collect(),
        }
    }
}
