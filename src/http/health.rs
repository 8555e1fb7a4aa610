//! For machines: is the process alive, can it work, what has it counted.

use super::Api;
use super::problem::{Code, Problem};
use crate::flow;
use actix_web::HttpResponse;
use actix_web::web::Data;

/// `GET /healthz`
pub async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(serde_json::json!({"status": "ok"}))
}

/// `GET /readyz`
///
/// # Errors
/// The problem that is answered: why this instance cannot work.
pub async fn readyz(api: Data<Api>) -> Result<HttpResponse, Problem> {
    match flow::ready::readiness(&api.app).await {
        Ok(warnings) => Ok(HttpResponse::Ok().json(serde_json::json!({"status": "ready", "warnings": warnings}))),
        Err(reason) => Err(Problem::new(Code::Unavailable, reason)),
    }
}

/// `GET /metrics`
pub async fn metrics(api: Data<Api>) -> HttpResponse {
    let text = "text/plain; version=0.0.4; charset=utf-8";
    HttpResponse::Ok().content_type(text).body(api.metrics.encode())
}
