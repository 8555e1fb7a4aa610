//! Calls `lua/purchase.lua`.

use super::Stock;
use super::keys::ShardKey;
use super::record::OrderRecord;
use super::script::{PURCHASE, bytes, number, outcome, text, unknown};
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::purchase::PurchaseRequest;
use crate::domain::sale::SaleState;
use crate::domain::time::Millis;
use redis::Value;

/// What a shard says to a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardAnswer {
    /// The order was written.
    Reserved(OrderRecord),
    /// The key is known.
    Replayed {
        /// Its order.
        record: OrderRecord,
        /// Whether the drain has taken its event in.
        drained: bool,
    },
    /// The key is known with another item or quantity.
    KeyReused,
    /// The key is not known here, but some of the shopper's orders are in the ledger alone: it must be looked for
    /// there.
    Look {
        /// What the next try says to have looked since.
        number: i64,
    },
    /// The account is banned.
    Banned,
    /// The window is full.
    RateLimited {
        /// Milliseconds until it is not.
        wait_ms: Millis,
    },
    /// The sale does not sell now.
    NotOpen(SaleState),
    /// More than the shopper may have.
    LimitReached,
    /// This shard has too few free units.
    Short {
        /// How many it has.
        available: i64,
    },
}

impl Stock {
    /// Asks a shopper's home shard for units. `looked` is the number of a [`ShardAnswer::Look`] since which the
    /// ledger was found not to have the order; `now` stands in for Redis's clock in tests.
    ///
    /// # Errors
    /// A fault says that the outcome is unknown; the same call finds it.
    pub async fn purchase(
        &self,
        shard: ShardKey,
        order: OrderId,
        request: &PurchaseRequest,
        looked: Option<i64>,
        now: Option<Millis>,
    ) -> Result<ShardAnswer, Fault> {
        let identity = format!("{}\n{}", request.key.as_str(), request.user.as_str());
        let mut call = PURCHASE.prepare_invoke();
        call.key(shard.shard())
            .key(shard.item(&request.sku))
            .key(shard.buyer(&request.user))
            .key(shard.events());
        call.arg(order.0.as_bytes()).arg(request.quantity).arg(identity);
        if looked.is_some() || now.is_some() {
            call.arg(looked.map(|number| number.to_string()).unwrap_or_default());
        }
        if let Some(now) = now {
            call.arg(now);
        }
        decode(self.run(&call).await?)
    }
}

fn decode(value: Value) -> Result<ShardAnswer, Fault> {
    if let Value::BulkString(record) = value {
        return Ok(ShardAnswer::Reserved(OrderRecord::decode(&record)?));
    }
    let (status, fields) = outcome(value)?;
    let mut fields = fields.into_iter();
    match status.as_str() {
        "REPLAYED" => {
            let record = bytes(fields.next().unwrap_or(Value::Nil))?;
            Ok(ShardAnswer::Replayed {
                record: OrderRecord::decode(&record)?,
                drained: number(&mut fields)? == 1,
            })
        }
        "KEY_REUSED" => Ok(ShardAnswer::KeyReused),
        "LOOK" => Ok(ShardAnswer::Look {
            number: number(&mut fields)?,
        }),
        "BANNED" => Ok(ShardAnswer::Banned),
        "RATE_LIMITED" => Ok(ShardAnswer::RateLimited {
            wait_ms: number(&mut fields)?,
        }),
        "NOT_OPEN" => {
            let state = text(fields.next().unwrap_or(Value::Nil))?;
            let state = SaleState::from_name(&state).ok_or_else(|| unknown("purchase", &state))?;
            Ok(ShardAnswer::NotOpen(state))
        }
        "LIMIT_REACHED" => Ok(ShardAnswer::LimitReached),
        "SHORT" => Ok(ShardAnswer::Short {
            available: number(&mut fields)?,
        }),
        other => Err(unknown("purchase", other)),
    }
}
