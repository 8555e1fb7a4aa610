//! The packed records of the scripts, written down once. All numbers are big-endian and unsigned.
//!
//! An item, in the hash `stock` under its SKU. What a purchase changes comes first, so it rewrites twelve bytes:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | available |
//! | 6 | 6 | held |
//! | 12 | 1 | state: 0 loading, 1 active, 2 paused, 3 closed |
//! | 13 | 6 | starts_at, milliseconds |
//! | 19 | 6 | ends_at, milliseconds |
//! | 25 | 4 | rate limit, requests in a window |
//! | 29 | 6 | window, milliseconds |
//! | 35 | 4 | units one shopper may have |
//! | 39 | 1 | the letter `u`: with the next two the name of the shopper's field of units |
//! | 40 | 2 | position of the item in the sale |
//! | 42 | 6 each | sold, revoked, out, in, granted, version, withdrawn |
//! | 84 | rest | `<epoch>-*`, the id for the next event |
//!
//! State, times and limits stand in each item so that a purchase reads one field. The field `:shard` (no SKU has a
//! colon) holds the epoch and the version of the state, six bytes each.
//!
//! A shopper, in the hash `buyer:<user>`:
//!
//! | field | value |
//! | --- | --- |
//! | 16 bytes, an order's id | 1 state, 2 item, 4 quantity, 6 created at, 6 resolved at, then the event's id as text |
//! | `w` | the sliding window: for each request 6 bytes of time and the last 6 of the order's id, oldest first |
//! | `u` and 2 bytes, an item's position | 4 bytes: units reserved and paid |
//! | `b` | banned until, milliseconds, as text |
//!
//! An event's value, under the field `reserved`: an order's record up to *resolved at*, the order's id, the
//! idempotency key, a newline, the user.

use crate::domain::event::{Position, Reserved};
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::{Order, OrderState};
use crate::domain::report::Counters;
use crate::domain::sale::{Lifecycle, Sale};
use crate::domain::time::{self, Millis};
use uuid::Uuid;

/// The bytes of an order's record before the event's id.
const ORDER_HEAD: usize = 19;
/// The bytes of an item's record before the event prefix.
const ITEM_HEAD: usize = 84;

/// Takes packed numbers off the front of some bytes.
struct Unpack<'a>(&'a [u8]);

impl Unpack<'_> {
    /// The next `width` bytes (at most 6, so it fits an `i64`) as a number; `None` at the end.
    fn number(&mut self, width: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(width)?;
        self.0 = rest;
        Some(head.iter().fold(0, |number, byte| (number << 8) | i64::from(*byte)))
    }
}

/// An item of a shard, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRecord {
    /// The units.
    pub counters: Counters,
    /// The shard's state as this item has it.
    pub lifecycle: Lifecycle,
    /// When it starts to sell.
    pub starts_at: Millis,
    /// When it stops.
    pub ends_at: Millis,
}

impl ItemRecord {
    /// Decodes a field of the hash `stock`.
    ///
    /// # Errors
    /// `Incomplete` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(bytes).ok_or_else(|| Fault::Incomplete("an item's record is damaged".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() <= ITEM_HEAD {
            return None;
        }
        let mut bytes = Unpack(bytes);
        let (available, held) = (bytes.number(6)?, bytes.number(6)?);
        let lifecycle = Lifecycle::from_code(u8::try_from(bytes.number(1)?).ok()?)?;
        let (starts_at, ends_at) = (bytes.number(6)?, bytes.number(6)?);
        let _limits = (bytes.number(4)?, bytes.number(6)?, bytes.number(4)?);
        let _units_field = bytes.number(3)?;
        let (sold, revoked, out) = (bytes.number(6)?, bytes.number(6)?, bytes.number(6)?);
        let (came_in, granted, version) = (bytes.number(6)?, bytes.number(6)?, bytes.number(6)?);
        let withdrawn = bytes.number(6)?;
        let counters = Counters {
            available,
            held,
            sold,
            revoked,
            out,
            r#in: came_in,
            granted,
            withdrawn,
            version,
        };
        Some(Self {
            counters,
            lifecycle,
            starts_at,
            ends_at,
        })
    }
}

/// An order of a shopper, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRecord {
    /// Where it stands, as far as the stock has been told.
    pub state: OrderState,
    /// The item's position.
    pub item: u16,
    /// How many units.
    pub quantity: u32,
    /// When it was accepted.
    pub created_at: Millis,
    /// When it left `reserved`; 0 while it has not.
    pub resolved_at: Millis,
    /// The event that announced it, where the record tells.
    pub event: Option<Position>,
}

impl OrderRecord {
    /// Decodes a field of the hash `buyer:<user>`.
    ///
    /// # Errors
    /// `Bug` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(bytes).ok_or_else(|| Fault::Bug("an order's record is damaged".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let event = bytes
            .get(ORDER_HEAD..)
            .and_then(|id| decode_position(std::str::from_utf8(id).ok()?));
        let mut bytes = Unpack(bytes);
        Some(Self {
            state: OrderState::from_code(u8::try_from(bytes.number(1)?).ok()?)?,
            item: u16::try_from(bytes.number(2)?).ok()?,
            quantity: u32::try_from(bytes.number(4)?).ok()?,
            created_at: bytes.number(6)?,
            resolved_at: bytes.number(6)?,
            event,
        })
    }

    /// The order as its owner sees it.
    ///
    /// # Errors
    /// `Bug` when the sale has no such item.
    pub fn into_order(self, id: OrderId, sale: &Sale, user: UserId, confirmed: bool) -> Result<Order, Fault> {
        let item = sale.items.get(usize::from(self.item));
        let item = item.ok_or_else(|| Fault::Bug(format!("order {id} is for item {} of {}", self.item, sale.id)))?;
        Ok(Order {
            id,
            sale_id: sale.id,
            sku: item.sku.clone(),
            quantity: self.quantity,
            amount_minor: item.price_minor.saturating_mul(i64::from(self.quantity)),
            currency: item.currency.clone(),
            state: self.state,
            confirmed,
            created_at: time::from_millis(self.created_at),
            expires_at: time::from_millis(self.created_at + sale.payment_window_ms()),
            paid_at: (self.state == OrderState::Paid).then(|| time::from_millis(self.resolved_at)),
            user,
        })
    }
}

/// Decodes the field `:shard`: the epoch and the version of the state.
///
/// # Errors
/// `Incomplete` when the bytes are not a whole record.
pub fn decode_shard(bytes: &[u8]) -> Result<(i64, i64), Fault> {
    let mut bytes = Unpack(bytes);
    match (bytes.number(6), bytes.number(6)) {
        (Some(epoch), Some(version)) => Ok((epoch, version)),
        _ => Err(Fault::Incomplete("the shard's record is damaged".to_owned())),
    }
}

/// Decodes a sliding window: when each request was made, oldest first.
#[must_use]
pub fn decode_window(bytes: &[u8]) -> Vec<Millis> {
    bytes
        .chunks_exact(12)
        .filter_map(|entry| Unpack(entry).number(6))
        .collect()
}

/// Decodes `<epoch>-<seq>`.
#[must_use]
pub fn decode_position(id: &str) -> Option<Position> {
    let (epoch, seq) = id.split_once('-')?;
    Some(Position {
        epoch: epoch.parse().ok()?,
        seq: seq.parse().ok()?,
    })
}

/// Decodes an event's value, or says why it cannot.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode_event(bytes: &[u8]) -> Result<Reserved, String> {
    let head = bytes.get(..ORDER_HEAD).ok_or("shorter than an order's record")?;
    let order = bytes.get(ORDER_HEAD..ORDER_HEAD + 16).ok_or("no order id")?;
    let identity = bytes.get(ORDER_HEAD + 16..).ok_or("no identity")?;
    let record = OrderRecord::read(head).ok_or("not an order's record")?;
    let identity = std::str::from_utf8(identity).map_err(|error| format!("the identity is not UTF-8: {error}"))?;
    let (key, user) = identity.split_once('\n').ok_or("no newline between key and user")?;
    Ok(Reserved {
        order: OrderId(Uuid::from_slice(order).map_err(|error| error.to_string())?),
        user: user.parse().map_err(|error| format!("{error}"))?,
        key: key.parse().map_err(|error| format!("{error}"))?,
        item: record.item,
        quantity: record.quantity,
        created_at: record.created_at,
    })
}
