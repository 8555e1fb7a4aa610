//! A shopper's bearer token, as the shop's own login would issue it.

use super::hs256;
use jsonwebtoken::errors::Error;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::Serialize;

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    iat: i64,
    exp: i64,
}

/// Signs a token for `user`; both times are Unix seconds.
pub fn issue(secret: &str, user: &str, issued_at: i64, expires_at: i64) -> Result<String, Error> {
    hs256::install();
    let claims = Claims {
        sub: user,
        iat: issued_at,
        exp: expires_at,
    };
    let key = EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)
}
