//! `X-Request-Id` on every answer: the client's own if it sends a sensible one, else a new one.

use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use uuid::Uuid;

static HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Adds the header.
///
/// # Errors
/// Those of the service behind it.
pub async fn request_id(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let given = request.headers().get(&HEADER).filter(|id| is_sensible(id)).cloned();
    let id = given.or_else(|| HeaderValue::from_str(&Uuid::now_v7().to_string()).ok());
    let answer = next.call(request).await;
    let Some(id) = id else {
        return answer;
    };
    match answer {
        Ok(mut response) => {
            response.headers_mut().insert(HEADER.clone(), id);
            Ok(response)
        }
        Err(error) => {
            let mut response = error.error_response();
            response.headers_mut().insert(HEADER.clone(), id);
            Err(InternalError::from_response(error, response).into())
        }
    }
}

fn is_sensible(id: &HeaderValue) -> bool {
    (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}
