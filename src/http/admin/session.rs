//! The session of one console: sign in, show, sign out. The session is in Postgres before the browser gets its cookie.

use crate::domain::code::Code;
use crate::domain::operator::console::{
    Actor, NewAction, OPERATOR_MAX, OperatorName, SESSION_SECONDS, Session, SessionSecret,
};
use crate::domain::operator::keys::{OperatorKey, OperatorRole};
use crate::domain::plain::PLAIN_PATTERN;
use crate::domain::time;
use crate::flow::operate::console;
use crate::http::Api;
use crate::http::admin::audit_log::{SESSION_PATH, before_it_began, begin_action, note};
use crate::http::admin::operator::{
    REQUEST_TOKEN, SECURE_SESSION_COOKIE, cookie_name, find_session, identify, is_from_here, secret_of, to_the_end,
    wrong_key,
};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, OpenSession, parsed};
use crate::http::gateway;
use crate::http::openapi::{Header, KEY, SESSION_ID, Who};
use crate::http::problem::Problem;
use actix_web::http::header::{CACHE_CONTROL, SET_COOKIE};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/session", handler!(show), |it| {
        it.of_sessions(Who::Console, "showSession", "Show the console's session")
            .says("No session is not an error.")
            .answers::<SessionView>(200, "The session, if there is one.", json!({"signed_in": false}))
    }),
    Endpoint::post("/v1/admin/session", handler!(sign_in), |it| {
        let session = json!({"signed_in": true, "session_id": SESSION_ID, "name": "ada",
        "role": "all", "expires_at": "2026-11-22T21:00:00.000Z", "request_token": "q1m2…", "request_token_header": REQUEST_TOKEN});
        it.of_sessions(Who::Anybody, "signIn", "Sign in at the console")
            .says(
                "Exchanges the operators' key for a cookie, which the browser keeps and sends. Only a page of this \
                 instance may ask. Programs need no session: they send the key.",
            )
            .reads::<SignInBody>(json!({"key": KEY, "name": "ada"}))
            .answers::<SessionView>(201, "The session.", session)
            .with_header(Header::COOKIE)
            .refuses(&[Code::Unauthenticated, Code::ConsoleTokenRequired, Code::RateLimited])
    }),
    Endpoint::delete("/v1/admin/session", handler!(sign_out), |it| {
        it.of_sessions(Who::Session, "signOut", "Sign out of the console")
            .says("Ends the session on every instance.")
            .answers::<SessionView>(200, "It has ended.", json!({"signed_in": false}))
            .with_header(Header::COOKIE)
            .refuses(&[Code::Unauthenticated, Code::ConsoleTokenRequired, Code::InvalidRequest])
    }),
];

/// How often a stream checks whether its session has ended.
pub(super) const SESSION_CHECK_EVERY: Duration = Duration::from_secs(10);
/// The longest that one check may take.
const SESSION_CHECK_MAX: Duration = Duration::from_secs(5);

/// The request to sign in.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInBody {
    /// A key of the operators.
    key: String,
    /// The operator's name for the audit log. It is not verified. A named key has its own.
    #[schemars(length(min = 1, max = OPERATOR_MAX), regex(pattern = PLAIN_PATTERN))]
    name: Option<String>,
}

/// Whether the browser is signed in, and what the console's pages need for it.
#[derive(Default, Serialize, JsonSchema)]
pub struct SessionView {
    /// Whether there is a session.
    signed_in: bool,
    /// The session's id. It is not a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<Uuid>,
    /// The name that the operator gave at sign-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// What the session may do, by the key that it began with. The console hides what it may not.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<OperatorRole>,
    /// When the session ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DateTime<Utc>>")]
    expires_at: Option<String>,
    /// Send this token with every request that changes something, if the cookie identifies you.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_token: Option<String>,
    /// The name of the header for `request_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_token_header: Option<&'static str>,
}

/// Exchanges the operators' key for a cookie.
async fn sign_in(api: Data<Api>, request: HttpRequest, Json(body): Json<SignInBody>) -> Result<HttpResponse, Problem> {
    if !is_from_here(&request) {
        return Err(Problem::new(
            Code::ConsoleTokenRequired,
            "sign in from a page of this instance: this request came from another origin",
        ));
    }
    let address = gateway::address_of(&api, &request)
        .ok_or_else(|| Problem::new(Code::Unavailable, "this request's address is not known"))?;
    let name: Option<OperatorName> = body.name.as_deref().map(|text| parsed("name", text)).transpose()?;
    let Some(key) = api.operator_keys.expose().find(body.key.as_bytes()).cloned() else {
        return Err(match wrong_key(&api, &request) {
            None => Problem::new(Code::Unauthenticated, "key: this is not the operators' key"),
            Some(wait) => {
                let detail = "too many wrong keys from this address; the right key is accepted at any time";
                Problem::wait(Code::RateLimited, detail, wait)
            }
        });
    };
    let name = key.name.clone().or(name);
    let begun = begin_session(api.clone(), Arc::clone(&key), name, address);
    let (session, secret) = to_the_end(begun).await??;
    let cookie = cookie(&secret.encode(key.text()), SESSION_SECONDS, cookie_name(&api, &request));
    let mut answer = private(HttpResponse::Created());
    answer.insert_header((SET_COOKIE, cookie));
    Ok(answer.json(view(Some((&session, &secret, &*key)))))
}

/// Begins a session and records that in the audit log.
async fn begin_session(
    api: Data<Api>,
    key: Arc<OperatorKey>,
    name: Option<OperatorName>,
    address: IpAddr,
) -> Result<(Session, SessionSecret), Problem> {
    let begun =
        api.for_operator(move |app| async move { console::sign_in(&app, key.text(), name.as_ref(), address).await });
    let (session, secret) = begun.await?;
    let new = NewAction {
        actor: Actor::Console(session.id),
        operator: session.operator.clone(),
        address: Some(address.to_string()),
        action: "session.create".to_owned(),
        sale: None,
        detail: Map::new(),
    };
    let id = begin_action(&api, new).await?;
    note(&api, id, "done", None).await;
    Ok((session, secret))
}

/// Whether there is a session, and what the console's pages need. No session is not an error.
async fn show(api: Data<Api>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let session = match secret_of(&api, &request) {
        Some((secret, key)) => {
            let session = find_session(&api, secret, Arc::clone(&key)).await?;
            session.map(|session| (session, secret, key))
        }
        None => None,
    };
    let session = session.as_ref().map(|(session, secret, key)| (session, secret, &**key));
    Ok(private(HttpResponse::Ok()).json(view(session)))
}

/// Ends the session on every instance.
async fn sign_out(api: Data<Api>, request: HttpRequest) -> Result<HttpResponse, Problem> {
    let operator = identify(&request).await.map_err(before_it_began)?;
    let Some(OpenSession { secret, key, .. }) = operator.session else {
        return Err(Problem::no_session());
    };
    let new = NewAction {
        actor: operator.actor,
        operator: operator.name,
        address: gateway::address_of(&api, &request).map(|address| address.to_string()),
        action: "session.delete".to_owned(),
        sale: None,
        detail: Map::new(),
    };
    to_the_end(end_session(api.clone(), new, secret, key)).await??;
    let mut answer = private(HttpResponse::Ok());
    answer.insert_header((SET_COOKIE, cookie("", 0, cookie_name(&api, &request))));
    Ok(answer.json(view(None)))
}

/// Records in the audit log that a session is to end, and ends it.
async fn end_session(
    api: Data<Api>,
    new: NewAction,
    secret: SessionSecret,
    key: Arc<OperatorKey>,
) -> Result<(), Problem> {
    let id = begin_action(&api, new).await?;
    let ended = api.for_operator(move |app| async move { console::sign_out(&app, key.text(), &secret).await });
    let ended = ended.await;
    let outcome = ended
        .as_ref()
        .map_or_else(|problem| problem.code().as_str(), |()| "done");
    note(&api, id, outcome, None).await;
    ended
}

/// Whether the session of a stream has ended. A client with the operators' key has none, so its stream goes on. While
/// Postgres does not answer, a session lasts until its `expires_at`.
pub(super) async fn has_ended(api: &Api, session: Option<&OpenSession>) -> bool {
    let Some(session) = session else { return false };
    if session.expires_at <= Utc::now() {
        return true;
    }
    let found = console::session(&api.operators, session.key.text(), &session.secret);
    matches!(timeout(SESSION_CHECK_MAX, found).await, Ok(Ok(None)))
}

/// Keeps an answer out of all caches.
fn private(mut answer: HttpResponseBuilder) -> HttpResponseBuilder {
    answer.insert_header((CACHE_CONTROL, "no-store"));
    answer
}

fn view(session: Option<(&Session, &SessionSecret, &OperatorKey)>) -> SessionView {
    let Some((session, secret, key)) = session else {
        return SessionView::default();
    };
    SessionView {
        signed_in: true,
        session_id: Some(session.id),
        name: session.operator.as_ref().map(|name| name.as_str().to_owned()),
        role: Some(key.role),
        expires_at: Some(time::format(&session.expires_at)),
        request_token: Some(secret.request_token(key.text())),
        request_token_header: Some(REQUEST_TOKEN),
    }
}

/// A cookie that scripts cannot read and that browsers send only from pages of this site.
fn cookie(value: &str, seconds: i64, name: &'static str) -> String {
    let secure = if name == SECURE_SESSION_COOKIE { "; Secure" } else { "" };
    format!("{name}={value}; Path={SESSION_PATH}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}
