//! Calls `lua/operate/read_shard.lua`, and reads shoppers' rows.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, Sku, UserId};
use crate::domain::operator::report::Counters;
use crate::domain::order::event::Event;
use crate::domain::sale::Sale;
use crate::domain::time::Millis;
use crate::stock::keys::ShardKey;
use crate::stock::read_together::{Reading, Wanted};
use crate::stock::record::{BuyerRecord, BuyerStanding, ShardRecord, decode_item};
use crate::stock::script::{READ_SHARD, bytes, number, text};
use crate::stock::sell::survey::wanted;
use crate::stock::sell::transfer::Transfer;
use crate::stock::settle::events::decode_entries;
use crate::stock::settle::replicate::Replicated;
use crate::stock::{Stock, unreconciled};
use futures_util::future::{join_all, try_join_all};
use redis::Value;
use std::collections::{BTreeMap, HashMap};

/// The most undrained events that one reading returns.
pub const EVENTS_MAX: usize = 1000;

/// A purchase that is looked for in its shopper's row.
#[derive(Debug, Clone)]
pub struct AskedPurchase {
    pub home: ShardKey,
    pub user: UserId,
    pub order: OrderId,
}

/// One shard as of one moment.
#[derive(Debug, Clone)]
pub struct ShardReading {
    pub shard: u16,
    /// Redis's clock at that moment.
    pub now: Millis,
    /// The shard's epoch and state, and the sale's times as the shard has them.
    pub record: ShardRecord,
    pub items: BTreeMap<Sku, Counters>,
    /// Transfers that it has not marked delivered.
    pub transfers: Vec<Transfer>,
    /// How many events the drain has not trimmed.
    pub undrained: i64,
    /// The first of them, if they were asked for.
    pub events: Vec<Event>,
}

impl ShardReading {
    /// One item's units; zeros for an item that was not read.
    pub fn counters(&self, sku: &Sku) -> Counters {
        self.items.get(sku).copied().unwrap_or_default()
    }
}

/// One shard's units as of one moment.
#[derive(Debug, Clone)]
pub struct ShardUnits {
    /// Redis's clock at that moment.
    pub now: Millis,
    /// The shard's epoch and state, and the sale's times as the shard has them.
    pub record: ShardRecord,
    /// Of each item, in the order of the sale's items.
    pub items: Vec<Counters>,
}

/// Shoppers that one command reads, so that it takes the server less than a millisecond.
const BUYERS_AT_ONCE: usize = 500;

/// Keys of shards that one command reads, for the same reason.
const KEYS_AT_ONCE: usize = 1000;

/// Requests whose rows one command reads.
const STANDINGS_AT_ONCE: usize = 250;

/// An item's counters over all shards.
pub fn total(sku: &Sku, readings: &[ShardReading]) -> Counters {
    readings
        .iter()
        .fold(Counters::default(), |sum, reading| sum.plus(&reading.counters(sku)))
}

impl Stock {
    /// Reads one shard of a sale, with at most `events_max` undrained events, and never more than [`EVENTS_MAX`].
    pub async fn read_shard(&self, sale: &Sale, shard: u16, events_max: usize) -> Result<ShardReading, Fault> {
        let key = ShardKey::new(sale.id, shard);
        let mut call = READ_SHARD.prepare_invoke();
        call.key(key.shard()).key(key.transfers()).key(key.events());
        for item in &sale.items {
            call.key(key.item(&item.sku));
        }
        call.arg(events_max.min(EVENTS_MAX));
        let Value::Array(fields) = self.run(&READ_SHARD, &call).await? else {
            return Err(Fault::Bug("read_shard answered no array".to_owned()));
        };
        let mut fields = fields.into_iter();
        let now = number(&mut fields)?;
        let record = ShardRecord::decode(&bytes(fields.next().unwrap_or(Value::Nil))?)?;
        let Some(Value::Array(units)) = fields.next() else {
            return Err(Fault::Bug("read_shard answered no items".to_owned()));
        };
        let transfers = pairs(fields.next())?;
        let undrained = number(&mut fields)?;
        let events = decode_entries(fields.next().unwrap_or(Value::Nil))?;
        if let Some(reason) = events.iter().find_map(Event::newer) {
            return Err(Fault::Newer(reason.to_owned()));
        }

        let mut items = BTreeMap::new();
        for (item, value) in sale.items.iter().zip(units) {
            items.insert(item.sku.clone(), decode_item(&bytes(value)?)?);
        }
        let mut sent = Vec::with_capacity(transfers.len());
        for (id, value) in transfers {
            sent.push(Transfer::decode(&id, &String::from_utf8_lossy(&value))?);
        }
        Ok(ShardReading {
            shard,
            now,
            record,
            items,
            transfers: sent,
            undrained,
            events,
        })
    }

    /// Reads every shard of a sale, each as of its own moment.
    pub async fn read_shards(&self, sale: &Sale) -> Result<Vec<ShardReading>, Fault> {
        try_join_all((0..sale.shards).map(|shard| self.read_shard(sale, shard, 0))).await
    }

    /// The units of every shard of a sale, each as of its own moment, with the outcome for each shard. One command reads
    /// many shards of a server.
    pub async fn read_units_each(&self, sale: &Sale) -> Vec<Result<ShardUnits, Fault>> {
        let skus: Vec<&Sku> = sale.items.iter().map(|item| &item.sku).collect();
        let shards = wanted(sale.id, sale.shards, &skus);
        let mut read = Vec::with_capacity(shards.len());
        for some in shards.chunks((KEYS_AT_ONCE / (sale.items.len() + 1)).max(1)) {
            let readings = some.iter().zip(self.read_all_together(some).await);
            read.extend(readings.map(|(it, reading)| units(it.shard, &reading?)));
        }
        read
    }

    /// Reads one shopper's row on the home shard.
    pub async fn read_buyer(&self, shard: ShardKey, user: &UserId) -> Result<BuyerRecord, Fault> {
        let value: Option<Vec<u8>> = self.command(redis::cmd("GET").arg(shard.buyer(user))).await?;
        decode_buyer(value)
    }

    /// Reads the rows of many shoppers, in their order, some at a time.
    pub async fn read_buyers(&self, shard: ShardKey, users: &[&UserId]) -> Result<Vec<BuyerRecord>, Fault> {
        let mut buyers = Vec::with_capacity(users.len());
        for users in users.chunks(BUYERS_AT_ONCE) {
            let mut command = redis::cmd("MGET");
            users.iter().for_each(|user| _ = command.arg(shard.buyer(user)));
            let values: Vec<Option<Vec<u8>>> = self.command(&command).await?;
            for value in values {
                buyers.push(decode_buyer(value)?);
            }
        }
        Ok(buyers)
    }

    /// Reads what a shopper's row says about one request, if the server and the shard may sell. Another server may lack
    /// an order that the shard's earlier server has accepted. Fails with `Incomplete` when the server does not have the
    /// script that sells, or the shard has no permit.
    pub async fn buyer_standing(&self, home: ShardKey, user: &UserId, order: OrderId) -> Result<BuyerStanding, Fault> {
        let user = user.clone();
        let standing = self.buyer_standings(&[AskedPurchase { home, user, order }]).await.pop();
        standing.unwrap_or_else(|| Err(no_row()))
    }

    /// [`Stock::buyer_standing`] for many requests, in their order.
    pub async fn buyer_standings(&self, asking: &[AskedPurchase]) -> Vec<Result<BuyerStanding, Fault>> {
        let reads = asking
            .chunks(STANDINGS_AT_ONCE)
            .map(|some| self.standings_at_once(some));
        join_all(reads).await.into_iter().flatten().collect()
    }

    /// Reads each home shard once, with the rows of all its shoppers.
    async fn standings_at_once(&self, asking: &[AskedPurchase]) -> Vec<Result<BuyerStanding, Fault>> {
        let (mut homes, mut known) = (Vec::new(), HashMap::new());
        let mut places = Vec::with_capacity(asking.len());
        for it in asking {
            let home = *known.entry(it.home).or_insert_with(|| {
                let (shard, keys) = (it.home, vec![it.home.shard()]);
                homes.push(Wanted { shard, keys });
                homes.len() - 1
            });
            if let Some(wanted) = homes.get_mut(home) {
                places.push((home, wanted.keys.len()));
                wanted.keys.push(it.home.buyer(&it.user));
            }
        }
        let readings = homes.iter().zip(self.read_all_together(&homes).await);
        let readings: Vec<_> = readings.map(|(it, reading)| selling(it.shard, reading?)).collect();
        let both = asking.iter().zip(places);
        both.map(|(it, (home, row))| {
            let (shard, reading) = readings.get(home).ok_or_else(no_row)?.as_ref().map_err(Fault::clone)?;
            let row = reading.values.get(row).ok_or_else(no_row)?;
            BuyerStanding::decode(row.as_deref(), shard, it.order, reading.now)
        })
        .collect()
    }

    /// Like [`Stock::read_buyer`], once a replica has the row too; and the server that has it. Fails with `Unavailable`
    /// when Redis does not answer, or no replica confirms the row.
    pub async fn replicated_buyer(&self, shard: ShardKey, user: &UserId) -> Result<(BuyerRecord, Server), Fault> {
        let mut reading = redis::cmd("GET");
        reading.arg(shard.buyer(user));
        let Replicated { value, from } = self.replicated(shard, reading).await?;
        let row = match value {
            Value::Nil => None,
            value => Some(bytes(value)?),
        };
        Ok((decode_buyer(row)?, from))
    }
}

/// The units in a reading whose first value is the shard's record.
fn units(shard: ShardKey, reading: &Reading) -> Result<ShardUnits, Fault> {
    let mut values = reading.values.iter();
    let mut next = || values.next().and_then(Option::as_deref);
    let missing = || unreconciled(shard);
    let record = ShardRecord::decode(next().ok_or_else(missing)?)?;
    let mut items = Vec::with_capacity(reading.values.len());
    for _ in 1..reading.values.len() {
        items.push(decode_item(next().ok_or_else(missing)?)?);
    }
    let now = reading.now;
    Ok(ShardUnits { now, record, items })
}

/// A reading whose first value is the record of a shard that may sell, with that record.
fn selling(home: ShardKey, reading: Reading) -> Result<(ShardRecord, Reading), Fault> {
    let shard = reading.values.first().and_then(Option::as_deref);
    let shard = ShardRecord::decode(shard.ok_or_else(|| unreconciled(home))?)?;
    if reading.is_admitted && shard.permit_until > reading.now {
        Ok((shard, reading))
    } else {
        Err(unreconciled(home))
    }
}

fn no_row() -> Fault {
    Fault::Bug("Redis answered no row".to_owned())
}

fn decode_buyer(value: Option<Vec<u8>>) -> Result<BuyerRecord, Fault> {
    value.map_or_else(|| Ok(BuyerRecord::default()), |value| BuyerRecord::decode(&value))
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
