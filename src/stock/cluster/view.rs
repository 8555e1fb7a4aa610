//! Who has which slots of a Redis Cluster, as its nodes say.

use redis::cluster_routing::Slot;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::stock) struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// A client of this node, with the TLS settings and certificates of `other`.
    pub(in crate::stock) fn client(&self, other: &ConnectionInfo) -> RedisResult<Client> {
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

    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some(Self {
                host: host.clone(),
                port: *port,
            }),
            _ => None,
        }
    }

    /// Reads `host:port` of a redirect.
    pub(super) fn parse(address: &str, asked: &Self) -> Option<Self> {
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
pub(super) struct View {
    /// In the order of the slots.
    pub(super) primaries: Vec<(RangeInclusive<u16>, Place)>,
    pub(super) replicas: HashSet<Place>,
}

impl View {
    /// Decodes `CLUSTER SLOTS`.
    pub(super) fn decode(rows: Vec<Vec<Value>>, asked: &Place) -> RedisResult<Self> {
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

    pub(super) fn owners(&self) -> impl Iterator<Item = (Slot, &Place)> {
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

/// The view that most nodes have, and how many have it.
pub(super) fn most(views: &[View]) -> Option<(&View, usize)> {
    let votes = |view: &View| views.iter().filter(|it| it.primaries == view.primaries).count();
    let counted = views.iter().map(|view| (view, votes(view)));
    counted.max_by_key(|(_, votes)| *votes)
}
