//! The packed records of the scripts, written down once. All numbers are big-endian and unsigned.
//!
//! A shard, in `shard`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | state: 0 loading, 1 active, 2 paused, 3 closed |
//! | 1 | 6 | starts_at, milliseconds |
//! | 7 | 6 | ends_at, milliseconds |
//! | 13 | 4 | rate limit, requests in a window |
//! | 17 | 6 | window, milliseconds |
//! | 23 | 6 | version of the state |
//! | 29 | 6 | epoch |
//! | 35 | rest | `<epoch>-*`, the id for the next event |
//!
//! An item, in `item:<sku>`. What a purchase changes comes first:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | available |
//! | 6 | 6 | held |
//! | 12 | 4 | units that one shopper may have |
//! | 16 | 2 | position of the item in the sale |
//! | 18 | 6 each | sold, revoked, out, in, granted, version, withdrawn |
//!
//! A shopper, in `buyer:<user>`:
//!
//! | bytes | field |
//! | --- | --- |
//! | 6 | banned until, milliseconds; 0 when never |
//! | 1 | 0 while every order is here; else 1 to 255, and another number whenever one more is left to the ledger |
//! | 2 | number of items |
//! | 2 | number of entries in the window |
//! | 6 an item | 2 position, 4 units that are reserved and paid |
//! | 12 an entry | the sliding window, oldest first: 6 the request's time, the last 6 of its order's id |
//! | 36 and more an order | 16 id, 1 state, 2 item, 4 quantity, 6 created at, 6 resolved at, 1 length of the event's id, the event's id as text; oldest first |
//!
//! A shopper is one string because a script pays more for each field of a hash than for the bytes of a string. So
//! that it stays short, an order that is decided while the whole is longer than 4 KiB is left to the ledger.
//!
//! An event's value, under the field `reserved`: an order's record from its state up to *resolved at*, the order's
//! id, the idempotency key, a newline, the user.

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
/// The bytes of a shard's record before the event prefix.
const SHARD_HEAD: usize = 35;
/// The bytes of an item's record.
const ITEM: usize = 60;

/// Takes packed numbers off the front of some bytes.
struct Unpack<'a>(&'a [u8]);

impl<'a> Unpack<'a> {
    /// The next bytes; `None` when there are not so many.
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    /// The next `width` bytes (at most 6, so it fits an `i64`) as a number; `None` at the end.
    fn number(&mut self, width: usize) -> Option<i64> {
        Some(
            self.take(width)?
                .iter()
                .fold(0, |number, byte| (number << 8) | i64::from(*byte)),
        )
    }
}

/// A shard's own record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRecord {
    /// The sale's state as this shard has it.
    pub lifecycle: Lifecycle,
    /// When it starts to sell.
    pub starts_at: Millis,
    /// When it stops.
    pub ends_at: Millis,
    /// The newest version of the state that it was told.
    pub state_version: i64,
    /// Its generation.
    pub epoch: i64,
}

impl ShardRecord {
    /// Decodes the value of `shard`.
    ///
    /// # Errors
    /// `Incomplete` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(bytes).ok_or_else(|| Fault::Incomplete("the shard's record is damaged".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() <= SHARD_HEAD {
            return None;
        }
        let mut bytes = Unpack(bytes);
        let lifecycle = Lifecycle::from_code(u8::try_from(bytes.number(1)?).ok()?)?;
        let (starts_at, ends_at) = (bytes.number(6)?, bytes.number(6)?);
        let _limits = (bytes.number(4)?, bytes.number(6)?);
        let (state_version, epoch) = (bytes.number(6)?, bytes.number(6)?);
        Some(Self {
            lifecycle,
            starts_at,
            ends_at,
            state_version,
            epoch,
        })
    }
}

/// Decodes the value of `item:<sku>`.
///
/// # Errors
/// `Incomplete` when the bytes are not a whole record.
pub fn decode_item(bytes: &[u8]) -> Result<Counters, Fault> {
    read_item(bytes).ok_or_else(|| Fault::Incomplete("an item's record is damaged".to_owned()))
}

fn read_item(bytes: &[u8]) -> Option<Counters> {
    if bytes.len() != ITEM {
        return None;
    }
    let mut bytes = Unpack(bytes);
    let (available, held) = (bytes.number(6)?, bytes.number(6)?);
    let _limit_and_position = (bytes.number(4)?, bytes.number(2)?);
    let (sold, revoked, out) = (bytes.number(6)?, bytes.number(6)?, bytes.number(6)?);
    let (came_in, granted, version) = (bytes.number(6)?, bytes.number(6)?, bytes.number(6)?);
    Some(Counters {
        available,
        held,
        sold,
        revoked,
        out,
        r#in: came_in,
        granted,
        withdrawn: bytes.number(6)?,
        version,
    })
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
    /// Decodes an order's record, as the purchase script answers it.
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

/// A shopper, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuyerRecord {
    /// Whether some decided orders are in the ledger alone.
    pub elsewhere: bool,
    /// The units of each item, by its position, that are reserved and paid.
    pub units: Vec<(u16, u32)>,
    /// When each request in the sliding window was made, oldest first.
    pub window: Vec<Millis>,
    /// The orders, oldest first.
    pub orders: Vec<(OrderId, OrderRecord)>,
}

impl BuyerRecord {
    /// Decodes the value of `buyer:<user>`.
    ///
    /// # Errors
    /// `Bug` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Self::read(bytes).ok_or_else(|| Fault::Bug("a shopper's record is damaged".to_owned()))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Unpack(bytes);
        let _banned_until = bytes.number(6)?;
        let elsewhere = bytes.number(1)? != 0;
        let (items, entries) = (bytes.number(2)?, bytes.number(2)?);
        let mut buyer = Self {
            elsewhere,
            ..Self::default()
        };
        for _ in 0..items {
            let item = u16::try_from(bytes.number(2)?).ok()?;
            buyer.units.push((item, u32::try_from(bytes.number(4)?).ok()?));
        }
        for _ in 0..entries {
            buyer.window.push(bytes.number(6)?);
            bytes.take(6)?;
        }
        while !bytes.0.is_empty() {
            let id = OrderId(Uuid::from_slice(bytes.take(16)?).ok()?);
            let head = bytes.take(ORDER_HEAD)?;
            let event = usize::try_from(bytes.number(1)?).ok()?;
            let record = OrderRecord::read(&[head, bytes.take(event)?].concat())?;
            buyer.orders.push((id, record));
        }
        Some(buyer)
    }
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
