//! `flashsale token`: prints a shopper's bearer token, as the shop's own login would issue it.

use crate::cli::Failure;
use crate::cli::shared::{duration, output, setting};
use crate::domain::shopper::token;
use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  TOKEN=$(flashsale token --user alice --ttl 15m)")]
pub struct Args {
    /// The shopper's id, 1 to 128 bytes.
    #[arg(long, value_name = "ID", value_parser = user_id)]
    user: String,
    /// How long the token is valid: 90s, 15m, 1h, 7d.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        value_parser = duration::parse_lasting,
        allow_hyphen_values = true
    )]
    ttl: Duration,
    /// Print the token and its expiry as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let now = Utc::now();
    let token = issue(&setting::jwt_secret()?, &args.user, args.ttl, now)?;
    if !args.json {
        return output::print(&format!("{token}\n"));
    }
    let expires_at = (now + args.ttl).to_rfc3339_opts(SecondsFormat::Secs, true);
    output::print_json(&serde_json::json!({"token": token, "user": args.user, "expires_at": expires_at}))
}

/// Signs a token for `user` that expires `ttl` after `now`.
pub fn issue(secret: &str, user: &str, ttl: Duration, now: DateTime<Utc>) -> Result<String, Failure> {
    let token = token::issue(secret, user, now.timestamp(), (now + ttl).timestamp());
    Ok(token.context("the token cannot be signed")?)
}

pub fn user_id(text: &str) -> Result<String, String> {
    match text.len() {
        1..=128 => Ok(text.to_owned()),
        length => Err(format!("a shopper's id has 1 to 128 bytes, not {length}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn the_token_carries_who_and_until_when() {
        let now = Utc::now();
        let token = issue(SECRET, "alice", Duration::from_secs(3_600), now).unwrap();
        let key = DecodingKey::from_secret(SECRET.as_bytes());
        let claims = decode::<serde_json::Value>(&token, &key, &Validation::new(Algorithm::HS256))
            .unwrap()
            .claims;
        let issued = now.timestamp();
        assert_eq!(
            claims,
            serde_json::json!({"sub": "alice", "iat": issued, "exp": issued + 3_600})
        );
        let other = DecodingKey::from_secret(b"another secret, long enough to be one");
        assert!(decode::<serde_json::Value>(&token, &other, &Validation::new(Algorithm::HS256)).is_err());
    }

    #[test]
    fn ids_have_bounds() {
        assert!(user_id("").is_err());
        assert!(user_id(&"x".repeat(128)).is_ok());
        assert!(user_id(&"é".repeat(65)).is_err());
    }
}
