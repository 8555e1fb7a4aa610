//! Calls `lua/sell/purchase.lua`.

use crate::domain::deployment::server::ReplicationId;
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::event::Origin;
use crate::domain::order::purchase::{PurchaseRequest, Refusal};
use crate::domain::sale::SaleState;
use crate::domain::time::Millis;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::record::OrderRecord;
use crate::stock::script::{PURCHASE, admitted, bytes, number, outcome, text};
use redis::Value;

/// A shard's answer to a purchase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardAnswer {
    Reserved {
        record: OrderRecord,
        /// The server that accepted the order, if [`PurchaseArguments::named`] asked for it.
        by: Option<ReplicationId>,
    },
    Replayed {
        record: OrderRecord,
        /// Whether the drain has trimmed the order's event, which it does after its commit.
        drained: bool,
    },
    /// The shard does not know the key, but some of the shopper's orders are in the ledger alone. The caller must ask
    /// the ledger first.
    AskLedger {
        /// The number that the next attempt passes as [`PurchaseArguments::ledger_asked`].
        number: i64,
    },
    /// The shard may not sell: it is being reconciled or rebuilt.
    Halted,
    /// Events have waited too long for the ledger.
    Overloaded,
    /// The shard alone decides this refusal. Of a full row, it is [`Refusal::TooManyHolds`].
    Refused(Refusal),
    /// More units than the shopper may have of this item.
    LimitReached,
    /// This shard has too few free units.
    Short { available: i64 },
}

/// The arguments of a purchase besides the request itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurchaseArguments {
    /// The number of a [`ShardAnswer::AskLedger`], if the ledger was asked since and does not have the order.
    pub ledger_asked: Option<i64>,
    /// Whether the answer to a new order has the server's replication id.
    pub named: bool,
    /// Unpaid orders that the account may have at a time; 0 is no limit.
    pub holds_max: u32,
    /// How long the account may not buy after its first unpaid order; 0 is no cooldown.
    pub cooldown_ms: Millis,
    /// The request's span, if it is traced.
    pub origin: Option<Origin>,
    /// Stands in for Redis's clock in tests.
    pub now: Option<Millis>,
}

impl Stock {
    /// Asks a shopper's home shard for units. After a fault, the same call finds the outcome.
    pub async fn purchase(
        &self,
        shard: ShardKey,
        order: OrderId,
        request: &PurchaseRequest,
        arguments: PurchaseArguments,
    ) -> Result<ShardAnswer, Fault> {
        let identity = [request.key.as_str(), request.user.as_str()].join("\n");
        let keys = [
            shard.shard(),
            shard.item(&request.sku),
            shard.buyer(&request.user),
            shard.events(),
        ];
        let mut call = admitted(&PURCHASE, &keys);
        call.arg(order.0.as_bytes()).arg(request.quantity).arg(identity);
        if arguments != PurchaseArguments::default() {
            let optional = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
            call.arg(optional(arguments.ledger_asked)).arg(optional(arguments.now));
            call.arg(u8::from(arguments.named));
            if (arguments.holds_max, arguments.cooldown_ms) != (0, 0) || arguments.origin.is_some() {
                call.arg(arguments.holds_max).arg(arguments.cooldown_ms);
            }
            if let Some(origin) = arguments.origin {
                call.arg(&origin.to_bytes());
            }
        }
        let answer = decode(self.run_admitted(&PURCHASE, &call).await?)?;
        let (sale, number) = (shard.sale, shard.shard);
        match &answer {
            ShardAnswer::Reserved { record, .. } => {
                let (epoch, seq) = (record.event.map(|it| it.epoch), record.event.map(|it| it.seq));
                tracing::debug!(%sale, shard = number, %order, epoch, seq, "reserved");
            }
            answer => tracing::debug!(%sale, shard = number, %order, ?answer, "not reserved"),
        }
        Ok(answer)
    }
}

fn decode(value: Value) -> Result<ShardAnswer, Fault> {
    if let Value::BulkString(record) = value {
        return Ok(ShardAnswer::Reserved {
            record: OrderRecord::decode(&record)?,
            by: None,
        });
    }
    let (status, mut fields) = outcome(value)?;
    match status.as_str() {
        "RESERVED" => {
            let record = bytes(fields.next().unwrap_or(Value::Nil))?;
            let by = text(fields.next().unwrap_or(Value::Nil))?;
            Ok(ShardAnswer::Reserved {
                record: OrderRecord::decode(&record)?,
                by: Some(by.as_str().into()),
            })
        }
        "REPLAYED" => Ok(ShardAnswer::Replayed {
            record: OrderRecord::decode(&bytes(fields.next().unwrap_or(Value::Nil))?)?,
            drained: number(&mut fields)? == 1,
        }),
        "KEY_REUSED" => Ok(ShardAnswer::Refused(Refusal::KeyReused)),
        "ASK_LEDGER" => Ok(ShardAnswer::AskLedger {
            number: number(&mut fields)?,
        }),
        "HALTED" => Ok(ShardAnswer::Halted),
        "OVERLOADED" => Ok(ShardAnswer::Overloaded),
        "BANNED" => Ok(ShardAnswer::Refused(Refusal::banned(number(&mut fields)?))),
        "RATE_LIMITED" => Ok(ShardAnswer::Refused(Refusal::RateLimited {
            wait_ms: number(&mut fields)?,
        })),
        "NOT_OPEN" => {
            let state = text(fields.next().unwrap_or(Value::Nil))?;
            let state = SaleState::from_name(&state).ok_or_else(|| PURCHASE.unknown(&state))?;
            Ok(ShardAnswer::Refused(Refusal::NotOpen { state }))
        }
        "COOLING_DOWN" => Ok(ShardAnswer::Refused(Refusal::CoolingDown {
            wait_ms: number(&mut fields)?,
        })),
        "TOO_MANY_HOLDS" => Ok(ShardAnswer::Refused(Refusal::TooManyHolds)),
        "LIMIT_REACHED" => Ok(ShardAnswer::LimitReached),
        "SHORT" => Ok(ShardAnswer::Short {
            available: number(&mut fields)?,
        }),
        other => Err(PURCHASE.unknown(other)),
    }
}
