//! Whether Redis and Postgres answer this instance. Reads only.

use crate::domain::operator::report::Health;
use crate::flow;
use crate::http::Api;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::Operator;
use actix_web::HttpResponse;
use actix_web::web::Data;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/v1/admin/health", handler!(show_health), |it| {
    it.of_operators("showServers", "Do Redis and Postgres answer?")
        .says("As this instance sees it: how fast they answer now, or since when they do not.")
        .answers::<Health>(200, "How both servers answer.", example())
})];

async fn show_health(api: Data<Api>, _: Operator) -> HttpResponse {
    let health = Box::pin(flow::watch::readiness::health(&api.app, None)).await;
    HttpResponse::Ok().json(health)
}

/// Both servers in examples.
pub(super) fn example() -> Value {
    let well = json!({"milliseconds": 0.4, "fault": null, "answered_at": "2026-11-22T09:00:12.000Z"});
    json!({"redis": well, "postgres": well})
}
