//! The servers of this process: each is started when the first test asks for it and ends with the process, however
//! it ends.

use super::authority::Authority;
use super::network::{Member, Network};
use super::poll::{eventually, patiently};
use super::raw::Raw;
use super::root;
use chrono::Utc;
use flashsale::domain::connection_pools::ConnectionPools;
use flashsale::embedded::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// The folder of this process's servers, in the one that `./dev` names or in the build's folder for tests. Nothing runs at
/// the end of a test process, so each one clears the folders of earlier processes; a lock shows which of them still run.
pub static FOLDER: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
    let all = match std::env::var_os("FLASHSALE_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("it"),
    };
    fs::create_dir_all(&all).unwrap();
    for entry in fs::read_dir(&all).unwrap().flatten() {
        let left = File::open(entry.path().join("lock")).is_ok_and(|lock| lock.try_lock().is_ok());
        if left {
            // Another process may be clearing the same folder.
            let _rest = fs::remove_dir_all(entry.path());
        }
    }
    // The lock is taken before the folder has its name, so nobody finds it without.
    let fresh = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&all)
        .unwrap()
        .keep();
    let lock = File::create(fresh.join("lock")).unwrap();
    lock.lock().unwrap();
    let folder = all.join(uuid::Uuid::new_v4().simple().to_string());
    fs::rename(&fresh, &folder).unwrap();
    // Postgres runs as another user if we are root, and must be able to pass.
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, lock)
});

static REDIS: LazyLock<RedisServer> = LazyLock::new(|| start_redis(&FOLDER.0, Vec::new()));

static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(|| {
    let options = PostgresOptions {
        durable: false,
        settings: [
            ("max_connections", "800"),
            // It visits one database after the other, and there is one for each test.
            ("autovacuum_naptime", "1d"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..PostgresOptions::default()
    };
    PostgresServer::start(&FOLDER.0, &options).unwrap()
});

/// Libraries to start a server with, each built once: a weak disk, a wrong clock, and an address that connections come
/// from.
pub static WEAK_DISK: LazyLock<PathBuf> = LazyLock::new(|| library("torture/weak_disk.c"));
static WRONG_CLOCK: LazyLock<PathBuf> = LazyLock::new(|| library("support/wrong_clock.c"));
pub static FROM_ADDRESS: LazyLock<PathBuf> = LazyLock::new(|| library("support/from_address.c"));

fn library(source: &str) -> PathBuf {
    let source = root().join("tests/it").join(source);
    // On a disk: a program may not be run from memory everywhere. Other processes build the same, so it is there at once.
    let library = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(source.file_name().unwrap())
        .with_extension("so");
    let fresh = library.with_extension(std::process::id().to_string());
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&fresh, &source])
        .arg("-ldl")
        .output()
        .unwrap_or_else(|error| panic!("cc is needed to build {}, as for Rust: {error}", source.display()));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::rename(&fresh, &library).unwrap();
    library
}

fn start_redis(folder: &Path, settings: Vec<(String, String)>) -> RedisServer {
    let options = RedisOptions {
        durable: false,
        settings,
        ..RedisOptions::default()
    };
    RedisServer::start(folder, &options).unwrap()
}

/// A folder of a test's own. Servers run as another user if we are root, and must be able to pass.
pub fn own_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// The URL of the Redis that all tests share: each uses a sale of its own, and none flushes or configures it.
pub fn redis() -> String {
    REDIS.url()
}

/// A Redis of the test's own, to fill, flush, configure and stop; it ends when it is dropped.
pub struct FreshRedis {
    pub server: RedisServer,
    _folder: tempfile::TempDir,
}

pub fn fresh_redis() -> FreshRedis {
    fresh_redis_with(&[])
}

/// The same, with settings.
pub fn fresh_redis_with(settings: &[(&str, &str)]) -> FreshRedis {
    let folder = own_folder();
    let settings = settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    FreshRedis {
        server: start_redis(folder.path(), settings.collect()),
        _folder: folder,
    }
}

/// A primary and its replicas, of the test's own; they reach each other by TCP.
pub struct ReplicatedRedis {
    pub primary: TcpRedis,
    pub replicas: Vec<TcpRedis>,
    /// Of every one of them.
    settings: &'static [(&'static str, &'static str)],
    environment: Vec<(String, String)>,
}

/// A replica is served at once, instead of waiting five seconds for others.
const REPLICATED: &[(&str, &str)] = &[("repl-diskless-sync-delay", "0")];

/// One of them; it ends when it is dropped.
pub struct TcpRedis {
    pub server: RedisServer,
    pub port: u16,
    folder: tempfile::TempDir,
    options: RedisOptions,
}

/// A free port, which no other caller gets before a server takes it: below those that systems give to connections, and
/// each at most once.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    let mut tries = (0..1000).map(|_| rand::random_range(15_000..32_000));
    let free = tries.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok() && given.insert(*port));
    free.expect("a port between 15000 and 32000 is free")
}

impl TcpRedis {
    fn in_environment(settings: &[(&str, &str)], environment: Vec<(String, String)>) -> Self {
        let port = free_port();
        let own = vec![("port".to_owned(), port.to_string())];
        Self::at(port, own, settings, environment)
    }

    /// One that speaks TLS alone, to clients with a certificate.
    pub fn with_tls(authority: &Authority) -> Self {
        Self::with_tls_and(authority, &[])
    }

    fn with_tls_and(authority: &Authority, settings: &[(&str, &str)]) -> Self {
        let port = free_port();
        Self::at(port, authority.of_redis(port), settings, Vec::new())
    }

    fn at(
        port: u16,
        own: Vec<(String, String)>,
        settings: &[(&str, &str)],
        environment: Vec<(String, String)>,
    ) -> Self {
        let bind = ("bind".to_owned(), "127.0.0.1".to_owned());
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = own.into_iter().chain([bind, no_purger()]).chain(settings);
        let folder = own_folder();
        let options = RedisOptions {
            durable: false,
            settings: settings.collect(),
            environment,
        };
        Self {
            server: RedisServer::start(folder.path(), &options).unwrap(),
            port,
            folder,
            options,
        }
    }

    /// Starts one that has ended, on the data in its folder.
    fn start_again(self) -> Self {
        let Self {
            server,
            port,
            folder,
            options,
        } = self;
        drop(server);
        Self {
            server: RedisServer::start(folder.path(), &options).unwrap(),
            port,
            folder,
            options,
        }
    }

    /// A connection over TCP to this node.
    fn raw(&self) -> Raw {
        Raw::connect(&self.server.url())
    }

    /// Makes a node of a cluster the replica of another, once it knows it.
    fn replicate(&self, primary: &Self) {
        let id: String = primary.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        eventually("a replica knows its primary", || {
            let answer: Result<String, _> = self.raw().try_call(redis::cmd("CLUSTER").arg("REPLICATE").arg(&id));
            answer.is_ok()
        });
    }

    /// Waits until a replica follows it.
    fn is_followed(&self) {
        eventually("a replica follows", || {
            let info: String = self.raw().call(redis::cmd("INFO").arg("replication"));
            info.contains("state=online")
        });
    }
}

/// Clusters at once: each is six servers, and its tests measure how long the program waits for some of them.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(4)));
/// How long a test waits for its turn.
const PLACE_WITHIN: Duration = Duration::from_secs(1_800);

/// Three primaries and a replica of each, as a cluster of the test's own.
pub struct Cluster {
    /// Goes on before its nodes are ended.
    hung: Vec<Frozen>,
    nodes: Vec<TcpRedis>,
    /// Nodes that get no queries any more.
    dead: Vec<u16>,
    _place: OwnedSemaphorePermit,
}

/// A server that may become part of a cluster, whose nodes talk to each other at the port `bus`.
fn cluster_node(bus: u16) -> TcpRedis {
    cluster_node_with(bus, Vec::new())
}

fn cluster_node_with(bus: u16, environment: Vec<(String, String)>) -> TcpRedis {
    TcpRedis::in_environment(&in_cluster(&bus.to_string()), environment)
}

/// The settings of such a server.
fn in_cluster(bus: &str) -> [(&str, &str); 5] {
    [
        ("cluster-enabled", "yes"),
        ("cluster-port", bus),
        ("cluster-node-timeout", "1000"),
        ("cluster-require-full-coverage", "no"),
        ("repl-diskless-sync-delay", "0"),
    ]
}

impl Cluster {
    pub fn start() -> Self {
        Self::of(|bus, _| cluster_node(bus))
    }

    /// The same, whose nodes speak TLS alone, to each other as well.
    pub fn with_tls(authority: &Authority) -> Self {
        Self::of(|bus, _| TcpRedis::with_tls_and(authority, &in_cluster(&bus.to_string())))
    }

    /// How often each command has run on each of the three that are primaries at first.
    pub fn commands_of_primaries(&self) -> Vec<BTreeMap<String, i64>> {
        let primaries = self.nodes.iter().take(3);
        primaries.map(|node| node.raw().command_counts()).collect()
    }

    /// The same, with the clock of each node. The first three are the primaries, by their slots.
    pub fn with_clocks() -> (Self, Vec<WrongClock>) {
        let clocks: Vec<WrongClock> = (0..6).map(|_| WrongClock::new()).collect();
        let cluster = Self::of(|bus, node| cluster_node_with(bus, clocks[node].environment()));
        (cluster, clocks)
    }

    /// The same, whose nodes and clients reach the nodes through links of a network. The node of the number `n` is
    /// its member `n`. The first three are the primaries, by their slots.
    pub async fn on_network(network: &Network) -> Self {
        let (mut links, mut ports) = (Vec::new(), Vec::new());
        for member in (0..6).map(Member::number) {
            let own = [free_port(), free_port()];
            links.push([network.link(member, own[0]).await, network.link(member, own[1]).await]);
            ports.push(own);
        }
        let buses = links.iter().map(|link| link[1]).collect();
        Self::with_buses(buses, |bus, number| {
            let ([port, own_bus], link) = (ports[number], links[number][0]);
            let own_bus = own_bus.to_string();
            let mut settings = in_cluster(&own_bus).to_vec();
            let (link_text, bus) = (link.to_string(), bus.to_string());
            settings.extend([
                ("cluster-announce-ip", "127.0.0.1"),
                ("cluster-announce-port", link_text.as_str()),
                ("cluster-announce-bus-port", bus.as_str()),
                // It wins over the shorter one: a slow client still meets a primary that does not know of the cut.
                ("cluster-node-timeout", "3000"),
            ]);
            let port = vec![("port".to_owned(), port.to_string())];
            let member = Member::number(u8::try_from(number).unwrap());
            TcpRedis::at(link, port, &settings, member.environment().into())
        })
    }

    fn of(node: impl Fn(u16, usize) -> TcpRedis) -> Self {
        Self::with_buses((0..6).map(|_| free_port()).collect(), node)
    }

    /// `bus` has the ports at which the nodes find each other.
    fn with_buses(bus: Vec<u16>, node: impl Fn(u16, usize) -> TcpRedis) -> Self {
        let mut place = None;
        patiently(PLACE_WITHIN, "another cluster has ended", || {
            place = Arc::clone(&PLACES).try_acquire_owned().ok();
            place.is_some()
        });
        let nodes: Vec<TcpRedis> = bus.iter().zip(0..).map(|(bus, number)| node(*bus, number)).collect();
        let cluster = Self {
            hung: Vec::new(),
            nodes,
            dead: Vec::new(),
            _place: place.unwrap(),
        };
        let slots = [(0, 5460), (5461, 10922), (10923, 16383)];
        for (node, (from, to)) in cluster.nodes.iter().zip(slots) {
            let _ok: String = node
                .raw()
                .call(redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(from).arg(to));
        }
        // Each begins with an epoch of its own, as `redis-cli --cluster create` has it: a node that makes room for another
        // of the same epoch would claim the slots again that it has just given away.
        for (epoch, node) in (1..).zip(&cluster.nodes) {
            let mut own = redis::cmd("CLUSTER");
            let _ok: String = node.raw().call(own.arg("SET-CONFIG-EPOCH").arg::<i32>(epoch));
        }
        // Each meets all others by itself: a node spreads news of others only with its pings, about one a second.
        for (first, node) in (1..).zip(&cluster.nodes) {
            for (other, bus) in cluster.nodes.iter().zip(&bus).skip(first) {
                let mut meet = redis::cmd("CLUSTER");
                meet.arg("MEET").arg("127.0.0.1").arg(other.port).arg(*bus);
                let _ok: String = node.raw().call(&mut meet);
            }
        }
        let all_say = |what: &str| {
            eventually(what, || {
                cluster.nodes.iter().all(|node| {
                    let info: String = node.raw().call(redis::cmd("CLUSTER").arg("INFO"));
                    info.contains(what)
                })
            });
        };
        all_say("cluster_known_nodes:6");
        for (replica, primary) in cluster.nodes[3..].iter().zip(&cluster.nodes) {
            replica.replicate(primary);
        }
        all_say("cluster_state:ok");
        cluster.nodes[..3].iter().for_each(TcpRedis::is_followed);
        cluster
    }

    /// Names three running nodes.
    pub fn url(&self) -> String {
        let ports = self.alive().take(3).map(|node| format!("127.0.0.1:{}", node.port));
        format!("redis+cluster://{}", ports.collect::<Vec<_>>().join(","))
    }

    fn alive(&self) -> impl Iterator<Item = &TcpRedis> {
        self.nodes.iter().filter(|node| !self.dead.contains(&node.port))
    }

    fn primary_of(&self, slot: u16) -> &TcpRedis {
        self.owner_of(slot).unwrap_or_else(|| panic!("nobody has slot {slot}"))
    }

    /// The primary that can give this slot away: nodes hear of an earlier move at different times.
    fn giver_of(&self, slot: u16) -> &TcpRedis {
        let mut found = None;
        eventually("the slot has an owner who knows it", || {
            let knows = |node: &&TcpRedis| {
                let view: String = node.raw().call(redis::cmd("CLUSTER").arg("NODES"));
                let own = view.lines().find(|line| line.contains("myself"));
                own.is_some_and(|line| is_owner(line, slot))
            };
            found = self.owner_of(slot).filter(knows);
            found.is_some()
        });
        found.unwrap()
    }

    /// The primary that has this slot, as the first running node sees it.
    fn owner_of(&self, slot: u16) -> Option<&TcpRedis> {
        let view: String = self
            .alive()
            .next()
            .unwrap()
            .raw()
            .call(redis::cmd("CLUSTER").arg("NODES"));
        let has = |line: &&str| is_owner(line, slot);
        let line = view.lines().find(has)?;
        let address = line.split(' ').nth(1).unwrap().split('@').next().unwrap();
        let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
        self.nodes.iter().find(|node| node.port == port)
    }

    /// The number of the running primary that has this slot, as the first running node sees it.
    pub fn number_of_primary(&self, slot: u16) -> Option<u8> {
        let port = self.owner_of(slot)?.port;
        let mut numbers = (0..).zip(&self.nodes);
        numbers.find(|(_, node)| node.port == port).map(|(number, _)| number)
    }

    /// Sends this node no queries until [`Self::resume`]: it sees another cluster than the others.
    pub fn ignore_node(&mut self, number: u8) {
        self.dead.push(self.nodes[usize::from(number)].port);
    }

    /// A connection to a node past every link.
    pub fn node(&self, number: u8) -> Raw {
        self.nodes[usize::from(number)].raw()
    }

    /// The number of the primary that has this slot at first.
    pub fn first_primary_of(slot: u16) -> usize {
        [5461_u16, 10923].partition_point(|first| *first <= slot)
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> u16 {
        let any = self.alive().next().unwrap().raw();
        any.call(redis::cmd("CLUSTER").arg("KEYSLOT").arg(key))
    }

    /// Ends the primary that has this slot, as `kill -9` does.
    pub fn kill_primary_of(&mut self, slot: u16) {
        let port = self.primary_of(slot).port;
        self.kill(port);
    }

    /// Suspends the primary that has this slot at any point of its work: its connections stay, and are silent.
    pub fn hang_primary_of(&mut self, slot: u16) {
        let (pid, port) = {
            let primary = self.primary_of(slot);
            (primary.server.pid(), primary.port)
        };
        self.hung.push(Frozen::one(pid));
        self.dead.push(port);
    }

    /// Makes the primary that has this slot refuse writes, as one that has lost its replicas may. It answers reads.
    pub fn refuse_writes_at(&self, slot: u16) {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("min-replicas-to-write").arg(9);
        let _ok: String = self.primary_of(slot).raw().call(&mut set);
    }

    /// Suspends every node but the primary that has this slot: it is isolated, as with the smaller part of a cut.
    pub fn isolate_primary_of(&mut self, slot: u16) {
        let alone = self.primary_of(slot).port;
        let others = self.nodes.iter().filter(|node| node.port != alone);
        (self.hung, self.dead) = others.map(|node| (Frozen::one(node.server.pid()), node.port)).unzip();
    }

    /// The state of the cluster, as a node that has this slot reports it.
    pub fn state_at(&self, slot: u16) -> String {
        self.primary_of(slot).raw().call(redis::cmd("CLUSTER").arg("INFO"))
    }

    /// Suspends the replica of the primary that has this slot, until the returned value is dropped.
    pub fn stop_replica_of(&self, slot: u16) -> Frozen {
        Frozen::one(self.replica_of(slot).server.pid())
    }

    fn replica_of(&self, slot: u16) -> &TcpRedis {
        let info: String = self.primary_of(slot).raw().call(redis::cmd("INFO").arg("replication"));
        let port = info.split("port=").nth(1).unwrap().split(',').next().unwrap();
        self.nodes.iter().find(|node| node.port.to_string() == port).unwrap()
    }

    /// Lets suspended nodes go on, and queries all of them again.
    pub fn resume(&mut self) {
        self.hung.clear();
        self.dead.clear();
    }

    /// Starts ended nodes again. They are empty, and know the cluster.
    pub fn start_again(&mut self) {
        for port in std::mem::take(&mut self.dead) {
            let at = self.nodes.iter().position(|node| node.port == port).unwrap();
            let node = self.nodes.remove(at).start_again();
            self.nodes.insert(at, node);
        }
    }

    /// Promotes the replica of the primary that has this slot, as an operator does before a restart.
    pub fn hand_over(&self, slot: u16) {
        let (primary, replica) = (self.primary_of(slot).port, self.replica_of(slot));
        eventually("the replica has taken over", || {
            // It is refused while too few primaries are known to be there.
            let _asked: Result<String, _> = replica.raw().try_call(redis::cmd("CLUSTER").arg("FAILOVER"));
            self.owner_of(slot).is_some_and(|node| node.port != primary)
        });
    }

    /// Ends the only replica of the primary that has this slot.
    pub fn kill_replica_of(&mut self, slot: u16) {
        self.kill(self.replica_of(slot).port);
    }

    fn kill(&mut self, port: u16) {
        kill(self.nodes.iter().find(|node| node.port == port).unwrap().server.pid());
        self.dead.push(port);
    }

    /// Waits until a replica is promoted for this slot, and gives it one of its own.
    pub fn add_replica_after_failover(&mut self, slot: u16) {
        eventually("a replica has taken over", || {
            self.owner_of(slot).is_some_and(|node| !self.dead.contains(&node.port))
        });
        let (bus, seed) = (free_port(), self.alive().next().unwrap().raw());
        let replica = cluster_node(bus);
        let mut meet = redis::cmd("CLUSTER");
        let _ok: String = seed.call(meet.arg("MEET").arg("127.0.0.1").arg(replica.port).arg(bus));
        replica.replicate(self.primary_of(slot));
        self.primary_of(slot).is_followed();
        self.nodes.push(replica);
        // Otherwise nobody would vote for it, nor would it stand for election.
        let (replica, primary) = (self.nodes.last().unwrap(), self.primary_of(slot));
        let id: String = replica.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        let of: String = primary.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        eventually("every node knows the replica, and it knows its primary's slots", || {
            let view = |node: &TcpRedis| -> String { node.raw().call(redis::cmd("CLUSTER").arg("NODES")) };
            let knows = |line: &str| line.starts_with(&id) && line.contains("slave") && line.contains(&of);
            let has_slots = |line: &str| line.starts_with(&of) && line.split(' ').count() > 8;
            self.alive().all(|node| view(node).lines().any(knows)) && view(replica).lines().any(has_slots)
        });
    }

    /// Adds a primary without slots.
    pub fn add_primary(&mut self) {
        let (bus, seed) = (free_port(), self.alive().next().unwrap().raw());
        let node = cluster_node(bus);
        let mut meet = redis::cmd("CLUSTER");
        let _ok: String = seed.call(meet.arg("MEET").arg("127.0.0.1").arg(node.port).arg(bus));
        let id: String = node.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        self.nodes.push(node);
        eventually("every node knows the new one, and it takes writes", || {
            self.alive().all(|node| {
                let nodes: String = node.raw().call(redis::cmd("CLUSTER").arg("NODES"));
                let info: String = node.raw().call(redis::cmd("CLUSTER").arg("INFO"));
                let knows = |line: &str| line.starts_with(&id) && !line.contains("handshake");
                nodes.lines().any(knows) && info.contains("cluster_state:ok")
            })
        });
    }

    /// Moves a slot with its keys to the node that was added last.
    pub fn move_slot_to_newest(&self, slot: u16) {
        self.move_slot_between(slot, self.giver_of(slot), self.nodes.last().unwrap());
    }

    /// Moves a slot with its keys to another primary.
    pub fn move_slot(&self, slot: u16) {
        let from = self.giver_of(slot);
        let to = [0, 6000, 12000].map(|slot| self.primary_of(slot));
        let to = to.into_iter().find(|node| node.port != from.port).unwrap();
        self.move_slot_between(slot, from, to);
    }

    /// Begins to move a slot to another primary, which has no script. New keys are made there from now on.
    pub fn begin_to_move_slot(&self, slot: u16) {
        let from = self.giver_of(slot);
        let to = [0, 6000, 12000].map(|slot| self.primary_of(slot));
        let to = to.into_iter().find(|node| node.port != from.port).unwrap();
        let _ok: String = to.raw().call(redis::cmd("SCRIPT").arg("FLUSH"));
        open_slot(slot, from, to);
    }

    /// A few keys at a time, as `redis-cli --cluster reshard` does.
    fn move_slot_between(&self, slot: u16, from: &TcpRedis, to: &TcpRedis) {
        open_slot(slot, from, to);
        loop {
            let mut list = redis::cmd("CLUSTER");
            let keys: Vec<Vec<u8>> = from.raw().call(list.arg("GETKEYSINSLOT").arg(slot).arg(10));
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(to.port)
                .arg("")
                .arg(0)
                .arg(5000)
                .arg("KEYS")
                .arg(keys);
            let _ok: String = from.raw().call(&mut migrate);
        }
        set_slot(slot, to, "NODE", to);
        set_slot(slot, from, "NODE", to);
        // A replica that is promoted before it hears of the move leaves the slot without an owner, for ever.
        let id: String = to.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        eventually("every node knows the slot's new owner", || {
            self.alive().all(|node| {
                let view: String = node.raw().call(redis::cmd("CLUSTER").arg("NODES"));
                view.lines().any(|line| line.starts_with(&id) && is_owner(line, slot))
            })
        });
    }
}

/// Whether a line of `CLUSTER NODES` is of the primary that has this slot.
fn is_owner(line: &str, slot: u16) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let ranges = words.get(8..).unwrap_or_default();
    let is_in = |range: &&str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
    };
    words[2].contains("master") && !words[2].contains("fail") && ranges.iter().any(is_in)
}

/// Sets the new state of a slot that `at` shares with `other`.
fn set_slot(slot: u16, at: &TcpRedis, state: &str, other: &TcpRedis) {
    let id: String = other.raw().call(redis::cmd("CLUSTER").arg("MYID"));
    let mut command = redis::cmd("CLUSTER");
    let _ok: String = at.raw().call(command.arg("SETSLOT").arg(slot).arg(state).arg(id));
}

fn open_slot(slot: u16, from: &TcpRedis, to: &TcpRedis) {
    set_slot(slot, to, "IMPORTING", from);
    set_slot(slot, from, "MIGRATING", to);
}

impl ReplicatedRedis {
    /// Starts a primary and so many replicas.
    pub fn start(replicas: usize) -> Self {
        Self::with(replicas, REPLICATED)
    }

    /// The same, with these settings.
    pub fn with(replicas: usize, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self::of_every(replicas, settings, Vec::new())
    }

    /// The same, with one clock for all.
    pub fn with_clock(replicas: usize, clock: &WrongClock) -> Self {
        Self::of_every(replicas, REPLICATED, clock.environment())
    }

    fn of_every(
        replicas: usize,
        settings: &'static [(&'static str, &'static str)],
        environment: Vec<(String, String)>,
    ) -> Self {
        let mut redis = Self {
            primary: TcpRedis::in_environment(settings, environment.clone()),
            replicas: Vec::new(),
            settings,
            environment,
        };
        for _ in 0..replicas {
            redis.add_replica();
        }
        redis
    }

    /// Starts one more replica and waits until it follows.
    pub fn add_replica(&mut self) {
        let replica = TcpRedis::in_environment(self.settings, self.environment.clone());
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg("127.0.0.1").arg(self.primary.port);
        let _ok: String = Raw::connect(&replica.server.url()).call(&mut follow);
        self.replicas.push(replica);
        let (primary, expected) = (Raw::connect(&self.primary.server.url()), self.replicas.len());
        eventually("the replica follows", || {
            let info: String = primary.call(redis::cmd("INFO").arg("replication"));
            info.matches("state=online").count() == expected
        });
    }

    /// Waits until every replica has all data of the primary.
    pub fn in_step(&self) {
        let offset = |redis: &TcpRedis, name: &str| -> String {
            let info: String = Raw::connect(&redis.server.url()).call(redis::cmd("INFO").arg("replication"));
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.to_owned()
        };
        eventually("the replicas are in step", || {
            let expected = offset(&self.primary, "master_repl_offset:");
            let mut replicas = self.replicas.iter();
            replicas.all(|replica| offset(replica, "slave_repl_offset:") == expected)
        });
    }

    /// Makes a replica a primary of its own, regardless of the old one.
    pub fn promote(&mut self) -> Self {
        let primary = self.replicas.remove(0);
        let _ok: String = Raw::connect(&primary.server.url()).call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
        Self {
            primary,
            replicas: Vec::new(),
            settings: self.settings,
            environment: self.environment.clone(),
        }
    }
}

/// Suspended processes, as if the machine hung, until this is dropped.
pub struct Frozen(Vec<u32>);

impl Frozen {
    /// A server without children.
    pub fn one(pid: u32) -> Self {
        stop(&[pid]);
        Self(vec![pid])
    }

    /// A Postgres: no new session begins, and the present ones stand still.
    pub fn postgres(server: &PostgresServer) -> Self {
        stop(&[server.pid()]);
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
        let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        stop(&children);
        Self([vec![server.pid()], children].concat())
    }
}

/// Suspends processes. A thread that runs goes on for a moment after the signal, so this waits until all stand still.
fn stop(pids: &[u32]) {
    signal("STOP", pids);
    let stands_still = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets; an ended thread has none.
        !stat
            .rsplit(") ")
            .next()
            .is_some_and(|it| it.starts_with(['R', 'S', 'D']))
    };
    eventually("the processes stand still", || {
        let threads = pids
            .iter()
            .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
        threads.flatten().flatten().all(stands_still)
    });
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}

/// Ends a server without warning, as `kill -9` does.
pub fn kill(pid: u32) {
    signal("KILL", &[pid]);
}

pub fn signal(name: &str, pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -s {name} {}", pids.join(" "));
    // One of them may have ended by itself.
    let _sent = Command::new("sh").args(["-c", &script]).status().unwrap();
}

/// The clock of a process, which can be set.
pub struct WrongClock(PathBuf);

impl WrongClock {
    /// A clock that is right.
    pub fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let clock = FOLDER.0.join(format!("clock-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        let clock = Self(clock);
        clock.set(0);
        clock
    }

    /// Sets it to so many milliseconds after the right time, or before it. In one step: the server reads it all the while.
    pub fn set(&self, millis: i64) {
        self.write(&millis.to_string());
    }

    /// Makes it stand at the right time.
    pub fn stop(&self) {
        self.write(&format!("0 {}", Utc::now().timestamp_millis()));
    }

    fn write(&self, text: &str) {
        let next = self.0.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, &self.0).unwrap();
    }

    /// The variables of the process that has it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
        vec![variable("LD_PRELOAD", &WRONG_CLOCK), variable("WRONG_CLOCK", &self.0)]
    }
}

/// The setting by which Redis has no thread that purges memory. On a wrong clock that thread never sleeps: it waits by the
/// right one, for moments of the wrong one.
fn no_purger() -> (String, String) {
    ("jemalloc-bg-thread".to_owned(), "no".to_owned())
}

/// A Redis of the test's own whose clock can be set.
pub fn redis_with_clock() -> (FreshRedis, WrongClock) {
    let (folder, clock) = (own_folder(), WrongClock::new());
    let options = RedisOptions {
        durable: false,
        settings: vec![no_purger()],
        environment: clock.environment(),
    };
    let server = RedisServer::start(folder.path(), &options).unwrap();
    let redis = FreshRedis {
        server,
        _folder: folder,
    };
    (redis, clock)
}

/// A Redis of the test's own that keeps acknowledged data, to kill and to start again on the same folder.
pub struct DurableRedis {
    server: Option<RedisServer>,
    folder: tempfile::TempDir,
}

impl DurableRedis {
    pub fn start() -> Self {
        let mut redis = Self {
            server: None,
            folder: own_folder(),
        };
        redis.restart();
        redis
    }

    /// One that starts on a copy of these append-only files.
    pub fn on(files: &Path) -> Self {
        let folder = own_folder();
        let data = folder.path().join("redis/appendonlydir");
        fs::create_dir_all(&data).unwrap();
        copy_files(files, &data);
        let mut redis = Self { server: None, folder };
        redis.restart();
        redis
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server.as_ref().unwrap().url()
    }

    pub fn pid(&self) -> u32 {
        self.server.as_ref().unwrap().pid()
    }

    /// `kill -9`, by its id.
    pub fn kill(&mut self) {
        let server = self.server.take().unwrap();
        kill(server.pid());
        super::poll::eventually("Redis has ended", || server.ended().is_some());
    }

    /// Starts it on the data in its folder.
    pub fn restart(&mut self) {
        self.server = Some(RedisServer::start(self.folder.path(), &RedisOptions::default()).unwrap());
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("redis/appendonlydir")
    }

    /// The file that it writes to now.
    pub fn newest_file(&self) -> PathBuf {
        let files = fs::read_dir(self.data()).unwrap().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
        files
            .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
            .unwrap()
    }

    /// A copy of its data as they are now.
    pub fn copy(&self) -> tempfile::TempDir {
        let copy = own_folder();
        copy_files(&self.data(), copy.path());
        copy
    }

    /// Puts older data in the place of those of a server that was killed.
    pub fn go_back_to(&self, copy: &tempfile::TempDir) {
        fs::remove_dir_all(self.data()).unwrap();
        fs::create_dir(self.data()).unwrap();
        copy_files(copy.path(), &self.data());
    }
}

/// Copies a folder with everything in it, its owners too.
fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Copies files into a folder, which goes with them to the owner of the one above it: root's servers run as another user.
pub fn copy_files(from: &Path, to: &Path) {
    let owner = fs::metadata(to.parent().unwrap()).unwrap();
    let give = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy).unwrap();
        give(&copy);
    }
    give(to);
}

/// The files of a server with one database that has every migration: copies start sooner than new ones are made.
async fn migrated_files() -> &'static Path {
    static FILES: OnceCell<PathBuf> = OnceCell::const_new();
    let files = FILES.get_or_init(|| async {
        let folder = FOLDER.0.join("migrated");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let options = PostgresOptions {
            durable: false,
            ..PostgresOptions::default()
        };
        let server = PostgresServer::start(&folder, &options).unwrap();
        flashsale::ledger::migrate(&server.url()).await.unwrap();
        has_no_age(&server.url()).await;
        server.stop();
        folder.join("postgres")
    });
    files.await
}

/// The age of a template is no outage: the first heartbeat in a copy follows one that is yet to come.
async fn has_no_age(template: &str) {
    let mut template = <sqlx::PgConnection as sqlx::Connection>::connect(template)
        .await
        .unwrap();
    let fresh = "update heartbeat set beaten_at = now() + interval '1 day'";
    sqlx::query(fresh).execute(&mut template).await.unwrap();
    sqlx::Connection::close(template).await.unwrap();
}

/// A copy is the same ledger by its name: in one Redis, its instances would count on those of the other copies.
async fn is_another_ledger(copy: &str) {
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(copy).await.unwrap();
    let rename = "update _sqlx_migrations set installed_on = clock_timestamp()";
    sqlx::query(rename).execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
}

/// A Postgres of the test's own with one database that has every migration, to stop and to start again.
pub struct FreshPostgres {
    server: Option<PostgresServer>,
    folder: tempfile::TempDir,
    options: PostgresOptions,
}

impl FreshPostgres {
    pub async fn start() -> Self {
        Self::with(PostgresOptions {
            durable: false,
            ..PostgresOptions::default()
        })
        .await
    }

    /// One on a disk that may fill up: its fault is written into the returned file; see `weak_disk.c`.
    pub async fn on_weak_disk() -> (Self, PathBuf) {
        let disk = FOLDER.0.join(format!("disk-{}", uuid::Uuid::new_v4().simple()));
        fs::write(&disk, "").unwrap();
        let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
        let postgres = Self::with(PostgresOptions {
            durable: false,
            environment: vec![variable("LD_PRELOAD", &WEAK_DISK), variable("WEAK_DISK", &disk)],
            ..PostgresOptions::default()
        });
        (postgres.await, disk)
    }

    /// One whose commits are on disk, for several instances.
    pub async fn on_disk() -> Self {
        Self::with(PostgresOptions {
            durable: true,
            settings: vec![("max_connections".to_owned(), "800".to_owned())],
            ..PostgresOptions::default()
        })
        .await
    }

    /// One with this clock.
    pub async fn with_clock(clock: &WrongClock) -> Self {
        Self::with(PostgresOptions {
            durable: false,
            environment: clock.environment(),
            ..PostgresOptions::default()
        })
        .await
    }

    /// One that counts its statements.
    pub async fn counting() -> Self {
        Self::with(PostgresOptions {
            durable: false,
            settings: vec![("shared_preload_libraries".to_owned(), "pg_stat_statements".to_owned())],
            ..PostgresOptions::default()
        })
        .await
    }

    async fn with(options: PostgresOptions) -> Self {
        let folder = own_folder();
        // Postgres runs as another user if we are root, and must be able to pass.
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let files = migrated_files().await;
        // A server whose user may not enter this folder has its files elsewhere, behind a link.
        if !files.is_symlink() {
            copy_folder(files, &folder.path().join("postgres"));
        }
        let mut postgres = Self {
            server: None,
            folder,
            options,
        };
        postgres.restart();
        flashsale::ledger::migrate(&postgres.url()).await.unwrap();
        is_another_ledger(&postgres.url()).await;
        postgres
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server().url()
    }

    pub fn server(&self) -> &PostgresServer {
        self.server.as_ref().unwrap()
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("postgres/data")
    }

    /// A copy of its data, to be taken while it is stopped.
    pub fn copy(&self) -> tempfile::TempDir {
        let copy = own_folder();
        copy_folder(&self.data(), &copy.path().join("data"));
        copy
    }

    /// Puts an earlier copy in the place of its data, while it is stopped.
    pub fn go_back_to(&self, copy: &tempfile::TempDir) {
        fs::remove_dir_all(self.data()).unwrap();
        copy_folder(&copy.path().join("data"), &self.data());
    }

    /// Ends it as `kill -9` does, if it runs; its sessions see that and end.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take()
            && server.ended().is_none()
        {
            kill(server.pid());
            eventually("Postgres has ended", || server.ended().is_some());
        }
    }

    /// Starts it on the data in its folder; does nothing while it runs.
    pub fn restart(&mut self) {
        if self.server.as_ref().is_some_and(|server| server.ended().is_none()) {
            return;
        }
        self.server = None;
        self.server = Some(PostgresServer::start(self.folder.path(), &self.options).unwrap());
    }
}

/// The URL of a database of the test's own for the superuser, with every migration applied by the role that owns the tables.
pub async fn database() -> String {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    let server = POSTGRES.url();
    let template = TEMPLATE
        .get_or_init(|| async {
            let name = create_database(&server, "template1").await;
            let (url, passwords) = (database_url(&server, &name), FOLDER.0.join("roles"));
            fs::create_dir(&passwords).unwrap();
            for role in ["owner", "app"] {
                fs::write(passwords.join(role), role).unwrap();
            }
            make_roles(&url, &passwords);
            let owner = as_role(&url, "flashsale_owner");
            flashsale::ledger::migrate(&owner).await.unwrap();
            has_no_age(&url).await;
            name
        })
        .await;
    database_url(&server, &create_database(&server, template).await)
}

/// The same on a database that sorts text as people do, not by its bytes.
pub async fn database_of_people() -> String {
    let server = POSTGRES.url();
    let template = "template0 locale_provider icu icu_locale 'en-US'";
    let url = database_url(&server, &create_database(&server, template).await);
    flashsale::ledger::migrate(&url).await.unwrap();
    url
}

/// The URL of a database of the test's own that a dump fills, with every migration since.
pub async fn database_of_dump(dump: &Path, and: &str) -> String {
    let server = POSTGRES.url();
    let url = database_url(&server, &create_database(&server, "template0").await);
    let connected = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await;
    let dump = fs::read_to_string(dump).unwrap() + and;
    let filled = sqlx::raw_sql(sqlx::AssertSqlSafe(dump))
        .execute(&mut connected.unwrap())
        .await;
    filled.unwrap();
    flashsale::ledger::migrate(&url).await.unwrap();
    url
}

async fn create_database(server: &str, template: &str) -> String {
    let name = format!("it_{}", uuid::Uuid::new_v4().simple());
    let connected = <sqlx::PgConnection as sqlx::Connection>::connect(server).await;
    let mut connection = connected.unwrap();
    // Both are ours.
    let statement = sqlx::AssertSqlSafe(format!("create database {name} template {template}"));
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    name
}

/// Makes the roles of the compose file in a database, with the passwords in the files of a folder.
pub fn make_roles(database: &str, passwords: &Path) {
    run_script("roles.sql", database, passwords);
}

/// Runs a script of the folder `compose` as the superuser, with the passwords in the files of a folder.
pub fn run_script(name: &str, database: &str, passwords: &Path) {
    let (scripts, here) = (root().join("compose"), format!("{}/", passwords.display()));
    for script in ["roles.sql", "one-role.sql"] {
        let written = fs::read_to_string(scripts.join(script))
            .unwrap()
            .replace("/secrets/", &here)
            .replace("/docker-entrypoint-initdb.d/", &here);
        fs::write(passwords.join(script), written).unwrap();
    }
    let ran = Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-f"])
        .arg(passwords.join(name))
        .output()
        .expect("psql is part of Debian's package postgresql-client");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// The URL of the superuser, for another role.
pub fn as_role(url: &str, role: &str) -> String {
    let (database, _superuser) = url.rsplit_once("user=").unwrap();
    format!("{database}user={role}")
}

/// The URL of a database from [`database`] for the role that serves, which owns nothing.
pub fn as_app(url: &str) -> String {
    as_role(url, "flashsale_app")
}

fn database_url(server: &str, name: &str) -> String {
    let (_, options) = server.split_once('?').unwrap();
    format!("postgres:///{name}?{options}")
}

#[tokio::test]
async fn every_test_has_a_migrated_database_of_its_own() {
    let (one, other) = (database().await, database().await);
    assert_ne!(one, other);
    for url in [one, other] {
        let ledger = flashsale::ledger::Ledger::connect(&url, ConnectionPools::default())
            .await
            .unwrap();
        assert_eq!(ledger.migrations_missing().await.unwrap(), 0);
        ledger.close().await;
    }
}
