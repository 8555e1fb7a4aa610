//! Payments, as the provider tells of them.

use super::ids::OrderId;
use super::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

/// A payment that has succeeded at the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// The provider's id for the payment, unique for ever.
    pub payment_id: String,
    /// The provider's id for the message, unique for ever.
    pub webhook_id: String,
    /// What it says was paid: an order's id, if all is well.
    pub order_id: String,
    /// How much, in the currency's minor unit.
    pub amount_minor: i64,
    /// ISO 4217, if all is well.
    pub currency: String,
}

impl Payment {
    /// The order that was paid, if the text is an order's id.
    #[must_use]
    pub fn order(&self) -> Option<OrderId> {
        self.order_id.parse().ok()
    }
}

/// What became of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentOutcome {
    /// The order is paid.
    Applied,
    /// This very payment was recorded before.
    Duplicate,
    /// Recorded; the money is owed back.
    RefundDue,
    /// Recorded; there is no such order.
    Unmatched,
    /// Recorded; the order is on its way to the ledger.
    Pending,
}

impl PaymentOutcome {
    /// The outcome's name, as in JSON and SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::RefundDue => "refund_due",
            Self::Unmatched => "unmatched",
            Self::Pending => "pending",
        }
    }
}

/// A payment as it was recorded, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordedPayment {
    /// The provider's id.
    pub payment_id: String,
    /// What it was for, as the provider said.
    pub order_id: String,
    /// How much.
    pub amount_minor: i64,
    /// ISO 4217.
    pub currency: String,
    /// What became of it.
    pub outcome: PaymentOutcome,
    /// Why money is owed back.
    pub reason: Option<String>,
    /// When it came in.
    #[serde(serialize_with = "time::serialize")]
    pub received_at: DateTime<Utc>,
}
