//! Calls `lua/settle/resolve.lua`.

use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, Sku, UserId};
use crate::domain::order::OrderState;
use crate::domain::time::Millis;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::{RESOLVE, number};

/// A shard's answer to a decision about an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    Now,
    Already,
    /// The shard has another decision already.
    Conflict(Option<OrderState>),
    /// The shard does not know the order.
    Unknown,
}

impl Stock {
    /// Delivers the ledger's decision about an order to a shard.
    pub async fn resolve(
        &self,
        shard: ShardKey,
        user: &UserId,
        order: OrderId,
        sku: &Sku,
        state: OrderState,
        at: Millis,
    ) -> Result<Resolved, Fault> {
        let mut call = RESOLVE.prepare_invoke();
        call.key(shard.item(sku)).key(shard.buyer(user));
        call.arg(order.0.as_bytes()).arg(state.code()).arg(at);
        let (status, mut fields) = self.answer(&RESOLVE, &call).await?;
        match status.as_str() {
            "RESOLVED" => Ok(Resolved::Now),
            "ALREADY" => Ok(Resolved::Already),
            "CONFLICT" => {
                let code = u8::try_from(number(&mut fields)?).ok();
                Ok(Resolved::Conflict(code.and_then(OrderState::from_code)))
            }
            "UNKNOWN" => Ok(Resolved::Unknown),
            other => Err(RESOLVE.unknown(other)),
        }
    }
}
