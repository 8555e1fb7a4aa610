//! A purchase: the request, and every outcome that it can have.

use super::ids::{IdempotencyKey, Sku, UserId};
use super::order::Order;
use super::sale::SaleState;
use super::time::Millis;

/// The most units that one request may ask for.
pub const QUANTITY_MAX: u32 = 100_000;

/// One shopper's request for units of one item.
#[derive(Debug, Clone)]
pub struct PurchaseRequest {
    pub user: UserId,
    /// The client's name for this request.
    pub key: IdempotencyKey,
    pub sku: Sku,
    /// How many units, 1 to [`QUANTITY_MAX`].
    pub quantity: u32,
}

/// The outcome of a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurchaseOutcome {
    /// Units are held for a new order.
    Reserved(Order),
    /// The order that this key already has.
    Replayed(Order),
    /// The key belongs to another request.
    KeyReused,
    /// The sale has a waiting room, and the shopper has not been admitted.
    AdmissionRequired,
    /// The sale requires a purchase token, and the request has none that is valid for it.
    TokenRequired,
    Banned,
    /// The shopper's window is full.
    RateLimited {
        /// Milliseconds until the window has room for a request.
        wait_ms: Millis,
    },
    /// The sale does not sell now.
    NotOpen(SaleState),
    /// The account did not pay for its last holds, and may not buy for a while.
    CoolingDown {
        /// Milliseconds until the account may buy again.
        wait_ms: Millis,
    },
    /// The account has the most unpaid holds that the sale allows.
    TooManyHolds,
    /// The shopper would have more units of this item than one shopper may have.
    LimitReached {
        /// The units that one shopper may have.
        limit: u32,
    },
    /// No shard has enough free units, and none are in transit.
    SoldOut,
    SaleNotFound,
    ItemNotFound,
    /// A refusal without a replay probe of the key: an earlier request may have an order under it.
    Unprobed(Box<Self>),
}

impl PurchaseOutcome {
    /// The same refusal, without a replay probe of the key.
    #[must_use]
    pub fn without_probe(self) -> Self {
        Self::Unprobed(Box::new(self))
    }

    /// Whether the key certainly has no order.
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
