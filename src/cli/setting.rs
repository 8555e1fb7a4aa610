//! A setting that a command of the operator's needs: an environment variable, or a key of `flashsale.toml` in the
//! working folder (`FLASHSALE_ADMIN_KEY` or `admin_key`). The environment wins.

use super::Failure;
use crate::domain::webhook;

/// The operators' bearer key.
pub const ADMIN_KEY: &str = "FLASHSALE_ADMIN_KEY";
/// The secret that shoppers' tokens are signed with.
pub const JWT_SECRET: &str = "FLASHSALE_JWT_SECRET";
/// The secret that payment webhooks are signed with.
pub const WEBHOOK_SECRET: &str = "FLASHSALE_WEBHOOK_SECRET";

/// RFC 7518 asks an HS256 key to be at least as long as the hash.
const JWT_SECRET_BYTES_MIN: usize = 32;

/// Reads the setting `name`.
///
/// # Errors
/// `Usage` when it is nowhere, or `flashsale.toml` is not readable.
pub fn required(name: &str) -> Result<String, Failure> {
    if let Some(value) = from_environment(name)? {
        return Ok(value);
    }
    if let Some(value) = from_file(name)? {
        return Ok(value);
    }
    Err(Failure::Usage(format!(
        "{name} is not set: export the server's value (`flashsale up` keeps its own in DIR/secrets.env: \
         set -a; . data/secrets.env; set +a)"
    )))
}

/// The HS256 secret of shoppers' tokens.
///
/// # Errors
/// `Usage` when it is missing or too short.
pub fn jwt_secret() -> Result<String, Failure> {
    let secret = required(JWT_SECRET)?;
    if secret.len() < JWT_SECRET_BYTES_MIN {
        return Err(Failure::Usage(format!(
            "{JWT_SECRET} is too short: it needs at least 32 bytes"
        )));
    }
    Ok(secret)
}

/// The bytes of the webhook secret.
///
/// # Errors
/// `Usage` when it is missing or not as Standard Webhooks writes it.
pub fn webhook_secret() -> Result<Vec<u8>, Failure> {
    webhook::decode_secret(&required(WEBHOOK_SECRET)?)
        .map_err(|error| Failure::Usage(format!("{WEBHOOK_SECRET}: {error}")))
}

fn from_environment(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Failure::Usage(format!("{name} is not UTF-8: set it again"))),
    }
}

fn from_file(name: &str) -> Result<Option<String>, Failure> {
    let text = match std::fs::read_to_string("flashsale.toml") {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::Usage(format!("flashsale.toml cannot be read: {error}"))),
    };
    in_toml(name, &text)
}

/// The parser's own message would quote the line, and with it perhaps a secret: only the line's number is told.
fn in_toml(name: &str, text: &str) -> Result<Option<String>, Failure> {
    let table: toml::Table = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = super::sale_file::line_at(text, error.span().map_or(0, |span| span.start));
        Failure::Usage(format!("flashsale.toml:{line}: not valid TOML"))
    })?;
    let short = name.trim_start_matches("FLASHSALE_").to_lowercase();
    match table.get(name).or_else(|| table.get(&short)) {
        None => Ok(None),
        Some(toml::Value::String(value)) => Ok(Some(value.clone())),
        Some(_) => Err(Failure::Usage(format!(
            "flashsale.toml: {name} must be a string in quotes"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_setting_is_bad_usage_that_names_it() {
        let Failure::Usage(message) = required("FLASHSALE_NO_SUCH_SETTING").unwrap_err() else {
            panic!("not usage")
        };
        assert!(message.starts_with("FLASHSALE_NO_SUCH_SETTING is not set"), "{message}");
    }

    #[test]
    fn a_broken_file_is_named_without_quoting_it() {
        assert_eq!(in_toml("A", "A = \"x\"").unwrap().as_deref(), Some("x"));
        assert_eq!(in_toml(ADMIN_KEY, "admin_key = \"x\"").unwrap().as_deref(), Some("x"));
        assert_eq!(in_toml("B", "A = \"x\"").unwrap(), None);
        let message = in_toml("A", "\nA = \"sesame").unwrap_err().to_string();
        assert!(
            message.starts_with("flashsale.toml:2:") && !message.contains("sesame"),
            "{message}"
        );
    }
}
