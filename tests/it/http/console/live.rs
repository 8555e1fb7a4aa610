//! The live feed of a sale.

use super::{Operator, SESSION};
use crate::support::app::{ADMIN_KEY, Client, Instance, TestApp, Who, environment, rfc3339, sale, sale_with, token_of};
use crate::support::poll::{PATIENCE, Patience};
use crate::support::{document, poll, servers};
use chrono::{TimeDelta, Utc};
use jsonwebtoken::Header;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The events of a stream.
struct Events {
    response: Response,
    text: String,
}

impl Events {
    async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
        }
    }

    /// The data of the next event of this name; nothing at the end of the stream.
    async fn next(&mut self, name: &str) -> Option<Value> {
        let reading = async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let data = event.strip_prefix(&format!("event: {name}\ndata: ")).map(str::to_owned);
                    self.text = rest.to_owned();
                    if let Some(data) = data {
                        return Some(serde_json::from_str(&data).unwrap());
                    }
                }
                let chunk = self.response.chunk().await.unwrap()?;
                self.text += std::str::from_utf8(&chunk).unwrap();
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
        read.unwrap_or_else(|_| panic!("no event {name} in time"))
    }
}

/// A sample has exactly the members of its document.
fn assert_as_described(sample: &Value) {
    let described = document::validator(&json!({"$ref": "#/components/schemas/LiveSample"}), true);
    let wrong: Vec<String> = described.iter_errors(sample).map(|it| it.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {sample}");
}

#[tokio::test]
async fn a_sale_is_followed_live_by_sample() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 4, "stock": 6}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let ada = Operator::sign_in(&app).await;
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    assert_eq!(live.next("course").await.unwrap(), json!([]));
    let first = live.next("sample").await.unwrap();
    assert_as_described(&first);
    let sale = &first["sale"];
    assert_eq!(
        (&sale["state"], &sale["items"][0]["available"]),
        (&json!("open"), &json!(6))
    );
    assert_eq!(sale["shards"].as_array().unwrap().len(), 4);
    assert_eq!(first["point"]["accepted"], Value::Null, "there is no earlier sample");
    for server in ["redis", "postgres"] {
        assert!(
            first["health"][server]["milliseconds"].as_f64().unwrap() >= 0.0,
            "{first}"
        );
        assert_eq!(first["health"][server]["fault"], Value::Null);
        assert!(first["health"][server]["answered_at"].is_string(), "{first}");
    }
    // One shopper takes all of it, so the home shard has to borrow; another one comes too late.
    for key in ["a", "b"] {
        app.buy("ada", &id, key, 2).await.ok(201);
    }
    app.buy("bob", &id, "k", 2).await.ok(201);
    for user in ["cyd", "dan"] {
        app.buy(user, &id, "k", 1).await.no(409, "sold_out");
    }
    let (mut accepted, mut sold_out, mut answered) = (0, 0, 0);
    let last = loop {
        let sample = live.next("sample").await.unwrap();
        let point = &sample["point"];
        // A busy machine may leave a sample without its count; the next one covers it.
        accepted += point["accepted"].as_i64().unwrap_or(0);
        sold_out += point["answers"]["sold_out"].as_i64().unwrap_or(0);
        answered += point["answers"]["reserved"].as_i64().unwrap_or(0);
        assert_eq!(
            point["p50"].is_f64(),
            !point["answers"].as_object().unwrap().is_empty(),
            "{point}"
        );
        if accepted == 3 && sold_out == 2 && answered == 3 && sample["sale"]["orders"]["reserved"] == 3 {
            break sample;
        }
    };
    assert_eq!(last["sale"]["items"][0]["held"], 6);
    let received: i64 = last["sale"]["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["units"][4].as_i64().unwrap())
        .sum();
    assert!(received > 0, "some were borrowed: {last}");
    // A viewer who comes later gets the course of it.
    let mut other = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let course = other.next("course").await.unwrap();
    let seen: i64 = course
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|point| point["accepted"].as_i64())
        .sum();
    assert_eq!(seen, 3);
    other.next("sample").await.unwrap();
}

/// A number of each shard.
fn each_shard(shards: &Value, count: impl Fn(&Value) -> Value) -> Vec<i64> {
    let shards = shards.as_array().unwrap().iter();
    shards.map(|shard| count(shard).as_i64().unwrap()).collect()
}

/// Of each shard, the units that have left it and whose arrival it does not know.
async fn in_transit(client: &Client, sale: &str) -> Vec<i64> {
    let stats = client.stats(sale).await;
    each_shard(&stats["shards"], |shard| shard["in_transit"]["phone"].clone())
}

#[tokio::test]
async fn a_shard_reports_units_on_their_way_until_it_learns_of_their_arrival() {
    for (point, is_there) in [("transfer.after_out", false), ("transfer.after_in", true)] {
        let mut app = TestApp::with("api", &[("FLASHSALE_CRASH_AT", point)]).await;
        let id = app.load_sale(&sale_with(&json!({"shards": 3, "stock": 9}))).await;
        assert_eq!(in_transit(&app, &id).await, [0; 3]);
        // The home shard has three, so that two have to come from another one; there, the process ends.
        let body = json!({"sku": "phone", "quantity": 5});
        assert!(app.buying("ada", &id, "k").json(&body).send().await.is_err(), "{point}");
        app.environment.remove("FLASHSALE_CRASH_AT");
        let observer = app.another("api");
        let stats = observer.stats(&id).await;
        let sent = each_shard(&stats["shards"], |shard| shard["sent"]["phone"].clone());
        let units: i64 = sent.iter().sum();
        assert_eq!(sent.iter().filter(|sent| **sent > 0).count(), 1, "{stats}");
        // Arrived units are free there; their sender does not know yet.
        assert_eq!(
            stats["items"][0]["in_transit"],
            if is_there { 0 } else { units },
            "{stats}"
        );
        assert_eq!(in_transit(&observer, &id).await, sent, "{point}");
        let path = format!("/v1/admin/sales/{id}/live");
        let mut live = Events::open(observer.request(Method::GET, Who::Operator, &path)).await;
        let sample = live.next("sample").await.unwrap();
        let shards = &sample["sale"]["shards"];
        assert_eq!(each_shard(shards, |shard| shard["units"][5].clone()), sent, "{sample}");
        assert_eq!(
            each_shard(shards, |shard| shard["items"]["phone"][5].clone()),
            sent,
            "{sample}"
        );
        let _worker = app.another("worker");
        poll::within(Duration::from_secs(30), "the lender knows of it", async || {
            in_transit(&observer, &id).await == [0; 3]
        })
        .await;
        observer.assert_balanced(&id).await;
    }
}

#[tokio::test]
async fn a_signed_out_operator_no_longer_sees_the_sale() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let ada = Operator::sign_in(&app).await;
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    live.next("sample").await.unwrap();
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    assert!(live.next("signed_out").await.is_some());
    assert!(live.next("sample").await.is_none(), "the stream has ended");
    let again = app.send(ada.with_cookie(&app, Method::GET, &path)).await;
    again.no(401, "unauthenticated");

    // The same if another operator ends the session.
    let bob = Operator::sign_in(&app).await;
    let mut live = Events::open(bob.with_cookie(&app, Method::GET, &path)).await;
    live.next("sample").await.unwrap();
    let session = app.send(bob.with_cookie(&app, Method::GET, SESSION)).await.ok(200);
    let session = session.body["session_id"].clone();
    let end = app.request(Method::POST, Who::Operator, "/v1/admin/sessions/end");
    app.send(end.json(&json!({"session_id": session}))).await.ok(200);
    assert!(live.next("signed_out").await.is_some());
}

#[tokio::test]
async fn a_page_of_another_site_reads_nothing_with_the_cookie_of_an_operator() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    for path in ["/v1/admin/sales".to_owned(), format!("/v1/admin/sales/{id}/audit")] {
        for (site, status) in [
            ("same-origin", 200),
            ("none", 200),
            ("same-site", 401),
            ("cross-site", 401),
        ] {
            let request = ada.with_cookie(&app, Method::GET, &path).header("Sec-Fetch-Site", site);
            let answer = app.send(request).await;
            assert_eq!(answer.status, status, "{path} {site}");
        }
    }
}

/// No process can ask Postgres then whether the session has ended. Without jobs: one of them deletes sessions.
#[tokio::test]
async fn a_stream_ends_when_its_session_was_to_end_also_while_postgres_is_away() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    let mut database = app.database().await;
    sqlx::raw_sql("update console_sessions set expires_at = now() + interval '10 seconds'")
        .execute(&mut database)
        .await
        .unwrap();
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    let mut alerts = Events::open(ada.with_cookie(&app, Method::GET, "/v1/admin/alerts/stream")).await;
    sqlx::raw_sql("alter table console_sessions rename to away")
        .execute(&mut database)
        .await
        .unwrap();
    assert!(live.next("signed_out").await.is_some());
    // Alerts may come before it ends.
    while alerts.next("alert").await.is_some() {}
}

#[tokio::test]
async fn a_stream_ends_with_the_session_that_it_was_asked_for_with_and_with_no_other() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    let path = format!("/v1/admin/sales/{id}/live");
    // Judged by the key; the cookie only came along.
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path).bearer_auth(ADMIN_KEY)).await;
    let mut alerts = Events::open(ada.with_cookie(&app, Method::GET, "/v1/admin/alerts/stream")).await;
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    // Alerts of other tests may come before it ends.
    while alerts.next("alert").await.is_some() {}
    // More than can have been sent before that.
    for _ in 0..15 {
        assert!(live.next("sample").await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purchases_that_the_gateway_refuses_are_seen_live() {
    let app = TestApp::with("all", &[("FLASHSALE_GATEWAY_RATE", "1")]).await;
    let id = app.load_sale(&sale_with(&json!({"stock": 1000}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let keys: Vec<String> = (0..30).map(|number| format!("k{number}")).collect();
    let answers = futures_util::future::join_all(keys.iter().map(|key| app.buy("ada", &id, key, 1))).await;
    // A request that could not buy anything is no purchase.
    for _ in 0..5 {
        app.get(Who::Nobody, &format!("/v1/sales/{id}")).await;
    }
    let refused = answers.iter().filter(|answer| answer.status == 503).count();
    assert!(refused > 0);
    // By which limit, and not by a less specific code.
    let (mut seen, mut all) = (0, 0);
    while all < answers.len() as u64 {
        let point = live.next("sample").await.unwrap()["point"].clone();
        let counts = point["answers"].as_object().unwrap();
        seen += counts.get("instance_limit").map_or(0, |count| count.as_u64().unwrap());
        all += counts.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
    }
    assert_eq!((seen, all), (refused as u64, answers.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purchases_refused_before_any_check_are_counted_and_seen_live() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let body = json!({"sku": "phone", "quantity": 1});
    let orders = format!("/v1/sales/{id}/orders");
    let claims = json!({"sub": "ada", "exp": Utc::now().timestamp() + 100});
    let foreign = token_of(&Header::default(), "of another instance, and long enough", &claims);
    let foreign = app.request(Method::POST, Who::Bearer(&foreign), &orders);
    app.send(foreign.header("Idempotency-Key", "k").json(&body))
        .await
        .no(401, "unauthenticated");
    let keyless = app.request(Method::POST, Who::Shopper("ada"), &orders);
    app.send(keyless.json(&body)).await.no(400, "idempotency_key_missing");
    app.send(app.buying("ada", &id, "k").body("nonsense"))
        .await
        .no(400, "invalid_request");
    app.buy("ada", &id, "k", 0).await.no(400, "invalid_request");
    app.send(app.buying("ada", &id, "k").body("x".repeat(17_000)))
        .await
        .no(413, "payload_too_large");
    // It names no sale, so only the instance counts it.
    app.buy("ada", "no-uuid", "k", 1).await.no(404, "not_found");
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    // They are sent within a second or two.
    for _ in 0..10 {
        let point = live.next("sample").await.unwrap()["point"].clone();
        assert_eq!(point["p99"], Value::Null, "no purchase was checked");
        for (code, count) in point["answers"].as_object().unwrap() {
            *seen.entry(code.clone()).or_default() += count.as_u64().unwrap();
        }
        if seen.values().sum::<u64>() >= 5 {
            break;
        }
    }
    let metrics = app.get(Who::Nobody, "/metrics").await.text;
    for (code, count) in [
        ("unauthenticated", 1),
        ("idempotency_key_missing", 1),
        ("invalid_request", 2),
        ("payload_too_large", 1),
    ] {
        assert_eq!(seen.get(code), Some(&count), "{seen:?}");
        let line = format!("flashsale_purchases_total{{outcome=\"{code}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// How many instances a sample reports as not silent.
fn heard(sample: &Value) -> usize {
    let instances = sample["instances"].as_array().unwrap();
    instances.iter().filter(|it| it["silent_seconds"].is_null()).count()
}

/// The purchases of all samples.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    reserved: u64,
    sold_out: u64,
}

impl Seen {
    fn add(&mut self, sample: &Value) {
        let count = |answer: &str| sample["point"]["answers"][answer].as_u64().unwrap_or(0);
        self.reserved += count("reserved");
        self.sold_out += count("sold_out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_any_instance_are_seen_live_on_every_instance_and_once() {
    let app = TestApp::start().await;
    let mut other = app.another("api");
    let id = app.load_sale(&sale_with(&json!({"stock": 1}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live.next("sample").await.unwrap()) < 2 {}
    let mut live_there = Events::open(other.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live_there.next("sample").await.unwrap()) < 2 {}
    other.buy("ada", &id, "k", 1).await.ok(201);
    for user in ["bob", "cyd", "dan"] {
        other.buy(user, &id, "k", 1).await.no(409, "sold_out");
    }
    app.buy("eve", &id, "k", 1).await.no(409, "sold_out");
    let all = Seen {
        reserved: 1,
        sold_out: 4,
    };
    for feed in [&mut live, &mut live_there] {
        let (mut seen, patience) = (Seen::default(), Patience::of(PATIENCE));
        while seen.reserved < all.reserved || seen.sold_out < all.sold_out {
            assert!(!patience.is_over(), "not in time: {seen:?}");
            let sample = feed.next("sample").await.unwrap();
            let point = &sample["point"];
            assert_eq!(
                point["p99"].is_f64(),
                !point["answers"].as_object().unwrap().is_empty(),
                "{point}"
            );
            assert_eq!(sample["others_fault"], Value::Null);
            seen.add(&sample);
        }
        for _ in 0..3 {
            seen.add(&feed.next("sample").await.unwrap());
        }
        assert_eq!(seen, all, "each of them is sent once");
    }
    // A killed instance is silent first, and then no longer listed.
    let name = live.next("sample").await.unwrap()["instances"][1]["name"].clone();
    drop(live_there);
    other.kill();
    let patience = Patience::of(PATIENCE);
    let (mut was_silent, mut seen) = (false, Seen::default());
    loop {
        assert!(!patience.is_over(), "it is still listed");
        let sample = live.next("sample").await.unwrap();
        seen.add(&sample);
        let instances = sample["instances"].as_array().unwrap();
        let Some(dead) = instances.iter().find(|it| it["name"] == name) else {
            break;
        };
        was_silent |= dead["silent_seconds"].is_f64();
    }
    assert!(was_silent);
    assert_eq!(seen, Seen::default(), "earlier counts are not sent again");
}

#[tokio::test]
async fn a_sale_that_nobody_watches_any_more_is_not_counted_anywhere() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live.next("sample").await.unwrap()) < 2 {}
    drop(live);
    let mut database = app.database().await;
    // A viewer who reloads the page finds it counted; after that, no instance sends any more. Each sends once a second.
    let silent = "select coalesce(max(told_at) < clock_timestamp() - interval '3 seconds', true) from told_counts";
    poll::within(Duration::from_secs(60), "no instance sends anything", async || {
        sqlx::query_scalar(silent).fetch_one(&mut database).await.unwrap()
    })
    .await;
    drop(other);
}

#[tokio::test]
async fn counts_of_others_that_cannot_be_read_leave_the_own_ones() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let mut database = app.database().await;
    // Later counts are new.
    live.next("sample").await.unwrap();
    // As while Postgres does not answer, which would halt the rest as well.
    let mut transaction = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("lock table told_counts")
        .execute(&mut *transaction)
        .await
        .unwrap();
    app.buy("ada", &id, "k", 1).await.ok(201);
    let mut seen = Seen::default();
    loop {
        let sample = live.next("sample").await.unwrap();
        seen.add(&sample);
        if sample["others_fault"].is_string() && seen.reserved == 1 {
            assert_eq!(heard(&sample), 1);
            assert_eq!(sample["sale"]["state"], "open", "the rest of it is sent");
            break;
        }
    }
    transaction.rollback().await.unwrap();
    while live.next("sample").await.unwrap()["others_fault"].is_string() {}
}

#[tokio::test]
async fn as_many_may_watch_as_there_are_places_and_no_sale_that_is_none() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    app.get(Who::Nobody, &path).await.no(401, "unauthenticated");
    let stranger = format!("/v1/admin/sales/{}/live", uuid::Uuid::new_v4());
    app.get(Who::Operator, &stranger).await.no(404, "not_found");
    app.post(Who::Operator, &path).await.no(405, "method_not_allowed");
    let mut viewers = Vec::new();
    for _ in 0..64 {
        viewers.push(Events::open(app.request(Method::GET, Who::Operator, &path)).await);
    }
    app.get(Who::Operator, &path).await.no(503, "overloaded");
    for viewer in &mut viewers {
        viewer.next("sample").await.unwrap();
    }
    drop(viewers);
    poll::answer("a place is free again", || async {
        let request = app.request(Method::GET, Who::Operator, &path);
        let response = request.send().await.unwrap();
        (response.status().as_u16() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_with_its_instance_without_delay() {
    let mut app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let took = app.instance.terminate();
    // Less than the ten seconds that open requests get.
    assert!(took < Duration::from_secs(8), "{took:?}");
    while live.next("sample").await.is_some() {}
}

#[tokio::test]
async fn while_postgres_is_away_a_sample_has_the_units_and_the_backlog() {
    let mut postgres = servers::FreshPostgres::start().await;
    let environment = environment(&servers::redis(), &postgres.url());
    let instance = Instance::start(&environment, "all").may_log_errors();
    let id = instance.load_sale(&sale_with(&json!({"stock": 5}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(instance.request(Method::GET, Who::Operator, &path)).await;
    let before = live.next("sample").await.unwrap();
    assert_eq!(
        (&before["sale"]["state"], &before["stock"]),
        (&json!("open"), &Value::Null)
    );
    postgres.stop();
    for shopper in ["ada", "bob"] {
        instance.buy(shopper, &id, "k", 1).await.ok(201);
    }
    loop {
        let sample = live.next("sample").await.unwrap();
        assert_as_described(&sample);
        if sample["sale"].is_null() && sample["stock"]["undrained_events"] == 2 {
            let item = &sample["stock"]["items"][0];
            assert_eq!(
                (&item["total"], &item["available"], &item["held"]),
                (&json!(5), &json!(3), &json!(2))
            );
            assert!(!sample["stock"]["shards"].as_array().unwrap().is_empty());
            assert!(sample["fault"].is_string(), "{sample}");
            break;
        }
    }
    postgres.restart();
    while live.next("sample").await.unwrap()["sale"].is_null() {}
}

#[tokio::test]
async fn a_server_that_is_away_is_named_and_the_stream_goes_on() {
    let redis = servers::fresh_redis();
    let environment = environment(&redis.server.url(), &servers::database().await);
    let instance = Instance::start(&environment, "all").may_log_errors();
    let id = instance.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(instance.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    drop(redis);
    loop {
        let sample = live.next("sample").await.unwrap();
        if sample["sale"].is_null() {
            assert!(sample["health"]["redis"]["fault"].is_string(), "{sample}");
            assert_eq!(sample["health"]["postgres"]["fault"], Value::Null, "{sample}");
            assert!(sample["fault"].is_string());
            break;
        }
    }
    // Every page says the same time of the outage, also one that is opened later.
    poll::within(PATIENCE, "both say when it last answered", async || {
        let sample = live.next("sample").await.unwrap();
        let asked = instance.get(Who::Operator, "/v1/admin/health").await.ok(200).body;
        assert!(asked["redis"]["fault"].is_string(), "{asked}");
        let [sampled, now] = [&sample["health"], &asked].map(|it| it["redis"]["answered_at"].clone());
        assert!(sampled.is_string(), "{sample}");
        sampled == now && asked["postgres"]["answered_at"].as_str() > now.as_str()
    })
    .await;
}

#[tokio::test]
async fn a_sale_that_starts_later_says_when_in_the_console_too() {
    let app = TestApp::shared_api_only().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let id = app.load_sale(&sale_with(&json!({"starts_at": starts_at}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let sample = live.next("sample").await.unwrap();
    assert_eq!(
        (&sample["sale"]["state"], &sample["sale"]["starts_at"]),
        (&json!("scheduled"), &json!(starts_at))
    );
    app.operate(&id, "open").await.ok(200);
    while live.next("sample").await.unwrap()["sale"]["state"] != "open" {}
}
