//! Parses a request's headers, path and body into values before any handler uses them: the caller, the key, the body.

mod body;
mod tokens;

use crate::domain::code::Code;
use crate::domain::ids::{IdempotencyKey, OrderId, SaleId, UserId};
use crate::domain::operator::console::{Actor, OperatorName, SessionSecret};
use crate::domain::operator::keys::{OperatorKey, OperatorRole};
use crate::flow::App;
use crate::http::explain::parse_query;
use crate::http::problem::Problem;
use crate::http::{Api, found, gateway};
use actix_web::dev::Payload;
use actix_web::http::header::{
    ACCEPT, AUTHORIZATION, AsHeaderName, Header as _, HeaderMap, HeaderName, IF_MATCH, IfMatch,
};
use actix_web::web::Data;
use actix_web::{FromRequest, HttpRequest};
pub(super) use body::{BODY_MAX, SALE_BODY_MAX, too_large};
pub use body::{Body, Json};
use chrono::{DateTime, Utc};
use futures_util::future::{Ready, ready};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
pub use tokens::Tokens;

/// The header with a client's name for a request, the same on every retry.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// The header of an answer that repeats an earlier request's answer.
pub const REPLAYED: &str = "Idempotency-Replayed";
/// The header with a purchase token from `POST /v1/sales/{id}/tokens`.
const PURCHASE_TOKEN: &str = "X-Purchase-Token";
/// The header with an admission from the waiting room.
const ADMISSION: &str = "X-Admission";
/// The headers of [`PurchaseProofs`], and what each carries.
pub const PROOFS: [(&str, &str); 2] = [
    (
        PURCHASE_TOKEN,
        "The token of `POST /v1/sales/{id}/tokens` for this `Idempotency-Key`, if the sale requires one.",
    ),
    (ADMISSION, "The admission of the waiting room, if the sale has one."),
];
/// The header with the id of the last event that a client received.
pub const LAST_EVENT_ID: &str = "Last-Event-ID";

/// The names by which a purchase's headers are found. To find one by its text, the map makes a name of it each time.
static KEY_NAME: HeaderName = HeaderName::from_static("idempotency-key");
static PURCHASE_TOKEN_NAME: HeaderName = HeaderName::from_static("x-purchase-token");
static ADMISSION_NAME: HeaderName = HeaderName::from_static("x-admission");

/// The shopper whose token came with the request.
pub struct Shopper(pub UserId);

/// The shopper whose token came with the request, and the token's times.
#[derive(Clone)]
pub struct Session {
    pub user: UserId,
    /// When the token was issued (Unix seconds), if it says so.
    pub issued_at: Option<i64>,
    /// When the token expires (Unix seconds).
    pub until: i64,
}

impl Session {
    pub fn has_ended(&self, app: &App) -> bool {
        Utc::now().timestamp() >= self.until || app.bans.have_ended(&self.user, self.issued_at)
    }
}

/// A visitor of a public route: a shopper if the request has a valid token, else none.
pub struct Browser(pub Option<Shopper>);

#[derive(Clone)]
pub struct Operator {
    /// How the operator is known: by the operators' key, or by a session of the console.
    pub actor: Actor,
    /// The name of the operator's key, or what the operator gave at sign-in.
    pub name: Option<OperatorName>,
    pub role: OperatorRole,
    /// The session of the console, if there is one.
    pub session: Option<OpenSession>,
}

/// A session of the console that had not ended when the request came.
#[derive(Clone)]
pub struct OpenSession {
    /// The secret in its cookie.
    pub secret: SessionSecret,
    /// The key that began it.
    pub key: Arc<OperatorKey>,
    /// When it ends by itself.
    pub expires_at: DateTime<Utc>,
}

pub struct Key(pub IdempotencyKey);

/// The request's idempotency key, for routes that do not require one.
pub struct MaybeKey(pub Option<IdempotencyKey>);

/// `If-Match`: the versions that the client accepts; none if it accepts any.
pub struct Versions(pub Option<Vec<String>>);

/// The proofs that a purchase carries for the sale's guards.
pub struct PurchaseProofs {
    /// `X-Purchase-Token`
    pub purchase_token: Option<String>,
    /// `X-Admission`
    pub admission: Option<String>,
}

/// `Last-Event-ID`: the id of the last guard warning that the client received, if it names one.
pub struct LastEvent(pub Option<i64>);

pub struct SalePath(pub SaleId);

pub struct OrderPath(pub OrderId);

pub struct Query<T>(pub T);

pub(super) fn api(request: &HttpRequest) -> Result<&Api, Problem> {
    let data = request.app_data::<Data<Api>>();
    data.map(|data| data.get_ref())
        .ok_or_else(|| Problem::new(Code::Unavailable, "the server is not set up"))
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// What a shopper's request lacks if its token is not valid.
pub(super) const NO_TOKEN: &str = "the shopper's token is missing, wrong or expired";

pub(super) fn unauthenticated(what: &str) -> Problem {
    Problem::new(
        Code::Unauthenticated,
        format!("{what}: send a valid Authorization: Bearer header"),
    )
}

/// The value of a header that may occur only once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    single_of(headers, name, name)
}

/// Like [`single`], for a header that is found by `header`. Problems call it `name`.
fn single_of<'a>(headers: &'a HeaderMap, header: impl AsHeaderName, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(header);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::invalid(format!("the header {name} is there twice")));
    }
    value
        .to_str()
        .map(Some)
        .map_err(|_| Problem::invalid(format!("{name} must be printable ASCII")))
}

fn segment<T: FromStr>(request: &HttpRequest, what: &str) -> Result<T, Problem> {
    // An id that does not parse cannot exist.
    found(request.match_info().query("id").parse().ok(), what)
}

macro_rules! from_head {
    ($type:ty, $parse:expr) => {
        impl FromRequest for $type {
            type Error = Problem;
            type Future = Ready<Result<Self, Problem>>;
            fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
                ready($parse(request))
            }
        }
    };
}

/// The session of a valid token, and whether a ban has ended it.
fn session(request: &HttpRequest) -> Option<(Session, bool)> {
    let api = api(request).ok()?;
    let session = api.tokens.session(bearer(request.headers())?)?;
    let has_ended = api.app.bans.have_ended(&session.user, session.issued_at);
    Some((session, has_ended))
}

/// The session, if it has not ended and the limit of its account admits the request.
fn admitted(request: &HttpRequest) -> Result<Session, Problem> {
    let session = match session(request) {
        Some((session, false)) => session,
        Some((_, true)) => return Err(unauthenticated("the token is of a session that was ended")),
        None => return Err(unauthenticated(NO_TOKEN)),
    };
    gateway::admit_account(api(request)?, request, &session.user)?;
    Ok(session)
}

from_head!(Session, admitted);

from_head!(Shopper, |request: &HttpRequest| admitted(request)
    .map(|it| Self(it.user)));

from_head!(Browser, |request: &HttpRequest| {
    let lasting = session(request).filter(|(_, has_ended)| !has_ended);
    Ok(Browser(lasting.map(|(session, _)| Shopper(session.user))))
});

fn key(request: &HttpRequest) -> Result<Option<IdempotencyKey>, Problem> {
    let key = single_of(request.headers(), &KEY_NAME, IDEMPOTENCY_KEY)?;
    let key = key.map(str::parse).transpose();
    key.map_err(|wrong| Problem::invalid(format!("{wrong}")))
}

from_head!(MaybeKey, |request: &HttpRequest| key(request).map(Self));

from_head!(Key, |request: &HttpRequest| key(request)?
    .map(Self)
    .ok_or_else(key_missing));

pub(super) fn key_missing() -> Problem {
    Problem::new(
        Code::IdempotencyKeyMissing,
        "send Idempotency-Key: a name for this request, the same on every retry",
    )
}

/// Parses the text of a member or a parameter, with whose name the detail begins.
pub fn parsed<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|wrong: T::Err| Problem::invalid(format!("{name} {wrong}")))
}

fn versions(request: &HttpRequest) -> Result<Versions, Problem> {
    if !request.headers().contains_key(IF_MATCH) {
        return Ok(Versions(None));
    }
    match IfMatch::parse(request) {
        Ok(IfMatch::Any) => Ok(Versions(None)),
        // A proxy that compresses answers makes their tags weak. A weak tag still names the version. The parser drops
        // texts that are no tags.
        Ok(IfMatch::Items(tags)) if !tags.is_empty() => {
            Ok(Versions(Some(tags.iter().map(|tag| tag.tag().to_owned()).collect())))
        }
        _ => Err(Problem::invalid("If-Match must be an ETag that this sale had, or *")),
    }
}

from_head!(Versions, versions);

from_head!(PurchaseProofs, |request: &HttpRequest| {
    let headers = request.headers();
    let purchase_token = single_of(headers, &PURCHASE_TOKEN_NAME, PURCHASE_TOKEN)?;
    let admission = single_of(headers, &ADMISSION_NAME, ADMISSION)?;
    Ok(PurchaseProofs {
        purchase_token: purchase_token.map(str::to_owned),
        admission: admission.map(str::to_owned),
    })
});

from_head!(LastEvent, |request: &HttpRequest| {
    let id = single(request.headers(), LAST_EVENT_ID)?.filter(|id| !id.is_empty());
    let number = |id: &str| id.parse::<i64>().ok().filter(|number| *number >= 0);
    let wrong = || Problem::invalid("Last-Event-ID must be the id of a guard warning");
    id.map(|id| number(id).ok_or_else(wrong)).transpose().map(Self)
});

from_head!(SalePath, |request: &HttpRequest| segment(request, "such sale")
    .map(Self));
from_head!(OrderPath, |request: &HttpRequest| segment(request, "such order")
    .map(Self));

/// Whether a request names this content type in `Accept`. A wildcard names none.
pub fn accepts(request: &HttpRequest, kind: &str) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT);
    accepted.any(|kinds| kinds.to_str().is_ok_and(|kinds| kinds.contains(kind)))
}

impl<T: DeserializeOwned + JsonSchema + 'static> FromRequest for Query<T> {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(parse_query(request.query_string()).map(Self))
    }
}

#[cfg(test)]
mod tests {
    use super::accepts;
    use actix_web::http::header::ACCEPT;
    use actix_web::test::TestRequest;

    #[test]
    fn a_content_type_is_accepted_if_any_header_names_it() {
        let accepts_csv = |accepted: &[&'static str]| {
            let request = accepted
                .iter()
                .fold(TestRequest::get(), |it, kinds| it.append_header((ACCEPT, *kinds)));
            accepts(&request.to_http_request(), "text/csv")
        };
        assert!(accepts_csv(&["text/csv"]) && accepts_csv(&["application/json", "text/html, text/csv;q=0.5"]));
        assert!(!accepts_csv(&[]) && !accepts_csv(&["application/json", "*/*"]));
    }
}
