//! An order's record: a part of a shopper's row, of an event's value, and of the purchase script's answer.

use super::{Pack, Unpack, decode_position};
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, UserId};
use crate::domain::order::event::Position;
use crate::domain::order::{Order, OrderState};
use crate::domain::sale::Sale;
use crate::domain::time::{self, Millis};

/// The bytes of an order's record before the event's id.
pub(super) const ORDER_HEAD: usize = 19;

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

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
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
    pub(super) fn encode(&self, id: OrderId) -> Vec<u8> {
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
