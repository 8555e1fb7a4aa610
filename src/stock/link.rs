//! The connection to Redis: to one server, or to a cluster. A command for a shard goes to the server that has the
//! shard. A question about servers goes to each server by itself.

use super::{CALL_MAX, CONNECT_MAX, bounded};
use crate::domain::fault::Fault;
use crate::domain::redis_certificates::RedisCertificates;
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr,
};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Pipeline,
    RedisError, RedisFuture, RedisResult, TlsCertificates, TlsMode, Value,
};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use tokio::time::timeout;

/// The prefixes of a cluster's URL, without and with TLS.
const CLUSTER: &str = "redis+cluster://";
const TLS_CLUSTER: &str = "rediss+cluster://";
/// How often a call to a cluster is retried while a slot moves or a replica takes over. The call's time limit ends the
/// retries.
const RETRIES_MAX: u32 = 8;
/// How long a new connection to a cluster may take, and the pause before the next one.
const RENEW_MAX: Duration = Duration::from_secs(2);
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// How often the cluster is asked for its primaries.
const KNOWN_EVERY: Duration = Duration::from_secs(1);
/// The shortest and the longest wait in between, in milliseconds.
const RETRY_WAIT: (u64, u64) = (20, 400);

#[derive(Clone)]
pub(super) enum Link {
    One(ConnectionManager),
    /// A cluster; each call goes to the node that has the slot of its keys, also while the slot moves.
    Cluster(Arc<ClusterLink>),
}

/// A connection to a cluster that leaves a silent node.
///
/// The client learns of a slot's new owner from answers and from broken connections. A node that hangs or is cut off
/// gives neither, so the client would ask it for ever. So a call without an answer in time starts a new connection,
/// which asks the cluster for its slots.
pub(super) struct ClusterLink {
    /// The nodes of the URL. After some failovers none of them may be left.
    named: Vec<ConnectionInfo>,
    /// The primaries, as the cluster named them last.
    known: RwLock<HashSet<Place>>,
    certificates: TlsCertificates,
    now: RwLock<ClusterConnection>,
    renewing: AtomicBool,
}

/// A running call. If it is dropped without an answer, its node counts as silent.
struct Call(Option<Arc<ClusterLink>>);

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.renew();
        }
    }
}

impl ClusterLink {
    fn connection(&self) -> ClusterConnection {
        // The lock's value is consistent at every moment, also after a panic.
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The primaries in any order, then the nodes of the URL.
    fn nodes(&self) -> Vec<ConnectionInfo> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let like = self.named.first();
        let known = known.iter().filter_map(|place| Some(place.info(like?)));
        let mut nodes: Vec<ConnectionInfo> = known.collect();
        if !nodes.is_empty() {
            let start = rand::random_range(0..nodes.len());
            nodes.rotate_left(start);
        }
        nodes.extend(self.named.iter().cloned());
        nodes
    }

    fn note(&self, primaries: HashSet<Place>) {
        if !primaries.is_empty() {
            *self.known.write().unwrap_or_else(PoisonError::into_inner) = primaries;
        }
    }

    /// Does a call, and notes if nothing came of it in time.
    async fn watched<T>(self: Arc<Self>, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let mut call = Call(Some(self));
        let answer = answer.await;
        if !matches!(&answer, Err(error) if error.is_timeout()) {
            call.0 = None;
        }
        answer
    }

    /// Reconnects in the background, one attempt at a time and at most once a second.
    fn renew(self: Arc<Self>) {
        if self.renewing.swap(true, Ordering::SeqCst) {
            return;
        }
        tokio::spawn(async move {
            // One after the other: a node that hangs must not take the time of those that answer.
            for node in self.nodes() {
                let connected = async {
                    cluster_client(vec![node], &self.certificates)?
                        .get_async_connection()
                        .await
                };
                if let Ok(Ok(fresh)) = tokio::time::timeout(RENEW_MAX, connected).await {
                    *self.now.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                    break;
                }
            }
            tokio::time::sleep(RENEW_AGAIN).await;
            self.renewing.store(false, Ordering::SeqCst);
        });
    }
}

/// How to open a separate connection.
pub(super) enum Way {
    One(Client),
    /// To a node of a cluster; only the node's address is missing.
    Cluster(ConnectionInfo),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// A client of this node, with the TLS settings and certificates of `other`.
    pub(super) fn client(&self, other: &ConnectionInfo) -> RedisResult<Client> {
        Client::open(self.info(other))
    }

    fn info(&self, other: &ConnectionInfo) -> ConnectionInfo {
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
        other.clone().set_addr(address)
    }
}

impl Link {
    /// Connects; also returns how to open a separate connection.
    ///
    /// # Errors
    /// `Unavailable` when no server answers, or the URL is invalid.
    pub(super) async fn connect(url: &str, certificates: &RedisCertificates) -> Result<(Self, Way), Fault> {
        let certificates = tls_certificates(certificates);
        if let Some(nodes) = url.strip_prefix(CLUSTER) {
            Self::connect_cluster("redis", nodes, certificates).await
        } else if let Some(nodes) = url.strip_prefix(TLS_CLUSTER) {
            Self::connect_cluster("rediss", nodes, certificates).await
        } else {
            Self::connect_one(url, &certificates).await
        }
    }

    async fn connect_one(url: &str, certificates: &TlsCertificates) -> Result<(Self, Way), Fault> {
        let info = connection_info(url, certificates)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(CALL_MAX))
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_number_of_retries(1)
            .set_pipeline_buffer_size(4096);
        let (place, is_tls) = (info.addr().to_string(), is_tls(&info));
        let unreachable = |error| unreachable(&place, is_tls, &error);
        let client = Client::open(info).map_err(unreachable)?;
        let connected = ConnectionManager::new_with_config(client.clone(), config).await;
        Ok((Self::One(connected.map_err(unreachable)?), Way::One(client)))
    }

    /// `nodes` is `[user:password@]host:port,host:port…`: any of these nodes names the others.
    async fn connect_cluster(scheme: &str, nodes: &str, certificates: TlsCertificates) -> Result<(Self, Way), Fault> {
        let (login, hosts) = nodes.rsplit_once('@').map_or(("", nodes), |(_, hosts)| {
            (&nodes[..=nodes.len() - hosts.len() - 1], hosts)
        });
        let infos: Vec<ConnectionInfo> = hosts
            .trim_end_matches('/')
            .split(',')
            .map(|host| connection_info(&format!("{scheme}://{login}{host}"), &certificates))
            .collect::<Result<_, _>>()?;
        let Some(any) = infos.first().cloned() else {
            return Err(Fault::Unavailable(
                "the URL of the Redis Cluster names no node".to_owned(),
            ));
        };
        let is_tls = is_tls(&any);
        let unreachable = |error| unreachable(hosts, is_tls, &error);
        let client = cluster_client(infos.clone(), &certificates).map_err(unreachable)?;
        let connected = client.get_async_connection().await.map_err(unreachable)?;
        let link = ClusterLink {
            named: infos,
            known: RwLock::default(),
            certificates,
            now: RwLock::new(connected),
            renewing: AtomicBool::new(false),
        };
        let link = Arc::new(link);
        tokio::spawn(Self::keep_known(Arc::downgrade(&link)));
        Ok((Self::Cluster(link), Way::Cluster(any)))
    }

    /// Asks the cluster for its primaries for as long as somebody uses the connection.
    async fn keep_known(link: Weak<ClusterLink>) {
        while let Some(link) = link.upgrade() {
            // While no node answers, the nodes of before stay known.
            let _unanswered = within(CALL_MAX, Box::pin(Self::slots_of_primaries(&link))).await;
            drop(link);
            tokio::time::sleep(KNOWN_EVERY).await;
        }
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Which primary of a cluster has which slot, according to the primary that has this key.
    pub(super) async fn owners(&self, key: &str) -> Result<HashMap<Slot, Place>, Fault> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut owners = HashMap::new();
        for (slots, place) in ranges_by(self.ask_server_of(key, &command).await?)? {
            let slots = slots.filter_map(|slot| Slot::new(u16::try_from(slot).ok()?));
            owners.extend(slots.map(|slot| (slot, place.clone())));
        }
        Ok(owners)
    }

    /// Sends a command without a key to every primary, each with its own time limit. A silent primary does not cost the
    /// answers of the others.
    pub(super) async fn ask_each<T: FromRedisValue>(&self, command: &Cmd, each_max: Duration) -> Vec<Result<T, Fault>> {
        let link = match self {
            Self::One(connection) => {
                let mut connection = connection.clone();
                let answer = bounded(command.query_async(&mut connection));
                return vec![within(each_max, answer).await];
            }
            Self::Cluster(link) => link,
        };
        let slots = match within(each_max, Box::pin(Self::slots_of_primaries(link))).await {
            Ok(slots) => slots,
            Err(fault) => return vec![Err(fault)],
        };
        let answers = slots.into_iter().map(|slot| async move {
            let route = SingleNodeRoutingInfo::SpecificNode(Route::with_slot(slot, SlotAddr::Master));
            let mut connection = link.connection();
            let answer = connection.route_command(command.clone(), RoutingInfo::SingleNode(route));
            let answer = Arc::clone(link).watched(answer);
            let answer = bounded(async { Ok(redis::from_redis_value(answer.await?)?) });
            within(each_max, Box::pin(answer)).await
        });
        join_all(answers).await
    }

    /// One slot of each primary, according to the first primary that answers.
    async fn slots_of_primaries(link: &Arc<ClusterLink>) -> Result<Vec<Slot>, Fault> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let any = Some(ResponsePolicy::OneSucceeded);
        let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, any));
        let mut connection = link.connection();
        let answer = Arc::clone(link).watched(connection.route_command(command, route));
        let rows = bounded(async { Ok(redis::from_redis_value(answer.await?)?) }).await?;
        let first = |(slots, place): (RangeInclusive<i64>, Place)| Some((place, u16::try_from(*slots.start()).ok()?));
        let slots: HashMap<Place, u16> = ranges_by(rows)?.into_iter().filter_map(first).collect();
        link.note(slots.keys().cloned().collect());
        Ok(slots.into_values().filter_map(Slot::new).collect())
    }

    /// Sends a command without a key to the server that has this key.
    pub(super) async fn ask_server_of<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, Fault> {
        match self {
            Self::One(connection) => bounded(command.query_async(&mut connection.clone())).await,
            Self::Cluster(_) => {
                // A client that does not know the slot's owner asks any node, and every node answers a command without
                // a key. So a command that only the right node answers goes ahead on the same connection.
                let mut both = redis::pipe();
                both.cmd("EXISTS").arg(key).add_command(command.clone());
                let (_exists, answer): (i64, T) = self.ask_together(key, both).await?;
                Ok(answer)
            }
        }
    }

    /// Sends commands to the server that has this key, one after the other. One of them must name the key: any other
    /// server refuses that one.
    pub(super) async fn ask_together<T: FromRedisValue>(&self, key: &str, pipeline: Pipeline) -> Result<T, Fault> {
        match self {
            Self::One(connection) => bounded(pipeline.query_async(&mut connection.clone())).await,
            Self::Cluster(link) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                let (mut connection, count) = (link.connection(), pipeline.len());
                let answers = connection.route_pipeline(pipeline, 0, count, route);
                let answers = Arc::clone(link).watched(answers);
                let asked = bounded(async {
                    let answers = answers.await?.into_iter().map(Value::extract_error);
                    let answers = answers.collect::<RedisResult<Vec<Value>>>()?;
                    Ok(redis::from_redis_value(Value::Array(answers))?)
                });
                let asked = asked.await;
                if asked.is_err() {
                    // Without a new connection, the client would ask the same node again.
                    Arc::clone(link).renew();
                }
                asked
            }
        }
    }

    /// Sends a command without a key to any primary.
    pub(super) async fn ask_any<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Fault> {
        match self {
            Self::One(connection) => bounded(command.query_async(&mut connection.clone())).await,
            Self::Cluster(link) => {
                let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
                let mut connection = link.connection();
                let answer = Arc::clone(link).watched(connection.route_command(command.clone(), route));
                bounded(async { Ok(redis::from_redis_value(answer.await?)?) }).await
            }
        }
    }

    /// Sends a command without a key to every primary.
    pub(super) async fn ask_all<T: FromRedisValue>(&self, command: &Cmd) -> Result<Vec<T>, Fault> {
        match self {
            Self::One(connection) => Ok(vec![bounded(command.query_async(&mut connection.clone())).await?]),
            Self::Cluster(link) => {
                let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let mut connection = link.connection();
                let answers = Arc::clone(link).watched(connection.route_command(command.clone(), route));
                bounded(async {
                    match answers.await? {
                        Value::Map(answers) => {
                            let answers = answers.into_iter().map(|(_, answer)| answer);
                            Ok(answers.map(redis::from_redis_value).collect::<Result<_, _>>()?)
                        }
                        other => Ok(vec![redis::from_redis_value(other)?]),
                    }
                })
                .await
            }
        }
    }
}

/// A client that finds the cluster through any of these nodes.
fn cluster_client(nodes: Vec<ConnectionInfo>, certificates: &TlsCertificates) -> RedisResult<ClusterClient> {
    let is_tls = nodes.first().is_some_and(is_tls);
    let mut builder = ClusterClientBuilder::new(nodes);
    if is_tls {
        // Also for nodes that others name.
        builder = builder.tls(TlsMode::Secure).certs(certificates.clone());
    }
    builder
        .connection_timeout(CONNECT_MAX)
        .response_timeout(CALL_MAX)
        .retries(RETRIES_MAX)
        .min_retry_wait(RETRY_WAIT.0)
        .max_retry_wait(RETRY_WAIT.1)
        .tcp_settings(TcpSettings::default().set_nodelay(true))
        .build()
}

/// What is answered in this time.
async fn within<T>(max: Duration, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let silent = |_elapsed| Err(Fault::Unavailable("Redis did not answer in time".to_owned()));
    timeout(max, answer).await.unwrap_or_else(silent)
}

/// Reads from a node's answer which primary of the cluster has which slots.
fn ranges_by(rows: Vec<Vec<Value>>) -> Result<Vec<(RangeInclusive<i64>, Place)>, Fault> {
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let mut row = row.into_iter();
        // After the primary come its replicas.
        let (Some(Value::Int(first)), Some(Value::Int(last)), Some(Value::Array(node))) =
            (row.next(), row.next(), row.next())
        else {
            return Err(Fault::Bug("CLUSTER SLOTS answered no ranges".to_owned()));
        };
        let mut node = node.into_iter();
        // A node may not know its own address, or that of another.
        let (Some(Value::BulkString(host)), Some(Value::Int(port))) = (node.next(), node.next()) else {
            continue;
        };
        let (host, port) = (String::from_utf8_lossy(&host), u16::try_from(port));
        if let Ok(port) = port
            && !["", "?"].contains(&host.as_ref())
        {
            let place = Place {
                host: host.into_owned(),
                port,
            };
            ranges.push((first..=last, place));
        }
    }
    Ok(ranges)
}

/// Converts the certificates for the Redis client.
fn tls_certificates(certificates: &RedisCertificates) -> TlsCertificates {
    TlsCertificates {
        client_tls: certificates.client.as_ref().map(|client| ClientTlsConfig {
            client_cert: client.certificates.clone(),
            client_key: client.key.clone(),
        }),
        root_cert: certificates.authorities.clone(),
    }
}

fn connection_info(url: &str, certificates: &TlsCertificates) -> Result<ConnectionInfo, Fault> {
    let info = url
        .into_connection_info()
        .map_err(|error| unreachable("its URL", false, &error))?;
    let info = if is_tls(&info) {
        let client = Client::build_with_tls(info, certificates.clone());
        let client = client.map_err(|error| unreachable("its URL", true, &error))?;
        client.get_connection_info().clone()
    } else {
        info
    };
    // Without `nodelay`, a small write waits for the acknowledgement of the writes before it, which costs throughput on
    // a real network.
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn unreachable(place: &str, is_tls: bool, error: &RedisError) -> Fault {
    let tls = if is_tls {
        ", whose host the certificate of Redis must name, FLASHSALE_REDIS_CACERT, the file of that certificate's \
         authority, and FLASHSALE_REDIS_CERT, if Redis asks for a client certificate"
    } else {
        ""
    };
    Fault::Unavailable(format!(
        "Redis at {place} cannot be reached: {error}; check FLASHSALE_REDIS_URL{tls}"
    ))
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(command),
            Self::Cluster(link) => {
                let (mut connection, link) = (link.connection(), Arc::clone(link));
                Box::pin(async move { link.watched(connection.req_packed_command(command)).await })
            }
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(link) => {
                let (mut connection, link) = (link.connection(), Arc::clone(link));
                Box::pin(async move {
                    link.watched(connection.req_packed_commands(pipeline, offset, count))
                        .await
                })
            }
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Cluster(link) => link.connection().get_db(),
        }
    }
}
