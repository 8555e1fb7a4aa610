//! The gateway: an instance-wide token bucket in front of everything that shoppers ask.

use super::Api;
use super::problem::{Code, Problem};
use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, ResponseError};
use governor::DefaultDirectRateLimiter;
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;

/// A bucket of so many requests a second, as deep as a second; none for 0.
#[must_use]
pub fn bucket(rate: u32) -> Option<DefaultDirectRateLimiter> {
    NonZeroU32::new(rate).map(|rate| RateLimiter::direct(Quota::per_second(rate)))
}

/// Refuses what finds the bucket empty, before anything else is looked at.
///
/// # Errors
/// Those of the service behind it.
pub async fn gateway<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, Error> {
    let bucket = request.app_data::<Data<Api>>().and_then(|api| api.bucket.as_ref());
    if bucket.is_some_and(|bucket| bucket.check().is_err()) {
        let problem = Problem::new(Code::Overloaded, "more requests than this instance takes; try again");
        return Ok(request.into_response(problem.error_response()).map_into_right_body());
    }
    Ok(next.call(request).await?.map_into_left_body())
}
