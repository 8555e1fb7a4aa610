//! The event streams: the drain reads them from the start, and trims what it has read by `lua/settle/trim.lua`.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::order::event::{Event, Origin, Position, Unreadable};
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::record::{decode_event, decode_position, known};
use crate::stock::recover::permit::{info, server_of};
use crate::stock::script::{TRIM, bytes, text};
use futures_util::future::join_all;
use redis::Value;
use std::time::Duration;
use tokio::time::Instant;

/// Events that the drain has not trimmed.
pub struct EventBatch {
    /// The oldest first.
    pub events: Vec<Event>,
    /// The server that has them.
    pub server: Server,
}

impl Stock {
    /// How many events each of these shards has that the drain has not trimmed, in the same order.
    pub async fn undrained(&self, shards: &[ShardKey]) -> Result<Vec<i64>, Fault> {
        self.undrained_each(shards).await.into_iter().collect()
    }

    /// Like [`Stock::undrained`], with the outcome for each shard.
    pub async fn undrained_each(&self, shards: &[ShardKey]) -> Vec<Result<i64, Fault>> {
        join_all(shards.iter().map(|shard| self.length(*shard))).await
    }

    /// Like [`Stock::undrained_each`], for a caller that can go on with other shards. A node of a cluster that does not
    /// answer within `patience` counts as unavailable. A single server gets the usual time limit.
    pub async fn undrained_soon(&self, shards: &[ShardKey], patience: Duration) -> Vec<Result<i64, Fault>> {
        let until = Instant::now() + patience;
        let lengths = shards.iter().map(|shard| self.soon(until, self.length(*shard)));
        join_all(lengths).await
    }

    async fn length(&self, shard: ShardKey) -> Result<i64, Fault> {
        self.command(redis::cmd("XLEN").arg(shard.events())).await
    }

    /// Up to `max` events that the drain has not trimmed, oldest first.
    pub async fn events(&self, shard: ShardKey, max: usize) -> Result<Vec<Event>, Fault> {
        decode_entries(self.command(&range(shard, "-", max)).await?)
    }

    /// Like [`Stock::events`], with the server that was read.
    pub async fn batch(&self, shard: ShardKey, max: usize) -> Result<EventBatch, Fault> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(range(shard, "-", max)).add_command(info());
        let (entries, info): (Value, String) = self.noted(self.link.ask_together(pipeline).await)?;
        Ok(EventBatch {
            events: decode_entries(entries)?,
            server: server_of(&info)?,
        })
    }

    /// Like [`Stock::batch`], once a replica has the events too. Fails with `Unavailable` when Redis does not answer,
    /// or no replica confirms the events.
    pub async fn replicated_batch(&self, shard: ShardKey, max: usize) -> Result<EventBatch, Fault> {
        let read = self.replicated(shard, range(shard, "-", max)).await?;
        Ok(EventBatch {
            events: decode_entries(read.value)?,
            server: read.from,
        })
    }

    /// Up to `max` events after this position, oldest first.
    pub async fn events_after(&self, shard: ShardKey, after: Position, max: usize) -> Result<Vec<Event>, Fault> {
        let from = format!("({}-{}", after.epoch, after.seq);
        decode_entries(self.command(&range(shard, &from, max)).await?)
    }

    /// Trims the events up to and including `last`, which the ledger has committed. None is trimmed if the stream no
    /// longer has that event: another server may have other events, which the ledger lacks. Fails with `Unavailable`
    /// when Redis does not answer; the next drain trims them.
    pub async fn trim_events(&self, shard: ShardKey, last: &Event) -> Result<(), Fault> {
        let Position { epoch, seq } = last.position;
        let next = if epoch == i64::MAX || seq == i64::MAX {
            // No script writes such an id, or any id behind it.
            String::new()
        } else {
            format!("{epoch}-{}", seq + 1)
        };
        let mut call = TRIM.prepare_invoke();
        call.key(shard.events());
        call.arg(format!("{epoch}-{seq}")).arg(last.raw.as_slice()).arg(next);
        self.finish(&TRIM, &call, &["TRIMMED", "LEFT"]).await
    }
}

/// The command that reads entries of a stream, from an id on.
fn range(shard: ShardKey, from: &str, max: usize) -> redis::Cmd {
    let mut command = redis::cmd("XRANGE");
    command.arg(shard.events()).arg(from).arg("+").arg("COUNT").arg(max);
    command
}

/// An entry that is no event of ours is kept with its bytes.
pub(in crate::stock) fn decode_entries(value: Value) -> Result<Vec<Event>, Fault> {
    let Value::Array(entries) = value else {
        return Err(Fault::Bug(format!("a stream answered {value:?}")));
    };
    entries.into_iter().map(decode_entry).collect()
}

fn decode_entry(entry: Value) -> Result<Event, Fault> {
    let damaged = || Fault::Bug("a stream answered an entry without id and fields".to_owned());
    let Value::Array(entry) = entry else {
        return Err(damaged());
    };
    let mut entry = entry.into_iter();
    let (Some(id), Some(Value::Array(fields))) = (entry.next(), entry.next()) else {
        return Err(damaged());
    };
    let id = text(id)?;
    let position = decode_position(&id).ok_or_else(damaged)?;
    let mut fields = fields.into_iter();
    let (Some(field), Some(raw)) = (fields.next(), fields.next()) else {
        return Err(damaged());
    };
    let (field, raw) = (text(field)?, bytes(raw)?);
    let reserved = match field.as_str() {
        "reserved" => decode_event(&raw),
        other => Err(known(&raw, 1, "event").map_or_else(
            |fault| Unreadable::Newer(fault.to_string()),
            |()| Unreadable::Damaged(format!("an event of an unknown kind: {other:?}")),
        )),
    };
    // A damaged origin must not lose an order, so it is ignored.
    let origin = match (fields.next(), fields.next()) {
        (Some(Value::BulkString(field)), Some(Value::BulkString(origin))) if field == b"origin" => {
            Origin::from_bytes(&origin)
        }
        _ => None,
    };
    Ok(Event {
        position,
        raw,
        reserved,
        origin,
    })
}
