//! An order: a hold on units from its first moment, until it is paid or given back.

use super::event::Position;
use super::ids::{OrderId, SaleId, Sku, UserId};
use super::payment::RecordedPayment;
use super::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Where an order stands. It leaves `Reserved` once, and no other state is ever left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// Units are held for the shopper until the deadline.
    Reserved,
    /// The money came in time; the units are sold.
    Paid,
    /// The shopper gave the units back.
    Cancelled,
    /// The deadline passed; the units went back.
    Expired,
    /// Accepted by a Redis that had lost data, refused by the ledger so that nothing is oversold.
    Revoked,
}

impl OrderState {
    /// Every state, in the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::Reserved,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::Revoked,
    ];

    /// The state's code in packed records and script arguments.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Reserved => 0,
            Self::Paid => 1,
            Self::Cancelled => 2,
            Self::Expired => 3,
            Self::Revoked => 4,
        }
    }

    /// The state with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The state's name, as in JSON and SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl fmt::Display for OrderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for OrderState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| format!("no order state is called {text:?}"))
    }
}

/// An order as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Order {
    /// Its id.
    pub id: OrderId,
    /// The sale it is in.
    pub sale_id: SaleId,
    /// What was bought.
    pub sku: Sku,
    /// How many units.
    pub quantity: u32,
    /// What it costs, in the currency's minor unit.
    pub amount_minor: i64,
    /// ISO 4217.
    pub currency: String,
    /// Where it stands.
    pub state: OrderState,
    /// Whether Postgres has committed it.
    pub confirmed: bool,
    /// When the stock accepted it, by Redis's clock.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// Until when it can be paid for certain.
    #[serde(serialize_with = "time::serialize")]
    pub expires_at: DateTime<Utc>,
    /// When the payment was applied.
    #[serde(serialize_with = "time::serialize_option")]
    pub paid_at: Option<DateTime<Utc>>,
    /// Whose it is; nobody else is shown it.
    #[serde(skip)]
    pub user: UserId,
}

/// An order as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OwnedOrder {
    /// Whose it is.
    pub user: UserId,
    /// The order itself.
    #[serde(flatten)]
    pub order: Order,
    /// Payments that were matched with it, also those that are owed back.
    pub payments: Vec<RecordedPayment>,
}

/// Whose orders an operator asks for. There is no asking for those of everybody in every sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrdersOf {
    /// All of a sale.
    Sale(SaleId),
    /// An account's, in one sale or in any.
    User(UserId, Option<SaleId>),
}

/// An order of the ledger, and the event that brought it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The order.
    pub order: Order,
    /// Where its event stood in its shard's stream.
    pub event: Position,
}

/// What came of asking to cancel an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It is cancelled, now or since before.
    Cancelled(Order),
    /// It has left `reserved` another way.
    NotCancellable(OrderState),
    /// The shopper has no such order.
    NotFound,
}
