//! A shopper's row, in `buyer:<user>`, and what it says about one request.

use super::order::{ORDER_HEAD, OrderRecord};
use super::shard::ShardRecord;
use super::{Pack, Unpack, newer};
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::OrderState;
use crate::domain::order::purchase::Refusal;
use crate::domain::sale::Lifecycle;
use crate::domain::time::Millis;
use uuid::Uuid;

/// A row with more bytes than this leaves decided orders to the ledger, as in `lua/settle/resolve.lua`.
const ROW_MAX: usize = 4096;

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
        let mut length = 12 + self.units.len() * 6 + self.window.len() * 12;
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
    /// The refusal of the account, if it is banned.
    pub ban: Option<Refusal>,
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
            ban: banned_until.filter(|seconds| now < seconds * 1000).map(Refusal::banned),
            left: left.filter(|left| *left != 0),
            window: buyer.window,
            is_open: shard.lifecycle == Lifecycle::Active && (shard.starts_at..shard.ends_at).contains(&now),
            now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::order::event::Position;
    use crate::stock::record::tests::MILLIS;
    use proptest::collection::vec;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn a_row_tells_how_a_request_stands(buyer in buyer(8), left in 1..=255_u8, banned_until: u32, at in 0..8_usize) {
            let mut bytes = buyer.encode(left);
            bytes[..4].copy_from_slice(&banned_until.to_be_bytes());
            let read = BuyerRecord::decode(&bytes).unwrap();
            let order = buyer.orders.get(at).map_or(OrderId(Uuid::nil()), |(id, _)| *id);
            let until = i64::from(banned_until) * 1000;
            let ban = Refusal::banned(i64::from(banned_until));
            for (now, ban) in [(until - 1, Some(ban)), (until, None)] {
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
                    ban,
                    left: read.elsewhere.then_some(i64::from(left)),
                });
            }
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
