//! What one side could not take from the other, for operators: events that the ledger put aside, and its decisions that
//! shards refuse.

use super::event::Position;
use super::plain::{NotPlain, plain};
use super::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Characters that a note may have.
pub const NOTE_MAX: usize = 200;

/// What a [`LetterId`] looks like.
pub const LETTER_PATTERN: &str = "^(0|[1-9][0-9]{0,2}):(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})$";

/// Where an event stood that was put aside: its shard, and its position there. As text, `0:1-2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LetterId {
    /// The shard.
    pub shard: u16,
    /// The event's position.
    pub position: Position,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { epoch, seq } = self.position;
        write!(f, "{}:{epoch}-{seq}", self.shard)
    }
}

/// Why a text is no position of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a position as it is listed, such as 0:1-2")]
pub struct NotALetter;

impl FromStr for LetterId {
    type Err = NotALetter;
    fn from_str(text: &str) -> Result<Self, NotALetter> {
        // One way of writing each, so that no two texts are one event.
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
        parts.ok_or(NotALetter)
    }
}

/// What an operator says was done about an event that was put aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note(String);

impl Note {
    /// The note as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Note {
    type Err = NotPlain;
    fn from_str(text: &str) -> Result<Self, NotPlain> {
        Ok(Self(plain(text, NOTE_MAX)?.to_owned()))
    }
}

/// An event that the ledger could not take in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeadLetter {
    /// Which one: its shard, the shard's epoch, and its number there, as in `0:1-2`.
    pub position: String,
    /// The shard that wrote it.
    pub shard: u16,
    /// The shard's epoch then.
    pub epoch: i64,
    /// Its number in that epoch.
    pub seq: i64,
    /// Why it could not be taken in.
    pub reason: String,
    /// The order that was revoked for it; none if it could not be told which that is.
    pub order_id: Option<Uuid>,
    /// What it says, if that can be read.
    pub event: Option<LetterEvent>,
    /// Its bytes, if it cannot: printable ASCII as it is, all others as `\n` or `\x00`, and no more than the first thousand.
    pub bytes: Option<String>,
    /// When it was put aside.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// When an operator said that it is dealt with.
    #[serde(serialize_with = "time::serialize_option")]
    pub settled_at: Option<DateTime<Utc>>,
    /// What was done about it, as he said.
    pub note: Option<String>,
}

/// What an event says: that an order was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LetterEvent {
    /// The order's id.
    pub order_id: Uuid,
    /// Whose it is.
    pub user: String,
    /// Under which key it was asked for.
    pub idempotency_key: String,
    /// Of which item; none if the sale has no such one.
    pub sku: Option<String>,
    /// How many units.
    pub quantity: u32,
    /// When it was accepted.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
}

/// What came of saying that an event is dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It is noted, now or by the same request before.
    Noted(Box<DeadLetter>),
    /// It was noted before, and what was done about it is something else.
    NotedAs(String),
    /// There is no such event.
    NoLetter,
    /// There is no such sale.
    NoSale,
}

/// A decision of the ledger that a shard refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RefusedMessage {
    /// Its number: later ones have greater ones.
    pub id: i64,
    /// The shard.
    pub shard: u16,
    /// What it tells: `resolve`, `restock`, `withdrawn`, `give_back`, `state` or `ban`; none if nobody can read it.
    pub kind: Option<&'static str>,
    /// The order that it is about.
    pub order_id: Option<Uuid>,
    /// What became of that order.
    pub order_state: Option<String>,
    /// Whose order or ban it is.
    pub user: Option<String>,
    /// Of which item.
    pub sku: Option<String>,
    /// How many units.
    pub units: Option<i64>,
    /// Why it is refused.
    pub failure: String,
    /// When it was decided.
    #[serde(serialize_with = "time::serialize")]
    pub since: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_position_is_written_in_one_way() {
        let schema = json!({"type": "string", "pattern": LETTER_PATTERN});
        let schema = jsonschema::draft202012::new(&schema).unwrap();
        let longest = format!("999:{0}-{0}", "9".repeat(18));
        for text in ["0:1-2", "255:12-0", &longest] {
            let id: LetterId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert!(schema.is_valid(&json!(text)));
        }
        let long = format!("0:1-{}", "9".repeat(19));
        for text in [
            "", ":", "0:1", "1-2", "0:-1-2", "0:1--2", "+0:1-2", "00:1-2", "0:01-2", "0:1-+2", "0:1-2 ", "1000:1-2",
            "0:1-2-3", "0:1-２", "0:1-", &long,
        ] {
            assert_eq!(text.parse::<LetterId>(), Err(NotALetter), "{text}");
            assert!(!schema.is_valid(&json!(text)), "{text}");
        }
    }
}
