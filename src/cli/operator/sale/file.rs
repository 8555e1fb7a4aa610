//! A sale file: the body of `POST /v1/admin/sales`, as TOML with the same keys. Syntax, unknown keys, types and times
//! are checked here. The server checks ranges; its message gets the line of the file that it is about.

use crate::cli::Failure;
use crate::cli::shared::duration;
use crate::cli::shared::output::one_line;
use crate::domain::sale::{PRICE_MAX, SaleRequest};
use crate::domain::shop::currency;
use crate::domain::time;
use crate::http::explain::parse_value;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A sale file as it was read.
#[derive(Debug)]
pub struct SaleFile {
    name: String,
    text: String,
    /// The body of the request: the file's own keys, with its times resolved.
    pub body: String,
    /// Whether a time counts from the time of reading.
    pub is_relative: bool,
}

impl SaleFile {
    /// The text of a refusal by the server with this `detail`, with the line of the file that it is about.
    pub fn refused(&self, detail: &str) -> String {
        let (name, detail) = (&self.name, one_line(detail));
        match line_of(&self.text, &detail) {
            Some(line) => format!("{name}:{line}: {detail}"),
            None => format!("{name}: {detail}"),
        }
    }
}

/// Reads a sale file, or standard input for the path `-`. Relative times count from `now`.
pub fn read(path: &Path, now: DateTime<Utc>) -> Result<SaleFile, Failure> {
    let (name, text) = if path == Path::new("-") {
        ("standard input".to_owned(), std::io::read_to_string(std::io::stdin()))
    } else {
        (path.display().to_string(), std::fs::read_to_string(path))
    };
    let text = text.map_err(|error| Failure::Usage(format!("{name}: cannot be read: {error}")))?;
    match parse(&text, now) {
        Ok(body) => Ok(SaleFile {
            is_relative: !parse(&text, now + TimeDelta::hours(1)).is_ok_and(|later| later == body),
            name,
            text,
            body,
        }),
        Err((line, message)) => Err(Failure::Usage(format!("{name}:{line}: {message}"))),
    }
}

/// The line that the server's message is about. Such a message begins with the field, as in `shards must be 1 to
/// 256`, `items[1].sku: …` or `guards: holds_max must be …`.
fn line_of(text: &str, detail: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut rest = detail.strip_prefix("the body: ").unwrap_or(detail);
    let (mut within, mut line) = (Some(table.get_ref()), None);
    while let Some(fields) = within.take() {
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let (field, after) = rest.split_at(end.unwrap_or(rest.len()));
        let Some((key, value)) = fields.iter().find(|(key, _)| key.get_ref() == field) else {
            break;
        };
        line = Some(line_at(text, key.span().start));
        let (mut value, mut after) = (value, after);
        let index = after.strip_prefix('[').and_then(|it| it.split_once(']'));
        if let (Some((index, behind)), DeValue::Array(elements)) = (index, value.get_ref()) {
            let Some(element) = index.parse::<usize>().ok().and_then(|index| elements.get(index)) else {
                break;
            };
            line = Some(line_at(text, element.span().start));
            (value, after) = (element, behind);
        }
        rest = after
            .strip_prefix('.')
            .or_else(|| after.strip_prefix(": "))
            .unwrap_or("");
        if let DeValue::Table(inner) = value.get_ref() {
            within = Some(inner);
        }
    }
    line
}

/// The body of the request, or the line of the file with the first mistake in it.
fn parse(text: &str, now: DateTime<Utc>) -> Result<String, (usize, String)> {
    let wrong = |error: toml::de::Error| {
        let line = line_at(text, error.span().map_or(0, |span| span.start));
        match refused(text) {
            Some(detail) => (line_of(text, &detail).unwrap_or(line), detail),
            None => (line, no_toml(text, &error)),
        }
    };
    let sale: SaleRequest<Spanned<toml::Value>> = toml::from_str(text).map_err(wrong)?;
    let time = |value: &Spanned<toml::Value>| {
        moment(value.get_ref(), now).map_err(|message| (line_at(text, value.span().start), message))
    };
    let (starts_at, ends_at) = (time(&sale.starts_at)?, time(&sale.ends_at)?);
    if ends_at <= starts_at {
        return Err((
            line_at(text, sale.ends_at.span().start),
            "ends_at must be later than starts_at".to_owned(),
        ));
    }
    // Only the file's own keys: the server fills in the others.
    let mut body: Map<String, Value> = toml::from_str(text).map_err(wrong)?;
    body.insert("starts_at".to_owned(), time::format(&starts_at).into());
    body.insert("ends_at".to_owned(), time::format(&ends_at).into());
    Ok(Value::Object(body).to_string())
}

/// What the parser says of a word without quotes. A first letter of t, f, i or n makes it expect a word of its own.
const BARE_WORDS: [&str; 4] = [
    "string values must be quoted",
    "invalid boolean",
    "invalid float, expected `inf`",
    "invalid float, expected `nan`",
];

/// What is wrong with a file that is no TOML.
fn no_toml(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    if BARE_WORDS.iter().any(|start| message.starts_with(start)) {
        return "write a text in quotes, as \"T-shirt\", and true or false without".to_owned();
    }
    let span = error.span().unwrap_or_default();
    let key = text.get(span.clone()).map(one_line);
    let is_table = text.get(..span.start).is_some_and(|before| before.ends_with('['));
    match (key, message.starts_with("duplicate key")) {
        (Some(key), true) if is_table => format!("[{key}] is there twice: write [[{key}]] above each one in a list"),
        (Some(key), true) => format!("{key} is there twice"),
        _ => message.replace('\n', " "),
    }
}

/// What the API says of a file that is TOML but no sale.
fn refused(text: &str) -> Option<String> {
    let mut body: Map<String, Value> = toml::from_str(text).ok()?;
    for (name, value) in &mut body {
        // A file's times may have forms that the API does not read.
        if ["starts_at", "ends_at"].contains(&name.as_str()) {
            *value = time::format(&DateTime::UNIX_EPOCH).into();
        }
    }
    let body = Value::Object(body);
    let detail = parse_value::<SaleRequest>(body.clone()).err()?;
    Some(price_with_point(&body, &detail).unwrap_or(detail))
}

/// What is wrong with a price that has a point, and what to write instead if that is a price.
fn price_with_point(body: &Value, detail: &str) -> Option<String> {
    let (item, _) = detail.split_once(".price_minor must be ")?;
    let found = body.pointer(&format!("/{}", item.replace('[', "/").replace(']', "")))?;
    let price = found["price_minor"]
        .as_f64()
        .filter(|_| found["price_minor"].is_f64())?;
    let code = found["currency"].as_str()?;
    let digits = currency::digits(code);
    let scaled = price * 10_f64.powi(i32::try_from(digits).ok()?);
    let is_exact = (scaled - scaled.round()).abs() < 0.001;
    let minor: i64 = format!("{scaled:.0}").parse().ok()?;
    if !is_exact || !(0..=PRICE_MAX).contains(&minor) {
        return None;
    }
    let unit = if digits == 2 { "cents" } else { "the smallest unit" };
    Some(format!(
        "{item}.price_minor is in {unit} of {code}: write {minor} for {price:.digits$}"
    ))
}

/// A point in time: RFC 3339, a TOML date-time with an offset, `now`, or `+` and a duration.
fn moment(value: &toml::Value, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    let text = match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Datetime(time) => time.to_string(),
        other => other.to_string(),
    };
    time_of(&text, now)
}

/// A point in time in a text: RFC 3339, `now`, or `+` and a duration.
pub fn time_of(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(later) = text.strip_prefix('+') {
        return Ok(now + duration::parse(later)?);
    }
    match DateTime::parse_from_rfc3339(text) {
        Ok(time) => Ok(time.to_utc()),
        Err(_) => Err(format!(
            "{text:?} is not a time: write 2026-11-27T20:00:00Z (with Z or an offset), \"now\" or \"+10m\""
        )),
    }
}

/// The line, counted from 1, that holds the byte at `offset`.
pub fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::guards::SaleGuards;
    use serde_json::json;

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
per_user_limit = 1
";

    fn now() -> DateTime<Utc> {
        "2026-11-27T20:00:00.5Z".parse().unwrap()
    }

    fn body(text: &str) -> Value {
        serde_json::from_str(&parse(text, now()).unwrap()).unwrap()
    }

    #[test]
    fn a_small_file_becomes_the_bodys_keys_and_no_others() {
        assert_eq!(
            body(SMALL),
            json!({
                "name": "Launch",
                "starts_at": "2026-11-27T20:00:00.500Z",
                "ends_at": "2026-11-28T20:00:00.500Z",
                "items": [{"sku": "phone", "name": "A phone", "price_minor": 1, "currency": "EUR", "stock": 5,
                    "per_user_limit": 1}],
            })
        );
    }

    #[test]
    fn the_example_has_the_defaults_of_guards() {
        let example = body(include_str!("../../../../sale.example.toml"));
        assert_eq!(example["guards"], json!(SaleGuards::default()));
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
            ("stock = 5", "stok = 5", 10, "items[0].stok is unknown; known are "),
            (
                "stock = 5",
                "stock = \"5\"",
                10,
                "items[0].stock must be an integer from 0 to ",
            ),
            (
                "price_minor = 1",
                "price_minor = 499.00",
                8,
                "items[0].price_minor is in cents of EUR: write 49900 for 499.00",
            ),
            (
                "price_minor = 1",
                "price_minor = 499.995",
                8,
                "items[0].price_minor must be an integer",
            ),
            (
                "price_minor = 1",
                "price_minor = -5.0",
                8,
                "items[0].price_minor must be an integer",
            ),
            (
                "price_minor = 1",
                "price_minor = 1e9",
                8,
                "items[0].price_minor must be an integer",
            ),
            (
                "price_minor = 1",
                "price_minor = \"1\"",
                8,
                "items[0].price_minor must be an integer",
            ),
            ("stock = 5", "stock = ", 10, ""),
            ("\"phone\"", "TSHIRT", 6, "write a text in quotes"),
            ("\"phone\"", "phone", 6, "write a text in quotes"),
            ("\"phone\"", "nokia", 6, "write a text in quotes"),
            ("stock = 5", "sku = \"pad\"", 10, "sku is there twice"),
            (
                "per_user_limit = 1",
                "[guards]\n[guards]",
                12,
                "[guards] is there twice: write [[guards]]",
            ),
            ("ends_at", "end_at", 3, "end_at is unknown; known are "),
            ("stock = 5", "", 5, "items[0].stock is missing"),
            ("per_user_limit = 1", "", 5, "items[0].per_user_limit is missing"),
        ] {
            let (found, message) = parse(&SMALL.replace(from, to), now()).unwrap_err();
            assert_eq!(found, line, "{to}: {message}");
            assert!(message.contains(part) && !message.contains('\n'), "{to}: {message}");
        }
    }

    #[test]
    fn a_refusal_by_the_server_names_the_line() {
        let text = format!(
            "shards = 300\n{SMALL}\n[[items]]\nsku = \"a b\"\n\n[guards]\nholds_max = -1\n\n[purchase_rate]\nlimit = 0\n"
        );
        for (detail, line) in [
            ("shards must be 1 to 256, not 300", Some(1)),
            ("name must be 1 to 200 characters", Some(2)),
            ("items must be 1 to 1000, not 2", Some(6)),
            ("items[0].stock must be 0 to 1000000000, not -5", Some(11)),
            ("items[1].sku: a SKU is 1 to 64 of A-Za-z0-9._-", Some(15)),
            ("items[1].price_minor must be 0 to 5", Some(14)),
            ("items[7].sku: there is no such item", Some(6)),
            ("guards: holds_max: invalid value: integer `-1`", Some(18)),
            ("guards: challenge needs purchase_token = true", Some(17)),
            ("purchase_rate.limit must be 1 to 1000, not 0", Some(21)),
            ("the body: shards: too many", Some(1)),
            ("payment_window_seconds must be 1 to 86400", None),
            ("", None),
        ] {
            assert_eq!(line_of(&text, detail), line, "{detail}");
        }
        let name = "launch.toml".to_owned();
        let body = String::new();
        let file = SaleFile {
            name,
            text,
            body,
            is_relative: false,
        };
        assert_eq!(
            file.refused("shards must\nbe 1 to 256"),
            "launch.toml:1: shards must be 1 to 256"
        );
        assert_eq!(file.refused("no"), "launch.toml: no");
    }

    #[test]
    fn a_file_says_whether_its_times_count_from_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sale.toml");
        let absolute = SMALL
            .replace("\"now\"", "2026-11-27T20:00:00Z")
            .replace("\"+24h\"", "2026-11-27T20:30:00Z");
        let mixed = absolute.replace("2026-11-27T20:00:00Z", "\"now\"");
        for (text, is_relative) in [(SMALL, true), (absolute.as_str(), false), (mixed.as_str(), true)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path, now()).unwrap().is_relative, is_relative, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let message = read(Path::new("no/such.toml"), now()).unwrap_err().to_string();
        assert!(message.starts_with("no/such.toml: cannot be read"), "{message}");
    }
}
