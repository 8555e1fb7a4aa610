//! The waiting room of a shard: calls `lua/door/waiting_room.lua` and `lua/door/leave_room.lua`.

use crate::domain::fault::Fault;
use crate::domain::ids::UserId;
use crate::domain::order::purchase::Refusal;
use crate::domain::sale::{Sale, SaleState};
use crate::domain::shopper::waiting_room::{Line, Member, Place, RoomCount};
use crate::domain::time::Millis;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::script::{LEAVE_ROOM, WAITING_ROOM, number, text};
use futures_util::future::try_join_all;
use std::iter::successors;
use std::time::Duration;
use tokio::time::Instant;

/// How many shoppers at the heads of all lines together a reading of the lines shows one by one.
const HEADS: i64 = 1024;

/// Behind the head, each sample's rank is a sixteenth higher than the one before. With more than four shards the steps
/// are wider, up to doubling, so that a reading takes about as many commands.
const STEPS: i64 = 64;
const STEP_MAX: i64 = 16;

/// A shopper's request for a place in line.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub member: Member,
    /// Shoppers a second that this shard admits, above 0.
    pub rate: f64,
    /// How long an admission lasts.
    pub stay_ms: Millis,
    /// Units that are free for this shard's shoppers.
    pub free: f64,
    /// How many shoppers may wait on this shard.
    pub room_max: u32,
    /// The place on the shopper's ticket, if there is one.
    pub place: Option<Place>,
    /// Stands in for Redis's clock in tests. Without it, the script gets one argument fewer.
    pub now: Option<Millis>,
}

/// A shopper's standing on the home shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomAnswer {
    Admitted {
        until: Millis,
    },
    Waiting {
        place: Place,
        /// How many shoppers are ahead on this shard.
        ahead: i64,
        waiting: i64,
        /// How many were admitted lately, in thousandths of a shopper a second.
        rate_milli: i64,
    },
    /// As many shoppers wait as are allowed.
    Full,
    Banned(Refusal),
    /// The sale is not open, so there is nothing to wait for.
    NotOpen(SaleState),
}

impl Stock {
    /// Gives a shopper a place on the home shard, or returns the standing that the shopper has there. Fails with
    /// `Unavailable` when Redis does not answer: a repeated call finds the same place. `Newer` when a newer version of
    /// the program has written the shard, the shopper or the state of admission.
    pub async fn wait(&self, shard: ShardKey, user: &UserId, waiting: &Waiting) -> Result<RoomAnswer, Fault> {
        let mut call = WAITING_ROOM.prepare_invoke();
        call.key(shard.shard())
            .key(shard.room())
            .key(shard.admitted())
            .key(shard.door())
            .key(shard.returned())
            .key(shard.buyer(user));
        call.arg(&waiting.member.id).arg(waiting.member.lot).arg(waiting.rate);
        call.arg(waiting.stay_ms).arg(waiting.free).arg(waiting.room_max);
        match waiting.place {
            Some(Place { room, place }) => call.arg(room).arg(place),
            None => call.arg("").arg(""),
        };
        call.arg(waiting.now);
        let (status, mut fields) = self.answer(&WAITING_ROOM, &call).await?;
        match status.as_str() {
            "ADMITTED" => Ok(RoomAnswer::Admitted {
                until: number(&mut fields)?,
            }),
            "WAITING" => {
                let (place, ahead, waiting) = (number(&mut fields)?, number(&mut fields)?, number(&mut fields)?);
                let room = number(&mut fields)?;
                Ok(RoomAnswer::Waiting {
                    place: Place { room, place },
                    ahead,
                    waiting,
                    rate_milli: number(&mut fields)?,
                })
            }
            "FULL" => Ok(RoomAnswer::Full),
            "BANNED" => Ok(RoomAnswer::Banned(Refusal::banned(number(&mut fields)?))),
            "NOT_OPEN" => {
                let state = text(fields.next().unwrap_or(redis::Value::Nil))?;
                let state = SaleState::from_name(&state).ok_or_else(|| WAITING_ROOM.unknown(&state))?;
                Ok(RoomAnswer::NotOpen(state))
            }
            other => Err(WAITING_ROOM.unknown(other)),
        }
    }

    /// Notes that an admitted shopper has bought. Returns whether the shopper still counted as admitted. Fails with
    /// `Unavailable` when Redis does not answer, `Newer` when a newer version of the program has written the state of
    /// admission: then the shopper counts until the admission ends.
    pub async fn leave_room(&self, shard: ShardKey, member: &Member) -> Result<bool, Fault> {
        let mut call = LEAVE_ROOM.prepare_invoke();
        call.key(shard.admitted()).key(shard.door()).arg(&member.id);
        match self.status(&LEAVE_ROOM, &call).await?.as_str() {
            "LEFT" => Ok(true),
            "NOT_THERE" => Ok(false),
            other => Err(LEAVE_ROOM.unknown(other)),
        }
    }

    /// Reads the lines of a sale, in the order of its shards. The cost depends on the shards, and on the number of
    /// shoppers only by its logarithm. A node of a cluster that does not answer within `patience` counts as unavailable.
    pub async fn read_lines(&self, sale: &Sale, patience: Duration) -> Result<Vec<Line>, Fault> {
        let until = Instant::now() + patience;
        let shards = i64::from(sale.shards);
        let (head, steps) = ((HEADS / shards).max(1), (STEPS / shards).clamp(1, STEP_MAX));
        let lines = ShardKey::all(sale).map(|shard| self.soon(until, self.read_line(shard, head, steps)));
        try_join_all(lines).await
    }

    async fn read_line(&self, shard: ShardKey, head: i64, steps: i64) -> Result<Line, Fault> {
        let room = shard.room();
        let waiting: i64 = self.command(redis::cmd("ZCARD").arg(&room)).await?;
        // The last one, too: it ends the line.
        let behind = successors(Some(head), |rank| Some(rank + (rank / steps).max(1)));
        let behind = behind.take_while(|rank| *rank < waiting - 1).chain([waiting - 1]);
        let first_ones = [(0, head.min(waiting) - 1)].into_iter().filter(|_| waiting > 0);
        let ranges: Vec<(i64, i64)> = first_ones
            .chain(behind.filter(|rank| *rank >= head).map(|rank| (rank, rank)))
            .collect();
        let mut samples = Vec::new();
        if !ranges.is_empty() {
            let mut pipeline = redis::pipe();
            for (first, last) in &ranges {
                pipeline.cmd("ZRANGE").arg(&room).arg(first).arg(last).arg("WITHSCORES");
            }
            let read: Vec<Vec<(Vec<u8>, i64)>> = self.noted(self.link.ask_together(pipeline).await)?;
            for ((first, _), read) in ranges.into_iter().zip(read) {
                samples.extend((first..).zip(read.into_iter().map(|(_, place)| place)));
            }
        }
        Ok(Line { waiting, samples })
    }

    /// Counts the waiting and the admitted shoppers of a shard.
    pub async fn count_room(&self, shard: ShardKey) -> Result<RoomCount, Fault> {
        let count = |key| redis::cmd("ZCARD").arg(key).clone();
        Ok(RoomCount {
            waiting: self.command(&count(shard.room())).await?,
            admitted: self.command(&count(shard.admitted())).await?,
        })
    }
}
