//! What requests carry, parsed before anything is done: who asks, under which key, with which body.

use super::explain::{parse_json, parse_query};
use super::problem::{Code, Problem};
use super::{Api, gateway, operator};
use crate::domain::console::{Actor, OperatorName, SessionSecret};
use crate::domain::hs256;
use crate::domain::ids::{IdempotencyKey, OrderId, SaleId, UserId};
use crate::flow::App;
use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, Header as _, HeaderMap, IF_MATCH, IfMatch};
use actix_web::web::{Bytes, BytesMut, Data};
use actix_web::{FromRequest, HttpRequest};
use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, Ready, ready};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use quick_cache::sync::Cache;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::str::FromStr;
use std::time::Duration;

/// The name that a client gives a request, the same on every retry.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// What `POST /v1/sales/{id}/tokens` has given out.
pub const PURCHASE_TOKEN: &str = "X-Purchase-Token";
/// What a waiting room has given out.
pub const ADMISSION: &str = "X-Admission";
/// The last event of a stream that a client has.
pub const LAST_EVENT_ID: &str = "Last-Event-ID";

/// The largest body.
pub(super) const BODY_MAX: usize = 16 * 1024;
/// The largest body where an operator creates or changes a sale: room for the most items with the longest names.
pub(super) const SALE_BODY_MAX: usize = 1024 * 1024;
/// The longest that a client may take to send it.
const BODY_TIME: Duration = Duration::from_secs(5);

/// The shopper whose token came with the request.
pub struct Shopper(pub UserId);

/// The shopper whose token came with the request, and how long that token is taken.
pub struct Session {
    /// The shopper.
    pub user: UserId,
    /// When the token was issued, if it says so.
    pub issued_at: Option<i64>,
    /// In which second it ends, since the epoch.
    pub until: i64,
}

impl Session {
    /// Whether the token would be refused now.
    #[must_use]
    pub fn has_ended(&self, app: &App) -> bool {
        Utc::now().timestamp() >= self.until || app.bans.have_ended(&self.user, self.issued_at)
    }
}

/// Whoever looks at what is for everybody: a shopper, if he says so.
pub struct Browser(pub Option<Shopper>);

/// An operator.
#[derive(Clone)]
pub struct Operator {
    /// By what he is known: the operators' key, or a session of the console.
    pub actor: Actor,
    /// What he called himself when that session began.
    pub name: Option<OperatorName>,
    /// That session, if it is one.
    pub session: Option<OpenSession>,
}

/// A session that had not ended when a request came.
#[derive(Clone)]
pub struct OpenSession {
    /// What its cookie says.
    pub secret: SessionSecret,
    /// When it ends by itself.
    pub expires_at: DateTime<Utc>,
}

/// The request's idempotency key.
pub struct Key(pub IdempotencyKey);

/// The request's idempotency key, where it need not have one.
pub struct MaybeKey(pub Option<IdempotencyKey>);

/// `If-Match`: the versions of which one is to be changed; none where any will do.
pub struct Versions(pub Option<Vec<String>>);

/// What a request shows to be let through to buy, if anything.
pub struct Shown {
    /// `X-Purchase-Token`
    pub purchase_token: Option<String>,
    /// `X-Admission`
    pub admission: Option<String>,
}

/// `Last-Event-ID`: the number of the last alert that the client has, if it says so.
pub struct LastEvent(pub Option<i64>);

/// A sale's id in the path.
pub struct SalePath(pub SaleId);

/// An order's id in the path.
pub struct OrderPath(pub OrderId);

/// The whole body as it came.
pub struct Body(pub Bytes);

/// A JSON body.
pub struct Json<T>(pub T);

/// The query.
pub struct Query<T>(pub T);

/// How shoppers' tokens are checked: HS256 and nothing else, not expired, with a subject. Whoever buys sends his token with
/// each request, so those that were found good are remembered, as long as they last.
pub struct Tokens {
    key: DecodingKey,
    validation: Validation,
    good: Cache<Box<str>, Good>,
}

/// What `aud` of a shopper's token names, if it names anything.
const AUDIENCE: &str = "flashsale";
/// Good tokens that are remembered, and the longest that one of them may be: some megabytes.
const GOOD_MAX: usize = 20_000;
const GOOD_LENGTH_MAX: usize = 512;

/// A token that was found good.
#[derive(Clone)]
struct Good {
    user: UserId,
    issued_at: Option<i64>,
    /// Seconds since the epoch when it was found good.
    from: i64,
    /// In which second it ends.
    until: i64,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Seconds since the epoch, perhaps with a fraction (RFC 7519), as the next one.
    iat: Option<f64>,
    exp: f64,
}

impl Tokens {
    /// Checks tokens that were signed with this secret.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        hs256::install();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        validation.validate_nbf = true;
        // A token for no audience in particular passes; one for another service does not (RFC 7519, section 4.1.3).
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self {
            key: DecodingKey::from_secret(secret),
            validation,
            good: Cache::new(GOOD_MAX),
        }
    }

    /// Whose token this is, and when it was issued.
    #[must_use]
    pub fn user(&self, token: &str) -> Option<(UserId, Option<i64>)> {
        let session = self.session(token)?;
        Some((session.user, session.issued_at))
    }

    /// Whose token this is, and how long it is taken.
    #[must_use]
    pub fn session(&self, token: &str) -> Option<Session> {
        let now = Utc::now().timestamp();
        // A token as a whole is its own proof: a single bit that is different makes it another.
        if let Some(good) = self.good.get(token).filter(|good| good.holds_at(now)) {
            return Some(Session {
                user: good.user,
                issued_at: good.issued_at,
                until: good.until,
            });
        }
        let claims = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation)
            .ok()?
            .claims;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a time that no clock will ever show ends at the bounds"
        )]
        let (issued_at, until) = (claims.iat.map(|at| at as i64), claims.exp as i64);
        let user: UserId = claims.sub.parse().ok()?;
        if token.len() <= GOOD_LENGTH_MAX {
            let good = Good {
                user: user.clone(),
                issued_at,
                from: now,
                until,
            };
            self.good.insert(token.into(), good);
        }
        Some(Session { user, issued_at, until })
    }
}

impl Good {
    /// Whether nothing but the clock's way has happened to it since. Where this is in doubt, it is checked again: in its
    /// last second, and when the clock went back.
    fn holds_at(&self, now: i64) -> bool {
        self.from <= now && now < self.until
    }
}

pub(super) fn api(request: &HttpRequest) -> Result<&Api, Problem> {
    let data = request.app_data::<Data<Api>>();
    data.map(|data| data.get_ref())
        .ok_or_else(|| Problem::new(Code::Unavailable, "the server is not set up"))
}

/// The bearer that a request names.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub(super) fn unauthenticated(what: &str) -> Problem {
    Problem::new(
        Code::Unauthenticated,
        format!("{what}: send Authorization: Bearer and a valid one"),
    )
}

/// The only value of a header.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name);
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
    // An id that cannot be is an id that is not there.
    request
        .match_info()
        .query("id")
        .parse()
        .map_err(|_| Problem::not_found(what))
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

/// The session of a token that is taken.
fn session(request: &HttpRequest) -> Option<Session> {
    let api = api(request).ok()?;
    let session = api.tokens.session(bearer(request.headers())?)?;
    (!api.app.bans.have_ended(&session.user, session.issued_at)).then_some(session)
}

from_head!(Session, |request: &HttpRequest| {
    let session =
        session(request).ok_or_else(|| unauthenticated("the shopper's token is missing, wrong or expired"))?;
    gateway::admit_account(api(request)?, request, &session.user)?;
    Ok(session)
});

impl FromRequest for Shopper {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let session = Session::from_request(request, payload).into_inner();
        ready(session.map(|session| Self(session.user)))
    }
}

from_head!(Browser, |request: &HttpRequest| Ok(Browser(
    session(request).map(|session| Shopper(session.user))
)));

impl FromRequest for Operator {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let request = request.clone();
        Box::pin(async move { operator::identify(&request).await })
    }
}

/// The idempotency key, if there is one.
fn key(request: &HttpRequest) -> Result<Option<IdempotencyKey>, Problem> {
    let key = single(request.headers(), IDEMPOTENCY_KEY)?.map(str::parse).transpose();
    key.map_err(|wrong| Problem::invalid(format!("{wrong}")))
}

from_head!(MaybeKey, |request: &HttpRequest| key(request).map(Self));

from_head!(Key, |request: &HttpRequest| {
    key(request)?.map(Self).ok_or_else(|| {
        Problem::new(
            Code::IdempotencyKeyMissing,
            "send Idempotency-Key: a name for this request, the same on every retry",
        )
    })
});

fn versions(request: &HttpRequest) -> Result<Versions, Problem> {
    if !request.headers().contains_key(IF_MATCH) {
        return Ok(Versions(None));
    }
    match IfMatch::parse(request) {
        Ok(IfMatch::Any) => Ok(Versions(None)),
        // A proxy that compresses answers makes weak ones of them; they name the version all the same. What is no tag at all
        // has been left out.
        Ok(IfMatch::Items(tags)) if !tags.is_empty() => {
            Ok(Versions(Some(tags.iter().map(|tag| tag.tag().to_owned()).collect())))
        }
        _ => Err(Problem::invalid("If-Match must be what ETag said, or *")),
    }
}

from_head!(Versions, versions);

from_head!(Shown, |request: &HttpRequest| {
    let header = |name| single(request.headers(), name).map(|token| token.map(str::to_owned));
    Ok(Shown {
        purchase_token: header(PURCHASE_TOKEN)?,
        admission: header(ADMISSION)?,
    })
});

from_head!(LastEvent, |request: &HttpRequest| {
    let id = single(request.headers(), LAST_EVENT_ID)?.filter(|id| !id.is_empty());
    let number = id.map(|id| id.parse().ok().filter(|number| *number >= 0));
    match number {
        None => Ok(LastEvent(None)),
        Some(Some(number)) => Ok(LastEvent(Some(number))),
        Some(None) => Err(Problem::invalid("Last-Event-ID must be the id of an alert")),
    }
});

from_head!(SalePath, |request: &HttpRequest| segment(request, "such sale")
    .map(Self));
from_head!(OrderPath, |request: &HttpRequest| segment(request, "such order")
    .map(Self));

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let payload = payload.take();
        let most = body_max(request);
        Box::pin(async move {
            // What is announced too large is not waited for.
            if announced.is_some_and(|length| length > most as u64) {
                return Err(too_large(most));
            }
            let body = tokio::time::timeout(BODY_TIME, read(payload, most)).await;
            body.unwrap_or_else(|_| Err(Problem::invalid("the body did not come in time")))
                .map(Self)
        })
    }
}

/// The largest body that this request may have.
fn body_max(request: &HttpRequest) -> usize {
    let pattern = request.match_pattern().unwrap_or_default();
    match (request.method(), pattern.as_str()) {
        (&Method::POST, "/v1/admin/sales") | (&Method::PUT, "/v1/admin/sales/{id}") => SALE_BODY_MAX,
        _ => BODY_MAX,
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(Code::PayloadTooLarge, format!("this body has at most {most} bytes"))
}

async fn read(mut payload: Payload, most: usize) -> Result<Bytes, Problem> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| Problem::invalid(format!("the body is broken: {error}")))?;
        if body.len() + chunk.len() > most {
            return Err(too_large(most));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

impl<T: DeserializeOwned + JsonSchema + 'static> FromRequest for Json<T> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let content_type = single(request.headers(), CONTENT_TYPE.as_str()).map(|value| value.map(str::to_owned));
        let body = Body::from_request(request, payload);
        Box::pin(async move {
            let Body(body) = body.await?;
            let essence = content_type?.map(|it| it.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
            if essence.is_some_and(|it| it != "application/json") {
                return Err(Problem::invalid("Content-Type must be application/json"));
            }
            parse_json(&body).map(Json)
        })
    }
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
    use super::{GOOD_LENGTH_MAX, Tokens};
    use chrono::Utc;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::json;

    fn signed(user: &str, expires_in: i64) -> String {
        let claims = json!({"sub": user, "exp": Utc::now().timestamp() + expires_in});
        jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap()
    }

    #[test]
    fn a_token_that_is_remembered_is_its_shoppers_until_it_expires() {
        let (tokens, now) = (Tokens::new(b"secret"), Utc::now().timestamp());
        let (ada, bob) = (signed("ada", 100), signed("bob", 100));
        for _ in 0..2 {
            assert_eq!(tokens.user(&ada).unwrap().0.as_str(), "ada");
            assert_eq!(tokens.user(&bob).unwrap().0.as_str(), "bob");
        }
        let good = tokens.good.get(ada.as_str()).unwrap();
        assert!(good.holds_at(now + 90));
        assert!(!good.holds_at(good.until), "its last second is looked at");
        assert!(!good.holds_at(now + 1000), "it has expired");
        assert!(!good.holds_at(good.from - 1), "the clock went back");
    }

    #[test]
    fn what_is_wrong_or_too_long_is_not_remembered() {
        let (tokens, good) = (Tokens::new(b"secret"), signed("ada", 100));
        let (head, signature) = good.rsplit_once('.').unwrap();
        let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
        for token in [forged, signed("ada", -10), good[..good.len() - 1].to_owned()] {
            assert!(tokens.user(&token).is_none());
            assert!(tokens.good.get(token.as_str()).is_none());
        }
        let audience = "a".repeat(GOOD_LENGTH_MAX);
        let claims = json!({"sub": "ada", "exp": Utc::now().timestamp() + 100, "for": audience});
        let long = jsonwebtoken::encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).unwrap();
        assert!(tokens.user(&long).is_some());
        assert!(tokens.good.get(long.as_str()).is_none());
    }
}
