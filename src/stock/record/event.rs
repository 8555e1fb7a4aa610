//! An event's value in `events`.

use super::known;
use super::order::{ORDER_HEAD, OrderRecord};
use crate::domain::ids::OrderId;
use crate::domain::order::event::{Reserved, Unreadable};
use uuid::Uuid;

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
