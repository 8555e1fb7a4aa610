//! Writes a shard anew, as the ledger knows it, and calls `lua/fence.lua`. Whoever restores a shard has it to himself:
//! it has no permit, and the ledger's rows of it are locked.

use super::Stock;
use super::keys::ShardKey;
use super::record::{BuyerRecord, ShardRecord, encode_item};
use super::script::{FENCE, outcome, unknown};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{Sku, UserId};
use crate::domain::report::Counters;
use crate::domain::sale::{Lifecycle, Sale};
use redis::Value;
use std::collections::BTreeMap;
use uuid::Uuid;

impl Stock {
    /// Begins a shard's next life: forgets its events, transfers and fences, which the ledger has taken in or made
    /// good, and marks it as loading until [`Stock::end_restore`]. In one transaction.
    ///
    /// # Errors
    /// A fault leaves a shard without a permit.
    pub async fn begin_restore(
        &self,
        sale: &Sale,
        shard: u16,
        epoch: i64,
        applied: &[Uuid],
        fences: &[(u16, i64)],
    ) -> Result<(), Fault> {
        let key = ShardKey { sale: sale.id, shard };
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        pipeline
            .cmd("UNLINK")
            .arg(key.events())
            .arg(key.transfers())
            .arg(key.applied())
            .arg(key.fences());
        pipeline
            .cmd("SET")
            .arg(key.shard())
            .arg(record(sale, Lifecycle::Loading, epoch).encode(&sale.purchase_rate));
        // As in `lua/preload.lua`: a stream that is empty and exists.
        pipeline
            .cmd("XADD")
            .arg(key.events())
            .arg(format!("{epoch}-0"))
            .arg("created")
            .arg("");
        pipeline.cmd("XTRIM").arg(key.events()).arg("MAXLEN").arg(0);
        if !applied.is_empty() {
            let ids: Vec<String> = applied.iter().map(Uuid::to_string).collect();
            pipeline.cmd("SADD").arg(key.applied()).arg(ids);
        }
        for (lender, epoch) in fences {
            pipeline.cmd("HSET").arg(key.fences()).arg(lender).arg(epoch);
        }
        self.pipeline::<Value>(&pipeline).await.map(|_| ())
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
        let mut pipeline = redis::Pipeline::with_capacity(buyers.len());
        for (user, buyer) in buyers {
            pipeline
                .cmd("SET")
                .arg(shard.buyer(user))
                .arg(buyer.encode(left))
                .ignore();
        }
        self.pipeline(&pipeline).await
    }

    /// Writes a shard's units and lets it follow the sale's state; it still has no permit.
    ///
    /// # Errors
    /// A fault leaves a shard without a permit.
    pub async fn end_restore(
        &self,
        sale: &Sale,
        shard: u16,
        epoch: i64,
        units: &BTreeMap<Sku, Counters>,
    ) -> Result<(), Fault> {
        let key = ShardKey { sale: sale.id, shard };
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        for (item, position) in sale.items.iter().zip(0..) {
            let counters = units.get(&item.sku).copied().unwrap_or_default();
            let value = encode_item(&counters, item.per_user_limit, position);
            pipeline.cmd("SET").arg(key.item(&item.sku)).arg(value);
        }
        let value = record(sale, sale.lifecycle, epoch).encode(&sale.purchase_rate);
        pipeline.cmd("SET").arg(key.shard()).arg(value);
        self.pipeline::<Value>(&pipeline).await.map(|_| ())
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
        let value: Option<Vec<u8>> = self.command(redis::cmd("GET").arg(shard.shard())).await?;
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
