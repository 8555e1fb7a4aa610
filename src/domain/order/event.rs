//! Events: the records that a shard writes for the ledger, in order.

use crate::domain::ids::{IdempotencyKey, OrderId, UserId};
use crate::domain::time::Millis;

/// The position of an event in its shard's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The generation of the shard.
    pub epoch: i64,
    /// The event's number in that generation, without gaps.
    pub seq: i64,
}

impl Position {
    /// Whether a shard in this epoch may have written this position, and can go on after it.
    pub const fn is_of(self, epoch: i64) -> bool {
        self.epoch == epoch && self.seq < i64::MAX
    }

    /// The number of the last drained event of `epoch`, if `self` is the last drained event of all.
    pub const fn drained_of(self, epoch: i64) -> i64 {
        if self.epoch == epoch { self.seq } else { 0 }
    }
}

/// An event: an order was reserved.
#[derive(Debug, Clone)]
pub struct Event {
    /// The position in the shard's stream.
    pub position: Position,
    /// The bytes as they were read, for a dead letter.
    pub raw: Vec<u8>,
    /// The order in those bytes, or why they cannot be read.
    pub reserved: Result<Reserved, Unreadable>,
    /// The request that caused the event, if it is traced.
    pub origin: Option<Origin>,
}

impl Event {
    /// An event of which no request is known but its order.
    pub const fn untraced(position: Position, raw: Vec<u8>, reserved: Result<Reserved, Unreadable>) -> Self {
        Self {
            position,
            raw,
            reserved,
            origin: None,
        }
    }

    /// If only a worker of a newer version can read this event: why.
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
    /// A newer version of the program wrote it. The event waits for a worker of that version.
    #[error("{0}")]
    Newer(String),
    /// It is damaged, or not one of our events.
    #[error("{0}")]
    Damaged(String),
}

/// A traced request, to which later spans refer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub trace: [u8; 16],
    /// The request's own span in that trace.
    pub span: [u8; 8],
}

impl Origin {
    /// The form in an event.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.trace);
        bytes[16..].copy_from_slice(&self.span);
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (trace, span) = bytes.split_first_chunk()?;
        Some(Self {
            trace: *trace,
            span: span.try_into().ok()?,
        })
    }
}

/// The order in an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    pub order: OrderId,
    /// The shopper.
    pub user: UserId,
    /// The key of the purchase.
    pub key: IdempotencyKey,
    /// The item's position in its sale.
    pub item: u16,
    pub quantity: u32,
    /// When Redis accepted the order, by its own clock.
    pub created_at: Millis,
}
