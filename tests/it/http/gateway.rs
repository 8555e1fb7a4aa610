//! What stands in front of everything that shoppers ask: limits by address, by instance and by all instances together.

use crate::support::app::{Answer, Client, TestApp, Who, environment, sale_with};
use crate::support::raw::Raw;
use crate::support::servers::{FreshRedis, database, fresh_redis};
use crate::support::{app, poll};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Instant;

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

/// What a bucket lets through that is full when it begins: what it holds, and what comes meanwhile.
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
    // Whatever stands to the left of an address, the client wrote.
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
async fn what_is_refused_costs_redis_nothing_and_is_counted() {
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
    let stopped = poll::answer("what was stopped is added up", || async {
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
    assert!((20..=most).contains(&passed), "{passed} of at most {most}");
    let asked = calls(&raw, "evalsha") - before;
    // Each takes a twentieth of a second's tokens at once, or finds none and asks no more for a while.
    let seconds = usize::try_from(began.elapsed().as_secs() + 1).unwrap();
    assert!(asked <= 2 * (passed + 50 * seconds), "{asked} in {seconds} s");
    assert!(
        asked * 3 < answers.len(),
        "{asked} questions for {} requests",
        answers.len()
    );
    answers
        .into_iter()
        .find(|answer| answer.status != 200)
        .unwrap()
        .no(503, "overloaded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_setting_is_followed_by_every_instance() {
    let app = TestApp::with("api", &[("FLASHSALE_ADDRESS_RATE", "1000")]).await;
    let other = app.another("api");
    let changed = change(&app, &json!({"instance_rate": 2, "shared_rate": 0}))
        .await
        .ok(200)
        .body;
    assert_eq!(changed["changed"], json!({"instance_rate": 2, "shared_rate": 0}));
    let follows = async |client: &Client, rate: u64| {
        poll::answer(&format!("{} takes {rate} a second", client.url), || async {
            (guards(client).await["rate"] == rate).then_some(())
        })
        .await;
    };
    for client in [&*app, &*other] {
        follows(client, 2).await;
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
    for client in [&*app, &*other] {
        follows(client, 0).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_takes_less_while_purchases_are_slow_and_more_again_after() {
    let variables = [
        ("FLASHSALE_ADAPTIVE_MIN_RATE", "50"),
        ("FLASHSALE_ADAPTIVE_MAX_RATE", "1000"),
        // No purchase of a debug build on a busy machine is that fast.
        ("FLASHSALE_ADAPTIVE_LATENCY_MS", "1"),
    ];
    let app = TestApp::with("all", &variables).await;
    assert_eq!(guards(&app).await["rate"], 1000);
    let sale = app
        .load_sale(&sale_with(&json!({"stock": 100_000, "durability": "postgres"})))
        .await;
    let mut n = 0;
    poll::answer("the rate has fallen", || {
        n += 1;
        let (app, sale) = (&app, &sale);
        async move {
            app.buy("ada", sale, &format!("k{n}"), 1).await;
            (guards(app).await["rate"].as_u64()? < 1000).then_some(())
        }
    })
    .await;
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    assert!(metrics.contains("flashsale_gateway_rate "), "{metrics}");
    poll::answer("the rate has risen again", || async {
        (guards(&app).await["rate"] == 1000).then_some(())
    })
    .await;
}
