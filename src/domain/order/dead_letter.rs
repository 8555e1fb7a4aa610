//! Messages that one side could not accept, for operators: dead letters, which are events that Postgres could not take,
//! and decisions of Postgres that a shard refuses.

use super::event::Position;
use crate::domain::plain::plain_text;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The most characters of a note.
pub const NOTE_MAX: usize = 200;

/// The pattern of a [`DeadLetterId`].
pub const DEAD_LETTER_PATTERN: &str = "^(0|[1-9][0-9]{0,2}):(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})$";

/// The place of a dead letter: its shard, and its position in the shard's stream. As text, `0:1-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterId {
    pub shard: u16,
    pub position: Position,
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { epoch, seq } = self.position;
        write!(f, "{}:{epoch}-{seq}", self.shard)
    }
}

/// A text that is not the position of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a position as it is listed, such as 0:1-2")]
pub struct NotADeadLetter;

impl FromStr for DeadLetterId {
    type Err = NotADeadLetter;
    fn from_str(text: &str) -> Result<Self, NotADeadLetter> {
        // Each number has one form, so that no two texts mean one event.
        let number = |text: &str, digits: usize| {
            let is_plain = text.len() <= digits && text.bytes().all(|it| it.is_ascii_digit());
            let is_shortest = text == "0" || !text.starts_with('0');
            text.parse::<i64>().ok().filter(|_| is_plain && is_shortest)
        };
        let parts = text.split_once(':').and_then(|(shard, position)| {
            let (epoch, seq) = position.split_once('-')?;
            let (epoch, seq) = (number(epoch, 18)?, number(seq, 18)?);
            Some(Self {
                shard: u16::try_from(number(shard, 3)?).ok()?,
                position: Position { epoch, seq },
            })
        });
        parts.ok_or(NotADeadLetter)
    }
}

plain_text! {
    /// An operator's words on what was done about a dead letter.
    Note NOTE_MAX
}

/// A dead letter: an event that Postgres could not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeadLetter {
    /// The event's shard, epoch and number, as in `0:1-2`.
    pub position: String,
    /// The shard that wrote the event.
    pub shard: u16,
    /// The shard's epoch at that time.
    pub epoch: i64,
    /// The event's number in that epoch.
    pub seq: i64,
    /// Why Postgres could not take the event.
    pub reason: String,
    /// The order that was revoked because of it; null if the event does not name one.
    pub order_id: Option<Uuid>,
    /// The content of the event, if it is readable.
    pub event: Option<DeadLetterEvent>,
    /// Its bytes, if it is not readable: printable ASCII as it is, other bytes as `\n` or `\x00`, at most the first
    /// thousand.
    pub bytes: Option<String>,
    /// When the event became a dead letter.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// When an operator settled the dead letter.
    #[serde(serialize_with = "time::serialize_option")]
    pub settled_at: Option<DateTime<Utc>>,
    /// The operator's note on what was done about it.
    pub note: Option<String>,
}

/// The content of an event: an order was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "LetterEvent")]
pub struct DeadLetterEvent {
    /// The order's id.
    pub order_id: Uuid,
    /// The shopper.
    pub user: String,
    /// The idempotency key of the purchase.
    pub idempotency_key: String,
    /// The item; null if the sale has no such item.
    pub sku: Option<String>,
    /// How many units were ordered.
    pub quantity: u32,
    /// When Redis accepted the order.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
}

/// The outcome of settling a dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The note is recorded, now or by the same request before.
    Noted(DeadLetter),
    /// Another note was recorded before.
    NotedAs(String),
    NoLetter,
    NoSale,
}

/// A decision of Postgres that a shard refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedMessage {
    /// The message's number. Later messages have higher numbers.
    pub id: i64,
    /// The shard that refuses the message.
    pub shard: u16,
    /// The kind of message: `resolve`, `restock`, `withdrawn`, `give_back`, `state` or `ban`; null if it is unreadable.
    pub kind: Option<&'static str>,
    /// The order in the message, if there is one.
    pub order_id: Option<Uuid>,
    /// That order's state in Postgres.
    pub order_state: Option<String>,
    /// The shopper of the order or of the ban, if there is one.
    pub user: Option<String>,
    /// The item, if there is one.
    pub sku: Option<String>,
    /// How many units the message moves.
    pub units: Option<i64>,
    /// Why the shard refuses the message.
    pub failure: String,
    /// When Postgres decided.
    #[serde(serialize_with = "time::serialize")]
    pub since: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_position_is_written_in_one_way() {
        let schema = json!({"type": "string", "pattern": DEAD_LETTER_PATTERN});
        let schema = jsonschema::draft202012::new(&schema).unwrap();
        let longest = format!("999:{0}-{0}", "9".repeat(18));
        for text in ["0:1-2", "255:12-0", &longest] {
            let id: DeadLetterId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert!(schema.is_valid(&json!(text)));
        }
        let long = format!("0:1-{}", "9".repeat(19));
        for text in [
            "", ":", "0:1", "1-2", "0:-1-2", "0:1--2", "+0:1-2", "00:1-2", "0:01-2", "0:1-+2", "0:1-2 ", "1000:1-2",
            "0:1-2-3", "0:1-２", "0:1-", &long,
        ] {
            assert_eq!(text.parse::<DeadLetterId>(), Err(NotADeadLetter), "{text}");
            assert!(!schema.is_valid(&json!(text)), "{text}");
        }
    }
}
