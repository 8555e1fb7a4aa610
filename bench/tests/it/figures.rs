//! Measurements, with real servers and instances: `./dev figures`. A figure depends on the machine, so each is printed
//! with its goal; what must hold on every machine is asserted: nothing is lost, and every unit is accounted for.

use crate::delay::delayed;
use crate::load::{Bought, Shoppers, Until, name};
use crate::support::app::{Client, Instance, JWT_SECRET, SPARING, environment, payment_body, sale_with, webhook_key};
use crate::support::collector::{Sent, collector};
use crate::support::crowd::World;
use crate::support::doubled::{Doubled, doubled_crowd};
use crate::support::poll::{self, Patience, within};
use crate::support::raw::Raw;
use crate::support::servers::{Cluster, DurableRedis, FreshPostgres, FreshRedis, ReplicatedRedis, fresh_redis};
use crate::support::window::Window;
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::ids::OrderId;
use flashsale::domain::order::webhook;
use flashsale::domain::sale::shard::home_shard;
use flashsale::stock::keys::ShardKey;
use flashsale_bench::load::{self, Latency, Tally, closed, real};
use flashsale_bench::machine::{family_seconds, processor_seconds_of};
use flashsale_bench::numbers::{median, range};
use flashsale_bench::shoppers::{self, Question};
use flashsale_bench::sql;
use flashsale_bench::wire::Wire;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, Row as _};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpSocket;
use uuid::Uuid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// Connections of a crowd.
const CLIENTS: usize = 128;
/// Servers with a replica that have each write on disk before they reply.
const REPLICATED_ON_DISK: &[(&str, &str)] = &[
    ("repl-diskless-sync-delay", "0"),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
];
/// Shards of a sale, where only one number of them is measured.
const SHARDS: u16 = 8;

/// A sale that lasts, with so many units.
fn terms(stock: i64, shards: u16, durability: &str) -> Value {
    sale_with(&json!({
        "stock": stock, "shards": shards, "durability": durability,
        "payment_window_seconds": 86_400, "per_user_limit": 1000,
    }))
}

/// An instance that does everything, and that logs, uses memory and connects to Postgres as in production.
fn start(redis: &str, database: &str) -> Instance {
    start_with(redis, database, &[])
}

fn start_with(redis: &str, database: &str, variables: &[(&str, &str)]) -> Instance {
    let mut environment = environment(redis, database);
    environment.insert("FLASHSALE_LOG".to_owned(), "info".to_owned());
    for (name, _) in SPARING {
        environment.remove(name);
    }
    environment.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    Instance::start(&environment, "all")
}

/// The URL of one more database there, with every migration.
async fn database(postgres: &FreshPostgres) -> String {
    let name = format!("figures_{}", Uuid::new_v4().simple());
    let url = sql::create_database(&postgres.url(), &name).await.unwrap();
    flashsale::ledger::migrate(&url).await.unwrap();
    url
}

async fn connect(database: &str) -> PgConnection {
    PgConnection::connect(database).await.unwrap()
}

fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let processors = std::thread::available_parallelism().unwrap();
    format!(
        "{processors} processors, load {}",
        load.split(' ').next().unwrap_or_default()
    )
}

/// The middle one, and the range.
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

fn spread(values: &[f64]) -> Spread {
    let (min, max) = range(values).unwrap();
    let median = median(values).unwrap();
    Spread { min, median, max }
}

/// The middle one and the range, with the decimals of the format.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (width, digits) = (f.width().unwrap_or(0), f.precision().unwrap_or(0));
        let Self { min, median, max } = self;
        write!(f, "{median:width$.digits$} ({min:.digits$} to {max:.digits$})")
    }
}

fn ratios(of: &[f64], to: &[f64]) -> Spread {
    spread(&of.iter().zip(to).map(|(of, to)| of / to).collect::<Vec<_>>())
}

const fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "missed" }
}

/// Shoppers of a sale, one whose home is each shard, who have not bought yet.
async fn one_a_shard(database: &str, sale: &str, shards: u16) -> Vec<String> {
    let (_, secret) = secret(&mut connect(database).await, sale).await;
    let home = |shopper: &String| home_shard(&secret, &shopper.parse().unwrap(), shards);
    let find = |shard| {
        (0..)
            .map(|n| format!("visitor-{n}"))
            .find(|it| home(it) == shard)
            .unwrap()
    };
    (0..shards).map(find).collect()
}

/// A sale's number and secret.
async fn secret(database: &mut PgConnection, sale: &str) -> (u32, [u8; 32]) {
    let row = sqlx::query("select number, secret from sales where sale_id = $1::uuid")
        .bind(sale)
        .fetch_one(database)
        .await
        .unwrap();
    let (number, secret): (i32, Vec<u8>) = (row.get(0), row.get(1));
    (u32::try_from(number).unwrap(), secret.try_into().unwrap())
}

/// When a shopper at each of the shards has bought. Each tries until a purchase is accepted.
async fn all_sell(instance: &Instance, sale: &str, shoppers: &[String], key: &str) -> Vec<Instant> {
    let buys = shoppers.iter().map(|shopper| async move {
        let patience = Patience::of(PATIENCE);
        loop {
            let answer = instance.buy(shopper, sale, key, 1).await;
            if answer.status == 201 {
                return Instant::now();
            }
            assert_eq!(answer.status, 503, "{answer:?}");
            patience.pause("a shard sells again").await;
        }
    });
    join_all(buys).await
}

/// Waits until the ledger has every order. Asks Redis alone: the operators' view counts all orders each time.
async fn drained(redis: &str, sale: &str, shards: u16) {
    let raw = Raw::connect(redis);
    let key = |shard| ShardKey {
        sale: sale.parse().unwrap(),
        shard,
    };
    let waiting = |shard| -> i64 { raw.call(redis::cmd("XLEN").arg(key(shard).events())) };
    within(PATIENCE, "everything is drained", async || {
        (0..shards).map(waiting).sum::<i64>() == 0
    })
    .await;
}

/// How many of these orders the ledger has.
async fn known(database: &str, orders: &[String]) -> usize {
    let ids: Vec<Uuid> = orders.iter().map(|id| id.parse().unwrap()).collect();
    let count: i64 = sqlx::query_scalar("select count(*) from orders where order_id = any($1)")
        .bind(ids)
        .fetch_one(&mut connect(database).await)
        .await
        .unwrap();
    usize::try_from(count).unwrap()
}

/// When Redis on this socket first answers as one that has read its files.
fn first_pong(url: &str) -> Instant {
    let socket = url.strip_prefix("unix://").unwrap().to_owned();
    let pong = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end() == "+PONG")
    };
    // It reads its files first.
    poll::patiently(PATIENCE, "Redis answers", || pong().unwrap_or(false));
    Instant::now()
}

/// Kills Redis, starts it on its files, and returns the seconds from its first answer to a purchase on each shard.
async fn restart(redis: &mut DurableRedis, selling: impl Future<Output = Vec<Instant>>) -> Vec<f64> {
    let url = redis.url();
    redis.kill();
    let (pong, sold) = std::thread::scope(|threads| {
        let answers = threads.spawn(|| first_pong(&url));
        threads.spawn(|| redis.restart());
        let sold = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(selling));
        (answers.join().unwrap(), sold)
    });
    sold.iter().map(|at| (*at - pong).as_secs_f64()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn a_restarted_redis_sells_again() {
    const ORDERS: usize = 100_000;
    const ROUNDS: usize = 5;
    const GOAL: f64 = 1.0;
    println!(
        "\nSeconds from the first PONG of a Redis that was killed to a purchase on every shard; {ORDERS} live orders, \
         one instance, Redis and Postgres with fsync; killed twice in each round; {}",
        machine()
    );
    println!("shards  restart  rounds  median    max   goal");
    for shards in [4, 8] {
        let (mut redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
        let instance = start(&redis.url(), &postgres.url());
        let sale = instance.load_sale(&terms(200_000, shards, "redis")).await;
        let crowd = Shoppers::of(ORDERS);
        let bought = crowd.buy(&instance.url, &sale, "k", CLIENTS, Until::AllHave).await;
        assert_eq!((bought.orders.len(), bought.refused), (ORDERS, 0));
        drained(&redis.url(), &sale, shards).await;
        let visitors = one_a_shard(&postgres.url(), &sale, shards).await;
        let mut seconds = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for (restarted, seconds) in seconds.iter_mut().enumerate() {
                let key = format!("{round}-{restarted}");
                let each = restart(&mut redis, all_sell(&instance, &sale, &visitors, &key)).await;
                seconds.push(spread(&each).max);
            }
        }
        for (restarted, seconds) in seconds.iter().enumerate() {
            let Spread { median, max, .. } = spread(seconds);
            println!(
                "{shards:6}  {:>7}  {ROUNDS:6}  {median:6.3} {max:6.3}  {GOAL:5.3}  {}",
                ["first", "second"][restarted],
                verdict(max <= GOAL)
            );
        }
        drained(&redis.url(), &sale, shards).await;
        instance.assert_balanced(&sale).await;
        assert_eq!(known(&postgres.url(), &bought.orders).await, ORDERS);
    }
}

/// The key of the inserted orders.
const KEY: &str = "0b0e9d5c-7a1d-4c51-8d1f-0f6c1a6f8f11";

const fn state_of(n: usize) -> &'static str {
    match n % 10 {
        0..=6 => "reserved",
        7 | 8 => "paid",
        _ => "cancelled",
    }
}

/// Puts orders into the ledger as if they had been bought, on shards that know nothing of them: of ten, seven are
/// reserved, two paid and one is cancelled; each of another shopper.
async fn insert_orders(database: &str, sale: &str, shards: u16, count: usize) {
    const BATCH: usize = 20_000;
    let mut database = connect(database).await;
    let (number, secret) = secret(&mut database, sale).await;
    let began = Utc::now() - TimeDelta::minutes(20);
    let mut last = vec![0_i64; usize::from(shards)];
    for from in (0..count).step_by(BATCH) {
        let (mut ids, mut users, mut homes, mut states) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut created, mut seqs): (Vec<DateTime<Utc>>, _) = (Vec::new(), Vec::new());
        for n in from..(from + BATCH).min(count) {
            let user = name(n).parse().unwrap();
            let home = home_shard(&secret, &user, shards);
            let seq = &mut last[usize::from(home)];
            *seq += 1;
            ids.push(OrderId::derive(number, &secret, &user, &KEY.parse().unwrap()).0);
            users.push(name(n));
            homes.push(i16::try_from(home).unwrap());
            seqs.push(*seq);
            states.push(state_of(n));
            created.push(began + TimeDelta::microseconds(i64::try_from(n).unwrap() * 500));
        }
        sqlx::query(
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
                 currency, state, created_at, expires_at, paid_at, resolved_at, epoch, seq) \
             select o.id, $1::uuid, o.shard, 'phone', o.user_id, $2, 1, 49900, 'EUR', o.state, o.created, \
                 o.created + interval '1 day', case o.state when 'paid' then o.created end, \
                 case when o.state <> 'reserved' then o.created end, 1, o.seq \
             from unnest($3::uuid[], $4::text[], $5::int2[], $6::text[], $7::timestamptz[], $8::int8[]) \
                 as o (id, user_id, shard, state, created, seq)",
        )
        .bind(sale)
        .bind(KEY)
        .bind(ids)
        .bind(users)
        .bind(homes)
        .bind(states)
        .bind(created)
        .bind(seqs)
        .execute(&mut database)
        .await
        .unwrap();
    }
    for statement in [
        "update shards s set drained_epoch = 1, drained_seq = o.seq from (select shard, max(seq) as seq from orders \
         where sale_id = $1::uuid group by shard) o where s.sale_id = $1::uuid and s.shard = o.shard",
        "update grants g set held = o.held, sold = o.sold from (select shard, \
         count(*) filter (where state = 'reserved') as held, count(*) filter (where state = 'paid') as sold \
         from orders where sale_id = $1::uuid group by shard) o where g.sale_id = $1::uuid and g.shard = o.shard",
        "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, matched_order_id, \
         received_at, settled_at) select order_id, order_id, order_id, amount_minor, currency, 'applied', order_id, \
         paid_at, paid_at from orders where sale_id = $1::uuid and state = 'paid'",
    ] {
        sqlx::query(statement).bind(sale).execute(&mut database).await.unwrap();
    }
    // As autovacuum has done by the time that a sale has so many.
    sqlx::query("vacuum analyze orders")
        .execute(&mut database)
        .await
        .unwrap();
}

/// Bytes that Redis uses.
fn memory(redis: &Raw) -> i64 {
    let info: String = redis.call(redis::cmd("INFO").arg("memory"));
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn a_million_orders_are_rebuilt() {
    const ORDERS: usize = 1_000_000;
    const ROUNDS: usize = 3;
    const GOAL: f64 = 15.0;
    println!(
        "\nSeconds from the end of FLUSHALL to a purchase on every one of {SHARDS} shards; {ORDERS} orders of as many \
         shoppers, one instance, Redis and Postgres with fsync; {}",
        machine()
    );
    let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
    let environment = (redis.url(), postgres.url());
    // It runs all the while: a worker that was away would begin with extending every hold.
    let instance = start(&environment.0, &environment.1);
    let sale = instance.load_sale(&terms(2_000_000, SHARDS, "redis")).await;
    insert_orders(&environment.1, &sale, SHARDS, ORDERS).await;
    let raw = Raw::connect(&environment.0);
    let flush = || {
        let _ok: String = raw.call(&mut redis::cmd("FLUSHALL"));
        Instant::now()
    };
    let visitors = one_a_shard(&environment.1, &sale, SHARDS).await;
    let mut seconds = Vec::new();
    let mut bytes = 0;
    for round in 0..ROUNDS {
        drained(&environment.0, &sale, SHARDS).await;
        let flushed = flush();
        let empty = memory(&raw);
        let sold = all_sell(&instance, &sale, &visitors, &format!("round-{round}")).await;
        bytes = (memory(&raw) - empty) / i64::try_from(ORDERS).unwrap();
        let each: Vec<f64> = sold.iter().map(|at| (*at - flushed).as_secs_f64()).collect();
        seconds.push(spread(&each).max);
    }
    let Spread { median, max, .. } = spread(&seconds);
    println!("rounds  median    max   goal           bytes an order in Redis");
    println!(
        "{ROUNDS:6}  {median:6.2} {max:6.2}  {GOAL:5.2}  {}  {bytes}",
        verdict(max <= GOAL)
    );
    // Every shopper's order is there under its key, as the ledger has it.
    let mut database = connect(&environment.1).await;
    let (number, secret) = secret(&mut database, &sale).await;
    for n in (0..ORDERS).step_by(ORDERS / 97) {
        let id = OrderId::derive(number, &secret, &name(n).parse().unwrap(), &KEY.parse().unwrap());
        let again = instance.buy(&name(n), &sale, KEY, 1).await.ok(200);
        assert_eq!((again.id(), again.text("state")), (id.to_string(), state_of(n)));
    }
    drained(&environment.0, &sale, SHARDS).await;
    instance.assert_balanced(&sale).await;
}

/// Puts bans of a day ago into the ledger.
async fn insert_bans(database: &str, count: i32) {
    let mut database = connect(database).await;
    let bans = "insert into bans (user_id, reason, banned_by, banned_at, change) \
                select 'bot-' || n, 'a bot', 'browsing', now() - interval '1 day', nextval('ban_changes') \
                from generate_series(1, $1) n";
    sqlx::query(bans).bind(count).execute(&mut database).await.unwrap();
    sqlx::query("vacuum analyze bans").execute(&mut database).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn a_restarted_redis_sells_again_beside_a_large_ledger() {
    const ORDERS: usize = 1_000_000;
    const BANS: i32 = 200_000;
    const PROCESSES: usize = 8;
    const ROUNDS: usize = 5;
    const GOAL: f64 = 2.0;
    println!(
        "\nSeconds from the first PONG of a Redis that was killed to a purchase on every one of {SHARDS} shards; {ORDERS} \
         orders of as many shoppers, {PROCESSES} instances, Redis and Postgres with fsync; {}",
        machine()
    );
    println!("bans      rounds  median    max   goal");
    let (mut redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
    let environment = (redis.url(), postgres.url());
    let instance = start(&environment.0, &environment.1);
    let sale = instance.load_sale(&terms(2_000_000, SHARDS, "redis")).await;
    insert_orders(&environment.1, &sale, SHARDS, ORDERS).await;
    let visitors = one_a_shard(&environment.1, &sale, SHARDS).await;
    let _ok: String = Raw::connect(&environment.0).call(&mut redis::cmd("FLUSHALL"));
    all_sell(&instance, &sale, &visitors, "rebuilt").await;
    let _others: Vec<Instance> = (1..PROCESSES).map(|_| start(&environment.0, &environment.1)).collect();
    let rebuilds = async || -> i64 {
        let mut database = connect(&environment.1).await;
        let rebuilds = sqlx::query_scalar("select sum(rebuilds)::int8 from shards where sale_id = $1::uuid");
        rebuilds.bind(&sale).fetch_one(&mut database).await.unwrap()
    };
    let before = rebuilds().await;
    for bans in [0, BANS] {
        insert_bans(&environment.1, bans).await;
        let mut seconds = Vec::new();
        for round in 0..ROUNDS {
            drained(&environment.0, &sale, SHARDS).await;
            let key = format!("{bans}-{round}");
            let each = restart(&mut redis, all_sell(&instance, &sale, &visitors, &key)).await;
            seconds.push(spread(&each).max);
        }
        let Spread { median, max, .. } = spread(&seconds);
        println!(
            "{bans:8}  {ROUNDS:6}  {median:6.3} {max:6.3}  {GOAL:5.3}  {}",
            verdict(max <= GOAL)
        );
    }
    drained(&environment.0, &sale, SHARDS).await;
    instance.assert_balanced(&sale).await;
    assert_eq!(rebuilds().await, before, "nothing was lost");
}

/// A level with its servers, its sale, and what it came to.
struct Level {
    name: &'static str,
    redis: String,
    database: String,
    instance: Instance,
    sale: String,
    rates: Vec<f64>,
    orders: Vec<String>,
}

impl Level {
    async fn start(name: &'static str, durability: &str, redis: &str, postgres: &FreshPostgres) -> Self {
        let database = database(postgres).await;
        let instance = start(redis, &database);
        let sale = instance.load_sale(&terms(10_000_000, SHARDS, durability)).await;
        Self {
            name,
            redis: redis.to_owned(),
            database,
            instance,
            sale,
            rates: Vec::new(),
            orders: Vec::new(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn what_a_durability_level_costs() {
    const ROUNDS: usize = 7;
    const TIME: Until = Until::After {
        warm: Duration::from_secs(1),
        measured: Duration::from_secs(4),
    };
    println!(
        "\nAccepted purchases a second by durability, {CLIENTS} clients on the same machine, one instance each, {SHARDS} shards, \
         Postgres with fsync; the levels take turns; {}",
        machine()
    );
    let (none, always) = (fresh_redis(), [DurableRedis::start(), DurableRedis::start()]);
    let replicated = [ReplicatedRedis::start(1), ReplicatedRedis::with(1, REPLICATED_ON_DISK)];
    let postgres = FreshPostgres::on_disk().await;
    let mut levels = [
        Level::start("redis, no append-only file", "redis", &none.server.url(), &postgres).await,
        Level::start("redis, fsync always", "redis", &always[0].url(), &postgres).await,
        Level::start(
            "replica, no append-only file",
            "replica",
            &replicated[0].primary.server.url(),
            &postgres,
        )
        .await,
        Level::start(
            "replica, fsync always on both",
            "replica",
            &replicated[1].primary.server.url(),
            &postgres,
        )
        .await,
        Level::start("postgres, fsync always", "postgres", &always[1].url(), &postgres).await,
    ];
    let shoppers = Shoppers::of(400_000);
    for round in 0..ROUNDS {
        for level in &mut levels {
            let (url, key) = (level.instance.url.clone(), format!("round-{round}"));
            let bought: Bought = shoppers.buy(&url, &level.sale, &key, CLIENTS, TIME).await;
            assert_eq!(bought.refused, 0, "{}", level.name);
            level.rates.push(real(bought.counted) / bought.seconds);
            level.orders.extend(bought.orders);
            // What is left would be drained at the cost of the next.
            drained(&level.redis, &level.sale, SHARDS).await;
        }
    }
    println!("level                              a second  of none (range)       of fsync always (range)");
    for (level, (to_none, to_always)) in levels
        .iter()
        .zip([(1.0, 0.0), (0.7, 1.0), (0.6, 0.0), (0.6, 0.6), (0.3, 0.3)])
    {
        let show = |to: &Level, goal: f64| {
            let it = ratios(&level.rates, &to.rates);
            let goal = if goal > 0.0 && goal < 1.0 {
                format!(", goal {goal}: {}", verdict(it.median >= goal))
            } else {
                String::new()
            };
            format!("{it:.2}{goal}")
        };
        println!(
            "{:32} {:10.0}  {:42} {}",
            level.name,
            spread(&level.rates).median,
            show(&levels[0], to_none),
            show(&levels[1], to_always)
        );
    }
    for level in &levels {
        assert_eq!(
            known(&level.database, &level.orders).await,
            level.orders.len(),
            "{}",
            level.name
        );
        level.instance.assert_balanced(&level.sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn what_traces_cost() {
    struct Exporter {
        name: &'static str,
        redis: FreshRedis,
        instance: Instance,
        sale: String,
        sent: Sent,
        rates: Vec<f64>,
        costs: Vec<f64>,
        purchases: usize,
        bytes: usize,
    }
    const ROUNDS: usize = 7;
    const TIME: Until = Until::After {
        warm: Duration::from_secs(1),
        measured: Duration::from_secs(4),
    };
    println!(
        "\nPurchases by what is traced, {CLIENTS} clients and a collector on the same machine, one instance each with a Redis \
         without append-only file, {SHARDS} shards; they take turns; {}",
        machine()
    );
    let postgres = FreshPostgres::start().await;
    let mut exporters = Vec::new();
    for (name, ratio) in [
        ("no exporter", None),
        ("ratio 0.01", Some("0.01")),
        ("ratio 1", Some("1")),
    ] {
        let (redis, database) = (fresh_redis(), database(&postgres).await);
        let (url, sent) = collector();
        let variables = ratio.map(|ratio| [("FLASHSALE_OTLP_URL", url.as_str()), ("FLASHSALE_OTLP_RATIO", ratio)]);
        let instance = start_with(
            &redis.server.url(),
            &database,
            variables.as_ref().map_or(&[][..], |it| it),
        );
        let sale = instance.load_sale(&terms(10_000_000, SHARDS, "redis")).await;
        exporters.push(Exporter {
            name,
            redis,
            instance,
            sale,
            sent,
            rates: Vec::new(),
            costs: Vec::new(),
            purchases: 0,
            bytes: 0,
        });
    }
    let shoppers = Shoppers::of(400_000);
    for round in 0..ROUNDS {
        for it in &mut exporters {
            let (url, key) = (it.instance.url.clone(), format!("round-{round}"));
            let before = processor_seconds_of(it.instance.pid()).unwrap();
            let bought = shoppers.buy(&url, &it.sale, &key, CLIENTS, TIME).await;
            assert_eq!(bought.refused, 0, "{}", it.name);
            // With all that comes of a purchase until it is in the ledger.
            drained(&it.redis.server.url(), &it.sale, SHARDS).await;
            let used = processor_seconds_of(it.instance.pid()).unwrap() - before;
            it.rates.push(real(bought.counted) / bought.seconds);
            it.costs.push(used * 1e6 / real(bought.orders.len()));
            it.purchases += bought.orders.len();
            it.bytes += it.sent.try_iter().map(|(_, body)| body.len()).sum::<usize>();
        }
    }
    println!("exporter       purchases a second (range)      processor µs a purchase (range)   to no exporter  sent");
    for it in &exporters {
        println!(
            "{:14} {:6.0}  {:18.0} {:20.2}  {} bytes a purchase",
            it.name,
            spread(&it.rates),
            spread(&it.costs),
            ratios(&it.costs, &exporters[0].costs),
            it.bytes / it.purchases
        );
    }
    // What was measured was exported, and nothing where there is no exporter.
    assert_eq!(exporters[0].bytes, 0);
    assert!(exporters[1].bytes > 0 && exporters[2].bytes > exporters[1].bytes);
    for it in &exporters {
        it.instance.assert_balanced(&it.sale).await;
    }
}

/// What a page notes of itself from before its first script on: when samples came, and what kept it busy for more than
/// 50 ms, when and for how long.
const NOTES: &str = "{
    const Source = EventSource;
    globalThis.noted = { samples: [], tasks: [] };
    globalThis.EventSource = class extends Source {
        constructor(...all) {
            super(...all);
            this.addEventListener('sample', () => noted.samples.push(performance.now()));
        }
    };
    new PerformanceObserver((list) => {
        noted.tasks.push(...list.getEntries().map(({ startTime, duration }) => [startTime, duration]));
    }).observe({ type: 'longtask' });
}";

/// How a live page fared while a crowd bought.
#[derive(Default)]
struct Page {
    samples_a_second: Vec<f64>,
    longest_gap_ms: Vec<f64>,
    longest_task_ms: Vec<f64>,
    /// The percentage of the time in which its main thread did something.
    busy: Vec<f64>,
}

impl Page {
    /// Seconds in which the page's main thread has done something.
    async fn worked(window: &Window) -> f64 {
        let reply = window.devtools("Performance.getMetrics", json!({})).await;
        let metrics = reply["metrics"].as_array().unwrap().iter();
        let mut found = metrics.filter(|it| it["name"] == "TaskDuration");
        found.next().unwrap()["value"].as_f64().unwrap()
    }

    /// Opens the live page of a sale, waits until it shows something, and notes what becomes of it meanwhile.
    async fn watch<T>(&mut self, window: &Window, sale: &str, meanwhile: impl Future<Output = T>) -> T {
        window.goto(&format!("/console/sales/{sale}")).await;
        window.sees("#stream", "Live").await;
        window.sees(".unit .numbers", "in all").await;
        let now = "return performance.now()";
        let (began, worked) = (window.run(now, &[]).await.as_f64().unwrap(), Self::worked(window).await);
        let outcome = meanwhile.await;
        let worked = Self::worked(window).await - worked;
        let noted = window.run("return { now: performance.now(), ...noted }", &[]).await;
        let ended = noted["now"].as_f64().unwrap();
        let samples = noted["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_f64().unwrap());
        let mut times: Vec<f64> = samples.filter(|at| *at > began && *at < ended).collect();
        self.samples_a_second.push(real(times.len()) * 1000.0 / (ended - began));
        times.insert(0, began);
        times.push(ended);
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        self.longest_gap_ms.push(gaps.fold(0.0, f64::max));
        let tasks = noted["tasks"].as_array().unwrap().iter();
        let tasks = tasks.filter(|task| task[0].as_f64().unwrap() > began);
        let longest = tasks.map(|task| task[1].as_f64().unwrap()).fold(0.0, f64::max);
        self.longest_task_ms.push(longest);
        self.busy.push(worked * 100_000.0 / (ended - began));
        outcome
    }

    fn print(&self) {
        let (samples, busy) = (spread(&self.samples_a_second), spread(&self.busy));
        let (gap, task) = (spread(&self.longest_gap_ms).max, spread(&self.longest_task_ms).max);
        println!(
            "          {samples:.2} samples a second, goal 0.3: {}; longest gap {gap:.0} ms; longest task {task:.0} ms (0: \
             none over 50), goal 200: {}; main thread busy {busy:.1} %",
            verdict(samples.min >= 0.3),
            verdict(task <= 200.0),
        );
    }
}

/// As fast as the machine sells and as fast as it refuses, in turns with the live page open and without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn live_page_beside_a_crowd() {
    // Its figures say nothing.
    let is_trial = std::env::var_os("TRIAL").is_some();
    let [warm, measured, unwatched] = if is_trial { [1, 3, 1] } else { [3, 15, 30] }.map(Duration::from_secs);
    let (rounds, time) = (if is_trial { 1 } else { 3 }, load::Window { warm, measured });
    println!(
        "\nPurchases a second without and with a live page open in Chromium, {CLIENTS} clients on the same machine, one \
         instance, {SHARDS} shards, {} s a round; {}",
        measured.as_secs(),
        machine()
    );
    let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
    let instance = start(&redis.url(), &database(&postgres).await);
    let server = instance.url.strip_prefix("http://").unwrap().parse().unwrap();
    let shoppers = shoppers::Shoppers::of(480_000, JWT_SECRET).unwrap();
    let window = Window::open(&instance).await;
    window
        .devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": NOTES}))
        .await;
    window.devtools("Performance.enable", json!({})).await;
    window.open_console("/console").await;
    let crowd = async |sale: &str| -> Tally {
        let question = Question::purchases(server, sale, &shoppers, 1);
        let stop = tokio_util::sync::CancellationToken::new();
        let tally = closed(server, &question, CLIENTS, time, &stop).await.unwrap();
        assert!(!tally.ran_out, "there are too few shoppers");
        tally
    };
    for (name, stock, status, code) in [("accepted", 10_000_000, 201, ""), ("sold out", 1, 409, "sold_out")] {
        let (mut without, mut with, mut page) = (Vec::new(), Vec::new(), Page::default());
        for _ in 0..rounds {
            for is_open in [false, true] {
                let mut terms = terms(stock, SHARDS, "redis");
                terms["items"][0]["sku"] = json!(shoppers::sku(0));
                let sale = instance.load_sale(&terms).await;
                window.goto("/console/audit-log").await;
                window.sees("#view h1", "Audit log").await;
                // After that, nobody counts any more what was watched before.
                poll::pass(unwatched).await;
                let (rates, tally) = if is_open {
                    (&mut with, page.watch(&window, &sale, crowd(&sale)).await)
                } else {
                    (&mut without, crowd(&sale).await)
                };
                // The one unit of a sale that refuses is sold before anything counts.
                assert_eq!(tally.others((status, code)), None);
                rates.push(tally.rate((status, code)).unwrap());
                drained(&redis.url(), &sale, SHARDS).await;
                instance.assert_balanced(&sale).await;
            }
        }
        let (ratio, without, with) = (ratios(&with, &without), spread(&without), spread(&with));
        println!(
            "{name:9} {without:7.0} without, {with:7.0} with, {ratio:.2} of it; goal 10,000 with: {}",
            verdict(with.median >= 10_000.0)
        );
        page.print();
    }
    window.close().await;
}

#[test]
#[ignore = "a measurement: ./dev figures"]
fn a_trial_of_the_sizes_of_sales_measures_every_one() {
    crate::trials::a_trial_of_the_sizes_measures_every_one();
}

/// Connections that a client holds without use: after a request it is idle, dribbles the next head or does not read.
async fn hold(server: SocketAddr, source: Ipv4Addr, way: usize, open: &AtomicUsize, refused: &AtomicUsize) {
    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let (Ok(mut stream), mut answer) = (socket.connect(server).await, [0; 4096]) else {
            poll::pass(Duration::from_secs(1)).await;
            continue;
        };
        let is_answered = stream.write_all(REQUEST).await.is_ok() && matches!(stream.read(&mut answer).await, Ok(1..));
        if !is_answered {
            refused.fetch_add(1, Ordering::Relaxed);
            poll::pass(Duration::from_secs(1)).await;
            continue;
        }
        open.fetch_add(1, Ordering::Relaxed);
        match way % 3 {
            0 => while let Ok(1..) = stream.read(&mut answer).await {},
            1 => {
                while stream.write_all(b"G").await.is_ok() {
                    match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut answer)).await {
                        Err(_) | Ok(Ok(1..)) => {}
                        Ok(_) => break,
                    }
                }
            }
            _ => {
                let _sent = stream
                    .write_all(&b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n".repeat(16))
                    .await;
                while stream.try_write(b"").is_ok() && stream.ready(Interest::ERROR).now_or_never().is_none() {
                    poll::pass(Duration::from_secs(1)).await;
                }
            }
        }
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether shoppers buy while others hold all the connections that they can, from one address and from many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn slow_clients_keep_nobody_from_buying() {
    const PURCHASES: usize = 300;
    // The instance keeps 512 files for itself, and so does this process.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let holders = usize::try_from(files.unwrap_or(u64::MAX))
        .unwrap()
        .saturating_sub(1200)
        .min(20_000);
    println!(
        "\n{holders} connections that are idle, dribble or do not read, on one instance; {}",
        machine()
    );
    for (name, sources) in [("one address", 1), ("200 addresses", 200)] {
        let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
        // As they ship behind a proxy.
        let limits = [
            ("FLASHSALE_ADDRESS_CONNECTIONS", ""),
            ("FLASHSALE_ADDRESS_RATE", ""),
            ("FLASHSALE_TRUSTED_PROXIES", "10.0.0.0/8"),
        ];
        let instance = start_with(&redis.url(), &database(&postgres).await, &limits);
        let server: SocketAddr = instance.url.strip_prefix("http://").unwrap().parse().unwrap();
        let sale = instance.load_sale(&terms(100_000, SHARDS, "redis")).await;
        let (open, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Threads of their own: a shopper does not wait for others in the same process.
        let crowd = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        for n in 0..holders {
            let (open, refused) = (Arc::clone(&open), Arc::clone(&refused));
            let source = Ipv4Addr::new(127, 1, 0, u8::try_from(1 + n % sources).unwrap());
            crowd.spawn(async move { hold(server, source, n / sources, &open, &refused).await });
        }
        // As many as there can be, or as one client may have.
        let most = if sources == 1 { 450 } else { holders * 9 / 10 };
        let mut least_open = usize::MAX;
        within(PATIENCE, "they are connected", async || {
            open.load(Ordering::Relaxed) >= most
        })
        .await;
        let mut took = Vec::new();
        for n in 0..PURCHASES {
            let began = Instant::now();
            // A shopper who comes now, over a connection of their own.
            let shopper = Client::at(&instance.url);
            let answer = shopper.buy(&format!("honest-{n}"), &sale, "k", 1).await;
            assert_eq!(answer.status, 201, "{answer:?}");
            took.push(began.elapsed().as_secs_f64() * 1000.0);
            least_open = least_open.min(open.load(Ordering::Relaxed));
            // No faster than one address may ask.
            poll::pass(Duration::from_millis(50)).await;
        }
        crowd.shutdown_background();
        took.sort_by(f64::total_cmp);
        println!(
            "{name:13} {PURCHASES} of {PURCHASES} bought, p50 {:.0} ms, p99 {:.0} ms; at least {least_open} connections held, {} \
             refused",
            took[PURCHASES / 2],
            took[PURCHASES * 99 / 100],
            refused.load(Ordering::Relaxed)
        );
        instance.assert_balanced(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn copies_of_a_request_at_the_same_moment() {
    const ROUNDS: usize = 20;
    let world = World::new().await;
    println!(
        "\nKeys with an order and sold_out, of 2,040 of which half are asked for twice at once through two instances; 400 \
         units on 8 shards; goal 0; {}",
        machine()
    );
    for round in 0..ROUNDS {
        let Doubled { orders, both } = doubled_crowd(&world, 400, 8, 2040).await;
        println!("{round:5}  {both} of {orders} orders  {}", verdict(both == 0));
    }
}

/// How soon the only unit sells to shoppers who ask all the time, after its order was cancelled or its hold has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn units_that_come_back_sell_again() {
    const ROUNDS: usize = 30;
    let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
    let instance = start(&redis.url(), &database(&postgres).await);
    println!(
        "\nMilliseconds until the next purchase; {ROUNDS} rounds, one unit on {SHARDS} shards; {}",
        machine()
    );
    println!("since                        median  (range)       goal");
    for (name, window, goal) in [("the answer to a cancellation", 3600, 20.0), ("the deadline", 2, 300.0)] {
        let mut terms = terms(1, SHARDS, "redis");
        terms["payment_window_seconds"] = json!(window);
        let sale = instance.load_sale(&terms).await;
        let (mut holder, mut took) = ("first".to_owned(), Vec::new());
        let mut order = instance.buy(&holder, &sale, "k", 1).await.ok(201);
        for round in 0..ROUNDS {
            let since: DateTime<Utc> = if window == 2 {
                order.text("expires_at").parse().unwrap()
            } else {
                // The drain has most orders by then, as with shoppers who think it over.
                instance.wait_for_order(&holder, &order.id(), "reserved").await;
                instance.cancel(&holder, &order.id()).await.ok(200);
                Utc::now()
            };
            for n in 0.. {
                holder = format!("{round}-{n}");
                order = instance.buy(&holder, &sale, "k", 1).await;
                if order.status == 201 {
                    break;
                }
                assert_eq!(order.code(), "sold_out", "{order:?}");
            }
            took.push((Utc::now() - since).as_seconds_f64() * 1000.0);
        }
        let took = spread(&took);
        println!("{name:28} {took:7.0}   {goal:5.0}  {}", verdict(took.median <= goal));
    }
}

/// The milliseconds that the smallest statement takes.
async fn round_trip(database: &str) -> f64 {
    let mut connection = connect(database).await;
    let mut took = Vec::new();
    for _ in 0..500 {
        let began = Instant::now();
        sqlx::query("select 1").execute(&mut connection).await.unwrap();
        took.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    spread(&took).median
}

/// The request by which the provider reports that an order of one unit was paid.
fn payment_request(server: SocketAddr, order: &str) -> Vec<u8> {
    let body = payment_body(order, order, 49_900, "EUR");
    let (id, now) = (format!("msg_{order}"), Utc::now().timestamp());
    let signature = webhook::sign(&webhook_key(), &id, now, body.as_bytes());
    let head = format!(
        "POST /v1/webhooks/payments HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nwebhook-id: {id}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: {signature}\r\n\r\n",
        body.len()
    );
    (head + body.as_str()).into_bytes()
}

/// Sends each of these requests once, over so many connections. Returns how many payments had each outcome, and the
/// seconds.
async fn report_payments(
    server: SocketAddr,
    requests: &[Vec<u8>],
    connections: usize,
    latency: &RefCell<Latency>,
) -> (BTreeMap<String, usize>, f64) {
    let (next, outcomes) = (AtomicUsize::new(0), RefCell::new(BTreeMap::new()));
    let began = Instant::now();
    let provider = (0..connections).map(|_| async {
        let mut wire = Wire::to(server);
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let asked = Instant::now();
            let seen = wire.ask_written(request).await;
            latency.borrow_mut().record(asked.elapsed());
            assert_eq!(seen.status, 200, "{}", String::from_utf8_lossy(seen.body));
            let outcome = seen.text("\"outcome\":").unwrap().to_owned();
            *outcomes.borrow_mut().entry(outcome).or_default() += 1;
        }
    });
    join_all(provider).await;
    (outcomes.into_inner(), began.elapsed().as_secs_f64())
}

/// Payments of one item, with a network between the instance and Postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn payments_of_a_hot_item() {
    const SHARDS: u16 = 4;
    const ORDERS: usize = 15_000;
    const ROUNDS: usize = 3;
    const DELAY: Duration = Duration::from_micros(250);
    const GOAL: f64 = 3000.0;
    let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
    let port = delayed(postgres.socket(), DELAY);
    let far = format!("postgres://flashsale@127.0.0.1:{port}/flashsale?sslmode=disable");
    let (near, delayed) = (round_trip(&postgres.url()).await, round_trip(&far).await);
    println!(
        "\nPayments a second of one item on {SHARDS} shards, {ORDERS} a round, {ROUNDS} rounds; one instance, Redis and Postgres \
         with fsync; each way to Postgres takes {} ms: `select 1` takes {delayed:.2} ms, and {near:.2} without that; {}",
        DELAY.as_secs_f64() * 1000.0,
        machine()
    );
    assert!(delayed >= 2.0 * DELAY.as_secs_f64() * 1000.0, "the link is too quick");
    let instance = start(&redis.url(), &far);
    let server: SocketAddr = instance.url.strip_prefix("http://").unwrap().parse().unwrap();
    let sale = instance.load_sale(&terms(1_000_000, SHARDS, "redis")).await;
    let shoppers = Shoppers::of(ORDERS);
    let (mut paid, mut requests) = (0, Vec::new());
    println!("connections  payments/s (range)      p50 ms  p99 ms   goal");
    for connections in [64, 256] {
        let (mut rates, latency) = (Vec::new(), RefCell::new(Latency::new().unwrap()));
        for round in 0..ROUNDS {
            let key = format!("{connections}-{round}");
            let bought = shoppers.buy(&instance.url, &sale, &key, CLIENTS, Until::AllHave).await;
            assert_eq!((bought.orders.len(), bought.refused), (ORDERS, 0));
            drained(&redis.url(), &sale, SHARDS).await;
            requests = bought
                .orders
                .iter()
                .map(|order| payment_request(server, order))
                .collect();
            let (outcomes, seconds) = report_payments(server, &requests, connections, &latency).await;
            // A payment whose order another transaction has locked for long is settled by a job.
            let applied = outcomes.get("applied").copied().unwrap_or(0);
            let pending = outcomes.get("pending").copied().unwrap_or(0);
            assert_eq!(applied + pending, ORDERS, "{outcomes:?}");
            rates.push(real(applied) / seconds);
            paid += ORDERS;
        }
        let (rate, took) = (spread(&rates), latency.into_inner().percentiles());
        println!(
            "{connections:11} {rate:11.0} {:12.1} {:7.1}  {GOAL:5.0}  {}",
            took.p50_ms.unwrap(),
            took.p99_ms.unwrap(),
            verdict(rate.median >= GOAL)
        );
    }
    let again = RefCell::new(Latency::new().unwrap());
    let (outcomes, _) = report_payments(server, &requests[..1000], 64, &again).await;
    assert_eq!(outcomes, BTreeMap::from([("duplicate".to_owned(), 1000)]));
    let mut database = connect(&postgres.url()).await;
    let left = "select (select count(*) from outbox) + (select count(*) from payments where outcome = 'pending')";
    within(PATIENCE, "all is settled and delivered", async || {
        let left: i64 = sqlx::query_scalar(left).fetch_one(&mut database).await.unwrap();
        left == 0
    })
    .await;
    let counted = "select (select count(*) from orders where state = 'paid'), count(*), \
                   count(*) filter (where outcome = 'applied'), count(distinct matched_order_id) from payments";
    let counted: (i64, i64, i64, i64) = sqlx::query_as(counted).fetch_one(&mut database).await.unwrap();
    let paid = i64::try_from(paid).unwrap();
    assert_eq!(counted, (paid, paid, paid, paid), "each order is paid once");
    instance.assert_balanced(&sale).await;
}

/// The servers of a sale that is sold out.
enum SoldOutOn {
    One(FreshRedis),
    Cluster(Cluster),
}

impl SoldOutOn {
    fn start(primaries: usize) -> Self {
        match primaries {
            1 => Self::One(fresh_redis()),
            _ => Self::Cluster(Cluster::start()),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::One(redis) => redis.server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The processor seconds of all primaries, and how often one of them was read for a proof or for rows.
    fn used(&self) -> [f64; 2] {
        let raws = match self {
            Self::One(redis) => vec![Raw::connect(&redis.server.url())],
            Self::Cluster(cluster) => (0..3).map(|node| cluster.node(node)).collect(),
        };
        let seconds = raws.iter().map(|raw| {
            let server: String = raw.call(redis::cmd("INFO").arg("server"));
            let pid = server.lines().find_map(|line| line.strip_prefix("process_id:"));
            processor_seconds_of(pid.unwrap().trim().parse().unwrap()).unwrap()
        });
        let readings: f64 = raws.iter().map(|raw| calls(raw, "script|exists")).sum();
        [seconds.sum(), readings / real(raws.len())]
    }
}

/// What a refusal costs while everybody is refused, on one Redis and on three primaries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn refusals_of_a_sale_that_is_sold_out() {
    const ROUNDS: usize = 3;
    let shoppers = shoppers::Shoppers::of(200_000, JWT_SECRET).unwrap();
    let time = load::Window {
        warm: Duration::from_secs(1),
        measured: Duration::from_secs(5),
    };
    println!(
        "\nRefusals of a sale whose one unit is sold; processor time of the application and of all primaries for each \
         refusal; medians of {ROUNDS} rounds in turns; {}",
        machine()
    );
    println!(
        "primaries  shards  instances  clients  refusals/s  p50 ms  p99 ms  application, us   Redis, us  \
         readings of a primary/s"
    );
    let cases = [
        (1, 8, 1, 16),
        (1, 8, 1, 128),
        (1, 64, 1, 128),
        (3, 12, 1, 128),
        (3, 48, 1, 128),
        (3, 48, 2, 128),
        (3, 48, 4, 128),
    ];
    let mut figures = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((primaries, shards, number, clients), figures) in cases.iter().zip(&mut figures) {
            let (redis, postgres) = (SoldOutOn::start(*primaries), FreshPostgres::on_disk().await);
            let instances: Vec<Instance> = (0..*number).map(|_| start(&redis.url(), &postgres.url())).collect();
            let mut terms = terms(1, *shards, "redis");
            terms["items"][0]["sku"] = json!(shoppers::sku(0));
            let sale = instances[0].load_sale(&terms).await;
            let pids: Vec<u32> = instances.iter().map(Instance::pid).collect();
            let used = || pids.iter().map(|pid| processor_seconds_of(*pid).unwrap()).sum::<f64>();
            let (before, own, began) = (redis.used(), used(), Instant::now());
            let stop = tokio_util::sync::CancellationToken::new();
            let asked = instances.iter().map(|instance| {
                let server = instance.url.strip_prefix("http://").unwrap().parse().unwrap();
                let question = Question::purchases(server, &sale, &shoppers, 1);
                let stop = &stop;
                async move { closed(server, &question, clients / number, time, stop).await.unwrap() }
            });
            let tallies = join_all(asked).await;
            let (seconds, after, own) = (began.elapsed().as_secs_f64(), redis.used(), used() - own);
            let all: f64 = tallies.iter().map(|tally| real(tally.asked)).sum();
            let rate: f64 = tallies.iter().map(|tally| tally.rate((409, "sold_out")).unwrap()).sum();
            assert!(tallies.iter().all(|tally| tally.others((409, "sold_out")).is_none()));
            let took = tallies[0].percentiles((409, "sold_out"));
            figures.push([
                rate,
                took.p50_ms.unwrap(),
                took.p99_ms.unwrap(),
                own * 1e6 / all,
                (after[0] - before[0]) * 1e6 / all,
                (after[1] - before[1]) / seconds,
            ]);
        }
    }
    for ((primaries, shards, number, clients), figures) in cases.iter().zip(&figures) {
        let [rate, p50, p99, own, redis, readings] =
            std::array::from_fn(|at| spread(&figures.iter().map(|it: &[f64; 6]| it[at]).collect::<Vec<_>>()).median);
        println!(
            "{primaries:9} {shards:7} {number:10} {clients:8} {rate:11.0} {p50:7.1} {p99:7.1} {own:16.1} {redis:11.1} \
             {readings:24.0}"
        );
    }
}

/// What instances cost that only keep a sale alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ./dev figures"]
async fn instances_that_keep_a_sale_alive() {
    const SHARDS: u16 = 256;
    const MEASURED: Duration = Duration::from_secs(30);
    const GOAL: f64 = 3.0;
    println!(
        "\nPercent of a processor of Redis and of Postgres while nobody buys; {SHARDS} shards, {} s each; {}",
        MEASURED.as_secs(),
        machine()
    );
    println!("instances   Redis  commands/s  permits/s   Postgres  transactions/s   goal at 50 of each: {GOAL}");
    for number in [1, 10, 30, 50] {
        let (redis, postgres) = (DurableRedis::start(), FreshPostgres::on_disk().await);
        let url = database(&postgres).await;
        let mut instances = vec![start(&redis.url(), &url)];
        instances[0].load_sale(&terms(100_000, SHARDS, "redis")).await;
        instances.extend((1..number).map(|_| start(&redis.url(), &url)));
        let (raw, mut ledger) = (Raw::connect(&redis.url()), connect(&url).await);
        // Each instance renews all permits of shards that it has just let sell.
        poll::pass(Duration::from_secs(25)).await;
        let before = used(&redis, &postgres, &raw, &mut ledger).await;
        let began = Instant::now();
        poll::pass(MEASURED).await;
        let seconds = began.elapsed().as_secs_f64();
        let after = used(&redis, &postgres, &raw, &mut ledger).await;
        let [redis, commands, permits, postgres, transactions] =
            std::array::from_fn(|at| (after[at] - before[at]) / seconds);
        println!(
            "{number:9} {:6.2} % {commands:10.0} {permits:10.0} {:8.2} % {transactions:14.0}   {}",
            redis * 100.0,
            postgres * 100.0,
            if number < 50 {
                "-"
            } else {
                verdict(redis * 100.0 <= GOAL && postgres * 100.0 <= GOAL)
            }
        );
    }
}

/// Processor seconds of Redis, its commands, and the permits among them; processor seconds of Postgres, and its
/// transactions.
async fn used(redis: &DurableRedis, postgres: &FreshPostgres, raw: &Raw, ledger: &mut PgConnection) -> [f64; 5] {
    let commands: String = raw.call(redis::cmd("INFO").arg("stats"));
    let commands = commands
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    let transactions = sqlx::query_scalar::<_, f64>(
        "select sum(xact_commit + xact_rollback)::float8 from pg_stat_database where datname = current_database()",
    );
    [
        processor_seconds_of(redis.pid()).unwrap(),
        commands.unwrap().trim().parse().unwrap(),
        calls(raw, "xinfo|stream"),
        family_seconds(postgres.server().pid()).unwrap(),
        transactions.fetch_one(ledger).await.unwrap(),
    ]
}

/// How often Redis ran this command, also inside of scripts.
#[expect(clippy::cast_precision_loss, reason = "some millions")]
fn calls(redis: &Raw, command: &str) -> f64 {
    let stats: String = redis.call(redis::cmd("INFO").arg("commandstats"));
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap()) as f64
}
