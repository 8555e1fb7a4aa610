//! A Redis Cluster: one connection to each primary, and the map from slots to primaries. A command goes to the primary
//! that has the slot of its key.
//!
//! Nothing is shared between primaries, so a silent one costs the calls to its own slots and no others. The
//! cluster client of the `redis` crate does not guarantee this. Whenever it reads the slots again, all its calls wait
//! for the connections to all nodes, also to a silent one.
//!
//! The map is read again each second, and at once after a call that its node refused, or left unanswered for its whole
//! time limit.

mod view;

use super::server::ServerConnection;
use super::{CALL_MAX, CONNECT_MAX};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::{RwLock, RwLockReadGuard};
use rand::seq::SliceRandom as _;
use redis::cluster_routing::Slot;
use redis::{Arg, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
pub(super) use view::Place;
use view::{View, most};

/// How often a call is sent while a slot moves or a replica takes over. The pauses stay below a call's time limit.
const TRIES_MAX: u32 = 7;
/// The first and the longest pause between two of them.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(400);
/// How often the slots are read, and the shortest time between two readings.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_AGAIN: Duration = Duration::from_millis(50);
/// Primaries that are asked first.
const SAMPLE: usize = 3;
/// How long a primary may take to say who has which slots, and another node, which is connected to first.
const READ_MAX: Duration = Duration::from_millis(500);
const CONNECT_AND_READ_MAX: Duration = Duration::from_millis(2_500);

/// A node, and the connection to it.
pub(super) struct Node {
    place: Place,
    server: ServerConnection,
}

#[derive(Default)]
struct Map {
    view: View,
    owners: HashMap<Slot, Arc<Node>>,
    /// The primaries, and nodes that a redirect has named since.
    nodes: HashMap<Place, Arc<Node>>,
}

/// The node that answered a handle's last command with a key.
pub(super) type Last = Option<Arc<Node>>;

pub(super) struct Cluster {
    /// The nodes of the URL. After some failovers none of them may be left.
    named: Vec<ConnectionInfo>,
    map: RwLock<Map>,
    /// Asks for a reading of the slots.
    stale: Arc<Notify>,
    /// Wakes those who wait for the first reading.
    known: Notify,
}

/// What a caller sends.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
}

impl Request<'_> {
    /// The slot of the first key.
    fn slot(self) -> Option<Slot> {
        match self {
            Self::One(command) => slot_of(command),
            Self::Many(pipeline) => pipeline.cmd_iter().find_map(slot_of),
        }
    }

    async fn send(self, server: &ServerConnection) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(command) => Ok(vec![server.command(command).await?]),
            Self::Many(pipeline) => server.pipeline(pipeline).await,
        }
    }

    /// Sends to a node that is receiving the slot. Each command needs its own `ASKING`.
    async fn send_asking(self, server: &ServerConnection) -> RedisResult<Vec<Value>> {
        let mut pipeline = redis::pipe();
        let mut ask = |command: &Cmd| _ = pipeline.cmd("ASKING").add_command(command.clone());
        match self {
            Self::One(command) => ask(command),
            Self::Many(commands) => commands.cmd_iter().for_each(ask),
        }
        let answers = server.pipeline(&pipeline).await?;
        Ok(answers.into_iter().skip(1).step_by(2).collect())
    }
}

/// The slot of a command's key. It knows the commands that this module's neighbours send with a key.
fn slot_of(command: &Cmd) -> Option<Slot> {
    let mut arguments = command.args_iter().map(|it| match it {
        Arg::Simple(bytes) => bytes,
        _ => &[],
    });
    let key = match arguments.next()? {
        b"INFO" | b"SCAN" | b"SCRIPT" | b"TIME" => None,
        // After the script's hash and the number of keys.
        b"EVALSHA" => arguments.nth(2),
        b"XINFO" => arguments.nth(1),
        _ => arguments.next(),
    };
    key.map(Slot::for_key)
}

impl Cluster {
    /// The cluster that one of these nodes belongs to. Its slots are read in the background.
    pub(super) fn open(named: Vec<ConnectionInfo>) -> Arc<Self> {
        let cluster = Arc::new(Self {
            named,
            map: RwLock::default(),
            stale: Arc::default(),
            known: Notify::new(),
        });
        cluster.stale.notify_one();
        tokio::spawn(Self::keep_reading(Arc::downgrade(&cluster), Arc::clone(&cluster.stale)));
        cluster
    }

    /// Reads the slots for as long as somebody uses the cluster.
    async fn keep_reading(cluster: Weak<Self>, stale: Arc<Notify>) {
        loop {
            let _either = timeout(READ_EVERY, stale.notified()).await;
            let Some(cluster) = cluster.upgrade() else { return };
            // While no node answers, the last view stays.
            if let Err(error) = cluster.read().await {
                tracing::debug!(%error, "no node of the Redis Cluster says who has which slots");
            }
            drop(cluster);
            sleep(READ_AGAIN).await;
        }
    }

    /// Reads who has which slots. A few primaries are enough if most of them answer and all agree; then more than half of
    /// the primaries; then more than half of all nodes. If so many do not answer, the view with the most votes counts.
    pub(super) async fn read(&self) -> RedisResult<()> {
        let (mut primaries, replicas) = {
            let map = self.map();
            let owners: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
            let primaries = owners.into_iter().cloned().collect::<Vec<_>>();
            (primaries, map.view.replicas.iter().cloned().collect())
        };
        primaries.shuffle(&mut rand::rng());
        let rest = primaries.split_off(primaries.len().min(SAMPLE));
        let named: Vec<Place> = self.named.iter().filter_map(Place::of).collect();
        let (mut views, mut error, mut asked) = (Vec::new(), no_owner(), HashSet::new());
        for (round, places) in [primaries, rest, replicas, named].into_iter().enumerate() {
            let limit = if round < 2 { READ_MAX } else { CONNECT_AND_READ_MAX };
            let places: Vec<Place> = places.into_iter().filter(|place| asked.insert(place.clone())).collect();
            let mut answers: FuturesUnordered<_> = places
                .into_iter()
                .map(|place| async move {
                    let known = self.map().nodes.get(&place).cloned();
                    let node = known.map_or_else(|| self.node(&place), Ok)?;
                    ask_slots(&node, limit).await
                })
                .collect();
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(view) => views.push(view),
                    Err(refused) => error = refused,
                }
                let agree = most(&views).filter(|(_, votes)| round > 0 || *votes == views.len());
                if let Some((view, votes)) = agree
                    && votes * 2 > asked.len()
                {
                    return self.adopt(view.clone());
                }
            }
        }
        match most(&views) {
            Some((view, _)) => self.adopt(view.clone()),
            None => Err(error),
        }
    }

    fn adopt(&self, view: View) -> RedisResult<()> {
        if self.map().view == view {
            return Ok(());
        }
        let (mut owners, mut nodes) = (HashMap::new(), HashMap::<Place, Arc<Node>>::new());
        for (slot, place) in view.owners() {
            let node = match nodes.get(place) {
                Some(node) => Arc::clone(node),
                None => self.node_at(place)?,
            };
            owners.insert(slot, Arc::clone(&node));
            nodes.entry(place.clone()).or_insert(node);
        }
        *self.map.write() = Map { view, owners, nodes };
        self.known.notify_waiters();
        Ok(())
    }

    /// Waits until the slots have been read once.
    async fn wait_until_known(&self) {
        loop {
            let known = self.known.notified();
            if !self.map().owners.is_empty() {
                return;
            }
            known.await;
        }
    }

    fn node(&self, place: &Place) -> RedisResult<Arc<Node>> {
        let like = self.named.first().ok_or_else(no_owner)?;
        let server = ServerConnection::new(place.client(like)?)?;
        let place = place.clone();
        Ok(Arc::new(Node { place, server }))
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        // The map is replaced in one step, so it is consistent also after a panic.
        self.map.read()
    }

    /// The node at this place, as a redirect or a view names it.
    fn node_at(&self, place: &Place) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.map().nodes.get(place) {
            return Ok(Arc::clone(node));
        }
        let node = self.node(place)?;
        let mut map = self.map.write();
        Ok(Arc::clone(map.nodes.entry(place.clone()).or_insert(node)))
    }

    /// A connection to each primary.
    pub(super) async fn primaries(&self) -> Vec<ServerConnection> {
        self.wait_until_known().await;
        let map = self.map();
        let places: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
        let nodes = places.into_iter().filter_map(|place| map.nodes.get(place));
        nodes.map(|node| node.server.clone()).collect()
    }

    /// Which primary has which slot, according to the primary of this one.
    pub(super) async fn owners(&self, slot: Slot) -> RedisResult<HashMap<Slot, Place>> {
        self.wait_until_known().await;
        let node = self.map().owners.get(&slot).cloned().ok_or_else(no_owner)?;
        let view = ask_slots(&node, CALL_MAX).await?;
        Ok(view.owners().map(|(slot, place)| (slot, place.clone())).collect())
    }

    /// The places of these slots in the list, by the node that has them as far as is known.
    pub(super) async fn groups(&self, slots: &[Slot]) -> Vec<Vec<usize>> {
        self.wait_until_known().await;
        let map = self.map();
        let mut groups: HashMap<Option<&Place>, Vec<usize>> = HashMap::new();
        for (at, slot) in slots.iter().enumerate() {
            let place = map.owners.get(slot).map(|node| &node.place);
            groups.entry(place).or_default().push(at);
        }
        groups.into_values().collect()
    }

    /// Sends to the primary that has the slot as far as is known, and follows no slot that has moved.
    pub(super) async fn ask_once(&self, slot: Slot, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        let node = self.map().owners.get(&slot).cloned().ok_or_else(no_owner)?;
        let answer = node.server.pipeline(pipeline).await;
        if refusal(&answer).is_some() {
            self.stale.notify_one();
        }
        answer
    }

    /// Sends to the primary that has the slot of the request's key, and follows the slot while it moves. A request
    /// without a key goes to the node in `last`, which answered the last one with a key. After a fault it is unknown
    /// whether the request has run.
    pub(super) async fn send(&self, request: Request<'_>, last: &mut Last) -> RedisResult<Vec<Value>> {
        let Some(slot) = request.slot() else {
            return match last {
                Some(node) => request.send(&node.server).await,
                None => Err((ErrorKind::Client, "a command without a key has no node").into()),
            };
        };
        self.wait_until_known().await;
        let (mut answer, mut pause, mut redirects) = (Err(no_owner()), AGAIN, 0);
        let mut redirect: Option<(Place, bool)> = None;
        for tries_left in (0..TRIES_MAX).rev() {
            let node = match &redirect {
                Some((place, _)) => Some(self.node_at(place)?),
                None => self.map().owners.get(&slot).cloned(),
            };
            let is_asking = matches!(redirect.take(), Some((_, true)));
            let began = Instant::now();
            if let Some(node) = node {
                answer = if is_asking {
                    request.send_asking(&node.server).await
                } else {
                    request.send(&node.server).await
                };
                let Some(error) = refusal(&answer) else {
                    *last = Some(node);
                    return answer;
                };
                self.stale.notify_one();
                // A connection that could not be made in time is no call that went unanswered: nothing was sent.
                if error.is_timeout() && began.elapsed() >= CONNECT_MAX {
                    return answer;
                }
                let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
                let elsewhere = error.redirect_node().and_then(|(to, _)| Place::parse(to, &node.place));
                redirect = elsewhere.map(|place| (place, is_asking));
            }
            self.stale.notify_one();
            if tries_left == 0 {
                break;
            }
            redirects += u32::from(redirect.is_some());
            // Two nodes may name each other for a moment.
            if redirect.is_none() || redirects > 1 {
                sleep(pause).await;
                pause = (pause * 2).min(AGAIN_MAX);
            }
        }
        answer
    }
}

fn no_owner() -> RedisError {
    (
        ErrorKind::Server(ServerErrorKind::ClusterDown),
        "no node of the cluster has this slot",
    )
        .into()
}

/// Asks a node who has which slots.
async fn ask_slots(node: &Node, max: Duration) -> RedisResult<View> {
    let answer = timeout(max, node.server.query(redis::cmd("CLUSTER").arg("SLOTS"))).await;
    let silent = |_elapsed| Err((ErrorKind::Io, "a node of the cluster does not answer").into());
    View::decode(answer.unwrap_or_else(silent)?, &node.place)
}

/// Why a node did not take a request, if another node or another moment may.
fn refusal(answer: &RedisResult<Vec<Value>>) -> Option<RedisError> {
    let may_pass = |error: &RedisError| match error.kind() {
        ErrorKind::Io => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        ),
        _ => false,
    };
    match answer {
        Err(error) => Some(error.clone()).filter(may_pass),
        Ok(answers) => answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) => Some(RedisError::from(error.clone())).filter(may_pass),
            _ => None,
        }),
    }
}
