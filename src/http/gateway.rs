//! The gateway, in front of all routes of shoppers. A request that it refuses reaches neither Redis nor Postgres.

use crate::domain::code::Code;
use crate::domain::guard::{Layer, Sender};
use crate::domain::ids::UserId;
use crate::flow::sell::refusal_counts;
use crate::guard::address::{Client, address, is_proxy};
use crate::guard::gate::{Limit, Refusal};
use crate::http::Api;
use crate::http::counts::{self, ACCOUNT_LIMIT, sale_of};
use crate::http::problem::Problem;
use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::X_FORWARDED_FOR;
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpRequest, ResponseError};
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// Refuses requests over the limits before anything else reads them.
pub async fn gateway<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, Error> {
    let Some(api) = request.app_data::<Data<Api>>().cloned() else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let client = || client_of(&api, request.request());
    let would_stop = |layer| {
        let sender = client().map(|client| Sender::Address(client.to_string()));
        refusal_counts::would_stop(&api.app, sale_of(request.request()), layer, sender);
    };
    if let Err(refusal) = api.gate.admit(&api.app, client, would_stop).await {
        let (layer, name, ..) = answer(refusal.limit);
        counts::refused_at_gateway(&api, request.request(), layer, name);
        if refusal.limit == Limit::Address {
            mention_proxy(&api, request.request());
        }
        let response = problem(refusal).error_response();
        return Ok(request.into_response(response).map_into_right_body());
    }
    Ok(next.call(request).await?.map_into_left_body())
}

/// Refuses a request over its account's limit with `rate_limited`.
pub(super) fn admit_account(api: &Api, request: &HttpRequest, user: &UserId) -> Result<(), Problem> {
    let would_stop = || {
        let sender = Sender::Account(user.clone());
        refusal_counts::would_stop(&api.app, sale_of(request), Layer::Account, Some(sender));
    };
    api.gate.admit_account(user, would_stop).map_err(|refusal| {
        counts::refused_by_account_limit(api, request, user);
        problem(refusal)
    })
}

/// Warns once when the address limit refuses a peer that may be a proxy missing from `FLASHSALE_TRUSTED_PROXIES`.
fn mention_proxy(api: &Api, request: &HttpRequest) {
    let Some(peer) = request.peer_addr() else { return };
    let is_named = is_proxy(peer.ip(), &api.trusted_proxies);
    if !is_named && !api.is_proxy_mentioned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            address = %peer.ip(),
            "the address limit refuses requests from this address; if it is your proxy or load balancer, name it in \
             FLASHSALE_TRUSTED_PROXIES"
        );
    }
}

/// The client that the address limit and the report of a sale count. None over a Unix socket, or behind a proxy that
/// names no client.
pub(super) fn client_of(api: &Api, request: &HttpRequest) -> Option<Client> {
    let address = address_of(api, request)?;
    (!is_proxy(address, &api.trusted_proxies)).then(|| Client::of(address))
}

/// The client's address. None over a Unix socket.
pub(super) fn address_of(api: &Api, request: &HttpRequest) -> Option<IpAddr> {
    let socket = request.peer_addr()?.ip();
    let forwarded = request.headers().get_all(X_FORWARDED_FOR);
    // A hop that is not UTF-8 must stay in the list, where it counts as an unknown address.
    let forwarded: Vec<Cow<'_, str>> = forwarded.map(|list| String::from_utf8_lossy(list.as_bytes())).collect();
    Some(address(
        socket,
        forwarded.iter().map(AsRef::as_ref),
        &api.trusted_proxies,
    ))
}

/// What a limit of the gate answers: its layer, its name in the operators' live view, the code, and the detail. The
/// shopper's window has the same code and another name. An older instance shows an unknown name as it is.
const fn answer(limit: Limit) -> (Layer, &'static str, Code, &'static str) {
    match limit {
        Limit::Address => (
            Layer::Address,
            "address_limit",
            Code::RateLimited,
            "too many requests from this address",
        ),
        Limit::Account => (
            Layer::Account,
            ACCOUNT_LIMIT,
            Code::RateLimited,
            "too many requests of this account",
        ),
        Limit::Instance => (
            Layer::Instance,
            "instance_limit",
            Code::Overloaded,
            "more requests than this instance takes",
        ),
        Limit::Shared => (
            Layer::Shared,
            "shared_limit",
            Code::Overloaded,
            "more requests than all instances take",
        ),
    }
}

/// The problem of a request that a limit of the gate refuses.
pub(super) fn problem(refusal: Refusal) -> Problem {
    let (.., code, detail) = answer(refusal.limit);
    Problem::wait(code, detail, refusal.wait)
}
