//! Writes a shard anew, as the ledger knows it: calls `lua/begin_restore.lua`, `restore.lua` and `fence.lua`. Whoever
//! restores a shard has it to himself: the ledger does not know its epoch yet, so nobody gives it a permit, and one
//! who comes late finds another epoch.

use super::Stock;
use super::keys::ShardKey;
use super::record::{BuyerRecord, ShardRecord, encode_item};
use super::script::{BEGIN_RESTORE, FENCE, RESTORE, number, outcome, unknown};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku, UserId};
use crate::domain::report::Counters;
use crate::domain::sale::{Lifecycle, Sale};
use redis::{ScriptInvocation, Value};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Keys that one step of a sweep looks at.
const STEP: usize = 1000;

/// How a shard's next life began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It is loading, and nobody else's.
    Yes {
        /// It had no stream: shoppers may have orders that the ledger never heard of.
        lost_events: bool,
    },
    /// So many events have to be taken in first.
    Events(i64),
}

fn stale(shard: ShardKey) -> Fault {
    Fault::Unavailable(format!(
        "somebody else rebuilds shard {} of sale {}",
        shard.shard, shard.sale
    ))
}

impl Stock {
    /// Begins a shard's next life, unless events wait for the ledger: forgets its transfers and fences, which the
    /// ledger makes good, and marks it as loading until [`Stock::end_restore`].
    ///
    /// # Errors
    /// A fault leaves a shard without a permit.
    pub async fn begin_restore(
        &self,
        sale: &Sale,
        shard: u16,
        epoch: i64,
        fences: &[(u16, i64)],
    ) -> Result<Begun, Fault> {
        let key = ShardKey { sale: sale.id, shard };
        let mut call = BEGIN_RESTORE.prepare_invoke();
        call.key(key.shard())
            .key(key.events())
            .key(key.transfers())
            .key(key.applied())
            .key(key.fences());
        call.arg(epoch)
            .arg(record(sale, Lifecycle::Loading, epoch).encode(&sale.purchase_rate));
        for (lender, epoch) in fences {
            call.arg(*lender).arg(*epoch);
        }
        let (status, fields) = outcome(self.run(&call).await?)?;
        let mut fields = fields.into_iter();
        match status.as_str() {
            "BEGUN" => Ok(Begun::Yes {
                lost_events: number(&mut fields)? == 1,
            }),
            "EVENTS" => Ok(Begun::Events(number(&mut fields)?)),
            "STALE" => Err(stale(key)),
            other => Err(unknown("begin_restore", other)),
        }
    }

    /// Removes every shopper of these shards.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn forget_buyers(&self, sale: SaleId, shards: &[u16]) -> Result<(), Fault> {
        let starts: Vec<String> = shards
            .iter()
            .map(|shard| ShardKey { sale, shard: *shard }.buyers())
            .collect();
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(ShardKey::pattern(sale))
                .arg("COUNT")
                .arg(STEP);
            let (next, mut keys): (u64, Vec<Vec<u8>>) = self.command(&scan).await?;
            keys.retain(|key| starts.iter().any(|start| key.starts_with(start.as_bytes())));
            if !keys.is_empty() {
                let _removed: i64 = self.command(redis::cmd("UNLINK").arg(keys)).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Writes shoppers of one shard, in one round trip.
    ///
    /// # Errors
    /// A fault says that some may not have been written.
    pub async fn restore_buyers(
        &self,
        shard: ShardKey,
        epoch: i64,
        buyers: &[(UserId, BuyerRecord)],
    ) -> Result<(), Fault> {
        let left = u8::try_from(epoch % 255 + 1).unwrap_or(1);
        let mut call = RESTORE.prepare_invoke();
        call.key(shard.shard()).key(shard.applied());
        call.arg(epoch).arg("").arg(0);
        for (user, buyer) in buyers {
            call.key(shard.buyer(user)).arg(buyer.encode(left));
        }
        self.restore(shard, &call).await
    }

    /// Writes a shard's units, what is finished on it, and lets it follow the sale's state; it still has no permit.
    ///
    /// # Errors
    /// A fault leaves a shard without a permit.
    pub async fn end_restore(
        &self,
        sale: &Sale,
        shard: u16,
        epoch: i64,
        units: &BTreeMap<Sku, Counters>,
        applied: &[Uuid],
    ) -> Result<(), Fault> {
        let key = ShardKey { sale: sale.id, shard };
        let mut call = RESTORE.prepare_invoke();
        call.key(key.shard()).key(key.applied());
        call.arg(epoch)
            .arg(record(sale, sale.lifecycle, epoch).encode(&sale.purchase_rate))
            .arg(applied.len());
        for id in applied {
            call.arg(id.to_string());
        }
        for (item, position) in sale.items.iter().zip(0..) {
            let counters = units.get(&item.sku).copied().unwrap_or_default();
            call.key(key.item(&item.sku))
                .arg(encode_item(&counters, item.per_user_limit, position));
        }
        self.restore(key, &call).await
    }

    async fn restore(&self, shard: ShardKey, call: &ScriptInvocation<'_>) -> Result<(), Fault> {
        match outcome(self.run(call).await?)?.0.as_str() {
            "RESTORED" => Ok(()),
            "STALE" => Err(stale(shard)),
            other => Err(unknown("restore", other)),
        }
    }

    /// Lets nothing into a shard that these shards sent before the epoch they have now.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer; the same call may be made again.
    pub async fn fence(&self, shard: ShardKey, lenders: &[(u16, i64)]) -> Result<(), Fault> {
        let mut call = FENCE.prepare_invoke();
        call.key(shard.fences());
        for (lender, epoch) in lenders {
            call.arg(*lender).arg(*epoch);
        }
        match outcome(self.run(&call).await?)?.0.as_str() {
            "FENCED" => Ok(()),
            other => Err(unknown("fence", other)),
        }
    }

    /// The generation of a shard, as far as Redis knows; 0 when it does not.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn epoch(&self, shard: ShardKey) -> Result<i64, Fault> {
        let value: Option<Vec<u8>> = match self.command(redis::cmd("GET").arg(shard.shard())).await {
            // Something else stands in its place.
            Err(Fault::Bug(_)) => None,
            value => value?,
        };
        let record = value.and_then(|value| ShardRecord::decode(&value).ok());
        Ok(record.map_or(0, |record| record.epoch))
    }

    /// The last event that a shard ever wrote.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer, or the shard has no stream.
    pub async fn last_event(&self, shard: ShardKey) -> Result<Position, Fault> {
        let mut command = redis::cmd("XINFO");
        command.arg("STREAM").arg(shard.events());
        let fields: Vec<Value> = self.command(&command).await?;
        let id = fields.chunks_exact(2).find_map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(id)] if name == b"last-generated-id" => {
                super::record::decode_position(std::str::from_utf8(id).ok()?)
            }
            _ => None,
        });
        id.ok_or_else(|| Fault::Bug("a stream does not say its last id".to_owned()))
    }
}

fn record(sale: &Sale, lifecycle: Lifecycle, epoch: i64) -> ShardRecord {
    ShardRecord {
        lifecycle,
        brake: false,
        permit_until: 0,
        starts_at: sale.starts_at.timestamp_millis(),
        ends_at: sale.ends_at.timestamp_millis(),
        state_version: sale.state_version,
        epoch,
    }
}
