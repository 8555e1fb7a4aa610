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

/// One event: an order was reserved. `Err` keeps the bytes of one that could not be read.
#[derive(Debug, Clone)]
pub struct Event {
    /// Where it stands in its shard's stream.
    pub position: Position,
    /// The bytes as they were read, for a dead letter.
    pub raw: Vec<u8>,
    /// What they say, or why they say nothing.
    pub reserved: Result<Reserved, String>,
    /// The request that it comes from, if that is traced.
    pub origin: Option<Origin>,
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
