//! Calls `lua/rebuild/begin_restore.lua`, `forget_buyers.lua`, `restore_buyers.lua`, `end_restore.lua` and `fence.lua`:
//! together they rebuild a shard from the ledger. A process claims a shard in the ledger before it rebuilds the shard.
//! The claim ends with its connection, and the process may not notice. So each step that writes a shard checks that the
//! shard still has the epoch that is being rebuilt. A crash leaves a shard that is loading and has no permit; it is
//! rebuilt again.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku, UserId};
use crate::domain::operator::report::Counters;
use crate::domain::order::event::{Event, Position};
use crate::domain::sale::{Lifecycle, Sale};
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::record::{BuyerRecord, ShardRecord, decode_position, encode_item};
use crate::stock::script::{BEGIN_RESTORE, END_RESTORE, FENCE, FORGET_BUYERS, RESTORE_BUYERS, number};
use crate::stock::settle::events::decode_entries;
use futures_util::future::try_join_all;
use redis::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use uuid::Uuid;

/// A shard's stream, as of one moment.
#[derive(Debug, Clone)]
pub struct Stream {
    /// The highest id that it ever had.
    pub last: Position,
    /// The oldest entry that it has.
    pub first: Option<Event>,
}

/// A shopper of a shard.
#[derive(Debug, Clone)]
pub struct Buyer {
    pub shard: ShardKey,
    pub user: UserId,
    pub row: BuyerRecord,
}

/// Keys that one step reads or removes.
const STEP: usize = 1000;

impl Stock {
    /// Begins a shard's `next` generation, if the shard has the epoch `epoch`, and no events but those of an epoch
    /// before `known`, the ledger's. Deletes its transfers and fences, which the rebuild accounts for. Marks it as
    /// loading until [`Stock::end_restore`]. Returns whether events were lost or are discarded: shoppers may have
    /// orders that the ledger does not know. Fails with `Unavailable` when the shard has changed since it was read.
    /// After another fault, the shard is loading, or as it was.
    pub async fn begin_restore(
        &self,
        sale: &Sale,
        shard: u16,
        (epoch, next): (i64, i64),
        known: i64,
        fences: &[(u16, i64)],
    ) -> Result<bool, Fault> {
        let key = ShardKey::new(sale.id, shard);
        let mut call = BEGIN_RESTORE.prepare_invoke();
        call.key(key.shard())
            .key(key.events())
            .key(key.transfers())
            .key(key.fences())
            .key(key.applied())
            .key(key.halt());
        call.arg(epoch)
            .arg(next)
            .arg(record(sale, Lifecycle::Loading, next).encode(&sale.purchase_rate))
            .arg(known);
        for (lender, epoch) in fences {
            call.arg(*lender).arg(*epoch);
        }
        let (status, mut fields) = self.answer(&BEGIN_RESTORE, &call).await?;
        match status.as_str() {
            "BEGUN" => Ok(number(&mut fields)? == 1),
            "CHANGED" => Err(changed(key)),
            other => Err(BEGIN_RESTORE.unknown(other)),
        }
    }

    /// Removes every shopper's row from these shards of a sale. A shard with an epoch is being rebuilt to it; a shard
    /// without one leaves Redis. Scans all keys of the shards' servers once, in small steps, so that no other call
    /// waits. Fails with `Unavailable` when Redis does not answer, or a shard has changed; the same call may be made
    /// again. `Newer` when a newer version of the program has written a row of a shard that is being rebuilt; other
    /// rows may be gone.
    pub async fn forget_buyers(&self, shards: &[(ShardKey, Option<i64>)]) -> Result<(), Fault> {
        let keys: Vec<ShardKey> = shards.iter().map(|(shard, _)| *shard).collect();
        let mut servers: HashMap<Server, Vec<(ShardKey, Option<i64>)>> = HashMap::new();
        for (shard, server) in shards.iter().zip(self.servers(&keys).await) {
            servers.entry(server?).or_default().push(*shard);
        }
        for shards in servers.values() {
            self.forget_buyers_of_one_server(shards).await?;
        }
        Ok(())
    }

    async fn forget_buyers_of_one_server(&self, shards: &[(ShardKey, Option<i64>)]) -> Result<(), Fault> {
        let Some((any, _)) = shards.first() else {
            return Ok(());
        };
        let buyers: Vec<(ShardKey, Option<i64>, String)> = shards
            .iter()
            .map(|(shard, epoch)| (*shard, *epoch, shard.buyers()))
            .collect();
        let mut cursor = 0_u64;
        loop {
            let (next, keys) = self.scan(*any, cursor).await?;
            let mut found: HashMap<(ShardKey, Option<i64>), Vec<Vec<u8>>> = HashMap::new();
            for key in keys {
                let of = buyers.iter().find(|(_, _, buyers)| key.starts_with(buyers.as_bytes()));
                if let Some((shard, epoch, _)) = of {
                    found.entry((*shard, *epoch)).or_default().push(key);
                }
            }
            // On a cluster, all keys of one command must have one slot.
            for ((shard, epoch), keys) in found {
                for keys in keys.chunks(STEP) {
                    self.forget_these(shard, epoch, keys).await?;
                }
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn forget_these(&self, shard: ShardKey, epoch: Option<i64>, buyers: &[Vec<u8>]) -> Result<(), Fault> {
        let Some(epoch) = epoch else {
            let mut unlink = redis::cmd("UNLINK");
            unlink.arg(buyers);
            return self.command::<i64>(&unlink).await.map(drop);
        };
        let mut call = FORGET_BUYERS.prepare_invoke();
        call.key(shard.shard()).key(buyers).arg(epoch);
        match self.status(&FORGET_BUYERS, &call).await?.as_str() {
            "FORGOTTEN" => Ok(()),
            "CHANGED" => Err(changed(shard)),
            other => Err(FORGET_BUYERS.unknown(other)),
        }
    }

    /// Writes shoppers' rows on a shard that is being rebuilt to `epoch`. Fails with `Unavailable` when the shard has
    /// changed; `Newer` when a newer version of the program has written one of the rows. Then no row is written. After
    /// another fault, the rows may be missing.
    pub async fn restore_buyers(
        &self,
        shard: ShardKey,
        epoch: i64,
        buyers: &[(UserId, BuyerRecord)],
    ) -> Result<(), Fault> {
        let left = u8::try_from(epoch % 255 + 1).unwrap_or(1);
        let mut call = RESTORE_BUYERS.prepare_invoke();
        call.key(shard.shard()).arg(epoch);
        for (user, buyer) in buyers {
            call.key(shard.buyer(user)).arg(buyer.encode(left));
        }
        match self.status(&RESTORE_BUYERS, &call).await?.as_str() {
            "WRITTEN" => Ok(()),
            "CHANGED" => Err(changed(shard)),
            other => Err(RESTORE_BUYERS.unknown(other)),
        }
    }

    /// Writes a shard's units and the sale's state; the shard still has no permit. The units include those of the
    /// transfers and restocks in `applied`, which the shard does not add again. Fails with `Unavailable` when the shard
    /// has changed. After another fault, the shard is loading, or rebuilt without a permit.
    pub async fn end_restore(
        &self,
        sale: &Sale,
        shard: u16,
        epoch: i64,
        units: &BTreeMap<Sku, Counters>,
        applied: &[Uuid],
    ) -> Result<(), Fault> {
        let key = ShardKey::new(sale.id, shard);
        let mut call = END_RESTORE.prepare_invoke();
        call.key(key.shard()).key(key.applied());
        call.arg(epoch)
            .arg(record(sale, sale.lifecycle, epoch).encode(&sale.purchase_rate));
        for (item, position) in sale.items.iter().zip(0..) {
            let counters = units.get(&item.sku).copied().unwrap_or_default();
            call.key(key.item(&item.sku));
            call.arg(encode_item(&counters, item.per_user_limit, position));
        }
        for id in applied {
            call.arg(id.to_string());
        }
        match self.status(&END_RESTORE, &call).await?.as_str() {
            "RESTORED" => Ok(()),
            "CHANGED" => Err(changed(key)),
            other => Err(END_RESTORE.unknown(other)),
        }
    }

    /// Which of these transfers and restocks are finished on their shards.
    pub async fn applied(&self, sale: SaleId, ids: &[(u16, Uuid)]) -> Result<HashSet<(u16, Uuid)>, Fault> {
        let mut by_shard: BTreeMap<u16, Vec<Uuid>> = BTreeMap::new();
        for (shard, id) in ids {
            by_shard.entry(*shard).or_default().push(*id);
        }
        let asked = by_shard.into_iter();
        let asked = asked.map(|(shard, ids)| self.applied_on(ShardKey::new(sale, shard), ids));
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    async fn applied_on(&self, key: ShardKey, ids: Vec<Uuid>) -> Result<Vec<(u16, Uuid)>, Fault> {
        let mut command = redis::cmd("SMISMEMBER");
        command.arg(key.applied());
        for id in &ids {
            command.arg(id.to_string());
        }
        let known: Vec<bool> = self.command(&command).await?;
        let applied = ids.into_iter().zip(known).filter(|(_, known)| *known);
        Ok(applied.map(|(id, _)| (key.shard, id)).collect())
    }

    /// Makes a shard refuse units that these lenders sent before the given epochs.
    pub async fn fence(&self, shard: ShardKey, lenders: &[(u16, i64)]) -> Result<(), Fault> {
        let mut call = FENCE.prepare_invoke();
        call.key(shard.fences());
        for (lender, epoch) in lenders {
            call.arg(*lender).arg(*epoch);
        }
        self.finish(&FENCE, &call, &["FENCED"]).await
    }

    /// A shard's epoch in Redis; 0 when its key is missing or holds no record.
    pub async fn epoch(&self, shard: ShardKey) -> Result<i64, Fault> {
        let value: Option<Vec<u8>> = match self.command(redis::cmd("GET").arg(shard.shard())).await {
            // The key holds another type.
            Err(Fault::Bug(_)) => None,
            value => value?,
        };
        match value.map(|value| ShardRecord::decode(&value)) {
            Some(Ok(record)) => Ok(record.epoch),
            Some(Err(fault @ Fault::Newer(_))) => Err(fault),
            Some(Err(_)) | None => Ok(0),
        }
    }

    /// The last event that a shard ever wrote.
    pub async fn last_event(&self, shard: ShardKey) -> Result<Position, Fault> {
        self.stream(shard).await.map(|stream| stream.last)
    }

    /// A shard's stream, as of one moment. Fails with `Unavailable` when Redis does not answer or the stream is
    /// missing; `Bug` when the key holds another type.
    pub async fn stream(&self, shard: ShardKey) -> Result<Stream, Fault> {
        let mut command = redis::cmd("XINFO");
        command.arg("STREAM").arg(shard.events());
        let fields: Vec<Value> = self.command(&command).await?;
        let (mut last, mut first) = (None, None);
        for pair in fields.chunks_exact(2) {
            match pair {
                [Value::BulkString(name), Value::BulkString(id)] if name == b"last-generated-id" => {
                    last = std::str::from_utf8(id).ok().and_then(decode_position);
                }
                [Value::BulkString(name), entry @ Value::Array(_)] if name == b"first-entry" => {
                    first = decode_entries(Value::Array(vec![entry.clone()]))?.pop();
                }
                _ => {}
            }
        }
        let last = last.ok_or_else(|| Fault::Bug("a stream does not say its last id".to_owned()))?;
        Ok(Stream { last, first })
    }

    /// Reads the next shoppers of shards that are on one server, and the cursor to go on from. Cursor 0 is the start
    /// and the end. A damaged row is left out. Each call is a small step, so that no other call waits. Fails with
    /// `Newer` when a newer version of the program has written one of the rows.
    pub async fn buyers(&self, shards: &[ShardKey], at: u64) -> Result<(u64, Vec<Buyer>), Fault> {
        let Some(any) = shards.first() else {
            return Ok((0, Vec::new()));
        };
        let (next, keys) = self.scan(*any, at).await?;
        let mut found = Vec::with_capacity(keys.len());
        for shard in shards {
            let prefix = shard.buyers();
            let keys: Vec<&Vec<u8>> = keys.iter().filter(|key| key.starts_with(prefix.as_bytes())).collect();
            if keys.is_empty() {
                continue;
            }
            let mut read = redis::cmd("MGET");
            read.arg(&keys);
            let rows: Vec<Option<Vec<u8>>> = self.command(&read).await?;
            for (key, row) in keys.into_iter().zip(rows) {
                let name = std::str::from_utf8(key).ok().and_then(|it| it.strip_prefix(&prefix));
                let Some((user, row)) = name.and_then(|it| it.parse().ok()).zip(row) else {
                    continue;
                };
                match BuyerRecord::decode(&row) {
                    Ok(row) => found.push(Buyer {
                        shard: *shard,
                        user,
                        row,
                    }),
                    Err(fault @ Fault::Newer(_)) => return Err(fault),
                    Err(_) => {}
                }
            }
        }
        Ok((next, found))
    }

    /// Some keys of the shard's sale, on the shard's server, and the cursor to go on from.
    async fn scan(&self, shard: ShardKey, at: u64) -> Result<(u64, Vec<Vec<u8>>), Fault> {
        let mut scan = redis::cmd("SCAN");
        let pattern = ShardKey::pattern(shard.sale);
        scan.arg(at).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        self.link.ask_server_of(&shard.shard(), &scan).await
    }
}

fn changed(shard: ShardKey) -> Fault {
    Fault::Unavailable(format!("{shard} has changed since it was read"))
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
