//! Redis Clusters, and what happens to their nodes.

use super::{Frozen, TcpRedis, WrongClock, free_port, kill};
use crate::support::authority::Authority;
use crate::support::network::{Member, Network};
use crate::support::poll::{eventually, patiently};
use crate::support::raw::Raw;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Clusters at once: each is six servers, and its tests measure how long the program waits for some of them.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(6)));
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
