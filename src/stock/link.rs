//! The connection to Redis: to one server, or to a cluster. A command for a shard goes to the server that has the
//! shard. A question about servers goes to each server by itself.

use super::cluster::{Cluster, Last, Place, Request};
use super::keys::ShardKey;
use super::server::ServerConnection;
use super::{CALL_MAX, CONNECT_MAX, bounded, fault};
use crate::domain::deployment::redis_certificates::RedisCertificates;
use crate::domain::fault::Fault;
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_routing::Slot;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue,
    IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, TlsCertificates, Value,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The prefixes of a cluster's URL, without and with TLS.
const CLUSTER: &str = "redis+cluster://";
const TLS_CLUSTER: &str = "rediss+cluster://";

#[derive(Clone)]
pub(super) enum Link {
    One(ServerConnection),
    /// A cluster, and the node that answered this handle's last command with a key. A command without a key goes there:
    /// that is how a script is loaded where it was missing.
    Cluster(Arc<Cluster>, Last),
}

/// How to open a separate connection.
#[derive(Clone)]
pub(super) enum Way {
    One(Client),
    /// To a node of a cluster; only the node's address is missing.
    Cluster(ConnectionInfo),
}

impl Link {
    /// Connects, and waits for the first answer. Also returns how to open a separate connection. Fails with
    /// `Unavailable` when no server answers, or the URL is invalid.
    pub(super) async fn connect(url: &str, certificates: &RedisCertificates) -> Result<(Self, Way), Fault> {
        let (link, way) = Self::open(url, certificates)?;
        let answered = match &link {
            Self::One(server) => server.query::<String>(&redis::cmd("PING")).await.map(drop),
            Self::Cluster(cluster, _) => cluster.read().await,
        };
        let (place, is_tls) = match &way {
            Way::One(client) => (
                client.get_connection_info().addr().to_string(),
                is_tls(client.get_connection_info()),
            ),
            Way::Cluster(info) => (hosts(url).to_owned(), is_tls(info)),
        };
        answered.map_err(|error| unreachable(&place, is_tls, &error))?;
        if let Self::One(server) = &link {
            let info: RedisResult<String> = server.query(redis::cmd("INFO").arg("cluster")).await;
            // A node of a cluster refuses to read the keys of many shards at once.
            if info.is_ok_and(|info| info.contains("cluster_enabled:1")) {
                let scheme = if is_tls { TLS_CLUSTER } else { CLUSTER };
                return Err(Fault::Unavailable(format!(
                    "Redis at {place} is part of a cluster; FLASHSALE_REDIS_URL must begin with {scheme}"
                )));
            }
        }
        Ok((link, way))
    }

    /// Connects in the background, on the runtime of the caller. Calls wait for the connection. Fails with
    /// `Unavailable` when the URL is invalid.
    pub(super) fn open(url: &str, certificates: &RedisCertificates) -> Result<(Self, Way), Fault> {
        let certificates = tls_certificates(certificates);
        if let Some(nodes) = url.strip_prefix(CLUSTER) {
            Self::open_cluster("redis", nodes, &certificates)
        } else if let Some(nodes) = url.strip_prefix(TLS_CLUSTER) {
            Self::open_cluster("rediss", nodes, &certificates)
        } else {
            let invalid = |error: RedisError| unreachable("its URL", false, &error);
            let client = Client::open(connection_info(url, &certificates)?).map_err(invalid)?;
            let server = ServerConnection::new(client.clone()).map_err(invalid)?;
            Ok((Self::One(server), Way::One(client)))
        }
    }

    /// `nodes` is `[user:password@]host:port,host:port…`: any of these nodes names the others.
    fn open_cluster(scheme: &str, nodes: &str, certificates: &TlsCertificates) -> Result<(Self, Way), Fault> {
        let hosts = hosts(nodes);
        let login = &nodes[..nodes.len() - hosts.len()];
        let infos: Vec<ConnectionInfo> = hosts
            .trim_end_matches('/')
            .split(',')
            .map(|host| connection_info(&format!("{scheme}://{login}{host}"), certificates))
            .collect::<Result<_, _>>()?;
        let Some(any) = infos.first().cloned() else {
            return Err(Fault::Unavailable(
                "the URL of the Redis Cluster names no node".to_owned(),
            ));
        };
        Ok((Self::Cluster(Cluster::open(infos), None), Way::Cluster(any)))
    }

    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(..))
    }

    /// Which primary of a cluster has which slot, according to the primary that has this key.
    pub(super) async fn owners(&self, key: &str) -> Result<HashMap<Slot, Place>, Fault> {
        match self {
            Self::One(_) => Ok(HashMap::new()),
            Self::Cluster(cluster, _) => bounded(cluster.owners(Slot::for_key(key))).await,
        }
    }

    /// Sends a command without a key to every primary, each with its own time limit. A silent primary does not cost the
    /// answers of the others.
    pub(super) async fn ask_each<T: FromRedisValue>(&self, command: &Cmd, each_max: Duration) -> Vec<Result<T, Fault>> {
        let primaries = match self {
            Self::One(server) => vec![server.clone()],
            Self::Cluster(cluster, _) => match within(each_max, async { Ok(cluster.primaries().await) }).await {
                Ok(primaries) => primaries,
                Err(fault) => return vec![Err(fault)],
            },
        };
        let answers = primaries
            .into_iter()
            .map(|primary| async move { within(each_max, bounded(primary.query(command))).await });
        join_all(answers).await
    }

    /// Sends a command without a key to the server that has this key.
    pub(super) async fn ask_server_of<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, Fault> {
        match self {
            Self::One(server) => bounded(server.query(command)).await,
            Self::Cluster(..) => {
                // Every node answers a command without a key. So it goes where a command with the key was answered.
                let mut link = self.clone();
                let asked = async {
                    let _exists: i64 = redis::cmd("EXISTS").arg(key).query_async(&mut link).await?;
                    command.query_async(&mut link).await
                };
                bounded(asked).await
            }
        }
    }

    /// Sends commands to one server, one after the other. One of them must name a key: any server but that of the key
    /// refuses that one.
    pub(super) async fn ask_together<T: FromRedisValue>(&self, pipeline: Pipeline) -> Result<T, Fault> {
        bounded(pipeline.query_async(&mut self.clone())).await
    }

    /// Which of these keys one server has, as far as this process knows: their places in the list, by server.
    pub(super) async fn groups(&self, keys: &[&str]) -> Vec<Vec<usize>> {
        match self {
            Self::One(_) => vec![(0..keys.len()).collect()],
            Self::Cluster(cluster, _) => {
                let slots: Vec<Slot> = keys.iter().map(Slot::for_key).collect();
                cluster.groups(&slots).await
            }
        }
    }

    /// Sends commands to the server that has this key, as far as this process knows. Some answers may be that another
    /// server has the key of their command.
    pub(super) async fn ask_node_of(&self, key: &str, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        match self {
            Self::One(server) => server.pipeline(pipeline).await,
            Self::Cluster(cluster, _) => cluster.ask_once(Slot::for_key(key), pipeline).await,
        }
    }

    /// Sends a command without a key to every primary, and returns the first answer.
    pub(super) async fn ask_any<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Fault> {
        match self {
            Self::One(server) => bounded(server.query(command)).await,
            Self::Cluster(cluster, _) => {
                let primaries = within(CALL_MAX, async { Ok(cluster.primaries().await) }).await?;
                let answers = primaries
                    .into_iter()
                    .map(|primary| Box::pin(async move { bounded(primary.query(command)).await }));
                let answers: Vec<_> = answers.collect();
                if answers.is_empty() {
                    return Err(Fault::Unavailable("the cluster names no primary".to_owned()));
                }
                Ok(futures_util::future::select_ok(answers).await?.0)
            }
        }
    }

    /// Sends a command without a key to every primary. Each must answer.
    pub(super) async fn ask_all<T: FromRedisValue>(&self, command: &Cmd) -> Result<Vec<T>, Fault> {
        self.ask_each(command, CALL_MAX).await.into_iter().collect()
    }
}

impl Way {
    /// How to connect to the server of this shard, which the cluster names.
    pub(super) async fn to(&self, link: &Link, shard: ShardKey) -> Result<Client, Fault> {
        match self {
            Self::One(client) => Ok(client.clone()),
            Self::Cluster(info) => {
                let owners = link.owners(&shard.shard()).await?;
                let place = owners.get(&Slot::for_key(shard.shard()));
                let place =
                    place.ok_or_else(|| Fault::Unavailable("no node of the cluster has this shard".to_owned()))?;
                place.client(info).map_err(|error| fault(&error))
            }
        }
    }
}

/// Opens a connection that ends with its server, and does not reconnect.
pub(super) async fn connect_once(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(Some(CALL_MAX));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// What is answered in this time.
async fn within<T>(max: Duration, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let silent = |_elapsed| Err(Fault::Unavailable("Redis did not answer in time".to_owned()));
    timeout(max, answer).await.unwrap_or_else(silent)
}

/// What follows the login in a URL.
fn hosts(url: &str) -> &str {
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    place.rsplit_once('@').map_or(place, |(_, hosts)| hosts)
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
    let settings = TcpSettings::default().set_nodelay(true);
    // If a server's host vanishes, the connection breaks after this time, and the next call connects again.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(2 * CALL_MAX);
    Ok(info.set_tcp_settings(settings))
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
            Self::One(server) => Box::pin(server.command(command)),
            Self::Cluster(cluster, last) => Box::pin(async move {
                let answers = cluster.send(Request::One(command), last).await?;
                Ok(answers.into_iter().next().unwrap_or(Value::Nil))
            }),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        _offset: usize,
        _count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(server) => Box::pin(server.pipeline(pipeline)),
            Self::Cluster(cluster, last) => Box::pin(cluster.send(Request::Many(pipeline), last)),
        }
    }

    fn get_db(&self) -> i64 {
        0
    }
}
