//! The payment provider's webhook, signed as in Standard Webhooks. A payment is answered 200 only once it is recorded
//! in Postgres; the provider repeats it until then.

use crate::domain::code::Code;
use crate::domain::order::payment::{Payment, PaymentOutcome};
use crate::domain::order::webhook;
use crate::flow;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::explain::parse_json;
use crate::http::extract::Body;
use crate::http::openapi::ORDER_ID;
use crate::http::problem::Problem;
use crate::http::{Api, OPERATOR_WAIT};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

pub const ROUTES: &[Endpoint] = &[Endpoint::post("/v1/webhooks/payments", handler!(payments), |it| {
    let id =
        json!({"type": "string", "pattern": r"^[!-\-/-~]([ -\-/-~]*[!-\-/-~])?$", "minLength": 1, "maxLength": 255});
    let timestamp = json!({"type": "string", "pattern": "^[0-9]+$"});
    it.of_provider("tellPayment", "Report a payment")
        .says(
            "Signed as in Standard Webhooks: `webhook-signature` is `v1,` and the base64 of an HMAC-SHA256 over \
             `webhook-id`, a dot, `webhook-timestamp`, a dot and the body. Its key is what follows `whsec_` in \
             `FLASHSALE_WEBHOOK_SECRET`, decoded from base64. Money that cannot be applied is recorded, never dropped: `refund_due` and `unmatched` are answered 200, too. Repeat the \
             request until it is answered 200.",
        )
        .takes(
            "header",
            "webhook-id",
            "The message's id, the same on every attempt. It has no dot.",
            true,
            id,
            Some("msg_1".into()),
        )
        .takes(
            "header",
            "webhook-timestamp",
            "When this attempt was made, in Unix seconds; at most five minutes off.",
            true,
            timestamp,
            None,
        )
        .reads::<PaymentEvent>(
            json!({"type": "payment.succeeded", "timestamp": "2026-11-22T09:01:00Z", "data": {
                "payment_id": format!("pay_{ORDER_ID}"), "order_id": ORDER_ID, "amount_minor": 2500,
                "currency": "EUR"}}),
        )
        .answers::<PaymentAnswer>(200, "Recorded.", json!({"outcome": "applied"}))
})];

/// The only event type that we accept.
const SUCCEEDED: &str = "payment.succeeded";
/// The most bytes of an id of the provider's: payment, order or message.
pub(in crate::http) const NAME_MAX: usize = 255;
const CURRENCY_MAX: usize = 16;
/// How the metrics count a delivery that was refused, and one that could not be recorded.
const REFUSED: &str = "refused";
const FAILED: &str = "failed";
/// Text without NUL, which Postgres cannot store.
pub(in crate::http) const NO_NUL: &str = r"^[^\u0000]*$";

/// The body of a webhook.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct PaymentEvent {
    /// The type of the event.
    #[schemars(extend("const" = SUCCEEDED))]
    r#type: String,
    /// When the payment was made, by the provider's clock.
    #[serde(rename = "timestamp")]
    _timestamp: DateTime<Utc>,
    /// The payment that succeeded.
    data: PaymentMade,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PaymentMade {
    /// The provider's id for the payment, unique for ever: 1 to 255 bytes of UTF-8, no NUL.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    payment_id: String,
    /// The order that was paid. Money for an unknown order is recorded, too.
    #[schemars(length(min = 1, max = NAME_MAX), regex(pattern = NO_NUL))]
    order_id: String,
    /// The amount in the currency's minor unit.
    #[schemars(range(min = 0, max = i64::MAX))]
    amount_minor: i64,
    /// The currency, in ISO 4217, in upper or lower case: 1 to 16 bytes of UTF-8, no NUL.
    #[schemars(length(min = 1, max = CURRENCY_MAX), regex(pattern = NO_NUL))]
    currency: String,
}

/// The outcome of a payment.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct PaymentAnswer {
    /// The outcome of the payment.
    pub outcome: PaymentOutcome,
}

async fn payments(api: Data<Api>, request: HttpRequest, Body(body): Body) -> Result<HttpResponse, Problem> {
    let header = |name: &str| {
        let value = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let delivery = Delivery {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
    };
    take_in(&api, &delivery, &body).await
}

/// The headers of a delivery that its signature covers, and the signature.
pub(in crate::http) struct Delivery<'a> {
    pub(in crate::http) id: &'a str,
    pub(in crate::http) timestamp: &'a str,
    pub(in crate::http) signature: &'a str,
}

/// Verifies a delivery and records its payment. Counts and times every outcome.
pub(in crate::http) async fn take_in(api: &Api, delivery: &Delivery<'_>, body: &[u8]) -> Result<HttpResponse, Problem> {
    let began = Instant::now();
    let (counted, outcome) = match read(api, delivery, body) {
        Err(problem) => (REFUSED, Err(problem)),
        Ok(payment) => {
            let app = Arc::clone(&api.app);
            let paying = async move { flow::settle::pay::pay(&app, &payment).await };
            match api.run(OPERATOR_WAIT, paying).await {
                Err(problem) => (FAILED, Err(problem)),
                Ok(outcome) => (outcome.as_str(), Ok(outcome)),
            }
        }
    };
    api.metrics.payments.of([counted]).inc();
    api.metrics.payment_duration.observe(began.elapsed());
    outcome.map(|outcome| HttpResponse::Ok().json(PaymentAnswer { outcome }))
}

/// The payment in a delivery, once the signature is verified.
fn read(api: &Api, delivery: &Delivery<'_>, body: &[u8]) -> Result<Payment, Problem> {
    let now = Utc::now().timestamp();
    let (id, timestamp, signature) = (delivery.id, delivery.timestamp, delivery.signature);
    // The signature covers the bytes as they came, so they are verified before they are parsed.
    let secret = api.webhook_secret.expose();
    webhook::verify(secret, id, timestamp, signature, body, now)
        .map_err(|wrong| Problem::new(Code::Unauthenticated, wrong.to_string()))?;
    parse_json::<PaymentEvent>(body)?.check(id)
}

/// Refuses a text that is empty, has more than `max` bytes, or has a NUL.
pub(in crate::http) fn check_text(name: &str, text: &str, max: usize) -> Result<(), Problem> {
    if text.is_empty() || text.len() > max || text.contains('\0') {
        return Err(Problem::invalid(format!("{name} must be 1 to {max} bytes without NUL")));
    }
    Ok(())
}

impl PaymentEvent {
    fn check(self, webhook_id: &str) -> Result<Payment, Problem> {
        if self.r#type != SUCCEEDED {
            return Err(Problem::invalid(format!("type must be {SUCCEEDED}")));
        }
        let PaymentMade {
            payment_id,
            order_id,
            amount_minor,
            currency,
        } = self.data;
        if amount_minor < 0 {
            return Err(Problem::invalid("data.amount_minor must not be negative"));
        }
        // Any other currency is still money: the payment is recorded and shown to an operator.
        check_text("data.currency", &currency, CURRENCY_MAX)?;
        check_text("data.payment_id", &payment_id, NAME_MAX)?;
        check_text("webhook-id", webhook_id, NAME_MAX)?;
        check_text("data.order_id", &order_id, NAME_MAX)?;
        Ok(Payment {
            payment_id,
            webhook_id: webhook_id.to_owned(),
            order_id,
            amount_minor,
            // Some providers write ISO 4217 in lower case.
            currency: currency.to_ascii_uppercase(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn whatever_comes_of_a_payment_is_counted_under_its_name() {
        let metrics = Metrics::default();
        for outcome in [
            PaymentOutcome::Applied,
            PaymentOutcome::Duplicate,
            PaymentOutcome::RefundDue,
            PaymentOutcome::Unmatched,
            PaymentOutcome::Pending,
        ] {
            assert!(metrics.payments.knows([outcome.as_str()]), "{outcome:?}");
        }
        assert!(metrics.payments.knows([REFUSED]) && metrics.payments.knows([FAILED]));
    }
}
