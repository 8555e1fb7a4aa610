//! Surveys: reads one item's units on all shards, and the units in transit between them.

use super::Stock;
use super::keys::ShardKey;
use super::record::{ShardRecord, decode_item};
use super::transfer::{Destination, Transfer};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::report::Counters;
use crate::domain::time::Millis;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, Value};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long [`Stock::survey_soon`] waits for a silent node, and how long once the other nodes have enough units.
const SOON_MAX: Duration = Duration::from_millis(300);
const SPARE_MAX: Duration = Duration::from_millis(20);

/// One item on one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surveyed {
    pub epoch: i64,
    pub counters: Counters,
}

/// The values of a shard's record and of its item's, where the keys exist.
type Records = (Option<Vec<u8>>, Option<Vec<u8>>);

impl Stock {
    /// An item's units on each shard, each read at its own moment. A shard without the item or without a permit is
    /// `Incomplete`, because its units are not known. The clock is read after the records, so a permit that holds by
    /// the clock held when the records were read.
    pub async fn survey(&self, sale: SaleId, shards: u16, sku: &Sku) -> Vec<Result<Surveyed, Fault>> {
        let keys = (0..shards).map(|shard| ShardKey::new(sale, shard));
        if self.link.is_cluster() {
            return join_all(keys.map(|key| self.survey_one(key, sku))).await;
        }
        // One server answers for all shards in one pipeline.
        let mut pipeline = redis::pipe();
        for key in keys.clone() {
            pipeline.add_command(read(key, sku));
        }
        pipeline.cmd("TIME");
        match self.pipeline::<Vec<Value>>(&pipeline).await.and_then(split) {
            Ok((records, now)) => keys.zip(records).map(|(key, it)| decode(key, it, now)).collect(),
            Err(fault) => keys.map(|_| Err(fault.clone())).collect(),
        }
    }

    /// Like [`Stock::survey`], for a shopper who waits. A silent node of a cluster is left out after a short time, and
    /// sooner once the other nodes have `enough` units. A single server gets the usual time limit, because no other one
    /// has units.
    pub async fn survey_soon(&self, sale: SaleId, shards: u16, sku: &Sku, enough: i64) -> Vec<Result<Surveyed, Fault>> {
        if !self.link.is_cluster() {
            return self.survey(sale, shards, sku).await;
        }
        let began = Instant::now();
        let mut reads: FuturesUnordered<_> = (0..shards)
            .map(|shard| async move { (shard, self.survey_one(ShardKey::new(sale, shard), sku).await) })
            .collect();
        let silent = || Err(Fault::Unavailable("a node of Redis does not answer soon".to_owned()));
        let mut seen: Vec<_> = (0..shards).map(|_| silent()).collect();
        let mut free = 0;
        loop {
            let patience = if free >= enough { SPARE_MAX } else { SOON_MAX };
            match timeout_at(began + patience, reads.next()).await {
                Ok(Some((shard, answer))) => {
                    free += answer.as_ref().map_or(0, |it| it.counters.available);
                    if let Some(place) = seen.get_mut(usize::from(shard)) {
                        *place = answer;
                    }
                }
                Ok(None) | Err(_) => return seen,
            }
        }
    }

    async fn survey_one(&self, key: ShardKey, sku: &Sku) -> Result<Surveyed, Fault> {
        let records: Records = self.command(&read(key, sku)).await?;
        decode(key, records, self.clock_of(key).await?)
    }

    /// The transfers that lenders have not marked delivered, each with its lender.
    pub async fn transfers(&self, sale: SaleId, shards: u16) -> Result<Vec<(u16, Transfer)>, Fault> {
        let (transfers, silent) = self.transfers_each(sale, shards).await?;
        silent.map_or(Ok(transfers), Err)
    }

    /// Like [`Stock::transfers`], for the shards whose servers answer, with the fault of one that does not. Transfers
    /// to a shard that does not answer are left out.
    ///
    /// # Errors
    /// `Bug` when a transfer is damaged.
    pub async fn transfers_each(
        &self,
        sale: SaleId,
        shards: u16,
    ) -> Result<(Vec<(u16, Transfer)>, Option<Fault>), Fault> {
        let keys: Vec<ShardKey> = (0..shards).map(|shard| ShardKey::new(sale, shard)).collect();
        // Servers and epochs are read before the transfers. So a change of server in between shows, and a rebuild shows
        // in the epoch.
        let servers = self.servers(&keys).await;
        let found = keys.iter().zip(servers).map(|(key, server)| async move {
            let server = server?;
            let epoch = self.epoch(*key).await?;
            Ok::<_, Fault>((server, epoch))
        });
        let places = join_all(found).await;
        let sent = keys.iter().zip(&places).map(|(key, place)| async move {
            if place.is_err() {
                return Ok(Vec::new());
            }
            let mut command = redis::cmd("HGETALL");
            command.arg(key.transfers());
            self.command::<Vec<(String, String)>>(&command).await
        });
        let sent = join_all(sent).await;
        let mut silent = places.iter().find_map(|place| place.as_ref().err().cloned());
        let mut transfers = Vec::new();
        for (shard, sent) in (0..shards).zip(sent) {
            let sent = sent.unwrap_or_else(|fault| {
                silent.get_or_insert(fault);
                Vec::new()
            });
            for (id, value) in sent {
                let mut transfer = Transfer::decode(&id, &value)?;
                let to = match transfer.to {
                    Destination::Shard(to) => to,
                    Destination::Ledger => shard,
                };
                let place = |shard: u16| places.get(usize::from(shard))?.as_ref().ok();
                let (Some((server, _)), Some((its_server, its_epoch))) = (place(shard), place(to)) else {
                    continue;
                };
                transfer.to_epoch = *its_epoch;
                transfer.server = Some(server).filter(|server| *server == its_server).cloned();
                transfers.push((shard, transfer));
            }
        }
        Ok((transfers, silent))
    }
}

fn read(key: ShardKey, sku: &Sku) -> Cmd {
    let mut command = redis::cmd("MGET");
    command.arg(key.shard()).arg(key.item(sku));
    command
}

/// Splits the answers to a survey's pipeline into each shard's records, and the time after they were read.
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
