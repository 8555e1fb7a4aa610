//! An order: it holds units from its first moment until it is paid or gives them back.

pub mod dead_letter;
pub mod event;
pub mod outage;
pub mod payment;
pub mod purchase;
pub mod wanted;
pub mod webhook;

use super::deployment::server::ReplicationId;
use super::ids::{OrderId, SaleId, Sku, UserId};
use super::names::names;
use super::time;
use chrono::{DateTime, Utc};
use event::Position;
use payment::RecordedPayment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wanted::Place;

/// An order's state. It leaves `Reserved` once, and no other state is ever left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// The order holds units for the shopper until the deadline.
    Reserved,
    /// The order is paid; the units are sold.
    Paid,
    /// The shopper gave the units back.
    Cancelled,
    /// The deadline has passed; the units went back.
    Expired,
    /// Redis accepted the order and then lost data. Postgres refused the order, so that nothing is oversold.
    Revoked,
}

// In the order of the codes.
names! {
    OrderState as "order state": Reserved "reserved", Paid "paid", Cancelled "cancelled", Expired "expired", Revoked "revoked"
}

impl OrderState {
    /// The state's code in packed records and script arguments.
    pub const fn code(self) -> u8 {
        match self {
            Self::Reserved => 0,
            Self::Paid => 1,
            Self::Cancelled => 2,
            Self::Expired => 3,
            Self::Revoked => 4,
        }
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// An order as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Order {
    /// The order's id.
    pub id: OrderId,
    /// The order's sale.
    pub sale_id: SaleId,
    /// The ordered item.
    pub sku: Sku,
    /// How many units were ordered.
    pub quantity: u32,
    /// The order's price, in the currency's minor unit.
    pub amount_minor: i64,
    /// The currency of the price, in ISO 4217.
    pub currency: String,
    /// The order's state.
    pub state: OrderState,
    /// Whether Postgres has committed the order.
    pub confirmed: bool,
    /// When Redis accepted the order, by its own clock.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// The payment deadline. A later payment may still succeed, but need not.
    #[serde(serialize_with = "time::serialize")]
    pub expires_at: DateTime<Utc>,
    /// When the payment was applied.
    #[serde(serialize_with = "time::serialize_option")]
    pub paid_at: Option<DateTime<Utc>>,
    /// The shopper, the only one who may see the order.
    #[serde(skip)]
    pub user: UserId,
}

impl Order {
    pub const fn place(&self) -> Place<OrderId> {
        (self.created_at, self.id)
    }
}

/// An order as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OwnedOrder {
    /// The shopper whose order it is.
    pub user: UserId,
    /// The order.
    #[serde(flatten)]
    pub order: Order,
    /// The payments for this order, including those to be paid back.
    pub payments: Vec<RecordedPayment>,
}

/// A payment as operators list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedPayment {
    /// The payment.
    #[serde(flatten)]
    pub payment: RecordedPayment,
    /// The order that the payment names, as it is now; null if there is none.
    pub order: Option<Order>,
}

/// An order in Postgres, with the event that brought it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    pub order: Order,
    /// The event's position in its shard's stream.
    pub event: Position,
    /// The server that the event was drained from, if the ledger still has it for the shard, under a name of this version.
    pub by: Option<ReplicationId>,
}

/// The outcome of a request to cancel an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The order is cancelled, now or by an earlier request.
    Cancelled(Order),
    /// The order was paid, has expired or was revoked.
    NotCancellable(OrderState),
    NotFound,
}
