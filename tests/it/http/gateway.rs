//! The limits before all shoppers' requests: by address, by instance and by all instances together.

use super::decided;
use crate::support::app::{Answer, Client, TestApp, Who, environment, sale_with};
use crate::support::raw::Raw;
use crate::support::servers::{FreshRedis, database, fresh_redis};
use crate::support::{app, poll};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// So many requests of this shopper's at once, as the proxy of this client would send them.
async fn flood(client: &Client, from: &str, requests: usize) -> Vec<Answer> {
    each(client, (0..requests).map(|_| from.to_owned())).await
}

/// A request from each of these.
async fn each(client: &Client, from: impl Iterator<Item = String>) -> Vec<Answer> {
    join_all(from.map(|from| {
        let request = client.request(Method::GET, Who::Nobody, "/v1/sales");
        client.send(request.header("X-Forwarded-For", from))
    }))
    .await
}

fn passed(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// How many requests a full bucket lets through: its content, and the later tokens.
fn most(rate: usize, began: Instant) -> usize {
    rate + rate * usize::try_from(began.elapsed().as_secs() + 1).unwrap()
}

/// An instance on a Redis of its own, so that its commands can be counted.
async fn on_fresh_redis(variables: &[(&str, &str)]) -> (FreshRedis, TestApp) {
    let redis = fresh_redis();
    let mut environment = environment(&redis.server.url(), &database().await);
    environment.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    let instance = app::Instance::start(&environment, "api");
    (redis, TestApp { instance, environment })
}

/// How often Redis ran this command, also inside of scripts.
fn calls(redis: &Raw, command: &str) -> usize {
    let stats: String = redis.call(redis::cmd("INFO").arg("commandstats"));
    let of_one = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    of_one.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

async fn guards(client: &Client) -> Value {
    client.get(Who::Operator, "/v1/admin/guards").await.ok(200).body
}

async fn change(client: &Client, changes: &Value) -> Answer {
    let request = client.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
    client.send(request.json(changes)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_address_has_a_limit_of_its_own_and_only_trusted_proxies_say_whose_it_is() {
    let variables = [
        ("FLASHSALE_ADDRESS_RATE", "2"),
        ("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8"),
    ];
    let app = TestApp::with("api", &variables).await;
    let began = Instant::now();
    let first = flood(&app, "198.51.100.1, 10.0.0.7", 30).await;
    // The client wrote everything to the left of an address.
    let spoofed = each(&app, (0..30).map(|n| format!("192.0.2.{n}, 198.51.100.1"))).await;
    let all = [first, spoofed].concat();
    assert!((1..=most(2, began)).contains(&passed(&all)), "{}", passed(&all));
    let refused = all.iter().find(|answer| answer.status != 200).unwrap().clone();
    refused.no(429, "rate_limited");
    for other in ["198.51.100.2", "2001:db8:1:2::1", "2001:db8:1:3::1"] {
        flood(&app, other, 1).await.remove(0).ok(200);
    }
    // The same household.
    let began = Instant::now();
    let many = each(&app, (0..30).map(|n| format!("2001:db8:7:7::{n:x}"))).await;
    assert!((1..=most(2, began)).contains(&passed(&many)), "{}", passed(&many));

    let app = TestApp::with("api", &[("FLASHSALE_ADDRESS_RATE", "2")]).await;
    let began = Instant::now();
    let all = each(&app, (0..30).map(|n| format!("192.0.2.{n}"))).await;
    assert!(
        (1..=most(2, began)).contains(&passed(&all)),
        "nobody is believed: {}",
        passed(&all)
    );
    // Operators, the payment provider and machines are not shoppers.
    for _ in 0..10 {
        app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
        app.get(Who::Nobody, "/healthz").await.ok(200);
        app.webhook("m", "{}").await.no(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_proxy_that_names_no_client_is_not_limited_as_one() {
    let variables = [
        ("FLASHSALE_ADDRESS_RATE", "2"),
        ("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1"),
    ];
    let app = TestApp::with("api", &variables).await;
    for _ in 0..30 {
        app.get(Who::Nobody, "/v1/sales").await.ok(200);
    }
    let named = flood(&app, "198.51.100.9", 30).await;
    assert!(passed(&named) < 30, "{}", passed(&named));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_and_an_account_have_limits_unless_they_are_switched_off() {
    // As it ships behind a proxy: an empty variable is not set.
    let shipped = [
        ("FLASHSALE_TRUSTED_PROXIES", "10.0.0.0/8"),
        ("FLASHSALE_ADDRESS_RATE", ""),
        ("FLASHSALE_ACCOUNT_RATE", ""),
        ("FLASHSALE_ADDRESS_CONNECTIONS", ""),
    ];
    let app = TestApp::with("api", &shipped).await;
    let configured = guards(&app).await["configured"].clone();
    assert_eq!(
        (&configured["address_rate"], &configured["account_rate"]),
        (&json!(50), &json!(20))
    );
    // 0 switches off.
    let app = TestApp::start_api_only().await;
    let configured = guards(&app).await["configured"].clone();
    assert_eq!(
        (&configured["address_rate"], &configured["account_rate"]),
        (&json!(0), &json!(0))
    );
    let list = |user: &'static str, id: &str| {
        let path = format!("/v1/orders?sale_id={id}");
        let app = &app;
        async move { app.get(Who::Shopper(user), &path).await }
    };
    let id = app.load_sale(&sale_with(&json!({}))).await;
    let answers = join_all((0..100).map(|_| decided(|| list("ada", &id)))).await;
    assert_eq!(passed(&answers), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_has_a_limit_on_all_that_it_asks_for_and_others_have_theirs() {
    let app = TestApp::with("api", &[("FLASHSALE_ACCOUNT_RATE", "2")]).await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 1000, "per_user_limit": 1000})))
        .await;
    let order = app.buy("bob", &id, "k", 1).await.ok(201).id();
    let path = |it: &str| it.replace("ID", &id).replace("ORDER", &order);
    let ways = [
        (Method::GET, path("/v1/orders?sale_id=ID")),
        (Method::GET, path("/v1/orders/ORDER")),
        (Method::POST, path("/v1/orders/ORDER/cancel")),
        (Method::GET, path("/v1/sales/ID/waiting-room/events")),
    ];
    let began = Instant::now();
    let purchases: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
    let bought = join_all(purchases.iter().map(|key| app.buy("ada", &id, key, 1))).await;
    let accepted = bought.iter().filter(|answer| answer.status == 201).count();
    assert!((1..=most(2, began)).contains(&accepted), "{accepted}");
    let refused = bought.into_iter().find(|answer| answer.status != 201).unwrap();
    let refused = refused.no(429, "rate_limited");
    assert!(refused.text("detail").contains("of this account"), "{refused:?}");
    assert!(refused.retry_after() >= 1);
    // It is not known whether the key has an order.
    assert_eq!(refused.body.get("key_has_order"), None);
    for (method, path) in ways {
        let asked = (0..30).map(|_| app.send(app.request(method.clone(), Who::Shopper("ada"), &path)));
        let refused = join_all(asked).await.into_iter().find(|answer| answer.status == 429);
        refused.unwrap().no(429, "rate_limited");
    }
    app.buy("carol", &id, "k", 1).await.ok(201);
    // Operators see it, and may switch it off.
    poll::answer("the refusals are counted", || async {
        app.stats(&id).await["stopped"]["account"]
            .as_u64()
            .filter(|stopped| *stopped >= 48)
    })
    .await;
    change(&app, &json!({"account_rate": 0})).await.ok(200);
    poll::answer("it is switched off", || async {
        let all = join_all((0..20).map(|_| app.get(Who::Shopper("ada"), "/v1/orders/x"))).await;
        all.iter().all(|answer| answer.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_is_not_trusted_is_named_in_the_log_once() {
    let app = TestApp::with("api", &[("FLASHSALE_ADDRESS_RATE", "1")]).await;
    flood(&app, "198.51.100.1", 20).await;
    app.logged("FLASHSALE_TRUSTED_PROXIES").await;
    flood(&app, "198.51.100.1", 20).await;
    assert_eq!(app.log().matches("if it is your proxy").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_refused_by_the_gate_costs_redis_nothing_and_is_counted() {
    let (redis, app) = on_fresh_redis(&[("FLASHSALE_GATEWAY_RATE", "3")]).await;
    let sale = app.load_sale(&sale_with(&json!({"stock": 1000}))).await;
    let raw = Raw::connect(&redis.server.url());
    let before = calls(&raw, "mget");
    let began = Instant::now();
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let answers = join_all(keys.iter().map(|key| app.buy("ada", &sale, key, 1))).await;
    let bought = answers.iter().filter(|answer| answer.status != 503).count();
    assert!((1..=most(3, began)).contains(&bought), "{bought}");
    // A purchase asks once, or once more while its shard is being reconciled.
    assert!(calls(&raw, "mget") - before <= 2 * bought);
    let refused = answers.into_iter().find(|answer| answer.status == 503).unwrap();
    refused.no(503, "overloaded");
    let stopped = poll::answer("the refusals are counted", || async {
        let stats = app.stats(&sale).await;
        let stopped = stats["stopped"]["instance"].as_u64()?;
        (stopped == 200 - bought as u64).then_some(stopped)
    })
    .await;
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    assert!(
        metrics.contains(&format!(
            "flashsale_guard_refusals_total{{layer=\"instance\"}} {stopped}"
        )),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_instances_share_a_bucket_and_ask_redis_for_it_rarely() {
    // Where a question to Redis takes a tenth of a second, requests pass uncounted. A busy machine has three tries.
    for is_last in [false, false, true] {
        let (redis, app) = on_fresh_redis(&[("FLASHSALE_SHARED_RATE", "20")]).await;
        let other = app.another("api");
        let raw = Raw::connect(&redis.server.url());
        let before = calls(&raw, "evalsha");
        let began = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..10 {
            let (one, two) = tokio::join!(flood(&app, "", 50), flood(&other, "", 50));
            answers.extend(one.into_iter().chain(two));
        }
        let (passed, most) = (passed(&answers), most(20, began));
        let asked = calls(&raw, "evalsha") - before;
        let (is_shared, is_rare) = ((20..=most).contains(&passed), asked * 3 < answers.len());
        let holds = is_shared && is_rare;
        if !holds && !is_last {
            continue;
        }
        assert!(is_shared, "{passed} of at most {most}");
        // Each takes a twentieth of a second's tokens at once, or finds none and asks no more for a while.
        let seconds = usize::try_from(began.elapsed().as_secs() + 1).unwrap();
        assert!(asked <= 2 * (passed + 50 * seconds), "{asked} in {seconds} s");
        assert!(is_rare, "{asked} questions for {} requests", answers.len());
        let refused = answers.into_iter().find(|answer| answer.status != 200).unwrap();
        refused.no(503, "overloaded");
        break;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_setting_is_followed_by_every_instance_within_a_second() {
    let app = TestApp::with("api", &[("FLASHSALE_ADDRESS_RATE", "1000")]).await;
    let other = app.another("api");
    let changed = change(&app, &json!({"instance_rate": 2, "shared_rate": 0}))
        .await
        .ok(200)
        .body;
    assert_eq!(changed["changed"], json!({"instance_rate": 2, "shared_rate": 0}));
    // Both at once: the second counts from the answer.
    let follows = async |rate: u64| {
        poll::within(Duration::from_secs(1), "both instances follow", async || {
            let (one, two) = tokio::join!(guards(&app), guards(&other));
            one["rate"] == rate && two["rate"] == rate
        })
        .await;
    };
    follows(2).await;
    for client in [&*app, &*other] {
        let guards = guards(client).await;
        assert_eq!(guards["effective"]["address_rate"], 1000);
        assert_eq!(guards["effective"]["instance_rate"], 2);
        assert_eq!(guards["configured"]["instance_rate"], 0);
        let began = Instant::now();
        let answers = flood(client, "", 50).await;
        assert!((1..=most(2, began)).contains(&passed(&answers)), "{}", passed(&answers));
    }
    // Null is as configured.
    let changed = change(&other, &json!({"instance_rate": null})).await.ok(200).body;
    assert_eq!(changed["changed"], json!({"shared_rate": 0}));
    follows(0).await;
    for client in [&*app, &*other] {
        assert_eq!(passed(&flood(client, "", 50).await), 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_cannot_be_is_refused_and_changes_nothing() {
    let app = TestApp::start_api_only().await;
    change(&app, &json!({"address_rate": 7})).await.ok(200);
    for (changes, named) in [
        (
            json!({"address_rate": -1}),
            "address_rate must be an integer from 0 to 1000000",
        ),
        (json!({"address_rate": 1_000_001}), "address_rate"),
        (
            json!({"address_rate": "7"}),
            "address_rate must be an integer from 0 to 1000000",
        ),
        (json!({"adress_rate": 7}), "adress_rate is unknown; known are "),
        (json!({"adaptive_max_rate": 5}), "adaptive_min_rate"),
        (
            json!({"adaptive_max_rate": 50, "adaptive_latency_ms": 0}),
            "adaptive_latency_ms",
        ),
        (json!([]), "the body must be JSON: an object that may have "),
    ] {
        let answer = change(&app, &changes).await.no(400, "invalid_request");
        assert!(answer.text("detail").contains(named), "{answer:?}");
    }
    assert_eq!(guards(&app).await["changed"], json!({"address_rate": 7}));
    let request = app.request(Method::PATCH, Who::Shopper("ada"), "/v1/admin/guards");
    app.send(request.json(&json!({}))).await.no(401, "unauthenticated");
    app.get(Who::Nobody, "/v1/admin/guards")
        .await
        .no(401, "unauthenticated");
}

/// Purchases wait for a locked ledger. In one round they count as slow, in the other as too many at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_takes_less_while_purchases_are_slow_or_too_many_at_once_and_more_again_after() {
    let variables = [
        ("FLASHSALE_ADAPTIVE_MIN_RATE", "600"),
        ("FLASHSALE_ADAPTIVE_MAX_RATE", "1000"),
    ];
    let app = TestApp::with("all", &variables).await;
    let rate = async || guards(&app).await["rate"].as_u64().unwrap();
    let sale = app
        .load_sale(&sale_with(
            &json!({"stock": 1000, "per_user_limit": 1000, "durability": "postgres"}),
        ))
        .await;
    for (round, latency, in_flight) in [("slow", 100, 1000), ("many", 60_000, 3)] {
        let goals = json!({"adaptive_latency_ms": latency, "adaptive_in_flight": in_flight});
        change(&app, &goals).await.ok(200);
        // The gate follows, and logs it.
        app.logged(&format!("adaptive_in_flight: {in_flight}")).await;
        assert_eq!(rate().await, 1000);
        // No more at once than the goal allows keeps the rate.
        let keys: Vec<String> = (0..20).map(|n| format!("{round}-whole-{n}")).collect();
        if round == "many" {
            for some in keys.chunks(3) {
                join_all(some.iter().map(|key| app.buy("ada", &sale, key, 1))).await;
            }
            assert_eq!(rate().await, 1000);
        }
        let mut lock = app.database().await;
        let orders = "begin; lock table orders in access exclusive mode";
        sqlx::raw_sql(orders).execute(&mut lock).await.unwrap();
        let mut buyers = tokio::task::JoinSet::new();
        let mut fallen = Vec::new();
        poll::within(Duration::from_secs(20), "the rate falls to its least", async || {
            for _ in 0..4 {
                let (client, sale) = (Client::clone(&app), sale.clone());
                let key = format!("{round}-{}", buyers.len());
                buyers.spawn(async move { client.buy("bob", &sale, &key, 1).await });
            }
            fallen.push(rate().await);
            fallen.last() == Some(&600)
        })
        .await;
        // By a third at once, and not little by little.
        let first = fallen.iter().find(|rate| **rate < 1000).unwrap();
        assert!([700, 600].contains(first), "{round}: {fallen:?}");
        sqlx::raw_sql("rollback").execute(&mut lock).await.unwrap();
        while buyers.join_next().await.is_some() {}
        let mut risen = Vec::new();
        poll::within(Duration::from_secs(20), "the rate has risen again", async || {
            risen.push(rate().await);
            risen.last() == Some(&1000)
        })
        .await;
        // A fiftieth of the highest in each step, and no step back.
        assert!(
            risen.is_sorted() && risen.iter().all(|rate| rate % 20 == 0),
            "{round}: {risen:?}"
        );
        risen.dedup();
        assert!(risen.len() > 5, "{round}: {risen:?}");
    }
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    for said in ["flashsale_gateway_rate 1000", "flashsale_purchases_in_flight 0"] {
        assert!(
            metrics.lines().any(|line| line.trim_end_matches(".0") == said),
            "{said}: {metrics}"
        );
    }
}
