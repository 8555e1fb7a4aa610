//! What a replica has, by `WAIT`, for many callers at once.
//!
//! `WAIT` covers the writes of its own connection and blocks it. So there is a connection for nothing else, and on it
//! a barrier (`lua/barrier.lua`) is written before each `WAIT`: what this node wrote earlier, whoever asked for it,
//! lies before the barrier on the way to the replicas. Callers bring a reading, which goes ahead of the barrier; it
//! is answered only once a replica has everything that it saw. That the reading goes over the same connection
//! matters: after a failover, a `WAIT` on the new primary says nothing of what the old one had accepted.
//!
//! Whoever comes while one `WAIT` is under way shares the next. When one comes short, everybody is told so at once,
//! without waiting, until another has come through.
//!
//! On a cluster, each primary has such a connection, and a reading goes to the one that has its slot. It follows the
//! slot, when that moves or a replica takes over, for as long as its caller waits.

use super::keys::ShardKey;
use super::link::{Link, Place, Way};
use super::script::{BARRIER, outcome, unknown};
use super::{CALL_MAX, CONNECT_MAX, Stock, fault};
use crate::bugs;
use crate::domain::fault::Fault;
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Replicas that must have a write.
const REPLICAS_MIN: i64 = 1;
/// How long one `WAIT` blocks, in milliseconds. The API answers within two seconds.
const WAIT_MS: u64 = 1000;
/// Readings that share one `WAIT`.
const GROUP_MAX: usize = 1024;
/// Readings that may be waiting for their turn.
const WAITING_MAX: usize = 8192;
/// How long a barrier's key is kept, in milliseconds.
const BARRIER_KEPT_MS: u64 = 60_000;
/// The pause between two tries while no replica confirms.
const AFTER_FAULT: Duration = Duration::from_millis(100);
/// How often a cluster is asked at the most where its slots are, and the pause until a slot that moves is asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a reading has no answer.
enum No {
    /// The slot is not, or not wholly, where it was looked for.
    Elsewhere,
    Fault(Fault),
}

/// A reading that is to be answered once a replica has all that it saw.
struct Ask {
    shard: ShardKey,
    reading: Cmd,
    answer: oneshot::Sender<Result<Value, No>>,
}

/// Whom to ask what a replica has.
#[derive(Clone)]
pub(super) enum Replicas {
    One(Primary),
    /// Many have a part each.
    Cluster(Arc<Primaries>),
}

impl Replicas {
    /// Starts what is needed, on the runtime of the caller.
    pub(super) fn by(way: Way) -> Self {
        match way {
            Way::One(client) => Self::One(Primary::of(client, Slots::All)),
            Way::Cluster(info) => Self::Cluster(Arc::new(Primaries {
                info,
                known: Mutex::default(),
                looked: tokio::sync::Mutex::default(),
            })),
        }
    }
}

impl Stock {
    /// What a reading of this shard says, once a replica has everything that it saw.
    ///
    /// # Errors
    /// `Unavailable` when no replica confirms it in time: it may have it or not.
    pub(super) async fn replicated(&self, shard: ShardKey, reading: Cmd) -> Result<Value, Fault> {
        let answer = async {
            match &self.replicas {
                Replicas::One(primary) => primary.ask(shard, reading).await.map_err(|no| match no {
                    No::Elsewhere => Fault::Unavailable("this Redis is part of a cluster".to_owned()),
                    No::Fault(fault) => fault,
                }),
                Replicas::Cluster(primaries) => primaries.ask(&self.link, shard, &reading).await,
            }
        };
        timeout(CALL_MAX, answer).await.unwrap_or_else(|_| Err(behind()))
    }
}

fn behind() -> Fault {
    Fault::Unavailable("no replica confirms what Redis has accepted; the same key tells later".to_owned())
}

/// The primaries of a cluster.
pub(super) struct Primaries {
    /// How to connect to one, but for its address.
    info: ConnectionInfo,
    known: Mutex<Known>,
    /// One asks at a time where the slots are; when that was last done.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

/// Which of them has which slot.
#[derive(Default)]
struct Known {
    owners: HashMap<Slot, Place>,
    primaries: HashMap<Place, Primary>,
}

impl Primaries {
    async fn ask(&self, link: &Link, shard: ShardKey, reading: &Cmd) -> Result<Value, Fault> {
        loop {
            let primary = match self.of(shard) {
                Some(primary) => primary,
                None => {
                    self.look(link, shard).await?;
                    let primary = self.of(shard);
                    primary.ok_or_else(|| Fault::Unavailable("no node of the cluster has this shard".to_owned()))?
                }
            };
            let no = match primary.ask(shard, reading.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(no) => no,
            };
            let looked = self.look(link, shard).await;
            match no {
                No::Elsewhere => tokio::time::sleep(LOOK_AGAIN).await,
                // Another one has taken over.
                No::Fault(_) if looked.is_ok() && self.of(shard).is_some_and(|now| !now.is(&primary)) => {}
                No::Fault(fault) => return Err(fault),
            }
        }
    }

    fn of(&self, shard: ShardKey) -> Option<Primary> {
        let known = self.known();
        let place = known.owners.get(&Slot::for_key(shard.shard()))?;
        known.primaries.get(place).cloned()
    }

    /// Finds out where the slots are, unless that has just been done. Whoever asks has just used the shard, so the
    /// link knows its server.
    async fn look(&self, link: &Link, shard: ShardKey) -> Result<(), Fault> {
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return Ok(());
        }
        let owners = link.owners(&shard.shard()).await?;
        *looked = Some(Instant::now());
        let mut known = self.known();
        let mut primaries = HashMap::new();
        for place in owners.values().collect::<HashSet<_>>() {
            let primary = match known.primaries.remove(place) {
                Some(primary) => primary,
                None => {
                    let client = place.client(&self.info).map_err(|error| fault(&error))?;
                    Primary::of(client, Slots::Some)
                }
            };
            primaries.insert(place.clone(), primary);
        }
        *known = Known { owners, primaries };
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // It is replaced as a whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Callers' side of the one task that waits for the replicas of a server. The task ends with the last of them, and
/// connects when it is first asked.
#[derive(Clone)]
pub(super) struct Primary {
    asks: mpsc::Sender<Ask>,
    behind: Arc<AtomicBool>,
}

impl Primary {
    fn of(client: Client, slots: Slots) -> Self {
        let (asks, asked) = mpsc::channel(WAITING_MAX);
        let behind = Arc::<AtomicBool>::default();
        let node = Node {
            client,
            slots,
            link: None,
        };
        tokio::spawn(answer_groups(node, asked, Arc::clone(&behind)));
        Self { asks, behind }
    }

    fn is(&self, other: &Self) -> bool {
        self.asks.same_channel(&other.asks)
    }

    async fn ask(&self, shard: ShardKey, reading: Cmd) -> Result<Value, No> {
        if self.behind.load(Ordering::Relaxed) {
            return Err(No::Fault(behind()));
        }
        let (answer, answered) = oneshot::channel();
        let ask = Ask { shard, reading, answer };
        let unavailable = |reason: &str| No::Fault(Fault::Unavailable(reason.to_owned()));
        self.asks
            .try_send(ask)
            .map_err(|_| unavailable("too many are waiting for a replica"))?;
        answered
            .await
            .unwrap_or_else(|_| Err(unavailable("nobody waits for the replicas any more")))
    }
}

/// Answers readings in groups until nobody can ask any more.
async fn answer_groups(mut node: Node, mut asked: mpsc::Receiver<Ask>, behind_now: Arc<AtomicBool>) {
    let mut group = Vec::new();
    while asked.recv_many(&mut group, GROUP_MAX).await > 0 {
        let shards: HashSet<ShardKey> = group.iter().map(|ask| ask.shard).collect();
        match node.wait(&shards, &group).await {
            Ok(answers) => {
                for (ask, answer) in group.drain(..).zip(answers) {
                    // Whoever asked may have given up.
                    let _gone = ask.answer.send(answer);
                }
            }
            Err(error) => {
                behind_now.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "no replica confirms; what needs one has to wait");
                refuse(group.drain(..));
                while let Err(_still) = node.wait(&shards, &[]).await {
                    refuse(std::iter::from_fn(|| asked.try_recv().ok()));
                    if asked.is_closed() {
                        return;
                    }
                    tokio::time::sleep(AFTER_FAULT).await;
                }
                tracing::info!("a replica confirms again");
                behind_now.store(false, Ordering::Relaxed);
            }
        }
    }
}

fn refuse(asks: impl Iterator<Item = Ask>) {
    for ask in asks {
        let _gone = ask.answer.send(Err(No::Fault(behind())));
    }
}

/// Which slots a server has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slots {
    /// Every one, so that it can be written to anywhere.
    All,
    /// Those of a node of a cluster, which others may take over.
    Some,
}

/// The connection for `WAIT`, and how to get another.
struct Node {
    client: Client,
    slots: Slots,
    link: Option<MultiplexedConnection>,
}

impl Node {
    /// Does the readings of these shards, then waits for a replica to have what they saw. The fault says that it is
    /// not known whether one does.
    async fn wait(&mut self, shards: &HashSet<ShardKey>, group: &[Ask]) -> Result<Vec<Result<Value, No>>, Fault> {
        let answers = timeout(CALL_MAX, async {
            let was_linked = self.link.is_some();
            match self.attempt(shards, group).await {
                // An old connection may have been broken since it was last used.
                Err(_) if was_linked && self.link.is_none() => self.attempt(shards, group).await,
                answers => answers,
            }
        });
        answers.await.unwrap_or_else(|_| {
            // Its answers may still come, and would be taken for those of the next group.
            self.link = None;
            Err(Fault::Unavailable("Redis did not answer in time".to_owned()))
        })
    }

    async fn attempt(&mut self, shards: &HashSet<ShardKey>, group: &[Ask]) -> Result<Vec<Result<Value, No>>, Fault> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect().await.map_err(|error| fault(&error))?,
        };
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for ask in group {
            pipeline.add_command(ask.reading.clone());
        }
        // On a cluster one for each shard, so that one whose slot has moved away leaves the others theirs.
        let barriers = if self.slots == Slots::All { 1 } else { shards.len() };
        for shard in shards.iter().take(barriers) {
            let mut barrier = BARRIER.prepare_invoke();
            barrier.key(shard.barrier()).arg(BARRIER_KEPT_MS);
            pipeline.invoke_script(&barrier);
        }
        pipeline.cmd("WAIT").arg(REPLICAS_MIN).arg(WAIT_MS);
        let answers: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut link).await;
        let mut answers = answers.map_err(|error| fault(&error))?;
        if answers.len() != group.len() + barriers + 1 {
            return Err(Fault::Bug("Redis answered too little".to_owned()));
        }
        let reached = answers.pop();
        let mut here = HashSet::new();
        for (shard, written) in shards.iter().zip(answers.split_off(group.len())) {
            match written {
                Err(error) if is_elsewhere(&error) => continue,
                written => match outcome(written.map_err(|error| fault(&error))?)?.0.as_str() {
                    "SET" if self.slots == Slots::All => here.clone_from(shards),
                    "SET" => {
                        here.insert(*shard);
                    }
                    other => return Err(unknown("barrier", other)),
                },
            };
        }
        self.link = Some(link);
        match reached {
            _ if here.is_empty() => {}
            Some(Ok(Value::Int(replicas))) if replicas >= REPLICAS_MIN || bugs::has("a short WAIT is long enough") => {}
            Some(Ok(Value::Int(_))) => return Err(behind()),
            Some(Err(error)) => return Err(fault(&error)),
            other => return Err(Fault::Bug(format!("WAIT answered {other:?}"))),
        }
        let answers = group.iter().zip(answers).map(|(ask, answer)| match answer {
            Ok(value) if here.contains(&ask.shard) => Ok(value),
            Ok(_) => Err(No::Elsewhere),
            Err(error) if is_elsewhere(&error) => Err(No::Elsewhere),
            Err(error) => Err(No::Fault(fault(&error))),
        });
        Ok(answers.collect())
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(CALL_MAX));
        let mut link = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        BARRIER.load_async(&mut link).await?;
        Ok(link)
    }
}

/// Whether a node of a cluster says that another one has the key.
fn is_elsewhere(error: &RedisError) -> bool {
    error.redirect_node().is_some()
}
