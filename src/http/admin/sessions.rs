//! The sessions of all consoles: list them, and end one.

use crate::domain::code::Code;
use crate::domain::operator::console::{ListedSession, SESSIONS_MAX};
use crate::flow::operate::console;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Operator};
use crate::http::openapi::SESSION_ID;
use crate::http::problem::Problem;
use crate::http::views::Page;
use crate::http::{Api, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/sessions", handler!(list_sessions), |it| {
        it.of_operators("listSessions", "List the console's sessions")
            .says("The newest first. A session without a request or an open stream for an hour has ended.")
            .answers_page::<ListedSession>("The 100 newest sessions.", example())
    }),
    Endpoint::post("/v1/admin/sessions/end", handler!(end_listed), |it| {
        it.of_operators("endSession", "End a session of the console")
            .says("It ends on every instance. While Postgres answers, its streams end within about ten seconds.")
            .reads::<EndBody>(json!({"session_id": SESSION_ID}))
            .answers::<ListedSession>(200, "The session as it was.", example())
            .refuses(&[Code::NotFound])
    }),
];

/// The session to end.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndBody {
    /// As the list and the audit log name it.
    session_id: Uuid,
}

async fn list_sessions(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let sessions = api.for_operator(|app| async move { console::sessions(&app, SESSIONS_MAX + 1).await });
    let all = usize::try_from(SESSIONS_MAX).unwrap_or(usize::MAX);
    Ok(HttpResponse::Ok().json(Page::of(sessions.await?, all)))
}

async fn end_listed(api: Data<Api>, _: Operator, Json(body): Json<EndBody>) -> Result<HttpResponse, Problem> {
    let ended = api.for_operator(move |app| async move { console::end_session(&app, body.session_id).await });
    Ok(HttpResponse::Ok().json(found(ended.await?, "session of this id")?))
}

fn example() -> Value {
    json!({"session_id": SESSION_ID, "name": "ada", "address": "192.0.2.7", "created_at": "2026-11-22T09:00:00.000Z",
        "last_used_at": "2026-11-22T10:30:00.000Z", "expires_at": "2026-11-22T21:00:00.000Z"})
}
