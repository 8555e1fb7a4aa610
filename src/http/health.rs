//! Routes for machines: whether the process runs, whether it can serve, and its metrics.

use crate::domain::code::Code;
use crate::flow::{self, App};
use crate::http::admin::operator;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::accepts;
use crate::http::problem::Problem;
use crate::metrics;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/healthz", handler!(healthz), |it| {
        it.of_machines("getHealth", "Does the process live?").answers::<Health>(
            200,
            "The process runs.",
            json!({"status": "ok"}),
        )
    }),
    Endpoint::get("/readyz", handler!(readyz), |it| {
        it.of_machines("getReadiness", "Can the instance work?")
            .says(
                "Ready if Redis and Postgres answer, the schema is current, and Redis evicts nothing. The answer is \
                 at most half a second old. Without the operators' key, it names only what is missing. With the key, \
                 and at FLASHSALE_METRICS_LISTEN and FLASHSALE_ADMIN_LISTEN, it also says why and has `warnings`.",
            )
            .answers::<Readiness>(200, "Ready.", json!({"status": "ready", "warnings": []}))
            .refuses(&[Code::Unavailable])
    }),
];

pub const METRICS_ROUTES: &[Endpoint] = &[Endpoint::get("/metrics", handler!(metrics), |it| {
    it.of_machines("getMetrics", "What has been counted, for Prometheus")
        .answers_with(
            200,
            "The metrics of this instance.",
            metrics::CLASSIC,
            json!({"type": "string"}),
            None,
        )
        .or_as(metrics::OPEN_METRICS)
})];

/// The answer of a process that runs.
#[derive(Serialize, JsonSchema)]
pub(super) struct Health {
    /// `ok`
    status: &'static str,
}

/// The answer of an instance that is ready to serve.
#[derive(Serialize, JsonSchema)]
pub(super) struct Readiness {
    /// `ready`
    status: &'static str,
    /// Warnings about the settings of Redis, for operators. The instance serves all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<BTreeSet<String>>,
}

/// Marks a listener whose clients may read why an instance is not ready.
pub struct Trusted;

pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "ok" })
}

/// Every client learns that this instance is not ready; operators also learn why.
async fn readyz(request: HttpRequest, app: Data<App>) -> Result<HttpResponse, Problem> {
    let is_trusted = request.app_data::<Trusted>().is_some() || operator::shows_key(&request);
    match &*flow::watch::readiness::readiness(&app).await {
        Ok(warnings) => Ok(HttpResponse::Ok().json(Readiness {
            status: "ready",
            warnings: is_trusted.then(|| warnings.clone()),
        })),
        Err(not_ready) => {
            let reason = if is_trusted {
                not_ready.reason.as_str()
            } else {
                not_ready.cause.as_str()
            };
            Err(Problem::not_ready(reason))
        }
    }
}

async fn metrics(request: HttpRequest, app: Data<App>) -> HttpResponse {
    // Prometheus asks for OpenMetrics. Browsers and curl do not know it and get the classic format.
    let is_open = accepts(&request, "application/openmetrics-text");
    let text = if is_open {
        metrics::OPEN_METRICS
    } else {
        metrics::CLASSIC
    };
    HttpResponse::Ok().content_type(text).body(app.metrics.encode(is_open))
}
