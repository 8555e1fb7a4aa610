//! Instants: whole milliseconds inside, RFC 3339 in UTC outside.

use chrono::{DateTime, SecondsFormat, TimeZone, Utc};
use serde::Serializer;

/// Milliseconds since the Unix epoch.
pub type Millis = i64;

/// The instant at `millis`. Our clocks give values in range; any other becomes the epoch.
pub fn from_millis(millis: Millis) -> DateTime<Utc> {
    Utc.timestamp_millis_opt(millis).single().unwrap_or_default()
}

/// Formats an instant like `2026-11-21T08:00:00.000Z`.
pub fn format(at: &DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Serializes an instant as [`format`] writes it.
pub fn serialize<S: Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(at))
}

/// As [`serialize`]; `null` if there is none.
pub fn serialize_option<S: Serializer>(at: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serialize(at, serializer),
        None => serializer.serialize_none(),
    }
}
