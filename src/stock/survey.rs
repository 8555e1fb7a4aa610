//! One item over all shards, and units on their way between them.

use super::Stock;
use super::keys::ShardKey;
use super::record::decode_item;
use super::transfer::Transfer;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::Counters;
use futures_util::future::try_join_all;

impl Stock {
    /// An item's counters on each shard, each as of its own moment.
    ///
    /// # Errors
    /// `Incomplete` when a shard does not have the item.
    pub async fn survey(&self, sale: SaleId, shards: u16, sku: &Sku) -> Result<Vec<Counters>, Fault> {
        let records = (0..shards).map(|shard| async move {
            let mut command = redis::cmd("GET");
            command.arg(ShardKey { sale, shard }.item(sku));
            self.command::<Option<Vec<u8>>>(&command).await
        });
        let records = try_join_all(records).await?;
        let counters = records.into_iter().enumerate().map(|(shard, record)| match record {
            Some(record) => decode_item(&record),
            None => Err(Fault::Incomplete(format!("shard {shard} of sale {sale} has no {sku}"))),
        });
        counters.collect()
    }

    /// The units that each shard has sent and not struck, with the shard that sent them.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn transfers(&self, sale: SaleId, shards: u16) -> Result<Vec<(u16, Transfer)>, Fault> {
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
                transfers.push((
                    shard,
                    transfer.ok_or_else(|| Fault::Bug(format!("transfer {id} is damaged")))?,
                ));
            }
        }
        Ok(transfers)
    }
}
