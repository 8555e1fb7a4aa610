//! A request's body, with a limit on its length and on its time.

use super::single_of;
use crate::domain::code::Code;
use crate::http::explain::parse_json;
use crate::http::problem::Problem;
use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::web::{Bytes, BytesMut};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The most bytes of a body.
pub(in crate::http) const BODY_MAX: usize = 16 * 1024;
/// The most bytes of a body that creates or changes a sale: room for the most items with the longest names.
pub(in crate::http) const SALE_BODY_MAX: usize = 1024 * 1024;
/// The longest that a client may take to send a body.
const BODY_TIME: Duration = Duration::from_secs(5);

/// The whole body, not parsed.
pub struct Body(pub Bytes);

pub struct Json<T>(pub T);

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let payload = payload.take();
        let most = body_max(request);
        Box::pin(async move {
            // A body that is announced as too large is refused before it arrives.
            if announced.is_some_and(|length| length > most as u64) {
                return Err(too_large(most));
            }
            let body = tokio::time::timeout(BODY_TIME, read(payload, most)).await;
            body.unwrap_or_else(|_| Err(Problem::invalid("the body did not come in time")))
                .map(Self)
        })
    }
}

fn body_max(request: &HttpRequest) -> usize {
    let sale = request.path().strip_prefix("/v1/admin/sales");
    let is_sale = match *request.method() {
        Method::POST => sale == Some(""),
        Method::PUT | Method::PATCH => sale.is_some_and(|rest| rest.rfind('/') == Some(0)),
        _ => false,
    };
    if is_sale { SALE_BODY_MAX } else { BODY_MAX }
}

pub(in crate::http) fn too_large(most: usize) -> Problem {
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
        let content_type = single_of(request.headers(), CONTENT_TYPE, CONTENT_TYPE.as_str());
        let is_json = content_type.map(|it| it.is_none_or(is_json));
        let body = Body::from_request(request, payload);
        Box::pin(async move {
            let Body(body) = body.await?;
            if !is_json? {
                return Err(Problem::invalid("Content-Type must be application/json"));
            }
            parse_json(&body).map(Json)
        })
    }
}

/// Whether a content type is that of JSON, with any parameters.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}
