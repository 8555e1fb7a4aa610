//! `X-Request-Id` on every answer: a trusted proxy's id as it is, any other client's with `client-` before it, else a
//! new one. So no client can use the id of another request in the log. Every log line about the request has the id; at
//! `FLASHSALE_LOG=flashsale=debug` also those of its scripts. This middleware sees every request, so it also refuses
//! encoded paths, contains panics, sets the security headers and counts the request. A handler that panics loses only its
//! own request: the connection goes on with the next one.

use crate::domain::fault::Fault;
use crate::flow::App;
use crate::guard::address::is_proxy;
use crate::http::Api;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::telemetry;
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS};
use actix_web::http::{StatusCode, Uri};
use actix_web::middleware::Next;
use actix_web::web::Data;
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;
use tracing::{Instrument as _, Span};
use uuid::Uuid;

static HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// The header in which a proxy names the request's trace.
static TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Stands for an id that cannot be written, which does not happen.
static LOST: HeaderValue = HeaderValue::from_static("lost");
/// The prefix of ids that do not come from a trusted proxy.
const CLIENTS: &[u8] = b"client-";
static RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// A year, in seconds.
const HTTPS_ALONE: &str = "max-age=31536000";

tokio::task_local! {
    static CURRENT: HeaderValue;
}

/// The id of the request that is being answered, for a log line. Empty outside of a request.
pub(super) fn current() -> String {
    let id = CURRENT.try_with(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    id.unwrap_or_default()
}

/// Wraps work for another task, so that its log lines belong to the current request.
pub(super) fn within<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let id = CURRENT.try_with(Clone::clone);
    let id = id.unwrap_or_else(|_| HeaderValue::from_static(""));
    CURRENT.scope(id, work.instrument(Span::current()))
}

/// Sets `X-Request-Id` and the security headers, and measures the request. Answers 503 if the service behind it panics.
pub async fn request_id(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let began = Instant::now();
    let (metrics, client) = (metrics_of(&request), client_of(request.path()));
    let is_https = is_https(&request);
    let id = given(&request).unwrap_or_else(new_id);
    // These fields are computed only if the span is enabled.
    let span = tracing::debug_span!(
        "request",
        request_id = %String::from_utf8_lossy(id.as_bytes()),
        method = %request.method(),
        path = request.path(),
        status = tracing::field::Empty,
        // Trace collectors recognise a served request and a failed one by these two fields.
        otel.kind = "server",
        otel.status_code = tracing::field::Empty
    );
    // Only a trusted proxy may set the trace: else any client could have all its requests traced.
    if !span.is_disabled()
        && let Some(parent) = request.headers().get(&TRACE_PARENT).and_then(|it| it.to_str().ok())
        && is_from_proxy(&request)
    {
        telemetry::follow(&span, parent);
    }
    // None of our paths has an encoded character, and a proxy in front may decide by the raw path who may ask for it. So
    // such a path leads to no route.
    if request.uri().path().contains('%') {
        let unrouted = Uri::from_static("/nothing");
        request.match_info_mut().get_mut().update(&unrouted);
    }
    let answer = async {
        // Shared values stay whole across a panic: they are replaced at once, or changed under locks that never panic.
        let answer = AssertUnwindSafe(async { next.call(request).await }).catch_unwind();
        answer.await.unwrap_or_else(|_panic| {
            tracing::error!(request_id = current(), "a handler panicked");
            Err(Problem::from(Fault::Bug("a handler panicked".to_owned())).into())
        })
    };
    let mut within = std::pin::pin!(CURRENT.scope(id, answer.instrument(span.clone())));
    let answer: Result<ServiceResponse<_>, Error> = within.as_mut().await;
    // Taken back out of the task-local, because a clone would allocate.
    let id = within.take_value().unwrap_or_else(|| LOST.clone());
    let answer: Result<_, (StatusCode, Error)> = match answer {
        Ok(mut response) => {
            mark(response.headers_mut(), id, is_https);
            Ok(response)
        }
        Err(error) => {
            let mut response = error.error_response();
            mark(response.headers_mut(), id, is_https);
            Err((response.status(), InternalError::from_response(error, response).into()))
        }
    };
    let status = answer
        .as_ref()
        .map_or_else(|(status, _)| *status, ServiceResponse::status);
    span.record("status", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    if let Some(metrics) = metrics {
        metrics.requests.of([client, class_of(status)]).inc();
        metrics.request_duration.of([client]).observe(began.elapsed());
    }
    answer.map_err(|(_, error)| error)
}

fn new_id() -> HeaderValue {
    let id = Uuid::now_v7().hyphenated();
    HeaderValue::from_str(id.encode_lower(&mut Uuid::encode_buffer())).unwrap_or_else(|_| LOST.clone())
}

/// The request's id from its header, if it is usable.
fn given(request: &ServiceRequest) -> Option<HeaderValue> {
    let id = request.headers().get(&HEADER).filter(|id| is_sensible(id))?;
    if is_from_proxy(request) {
        return Some(id.clone());
    }
    HeaderValue::from_bytes(&[CLIENTS, id.as_bytes()].concat()).ok()
}

/// Sets the headers of every answer: the request's id, no guessing of content types, and no use by other origins. Over
/// HTTPS, browsers must use HTTPS for this host from now on.
fn mark(headers: &mut HeaderMap, id: HeaderValue, is_https: bool) {
    headers.insert(HEADER.clone(), id);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY.clone(), HeaderValue::from_static("same-origin"));
    if is_https {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(HTTPS_ALONE));
    }
}

/// Whether to send `Strict-Transport-Security`. Not for `localhost`, which all local development shares.
fn is_https(request: &ServiceRequest) -> bool {
    let api = request.app_data::<Data<Api>>();
    api.is_some_and(|api| api.speaks_https(request.request()))
        && !request.connection_info().host().starts_with("localhost")
}

fn metrics_of(request: &ServiceRequest) -> Option<Arc<Metrics>> {
    Some(Arc::clone(&request.app_data::<Data<App>>()?.metrics))
}

/// Whether the request comes from a trusted proxy.
fn is_from_proxy(request: &ServiceRequest) -> bool {
    let (Some(api), Some(peer)) = (request.app_data::<Data<Api>>(), request.peer_addr()) else {
        return false;
    };
    is_proxy(peer.ip(), &api.trusted_proxies)
}

/// The kind of client that uses such a path, as a metric label.
fn client_of(path: &str) -> &'static str {
    match path.strip_prefix("/v1/") {
        Some(rest) if rest.starts_with("admin/") => "operator",
        Some(rest) if rest.starts_with("webhooks/") => "provider",
        Some(_) => "shopper",
        None if ["/metrics", "/healthz", "/readyz"].contains(&path) => "machine",
        None => "page",
    }
}

/// The status class, as a metric label.
fn class_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        ..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

fn is_sensible(id: &HeaderValue) -> bool {
    (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::health;

    #[tokio::test]
    async fn a_task_of_its_own_still_belongs_to_its_request() {
        let asks = async { tokio::spawn(within(async { current() })).await.unwrap() };
        let seen = CURRENT.scope(HeaderValue::from_static("of-this-one"), asks).await;
        assert_eq!(seen, "of-this-one");
        assert_eq!(
            within(async { current() }).await,
            "",
            "outside of a request there is none"
        );
    }

    #[test]
    fn each_route_that_machines_poll_is_counted_as_one_of_machines() {
        for route in health::ROUTES.iter().chain(health::METRICS_ROUTES) {
            assert_eq!(client_of(route.path), "machine", "{}", route.path);
        }
    }

    #[test]
    fn whoever_asks_is_known_by_the_path() {
        for (path, client) in [
            ("/v1/sales/x/orders", "shopper"),
            ("/v1/admin/sales", "operator"),
            ("/v1/webhooks/payments", "provider"),
            ("/metrics", "machine"),
            ("/", "page"),
        ] {
            assert_eq!(client_of(path), client, "{path}");
            for status in [200, 204, 302, 404, 499, 503] {
                let class = class_of(StatusCode::from_u16(status).unwrap());
                assert!(Metrics::default().requests.knows([client, class]));
            }
        }
    }
}
