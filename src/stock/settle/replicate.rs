//! Waits with `WAIT` until a replica has what a caller has read, for many callers at once.
//!
//! `WAIT` covers the writes of its own connection and blocks that connection, so it has one to itself. A barrier
//! (`lua/permit/barrier.lua`) is written on it before each `WAIT`. Replicas get every earlier write of this node, from any
//! client, before the barrier. A caller's reading goes ahead of the barrier, and is answered once a replica has
//! everything that the reading saw. The reading must use the same connection: after a failover, a `WAIT` on the new
//! primary says nothing about what the old one accepted.
//!
//! Callers that come during a `WAIT` share the next one. When a `WAIT` falls short, all callers are refused at once,
//! without waiting, until another `WAIT` succeeds.
//!
//! On a cluster, each primary has such a connection, and a reading goes to the primary of its slot. While its caller
//! waits, the reading follows the slot when it moves or a replica takes over.

use crate::bugs;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::stock::cluster::Place;
use crate::stock::keys::ShardKey;
use crate::stock::link::{Link, Way, connect_once};
use crate::stock::recover::permit::{info, server_of};
use crate::stock::script::{BARRIER, outcome};
use crate::stock::{CALL_MAX, Stock, fault};
use parking_lot::{Mutex, MutexGuard};
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{Client, Cmd, ConnectionInfo, RedisError, RedisResult, Value, from_redis_value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// The pause between two attempts while no replica confirms.
const AFTER_FAULT: Duration = Duration::from_millis(100);
/// The shortest time between two questions to a cluster about its slots, and the pause before a moving slot is asked
/// again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Why a reading has no answer.
enum No {
    /// The server that was asked does not have the slot, or not all of it.
    Elsewhere,
    Fault(Fault),
}

/// What a reading saw, and a replica has.
#[derive(Clone)]
pub(in crate::stock) struct Replicated {
    pub(in crate::stock) value: Value,
    /// The server that was read.
    pub(in crate::stock) from: Server,
}

/// A reading that is to be answered once a replica has all that it saw.
struct Ask {
    shard: ShardKey,
    reading: Cmd,
    answer: oneshot::Sender<Result<Replicated, No>>,
}

/// The primaries whose replicas are waited for.
#[derive(Clone)]
pub(in crate::stock) enum Replicas {
    One(Primary),
    /// Many primaries, each with a part of the slots.
    Cluster(Arc<Primaries>),
}

impl Replicas {
    /// Starts the task for one server, on the runtime of the caller. A cluster's tasks start when they are needed.
    pub(in crate::stock) fn by(way: Way) -> Self {
        match way {
            Way::One(client) => Self::One(Primary::of(client, Slots::All)),
            Way::Cluster(info) => Self::Cluster(Arc::new(Primaries {
                info,
                known: Mutex::default(),
                asked: tokio::sync::Mutex::default(),
            })),
        }
    }
}

impl Stock {
    /// Runs a reading of this shard, and answers once a replica has everything that the reading saw. Fails with
    /// `Unavailable` when no replica confirms in time; a replica may have it all the same.
    pub(in crate::stock) async fn replicated(&self, shard: ShardKey, reading: Cmd) -> Result<Replicated, Fault> {
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
    Fault::Unavailable("no replica confirms what Redis has accepted; repeat with the same key".to_owned())
}

/// The primaries of a cluster.
pub(in crate::stock) struct Primaries {
    /// How to connect to a primary, without its address.
    info: ConnectionInfo,
    known: Mutex<Known>,
    /// When the cluster was last asked for its slots. The lock lets one task ask at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

/// Which primary has which slot.
#[derive(Default)]
struct Known {
    owners: HashMap<Slot, Place>,
    primaries: HashMap<Place, Primary>,
}

impl Primaries {
    async fn ask(&self, link: &Link, shard: ShardKey, reading: &Cmd) -> Result<Replicated, Fault> {
        loop {
            let primary = match self.of(shard) {
                Some(primary) => primary,
                None => {
                    self.find(link, shard).await?;
                    let primary = self.of(shard);
                    primary.ok_or_else(|| Fault::Unavailable("no node of the cluster has this shard".to_owned()))?
                }
            };
            let no = match primary.ask(shard, reading.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(no) => no,
            };
            let found = self.find(link, shard).await;
            match no {
                No::Elsewhere => tokio::time::sleep(ASK_AGAIN).await,
                // Another primary has taken over.
                No::Fault(_) if found.is_ok() && self.of(shard).is_some_and(|now| !now.is(&primary)) => {}
                No::Fault(fault) => return Err(fault),
            }
        }
    }

    fn of(&self, shard: ShardKey) -> Option<Primary> {
        let known = self.known();
        let place = known.owners.get(&Slot::for_key(shard.shard()))?;
        known.primaries.get(place).cloned()
    }

    /// Asks the cluster where the slots are, unless that was just done.
    async fn find(&self, link: &Link, shard: ShardKey) -> Result<(), Fault> {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return Ok(());
        }
        let owners = link.owners(&shard.shard()).await?;
        *asked = Some(Instant::now());
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
        // The value is replaced in one step, so it is consistent also after a panic.
        self.known.lock()
    }
}

/// The callers' side of the one task that waits for a server's replicas. The task connects at the first reading, and
/// ends when the last handle is dropped.
#[derive(Clone)]
pub(in crate::stock) struct Primary {
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

    async fn ask(&self, shard: ShardKey, reading: Cmd) -> Result<Replicated, No> {
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

/// Answers readings in groups until the last handle is dropped.
async fn answer_groups(mut node: Node, mut asked: mpsc::Receiver<Ask>, behind_now: Arc<AtomicBool>) {
    let mut group = Vec::new();
    while asked.recv_many(&mut group, GROUP_MAX).await > 0 {
        let shards: HashSet<ShardKey> = group.iter().map(|ask| ask.shard).collect();
        match node.wait(&shards, &group).await {
            Ok(answers) => {
                for (ask, answer) in group.drain(..).zip(answers) {
                    // The caller may have given up.
                    let _gone = ask.answer.send(answer);
                }
            }
            Err(error) => {
                behind_now.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "no replica confirms; callers that need one are refused");
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

/// The slots of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slots {
    /// Every slot, so that a barrier may have any key.
    All,
    /// Those of a node of a cluster; other nodes may take them over.
    Some,
}

/// The connection for `WAIT`, and how to reconnect.
struct Node {
    client: Client,
    slots: Slots,
    link: Option<MultiplexedConnection>,
}

impl Node {
    /// Runs the readings of these shards, then waits until a replica has what they saw. After a fault, it is unknown
    /// whether a replica has it.
    async fn wait(&mut self, shards: &HashSet<ShardKey>, group: &[Ask]) -> Result<Vec<Result<Replicated, No>>, Fault> {
        let answers = timeout(CALL_MAX, async {
            let was_linked = self.link.is_some();
            match self.attempt(shards, group).await {
                // An old connection may have broken since its last use.
                Err(_) if was_linked && self.link.is_none() => self.attempt(shards, group).await,
                answers => answers,
            }
        });
        answers.await.unwrap_or_else(|_| {
            // Late answers on this connection would be taken for those of the next group.
            self.link = None;
            Err(Fault::Unavailable("Redis did not answer in time".to_owned()))
        })
    }

    async fn attempt(
        &mut self,
        shards: &HashSet<ShardKey>,
        group: &[Ask],
    ) -> Result<Vec<Result<Replicated, No>>, Fault> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect().await.map_err(|error| fault(&error))?,
        };
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for ask in group {
            pipeline.add_command(ask.reading.clone());
        }
        pipeline.add_command(info());
        // On a cluster one barrier for each shard, so that a slot that has moved away does not spoil the others'
        // barriers.
        let barriers = if self.slots == Slots::All { 1 } else { shards.len() };
        for shard in shards.iter().take(barriers) {
            let mut barrier = BARRIER.prepare_invoke();
            barrier.key(shard.barrier()).arg(BARRIER_KEPT_MS);
            pipeline.invoke_script(&barrier);
        }
        pipeline.cmd("WAIT").arg(REPLICAS_MIN).arg(WAIT_MS);
        let answers: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut link).await;
        let mut answers = answers.map_err(|error| fault(&error))?;
        if answers.len() != group.len() + barriers + 2 {
            return Err(Fault::Bug("Redis sent too few answers".to_owned()));
        }
        let reached = answers.pop();
        let written = answers.split_off(group.len() + 1);
        let named = answers.pop().unwrap_or(Ok(Value::Nil)).map_err(|error| fault(&error))?;
        let named: String = from_redis_value(named).map_err(|error| Fault::Bug(format!("INFO answered {error}")))?;
        let from = server_of(&named)?;
        let mut here = HashSet::new();
        for (shard, written) in shards.iter().zip(written) {
            match written {
                Err(error) if is_elsewhere(&error) => continue,
                written => match outcome(written.map_err(|error| fault(&error))?)?.0.as_str() {
                    "SET" if self.slots == Slots::All => here.clone_from(shards),
                    "SET" => {
                        here.insert(*shard);
                    }
                    other => return Err(BARRIER.unknown(other)),
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
            Ok(value) if here.contains(&ask.shard) => {
                let from = from.clone();
                Ok(Replicated { value, from })
            }
            Ok(_) => Err(No::Elsewhere),
            Err(error) if is_elsewhere(&error) => Err(No::Elsewhere),
            Err(error) => Err(No::Fault(fault(&error))),
        });
        Ok(answers.collect())
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut link = connect_once(&self.client).await?;
        BARRIER.load_async(&mut link).await?;
        Ok(link)
    }
}

/// Whether a node of a cluster says that another node has the key.
fn is_elsewhere(error: &RedisError) -> bool {
    error.redirect_node().is_some()
}
