//! Whether Redis and Postgres answer this instance, and how many guard warnings are recent. Reads only.

use crate::domain::operator::report::Health;
use crate::flow::operate::guards;
use crate::flow::watch::readiness;
use crate::http::Api;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::Operator;
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/v1/admin/health", handler!(show_health), |it| {
    let mut shown = example();
    shown["recent_warnings"] = 3.into();
    it.of_operators("showServers", "Do Redis and Postgres answer?")
        .says("As this instance sees it: how fast they answer now, or since when they do not.")
        .answers::<HealthView>(200, "How both servers answer.", shown)
})];

/// How both servers answer, and what the console shows on each page besides.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct HealthView {
    #[serde(flatten)]
    health: Health,
    /// How many guard warnings were raised in the last 15 minutes; 100 if there were more. Null if Postgres did not answer
    /// in time. The audit log records no read of it: it shows no account.
    recent_warnings: Option<i64>,
}

async fn show_health(api: Data<Api>, _: Operator) -> HttpResponse {
    let health = Box::pin(readiness::health(&api.app, None));
    let warnings = Box::pin(guards::recent_warnings(&api.app));
    let (health, warnings) = tokio::join!(health, warnings);
    HttpResponse::Ok().json(HealthView {
        health,
        recent_warnings: warnings.ok(),
    })
}

/// Both servers in examples.
pub(super) fn example() -> Value {
    let well = json!({"milliseconds": 0.4, "fault": null, "answered_at": "2026-11-22T09:00:12.000Z"});
    json!({"redis": well, "postgres": well})
}
