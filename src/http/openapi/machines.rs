//! The routes of the payment provider and of machines, as the document describes them.

use super::operation::{ORDER_ID, Operation};
use super::schemas::Schemas;
use crate::domain::code::Code;
use crate::http::health::{Health, Readiness};
use crate::http::shop::webhooks::{Answer, Event};
use crate::metrics;
use serde_json::json;

pub fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let id =
        json!({"type": "string", "pattern": r"^[!-\-/-~]([ -\-/-~]*[!-\-/-~])?$", "minLength": 1, "maxLength": 255});
    let timestamp = json!({"type": "string", "pattern": "^[0-9]+$"});
    let text = || json!({"type": "string"});
    vec![
        Operation::of_provider(
            ["post", "/v1/webhooks/payments"],
            "tellPayment",
            "Tell that an order was paid",
        )
        .says(
            "Signed as in Standard Webhooks, over `webhook-id`, `webhook-timestamp` and the body. Money that \
             cannot be applied is recorded, never dropped: `refund_due` and `unmatched` are answered 200, too. \
             Repeat the request until it is answered 200.",
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
        .reads::<Event>(
            schemas,
            json!({"type": "payment.succeeded", "timestamp": "2026-11-22T09:01:00Z", "data": {"payment_id": "pay_1",
                "order_id": ORDER_ID, "amount_minor": 2500, "currency": "EUR"}}),
        )
        .answers::<Answer>(schemas, 200, "Recorded.", json!({"outcome": "applied"})),
        Operation::of_machines(["get", "/healthz"], "getHealth", "Does the process live?").answers::<Health>(
            schemas,
            200,
            "The process runs.",
            json!({"status": "ok"}),
        ),
        Operation::of_machines(["get", "/readyz"], "getReadiness", "Can the instance work?")
            .says(
                "Ready if Redis and Postgres answer, the schema is current, and Redis evicts nothing. The answer is at \
                 most half a second old. Without the operators' key, it names only what is missing. With the key, and \
                 at FLASHSALE_METRICS_LISTEN and FLASHSALE_ADMIN_LISTEN, it also says why and has `warnings`.",
            )
            .answers::<Readiness>(schemas, 200, "Ready.", json!({"status": "ready", "warnings": []}))
            .refuses(&[Code::Unavailable]),
        Operation::of_machines(
            ["get", "/metrics"],
            "getMetrics",
            "What has been counted, for Prometheus",
        )
        .answers_with(200, "The metrics of this instance.", metrics::CLASSIC, text(), None)
        .or_as(metrics::OPEN_METRICS),
        Operation::of_machines(["get", "/openapi.json"], "getDocument", "This document, as OpenAPI 3.1").answers_file(
            "The document.",
            "application/json",
            json!({"type": "object", "required": ["openapi", "info", "paths"]}),
        ),
        Operation::of_machines(["get", "/docs"], "getReference", "This document, to be read").answers_file(
            "The page.",
            "text/html; charset=utf-8",
            text(),
        ),
        Operation::of_machines(
            ["get", "/docs/reference.css"],
            "getReferenceStyle",
            "How the page looks",
        )
        .answers_file("The style sheet.", "text/css; charset=utf-8", text()),
        Operation::of_machines(["get", "/problems/{code}"], "explainProblem", "What a problem means")
            .says("The `type` of every problem leads here: what happened, and what a client does about it.")
            .takes(
                "path",
                "code",
                "The problem's code.",
                true,
                Schemas::alone::<Code>(),
                Some(Code::SoldOut.as_str().into()),
            )
            .answers_file("The page.", "text/html; charset=utf-8", text())
            .refuses(&[Code::NotFound]),
    ]
}
