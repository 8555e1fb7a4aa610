//! Payments, as the provider tells of them.

use super::ids::OrderId;
use super::plain::{NotPlain, plain};
use super::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::str::FromStr;

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
    /// Every outcome that a payment can be recorded with. One that comes again is not recorded again.
    pub const RECORDED: [Self; 4] = [Self::RefundDue, Self::Unmatched, Self::Pending, Self::Applied];

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

    /// The outcome of a recorded payment that `as_str` calls so.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::RECORDED.into_iter().find(|outcome| outcome.as_str() == name)
    }
}

/// Characters that a provider's name for a refund may have.
pub const REFERENCE_MAX: usize = 200;

/// What the provider calls the refund by which an operator has paid money back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefundReference(String);

impl RefundReference {
    /// The reference as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RefundReference {
    type Err = NotPlain;
    fn from_str(text: &str) -> Result<Self, NotPlain> {
        Ok(Self(plain(text, REFERENCE_MAX)?.to_owned()))
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
    /// When an operator said that this money was paid back.
    #[serde(serialize_with = "time::serialize_option")]
    pub settled_at: Option<DateTime<Utc>>,
    /// What the provider calls the refund by which it was paid back.
    pub settled_reference: Option<String>,
}

/// What came of saying that money was paid back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refund {
    /// It is noted, now or by the same request before.
    Settled(Box<RecordedPayment>),
    /// It was paid back by another refund.
    SettledAs(String),
    /// Nothing of this payment is owed back.
    NotDue(PaymentOutcome),
    /// There is no such payment.
    NoPayment,
}
