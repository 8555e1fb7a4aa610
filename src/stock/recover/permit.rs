//! Calls `lua/permit/permit.lua`, `lua/permit/stop.lua` and `lua/permit/barrier.lua`, and reads which server has a shard. A permit and a
//! halt expire by themselves, so a crash leaves neither behind for long.

use crate::bugs;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::order::event::Position;
use crate::domain::sale::Sale;
use crate::domain::time::Millis;
use crate::stock::keys::ShardKey;
use crate::stock::link::connect_once;
use crate::stock::read_together::{Reading, Wanted};
use crate::stock::record::{ShardRecord, decode_position};
use crate::stock::script::{BARRIER, GUARDED, PERMIT, STOP, number, outcome, text};
use crate::stock::{Stock, bounded, millis};
use futures_util::StreamExt;
use redis::cluster_routing::Slot;
use redis::{Cmd, Script, Value};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Shards asked at once: so many that a silent server does not delay the others.
const AT_ONCE: usize = 512;

/// How long a trial write is kept, in milliseconds.
const TRIED_MS: u64 = 60_000;

/// How long a halted shard gets no permit, while a process reconciles it or is about to rebuild it. That is longer than
/// the drain of its last events takes. After a crash, the shard stays halted for this long.
const HALT: Duration = Duration::from_secs(5);

/// A shard's answer to a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permitted {
    Yes {
        /// How many events wait for the ledger.
        waiting: i64,
        /// The last event that it wrote.
        last: Position,
        /// Whether they have waited too long, so that the shard sells nothing.
        brake: bool,
    },
    /// The shard has another epoch, or is on another server, than at its last reconcile.
    Not,
    /// A process reconciles the shard, or is about to rebuild it.
    Halted,
    /// The shard has no permit that could be renewed. Decisions since then may not have been delivered to it.
    Lapsed,
}

#[derive(Debug, Clone)]
pub struct Permit<'a> {
    /// The epoch that was reconciled.
    pub epoch: i64,
    /// The server on which the shard was reconciled.
    pub server: &'a Server,
    pub holds: Duration,
    /// Thousandths of the memory that Redis may use. From this use on, events may wait for only a 300th of `age_max`.
    pub memory_max: u16,
    /// How long events may wait for the ledger. While one waits longer, the shard sells nothing.
    pub age_max: Duration,
    /// Whether only a permit that still holds is extended. Otherwise the caller has just delivered to the shard what it
    /// must know.
    pub renewal: bool,
}

/// What is left of a shard's permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitLeft {
    pub epoch: i64,
    /// How long it still holds by its server's clock. On a server that was not admitted, no permit counts.
    pub left: Duration,
    /// Whether events have waited too long for the ledger, so that the shard sells nothing.
    pub brake: bool,
}

impl PermitLeft {
    fn of(reading: &Reading) -> Option<Self> {
        let [Some(shard)] = &reading.values[..] else {
            return None;
        };
        let shard = ShardRecord::decode(shard).ok()?;
        let left = if reading.is_admitted {
            shard.permit_until - reading.now
        } else {
            0
        };
        Some(Self {
            epoch: shard.epoch,
            left: Duration::from_millis(u64::try_from(left).unwrap_or_default()),
            brake: shard.brake,
        })
    }
}

/// What one server has: these slots of a cluster, or everything.
pub struct Beside(Option<HashSet<Slot>>);

impl Beside {
    pub fn has(&self, shard: ShardKey) -> bool {
        let slot = || Slot::for_key(shard.shard());
        self.0.as_ref().is_none_or(|slots| slots.contains(&slot()))
    }
}

impl Stock {
    /// [`Stock::server`] of each of these shards, in the same order. One server is asked once for all of them.
    pub async fn servers(&self, shards: &[ShardKey]) -> Vec<Result<Server, Fault>> {
        let asked = if self.link.is_cluster() { shards.len() } else { 1 };
        let answers = futures_util::stream::iter(shards.iter().take(asked).copied());
        let mut answers: Vec<_> = answers
            .map(|shard| self.server(shard))
            .buffered(AT_ONCE)
            .collect()
            .await;
        if let Some(last) = answers.last().cloned() {
            answers.resize(shards.len(), last);
        }
        answers
    }

    /// What the server of this shard has, by its own account.
    pub async fn beside(&self, shard: ShardKey) -> Result<Beside, Fault> {
        if !self.link.is_cluster() {
            return Ok(Beside(None));
        }
        let owners = self.link.owners(&shard.shard()).await?;
        let owner = owners.get(&Slot::for_key(shard.shard()));
        let beside = owners.iter().filter(|(_, place)| Some(*place) == owner);
        Ok(Beside(Some(beside.map(|(slot, _)| *slot).collect())))
    }

    /// Loads the scripts that sell and lend on the server of this shard, if it lacks them and is still `server`. The
    /// connection ends with its server, so a server that takes over meanwhile does not get the scripts. Fails with
    /// `Unavailable` also when another server has taken over.
    pub async fn admit(&self, shard: ShardKey, server: &Server) -> Result<(), Fault> {
        let mut exist = redis::cmd("SCRIPT");
        exist.arg("EXISTS");
        for (name, source) in GUARDED {
            exist.arg(Script::new(bugs::script(name, source).as_ref()).get_hash());
        }
        let exist: Vec<bool> = self.link.ask_server_of(&shard.shard(), &exist).await?;
        if exist.iter().all(|it| *it) {
            return Ok(());
        }
        let client = self.way.to(&self.link, shard).await?;
        let mut link = bounded(connect_once(&client)).await?;
        let info: String = bounded(info().query_async(&mut link)).await?;
        if server_of(&info)? != *server {
            return Err(Fault::Unavailable("another Redis server has taken over".to_owned()));
        }
        for (name, source) in GUARDED {
            let mut command = redis::cmd("SCRIPT");
            command.arg("LOAD").arg(bugs::script(name, source).as_ref());
            let _hash: String = bounded(command.query_async(&mut link)).await?;
        }
        Ok(())
    }

    /// Removes all scripts from the server that has this shard.
    pub async fn dismiss(&self, shard: ShardKey) -> Result<(), Fault> {
        let mut command = redis::cmd("SCRIPT");
        command.arg("FLUSH");
        self.link.ask_server_of(&shard.shard(), &command).await
    }

    /// Permits a shard to sell for a moment. `now` stands in for Redis's clock in tests.
    pub async fn permit(
        &self,
        sale: &Sale,
        shard: u16,
        permit: &Permit<'_>,
        now: Option<Millis>,
    ) -> Result<Permitted, Fault> {
        let shard = ShardKey::new(sale.id, shard);
        let mut call = PERMIT.prepare_invoke();
        call.key(shard.shard()).key(shard.events()).key(shard.halt());
        for item in &sale.items {
            call.key(shard.item(&item.sku));
        }
        call.arg(permit.epoch)
            .arg(millis(permit.holds))
            .arg(permit.memory_max)
            .arg(millis(permit.age_max))
            .arg(permit.server.as_str())
            .arg(u8::from(permit.renewal))
            .arg(now);
        let (status, mut fields) = self.answer(&PERMIT, &call).await?;
        match status.as_str() {
            "PERMITTED" => {
                let waiting = number(&mut fields)?;
                let last = decode_position(&text(fields.next().unwrap_or(Value::Nil))?);
                let last = last.ok_or_else(|| Fault::Bug("a stream does not say its last id".to_owned()))?;
                let brake = number(&mut fields)? == 1;
                Ok(Permitted::Yes { waiting, last, brake })
            }
            "STALE" | "MOVED" => Ok(Permitted::Not),
            "HALTED" => Ok(Permitted::Halted),
            "LAPSED" => Ok(Permitted::Lapsed),
            other => Err(PERMIT.unknown(other)),
        }
    }

    /// What is left of the permits of these shards, in the same order. One command reads all shards of a server. `None`
    /// for a shard whose server does not answer within `patience`, or whose record cannot be read.
    pub async fn permits_left(&self, shards: &[ShardKey], patience: Duration) -> Vec<Option<PermitLeft>> {
        let until = Instant::now() + patience;
        let wanted = shards.iter().map(|shard| Wanted {
            shard: *shard,
            keys: vec![shard.shard()],
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let mut left = vec![None; wanted.len()];
        let Ok(mut reads) = timeout_at(until, self.read_together(&wanted)).await else {
            return left;
        };
        while let Ok(Some(readings)) = timeout_at(until, reads.next()).await {
            for (at, reading) in readings {
                if let (Some(place), Ok(reading)) = (left.get_mut(at), reading) {
                    *place = PermitLeft::of(&reading);
                }
            }
        }
        left
    }

    /// Takes a shard's permit away. A missing shard has none. Fails with `Unavailable` when Redis does not answer: then
    /// the shard may sell until its permit ends.
    pub async fn stop(&self, shard: ShardKey) -> Result<(), Fault> {
        self.stop_for(shard, Duration::ZERO).await
    }

    /// Like [`Stock::stop`], and blocks new permits: until the shard's next generation begins, until [`Stock::resume`],
    /// or for some seconds. Other processes do not know that this one reconciles or rebuilds the shard. With a permit
    /// from them, the shard would write events that must be drained first.
    pub async fn halt(&self, shard: ShardKey) -> Result<(), Fault> {
        self.stop_for(shard, HALT).await
    }

    async fn stop_for(&self, shard: ShardKey, halt: Duration) -> Result<(), Fault> {
        let mut call = STOP.prepare_invoke();
        call.key(shard.shard()).key(shard.halt()).arg(millis(halt));
        match self.run(&STOP, &call).await {
            // The scripts do not sell from a record that they cannot read.
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => Ok(()),
            answer => match outcome(answer?)?.0.as_str() {
                "HALTED" => Ok(()),
                other => Err(STOP.unknown(other)),
            },
        }
    }

    /// Ends a halt of [`Stock::halt`]. Fails with `Unavailable` when Redis does not answer: then the halt ends by
    /// itself.
    pub async fn resume(&self, shard: ShardKey) -> Result<(), Fault> {
        self.command::<i64>(redis::cmd("DEL").arg(shard.halt())).await.map(drop)
    }

    /// Writes a meaningless key to the server that has this shard, also when the server has no memory left. The drain,
    /// which frees memory, waits until the server's shards are reconciled. Fails with `Unavailable` when the server
    /// does not answer, or takes no writes.
    pub async fn try_write(&self, shard: ShardKey) -> Result<(), Fault> {
        let mut call = BARRIER.prepare_invoke();
        call.key(shard.barrier()).arg(TRIED_MS);
        self.finish(&BARRIER, &call, &["SET"]).await
    }

    /// The server that has this shard. Its run id changes with every restart, and its replication id with every
    /// promotion.
    pub async fn server(&self, shard: ShardKey) -> Result<Server, Fault> {
        let answer: String = self.link.ask_server_of(&shard.shard(), &info()).await?;
        server_of(&answer)
    }
}

/// The command whose answer names the server.
pub(in crate::stock) fn info() -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg("server").arg("replication");
    command
}

/// The server that gave this answer to [`info`].
pub(in crate::stock) fn server_of(info: &str) -> Result<Server, Fault> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    match (field("run_id:"), field("master_replid:"), field("master_replid2:")) {
        (Some(run_id), Some(own), Some(before)) => Ok(Server::new(run_id, own, before)),
        _ => Err(Fault::Unavailable("Redis does not say which process it is".to_owned())),
    }
}
