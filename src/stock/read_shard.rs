//! Calls `lua/read_shard.lua`, and reads what belongs to one shopper.

use super::Stock;
use super::events::decode_entries;
use super::keys::ShardKey;
use super::record::{ItemRecord, OrderRecord, decode_shard, decode_window};
use super::script::{READ_SHARD, bytes, number, text};
use super::transfer::Transfer;
use crate::domain::event::Event;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, Sku, UserId};
use crate::domain::report::Counters;
use crate::domain::sale::Lifecycle;
use crate::domain::time::Millis;
use futures_util::future::try_join_all;
use redis::Value;
use std::collections::BTreeMap;
use uuid::Uuid;

/// The most undrained events that one reading returns.
pub const EVENTS_MAX: usize = 1000;

/// One shard as of one moment.
#[derive(Debug, Clone)]
pub struct ShardReading {
    /// Its number.
    pub shard: u16,
    /// Redis's clock at that moment.
    pub now: Millis,
    /// Its generation.
    pub epoch: i64,
    /// The newest version of the state that it was told.
    pub state_version: i64,
    /// Its state, and the sale's times as it has them.
    pub state: (Lifecycle, Millis, Millis),
    /// Its units by SKU.
    pub items: BTreeMap<Sku, Counters>,
    /// Units that it has sent and not struck.
    pub transfers: Vec<Transfer>,
    /// Events that the drain has not trimmed.
    pub undrained: i64,
    /// The first of them, if they were asked for.
    pub events: Vec<Event>,
}

impl ShardReading {
    /// The units of one item.
    #[must_use]
    pub fn counters(&self, sku: &Sku) -> Counters {
        self.items.get(sku).copied().unwrap_or_default()
    }
}

impl Stock {
    /// Reads one shard, with up to [`EVENTS_MAX`] undrained events if they are wanted.
    ///
    /// # Errors
    /// `Incomplete` when the shard is not all there.
    pub async fn read_shard(&self, key: ShardKey, events_max: usize) -> Result<ShardReading, Fault> {
        let mut call = READ_SHARD.prepare_invoke();
        call.key(key.stock())
            .key(key.transfers())
            .key(key.events())
            .arg(events_max.min(EVENTS_MAX));
        let Value::Array(fields) = self.run(&call).await? else {
            return Err(Fault::Bug("read_shard answered no array".to_owned()));
        };
        let mut fields = fields.into_iter();
        let now = number(&mut fields)?;
        let stock = pairs(fields.next())?;
        let transfers = pairs(fields.next())?;
        let undrained = number(&mut fields)?;
        let events = decode_entries(fields.next().unwrap_or(Value::Nil))?;

        let mut shard = None;
        let mut state = None;
        let mut items = BTreeMap::new();
        for (field, value) in stock {
            if field == ":shard" {
                shard = Some(decode_shard(&value)?);
            } else {
                let item = ItemRecord::decode(&value)?;
                state = Some((item.lifecycle, item.starts_at, item.ends_at));
                let sku = field
                    .parse()
                    .map_err(|wrong| Fault::Bug(format!("{field:?} in the stock: {wrong}")))?;
                items.insert(sku, item.counters);
            }
        }
        let (Some((epoch, state_version)), Some(state)) = (shard, state) else {
            return Err(Fault::Incomplete(format!("shard {} of sale {}", key.shard, key.sale)));
        };
        let mut sent = Vec::with_capacity(transfers.len());
        for (id, value) in transfers {
            let transfer = Transfer::decode(&id, &String::from_utf8_lossy(&value));
            sent.push(transfer.ok_or_else(|| Fault::Bug(format!("transfer {id} is damaged")))?);
        }
        Ok(ShardReading {
            shard: key.shard,
            now,
            epoch,
            state_version,
            state,
            items,
            transfers: sent,
            undrained,
            events,
        })
    }

    /// Reads every shard of a sale, each as of its own moment.
    ///
    /// # Errors
    /// As [`Stock::read_shard`].
    pub async fn read_shards(&self, sale: SaleId, shards: u16) -> Result<Vec<ShardReading>, Fault> {
        try_join_all((0..shards).map(|shard| self.read_shard(ShardKey { sale, shard }, 0))).await
    }

    /// Reads one shopper's sliding window on a shard: when each request that counts was made, oldest first.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn read_window(&self, shard: ShardKey, user: &UserId) -> Result<Vec<Millis>, Fault> {
        let window: Option<Vec<u8>> = self.command(redis::cmd("HGET").arg(shard.buyer(user)).arg("w")).await?;
        Ok(decode_window(&window.unwrap_or_default()))
    }

    /// Reads one shopper's orders, oldest first, or the one that is asked for.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer.
    pub async fn read_orders(
        &self,
        shard: ShardKey,
        user: &UserId,
        only: Option<OrderId>,
    ) -> Result<Vec<(OrderId, OrderRecord)>, Fault> {
        let key = shard.buyer(user);
        let fields: Vec<(Vec<u8>, Vec<u8>)> = match only {
            Some(order) => {
                let value: Option<Vec<u8>> = self
                    .command(redis::cmd("HGET").arg(key).arg(order.0.as_bytes()))
                    .await?;
                value
                    .map(|value| (order.0.as_bytes().to_vec(), value))
                    .into_iter()
                    .collect()
            }
            None => self.command(redis::cmd("HGETALL").arg(key)).await?,
        };
        let orders = fields.into_iter().filter_map(|(field, value)| {
            // Fields of sixteen bytes are orders; the others are shorter.
            let id = OrderId(Uuid::from_slice(&field).ok()?);
            Some(OrderRecord::decode(&value).map(|record| (id, record)))
        });
        let mut orders = orders.collect::<Result<Vec<_>, _>>()?;
        orders.sort_by_key(|(_, record)| record.event);
        Ok(orders)
    }
}

/// A flat array of fields and values as pairs.
fn pairs(value: Option<Value>) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let Some(Value::Array(flat)) = value else {
        return Err(Fault::Bug("read_shard answered no fields".to_owned()));
    };
    let mut flat = flat.into_iter();
    let mut pairs = Vec::with_capacity(flat.len() / 2);
    while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
        pairs.push((text(field)?, bytes(value)?));
    }
    Ok(pairs)
}
