//! One instance renews the permits of a sale. More instances do not make it dearer, and the end of one interrupts no sale.

use super::outage::{unless_permits_lapse, without};
use crate::support::app;
use crate::support::crowd::{Client, Instance, Terms, World, answered, shopper_at};
use crate::support::poll::{PATIENCE, answer, within};
use crate::support::raw::Raw;
use crate::support::servers::{FreshPostgres, FreshRedis, Frozen, ReplicatedRedis, as_app, fresh_redis};
use flashsale::domain::sale::Sale;
use flashsale::scheduler::Keeper;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::recover::instances::{InstanceNote, LastNote};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

const SHARDS: u16 = 24;
/// How long renewals are counted for one figure.
const WINDOW: Duration = Duration::from_millis(2_250);
/// The time between two rounds of an instance.
const EVERY: f64 = 0.75;

/// A sale on a Redis that only these instances ask.
struct Shop {
    world: World,
    raw: Raw,
    sale: Arc<Sale>,
    instances: Vec<Instance>,
    _redis: FreshRedis,
}

impl Shop {
    async fn with(instances: usize) -> Self {
        let redis = fresh_redis();
        Self::of(World::on(redis.server.url()).await, redis, instances).await
    }

    async fn of(mut world: World, redis: FreshRedis, instances: usize) -> Self {
        let sale = world.sale(&Terms::of(100_000, SHARDS)).await;
        let mut started = Vec::new();
        for _ in 0..instances {
            started.push(world.start("all").await);
        }
        world.end_keeper().await;
        Self {
            raw: Raw::connect(&world.redis),
            world,
            sale,
            instances: started,
            _redis: redis,
        }
    }

    async fn are_renewed(&self, what: &str, is_so: impl Fn(f64) -> bool) {
        are_renewed(&self.raw, what, is_so).await;
    }

    /// Removes the instance that renews most of the permits.
    async fn take_first(&mut self) -> Instance {
        let clients: Vec<Client> = self.instances.iter().map(Instance::client).collect();
        let before = renewed_by(&clients).await;
        let mut renewed = vec![0; clients.len()];
        within(PATIENCE, "the permits are renewed", async || {
            let now = renewed_by(&clients).await;
            renewed = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            renewed.iter().sum::<i64>() >= 2 * i64::from(SHARDS)
        })
        .await;
        let first = (0..renewed.len()).max_by_key(|at| renewed[*at]);
        self.instances.remove(first.unwrap())
    }

    /// Lets shoppers buy from these instances for this long, one after the other.
    async fn sells(&self, clients: &[Client], time: Duration, round: &str) {
        let began = Instant::now();
        for (n, client) in clients.iter().cycle().enumerate() {
            if began.elapsed() >= time {
                return;
            }
            // Their home shards differ. Nobody is refused for longer than two tries take.
            let shopper = format!("{round}-{n}");
            within(Duration::from_secs(2), "a shard sells", async || {
                let answer = client.buy(self.sale.id, &shopper, "k", 1).await;
                answer.is_some_and(|answer| matches!(answer.status, 200 | 201))
            })
            .await;
        }
    }
}

/// How many permits each of these instances has renewed.
async fn renewed_by(clients: &[Client]) -> Vec<i64> {
    shown_by(clients, "flashsale_permit_renewals_total{result=\"renewed\"} ").await
}

/// The value of a metric at each of these instances.
async fn shown_by(clients: &[Client], series: &str) -> Vec<i64> {
    let mut values = Vec::new();
    for client in clients {
        let metrics = answer("the instance shows its metrics", || client.metrics()).await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        values.push(value.unwrap().parse().unwrap());
    }
    values
}

/// How many permits were given since the start: only that script asks for a stream's last id all the while.
fn renewals(redis: &Raw) -> i64 {
    let counts = redis.command_counts();
    counts.get("xinfo|stream").copied().unwrap_or_default()
}

/// Waits until each shard's permit is renewed by so many instances, within these bounds.
async fn are_renewed(redis: &Raw, what: &str, is_so: impl Fn(f64) -> bool) {
    let each = |renewals: f64| is_so(renewals / f64::from(SHARDS));
    are_counted(WINDOW, || renewals(redis), what, each).await;
}

/// Waits until so many are counted in the time of a round, within these bounds.
async fn are_counted(window: Duration, count: impl Fn() -> i64, what: &str, is_so: impl Fn(f64) -> bool) {
    let mut begun = (Instant::now(), count());
    within(PATIENCE, what, async || {
        let took = begun.0.elapsed();
        if took < window {
            return false;
        }
        let counted = count() - begun.1;
        begun = (Instant::now(), count());
        is_so(f64::from(u32::try_from(counted).unwrap()) * EVERY / took.as_secs_f64())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_instances_renew_as_many_permits_as_one() {
    for instances in [1, 4] {
        let shop = Shop::with(instances).await;
        // Each may stand in for another on a slow machine, for a while.
        shop.are_renewed("one instance renews each shard", |times| (0.4..1.8).contains(&times))
            .await;
        let clients: Vec<Client> = shop.instances.iter().map(Instance::client).collect();
        shop.sells(&clients, Duration::from_secs(2), "all").await;
        shop.world.rested(&shop.sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_cannot_read_which_others_live_all_renew() {
    let shop = Shop::with(3).await;
    shop.are_renewed("one instance renews each shard", |times| times < 1.8)
        .await;
    let notes: Vec<String> = shop.raw.call(redis::cmd("KEYS").arg("{instances:*"));
    assert_eq!(notes.len(), 1, "{notes:?}");
    // Not a hash: it can neither be read nor written.
    let _ok: String = shop.raw.call(redis::cmd("SET").arg(&notes[0]).arg("x"));
    shop.are_renewed("all instances renew each shard", |times| times > 2.2)
        .await;
    let _removed: i64 = shop.raw.call(redis::cmd("DEL").arg(&notes[0]));
    shop.are_renewed("one instance renews each shard again", |times| times < 1.8)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_goes_on_when_the_instances_that_renew_its_shards_die_or_stand_still() {
    let mut shop = Shop::with(5).await;
    shop.are_renewed("one instance renews each shard", |times| times < 1.8)
        .await;
    let mut killed = shop.take_first().await;
    killed.kill();
    let clients: Vec<Client> = shop.instances.iter().map(Instance::client).collect();
    shop.sells(&clients, Duration::from_secs(5), "killed").await;
    let suspended = shop.take_first().await;
    let clients: Vec<Client> = shop.instances.iter().map(Instance::client).collect();
    let frozen = Frozen::one(suspended.pid());
    shop.sells(&clients, Duration::from_secs(5), "suspended").await;
    drop(frozen);
    shop.are_renewed("one instance renews each shard", |times| (0.4..1.8).contains(&times))
        .await;
    shop.world.rested(&shop.sale).await;
    let errors: Vec<String> = shop.instances.iter().flat_map(Instance::errors).collect();
    assert_eq!(errors, Vec::<String>::new());
}

/// Without the ledger, no instance could let a shard sell again whose permit has lapsed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_three_instances_renew_and_the_sale_survives_all_but_one() {
    unless_permits_lapse(one_goes_on_alone).await;
}

async fn one_goes_on_alone() -> bool {
    let redis = fresh_redis();
    let mut postgres = FreshPostgres::start().await;
    let world = World::with(redis.server.url(), postgres.url()).await;
    let mut shop = Shop::of(world, redis, 5).await;
    shop.are_renewed("one instance renews each shard", |times| times < 1.8)
        .await;
    let clients = [shop.instances[0].client()];
    shop.sells(&clients, Duration::from_secs(1), "before").await;
    let outage = without(&mut postgres, async { true }, async {
        shop.are_renewed("three instances renew each shard", |times| (2.2..4.2).contains(&times))
            .await;
        for mut killed in shop.instances.drain(1..) {
            killed.kill();
        }
        shop.sells(&clients, Duration::from_secs(6), "alone").await;
    });
    outage.await.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_cannot_be_rebuilt_makes_the_renewals_of_the_others_no_dearer() {
    let shop = Shop::with(4).await;
    shop.are_renewed("one instance renews each shard", |times| times < 1.8)
        .await;
    // While the row of the shard is locked, nobody can rebuild the shard.
    let mut lock = shop.world.pool.begin().await.unwrap();
    let shard = "select from shards where sale_id = $1 and shard = 0 for update";
    sqlx::query(shard)
        .bind(shop.sale.id.0)
        .execute(&mut *lock)
        .await
        .unwrap();
    let key = ShardKey::new(shop.sale.id, 0).shard();
    let _removed: i64 = shop.raw.call(redis::cmd("DEL").arg(key));
    let clients: Vec<Client> = shop.instances.iter().map(Instance::client).collect();
    within(PATIENCE, "each instance knows that it lacks a shard", async || {
        let selling = shown_by(&clients, "flashsale_shards{state=\"selling\"} ").await;
        selling == [i64::from(SHARDS) - 1; 4]
    })
    .await;
    shop.are_renewed("one instance renews each other shard", |times| {
        (0.4..1.8).contains(&times)
    })
    .await;
    lock.rollback().await.unwrap();
    shop.world.rested(&shop.sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_instance_soon_knows_that_a_promoted_replica_has_taken_over() {
    const SOON: Duration = Duration::from_secs(2);
    let mut redis = ReplicatedRedis::start(1);
    let url = redis.primary.server.url();
    let mut world = World::on(url.clone()).await;
    let _sale = world.sale(&Terms::of(1_000, SHARDS)).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        let other = world.another().await;
        others.push((Keeper::start(&other), other));
    }
    let raw = Raw::connect(&url);
    are_renewed(&raw, "one instance renews each shard", |times| times < 1.8).await;
    redis.in_step();
    let new = redis.promote();
    let heir = app::environment(&new.primary.server.url(), &as_app(&world.database));
    let _heir = app::Instance::start(&heir, "api").may_log_errors();
    let noted = "select count(*) from superseded_servers";
    within(PATIENCE, "the ledger notes it", async || {
        let noted = sqlx::query_scalar::<_, i64>(noted).fetch_one(&world.pool);
        noted.await.unwrap() > 0
    })
    .await;
    within(SOON, "all instances know it", async || {
        let mut all = others.iter().map(|(_, other)| other).chain([&world.app]);
        all.all(|it| it.permits.count_shards().superseded == usize::from(SHARDS))
    })
    .await;
    for (keeper, _) in others {
        keeper.end().await;
    }
    world.end_keeper().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_renews_nothing_knows_the_last_event_of_each_shard() {
    let shop = Shop::with(4).await;
    shop.are_renewed("one instance renews each shard", |times| times < 1.8)
        .await;
    let client = shop.instances[0].client();
    for shard in 0..SHARDS {
        let shopper = shopper_at(&shop.sale, shard);
        within(PATIENCE, "a shard sells", async || {
            let answer = client.buy(shop.sale.id, &shopper, "k", 1).await;
            answer.is_some_and(|answer| matches!(answer.status, 200 | 201))
        })
        .await;
    }
    // As one more instance of the same ledger reads it.
    let ledger = answered("the ledger has a name", || shop.world.app.ledger.name()).await;
    let reader = note(Uuid::new_v4());
    within(PATIENCE, "each shard's event is noted once", async || {
        let noted = shop
            .world
            .app
            .stock
            .note_instance(&ledger, &reader, LastNote::default());
        let (others, _) = noted.await.unwrap();
        let sightings = others.iter().flat_map(|other| &other.note.sightings);
        let mut seen: Vec<u16> = sightings
            .filter(|it| it.shard.sale == shop.sale.id && it.last.seq == 1)
            .map(|it| it.shard.shard)
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len() == usize::from(SHARDS)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_read_the_permits_and_all_others_learn_of_them_by_notes() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let _sale = world.sale(&Terms::of(1_000, SHARDS)).await;
    let mut instances = Vec::new();
    for _ in 0..6 {
        // Jobs would read the shards, too.
        instances.push(world.start("api").await);
    }
    world.end_keeper().await;
    let raw = Raw::connect(&world.redis);
    are_renewed(&raw, "one instance renews each shard", |times| times < 1.8).await;
    let reads = || raw.command_counts().get("mget").copied().unwrap_or_default();
    are_counted(2 * WINDOW, reads, "two instances read", |reads| reads < 2.3).await;
    let clients: Vec<Client> = instances.iter().map(Instance::client).collect();
    within(PATIENCE, "all know that each shard sells", async || {
        let selling = shown_by(&clients, "flashsale_shards{state=\"selling\"} ").await;
        selling == [i64::from(SHARDS); 6]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_renew_nothing_ask_the_ledger_in_every_second_round() {
    const BULLETINS: &str = "select coalesce(sum(calls), 0)::int8 from pg_stat_statements \
                             where query like '%\"superseded!\"%'";
    let (postgres, redis) = (FreshPostgres::counting().await, fresh_redis());
    let mut world = World::with(redis.server.url(), postgres.url()).await;
    let extension = sqlx::raw_sql("create extension pg_stat_statements");
    extension.execute(&world.pool).await.unwrap();
    let _sale = world.sale(&Terms::of(1_000, SHARDS)).await;
    let mut instances = Vec::new();
    for _ in 0..5 {
        instances.push(world.start("api").await);
    }
    world.end_keeper().await;
    let clients: Vec<Client> = instances.iter().map(Instance::client).collect();
    let counts = async || {
        let rounds = shown_by(&clients, "flashsale_permit_round_duration_seconds_count ").await;
        let bulletins = sqlx::query_scalar::<_, i64>(BULLETINS).fetch_one(&world.pool);
        (rounds.iter().sum::<i64>(), bulletins.await.unwrap())
    };
    let mut before = counts().await;
    within(PATIENCE, "four of five ask less often", async || {
        let now = counts().await;
        let (rounds, bulletins) = (now.0 - before.0, now.1 - before.1);
        if rounds < 30 {
            return false;
        }
        before = now;
        // One asks in each round, and four in half of them.
        bulletins * 4 < rounds * 3
    })
    .await;
}

fn note(id: Uuid) -> InstanceNote {
    InstanceNote {
        id,
        works: false,
        serves: false,
        renews: false,
        sightings: Vec::new(),
    }
}

#[tokio::test]
async fn instances_see_each_other_until_they_end_or_fall_silent_and_only_those_of_their_ledger() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    world.end_keeper().await;
    let stock = &world.app.stock;
    let [ada, bob, eve] = [1, 2, 3].map(|id| note(Uuid::from_u128(id)));
    let noted = async |ledger: &str, own: &InstanceNote| {
        let (others, _) = stock.note_instance(ledger, own, LastNote::default()).await.unwrap();
        others.into_iter().map(|it| it.note).collect::<Vec<_>>()
    };
    assert!(noted("one", &ada).await.is_empty());
    assert!(noted("other", &eve).await.is_empty());
    assert_eq!(noted("one", &bob).await, slice::from_ref(&ada));
    assert_eq!(noted("one", &ada).await, slice::from_ref(&bob));
    stock.forget_instance("one", bob.id).await.unwrap();
    assert!(noted("one", &ada).await.is_empty());
    assert_eq!(noted("one", &bob).await, slice::from_ref(&ada));
    let mut last = LastNote::default();
    within(PATIENCE, "a silent instance is forgotten", async || {
        let noted = stock.note_instance("one", &bob, std::mem::take(&mut last)).await;
        let (others, next) = noted.unwrap();
        last = next;
        others.is_empty()
    })
    .await;
    let raw = Raw::connect(&world.redis);
    let asked = reads(&raw);
    let (others, _) = stock.note_instance("one", &bob, last).await.unwrap();
    assert!(others.is_empty());
    assert_eq!(
        reads(&raw) - asked,
        2,
        "a note takes one trip, and this question another"
    );
    let left: i64 = raw.call(redis::cmd("HLEN").arg("{instances:one}:notes"));
    assert_eq!(left, 1, "the silent one's note is removed");
    assert_eq!(noted("one", &ada).await, slice::from_ref(&bob), "its note counts");
}

/// How often the server has read from a connection.
fn reads(redis: &Raw) -> i64 {
    let stats: String = redis.call(redis::cmd("INFO").arg("stats"));
    let reads = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn what_is_left_of_permits_is_read_with_one_command() {
    let redis = fresh_redis();
    let mut world = World::on(redis.server.url()).await;
    let sale = world.sale(&Terms::of(100, SHARDS)).await;
    world.end_keeper().await;
    let shards: Vec<ShardKey> = ShardKey::all(&sale).collect();
    let raw = Raw::connect(&world.redis);
    let before = raw.command_counts();
    let left = world.app.stock.permits_left(&shards, PATIENCE).await;
    let mut used = raw.command_counts();
    used.retain(|name, count| {
        *count -= before.get(name).copied().unwrap_or_default();
        *count > 0
    });
    assert_eq!(used.get("mget"), Some(&1), "{used:?}");
    assert!(used.values().sum::<i64>() <= 3, "{used:?}");
    let is_held = |left: &Duration| (Duration::ZERO..=Duration::from_secs(3)).contains(left);
    assert!(
        left.iter()
            .all(|it| it.is_some_and(|it| it.epoch == 1 && is_held(&it.left))),
        "{left:?}"
    );
    let _flushed: String = raw.call(redis::cmd("SCRIPT").arg("FLUSH"));
    let left = world.app.stock.permits_left(&shards, PATIENCE).await;
    assert!(
        left.iter().all(|it| it.is_some_and(|it| it.left.is_zero())),
        "no script, no permit: {left:?}"
    );
    let _removed: i64 = raw.call(redis::cmd("DEL").arg(shards[0].shard()));
    let left = world.app.stock.permits_left(&shards, PATIENCE).await;
    assert!(left[0].is_none() && left[1].is_some());
}
