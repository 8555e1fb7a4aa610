//! A handler that panics takes its own request with it and nothing else: the next one on the connection is served.

use super::problem::Problem;
use super::request_id::current;
use crate::domain::fault::Fault;
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

/// Answers 503 where the service behind it panics.
///
/// # Errors
/// Those of the service behind it, and that it panicked.
pub async fn survive(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    // What requests share is whole at every moment: values that are replaced, and locks that nobody panics under.
    let answer = AssertUnwindSafe(async move { next.call(request).await }).catch_unwind();
    answer.await.unwrap_or_else(|_panic| {
        tracing::error!(request_id = current(), "a handler panicked");
        Err(Problem::from(Fault::Bug("a handler panicked".to_owned())).into())
    })
}
