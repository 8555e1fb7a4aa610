//! The packed records of the scripts. Their layouts are defined here. All numbers are big-endian and unsigned.
//!
//! Each record carries its version, which is 0 today, at a place that is the same in every version:
//!
//! | record | key | version | a newer version |
//! | --- | --- | --- | --- |
//! | a shard | `shard` | byte 0, above its two lowest bits | byte 0 is 4 to 31 |
//! | an item | `item:<sku>` | byte 0 | byte 0 is 1 to 31 |
//! | a shopper | `buyer:<user>` | byte 7, its upper four bits | byte 7 is 16 or more |
//! | a waiting room's door | `door` | byte 0, its upper four bits | byte 0 is 16 or more |
//! | a fixed window's counter | `counter` | byte 0, its upper four bits | byte 0 is 16 or more |
//! | a token bucket | `bucket` | byte 8, its upper four bits | byte 8 is 16 or more |
//! | an event's value | in `events` | byte 0 | byte 0 is 1 to 31 |
//! | a transfer's value | in `transfers` | byte 0 | byte 0 is 1 to 31 |
//!
//! The version of a door, a counter and a bucket is the upper four bits of a time. The time has 6 bytes, and needs only
//! 44 bits until the year 2527.
//!
//! A script or decoder that meets a newer version refuses with `NEWER` before it writes anything. The shard is then
//! unavailable to this instance, which never rebuilds it. A shard, item, event or transfer with a higher byte 0 is
//! damaged, not newer. Only [`super::retire`] removes records of any version: it removes the whole sale.
//!
//! These strings carry no version:
//!
//! | key | because |
//! | --- | --- |
//! | `halt` | it is empty: that it exists is all it says |
//! | `barrier` | it is empty, and no script reads it |
//! | `answer` | it lives for minutes. An instance that cannot read it refuses that one challenge |
//!
//! A change of a record that version 0 cannot express takes two releases: the first reads the new version, the second
//! writes it. ARCHITECTURE.md, *Upgrades*, has the full rule.
//!
//! A shard, in `shard`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | version and state: 0 loading, 1 active, 2 paused, 3 closed |
//! | 1 | 1 | brake: 1 while events have waited too long for the ledger |
//! | 2 | 6 | permitted to sell until, milliseconds |
//! | 8 | 6 | starts_at, milliseconds |
//! | 14 | 6 | ends_at, milliseconds |
//! | 20 | 4 | rate limit, requests in a window |
//! | 24 | 6 | window, milliseconds |
//! | 30 | 6 | version of the state |
//! | 36 | 6 | epoch |
//! | 42 | rest | `<epoch>-*`, the id for the next event |
//!
//! An item, in `item:<sku>`. What a purchase changes comes first:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | version; a script reads and writes it with the next field, as one number of 6 bytes |
//! | 1 | 5 | available |
//! | 6 | 6 | held |
//! | 12 | 4 | units that one shopper may have |
//! | 16 | 2 | position of the item in the sale |
//! | 18 | 6 each | sold, revoked, out, in, granted, version, withdrawn |
//!
//! A shopper, in `buyer:<user>`:
//!
//! | bytes | field |
//! | --- | --- |
//! | 4 | banned until, seconds; 0 when not, the highest number when for ever |
//! | 2 | revision of the last decision about a ban, 1 to 32767; 0 before the first |
//! | 1 | 0 while every order is here; else 1 to 255, which changes whenever one more order is left to the ledger |
//! | 2 | version, 4 bits; number of items, 12 bits |
//! | 3 | number of entries in the window |
//! | 6 an item | 2 position, 4 units that are reserved or paid |
//! | 12 an entry | the sliding window, oldest first: 6 the request's time, the last 6 of its order's id |
//! | 36 and more an order | 16 id, 1 state, 2 item, 4 quantity, 6 created at, 6 resolved at, 1 length of the event's id, the event's id as text; oldest first |
//!
//! A shopper's row is one string because a script pays more for each field of a hash than for the bytes of a string. To
//! keep the row short, an order that is decided while the row is longer than 4 KiB is left to the ledger.
//!
//! A waiting room's door, in `door`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | version, 4 bits; when the line began, 44 bits of milliseconds, which is also the line's name |
//! | 6 | 6 | time of the level, milliseconds |
//! | 12 | 6 | level: how many more the rate lets in, in millionths of a shopper |
//! | 18 | 6 | admitted shoppers who have bought |
//! | 24 | 6 | admitted shoppers who did not buy in time |
//! | 30 | 6 | when the span began in which admissions are counted, milliseconds |
//! | 36 | 4 | admissions in this span |
//! | 40 | 4 | admissions in the span before |
//!
//! A fixed window, in `{limit:id}:counter`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 6 | version, 4 bits; the window's end, 44 bits of milliseconds |
//! | 6 | 4 | count |
//!
//! A token bucket, in `{limit:id}:bucket`:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | level, a floating-point number |
//! | 8 | 6 | version, 4 bits; time of the level, 44 bits of milliseconds |
//!
//! An event's value, under the field `reserved`: version, an order's record from its item up to *resolved at*, the
//! order's id, the idempotency key, a newline, the user. If the request is traced, a second field `origin` has 16 bytes
//! of its trace and 8 of its span.

use crate::domain::event::{Position, Reserved, Unreadable};
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::{Order, OrderState};
use crate::domain::report::Counters;
use crate::domain::sale::{Lifecycle, PurchaseRate, Sale};
use crate::domain::time::{self, Millis};
use uuid::Uuid;

/// The bytes of an order's record before the event's id.
const ORDER_HEAD: usize = 19;
/// The bytes of a shard's record before the event prefix.
const SHARD_HEAD: usize = 42;
/// A row with more bytes than this leaves decided orders to the ledger, as in `lua/settle/resolve.lua`.
const ROW_MAX: usize = 4096;
/// The bytes of an item's record.
const ITEM: usize = 60;
/// The highest first byte of a newer record; a record with a higher one is damaged.
const NEWER_MAX: u8 = 31;

/// Refuses a record that a newer version has written; `oldest` is the lowest first byte of a newer record.
pub(super) fn known(bytes: &[u8], oldest: u8, what: &str) -> Result<(), Fault> {
    match bytes.first() {
        Some(first) if (oldest..=NEWER_MAX).contains(first) => Err(newer(what)),
        _ => Ok(()),
    }
}

/// The fault for a record that a newer version has written.
pub(super) fn newer(what: &str) -> Fault {
    Fault::Newer(format!("a newer version of the program has written the {what}"))
}

/// Takes packed numbers off the front of some bytes.
pub(super) struct Unpack<'a>(pub(super) &'a [u8]);

impl<'a> Unpack<'a> {
    /// The next bytes; `None` when fewer are left.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(head)
    }

    /// The next `width` bytes (at most 6, so it fits an `i64`) as a number; `None` at the end.
    pub(super) fn number(&mut self, width: usize) -> Option<i64> {
        Some(
            self.take(width)?
                .iter()
                .fold(0, |number, byte| (number << 8) | i64::from(*byte)),
        )
    }
}

/// Puts packed numbers after each other.
struct Pack(Vec<u8>);

impl Pack {
    /// Appends a number, which is not negative, as `width` bytes (at most 8).
    fn put(&mut self, width: usize, number: i64) {
        self.0.extend_from_slice(&number.to_be_bytes()[8 - width..]);
    }
}

/// A shard's own record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRecord {
    /// The sale's state as this shard has it.
    pub lifecycle: Lifecycle,
    /// Whether events have waited too long for the ledger, so that the shard sells nothing.
    pub brake: bool,
    /// Until when it may sell.
    pub permit_until: Millis,
    /// When it starts to sell.
    pub starts_at: Millis,
    pub ends_at: Millis,
    /// The newest version of the state that the shard received.
    pub state_version: i64,
    pub epoch: i64,
}

impl ShardRecord {
    /// Decodes the value of `shard`. Fails with `Incomplete` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        known(bytes, 4, "shard")?;
        Self::read(bytes).ok_or_else(|| Fault::Incomplete("the shard's record is damaged".to_owned()))
    }

    /// The value of `shard`, with the sale's limits, as `lua/operate/preload.lua` writes it.
    pub fn encode(&self, rate: &PurchaseRate) -> Vec<u8> {
        let mut bytes = Pack(vec![self.lifecycle.code(), u8::from(self.brake)]);
        bytes.put(6, self.permit_until);
        bytes.put(6, self.starts_at);
        bytes.put(6, self.ends_at);
        bytes.put(4, i64::from(rate.limit));
        bytes.put(6, rate.window_ms);
        bytes.put(6, self.state_version);
        bytes.put(6, self.epoch);
        bytes.0.extend(format!("{}-*", self.epoch).as_bytes());
        bytes.0
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() <= SHARD_HEAD {
            return None;
        }
        let mut bytes = Unpack(bytes);
        let lifecycle = Lifecycle::from_code(u8::try_from(bytes.number(1)?).ok()?)?;
        let (brake, permit_until) = (bytes.number(1)? == 1, bytes.number(6)?);
        let (starts_at, ends_at) = (bytes.number(6)?, bytes.number(6)?);
        let _limits = (bytes.number(4)?, bytes.number(6)?);
        Some(Self {
            lifecycle,
            brake,
            permit_until,
            starts_at,
            ends_at,
            state_version: bytes.number(6)?,
            epoch: bytes.number(6)?,
        })
    }
}

/// Decodes the value of `item:<sku>`. Fails with `Incomplete` when the bytes are not a whole record.
pub fn decode_item(bytes: &[u8]) -> Result<Counters, Fault> {
    known(bytes, 1, "item")?;
    read_item(bytes).ok_or_else(|| Fault::Incomplete("an item's record is damaged".to_owned()))
}

/// The value of `item:<sku>`, as `lua/operate/preload.lua` writes it.
pub fn encode_item(counters: &Counters, per_user_limit: u32, position: u16) -> Vec<u8> {
    let mut bytes = Pack(Vec::with_capacity(ITEM));
    bytes.put(1, 0);
    bytes.put(5, counters.available);
    bytes.put(6, counters.held);
    bytes.put(4, i64::from(per_user_limit));
    bytes.put(2, i64::from(position));
    for number in [
        counters.sold,
        counters.revoked,
        counters.out,
        counters.r#in,
        counters.granted,
        counters.version,
        counters.withdrawn,
    ] {
        bytes.put(6, number);
    }
    bytes.0
}

fn read_item(bytes: &[u8]) -> Option<Counters> {
    if bytes.len() != ITEM {
        return None;
    }
    let mut bytes = Unpack(bytes);
    let (_version, available, held) = (bytes.number(1)?, bytes.number(5)?, bytes.number(6)?);
    let _limit_and_position = (bytes.number(4)?, bytes.number(2)?);
    Some(Counters {
        available,
        held,
        sold: bytes.number(6)?,
        revoked: bytes.number(6)?,
        out: bytes.number(6)?,
        r#in: bytes.number(6)?,
        granted: bytes.number(6)?,
        version: bytes.number(6)?,
        withdrawn: bytes.number(6)?,
    })
}

/// An order of a shopper, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRecord {
    /// The order's state, as far as it was delivered to the stock.
    pub state: OrderState,
    pub item: u16,
    pub quantity: u32,
    pub created_at: Millis,
    /// When it left `reserved`; 0 while it has not.
    pub resolved_at: Millis,
    /// The event that announced it, if the record has it.
    pub event: Option<Position>,
}

impl OrderRecord {
    /// Decodes an order's record, as the purchase script answers it. Fails with `Bug` when the bytes are not a whole
    /// record.
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

    /// The order as it stands in a shopper's row.
    fn encode(&self, id: OrderId) -> Vec<u8> {
        let mut bytes = Pack(id.0.as_bytes().to_vec());
        bytes.put(1, i64::from(self.state.code()));
        bytes.put(2, i64::from(self.item));
        bytes.put(4, i64::from(self.quantity));
        bytes.put(6, self.created_at);
        bytes.put(6, self.resolved_at);
        let event = self
            .event
            .map_or_else(String::new, |it| format!("{}-{}", it.epoch, it.seq));
        bytes.put(1, i64::try_from(event.len()).unwrap_or(0));
        bytes.0.extend_from_slice(event.as_bytes());
        bytes.0
    }

    /// The order as its owner sees it. Fails with `Bug` when the sale has no such item.
    pub fn into_order(self, id: OrderId, sale: &Sale, user: UserId, confirmed: bool) -> Result<Order, Fault> {
        let item = sale.items.get(usize::from(self.item));
        let item = item.ok_or_else(|| Fault::Bug(format!("order {id} is for item {} of {}", self.item, sale.id)))?;
        Ok(Order {
            id,
            sale_id: sale.id,
            sku: item.sku.clone(),
            quantity: self.quantity,
            amount_minor: item.price_of(self.quantity),
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuyerRecord {
    /// Whether some decided orders are in the ledger alone.
    pub elsewhere: bool,
    /// The units of each item, by its position, that are reserved or paid.
    pub units: Vec<(u16, u32)>,
    /// The sliding window, oldest first: when each request was made, and the last bytes of its order's id.
    pub window: Vec<(Millis, [u8; 6])>,
    /// The orders, oldest first.
    pub orders: Vec<(OrderId, OrderRecord)>,
}

impl BuyerRecord {
    /// Decodes the value of `buyer:<user>`. Fails with `Bug` when the bytes are not a whole record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.get(7).is_some_and(|byte| *byte > 15) {
            return Err(newer("shopper"));
        }
        Self::read(bytes).ok_or_else(|| Fault::Bug("a shopper's record is damaged".to_owned()))
    }

    /// The value of `buyer:<user>`, as the scripts write it, without a ban. The newest decided orders that fit into a
    /// row are kept. A row that leaves orders out carries the number `left`, which differs from one generation of a
    /// shard to the next. So no caller takes the row for one that it read before.
    pub fn encode(&self, left: u8) -> Vec<u8> {
        let head = 12 + self.units.len() * 6 + self.window.len() * 12;
        let mut length = head;
        let mut elsewhere = if self.elsewhere { left } else { 0 };
        let mut orders: Vec<Vec<u8>> = Vec::with_capacity(self.orders.len());
        // Newest first, so that the oldest are left out.
        for (id, record) in self.orders.iter().rev() {
            let order = record.encode(*id);
            if record.state != OrderState::Reserved && length + order.len() > ROW_MAX {
                elsewhere = left;
                continue;
            }
            length += order.len();
            orders.push(order);
        }
        let mut bytes = Pack(Vec::with_capacity(length));
        bytes.put(6, 0);
        bytes.put(1, i64::from(elsewhere));
        bytes.put(2, i64::try_from(self.units.len()).unwrap_or(0));
        bytes.put(3, i64::try_from(self.window.len()).unwrap_or(0));
        for (item, units) in &self.units {
            bytes.put(2, i64::from(*item));
            bytes.put(4, i64::from(*units));
        }
        for (at, member) in &self.window {
            bytes.put(6, *at);
            bytes.0.extend_from_slice(member);
        }
        bytes.0.extend(orders.into_iter().rev().flatten());
        bytes.0
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Unpack(bytes);
        let _ban = bytes.number(6)?;
        let elsewhere = bytes.number(1)? != 0;
        let (items, entries) = (bytes.number(2)?, bytes.number(3)?);
        let mut buyer = Self {
            elsewhere,
            ..Self::default()
        };
        for _ in 0..items {
            let item = u16::try_from(bytes.number(2)?).ok()?;
            buyer.units.push((item, u32::try_from(bytes.number(4)?).ok()?));
        }
        for _ in 0..entries {
            let at = bytes.number(6)?;
            buyer.window.push((at, bytes.take(6)?.try_into().ok()?));
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

/// What a shopper's row says about one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuyerStanding {
    /// Whether the request's order is in the row.
    pub has_order: bool,
    /// Whether the account is banned.
    pub is_banned: bool,
    /// A number that changes whenever one more order is left to the ledger; `None` while every order is in the row.
    pub left: Option<i64>,
    /// The sliding window, as in [`BuyerRecord::window`].
    pub window: Vec<(Millis, [u8; 6])>,
    /// Whether the shard would sell to other shoppers.
    pub is_open: bool,
    /// When the row was read, by Redis's clock.
    pub now: Millis,
}

impl BuyerStanding {
    /// Decodes the value of `buyer:<user>`, if there is one, beside its shard's record. Fails with `Bug` when the bytes
    /// are not a whole record.
    pub fn decode(bytes: Option<&[u8]>, shard: &ShardRecord, order: OrderId, now: Millis) -> Result<Self, Fault> {
        let (mut head, buyer) = match bytes {
            Some(bytes) => (Unpack(bytes), BuyerRecord::decode(bytes)?),
            None => (Unpack(&[]), BuyerRecord::default()),
        };
        let (banned_until, _decision, left) = (head.number(4), head.number(2), head.number(1));
        Ok(Self {
            has_order: buyer.orders.iter().any(|(id, _)| *id == order),
            is_banned: banned_until.is_some_and(|seconds| now < seconds * 1000),
            left: left.filter(|left| *left != 0),
            window: buyer.window,
            is_open: shard.lifecycle == Lifecycle::Active && (shard.starts_at..shard.ends_at).contains(&now),
            now,
        })
    }
}

/// Decodes `<epoch>-<seq>`. Redis accepts numbers above `i64::MAX`, which no script gives; they become `i64::MAX`.
pub fn decode_position(id: &str) -> Option<Position> {
    let number = |text: &str| text.parse::<u64>().ok().map(|it| i64::try_from(it).unwrap_or(i64::MAX));
    let (epoch, seq) = id.split_once('-')?;
    Some(Position {
        epoch: number(epoch)?,
        seq: number(seq)?,
    })
}

/// Decodes an event's value.
pub fn decode_event(bytes: &[u8]) -> Result<Reserved, Unreadable> {
    known(bytes, 1, "event").map_err(|fault| Unreadable::Newer(fault.to_string()))?;
    read_event(bytes).map_err(Unreadable::Damaged)
}

fn read_event(bytes: &[u8]) -> Result<Reserved, String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MILLIS: Millis = (1 << 48) - 1;

    fn order() -> impl Strategy<Value = (OrderId, OrderRecord)> {
        let event = (1..i64::MAX, 1..i64::MAX).prop_map(|(epoch, seq)| Position { epoch, seq });
        (
            any::<u128>(),
            0..=4_u8,
            any::<u16>(),
            any::<u32>(),
            0..=MILLIS,
            0..=MILLIS,
            prop_oneof![4 => event.prop_map(Some), 1 => Just(None)],
        )
            .prop_map(|(id, state, item, quantity, created_at, resolved_at, event)| {
                let record = OrderRecord {
                    state: OrderState::from_code(state).unwrap(),
                    item,
                    quantity,
                    created_at,
                    resolved_at,
                    event,
                };
                (OrderId(Uuid::from_u128(id)), record)
            })
    }

    fn buyer(orders_max: usize) -> impl Strategy<Value = BuyerRecord> {
        let units = vec((any::<u16>(), any::<u32>()), 0..4);
        let window = vec((0..=MILLIS, any::<[u8; 6]>()), 0..20);
        (any::<bool>(), units, window, vec(order(), 0..orders_max)).prop_map(|(elsewhere, units, window, orders)| {
            BuyerRecord {
                elsewhere,
                units,
                window,
                orders,
            }
        })
    }

    fn is_newer<T>(decoded: Result<T, Fault>) -> bool {
        matches!(decoded, Err(Fault::Newer(_)))
    }

    /// Every newer version, at any length. A record that begins with no version is damaged.
    #[test]
    fn what_a_newer_version_has_written_is_never_misread() {
        for length in [1, 44, 60, 100] {
            let record = |first: u8| [vec![first], vec![0; length - 1]].concat();
            for first in 0..=255 {
                let record = record(first);
                assert_eq!(
                    is_newer(ShardRecord::decode(&record)),
                    (4..=31).contains(&first),
                    "{first}"
                );
                assert_eq!(is_newer(decode_item(&record)), (1..=31).contains(&first), "{first}");
                let event = decode_event(&record);
                assert_eq!(
                    matches!(event, Err(Unreadable::Newer(_))),
                    (1..=31).contains(&first),
                    "{first}"
                );
            }
        }
        for version in 0..=15_u8 {
            let row = [vec![0; 7], vec![version << 4, 0, 0, 0, 0]].concat();
            assert_eq!(is_newer(BuyerRecord::decode(&row)), version > 0, "{version}");
        }
    }

    proptest! {
        #[test]
        fn a_row_tells_how_a_request_stands(buyer in buyer(8), left in 1..=255_u8, banned_until in 0..u32::MAX, at in 0..8_usize) {
            let mut bytes = buyer.encode(left);
            bytes[..4].copy_from_slice(&banned_until.to_be_bytes());
            let read = BuyerRecord::decode(&bytes).unwrap();
            let order = buyer.orders.get(at).map_or(OrderId(Uuid::nil()), |(id, _)| *id);
            let until = i64::from(banned_until) * 1000;
            for (now, is_banned) in [(until - 1, true), (until, false)] {
                let shard = ShardRecord {
                    lifecycle: Lifecycle::Active,
                    brake: false,
                    permit_until: 0,
                    starts_at: 0,
                    ends_at: until,
                    state_version: 1,
                    epoch: 1,
                };
                let standing = BuyerStanding::decode(Some(&bytes), &shard, order, now).unwrap();
                prop_assert_eq!(standing, BuyerStanding {
                    window: read.window.clone(),
                    is_open: now >= 0 && now < until,
                    now,
                    has_order: read.orders.iter().any(|(id, _)| *id == order),
                    is_banned,
                    left: read.elsewhere.then_some(i64::from(left)),
                });
            }
        }

        #[test]
        fn a_shard_comes_back_as_it_was_written(
            code in 0..=3_u8, brake: bool, times in [0..=MILLIS, 0..=MILLIS, 0..=MILLIS], version in 0..=MILLIS,
            epoch in 1..=MILLIS, limit: u32, window_ms in 0..=MILLIS,
        ) {
            let record = ShardRecord {
                lifecycle: Lifecycle::from_code(code).unwrap(),
                brake,
                permit_until: times[0],
                starts_at: times[1],
                ends_at: times[2],
                state_version: version,
                epoch,
            };
            let bytes = record.encode(&PurchaseRate { limit, window_ms });
            let next = format!("{epoch}-*");
            prop_assert_eq!(&bytes[42..], next.as_bytes());
            prop_assert_eq!(ShardRecord::decode(&bytes).unwrap(), record);
            prop_assert!(is_newer(ShardRecord::decode(&[&[bytes[0] + 4], &bytes[1..]].concat())));
            prop_assert!(ShardRecord::decode(&bytes[..42]).is_err());
        }

        #[test]
        fn an_item_comes_back_as_it_was_written(
            available in 0..1_i64 << 40, numbers in vec(0..=MILLIS, 9), limit: u32, position: u16,
        ) {
            let counters = Counters {
                available,
                held: numbers[1],
                sold: numbers[2],
                revoked: numbers[3],
                out: numbers[4],
                r#in: numbers[5],
                granted: numbers[6],
                version: numbers[7],
                withdrawn: numbers[8],
            };
            let bytes = encode_item(&counters, limit, position);
            prop_assert_eq!(decode_item(&bytes).unwrap(), counters);
            prop_assert!(decode_item(&bytes[1..]).is_err());
            prop_assert!(is_newer(decode_item(&[&[1], &bytes[1..]].concat())));
        }

        #[test]
        fn a_short_row_comes_back_as_it_was_written(buyer in buyer(40), left in 1..=255_u8) {
            let bytes = buyer.encode(left);
            prop_assert!(bytes.len() <= ROW_MAX);
            prop_assert_eq!(bytes[6], if buyer.elsewhere { left } else { 0 });
            prop_assert_eq!(BuyerRecord::decode(&bytes).unwrap(), buyer);
        }

        /// The row keeps the newest decided orders that fit, and every open order.
        #[test]
        fn a_long_row_leaves_its_oldest_decided_orders_out(buyer in buyer(160), left in 1..=255_u8) {
            let bytes = buyer.encode(left);
            let found = BuyerRecord::decode(&bytes).unwrap();
            prop_assert_eq!((&found.units, &found.window), (&buyer.units, &buyer.window));
            let is_open = |record: &OrderRecord| record.state == OrderState::Reserved;
            let mut rest = buyer.orders.iter();
            for kept in &found.orders {
                prop_assert!(rest.any(|order| order == kept), "in their order");
            }
            let is_kept = |order: &&(OrderId, OrderRecord)| found.orders.contains(order);
            let missing: Vec<_> = buyer.orders.iter().filter(|order| !is_kept(order)).collect();
            prop_assert!(missing.iter().all(|(_, record)| !is_open(record)));
            prop_assert_eq!(found.elsewhere, buyer.elsewhere || !missing.is_empty());
            prop_assert_eq!(bytes[6], if found.elsewhere { left } else { 0 });
            let decided = found.orders.iter().any(|(_, record)| !is_open(record));
            prop_assert!(bytes.len() <= ROW_MAX || missing.is_empty() || !decided || found.orders.iter().any(|(_, it)| is_open(it)));
            if found.orders.iter().all(|(_, record)| !is_open(record)) {
                prop_assert!(bytes.len() <= ROW_MAX);
            }
        }
    }

    #[test]
    fn a_row_of_the_longest_length_keeps_its_last_decided_order() {
        let record = |state, seq| OrderRecord {
            state,
            item: 0,
            quantity: 1,
            created_at: 5,
            resolved_at: 6,
            event: Some(Position { epoch: 1, seq }),
        };
        let order = |n: u8, state| (OrderId(Uuid::from_u128(n.into())), record(state, 1));
        // 12 bytes and 39 an order: 104 of them are 4068 bytes long, and one more is too much.
        let mut buyer = BuyerRecord {
            orders: (0..104).map(|n| order(n, OrderState::Paid)).collect(),
            ..BuyerRecord::default()
        };
        assert_eq!(buyer.encode(7).len(), 4068);
        assert_eq!(buyer.encode(7)[6], 0);
        buyer.orders.push(order(104, OrderState::Cancelled));
        let found = BuyerRecord::decode(&buyer.encode(7)).unwrap();
        assert!(found.elsewhere);
        assert_eq!(found.orders, buyer.orders[1..]);
        // Two entries of the window and four bytes of an event's id fill it to the last byte.
        buyer.orders.remove(0);
        buyer.window = vec![(1, [1; 6]), (2, [2; 6])];
        buyer.orders[0].1.event = Some(Position { epoch: 1, seq: 12_345 });
        assert_eq!(buyer.encode(7).len(), ROW_MAX);
        assert_eq!(BuyerRecord::decode(&buyer.encode(7)).unwrap(), buyer);
        buyer.orders[0].1.event = Some(Position { epoch: 1, seq: 123_456 });
        assert_eq!(BuyerRecord::decode(&buyer.encode(7)).unwrap().orders, buyer.orders[1..]);
        // An open order stays at any length.
        buyer.orders[0].1.state = OrderState::Reserved;
        let found = BuyerRecord::decode(&buyer.encode(7)).unwrap();
        assert_eq!(found.orders[0], buyer.orders[0]);
    }
}
