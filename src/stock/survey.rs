//! One item over all shards, and units on their way between them.

use super::Stock;
use super::keys::ShardKey;
use super::record::{ShardRecord, decode_item};
use super::transfer::{Destination, Transfer};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::Counters;
use crate::domain::time::Millis;
use futures_util::future::{join_all, try_join_all};
use redis::Value;

/// One item on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surveyed {
    /// The life of the shard.
    pub epoch: i64,
    /// The item's units.
    pub counters: Counters,
}

/// What stands in a shard's place, and in its item's.
type Records = (Option<Vec<u8>>, Option<Vec<u8>>);

impl Stock {
    /// An item on each shard, each as of its own moment; `Incomplete` for a shard that does not have the item, or no
    /// permit: what it has is not known then. The clock is asked after the records, so a permit that it finds to hold
    /// held when they were read.
    pub async fn survey(&self, sale: SaleId, shards: u16, sku: &Sku) -> Vec<Result<Surveyed, Fault>> {
        let keys = (0..shards).map(|shard| ShardKey { sale, shard });
        let read = |key: ShardKey| {
            let mut command = redis::cmd("MGET");
            command.arg(key.shard()).arg(key.item(sku));
            command
        };
        if self.link.is_cluster() {
            return join_all(keys.map(|key| async move {
                let records: Records = self.command(&read(key)).await?;
                decode(key, records, self.clock_of(key).await?)
            }))
            .await;
        }
        // One server is asked for all of its shards at once.
        let mut pipeline = redis::pipe();
        for key in keys.clone() {
            pipeline.add_command(read(key));
        }
        pipeline.cmd("TIME");
        match self.pipeline::<Vec<Value>>(&pipeline).await.and_then(split) {
            Ok((records, now)) => keys.zip(records).map(|(key, it)| decode(key, it, now)).collect(),
            Err(fault) => keys.map(|_| Err(fault.clone())).collect(),
        }
    }

    /// The units that each shard has sent and not struck, with the shard that sent them.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn transfers(&self, sale: SaleId, shards: u16) -> Result<Vec<(u16, Transfer)>, Fault> {
        // First, so that a server that is another one in between shows, and a shard that is rebuilt in the epoch.
        let keys: Vec<ShardKey> = (0..shards).map(|shard| ShardKey { sale, shard }).collect();
        let servers = self
            .run_ids(&keys)
            .await
            .into_iter()
            .collect::<Result<Vec<String>, Fault>>()?;
        let epochs = (0..shards).map(|shard| self.epoch(ShardKey { sale, shard }));
        let epochs = try_join_all(epochs).await?;
        let found = (0..shards).map(|shard| async move {
            let mut command = redis::cmd("HGETALL");
            command.arg(ShardKey { sale, shard }.transfers());
            self.command::<Vec<(String, String)>>(&command).await
        });
        let found = try_join_all(found).await?;
        let mut transfers = Vec::new();
        for (shard, sent) in (0..shards).zip(found) {
            for (id, value) in sent {
                let transfer = Transfer::decode(&id, &value);
                let mut transfer = transfer.ok_or_else(|| Fault::Bug(format!("transfer {id} is damaged")))?;
                let to = match transfer.to {
                    Destination::Shard(to) => to,
                    Destination::Ledger => shard,
                };
                transfer.to_epoch = epochs.get(usize::from(to)).copied().unwrap_or(0);
                let server = servers.get(usize::from(shard));
                transfer.server = server
                    .filter(|server| servers.get(usize::from(to)) == Some(server))
                    .cloned();
                transfers.push((shard, transfer));
            }
        }
        Ok(transfers)
    }
}

/// The answers to a survey's pipeline: what stands in each shard's places, and the time after that.
fn split(mut answers: Vec<Value>) -> Result<(Vec<Records>, Millis), Fault> {
    let strange = |error: redis::ParsingError| Fault::Bug(format!("a survey was answered {error}"));
    let time = answers.pop().unwrap_or(Value::Nil);
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time).map_err(strange)?;
    let records = answers
        .into_iter()
        .map(redis::from_redis_value)
        .collect::<Result<_, _>>();
    Ok((records.map_err(strange)?, seconds * 1000 + micros / 1000))
}

fn decode(key: ShardKey, records: Records, now: Millis) -> Result<Surveyed, Fault> {
    if let (Some(shard), Some(units)) = records {
        let shard = ShardRecord::decode(&shard)?;
        if shard.permit_until > now {
            return Ok(Surveyed {
                epoch: shard.epoch,
                counters: decode_item(&units)?,
            });
        }
    }
    Err(Fault::Incomplete(format!(
        "shard {} of sale {} is being reconciled",
        key.shard, key.sale
    )))
}
