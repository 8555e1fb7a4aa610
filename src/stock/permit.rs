//! Calls `lua/permit.lua`, `lua/stop.lua` and `lua/barrier.lua`, and asks which server this is.

use super::Stock;
use super::keys::ShardKey;
use super::record::decode_position;
use super::script::{BARRIER, PERMIT, STOP, number, outcome, text, unknown};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::sale::Sale;
use crate::domain::time::Millis;
use futures_util::StreamExt;
use redis::Value;
use redis::cluster_routing::Slot;
use std::collections::HashSet;
use std::time::Duration;

/// Shards asked at once: all, so that a server that says nothing holds up the others no longer than itself.
const AT_ONCE: usize = 512;

/// How long a trial write is kept, in milliseconds.
const TRIED_MS: u64 = 60_000;

/// How long nobody permits a shard to sell that is looked at or about to be written anew: longer than it takes to take in
/// what it has just written, and as long as it stands still after a crash.
const HALT: Duration = Duration::from_secs(5);

/// What a shard says to a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permitted {
    Yes {
        /// So many events wait for the ledger.
        waiting: i64,
        /// The last event that it wrote.
        last: Position,
        /// Whether that is too much, so that it sells nothing.
        brake: bool,
    },
    /// It is of another epoch, or on another server, than the one that was reconciled.
    Not,
    /// Somebody is about to write it anew.
    Halted,
    /// It has no permit that could be renewed: what was decided meanwhile, it may not have been told.
    Lapsed,
}

#[derive(Debug, Clone)]
pub struct Permit<'a> {
    /// The generation that was reconciled.
    pub epoch: i64,
    /// The server on which that was done.
    pub run_id: &'a str,
    pub holds: Duration,
    /// Thousandths of the memory that Redis may use. While it uses so much, events may wait for a 300th of `age_max`.
    pub memory_max: u16,
    /// For so long events may wait for the ledger; while one waits for longer, nothing is sold.
    pub age_max: Duration,
    /// Whether only a permit that holds may go on. Otherwise whoever asks has just told the shard what it must know.
    pub renewal: bool,
}

/// What is on one server: these slots of a cluster, or everything.
pub struct Beside(Option<HashSet<Slot>>);

impl Beside {
    #[must_use]
    pub fn has(&self, shard: ShardKey) -> bool {
        let slot = || Slot::for_key(shard.shard());
        self.0.as_ref().is_none_or(|slots| slots.contains(&slot()))
    }
}

impl Stock {
    /// [`Stock::run_id`] of each of these shards, in the same order. One server is asked once for all of them.
    pub async fn run_ids(&self, shards: &[ShardKey]) -> Vec<Result<String, Fault>> {
        let asked = if self.link.is_cluster() { shards.len() } else { 1 };
        let answers = futures_util::stream::iter(shards.iter().take(asked).copied());
        let mut answers: Vec<_> = answers
            .map(|shard| self.run_id(shard))
            .buffered(AT_ONCE)
            .collect()
            .await;
        if let Some(last) = answers.last().cloned() {
            answers.resize(shards.len(), last);
        }
        answers
    }

    /// What is on the server that has this shard, as it sees that itself.
    pub async fn beside(&self, shard: ShardKey) -> Result<Beside, Fault> {
        if !self.link.is_cluster() {
            return Ok(Beside(None));
        }
        let owners = self.link.owners(&shard.shard()).await?;
        let owner = owners.get(&Slot::for_key(shard.shard()));
        let beside = owners.iter().filter(|(_, place)| Some(*place) == owner);
        Ok(Beside(Some(beside.map(|(slot, _)| *slot).collect())))
    }

    /// Permits a shard to sell for a moment. `now` stands in for Redis's clock in tests.
    ///
    /// # Errors
    /// `Incomplete` when the shard is not all there.
    pub async fn permit(
        &self,
        sale: &Sale,
        shard: u16,
        permit: &Permit<'_>,
        now: Option<Millis>,
    ) -> Result<Permitted, Fault> {
        let shard = ShardKey { sale: sale.id, shard };
        let mut call = PERMIT.prepare_invoke();
        call.key(shard.shard()).key(shard.events()).key(shard.halt());
        for item in &sale.items {
            call.key(shard.item(&item.sku));
        }
        call.arg(permit.epoch)
            .arg(millis(permit.holds))
            .arg(permit.memory_max)
            .arg(millis(permit.age_max))
            .arg(permit.run_id)
            .arg(u8::from(permit.renewal));
        if let Some(now) = now {
            call.arg(now);
        }
        let (status, fields) = outcome(self.run(&PERMIT, &call).await?)?;
        match status.as_str() {
            "PERMITTED" => {
                let mut fields = fields.into_iter();
                let waiting = number(&mut fields)?;
                let last = decode_position(&text(fields.next().unwrap_or(Value::Nil))?);
                let last = last.ok_or_else(|| Fault::Bug("a stream does not say its last id".to_owned()))?;
                let brake = number(&mut fields)? == 1;
                Ok(Permitted::Yes { waiting, last, brake })
            }
            "STALE" | "MOVED" => Ok(Permitted::Not),
            "HALTED" => Ok(Permitted::Halted),
            "LAPSED" => Ok(Permitted::Lapsed),
            other => Err(unknown("permit", other)),
        }
    }

    /// Takes a shard's permit away; one that is not there has none.
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer: then it may sell until its permit ends.
    pub async fn stop(&self, shard: ShardKey) -> Result<(), Fault> {
        self.stop_for(shard, Duration::ZERO).await
    }

    /// [`Stock::stop`], after which nobody permits the shard to sell until it begins another life, [`Stock::resume`], or
    /// for some seconds: others do not know that it is looked at or about to be written anew, and would have it write
    /// events that must be taken in first.
    pub async fn halt(&self, shard: ShardKey) -> Result<(), Fault> {
        self.stop_for(shard, HALT).await
    }

    async fn stop_for(&self, shard: ShardKey, halt: Duration) -> Result<(), Fault> {
        let mut call = STOP.prepare_invoke();
        call.key(shard.shard()).key(shard.halt()).arg(millis(halt));
        match self.run(&STOP, &call).await {
            // What the scripts cannot read, they do not sell from.
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => Ok(()),
            answer => match outcome(answer?)?.0.as_str() {
                "STOPPED" => Ok(()),
                other => Err(unknown("stop", other)),
            },
        }
    }

    /// Ends a halt of [`Stock::halt`].
    ///
    /// # Errors
    /// `Unavailable` when Redis does not answer: then it ends by itself.
    pub async fn resume(&self, shard: ShardKey) -> Result<(), Fault> {
        let mut command = redis::cmd("DEL");
        command.arg(shard.halt());
        let _was_there: i64 = self.command(&command).await?;
        Ok(())
    }

    /// Writes something of no meaning to the server that has this shard, also when that has no memory left: the drain, which
    /// makes room, waits until its shards are reconciled.
    ///
    /// # Errors
    /// `Unavailable` when it does not answer, or takes no writes.
    pub async fn try_write(&self, shard: ShardKey) -> Result<(), Fault> {
        let mut call = BARRIER.prepare_invoke();
        call.key(shard.barrier()).arg(TRIED_MS);
        match outcome(self.run(&BARRIER, &call).await?)?.0.as_str() {
            "SET" => Ok(()),
            other => Err(unknown("barrier", other)),
        }
    }

    /// Which life of which process has this shard, by its run id and its replication id: another one after every
    /// restart and every promotion. Then comes the replication id that it had while it was a replica.
    pub async fn run_id(&self, shard: ShardKey) -> Result<String, Fault> {
        let mut command = redis::cmd("INFO");
        command.arg("server").arg("replication");
        let info: String = self.link.ask_server_of(&shard.shard(), &command).await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        match (field("run_id:"), field("master_replid:"), field("master_replid2:")) {
            (Some(run_id), Some(own), Some(before)) => Ok(format!("{run_id}-{own}-{before}")),
            _ => Err(Fault::Unavailable("Redis does not say which process it is".to_owned())),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
