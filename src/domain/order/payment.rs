//! Payments, as the provider reports them.

use crate::domain::ids::OrderId;
use crate::domain::plain::plain_text;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A payment that has succeeded at the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// The provider's id for the payment, unique for ever.
    pub payment_id: String,
    /// The provider's id for the message, unique for ever.
    pub webhook_id: String,
    /// The provider's text for the paid order: normally the order's id.
    pub order_id: String,
    /// The amount in the currency's minor unit.
    pub amount_minor: i64,
    /// The currency, normally in ISO 4217.
    pub currency: String,
}

impl Payment {
    /// The paid order, if the text is an order's id.
    pub fn order(&self) -> Option<OrderId> {
        self.order_id.parse().ok()
    }
}

/// The outcome of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaymentOutcome {
    /// The order is paid.
    Applied,
    /// This payment was recorded before.
    Duplicate,
    /// Recorded; the money must be paid back.
    RefundDue,
    /// Recorded; there is no such order.
    Unmatched,
    /// Recorded; the order is on its way to Postgres.
    Pending,
}

impl PaymentOutcome {
    /// The outcomes of recorded payments. A duplicate is not recorded again.
    pub const RECORDED: [Self; 4] = [Self::RefundDue, Self::Unmatched, Self::Pending, Self::Applied];

    /// The name in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::RefundDue => "refund_due",
            Self::Unmatched => "unmatched",
            Self::Pending => "pending",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::RECORDED.into_iter().find(|outcome| outcome.as_str() == name)
    }
}

/// The most characters of a refund's reference.
pub const REFERENCE_MAX: usize = 200;

plain_text! {
    /// The provider's name for the refund by which an operator paid money back.
    RefundReference REFERENCE_MAX
}

/// A payment as it was recorded, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordedPayment {
    /// The provider's id for the payment.
    pub payment_id: String,
    /// The paid order, as the provider named it.
    pub order_id: String,
    /// The amount in the currency's minor unit.
    pub amount_minor: i64,
    /// The currency, normally in ISO 4217.
    pub currency: String,
    /// The outcome of the payment.
    pub outcome: PaymentOutcome,
    /// Why the money must be paid back.
    pub reason: Option<String>,
    /// When the payment arrived.
    #[serde(serialize_with = "time::serialize")]
    pub received_at: DateTime<Utc>,
    /// When an operator recorded that the money was paid back.
    #[serde(serialize_with = "time::serialize_option")]
    pub settled_at: Option<DateTime<Utc>>,
    /// The provider's name for the refund.
    pub settled_reference: Option<String>,
}

impl RecordedPayment {
    /// The payment's place among others by time: its time and its id.
    pub fn place(&self) -> (DateTime<Utc>, String) {
        (self.received_at, self.payment_id.clone())
    }

    /// Whether a payment with the same id is this one again, with the same order and amount.
    pub fn is_repeated_by(&self, payment: &Payment) -> bool {
        self.order_id == payment.order_id
            && self.amount_minor == payment.amount_minor
            // Earlier versions recorded a currency as it came.
            && self.currency.eq_ignore_ascii_case(&payment.currency)
    }
}

/// The outcome of recording a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refund {
    /// The refund is recorded, now or by the same request before.
    Settled(RecordedPayment),
    /// Another refund is recorded for this payment.
    SettledAs(String),
    /// None of this payment must be paid back.
    NotDue(PaymentOutcome),
    NoPayment,
}
