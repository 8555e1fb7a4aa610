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
}
