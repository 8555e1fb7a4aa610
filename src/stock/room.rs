//! The waiting room of a shard: `lua/waiting_room.lua` and `lua/leave_room.lua`.

use super::Stock;
use super::keys::ShardKey;
use super::script::{LEAVE_ROOM, WAITING_ROOM, number, outcome, text, unknown};
use crate::domain::fault::Fault;
use crate::domain::ids::UserId;
use crate::domain::sale::SaleState;
use crate::domain::time::Millis;
use crate::domain::waiting_room::{Member, Place, RoomCount};

/// What a shopper's place is asked for with.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub member: Member,
    /// Shoppers a second that this shard lets in, above 0.
    pub rate: f64,
    /// How long an admission lasts.
    pub stay_ms: Millis,
    /// Units that are free for this shard's shoppers.
    pub free: f64,
    /// How many may wait here.
    pub room_max: u32,
    /// What the shopper's ticket says.
    pub place: Option<Place>,
    /// Stands in for Redis's clock in tests.
    pub now: Option<Millis>,
}

/// How a shopper stands on his shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomAnswer {
    Admitted {
        until: Millis,
    },
    Waiting {
        place: Place,
        /// How many come before him here.
        ahead: i64,
        waiting: i64,
        /// How many were let in lately, in thousandths of a shopper a second.
        rate_milli: i64,
    },
    /// As many wait as may.
    Full,
    Banned,
    /// There is nothing to wait for.
    NotOpen(SaleState),
}

impl Stock {
    /// Gives a shopper a place on his home shard, or tells how he stands there.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer: asking again finds the same place. `Incomplete` when the shard is not there.
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
        if let Some(now) = waiting.now {
            call.arg(now);
        }
        let (status, fields) = outcome(self.run(&WAITING_ROOM, &call).await?)?;
        let mut fields = fields.into_iter();
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
            "BANNED" => Ok(RoomAnswer::Banned),
            "NOT_OPEN" => {
                let state = text(fields.next().unwrap_or(redis::Value::Nil))?;
                let state = SaleState::from_name(&state).ok_or_else(|| unknown("waiting_room", &state))?;
                Ok(RoomAnswer::NotOpen(state))
            }
            other => Err(unknown("waiting_room", other)),
        }
    }

    /// Notes that an admitted shopper has bought; says whether he still counted as admitted.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer: then he counts until his admission ends.
    pub async fn leave_room(&self, shard: ShardKey, member: &Member) -> Result<bool, Fault> {
        let mut call = LEAVE_ROOM.prepare_invoke();
        call.key(shard.admitted()).key(shard.door()).arg(&member.id);
        match outcome(self.run(&LEAVE_ROOM, &call).await?)?.0.as_str() {
            "LEFT" => Ok(true),
            "NOT_THERE" => Ok(false),
            other => Err(unknown("leave_room", other)),
        }
    }

    /// Counts who is in a shard's waiting room.
    pub async fn count_room(&self, shard: ShardKey) -> Result<RoomCount, Fault> {
        let count = |key| redis::cmd("ZCARD").arg(key).clone();
        Ok(RoomCount {
            waiting: self.command(&count(shard.room())).await?,
            admitted: self.command(&count(shard.admitted())).await?,
        })
    }
}
