//! A purchase: what is asked and every answer that there can be.

use super::ids::{IdempotencyKey, Sku, UserId};
use super::order::Order;
use super::sale::SaleState;
use super::time::Millis;

/// The most units that one request may ask for.
pub const QUANTITY_MAX: u32 = 100_000;

/// One shopper's request for units of one item.
#[derive(Debug, Clone)]
pub struct PurchaseRequest {
    /// Who asks.
    pub user: UserId,
    /// The client's name for this request.
    pub key: IdempotencyKey,
    /// Which item.
    pub sku: Sku,
    /// How many units, 1 to [`QUANTITY_MAX`].
    pub quantity: u32,
}

/// The answer to a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurchaseOutcome {
    /// Units are held for a new order.
    Reserved(Order),
    /// The key's first answer again.
    Replayed(Order),
    /// The key belongs to another request.
    KeyReused,
    /// The sale has a waiting room, and the shopper has not been admitted.
    AdmissionRequired,
    /// The sale asks for a token, and there is none, or none that is good for this request.
    TokenRequired,
    /// The account is banned.
    Banned,
    /// The shopper's window is full for this long.
    RateLimited {
        /// Milliseconds until a request will be let through.
        wait_ms: Millis,
    },
    /// The sale does not sell now.
    NotOpen(SaleState),
    /// The account did not pay for what it held, and may not buy for this long.
    CoolingDown {
        /// Milliseconds until it may again.
        wait_ms: Millis,
    },
    /// The account has as many unpaid holds as it may.
    TooManyHolds,
    /// More than one shopper may have of this item.
    LimitReached {
        /// The units that one may have.
        limit: u32,
    },
    /// No shard holds enough, and none is on its way.
    SoldOut,
    /// There is no such sale.
    SaleNotFound,
    /// The sale has no such item.
    ItemNotFound,
    /// A refusal that was decided without a probe of the key: an earlier request may have an order under it.
    Unprobed(Box<Self>),
}

impl PurchaseOutcome {
    /// The same refusal, decided without a probe of the key.
    #[must_use]
    pub fn without_probe(self) -> Self {
        Self::Unprobed(Box::new(self))
    }

    /// Whether it is certain that the key has no order.
    #[must_use]
    pub const fn is_key_free(&self) -> bool {
        match self {
            Self::Reserved(_) | Self::Replayed(_) | Self::KeyReused | Self::SaleNotFound | Self::Unprobed(_) => false,
            Self::AdmissionRequired
            | Self::TokenRequired
            | Self::Banned
            | Self::RateLimited { .. }
            | Self::NotOpen(_)
            | Self::CoolingDown { .. }
            | Self::TooManyHolds
            | Self::LimitReached { .. }
            | Self::SoldOut
            | Self::ItemNotFound => true,
        }
    }
}
