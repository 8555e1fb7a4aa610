//! One item over all shards, and units on their way between them.

use super::Stock;
use super::keys::ShardKey;
use super::record::{ShardRecord, decode_item};
use super::transfer::{Destination, Transfer};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::Counters;
use futures_util::future::{join_all, try_join_all};

impl Stock {
    /// An item's counters on each shard, each as of its own moment; `Incomplete` for a shard that does not have the item,
    /// or no permit: what it has is not known then.
    pub async fn survey(&self, sale: SaleId, shards: u16, sku: &Sku) -> Vec<Result<Counters, Fault>> {
        // One server is asked once for all of its shards.
        let one = match self.link.is_cluster() {
            true => None,
            false => Some(self.now().await),
        };
        let one = &one;
        join_all((0..shards).map(|shard| async move {
            let key = ShardKey { sale, shard };
            let now = match one {
                Some(now) => now.clone()?,
                None => self.clock_of(key).await?,
            };
            let mut command = redis::cmd("MGET");
            command.arg(key.shard()).arg(key.item(sku));
            match self.command::<(Option<Vec<u8>>, Option<Vec<u8>>)>(&command).await? {
                (Some(record), Some(units)) if ShardRecord::decode(&record)?.permit_until > now => decode_item(&units),
                _ => Err(Fault::Incomplete(format!(
                    "shard {shard} of sale {sale} is being reconciled"
                ))),
            }
        }))
        .await
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
