//! Floods of requests for missing things: answered from memory, without Redis or Postgres.

use super::decided;
use crate::support::app::{Answer, Client, Instance, TestApp, Who, environment, sale};
use crate::support::poll;
use crate::support::raw::Raw;
use crate::support::servers::{database, fresh_redis};
use futures_util::future::join_all;
use serde_json::json;
use sqlx::PgConnection;
use std::time::Instant;
use uuid::Uuid;

/// Requests of each flood.
const FLOOD: usize = 1000;
const AT_ONCE: usize = 25;
/// How many unknown ids are queried in a second, so that the newest ones of other instances are found.
const UNKNOWN_IDS: i64 = 50;

/// Transactions of Postgres, of which each statement outside of one is one, and commands of Redis, those of scripts too: all
/// that were run, but for those of the test itself.
async fn work_of(database: &mut PgConnection, redis: &Raw) -> [i64; 2] {
    let _flushed = sqlx::query("select pg_stat_force_next_flush()")
        .execute(&mut *database)
        .await
        .unwrap();
    let run = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
    let transactions = sqlx::query_scalar(run).fetch_one(&mut *database).await.unwrap();
    [transactions, redis.command_counts().values().sum()]
}

/// The most transactions and the most commands in a second: two of each unknown id, and as many of permits and feeds.
const A_FEW_A_SECOND: f64 = 4.0 * UNKNOWN_IDS as f64;

/// Work beside a flood of a few seconds: permits, feeds, and queries for unknown ids.
const BESIDE: i64 = 450;

/// Answers a flood, which costs neither server half a command for each request.
async fn costs_nothing<F: Future<Output = Answer>>(
    (database, redis): &mut (PgConnection, Raw),
    name: &str,
    requests: impl Iterator<Item = F>,
) {
    let (before, began) = (work_of(database, redis).await, Instant::now());
    all_not_found(requests).await;
    let (after, seconds) = (work_of(database, redis).await, began.elapsed().as_secs_f64());
    let [transactions, commands] = [after[0] - before[0], after[1] - before[1]];
    println!("{FLOOD} {name}: {transactions} transactions of Postgres, {commands} commands of Redis");
    let most = BESIDE.max((A_FEW_A_SECOND * (seconds + 1.0)) as i64);
    assert!(transactions < most, "{name}: {transactions} transactions, not {most}");
    assert!(commands < most, "{name}: {commands} commands, not {most}");
}

async fn all_not_found(mut requests: impl Iterator<Item = impl Future<Output = Answer>>) {
    // Not all at once: on a slow machine, the last ones would be answered 503. A few may be nevertheless.
    let mut unanswered = 0;
    for _ in 0..FLOOD / AT_ONCE {
        for answer in join_all(requests.by_ref().take(AT_ONCE)).await {
            if answer.status == 503 {
                unanswered += 1;
            } else {
                answer.no(404, "not_found");
            }
        }
    }
    assert!(unanswered <= FLOOD / 100, "{unanswered}");
    assert!(requests.next().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_items_and_orders_that_do_not_exist_are_answered_from_memory() {
    let redis = fresh_redis();
    let environment = environment(&redis.server.url(), &database().await);
    let instance = Instance::start(&environment, "api");
    let app = TestApp { instance, environment };
    let client: &Client = &app;
    let id = app.load_sale(&sale()).await;
    // A crowd asks for a sale that another instance has created this moment: more requests than queries in a second, but one id.
    let new = app.another("api").create_sale(&sale()).await;
    for answer in join_all((0..4 * UNKNOWN_IDS).map(|_| decided(|| client.buy("ada", &new, "k", 1)))).await {
        answer.no(409, "sale_not_open");
    }
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    app.order("ada", &order).await.ok(200);
    let mut servers = (app.database().await, Raw::connect(&redis.server.url()));

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
    let sales: Vec<String> = (0..FLOOD)
        .map(|n| if n % 2 == 0 { Uuid::new_v4() } else { Uuid::now_v7() }.to_string())
        .collect();
    let paths: Vec<String> = sales.iter().map(|sale| format!("/v1/sales/{sale}")).collect();
    let orders: Vec<String> = (0..FLOOD).map(guessed).collect();
    let skus: Vec<String> = (0..FLOOD).map(|n| format!("sku-{n}")).collect();
    let buying = sales.iter().map(|sale| client.buy("ada", sale, "k", 1));
    costs_nothing(&mut servers, "purchases in sales that do not exist", buying).await;
    let pages = paths.iter().map(|path| client.get(Who::Nobody, path));
    costs_nothing(&mut servers, "such sales", pages).await;
    let reads = orders.iter().map(|order| client.order("ada", order));
    costs_nothing(&mut servers, "orders that do not exist", reads).await;
    let cancels = orders.iter().map(|order| client.cancel("ada", order));
    costs_nothing(&mut servers, "cancellations of such orders", cancels).await;
    let items = skus.iter().map(|sku| client.buy_sku("ada", &id, "other", sku, 1));
    costs_nothing(&mut servers, "purchases of items that do not exist", items).await;
    // And existing things are found, also those that another instance has just created.
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
    // The key of an order is found behind an item that does not exist, within the same bound.
    poll::answer("the key is checked", || async {
        let answer = app.buy_sku("ada", &id, "k", "other", 1).await;
        (answer.code() != "not_found").then(|| answer.no(422, "idempotency_key_reused"))
    })
    .await;
    let body = json!({"sku": "phone", "quantity": 1});
    let request = app.buying("bob", &id, "k").json(&body);
    app.send(request).await.ok(201);
}

/// Anybody may ask for readiness and for the list of sales, without a token and as often as the connection allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_anonymous_requests_are_a_few_questions_a_second_to_redis_and_postgres() {
    let redis = fresh_redis();
    let environment = environment(&redis.server.url(), &database().await);
    let instance = Instance::start(&environment, "api");
    let app = TestApp { instance, environment };
    let client: &Client = &app;
    let id = app.load_sale(&sale()).await;
    let (mut database, raw) = (app.database().await, Raw::connect(&redis.server.url()));
    let paths: Vec<String> = (0..5_000)
        .map(|n| match n % 4 {
            0 | 1 => "/readyz".to_owned(),
            2 => format!("/v1/sales?limit={}", n % 100 + 1),
            _ => format!("/v1/sales?limit={}&starting_after={id}", n % 100 + 1),
        })
        .collect();
    let (before, began) = (work_of(&mut database, &raw).await, Instant::now());
    for some in paths.chunks(100) {
        for answer in join_all(some.iter().map(|path| client.get(Who::Nobody, path))).await {
            answer.ok(200);
        }
    }
    let (after, seconds) = (work_of(&mut database, &raw).await, began.elapsed().as_secs_f64());
    let [transactions, commands] = [after[0] - before[0], after[1] - before[1]];
    println!("{transactions} transactions of Postgres, {commands} commands of Redis in {seconds} s");
    // A part of the first second may hold the work of a whole one.
    let most = (A_FEW_A_SECOND * (seconds + 1.0)) as i64;
    assert!(transactions < most, "{transactions} transactions, not {most}");
    assert!(commands < most, "{commands} commands, not {most}");
}

/// A sale that another instance has just created sells there, and this one does not know it.
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
    for answer in join_all((0..4 * UNKNOWN_IDS).map(|_| decided(|| client.order("ada", &order)))).await {
        answer.ok(200);
    }
}
