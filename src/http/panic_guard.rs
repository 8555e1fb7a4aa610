//! Contains panics: a handler that panics loses only its own request. The connection goes on with the next one.

use crate::domain::fault::Fault;
use crate::http::problem::Problem;
use crate::http::request_id::current;
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

/// Answers 503 if the service behind it panics.
pub async fn panic_guard(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    // Shared values stay whole across a panic: they are replaced at once, or changed under locks that never panic.
    let answer = AssertUnwindSafe(async move { next.call(request).await }).catch_unwind();
    answer.await.unwrap_or_else(|_panic| {
        tracing::error!(request_id = current(), "a handler panicked");
        Err(Problem::from(Fault::Bug("a handler panicked".to_owned())).into())
    })
}
