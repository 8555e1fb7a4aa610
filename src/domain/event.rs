//! Events: what a shard wrote down for the ledger, in order.

use super::ids::{IdempotencyKey, OrderId, UserId};
use super::time::Millis;

/// How far a shard's events have been taken in: the shard's generation and the number within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The shard's generation.
    pub epoch: i64,
    /// The event's number in that generation, without gaps.
    pub seq: i64,
}

impl Position {
    /// Whether a script of a shard in this epoch may have written the id, and may go on after it.
    #[must_use]
    pub const fn is_of(self, epoch: i64) -> bool {
        self.epoch == epoch && self.seq < i64::MAX
    }

    /// The number of the last event of this epoch that was taken in, where `self` is the last of all.
    #[must_use]
    pub const fn drained_of(self, epoch: i64) -> i64 {
        if self.epoch == epoch { self.seq } else { 0 }
    }
}

/// One event: an order was reserved. `Err` keeps the bytes of one that could not be read.
#[derive(Debug, Clone)]
pub struct Event {
    /// Where it stands in its shard's stream.
    pub position: Position,
    /// The bytes as they were read, for a dead letter.
    pub raw: Vec<u8>,
    /// What they say, or why they say nothing.
    pub reserved: Result<Reserved, Unreadable>,
    /// The request that it comes from, if that is traced.
    pub origin: Option<Origin>,
}

impl Event {
    /// Why only a worker of a newer version can read it, if that is so.
    #[must_use]
    pub fn newer(&self) -> Option<&str> {
        match &self.reserved {
            Err(Unreadable::Newer(reason)) => Some(reason),
            Ok(_) | Err(Unreadable::Damaged(_)) => None,
        }
    }
}

/// Why an event cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A newer version of the program has written it: it waits for a worker of that version.
    #[error("{0}")]
    Newer(String),
    /// It is none of ours, or damaged.
    #[error("{0}")]
    Damaged(String),
}

/// A request that is traced, as what comes of it elsewhere refers to it: a span and its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The trace.
    pub trace: [u8; 16],
    /// The request's own span in it.
    pub span: [u8; 8],
}

impl Origin {
    /// As an event carries it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.trace);
        bytes[16..].copy_from_slice(&self.span);
        bytes
    }

    /// What an event carries, if it is one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (trace, span) = bytes.split_first_chunk()?;
        Some(Self {
            trace: *trace,
            span: span.try_into().ok()?,
        })
    }
}

/// The order that an event announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The order.
    pub order: OrderId,
    /// Whose.
    pub user: UserId,
    /// Under which key it was asked for.
    pub key: IdempotencyKey,
    /// The item's position in its sale.
    pub item: u16,
    /// How many units.
    pub quantity: u32,
    /// When, by Redis's clock.
    pub created_at: Millis,
}
