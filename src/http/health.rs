//! For machines: is the process alive, can it work, what has it counted.

use super::problem::{Code, Problem};
use crate::flow::{self, App};
use crate::metrics;
use actix_web::http::header::ACCEPT;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// That an instance lives.
#[derive(Serialize, JsonSchema)]
pub(super) struct Health {
    /// `ok`
    status: &'static str,
}

/// That an instance can work.
#[derive(Serialize, JsonSchema)]
pub(super) struct Readiness {
    /// `ready`
    status: &'static str,
    /// What operators should know of the settings of Redis; no reason not to work.
    warnings: BTreeSet<String>,
}

/// `GET /healthz`
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "ok" })
}

/// `GET /readyz`
///
/// # Errors
/// The problem that is answered: why this instance cannot work.
pub async fn readyz(app: Data<App>) -> Result<HttpResponse, Problem> {
    match flow::ready::readiness(&app).await {
        Ok(warnings) => Ok(HttpResponse::Ok().json(Readiness {
            status: "ready",
            warnings,
        })),
        Err(reason) => Err(Problem::new(Code::Unavailable, reason)),
    }
}

/// `GET /metrics`
pub async fn metrics(request: HttpRequest, app: Data<App>) -> HttpResponse {
    let accepted = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    // Prometheus names it first; a browser or curl does not know it.
    let is_open = accepted.is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let text = if is_open {
        metrics::OPEN_METRICS
    } else {
        metrics::CLASSIC
    };
    HttpResponse::Ok().content_type(text).body(app.metrics.encode(is_open))
}
