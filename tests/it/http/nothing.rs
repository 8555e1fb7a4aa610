//! Floods of requests for what does not exist: answered from memory, without Redis or Postgres.

use crate::support::app::{Client, Instance, TestApp, Who, environment, sale};
use crate::support::poll;
use crate::support::raw::Raw;
use crate::support::servers::{database, fresh_redis};
use futures_util::future::join_all;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

/// Requests of each flood.
const FLOOD: usize = 1000;
/// How many of what may be new are looked for in a second, so that what another instance created a moment ago is found.
const DOUBTS: i64 = 50;

/// Rows that Postgres has looked up in the tables of sales and orders, and commands that Redis has run, but for those that
/// only shards' permits and the test itself need.
async fn work_of(database: &mut PgConnection, redis: &Raw) -> (i64, i64) {
    let scans = "select coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0)::int8 from pg_stat_user_tables \
                 where relname in ('orders', 'items')";
    let _flushed = sqlx::query("select pg_stat_force_next_flush()")
        .execute(&mut *database)
        .await
        .unwrap();
    let scans = sqlx::query_scalar(scans).fetch_one(&mut *database).await.unwrap();
    let stats: String = redis.call(redis::cmd("INFO").arg("commandstats"));
    let calls = |command: &str| -> i64 {
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    };
    (scans, calls("mget") + calls("xadd"))
}

async fn all_not_found(requests: impl Iterator<Item = impl Future<Output = crate::support::app::Answer>>) {
    for answer in join_all(requests).await {
        answer.no(404, "not_found");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_items_and_orders_that_do_not_exist_are_answered_from_memory() {
    let redis = fresh_redis();
    let environment = environment(&redis.server.url(), &database().await);
    let instance = Instance::start(&environment, "api");
    let app = TestApp { instance, environment };
    let client: &Client = &app;
    let id = app.load_sale(&sale()).await;
    // A crowd comes for what another instance has created this moment: more than are looked for in a second, but one id.
    let new = app.another("api").create_sale(&sale()).await;
    for answer in join_all((0..4 * DOUBTS).map(|_| client.buy("ada", &new, "k", 1))).await {
        answer.no(409, "sale_not_open");
    }
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    app.order("ada", &order).await.ok(200);
    let raw = Raw::connect(&redis.server.url());
    let mut database = app.database().await;

    let guessed = |n: usize| {
        // Of this sale, and any bits after that.
        let bytes = [
            &Uuid::parse_str(&order).unwrap().as_bytes()[..4],
            &Uuid::new_v4().as_bytes()[4..],
        ]
        .concat();
        let mut bytes: [u8; 16] = bytes.try_into().unwrap();
        if n.is_multiple_of(2) {
            // Or as close to the real one as can be.
            bytes = *Uuid::parse_str(&order).unwrap().as_bytes();
            bytes[15] ^= u8::try_from(n % 255 + 1).unwrap();
        }
        Uuid::from_bytes(bytes).to_string()
    };
    let before = work_of(&mut database, &raw).await;
    let sales: Vec<String> = (0..FLOOD)
        .map(|n| if n % 2 == 0 { Uuid::new_v4() } else { Uuid::now_v7() }.to_string())
        .collect();
    all_not_found(sales.iter().map(|sale| client.buy("ada", sale, "k", 1))).await;
    let paths: Vec<String> = sales.iter().map(|sale| format!("/v1/sales/{sale}")).collect();
    all_not_found(paths.iter().map(|path| client.get(Who::Nobody, path))).await;
    let orders: Vec<String> = (0..FLOOD).map(guessed).collect();
    all_not_found(orders.iter().map(|order| client.order("ada", order))).await;
    all_not_found(orders.iter().map(|order| client.cancel("ada", order))).await;
    let skus: Vec<String> = (0..FLOOD).map(|n| format!("sku-{n}")).collect();
    all_not_found(skus.iter().map(|sku| client.buy_sku("ada", &id, "other", sku, 1))).await;
    let after = work_of(&mut database, &raw).await;
    // Five floods, of which each alone would be more than that.
    let most = i64::try_from(FLOOD).unwrap() - DOUBTS;
    assert!(after.0 - before.0 < most, "Postgres: {} to {}", before.0, after.0);
    assert!(after.1 - before.1 < most, "Redis: {} to {}", before.1, after.1);
    println!(
        "Postgres looked {} times, Redis {}",
        after.0 - before.0,
        after.1 - before.1
    );
    // And what does exist is found, also what another instance has just created.
    app.order("ada", &order).await.ok(200);
    let other = app.another("api");
    for _ in 0..3 {
        let new = other.create_sale(&sale()).await;
        poll::answer("the new sale is there", || async {
            let answer = app.buy("ada", &new, "k", 1).await;
            (answer.status != 404).then(|| answer.no(409, "sale_not_open"))
        })
        .await;
    }
    app.buy_sku("ada", &id, "k", "other", 1).await;
    let body = json!({"sku": "phone", "quantity": 1});
    let request = app.buying("bob", &id, "k").json(&body);
    app.send(request).await.ok(201);
}

/// A sale that another instance has just created sells there, and this one has not heard of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_a_sale_that_another_has_just_created_is_found_by_all_who_ask_at_once() {
    let redis = fresh_redis();
    let environment = environment(&redis.server.url(), &database().await);
    let instance = Instance::start(&environment, "api");
    let app = TestApp { instance, environment };
    let other = app.another("all");
    app.load_sale(&sale()).await;
    let new = other.load_sale(&sale()).await;
    let order = poll::answer("the new sale sells", || async {
        let answer = other.buy("ada", &new, "k", 1).await;
        (answer.status == 201).then(|| answer.id())
    })
    .await;
    let client: &Client = &app;
    for answer in join_all((0..4 * DOUBTS).map(|_| client.order("ada", &order))).await {
        answer.ok(200);
    }
}
