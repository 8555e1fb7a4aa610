//! The faults of a world while it sells: each begins, lasts, and is healed.

use super::history::{Injection, Micros};
use super::proxy::Mode;
use super::shoppers::now;
use super::world::{Kind, World};
use crate::support::crowd::ADMIN_KEY;
use crate::support::poll::pass;
use crate::support::servers::Frozen;
use flashsale::domain::ids::{SaleId, Sku};
use flashsale::stock::keys::ShardKey;
use rand::RngExt as _;
use rand::rngs::StdRng;
use std::time::Duration;

/// A fault; a number names the instance that it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`; started again, and killed and started once more.
    KillRedis,
    FreezeRedis,
    /// Every sync of its file takes so many milliseconds.
    SlowDisk(u32),
    /// Its disk is full, until it is started again with room.
    FullDisk,
    /// Each fsync fails: Redis ends itself at the first.
    BrokenDisk,
    FlushScripts,
    /// One item's units on one shard are gone.
    LoseItem,
    /// FLUSHALL.
    Flush,
    /// It is killed, and comes back empty.
    EmptyStart,
    /// It is killed, and comes back with the data of the moment when the fault began.
    OlderData,
    /// It is killed, and so many bytes are missing from the end of its file.
    TornFile(u32),
    /// It is killed, and its replica is promoted.
    FailOver,
    /// The replica is cut off first, and is promoted with the data that it had.
    FailOverBehind,
    /// The replica is promoted while the primary still runs, and every second instance goes on with the old one.
    TwoPrimaries,
    /// The primary of a shard is killed; its replica is promoted, and gets one in turn.
    KillPrimary,
    /// The slots of some shards move to other primaries.
    MoveSlots,
    LinkToRedis(usize, Mode),
    LinkToPostgres(usize, Mode),
    KillPostgres,
    FreezePostgres,
    KillInstance(usize),
    FreezeInstance(usize),
    /// An operator has the sale rebuilt, though nothing is wrong.
    Rebuild,
}

impl Fault {
    /// Whether it takes acknowledged orders from Redis.
    pub const fn may_lose(self) -> bool {
        matches!(
            self,
            Self::Flush
                | Self::EmptyStart
                | Self::OlderData
                | Self::TornFile(_)
                | Self::FailOver
                | Self::FailOverBehind
                | Self::TwoPrimaries
                | Self::KillPrimary
        )
    }

    /// Whether a world of this kind can have it, and a sale of this durability promises to survive it or to report its
    /// losses.
    pub fn suits(self, kind: Kind, durability: &str) -> bool {
        match self {
            Self::KillPrimary => kind == Kind::Cluster,
            // `MIGRATE` waits for no replica of the target node.
            Self::MoveSlots => kind == Kind::Cluster && durability != "replica",
            Self::Rebuild
            | Self::LinkToPostgres(..)
            | Self::KillPostgres
            | Self::FreezePostgres
            | Self::KillInstance(_)
            | Self::FreezeInstance(_) => true,
            _ if matches!(kind, Kind::Cluster) => false,
            Self::FailOver | Self::FailOverBehind | Self::TwoPrimaries => kind == Kind::WithReplica,
            // A replica does not help a primary that forgets and stays one.
            Self::Flush | Self::EmptyStart | Self::OlderData | Self::TornFile(_) => durability != "replica",
            _ => true,
        }
    }

    /// Whether it may begin while a fault of Redis lasts.
    const fn goes_beside(self) -> bool {
        matches!(
            self,
            Self::LinkToPostgres(..)
                | Self::KillPostgres
                | Self::FreezePostgres
                | Self::KillInstance(_)
                | Self::FreezeInstance(_)
        )
    }
}

/// How a link is broken.
const MODES: [Mode; 5] = [Mode::Cut, Mode::Stalled, Mode::Mute, Mode::Slow(30), Mode::Dribbling];

/// Which faults a run is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Campaign {
    /// All of them, on every kind of world.
    Everything,
    /// Redis killed and started twice, again and again.
    Kills,
    /// A replica is promoted, at durability `replica`.
    FailOvers,
    /// Redis loses everything, at durability `postgres`.
    TotalLosses,
}

impl Campaign {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Kills => "kills",
            Self::FailOvers => "failovers",
            Self::TotalLosses => "total-losses",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Everything, Self::Kills, Self::FailOvers, Self::TotalLosses];
        all.into_iter().find(|it| it.name() == name)
    }

    /// The kind of world, the durability and the faults of a campaign for one promise.
    pub const fn narrow(self) -> Option<(Kind, &'static str, [Fault; 2])> {
        match self {
            Self::Everything => None,
            Self::Kills => Some((Kind::One, "redis", [Fault::KillRedis, Fault::KillRedis])),
            Self::FailOvers => Some((Kind::WithReplica, "replica", [Fault::FailOver, Fault::FailOverBehind])),
            Self::TotalLosses => Some((Kind::One, "postgres", [Fault::Flush, Fault::EmptyStart])),
        }
    }
}

/// A random fault for one of so many instances.
pub fn any(random: &mut StdRng, instances: usize) -> Fault {
    let instance = random.random_range(0..instances);
    let mode = MODES[random.random_range(0..MODES.len())];
    match random.random_range(0..28) {
        0 | 1 => Fault::KillRedis,
        2 => Fault::FreezeRedis,
        3 => Fault::SlowDisk(random.random_range(10..400)),
        4 if random.random_bool(0.5) => Fault::FullDisk,
        4 => Fault::BrokenDisk,
        5 => Fault::FlushScripts,
        6 => Fault::LoseItem,
        7 => Fault::Flush,
        8 => Fault::EmptyStart,
        9 | 10 => Fault::OlderData,
        11 => Fault::TornFile(random.random_range(1..3_000)),
        12 | 13 => Fault::FailOver,
        14 => Fault::FailOverBehind,
        15 => Fault::TwoPrimaries,
        16 | 17 => Fault::LinkToRedis(instance, mode),
        18 => Fault::LinkToPostgres(instance, mode),
        19 => Fault::KillPostgres,
        20 => Fault::FreezePostgres,
        21 => Fault::KillInstance(instance),
        22 => Fault::FreezeInstance(instance),
        23 => Fault::Rebuild,
        24 | 25 => Fault::KillPrimary,
        _ => Fault::MoveSlots,
    }
}

/// A fault that lasts.
struct ActiveFault {
    fault: Fault,
    from: Micros,
    frozen: Option<Frozen>,
    older: Option<tempfile::TempDir>,
}

/// A planned fault, how long it lasts, and another one in the middle of it.
#[derive(Debug, Clone)]
pub struct PlannedFault {
    pub fault: Fault,
    pub millis: u64,
    pub beside: Option<Fault>,
    /// The pause before it.
    pub after: u64,
}

impl PlannedFault {
    pub fn any(random: &mut StdRng, kind: Kind, durability: &str, instances: usize) -> Self {
        let mut suitable = |suits: &dyn Fn(Fault) -> bool| {
            loop {
                let fault = any(random, instances);
                if suits(fault) {
                    return fault;
                }
            }
        };
        let fault = suitable(&|fault| fault.suits(kind, durability));
        let beside = suitable(&|other| other.goes_beside());
        Self {
            fault,
            millis: random.random_range(20..1_500),
            beside: (random.random_bool(0.15) && !fault.goes_beside()).then_some(beside),
            after: random.random_range(50..500),
        }
    }
}

/// Begins a fault, lets it last, and heals it. Returns the times.
pub async fn inject(world: &mut World, planned: &PlannedFault, sale: SaleId, random: &mut StdRng) -> Vec<Injection> {
    pass(Duration::from_millis(planned.after)).await;
    let first = begin(world, planned.fault, sale, random).await;
    let mut done = Vec::new();
    let half = Duration::from_millis(planned.millis / 2);
    pass(half).await;
    if let Some(beside) = planned.beside {
        let second = begin(world, beside, sale, random).await;
        pass(half).await;
        done.push(end(world, second).await);
    } else {
        pass(half).await;
    }
    done.push(end(world, first).await);
    done
}

async fn begin(world: &mut World, fault: Fault, sale: SaleId, random: &mut StdRng) -> ActiveFault {
    let from = now();
    let (mut frozen, mut older) = (None, None);
    match fault {
        Fault::KillRedis | Fault::EmptyStart | Fault::TornFile(_) => world.redis[0].kill(),
        Fault::FreezeRedis => frozen = World::freeze(world.redis[0].pid()),
        Fault::SlowDisk(millis) => world.redis[0].weaken_disk(&format!("slow {millis}")),
        Fault::FullDisk => world.redis[0].weaken_disk("full"),
        Fault::BrokenDisk => world.redis[0].weaken_disk("broken"),
        Fault::FlushScripts => {
            let _ok: String = world.redis[0].raw().call(redis::cmd("SCRIPT").arg("FLUSH"));
        }
        Fault::LoseItem => lose_item(world, sale, random).await,
        Fault::Flush => {
            let _ok: String = world.redis[0].raw().call(&mut redis::cmd("FLUSHALL"));
        }
        Fault::OlderData => older = Some(world.redis[0].copy().await),
        Fault::FailOver => fail_over(world),
        Fault::FailOverBehind => world.replication.set(Mode::Cut),
        Fault::TwoPrimaries => {
            promote(world);
            world.lead_half_to_primary();
        }
        Fault::KillPrimary => {
            let slot = slots(world, sale, random).await[0];
            let cluster = world.cluster.as_mut().unwrap();
            cluster.kill_primary_of(slot);
            cluster.add_replica_after_failover(slot);
        }
        Fault::MoveSlots => {
            for slot in slots(world, sale, random).await {
                world.cluster.as_ref().unwrap().move_slot(slot);
            }
        }
        Fault::LinkToRedis(of, mode) => world.instances[of].redis.set(mode),
        Fault::LinkToPostgres(of, mode) => world.instances[of].postgres.set(mode),
        Fault::KillPostgres => world.postgres.kill(),
        Fault::FreezePostgres => frozen = Some(Frozen::postgres(world.postgres.server())),
        Fault::KillInstance(of) => world.instances[of].kill(),
        Fault::FreezeInstance(of) => frozen = World::freeze(world.instances[of].pid()),
        Fault::Rebuild => rebuild(world, sale),
    }
    ActiveFault {
        fault,
        from,
        frozen,
        older,
    }
}

async fn end(world: &mut World, active: ActiveFault) -> Injection {
    drop(active.frozen);
    match active.fault {
        Fault::KillRedis => {
            world.redis[0].restart();
            // A tail that the first start cut off must not reappear at the second.
            world.redis[0].kill();
            world.redis[0].restart();
        }
        Fault::SlowDisk(_) => world.redis[0].weaken_disk(""),
        Fault::FullDisk | Fault::BrokenDisk => {
            world.redis[0].weaken_disk("");
            world.redis[0].restart();
        }
        Fault::EmptyStart => {
            world.redis[0].replace_data(None);
            world.redis[0].restart();
        }
        Fault::OlderData => {
            world.redis[0].kill();
            world.redis[0].replace_data(active.older.as_ref());
            world.redis[0].restart();
        }
        Fault::TornFile(bytes) => {
            world.redis[0].tear(u64::from(bytes));
            world.redis[0].restart();
        }
        Fault::FailOverBehind => {
            fail_over(world);
            world.follow_again().await;
        }
        Fault::FailOver | Fault::TwoPrimaries => world.follow_again().await,
        Fault::LinkToRedis(of, _) => world.instances[of].redis.set(Mode::Open),
        Fault::LinkToPostgres(of, _) => world.instances[of].postgres.set(Mode::Open),
        Fault::KillPostgres => world.postgres.restart(),
        Fault::KillInstance(of) => world.spawn(of),
        Fault::FreezeRedis
        | Fault::FlushScripts
        | Fault::LoseItem
        | Fault::Flush
        | Fault::KillPrimary
        | Fault::MoveSlots
        | Fault::FreezePostgres
        | Fault::FreezeInstance(_)
        | Fault::Rebuild => {}
    }
    Injection {
        what: format!("{:?}", active.fault),
        from: active.from,
        until: now(),
        may_lose: active.fault.may_lose(),
    }
}

/// The replica becomes a primary; the old one knows nothing of it.
fn promote(world: &mut World) {
    let _ok: String = world.redis[1].raw().call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
    world.redis.swap(0, 1);
}

fn fail_over(world: &mut World) {
    world.redis[0].kill();
    promote(world);
    world.lead_to_primary();
}

/// The slots of the sale's shards, from a random one on.
async fn slots(world: &World, sale: SaleId, random: &mut StdRng) -> Vec<u16> {
    let shards = world.app.sales.fixed(sale).await.unwrap().unwrap().shards;
    let first = random.random_range(0..shards);
    let cluster = world.cluster.as_ref().unwrap();
    let slot = |shard| cluster.slot(&ShardKey { sale, shard }.shard());
    (0..shards).map(|shard| slot((first + shard) % shards)).collect()
}

async fn lose_item(world: &World, sale: SaleId, random: &mut StdRng) {
    let Ok(Some(sale)) = world.app.sales.fixed(sale).await else {
        return;
    };
    let key = ShardKey {
        sale: sale.id,
        shard: random.random_range(0..sale.shards),
    };
    let sku: &Sku = &sale.items[random.random_range(0..sale.items.len())].sku;
    let _gone: i64 = world.redis[0].raw().call(redis::cmd("DEL").arg(key.item(sku)));
}

/// Asks for a rebuild, and does not wait for the answer.
fn rebuild(world: &World, sale: SaleId) {
    let url = format!(
        "http://127.0.0.1:{}/v1/admin/sales/{sale}/rebuild",
        world.instances[0].port
    );
    let asked = world
        .http
        .post(url)
        .bearer_auth(ADMIN_KEY)
        .timeout(Duration::from_secs(10));
    tokio::spawn(asked.send());
}
