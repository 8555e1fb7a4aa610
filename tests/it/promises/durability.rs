//! An acknowledged order is never lost at the durability of its sale. If that takes too long, the outcome is unknown and a
//! repeated key finds it.

use crate::support::app::{Answer, Instance, TestApp, environment, sale_with};
use crate::support::crowd::{Terms, World};
use crate::support::poll;
use crate::support::raw::Raw;
use crate::support::servers::{self, Frozen, ReplicatedRedis, WrongClock};
use flashsale::domain::sale::Durability;
use flashsale::flow;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};

/// The longest that a shopper may wait for any answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

fn terms(durability: &str, stock: i64) -> Value {
    sale_with(&json!({"durability": durability, "stock": stock}))
}

/// An instance on a Redis with replicas, and a database of its own.
async fn beside(redis: &ReplicatedRedis, role: &str) -> TestApp {
    TestApp::with(role, &[("FLASHSALE_REDIS_URL", &redis.primary.server.url())]).await
}

/// A purchase that is answered 503 in time, with `Retry-After`.
async fn unknown(instance: &Instance, user: &str, sale: &str) {
    let asked = poll::Stopwatch::start();
    let answer = instance.buy(user, sale, "k", 1).await.no(503, "unavailable");
    let took = asked.elapsed();
    assert!(took < ANSWER_MAX, "after {took:?}: {answer:?}");
    assert!(answer.retry_after() >= 1, "{answer:?}");
}

/// Repeats a purchase until its outcome is known.
async fn repeated(instance: &Instance, user: &str, sale: &str) -> Answer {
    poll::answer("the outcome is known", || async {
        let answer = instance.buy(user, sale, "k", 1).await;
        (answer.status != 503).then_some(answer)
    })
    .await
}

/// Repeats a purchase until it has its order, as a slow machine makes shoppers do.
async fn ordered(instance: &Instance, user: &str, sale: &str) -> Answer {
    let answer = repeated(instance, user, sale).await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    answer
}

/// The same, by so many shoppers at once.
async fn all_ordered(instance: &Instance, sale: &str, shoppers: usize) -> Vec<(String, Answer)> {
    let orders = (0..shoppers).map(|n| async move {
        let user = format!("shopper-{n}");
        let order = ordered(instance, &user, sale).await;
        (user, order)
    });
    join_all(orders).await
}

/// How many orders the ledger has of a sale.
async fn in_ledger(app: &TestApp, sale: &str) -> i64 {
    sqlx::query_scalar("select count(*) from orders where sale_id = $1::uuid")
        .bind(sale)
        .fetch_one(&mut app.database().await)
        .await
        .unwrap()
}

fn times_called(redis: &Raw, command: &str) -> u64 {
    let stats: String = redis.call(redis::cmd("INFO").arg("commandstats"));
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_refused_what_its_redis_cannot_give() {
    let mut redis = ReplicatedRedis::start(0);
    let app = beside(&redis, "api").await;
    let refusal = app
        .try_create_sale(&terms("replica", 10))
        .await
        .no(400, "invalid_request");
    for word in ["\"replica\"", "INFO replication", "REPLICAOF"] {
        assert!(refusal.text("detail").contains(word), "{refusal:?}");
    }
    for durability in ["redis", "postgres"] {
        let sale = app.create_sale(&terms(durability, 10)).await;
        assert_eq!(app.admin(&sale, "").await.ok(200).body["durability"], durability);
    }

    redis.add_replica();
    let (early, late) = (
        app.create_sale(&terms("replica", 10)).await,
        app.create_sale(&terms("replica", 10)).await,
    );
    app.operate(&early, "preload").await.ok(200);
    assert_eq!(app.admin(&early, "").await.ok(200).body["durability"], "replica");
    redis.replicas.clear();
    poll::answer("the sale is refused", || async {
        let answer = app.operate(&late, "preload").await;
        (answer.status == 400).then_some(answer)
    })
    .await;
    // A loaded sale stays loaded.
    app.operate(&early, "preload").await.ok(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_a_replica_acknowledged_outlives_the_primary() {
    let mut redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "api").await;
    // It learns that another server was promoted in place of its Redis.
    let app = TestApp {
        instance: app.instance.may_log_errors(),
        environment: app.environment,
    };
    let sale = app.load_sale(&terms("replica", 100)).await;
    let orders = all_ordered(&app, &sale, 40).await;
    servers::kill(redis.primary.server.pid());

    let database = &app.environment["FLASHSALE_DATABASE_URL"];
    let new = redis.promote();
    let heir = Instance::start(&environment(&new.primary.server.url(), database), "api");
    for (user, order) in orders {
        let found = heir.order(&user, &order.id()).await.ok(200);
        assert_eq!(found.body["state"], "reserved");
        // The new primary has no replica yet: repeating the purchase could not be acknowledged.
        unknown(&heir, &user, &sale).await;
    }
    assert_eq!(heir.units(&sale).await, [60, 40, 0]);
}

/// Forwards each new connection to the server that `target` names at that moment.
async fn forward(from: TcpListener, target: Arc<AtomicU16>) {
    loop {
        let (mut client, _) = from.accept().await.unwrap();
        let port = target.load(Ordering::SeqCst);
        tokio::spawn(async move {
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            // It ends when either side does.
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// A replica is promoted, with a replica of its own. The old primary still serves the connections that an instance has.
struct Promoted {
    old: ReplicatedRedis,
    new: ReplicatedRedis,
    app: TestApp,
    sale: String,
}

impl Promoted {
    async fn on(mut old: ReplicatedRedis, sale: &Value) -> Self {
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", front.local_addr().unwrap());
        let target = Arc::new(AtomicU16::new(old.primary.port));
        tokio::spawn(forward(front, Arc::clone(&target)));
        let app = TestApp::with("api", &[("FLASHSALE_REDIS_URL", &url)]).await;
        let sale = app.load_sale(sale).await;

        old.in_step();
        let mut new = old.promote();
        new.add_replica();
        target.store(new.primary.port, Ordering::SeqCst);
        Self { old, new, app, sale }
    }
}

/// Both primaries accept a request, and Redis's clock stands: the orders differ in nothing. Only one of them counts.
async fn copies_on_two_primaries(durability: &str) {
    let clock = WrongClock::new();
    let terms = sale_with(&json!({"durability": durability, "stock": 10, "shards": 1}));
    let Promoted { old, new, app, sale } = Promoted::on(ReplicatedRedis::with_clock(1, &clock), &terms).await;
    let old_side = app.instance.may_log_errors();
    let database = &app.environment["FLASHSALE_DATABASE_URL"];
    clock.stop();
    let new_side = Instance::start(&environment(&new.primary.server.url(), database), "all").may_log_errors();
    poll::answer("the promoted primary sells", || async {
        (new_side.buy("first", &sale, "k", 1).await.status < 300).then_some(())
    })
    .await;
    // The old primary has one order less in its stream, so that both give the next one the same event.
    old_side.buy("second", &sale, "k", 1).await;
    let one = new_side.buy("ada", &sale, "k", 1).await.ok(201);
    let other = old_side.buy("ada", &sale, "k", 1).await.ok(200);
    assert_eq!(one.body, other.body);
    let written = [&old, &new].map(|redis| -> Vec<u8> {
        let row = format!("{{{sale}:0}}:buyer:ada");
        Raw::connect(&redis.primary.server.url()).call(redis::cmd("GET").arg(row))
    });
    assert!(!written[0].is_empty() && written[0] == written[1], "{written:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_two_primaries_accept_at_once_are_one_new_order_at_replica() {
    copies_on_two_primaries("replica").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_two_primaries_accept_at_once_are_one_new_order_at_postgres() {
    copies_on_two_primaries("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_word_of_another_primary_than_the_one_that_sold_counts_for_nothing() {
    let old = ReplicatedRedis::start(1);
    let Promoted {
        old,
        new: _new,
        app,
        sale,
    } = Promoted::on(old, &terms("replica", 10)).await;
    unknown(&app, "ada", &sale).await;
    servers::kill(old.primary.server.pid());
    repeated(&app, "ada", &sale).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_replicas_reply_the_outcome_is_unknown_until_the_key_is_repeated() {
    let redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "all").await;
    let sale = app.load_sale(&terms("replica", 10)).await;
    let frozen = Frozen::one(redis.replicas[0].server.pid());
    unknown(&app, "ada", &sale).await;
    // A known key gets no answer either, as long as the replica is silent.
    unknown(&app, "ada", &sale).await;
    drop(frozen);

    let answer = repeated(&app, "ada", &sale).await.ok(200);
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!(app.units(&sale).await, [9, 1, 0]);
    let order = app.wait_for_order("ada", &answer.id(), "reserved").await;
    assert_eq!(order.id(), answer.id());
    assert_eq!(
        app.orders("ada", &sale).await.ok(200).body["data"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    app.buy("bob", &sale, "k", 1).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drain_takes_nothing_that_no_replica_has() {
    let redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "all").await;
    let careful = app.load_sale(&terms("replica", 10)).await;
    let quick = app.load_sale(&terms("redis", 10)).await;
    let frozen = Frozen::one(redis.replicas[0].server.pid());
    unknown(&app, "ada", &careful).await;
    // The drain runs a round, and takes the events that it may.
    for n in 0..3 {
        let user = format!("shopper-{n}");
        let order = app.buy(&user, &quick, "k", 1).await.ok(201);
        app.wait_for_order(&user, &order.id(), "reserved").await;
    }
    assert_eq!(in_ledger(&app, &careful).await, 0);
    assert_eq!(app.stats(&careful).await["undrained_events"], 1);

    drop(frozen);
    poll::answer("the ledger has the order", || async {
        (in_ledger(&app, &careful).await == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_is_drained_at_every_durability() {
    let redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "api").await;
    let sale = app.load_sale(&terms("replica", 10)).await;
    let order = app.buy("ada", &sale, "k", 1).await.ok(201);
    let _ok: String =
        Raw::connect(&redis.primary.server.url()).call(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1));
    app.buy("bob", &sale, "k", 1).await.no(503, "overloaded");
    let _worker = app.another("worker");
    app.wait_for_order("ada", &order.id(), "reserved").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_has_no_memory_left_is_drained() {
    let mut redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "api").await;
    // The instance reports that another Redis was promoted in place of its own.
    let app = TestApp {
        instance: app.instance.may_log_errors(),
        environment: app.environment,
    };
    let sale = app.load_sale(&terms("redis", 10)).await;
    app.buy("ada", &sale, "k", 1).await.ok(201);
    redis.in_step();
    let _ok: String =
        Raw::connect(&redis.replicas[0].server.url()).call(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1));
    servers::kill(redis.primary.server.pid());
    let new = redis.promote();
    let database = &app.environment["FLASHSALE_DATABASE_URL"];
    let _worker = Instance::start(&environment(&new.primary.server.url(), database), "worker");
    poll::answer("the ledger has the order", || async {
        (in_ledger(&app, &sale).await == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borrowed_units_arrive_once_a_replica_has_it_that_they_were_lent() {
    let redis = ReplicatedRedis::start(1);
    let mut world = World::on(redis.primary.server.url()).await;
    let terms = Terms {
        durability: Durability::Replica,
        ..Terms::of(4, 2)
    };
    let sale = world.sale(&terms).await;
    world.end_keeper().await;
    let sku = sale.items[0].sku.clone();
    let available = async || {
        let readings = world.app.stock.read_shards(&sale).await.unwrap();
        [0, 1].map(|shard: usize| readings[shard].counters(&sku).available)
    };
    let frozen = Frozen::one(redis.replicas[0].server.pid());
    let sent = flow::sell::borrow::transfer(&world.app, &sale, &sku, (0, 1), 1).await;
    assert!(matches!(&sent, Err(fault) if fault.is_passing()), "{sent:?}");
    assert_eq!(available().await, [1, 2], "a promoted replica would lend it again");
    drop(frozen);
    poll::within(Duration::from_secs(20), "the unit arrives", async || {
        let _passing = flow::sell::borrow::finish_left(&world.app, &sale, 0).await;
        available().await == [1, 3]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_purchases_wait_for_a_replica_together() {
    const SHOPPERS: usize = 64;
    let redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "api").await;
    let sale = app.load_sale(&terms("replica", 100)).await;
    app.buy("first", &sale, "k", 1).await.ok(201);
    let raw = Raw::connect(&redis.primary.server.url());
    let before = times_called(&raw, "wait");
    let frozen = Frozen::one(redis.replicas[0].server.pid());
    // As soon as Redis has all orders, the replica goes on; a shopper who has waited too long by then repeats the request.
    let thaw = async {
        poll::answer("everybody has been served", || async {
            (app.units(&sale).await[1] == 1 + i64::try_from(SHOPPERS).unwrap()).then_some(())
        })
        .await;
        drop(frozen);
    };
    let (answers, ()) = tokio::join!(app.buy_at_once(&sale, "shopper", SHOPPERS), thaw);
    // Repeats wait one by one.
    let waits = times_called(&raw, "wait") - before;
    for (user, answer) in answers {
        if answer.status == 503 {
            repeated(&app, &user, &sale).await.ok(200);
        } else {
            answer.ok(201);
        }
    }
    assert!(waits <= 16, "{waits} times for {SHOPPERS} purchases");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_and_a_forgotten_script_are_made_good() {
    let redis = ReplicatedRedis::start(1);
    let app = beside(&redis, "api").await;
    let sale = app.load_sale(&terms("replica", 100)).await;
    let raw = Raw::connect(&redis.primary.server.url());
    app.buy_at_once(&sale, "shopper", 16).await;
    let clients: String = raw.call(redis::cmd("CLIENT").arg("LIST"));
    let waiting = clients.lines().filter(|client| client.contains("cmd=wait"));
    let ids: Vec<&str> = waiting.map(|client| client.split([' ', '=']).nth(1).unwrap()).collect();
    assert!(!ids.is_empty(), "{clients}");
    for id in ids {
        let _killed: i64 = raw.call(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id));
    }
    for (_, answer) in app.buy_at_once(&sale, "shopper", 16).await {
        answer.ok(200);
    }
    let _ok: String = raw.call(redis::cmd("SCRIPT").arg("FLUSH"));
    for (_, answer) in all_ordered(&app, &sale, 16).await {
        answer.ok(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_acknowledged_by_postgres_is_committed_there() {
    for roles in [&["all"][..], &["api", "worker"]] {
        let app = TestApp::with(roles[0], &[]).await;
        let _others: Vec<Instance> = roles[1..].iter().map(|role| app.another(role)).collect();
        let sale = app.load_sale(&terms("postgres", 100)).await;
        let purchases = (0..30).map(|n| {
            let (app, sale) = (&app, &sale);
            async move {
                let user = format!("shopper-{n}");
                let order = ordered(app, &user, sale).await;
                let state: String = sqlx::query_scalar("select state from orders where order_id = $1::uuid")
                    .bind(order.id())
                    .fetch_one(&mut app.database().await)
                    .await
                    .unwrap();
                assert_eq!(
                    (state.as_str(), &order.body["confirmed"]),
                    ("reserved", &json!(true)),
                    "{order:?}"
                );
                let again = repeated(app, &user, sale).await.ok(200);
                assert_eq!(
                    (again.id(), &again.body["confirmed"]),
                    (order.id(), &json!(true)),
                    "{again:?}"
                );
            }
        });
        join_all(purchases).await;
        assert_eq!(app.units(&sale).await, [70, 30, 0], "{roles:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_elsewhere_wakes_its_waiters_also_after_a_lost_connection() {
    let app = TestApp::start_api_only().await;
    let _worker = app.another("worker");
    let sale = app.load_sale(&terms("postgres", 200)).await;
    let mut database = app.database().await;
    // Its first statement, or the check of a connection that has been silent.
    let is_listener =
        "datname = current_database() and (query ilike 'listen%' or query like 'select 1 as \"listens!\"%')";
    for round in ["first", "again"] {
        poll::answer("the instance listens", || async {
            let sql = format!("select 1 from pg_stat_activity where {is_listener}");
            let listening: Option<i32> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_optional(&mut app.database().await)
                .await
                .unwrap();
            listening
        })
        .await;
        // Without the notification, a purchase would wait for the check that comes every half second.
        let mut medians: Vec<Duration> = Vec::new();
        while medians.iter().all(|median| *median >= Duration::from_millis(400)) {
            assert!(medians.len() < 5, "{round}: {medians:?}");
            let mut waits = Vec::new();
            for n in 0..15 {
                let asked = Instant::now();
                ordered(&app, &format!("{round}-{}-{n}", medians.len()), &sale).await;
                waits.push(asked.elapsed());
            }
            waits.sort();
            medians.push(waits[7]);
        }
        let sql = format!("select pg_terminate_backend(pid, 5000) from pg_stat_activity where {is_listener}");
        let ended: Vec<bool> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_all(&mut database)
            .await
            .unwrap();
        assert_eq!(ended, [true]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_postgres_hangs_the_outcome_is_unknown_and_the_key_finds_it_later() {
    let postgres = servers::FreshPostgres::start().await;
    let instance = Instance::start(&environment(&servers::redis(), &postgres.server().url()), "all");
    let sale = instance.load_sale(&terms("postgres", 10)).await;
    instance.buy("first", &sale, "k", 1).await.ok(201);
    let frozen = Frozen::postgres(postgres.server());
    unknown(&instance, "ada", &sale).await;
    unknown(&instance, "ada", &sale).await;
    drop(frozen);

    let answer = repeated(&instance, "ada", &sale).await.ok(200);
    assert_eq!(answer.body["confirmed"], true, "{answer:?}");
    assert_eq!(instance.units(&sale).await, [8, 2, 0]);
    instance.buy("bob", &sale, "k", 1).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_that_the_ledger_refuses_is_sold_out_and_was_never_acknowledged() {
    let redis = servers::fresh_redis();
    let environment = environment(&redis.server.url(), &servers::database().await);
    let app = Instance::start(&environment, "all").may_log_errors();
    let mut terms = terms("postgres", 3);
    terms["shards"] = json!(1);
    let sale = app.load_sale(&terms).await;
    // A Redis that forgets sold units.
    let (raw, key) = (Raw::connect(&redis.server.url()), format!("{{{sale}:0}}:item:phone"));
    let before: Vec<u8> = raw.call(redis::cmd("DUMP").arg(&key));
    for user in ["a", "b"] {
        app.buy(user, &sale, "k", 1).await.ok(201);
    }
    let _ok: String = raw.call(redis::cmd("RESTORE").arg(&key).arg(0).arg(before).arg("REPLACE"));

    app.buy("c", &sale, "k", 1).await.ok(201);
    for _ in 0..2 {
        let refused = app.buy("d", &sale, "k", 1).await.no(409, "sold_out");
        assert!(refused.body.get("key_has_order").is_none(), "it has one: {refused:?}");
    }
    let listed = app.orders("d", &sale).await.ok(200);
    assert_eq!(listed.body["data"][0]["state"], "revoked", "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_the_ledger_is_not_queued_behind_orders_of_other_sales() {
    let app = TestApp::with("all", &[]).await;
    let other = app.load_sale(&terms("redis", 100)).await;
    let sale = app.load_sale(&terms("postgres", 100)).await;
    let first = app.buy("before", &sale, "k", 1).await.ok(201);
    assert_eq!(first.body["confirmed"], true, "{first:?}");
    // A long transaction holds the grants of the other sale, so that all of its shards are stuck at the ledger.
    let mut database = app.database().await;
    let mut lock = sqlx::Connection::begin(&mut database).await.unwrap();
    let grants = sqlx::query("select from grants where sale_id = $1::uuid for no key update").bind(&other);
    grants.execute(&mut *lock).await.unwrap();
    for (user, answer) in app.buy_at_once(&other, "shopper", 32).await {
        assert_eq!(answer.status, 201, "{user}: {answer:?}");
    }
    poll::answer("its drain stands before the lock", || async {
        let stuck =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let stuck: i64 = sqlx::query_scalar(stuck)
            .fetch_one(&mut app.database().await)
            .await
            .unwrap();
        (stuck > 0).then_some(())
    })
    .await;
    let answer = app.buy("meanwhile", &sale, "k", 1).await.ok(201);
    assert_eq!(answer.body["confirmed"], true, "{answer:?}");
    assert_eq!(in_ledger(&app, &other).await, 0);
    lock.rollback().await.unwrap();
}
