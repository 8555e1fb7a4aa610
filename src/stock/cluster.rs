//! A Redis Cluster: one connection to each primary, and the map from slots to primaries. A command
//! goes to the primary that has the slot of its key.
//!
//! Nothing is shared between primaries, so a silent one costs the calls to its own slots and no others. That is why
//! this is not the cluster client of the `redis` crate: whenever that one reads the slots again, all its calls wait for
//! the connections to all nodes, also to a silent one.
//!
//! The map is read again each second, and at once after a call that its node refused, or left unanswered for its whole
//! time limit.

use super::CALL_MAX;
use super::server::Server;
use futures_util::future::join_all;
use rand::seq::SliceRandom as _;
use redis::cluster_routing::Slot;
use redis::{
    Arg, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

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

    /// Reads `host:port` of a redirect.
    fn parse(address: &str, asked: &Self) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        Self::named(host, port.parse().ok()?, asked)
    }

    /// A node that does not know its own host leaves it empty, and is at `asked`'s. `?` stands for an unknown one.
    fn named(host: &str, port: u16, asked: &Self) -> Option<Self> {
        let host = if host.is_empty() { &asked.host } else { host };
        (host != "?").then(|| Self {
            host: host.to_owned(),
            port,
        })
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
            let mut nodes = row.map(|node| decode_place(node, asked));
            let Some(primary) = nodes.next().flatten() else {
                continue;
            };
            view.primaries.push((slots, primary));
            view.replicas.extend(nodes.flatten());
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

fn decode_place(node: Value, asked: &Place) -> Option<Place> {
    let Value::Array(node) = node else { return None };
    let mut node = node.into_iter();
    let (Some(host), Some(Value::Int(port))) = (node.next(), node.next()) else {
        return None;
    };
    let host: Option<String> = redis::from_redis_value(host).ok()?;
    Place::named(&host.unwrap_or_default(), u16::try_from(port).ok()?, asked)
}

/// What most of the nodes say that were asked.
fn most(views: &[View], asked: usize) -> Option<&View> {
    let votes = |view: &View| views.iter().filter(|it| it.primaries == view.primaries).count();
    let best = views.iter().max_by_key(|view| votes(view))?;
    (votes(best) * 2 > asked).then_some(best)
}

/// A node, and the connection to it.
pub(super) struct Node {
    place: Place,
    server: Server,
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

    async fn send(self, server: &Server) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(command) => Ok(vec![server.command(command).await?]),
            Self::Many(pipeline) => server.pipeline(pipeline).await,
        }
    }

    /// Sends to a node that is receiving the slot. Each command needs its own `ASKING`.
    async fn send_asking(self, server: &Server) -> RedisResult<Vec<Value>> {
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
        b"SCRIPT" | b"TIME" => None,
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

    /// Reads who has which slots: what most of some primaries say, or else most of all nodes that can be asked.
    pub(super) async fn read(&self) -> RedisResult<()> {
        let (mut primaries, replicas) = {
            let map = self.map();
            let owners: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
            let primaries = owners.iter().filter_map(|place| map.nodes.get(*place)).cloned();
            (primaries.collect::<Vec<_>>(), map.view.replicas.clone())
        };
        let count = primaries.len();
        primaries.shuffle(&mut rand::rng());
        let rest = primaries.split_off(count.min(SAMPLE));
        let (mut views, mut error) = (Vec::new(), no_owner());
        let mut asked = 0;
        for (nodes, places) in [
            (primaries, HashSet::new()),
            (rest, HashSet::new()),
            (Vec::new(), replicas),
            (Vec::new(), self.named.iter().filter_map(Place::of).collect()),
        ] {
            let is_sample = asked == 0;
            asked += nodes.len();
            let known = nodes.iter().map(|node| ask_slots(node, READ_MAX));
            let other = places.into_iter().map(|place| async move {
                let node = self.node(&place)?;
                ask_slots(&node, CONNECT_AND_READ_MAX).await
            });
            for view in join_all(known).await.into_iter().chain(join_all(other).await) {
                match view {
                    Ok(view) => views.push(view),
                    Err(refused) => error = refused,
                }
            }
            let is_disputed = views.iter().any(|view: &View| view.primaries != views[0].primaries);
            if let Some(view) = most(&views, if is_sample { asked } else { count })
                && !(is_sample && is_disputed)
            {
                self.adopt(view.clone())?;
                return Ok(());
            }
        }
        Err(error)
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
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Map { view, owners, nodes };
        Ok(())
    }

    fn node(&self, place: &Place) -> RedisResult<Arc<Node>> {
        let like = self.named.first().ok_or_else(no_owner)?;
        let server = Server::new(place.client(like)?)?;
        let place = place.clone();
        Ok(Arc::new(Node { place, server }))
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        // The map is replaced in one step, so it is consistent also after a panic.
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node at this place, as a redirect or a view names it.
    fn node_at(&self, place: &Place) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.map().nodes.get(place) {
            return Ok(Arc::clone(node));
        }
        let node = self.node(place)?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(map.nodes.entry(place.clone()).or_insert(node)))
    }

    /// A connection to each primary.
    pub(super) fn primaries(&self) -> Vec<Server> {
        let map = self.map();
        let places: HashSet<&Place> = map.view.primaries.iter().map(|(_, place)| place).collect();
        let nodes = places.into_iter().filter_map(|place| map.nodes.get(place));
        nodes.map(|node| node.server.clone()).collect()
    }

    /// Which primary has which slot, according to the primary of this one.
    pub(super) async fn owners(&self, slot: Slot) -> RedisResult<HashMap<Slot, Place>> {
        let node = self.map().owners.get(&slot).cloned().ok_or_else(no_owner)?;
        let view = ask_slots(&node, CALL_MAX).await?;
        Ok(view.owners().map(|(slot, place)| (slot, place.clone())).collect())
    }

    /// Sends to the primary that has the slot of the request's key, and follows the slot while it moves. A request
    /// without a key goes to the node in `last`, which answered the last one with a key.
    ///
    /// # Errors
    /// After a fault it is unknown whether the request has run.
    pub(super) async fn send(&self, request: Request<'_>, last: &mut Last) -> RedisResult<Vec<Value>> {
        let Some(slot) = request.slot() else {
            return match last {
                Some(node) => request.send(&node.server).await,
                None => Err((ErrorKind::Client, "a command without a key has no node").into()),
            };
        };
        let (mut answer, mut pause, mut redirects) = (Err(no_owner()), AGAIN, 0);
        let mut redirect: Option<(Place, bool)> = None;
        for tries_left in (0..TRIES_MAX).rev() {
            let node = match &redirect {
                Some((place, _)) => Some(self.node_at(place)?),
                None => self.map().owners.get(&slot).cloned(),
            };
            let is_asking = matches!(redirect.take(), Some((_, true)));
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
                if error.is_timeout() {
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
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer = timeout(max, node.server.query(&command)).await;
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
