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

use super::keys::ShardKey;
use super::script::{BARRIER, outcome, unknown};
use super::{CALL_MAX, CONNECT_MAX, Stock, fault};
use crate::bugs;
use crate::domain::fault::Fault;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

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

/// A reading that is to be answered once a replica has all that it saw.
struct Ask {
    shard: ShardKey,
    reading: Cmd,
    answer: oneshot::Sender<Result<Value, Fault>>,
}

/// Callers' side of the one task that waits for replicas. The task ends with the last of them, and connects when it
/// is first asked.
#[derive(Clone)]
pub(super) struct Replicas {
    asks: mpsc::Sender<Ask>,
    behind: Arc<AtomicBool>,
}

impl Replicas {
    /// Starts the task on the runtime of the caller. Without a server, as on a cluster, nobody is ever answered.
    pub(super) fn of(server: Option<Client>) -> Self {
        let (asks, asked) = mpsc::channel(WAITING_MAX);
        let behind = Arc::<AtomicBool>::default();
        if let Some(client) = server {
            let node = Node { client, link: None };
            tokio::spawn(answer_groups(node, asked, Arc::clone(&behind)));
        }
        Self { asks, behind }
    }
}

impl Stock {
    /// What a reading of this shard says, once a replica has everything that it saw.
    ///
    /// # Errors
    /// `Unavailable` when no replica confirms it in time: it may have it or not.
    pub(super) async fn replicated(&self, shard: ShardKey, reading: Cmd) -> Result<Value, Fault> {
        if self.replicas.behind.load(Ordering::Relaxed) {
            return Err(behind());
        }
        let (answer, answered) = oneshot::channel();
        let ask = Ask { shard, reading, answer };
        self.replicas
            .asks
            .try_send(ask)
            .map_err(|_| Fault::Unavailable("too many are waiting for a replica".to_owned()))?;
        match timeout(CALL_MAX, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::Unavailable("nobody waits for the replicas any more".to_owned())),
            Err(_) => Err(behind()),
        }
    }
}

fn behind() -> Fault {
    Fault::Unavailable("no replica confirms what Redis has accepted; the same key tells later".to_owned())
}

/// Answers readings in groups until nobody can ask any more.
async fn answer_groups(mut node: Node, mut asked: mpsc::Receiver<Ask>, behind_now: Arc<AtomicBool>) {
    let mut group = Vec::new();
    while asked.recv_many(&mut group, GROUP_MAX).await > 0 {
        let Some(shard) = group.first().map(|ask| ask.shard) else {
            continue;
        };
        match node.wait(shard, &group).await {
            Ok(answers) => {
                for (ask, answer) in group.drain(..).zip(answers) {
                    // Whoever asked may have given up.
                    let _gone = ask.answer.send(answer.map_err(|error| fault(&error)));
                }
            }
            Err(error) => {
                behind_now.store(true, Ordering::Relaxed);
                tracing::warn!(%error, "no replica confirms; what needs one has to wait");
                refuse(group.drain(..));
                while let Err(_still) = node.wait(shard, &[]).await {
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
        let _gone = ask.answer.send(Err(behind()));
    }
}

/// The connection for `WAIT`, and how to get another.
struct Node {
    client: Client,
    link: Option<MultiplexedConnection>,
}

impl Node {
    /// Does the readings, then waits for a replica to have what they saw.
    async fn wait(&mut self, shard: ShardKey, group: &[Ask]) -> Result<Vec<RedisResult<Value>>, Fault> {
        let answers = timeout(CALL_MAX, async {
            let was_linked = self.link.is_some();
            match self.attempt(shard, group).await {
                // An old connection may have been broken since it was last used.
                Err(_) if was_linked && self.link.is_none() => self.attempt(shard, group).await,
                answers => answers,
            }
        });
        answers.await.unwrap_or_else(|_| {
            // Its answers may still come, and would be taken for those of the next group.
            self.link = None;
            Err(Fault::Unavailable("Redis did not answer in time".to_owned()))
        })
    }

    async fn attempt(&mut self, shard: ShardKey, group: &[Ask]) -> Result<Vec<RedisResult<Value>>, Fault> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect().await.map_err(|error| fault(&error))?,
        };
        let mut barrier = BARRIER.prepare_invoke();
        barrier.key(shard.barrier()).arg(BARRIER_KEPT_MS);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for ask in group {
            pipeline.add_command(ask.reading.clone());
        }
        pipeline.invoke_script(&barrier);
        pipeline.cmd("WAIT").arg(REPLICAS_MIN).arg(WAIT_MS);
        let answers: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut link).await;
        let mut answers = answers.map_err(|error| fault(&error))?;
        let (reached, written) = (answers.pop(), answers.pop());
        match outcome(last(written)?)?.0.as_str() {
            "SET" => {}
            other => return Err(unknown("barrier", other)),
        }
        let reached = last(reached)?;
        self.link = Some(link);
        match reached {
            Value::Int(replicas) if replicas >= REPLICAS_MIN || bugs::has("a short WAIT is long enough") => Ok(answers),
            Value::Int(_) => Err(behind()),
            other => Err(Fault::Bug(format!("WAIT answered {other:?}"))),
        }
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

/// One of the answers at the end of a group's.
fn last(answer: Option<RedisResult<Value>>) -> Result<Value, Fault> {
    match answer {
        Some(answer) => answer.map_err(|error| fault(&error)),
        None => Err(Fault::Bug("Redis answered too little".to_owned())),
    }
}
