//! The connection to a Redis Cluster: one connection to each primary, and the map from slots to primaries. A command
//! goes to the primary that has the slot of its key.
//!
//! Nothing is shared between primaries, so a silent one costs the calls to its own slots and no others. That is why
//! this is not the cluster client of the `redis` crate: whenever that one reads the slots again, all its calls wait for
//! the connections to all nodes, also to a silent one.
//!
//! The map is read again each second, and at once after a call that its node refused or did not answer.

use super::link::manager_config;
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::cluster_routing::Slot;
use redis::{
    Arg, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How often a call is sent while a slot moves or a replica takes over. The call's time limit ends it sooner.
const TRIES_MAX: u32 = 8;
/// The first and the longest pause between two of them.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(400);
/// How often the slots are read, and the shortest time between two readings.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_AGAIN: Duration = Duration::from_millis(50);
/// How long a node may take to say who has which slots.
const READ_MAX: Duration = Duration::from_millis(400);

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// A client of this node, with the TLS settings and certificates of `other`.
    pub(super) fn client(&self, other: &ConnectionInfo) -> RedisResult<Client> {
        let (host, port) = (self.host.clone(), self.port);
        let address = match other.addr() {
            ConnectionAddr::TcpTls { tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(other.clone().set_addr(address))
    }

    fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some(Self {
                host: host.clone(),
                port: *port,
            }),
            _ => None,
        }
    }

    /// Reads `host:port`. A node that does not know its own host leaves it out, and is at `asked`'s.
    fn parse(address: &str, asked: &Self) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        Some(Self::named(host, port.parse().ok()?, asked))
    }

    fn named(host: &str, port: u16, asked: &Self) -> Self {
        let is_known = !["", "?"].contains(&host);
        Self {
            host: if is_known { host } else { &asked.host }.to_owned(),
            port,
        }
    }
}

/// Who has which slots, as one node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct View {
    /// In the order of the slots.
    primaries: Vec<(RangeInclusive<u16>, Place)>,
    replicas: HashSet<Place>,
}

impl View {
    /// Decodes `CLUSTER SLOTS`.
    fn decode(rows: Vec<Vec<Value>>, asked: &Place) -> RedisResult<Self> {
        let unclear = || RedisError::from((ErrorKind::UnexpectedReturnType, "CLUSTER SLOTS answered no ranges"));
        let mut view = Self::default();
        for row in rows {
            let mut row = row.into_iter();
            let (Some(Value::Int(first)), Some(Value::Int(last))) = (row.next(), row.next()) else {
                return Err(unclear());
            };
            let slots = u16::try_from(first).and_then(|first| Ok(first..=u16::try_from(last)?));
            let slots = slots.map_err(|_| unclear())?;
            // After the primary come its replicas.
            let mut nodes = row.filter_map(|node| match node {
                Value::Array(node) => {
                    let mut node = node.into_iter();
                    match (node.next(), node.next()) {
                        (Some(host), Some(Value::Int(port))) => {
                            let host: Option<String> = redis::from_redis_value(host).ok()?;
                            Some(Place::named(
                                &host.unwrap_or_default(),
                                u16::try_from(port).ok()?,
                                asked,
                            ))
                        }
                        _ => None,
                    }
                }
                _ => None,
            });
            view.primaries.push((slots, nodes.next().ok_or_else(unclear)?));
            view.replicas.extend(nodes);
        }
        if view.primaries.is_empty() {
            return Err((ErrorKind::Server(ServerErrorKind::ClusterDown), "no node has slots").into());
        }
        view.primaries.sort_by_key(|(slots, _)| *slots.start());
        Ok(view)
    }

    fn owners(&self) -> impl Iterator<Item = (Slot, &Place)> {
        let ranges = self.primaries.iter();
        ranges.flat_map(|(slots, place)| slots.clone().filter_map(move |slot| Some((Slot::new(slot)?, place))))
    }
}

/// A node, and the connection to it, which is made by the first call.
#[derive(Clone)]
struct Node {
    place: Place,
    connection: ConnectionManager,
}

#[derive(Default)]
struct Map {
    view: View,
    owners: HashMap<Slot, Node>,
    /// The primaries, and nodes that a redirect has named since.
    nodes: HashMap<Place, Node>,
}

pub(super) struct Cluster {
    /// The nodes of the URL. After some failovers none of them may be left.
    named: Vec<ConnectionInfo>,
    map: RwLock<Map>,
    /// Asks for a reading of the slots.
    stale: Arc<Notify>,
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

    async fn send(self, node: &mut ConnectionManager) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(command) => Ok(vec![node.req_packed_command(command).await?]),
            Self::Many(pipeline) => node.req_packed_commands(pipeline, 0, pipeline.len()).await,
        }
    }

    /// Sends to a node that is receiving the slot. Each command needs its own `ASKING`.
    async fn send_asking(self, node: &mut ConnectionManager) -> RedisResult<Vec<Value>> {
        let mut pipeline = redis::pipe();
        let mut ask = |command: &Cmd| _ = pipeline.cmd("ASKING").add_command(command.clone());
        match self {
            Self::One(command) => ask(command),
            Self::Many(commands) => commands.cmd_iter().for_each(ask),
        }
        let answers = node.req_packed_commands(&pipeline, 0, pipeline.len()).await?;
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
        b"SCRIPT" | b"TIME" => None,
        // After the script's hash and the number of keys.
        b"EVALSHA" => arguments.nth(2),
        b"XINFO" => arguments.nth(1),
        _ => arguments.next(),
    };
    key.map(Slot::for_key)
}

impl Cluster {
    /// Connects to the cluster that one of these nodes belongs to.
    pub(super) async fn connect(named: Vec<ConnectionInfo>) -> RedisResult<Arc<Self>> {
        let cluster = Arc::new(Self {
            named,
            map: RwLock::default(),
            stale: Arc::default(),
        });
        cluster.read().await?;
        tokio::spawn(Self::keep_reading(Arc::downgrade(&cluster), Arc::clone(&cluster.stale)));
        Ok(cluster)
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

    /// Reads who has which slots: what most of the primaries say, or of all nodes if most primaries are silent.
    async fn read(&self) -> RedisResult<()> {
        let (primaries, replicas) = {
            let map = self.map();
            let owners: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
            let primaries = map.nodes.values().filter(|node| owners.contains(&node.place));
            (primaries.cloned().collect::<Vec<_>>(), map.view.replicas.clone())
        };
        let count = primaries.len();
        let asked = primaries
            .iter()
            .map(|node| ask_slots(node.place.clone(), node.connection.clone()));
        let mut views: Vec<RedisResult<View>> = join_all(asked).await;
        if views.iter().flatten().count() * 2 <= count {
            let known: HashSet<&Place> = primaries.iter().map(|node| &node.place).collect();
            let mut others: HashSet<Place> = self.named.iter().filter_map(Place::of).chain(replicas).collect();
            others.retain(|place| !known.contains(place));
            let others = others.into_iter().map(|place| async move {
                let connection = self.connection(&place)?;
                ask_slots(place, connection).await
            });
            views.extend(join_all(others).await);
        }
        let mut error = RedisError::from((ErrorKind::Client, "the URL names no node"));
        let mut found: Vec<View> = Vec::new();
        for view in views {
            match view {
                Ok(view) => found.push(view),
                Err(refused) => error = refused,
            }
        }
        let votes = |view: &View| found.iter().filter(|other| other.primaries == view.primaries).count();
        let view = found.iter().max_by_key(|view| votes(view)).ok_or(error)?;
        if self.map().view != *view {
            self.adopt(view.clone())?;
        }
        Ok(())
    }

    fn adopt(&self, view: View) -> RedisResult<()> {
        let mut map = self.map_mut();
        let (mut owners, mut nodes) = (HashMap::new(), HashMap::new());
        for (slot, place) in view.owners() {
            let node = match nodes.get(place).or_else(|| map.nodes.get(place)) {
                Some(node) => Node::clone(node),
                None => self.node(place)?,
            };
            nodes.entry(place.clone()).or_insert_with(|| node.clone());
            owners.insert(slot, node);
        }
        *map = Map { view, owners, nodes };
        Ok(())
    }

    fn node(&self, place: &Place) -> RedisResult<Node> {
        Ok(Node {
            place: place.clone(),
            connection: self.connection(place)?,
        })
    }

    fn connection(&self, place: &Place) -> RedisResult<ConnectionManager> {
        let like = self.named.first();
        let like = like.ok_or_else(|| RedisError::from((ErrorKind::Client, "the URL names no node")))?;
        ConnectionManager::new_lazy_with_config(place.client(like)?, manager_config())
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        // The map is replaced in one step, so it is consistent also after a panic.
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node that a redirect names.
    fn node_at(&self, place: &Place) -> RedisResult<Node> {
        if let Some(node) = self.map().nodes.get(place) {
            return Ok(node.clone());
        }
        let node = self.node(place)?;
        Ok(self.map_mut().nodes.entry(place.clone()).or_insert(node).clone())
    }

    /// A connection to each primary.
    pub(super) fn primaries(&self) -> Vec<ConnectionManager> {
        let map = self.map();
        let places: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
        let nodes = places.into_iter().filter_map(|place| map.nodes.get(place));
        nodes.map(|node| node.connection.clone()).collect()
    }

    /// Which primary has which slot, according to the primary that has this one.
    pub(super) async fn owners(&self, slot: Slot) -> RedisResult<HashMap<Slot, Place>> {
        let node = self.map().owners.get(&slot).cloned().ok_or_else(no_owner)?;
        let view = ask_slots(node.place, node.connection).await?;
        Ok(view.owners().map(|(slot, place)| (slot, place.clone())).collect())
    }

    /// Sends to the primary that has the slot of the request's key, and follows the slot while it moves. A request
    /// without a key goes to the slot in `last`, which then holds this request's slot.
    ///
    /// # Errors
    /// After a fault it is unknown whether the request has run.
    pub(super) async fn send(&self, request: Request<'_>, last: &mut Option<Slot>) -> RedisResult<Vec<Value>> {
        *last = request.slot().or(*last);
        let slot = last.ok_or_else(|| RedisError::from((ErrorKind::Client, "a command without a key has no node")))?;
        let (mut answer, mut pause) = (Err(no_owner()), AGAIN);
        let mut redirect: Option<(Place, bool)> = None;
        for _ in 0..TRIES_MAX {
            let node = match &redirect {
                Some((place, _)) => Some(self.node_at(place)?),
                None => self.map().owners.get(&slot).cloned(),
            };
            let is_asking = matches!(redirect.take(), Some((_, true)));
            if let Some(Node { place, mut connection }) = node {
                answer = if is_asking {
                    request.send_asking(&mut connection).await
                } else {
                    request.send(&mut connection).await
                };
                let Some(error) = refusal(&answer) else {
                    return answer;
                };
                self.stale.notify_one();
                if error.is_timeout() {
                    return answer;
                }
                let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
                let elsewhere = error.redirect_node().and_then(|(to, _)| Place::parse(to, &place));
                redirect = elsewhere.map(|place| (place, is_asking));
            }
            if redirect.is_none() {
                self.stale.notify_one();
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
async fn ask_slots(place: Place, mut connection: ConnectionManager) -> RedisResult<View> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer = timeout(READ_MAX, command.query_async(&mut connection)).await;
    let silent = |_elapsed| Err((ErrorKind::Io, "a node of the cluster does not answer").into());
    View::decode(answer.unwrap_or_else(silent)?, &place)
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
