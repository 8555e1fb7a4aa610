//! Surveys: reads one item's units on all shards, and the units in transit between them.

use super::transfer::Transfer;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku};
use crate::domain::operator::report::Counters;
use crate::stock::keys::ShardKey;
use crate::stock::read_together::{Reading, Wanted};
use crate::stock::record::{ShardRecord, decode_item};
use crate::stock::{Stock, unreconciled};
use futures_util::StreamExt;
use futures_util::future::join_all;
use std::iter;
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

impl Stock {
    /// An item's units on each shard: on one server all at one moment, on a cluster each at its own. A shard without the
    /// item or without a permit, or on a server that was not admitted, is `Incomplete`: its units are not known.
    pub async fn survey(&self, sale: SaleId, shards: u16, sku: &Sku) -> Vec<Result<Surveyed, Fault>> {
        let wanted = wanted(sale, shards, &[sku]);
        let readings = self.read_all_together(&wanted).await;
        by_item(&wanted, &readings, 1).into_iter().flatten().collect()
    }

    /// Like [`Stock::survey`], for a shopper who waits. A silent node of a cluster is left out after a short time, and
    /// sooner once the other nodes have `enough` units. A single server gets the usual time limit, because no other one
    /// has units.
    pub async fn survey_soon(&self, sale: SaleId, shards: u16, sku: &Sku, enough: i64) -> Vec<Result<Surveyed, Fault>> {
        let surveyed = self.survey_items_soon(sale, shards, &[sku], enough).await;
        surveyed.into_iter().flatten().collect()
    }

    /// [`Stock::survey_soon`] of several items, in the same order. One command reads all that a shard has of them.
    pub async fn survey_items_soon(
        &self,
        sale: SaleId,
        shards: u16,
        skus: &[&Sku],
        enough: i64,
    ) -> Vec<Vec<Result<Surveyed, Fault>>> {
        let began = Instant::now();
        let wanted = wanted(sale, shards, skus);
        if self.reads_one_moment() {
            return by_item(&wanted, &self.read_all_together(&wanted).await, skus.len());
        }
        let mut reads = self.read_together(&wanted).await;
        let silent = || Err(Fault::Unavailable("a node of Redis does not answer soon".to_owned()));
        let mut seen: Vec<Result<Reading, Fault>> = wanted.iter().map(|_| silent()).collect();
        let mut free = 0;
        loop {
            let patience = if free >= enough { SPARE_MAX } else { SOON_MAX };
            let Ok(Some(readings)) = timeout_at(began + patience, reads.next()).await else {
                break;
            };
            for (at, reading) in readings {
                let (Some(it), Some(place)) = (wanted.get(at), seen.get_mut(at)) else {
                    continue;
                };
                for item in 0..skus.len() {
                    let surveyed = reading.as_ref().map(|reading| decode(it.shard, reading, item));
                    free += surveyed.map_or(0, |it| it.map_or(0, |it| it.counters.available));
                }
                *place = reading;
            }
        }
        by_item(&wanted, &seen, skus.len())
    }

    /// The transfers that lenders have not marked delivered, each with its lender.
    pub async fn transfers(&self, sale: SaleId, shards: u16) -> Result<Vec<(u16, Transfer)>, Fault> {
        let (transfers, silent) = self.transfers_each(sale, shards).await?;
        silent.map_or(Ok(transfers), Err)
    }

    /// Like [`Stock::transfers`], for the shards whose servers answer, with the fault of one that does not. Transfers
    /// to a shard that does not answer are left out. Fails with `Bug` when a transfer is damaged.
    pub async fn transfers_each(
        &self,
        sale: SaleId,
        shards: u16,
    ) -> Result<(Vec<(u16, Transfer)>, Option<Fault>), Fault> {
        let keys: Vec<ShardKey> = (0..shards).map(|shard| ShardKey::new(sale, shard)).collect();
        // Mostly nothing is in transit, and one command shows it.
        if self.reads_one_moment() && matches!(self.have_transfers(&keys).await, Ok(false)) {
            return Ok((Vec::new(), None));
        }
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
            self.command::<Vec<(String, String)>>(redis::cmd("HGETALL").arg(key.transfers()))
                .await
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
                let to = transfer.arrives_at(shard);
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

    /// Whether one of these shards of a server has a transfer. A hash without fields does not exist.
    async fn have_transfers(&self, shards: &[ShardKey]) -> Result<bool, Fault> {
        let mut exists = redis::cmd("EXISTS");
        shards.iter().for_each(|shard| _ = exists.arg(shard.transfers()));
        Ok(self.command::<i64>(&exists).await? > 0)
    }
}

/// The record of each shard, and then its units of these items.
pub(in crate::stock) fn wanted(sale: SaleId, shards: u16, skus: &[&Sku]) -> Vec<Wanted> {
    let shards = (0..shards).map(|shard| ShardKey::new(sale, shard));
    let wanted = shards.map(|shard| {
        let items = skus.iter().map(|sku| shard.item(sku));
        Wanted {
            shard,
            keys: iter::once(shard.shard()).chain(items).collect(),
        }
    });
    wanted.collect()
}

/// So many items, each on all shards.
fn by_item(wanted: &[Wanted], readings: &[Result<Reading, Fault>], items: usize) -> Vec<Vec<Result<Surveyed, Fault>>> {
    let on_all = |item| {
        let both = wanted.iter().zip(readings);
        let surveyed = both.map(|(it, reading)| match reading {
            Ok(reading) => decode(it.shard, reading, item),
            Err(fault) => Err(fault.clone()),
        });
        surveyed.collect::<Vec<_>>()
    };
    (0..items).map(on_all).collect()
}

/// The units of the item at this place in the list of what was wanted.
fn decode(key: ShardKey, reading: &Reading, item: usize) -> Result<Surveyed, Fault> {
    let values = (reading.values.first(), reading.values.get(item + 1));
    if let (Some(Some(shard)), Some(Some(units))) = values {
        let shard = ShardRecord::decode(shard)?;
        if reading.is_admitted && shard.permit_until > reading.now {
            return Ok(Surveyed {
                epoch: shard.epoch,
                counters: decode_item(units)?,
            });
        }
    }
    Err(unreconciled(key))
}
