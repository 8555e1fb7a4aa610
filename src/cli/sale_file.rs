//! A sale file: what `POST /v1/admin/sales` takes, in TOML with the same keys. Ranges are the server's to judge;
//! what is checked here is what has a line to point at: syntax, unknown keys, types and times.

use super::{Failure, duration};
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::Spanned;

/// A sale as it is to be created, with its times resolved.
#[derive(Debug, Serialize)]
pub struct NewSale {
    name: String,
    starts_at: String,
    ends_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payment_window_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purchase_rate: Option<PurchaseRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Durability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guards: Option<Guards>,
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SaleFile {
    name: String,
    starts_at: Spanned<toml::Value>,
    ends_at: Spanned<toml::Value>,
    shards: Option<u32>,
    payment_window_seconds: Option<u32>,
    purchase_rate: Option<PurchaseRate>,
    durability: Option<Durability>,
    guards: Option<Guards>,
    items: Vec<Item>,
}

/// Which guards there are is the server's to judge.
type Guards = serde_json::Map<String, serde_json::Value>;

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PurchaseRate {
    limit: u32,
    window_ms: u64,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Durability {
    Redis,
    Replica,
    Postgres,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Item {
    sku: String,
    name: String,
    price_minor: u64,
    currency: String,
    stock: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_user_limit: Option<u32>,
}

/// Reads a sale file; relative times count from `now`.
///
/// # Errors
/// `Usage` with one line that names the file and the line in it.
pub fn read(path: &Path, now: DateTime<Utc>) -> Result<NewSale, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("{}: cannot be read: {error}", path.display())))?;
    parse(&text, now).map_err(|(line, message)| Failure::Usage(format!("{}:{line}: {message}", path.display())))
}

fn parse(text: &str, now: DateTime<Utc>) -> Result<NewSale, (usize, String)> {
    let file: SaleFile = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = line_at(text, error.span().map_or(0, |span| span.start));
        (line, error.message().replace('\n', " "))
    })?;
    let time = |value: &Spanned<toml::Value>| {
        moment(value.get_ref(), now).map_err(|message| (line_at(text, value.span().start), message))
    };
    let (starts_at, ends_at) = (time(&file.starts_at)?, time(&file.ends_at)?);
    if ends_at <= starts_at {
        return Err((
            line_at(text, file.ends_at.span().start),
            "ends_at must be later than starts_at".to_owned(),
        ));
    }
    let written = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Millis, true);
    Ok(NewSale {
        name: file.name,
        starts_at: written(starts_at),
        ends_at: written(ends_at),
        shards: file.shards,
        payment_window_seconds: file.payment_window_seconds,
        purchase_rate: file.purchase_rate,
        durability: file.durability,
        guards: file.guards,
        items: file.items,
    })
}

/// A point in time: RFC 3339, a TOML date-time with an offset, `now`, or `+` and a duration.
fn moment(value: &toml::Value, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Datetime(time) => time.to_string(),
        other => other.to_string(),
    };
    if text == "now" {
        return Ok(now);
    }
    if let Some(later) = text.strip_prefix('+') {
        return Ok(now + duration::parse(later)?);
    }
    match DateTime::parse_from_rfc3339(&text) {
        Ok(time) => Ok(time.to_utc()),
        Err(_) => Err(format!(
            "{text:?} is not a time: write 2026-11-27T20:00:00Z (with Z or an offset), \"now\" or \"+10m\""
        )),
    }
}

/// The line, counted from 1, that holds the byte at `offset`.
#[must_use]
pub fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SMALL: &str = "\
name = \"Launch\"
starts_at = \"now\"
ends_at = \"+24h\"

[[items]]
sku = \"phone\"
name = \"A phone\"
price_minor = 1
currency = \"EUR\"
stock = 5
";

    fn now() -> DateTime<Utc> {
        "2026-11-27T20:00:00.5Z".parse().unwrap()
    }

    fn body(text: &str) -> Value {
        serde_json::to_value(parse(text, now()).unwrap()).unwrap()
    }

    #[test]
    fn a_small_file_becomes_the_bodys_keys_and_no_others() {
        assert_eq!(
            body(SMALL),
            json!({
                "name": "Launch",
                "starts_at": "2026-11-27T20:00:00.500Z",
                "ends_at": "2026-11-28T20:00:00.500Z",
                "items": [{"sku": "phone", "name": "A phone", "price_minor": 1, "currency": "EUR", "stock": 5}],
            })
        );
    }

    #[test]
    fn the_example_has_every_key() {
        let example = body(include_str!("../../sale.example.toml"));
        let keys = |value: &Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join(" ")
        };
        assert_eq!(
            keys(&example),
            "durability ends_at guards items name payment_window_seconds purchase_rate shards starts_at"
        );
        assert_eq!(
            keys(&example["items"][0]),
            "currency name per_user_limit price_minor sku stock"
        );
    }

    #[test]
    fn times_are_texts_or_toml_times_with_an_offset() {
        for (written, meant) in [
            ("\"2026-11-27T21:00:00+01:00\"", "2026-11-27T20:00:00.000Z"),
            ("2026-11-27T21:00:00+01:00", "2026-11-27T20:00:00.000Z"),
            ("2026-11-27 20:00:00.25Z", "2026-11-27T20:00:00.250Z"),
            ("\"+10m\"", "2026-11-27T20:10:00.500Z"),
        ] {
            let text = SMALL.replace("\"now\"", written);
            assert_eq!(body(&text)["starts_at"], *meant, "{written}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (from, to, line, part) in [
            ("\"now\"", "2026-11-27", 2, "is not a time"),
            ("\"now\"", "2026-11-27T20:00:00", 2, "is not a time"),
            ("\"now\"", "5", 2, "is not a time"),
            ("\"+24h\"", "\"+24w\"", 3, "is not a duration"),
            ("\"+24h\"", "\"now\"", 3, "later than"),
            ("stock = 5", "stok = 5", 10, "unknown field `stok`"),
            ("stock = 5", "stock = -5", 10, "invalid value"),
            ("stock = 5", "stock = \"5\"", 10, "invalid type"),
            ("stock = 5", "stock = ", 10, ""),
            ("ends_at", "end_at", 3, "unknown field `end_at`"),
            ("stock = 5", "", 5, "missing field `stock`"),
        ] {
            let (found, message) = parse(&SMALL.replace(from, to), now()).unwrap_err();
            assert_eq!(found, line, "{to}: {message}");
            assert!(message.contains(part) && !message.contains('\n'), "{to}: {message}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let message = read(Path::new("no/such.toml"), now()).unwrap_err().to_string();
        assert!(message.starts_with("no/such.toml: cannot be read"), "{message}");
    }
}
