//! Verifies shoppers' tokens.

use super::Session;
use crate::domain::ids::UserId;
use crate::domain::shopper::hs256;
use chrono::Utc;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use quick_cache::sync::Cache;
use serde::Deserialize;

/// Verifies shoppers' tokens: HS256 only, not expired, with a subject. A buyer sends the same token with each request,
/// so valid tokens are cached until they expire.
pub struct Tokens {
    key: DecodingKey,
    validation: Validation,
    good: Cache<Box<str>, Good>,
}

/// The `aud` that a shopper's token must name, if it names any.
const AUDIENCE: &str = "flashsale";
/// How many valid tokens are cached, and the most bytes of one of them: some megabytes in total.
const GOOD_MAX: usize = 20_000;
const GOOD_LENGTH_MAX: usize = 512;

/// A valid token in the cache.
#[derive(Clone)]
struct Good {
    session: Session,
    /// When it was verified (Unix seconds).
    from: i64,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Unix seconds, perhaps with a fraction (RFC 7519); so is `exp`.
    iat: Option<f64>,
    exp: f64,
}

impl Tokens {
    /// Verifies tokens that were signed with this secret.
    pub fn new(secret: &[u8]) -> Self {
        hs256::install();
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        validation.validate_nbf = true;
        // A token without an audience passes; a token for another service does not (RFC 7519, section 4.1.3).
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self {
            key: DecodingKey::from_secret(secret),
            validation,
            good: Cache::new(GOOD_MAX),
        }
    }

    /// The shopper whose token this is, and when it was issued.
    pub fn user(&self, token: &str) -> Option<(UserId, Option<i64>)> {
        let session = self.session(token)?;
        Some((session.user, session.issued_at))
    }

    /// The shopper whose token this is, and the token's times.
    pub fn session(&self, token: &str) -> Option<Session> {
        let now = Utc::now().timestamp();
        // The cache's key is the whole token, so a token with one other bit does not match.
        if let Some(good) = self.good.get(token).filter(|good| good.holds_at(now)) {
            return Some(good.session);
        }
        let claims = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation)
            .ok()?
            .claims;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a time that no clock will ever show ends at the bounds"
        )]
        let (issued_at, until) = (claims.iat.map(|at| at as i64), claims.exp as i64);
        let user = claims.sub.parse().ok()?;
        let session = Session { user, issued_at, until };
        if token.len() <= GOOD_LENGTH_MAX {
            let good = Good {
                session: session.clone(),
                from: now,
            };
            self.good.insert(token.into(), good);
        }
        Some(session)
    }
}

impl Good {
    /// Whether the token is still valid. False in its last second and after the clock went back: then it is verified
    /// again.
    fn holds_at(&self, now: i64) -> bool {
        self.from <= now && now < self.session.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(!good.holds_at(good.session.until), "its last second is checked");
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
