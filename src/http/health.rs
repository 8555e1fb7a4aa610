//! For machines: is the process alive, can it work, what has it counted.

use super::Api;
use super::problem::{Code, Problem};
use crate::flow;
use actix_web::HttpResponse;
use actix_web::web::Data;
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

/// How metrics are written.
pub(super) const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /healthz`
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "ok" })
}

/// `GET /readyz`
///
/// # Errors
/// The problem that is answered: why this instance cannot work.
pub async fn readyz(api: Data<Api>) -> Result<HttpResponse, Problem> {
    match flow::ready::readiness(&api.app).await {
        Ok(warnings) => Ok(HttpResponse::Ok().json(Readiness {
            status: "ready",
            warnings,
        })),
        Err(reason) => Err(Problem::new(Code::Unavailable, reason)),
    }
}

/// `GET /metrics`
pub async fn metrics(api: Data<Api>) -> HttpResponse {
    HttpResponse::Ok().content_type(METRICS_TEXT).body(api.metrics.encode())
}
