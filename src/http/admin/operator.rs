//! Operators: identifies them, and lets only them through to `/v1/admin`.
//!
//! No request reaches a handler under `/v1/admin` before [`only_operators`] has identified its sender.
//!
//! An operator is identified by a key of the operators, or by the session cookie of the console, which a key began. A
//! browser sends the cookie with any request that any page makes. So a request that changes something must not come from
//! another origin. It also needs the session's request token, which only a page of this instance can read.
//!
//! An action is recorded in the audit log before it begins. The role of the key must include it.

use crate::domain::code::Code;
use crate::domain::fault::Fault;
use crate::domain::operator::console::{Actor, NewAction, OperatorName, Session, SessionSecret, detail};
use crate::domain::operator::keys::{OperatorKey, OperatorKeys, OperatorRole};
use crate::flow::operate::console;
use crate::guard::actions::ActorAt;
use crate::guard::address::Client;
use crate::guard::sign_ins::WrongKey;
use crate::http::admin::audit_log::{
    DONE, SESSION_PATH, STOPS, action, asked, before_it_began, begin_action, code, created, note, note_refusal,
    outcome, sale_of, shows_shoppers_data,
};
use crate::http::extract::{Body, OpenSession, Operator, accepts, api, bearer, single, unauthenticated};
use crate::http::problem::Problem;
use crate::http::{Api, ROUTES, csv, found, gateway, request_id};
use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, FromRequest, HttpMessage as _, HttpRequest, ResponseError as _};
use futures_util::future::LocalBoxFuture;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The cookie of a session.
pub const SESSION_COOKIE: &str = "flashsale_console";
/// The same cookie over HTTPS: browsers accept this name only from an HTTPS answer.
pub const SECURE_SESSION_COOKIE: &str = "__Secure-flashsale_console";
/// The header with the request token of a session.
pub const REQUEST_TOKEN: &str = "X-Console-Token";
/// The header in which a client with the operators' key may name the operator.
pub const OPERATOR: &str = "X-Operator";
/// What a request without a key and without a session lacks.
pub(in crate::http) const NO_KEY: &str = "the operators' key is missing";
/// Why an operator has to wait.
pub(in crate::http) const TOO_MANY_REFUSED: &str = "too many refused actions of this operator";

/// The operator who sent a request. Refuses with `unauthenticated` or `console_token_required`, or with `unavailable`
/// if Postgres cannot say whether the session has ended.
pub async fn identify(request: &HttpRequest) -> Result<Operator, Problem> {
    if let Some(known) = request.extensions().get::<Operator>() {
        return Ok(known.clone());
    }
    let api = api(request)?;
    if request.headers().contains_key(AUTHORIZATION) {
        let given = bearer(request.headers()).unwrap_or_default().as_bytes();
        if let Some(key) = api.operator_keys.expose().find(given) {
            return Ok(Operator {
                actor: Actor::ApiKey,
                name: key.name.clone(),
                role: key.role,
                session: None,
            });
        }
        // Counted, but answered 401 even over the limit: programs act on the status.
        let _exhausted = wrong_key(api, request);
        return Err(unauthenticated("the operators' key is wrong"));
    }
    let Some((secret, key)) = secret_of(api, request) else {
        return Err(unauthenticated(NO_KEY));
    };
    if !request.method().is_safe() {
        // A repeated header counts as none.
        let given = single(request.headers(), REQUEST_TOKEN).ok().flatten();
        let given = given.unwrap_or_default().as_bytes();
        if !is_from_here(request) || !secret.is_request_token(key.text(), given) {
            note_refusal(api, request, Code::ConsoleTokenRequired);
            return Err(without_request_token());
        }
    }
    match find_session(api, secret, Arc::clone(&key)).await? {
        Some(session) => Ok(Operator {
            actor: Actor::Console(session.id),
            name: session.operator,
            role: key.role,
            session: Some(OpenSession {
                secret,
                key,
                expires_at: session.expires_at,
            }),
        }),
        None => Err(unauthenticated("the session has ended: sign in again. As a program")),
    }
}

/// A session's request comes without its request token, or from another origin.
pub(in crate::http) fn without_request_token() -> Problem {
    Problem::new(
        Code::ConsoleTokenRequired,
        format!("send {REQUEST_TOKEN}: what GET {SESSION_PATH}/session answers to a page of this instance"),
    )
}

/// Whether a request has a key of the operators, for routes that only say more with it. Counts a wrong key.
pub(in crate::http) fn shows_key(request: &HttpRequest) -> bool {
    let (Ok(api), Some(given)) = (api(request), bearer(request.headers())) else {
        return false;
    };
    let is_key = api.operator_keys.expose().find(given.as_bytes()).is_some();
    if !is_key {
        let _exhausted = wrong_key(api, request);
    }
    is_key
}

/// Records a wrong key. Returns how long to wait before the next one if its address sent too many.
pub(in crate::http) fn wrong_key(api: &Api, request: &HttpRequest) -> Option<Duration> {
    let address = gateway::address_of(api, request)?;
    let WrongKey { wait, line } = api.sign_ins.count(Client::of(address));
    if wait.is_none() {
        note_refusal(api, request, Code::Unauthenticated);
    }
    match (line, wait) {
        (Some(unlogged), None) => tracing::warn!(%address, unlogged, "a request had a wrong operators' key"),
        (Some(unlogged), Some(_)) => {
            tracing::warn!(%address, unlogged, "too many wrong operators' keys from one address");
        }
        (None, _) => {}
    }
    wait
}

/// The name of a session's cookie in a request.
pub(in crate::http) fn cookie_name(api: &Api, request: &HttpRequest) -> &'static str {
    if api.speaks_https(request) {
        SECURE_SESSION_COOKIE
    } else {
        SESSION_COOKIE
    }
}

/// The secret in a request's session cookie, with the key that we signed it by. A read that a page of another site made
/// the browser send has none: that page could start audits, or keep streams open.
pub(in crate::http) fn secret_of(api: &Api, request: &HttpRequest) -> Option<(SessionSecret, Arc<OperatorKey>)> {
    let site = request.headers().get("Sec-Fetch-Site").map(HeaderValue::as_bytes);
    if request.method().is_safe() && matches!(site, Some(b"cross-site" | b"same-site")) {
        return None;
    }
    secret_in(request, cookie_name(api, request), api.operator_keys.expose())
}

fn secret_in(request: &HttpRequest, name: &str, keys: &OperatorKeys) -> Option<(SessionSecret, Arc<OperatorKey>)> {
    let lists = request.headers().get_all(COOKIE);
    let pairs = lists
        .filter_map(|list| list.to_str().ok())
        .flat_map(|list| list.split(';'));
    let mut values = pairs.filter_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
    values.find_map(|value| {
        let mut keys = keys.each();
        keys.find_map(|key| Some((SessionSecret::parse(value, key.text())?, Arc::clone(key))))
    })
}

/// The session of this secret, if it has not ended.
pub(super) async fn find_session(
    api: &Api,
    secret: SessionSecret,
    key: Arc<OperatorKey>,
) -> Result<Option<Session>, Problem> {
    api.for_operator(move |app| async move { console::session(&app, key.text(), &secret).await })
        .await
}

/// Whether the request comes from a page of this instance, by the browser's own headers. A client without these headers
/// is not a browser.
pub(in crate::http) fn is_from_here(request: &HttpRequest) -> bool {
    let header = |name: &str| request.headers().get(name).map(|it| it.to_str().unwrap_or_default());
    if let Some(site) = header("Sec-Fetch-Site") {
        return site == "same-origin";
    }
    let Some(origin) = header(ORIGIN.as_str()) else {
        return true;
    };
    let authority = request.uri().authority().map(|it| it.as_str());
    let host = header(HOST.as_str()).or(authority).unwrap_or_default();
    origin
        .split_once("://")
        .is_some_and(|(_, it)| it.eq_ignore_ascii_case(host))
}

/// Lets only operators through to `/v1/admin`. Writes to the audit log: each action before it begins and its outcome
/// afterwards, each read of shoppers' data, and each unauthorized request.
pub async fn only_operators<B: MessageBody + 'static>(
    mut request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, Error> {
    let begun = match begin(&mut request).await {
        Ok(begun) => begun,
        Err(problem) => return Ok(request.into_response(problem.error_response()).map_into_right_body()),
    };
    let Some(Begun { api, actor, id }) = begun else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let answer = to_the_end(async move {
        let answer = next.call(request).await;
        let (outcome, sale) = match &answer {
            Ok(answer) => (outcome(answer), created(answer)),
            Err(error) => (code(error), None),
        };
        // An outage is not the operator's fault, so it does not count.
        let is_refused = ![DONE, Code::Unavailable.as_str(), Code::Overloaded.as_str()].contains(&outcome);
        if let Some(actor) = actor.filter(|_| is_refused) {
            api.refused_actions.count(actor);
        }
        note(&api, id, outcome, sale).await;
        answer
    });
    Ok(answer.await??.map_into_left_body())
}

/// Runs the rest of an action as a task of its own, so that its outcome is recorded even if the client hangs up.
pub(in crate::http) async fn to_the_end<T: 'static>(work: impl Future<Output = T> + 'static) -> Result<T, Problem> {
    actix_web::rt::spawn(request_id::within(work)).await.map_err(|error| {
        tracing::error!(%error, request_id = request_id::current(), "an action panicked");
        Fault::Bug("an action panicked".to_owned()).into()
    })
}

/// An action that the audit log has recorded.
struct Begun {
    api: Data<Api>,
    /// The actor, for the limit on refused actions. None for reads, which do not count.
    actor: Option<ActorAt>,
    /// The action's number in the audit log.
    id: i64,
}

/// Identifies the operator. Records the request in the audit log if it belongs there. An unknown path has no name for
/// the audit log, so the request ends here.
async fn begin(request: &mut ServiceRequest) -> Result<Option<Begun>, Problem> {
    let api = request.app_data::<Data<Api>>().cloned();
    let api = api.ok_or_else(|| Problem::new(Code::Unavailable, "the server is not set up"))?;
    let is_read = request.method().is_safe();
    let pattern = found(request.resource_map().match_pattern(request.path()), "such path")?;
    let operator = identify(request.request()).await;
    let operator = if is_read {
        operator?
    } else {
        operator.map_err(before_it_began)?
    };
    request.extensions_mut().insert(operator.clone());
    let is_export = is_read && accepts(request.request(), csv::CSV);
    if is_read && !shows_shoppers_data(&pattern, request.query_string(), is_export) {
        return Ok(None);
    }
    let address = gateway::address_of(&api, request.request());
    let new = asked_action(request, &operator, &pattern, address).await?;
    let actor = ActorAt(operator.actor, operator.name.clone(), address);
    let is_allowed = is_read || operator.role >= role_for(request.method(), &pattern);
    // Without the role for it, a stop is an action like any other: it would fill the audit log.
    let is_stop = is_allowed && STOPS.contains(&new.action.as_str());
    if is_read {
        if api.known_reads.has(&actor, &new) {
            return Ok(None);
        }
    } else if !is_stop && !address.is_some_and(|it| it.is_loopback()) {
        api.refused_actions
            .check(&actor)
            .map_err(|wait| Problem::wait(Code::RateLimited, TOO_MANY_REFUSED, wait))?;
    }
    let id = begin_action(&api, new.clone()).await?;
    if !is_allowed {
        api.refused_actions.count(actor);
        note(&api, id, Code::Forbidden.as_str(), None).await;
        return Err(Problem::forbidden(operator.role, &new.action));
    }
    if is_read {
        api.known_reads.note(&actor, &new);
    }
    Ok(Some(Begun {
        api,
        actor: (!is_read).then_some(actor),
        id,
    }))
}

/// The least role for a change.
fn role_for(method: &Method, pattern: &str) -> OperatorRole {
    let route = ROUTES.iter().find(|it| it.method == *method && it.path == pattern);
    route.map_or(OperatorRole::All, |it| it.needs)
}

/// The action that a request asks for, as the audit log has it. Reads the request's body, and puts it back.
async fn asked_action(
    request: &mut ServiceRequest,
    operator: &Operator,
    pattern: &str,
    address: Option<IpAddr>,
) -> Result<NewAction, Problem> {
    let is_read = request.method().is_safe();
    let name = match operator_name(operator, request.headers()) {
        // A wrong header does not stop a read.
        Err(_) if is_read => None,
        name => name?,
    };
    let mut detail = asked(request.path(), request.query_string());
    // An export shows more than a page of the same query.
    if is_read && accepts(request.request(), csv::CSV) {
        detail.insert("accept".to_owned(), csv::CSV.into());
    }
    if !is_read {
        let Body(body) = request.extract::<Body>().await?;
        detail.extend(self::detail(&body));
        request.set_payload(Payload::from(body));
    }
    Ok(NewAction {
        actor: operator.actor,
        operator: name,
        address: address.map(|address| address.to_string()),
        action: action(request.method(), pattern),
        sale: sale_of(request.path()),
        detail,
    })
}

/// The operator's name, as the audit log has it.
pub(super) fn operator_name(operator: &Operator, headers: &HeaderMap) -> Result<Option<OperatorName>, Problem> {
    match operator.actor {
        // A key proves its name, and no header replaces it.
        _ if operator.name.is_some() => Ok(operator.name.clone()),
        Actor::Console(_) => Ok(None),
        Actor::ApiKey | Actor::Nobody => name_of(headers),
    }
}

/// The operator's name in `X-Operator`, if there is one.
fn name_of(headers: &HeaderMap) -> Result<Option<OperatorName>, Problem> {
    let mut values = headers.get_all(OPERATOR);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::invalid(format!("the header {OPERATOR} is there twice")));
    }
    // Names may have characters outside of ASCII.
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Problem::invalid(format!("{OPERATOR} must be printable ASCII, or UTF-8")))?;
    let name = text.parse::<OperatorName>();
    name.map(Some)
        .map_err(|wrong| Problem::invalid(format!("{OPERATOR} {wrong}")))
}

impl FromRequest for Operator {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let request = request.clone();
        Box::pin(async move { identify(&request).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    #[test]
    fn a_page_of_another_origin_is_not_from_here() {
        let asks = |headers: &[(&'static str, &'static str)]| {
            let request = TestRequest::post().uri("/v1/admin/sales");
            let request = headers.iter().fold(request, |it, header| it.insert_header(*header));
            is_from_here(&request.to_http_request())
        };
        let host = ("Host", "shop.example:8443");
        assert!(asks(&[host]), "no browser");
        assert!(asks(&[host, ("Origin", "https://shop.example:8443")]));
        assert!(asks(&[
            host,
            ("Origin", "https://evil.example"),
            ("Sec-Fetch-Site", "same-origin")
        ]));
        for origin in [
            "https://evil.example",
            "https://shop.example",
            "null",
            "",
            "https://shop.example:8443.evil",
        ] {
            assert!(!asks(&[host, ("Origin", origin)]), "{origin}");
        }
        for site in ["same-site", "cross-site", "none", ""] {
            assert!(!asks(&[host, ("Sec-Fetch-Site", site)]), "{site}");
        }
    }

    #[test]
    fn a_cookie_among_others_is_found() {
        let secret = SessionSecret::new([5; 32]);
        let keys = OperatorKeys::parse("shared", "ada:view:key", |_key| Ok(())).unwrap();
        let cookie = secret.encode("key");
        let of = |header: String| {
            let request = TestRequest::get().insert_header(("Cookie", header)).to_http_request();
            let found = secret_in(&request, SESSION_COOKIE, &keys);
            found.map(|(secret, key)| (secret, key.text().to_owned()))
        };
        let expected = Some((secret, "key".to_owned()));
        assert_eq!(of(format!("a=b; {SESSION_COOKIE}={cookie}; c=d")), expected);
        // Another application may have set a cookie of this name for a wider path.
        assert_eq!(of(format!("{SESSION_COOKIE}=x; {SESSION_COOKIE}={cookie}")), expected);
        for wrong in [
            format!("{SESSION_COOKIE}x={cookie}"),
            format!("x{SESSION_COOKIE}={cookie}"),
            String::new(),
        ] {
            assert_eq!(of(wrong), None);
        }
    }
}
