//! Stages: a guard's value for a part of the shoppers. Every instance picks the same ones.

use super::decided;
use crate::support::app::{Answer, Client, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll;
use chrono::{TimeDelta, Utc};
use futures_util::future::{join_all, ready};
use futures_util::stream::{self, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SHOPPERS: usize = 40;
/// So many requests of one shopper at once are over any rate of 1.
const REQUESTS: usize = 6;

async fn change(client: &Client, changes: &Value) -> Answer {
    let request = client.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
    client.send(request.json(changes)).await
}

/// Stages a setting, and waits for a second until both instances follow. They show it by a rate that nobody reaches.
async fn stage(clients: [&Client; 2], setting: &str, stage: &Value, rate: u32) {
    change(clients[0], &json!({setting: stage, "instance_rate": rate}))
        .await
        .ok(200);
    poll::within(Duration::from_secs(1), "both instances follow", async || {
        let shown = join_all(clients.map(|client| client.get(Who::Operator, "/v1/admin/guards"))).await;
        shown.iter().all(|guards| guards.body["rate"] == rate)
    })
    .await;
}

/// Asks about each shopper, for some of them at a time: a busy machine closes connections that wait too long. Returns who
/// was named.
async fn some_at_a_time<F: Future<Output = Option<String>>>(ask: impl Fn(usize) -> F) -> BTreeSet<String> {
    let asked = stream::iter((0..SHOPPERS).map(ask));
    asked.buffer_unordered(8).filter_map(ready).collect().await
}

/// The accounts that this instance refuses something.
async fn refused(client: &Client) -> BTreeSet<String> {
    let refused = some_at_a_time(|number| async move {
        let user = format!("shopper-{number}");
        let asked = (0..REQUESTS).map(|_| client.get(Who::Shopper(&user), "/v1/orders/x"));
        let answers = join_all(asked).await;
        answers.iter().any(|answer| answer.status == 429).then_some(user)
    });
    refused.await
}

/// The client addresses that this instance, behind a trusted proxy, refuses something.
async fn refused_addresses(client: &Client) -> BTreeSet<String> {
    let refused = some_at_a_time(|number| async move {
        let address = format!("198.51.100.{number}");
        let asked = (0..REQUESTS).map(|_| {
            let request = client.request(Method::GET, Who::Nobody, "/v1/sales");
            client.send(request.header("X-Forwarded-For", &address))
        });
        let answers = join_all(asked).await;
        answers.iter().any(|answer| answer.status == 429).then_some(address)
    });
    refused.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_refuses_the_same_accounts_at_every_instance_and_keeps_them_while_it_grows() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let clients: [&Client; 2] = [&app, &other];
    let of = |percent: u32| json!({"value": 1, "percent": percent});
    stage(clients, "account_rate", &of(30), 100_001).await;
    let few = refused(&app).await;
    assert!((1..SHOPPERS).contains(&few.len()), "{few:?}");
    assert_eq!(refused(&other).await, few);

    // The other members of the stage stay.
    stage(clients, "account_rate", &json!({"percent": 70}), 100_002).await;
    let many = refused(&other).await;
    assert!(few.is_subset(&many) && few.len() < many.len(), "{few:?} {many:?}");
    assert_eq!(refused(&app).await, many);

    stage(clients, "account_rate", &json!({"percent": 0}), 100_003).await;
    for client in clients {
        assert_eq!(refused(client).await, BTreeSet::new());
    }
    stage(clients, "account_rate", &json!({"percent": 100}), 100_004).await;
    assert_eq!(refused(&app).await.len(), SHOPPERS);
    // A plain value is for everybody, and ends the stage.
    stage(clients, "account_rate", &json!(0), 100_005).await;
    assert_eq!(refused(&app).await, BTreeSet::new());
    let shown = app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body;
    assert_eq!(shown["staged"], json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_of_addresses_picks_the_same_ones_at_every_instance() {
    let app = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let other = app.another("api");
    let of = json!({"value": 1, "percent": 50});
    stage([&app, &other], "address_rate", &of, 100_001).await;
    let some = refused_addresses(&app).await;
    assert!((1..SHOPPERS).contains(&some.len()), "{some:?}");
    assert_eq!(refused_addresses(&other).await, some);

    // In shadow, the same ones are listed, and nobody is refused.
    stage([&app, &other], "address_rate", &json!({"shadow": true}), 100_002).await;
    assert_eq!(refused_addresses(&app).await, BTreeSet::new());
    poll::answer("the picked addresses are listed", || async {
        let listed = app.get(Who::Operator, "/v1/admin/guards/shadow").await.ok(200).body;
        let entries = listed["data"].as_array().unwrap().iter();
        let listed: BTreeSet<String> = entries.map(|it| it["address"].as_str().unwrap().to_owned()).collect();
        (listed == some).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_in_shadow_refuses_nobody_and_counts_whom_it_would_have_refused() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let terms = json!({"stock": 1000, "purchase_rate": {"limit": 1000, "window_ms": 1000}});
    let id = app.load_sale(&sale_with(&terms)).await;
    // The limits of requests and of page views of an account.
    for (setting, rate) in [("account_rate", 100_001), ("browsing_ban_above", 100_002)] {
        let shadow = json!({"value": 1, "percent": 100, "shadow": true});
        stage([&app, &other], setting, &shadow, rate).await;
    }
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    for answer in join_all(keys.iter().map(|key| app.buy("ada", &id, key, 1))).await {
        assert!(![403, 429].contains(&answer.status), "{answer:?}");
    }
    for _ in 0..4 {
        let path = format!("/v1/sales/{id}");
        app.get(Who::Shopper("viewer-in-shadow"), &path).await.ok(200);
    }
    let counts = poll::answer("the requests are counted", || async {
        let counts = app.stats(&id).await["would_stop"].clone();
        (counts["account"].as_u64() >= Some(10) && counts["ban"] == 1).then_some(counts)
    })
    .await;
    assert_eq!(app.stats(&id).await["stopped"], json!({}));
    let report = app.admin(&id, "/report").await.ok(200).body;
    assert_eq!(report["would_stop"]["ban"], counts["ban"]);
    // Every instance also lists whom, each account once.
    let path = format!("/v1/admin/guards/shadow?sale_id={id}");
    for client in [&*app, &other] {
        let mut whom = poll::answer("both accounts are listed", || async {
            let listed = client.get(Who::Operator, &path).await.ok(200).body["data"].clone();
            let entries = listed.as_array().unwrap().iter();
            let whom: Vec<_> = entries.map(|it| json!([it["layer"], it["user"]])).collect();
            (whom.len() >= 2).then_some(whom)
        })
        .await;
        whom.sort_by_key(Value::to_string);
        assert_eq!(whom, [json!(["account", "ada"]), json!(["ban", "viewer-in-shadow"])]);
    }
    app.get(Who::Shopper("ada"), &path).await.no(401, "unauthenticated");
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    assert!(
        metrics.contains("flashsale_guard_shadow_refusals_total{layer=\"ban\"} 1\n"),
        "{metrics}"
    );
    app.assert_balanced(&id).await;
}

/// Stages a limit of page views, and has many accounts view a sale too often: the list then has some of them, and all of
/// them once the stage picks all.
async fn lists_picked_viewers(guard: &str, list: &str) {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let clients: [&Client; 2] = [&app, &other];
    let id = app.load_sale(&sale_with(&json!({}))).await;
    let path = &format!("/v1/sales/{id}");
    let view = async |user: &str| {
        // Of three views, two are in the same minute.
        for _ in 0..3 {
            app.get(Who::Shopper(user), path).await.ok(200);
        }
    };
    let listed = async || -> BTreeSet<String> {
        let answer = app.get(Who::Operator, list).await.ok(200).body;
        let entries = answer["data"].as_array().unwrap().iter();
        entries.map(|it| it["user"].as_str().unwrap().to_owned()).collect()
    };
    stage(clients, guard, &json!({"value": 1, "percent": 40}), 100_001).await;
    let users: BTreeSet<String> = (0..SHOPPERS).map(|number| format!("viewer-{number}")).collect();
    join_all(users.iter().map(|user| view(user))).await;
    stage(clients, guard, &json!({"percent": 100}), 100_002).await;
    view("the last").await;
    let some = poll::answer("the last account is listed", || async {
        let some = listed().await;
        some.contains("the last").then_some(some)
    })
    .await;
    assert!((2..=SHOPPERS).contains(&some.len()), "{some:?}");
    // Of a stage of all, nobody is missing.
    join_all(users.iter().map(|user| view(user))).await;
    poll::answer("all accounts are listed", || async {
        listed().await.is_superset(&users).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staged_warning_is_about_the_picked_accounts_alone() {
    lists_picked_viewers("browsing_alert_above", "/v1/admin/alerts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staged_ban_is_of_the_picked_accounts_alone() {
    lists_picked_viewers("browsing_ban_above", "/v1/admin/bans").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_on_all_requests_of_an_instance_can_be_in_shadow() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({}))).await;
    let shadow = json!({"value": 1, "percent": 100, "shadow": true});
    change(&app, &json!({"instance_rate": shadow, "shared_rate": shadow}))
        .await
        .ok(200);
    let path = format!("/v1/sales/{id}");
    poll::answer("both limits count requests", || async {
        app.get(Who::Nobody, &path).await.ok(200);
        app.get(Who::Nobody, &path).await.ok(200);
        let counts = app.stats(&id).await["would_stop"].clone();
        (counts["instance"].is_u64() && counts["shared"].is_u64()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_cannot_be_is_refused_and_changes_nothing() {
    let app = TestApp::start_api_only().await;
    let good = json!({"value": 5, "percent": 10});
    change(&app, &json!({"address_rate": good})).await.ok(200);
    for (changes, named) in [
        (
            json!({"account_rate": {"percent": 10}}),
            "account_rate.value is missing",
        ),
        (json!({"address_rate": {"percent": 101}}), "address_rate.percent"),
        (
            json!({"address_rate": {"percent": -1}}),
            "address_rate.percent must be an integer",
        ),
        (
            json!({"address_rate": {"value": 1_000_001}}),
            "address_rate must be 0 to 1000000",
        ),
        (json!({"address_rate": {"part": 1}}), "address_rate.part is unknown"),
        (
            json!({"adaptive_min_rate": {"value": 1, "percent": 1}}),
            "no guard adaptive_min_rate has stages",
        ),
        (
            json!({"browsing_alert_above": {"value": 1, "percent": 1, "shadow": true}}),
            "browsing_alert_above has no shadow",
        ),
    ] {
        let answer = change(&app, &changes).await.no(400, "invalid_request");
        assert!(answer.text("detail").contains(named), "{answer:?}");
    }
    let shown = app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body;
    let stored = json!({"address_rate": {"value": 5, "percent": 10, "shadow": false}});
    assert_eq!(shown["staged"], stored);
    assert_eq!(shown["changed"], json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_stages_a_guard_on_the_command_line() {
    let app = TestApp::start_api_only().await;
    let set = "guards set address_rate 50 --percent 10 --shadow";
    app.run(&set.split(' ').collect::<Vec<_>>()).ended(0);
    let shown = app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body;
    let stage = json!({"value": 50, "percent": 10, "shadow": true});
    assert_eq!(shown["staged"], json!({"address_rate": stage}));
    app.run(&["guards", "set", "address_rate=50", "--shadow"]).ended(2);
    app.run(&["guards", "set", "address_rate=configured"]).ended(0);
    let shown = app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body;
    assert_eq!((&shown["staged"], &shown["changed"]), (&json!({}), &json!({})));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_stages_a_guard_of_a_sale_on_the_command_line() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({}))).await;
    let amend = |options: &str| {
        let line = format!("sale amend {id} {options}");
        app.run(&line.split(' ').collect::<Vec<_>>())
    };
    let shown = amend("--guard purchase_token=true --percent 100 --shadow").ended(0);
    let trial = "on trial        purchase_token true for 100 %, in shadow\n";
    assert!(shown.stdout.contains(trial), "{shown:?}");
    let stage = json!({"value": true, "percent": 100, "shadow": true});
    let stored = app.admin(&id, "").await.ok(200).body;
    assert_eq!(stored["staged_guards"], json!({"purchase_token": stage}));

    let listed = poll::answer("a purchase is listed", || async {
        let key = uuid::Uuid::new_v4().to_string();
        assert_ne!(decided(|| app.buy("ada", &id, &key, 1)).await.status, 403);
        let listed = app.run(&["guards", "shadow", "--sale", &id, "--json"]).ended(0).json();
        (listed[0]["user"] == "ada").then_some(listed)
    })
    .await;
    assert_eq!(listed[0]["layer"], "purchase_token");
    let text = app.run(&["guards", "shadow"]).ended(0).stdout;
    assert!(text.contains("purchase_token  ") && text.contains("ada"), "{text}");

    let refused = amend("--guard proof_cost=1 --percent 1").ended(2);
    assert!(refused.stderr.contains("no guard proof_cost has stages"), "{refused:?}");
    let ended = amend("--end-trial purchase_token").ended(0);
    assert!(!ended.stdout.contains("on trial"), "{ended:?}");
    assert_eq!(app.admin(&id, "").await.ok(200).body.get("staged_guards"), None);
}

/// Stages guards of a sale that sells.
async fn amend(client: &Client, sale: &str, guards: &Value) -> Answer {
    let request = client.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{sale}"));
    client.send(request.json(&json!({"guards": guards}))).await
}

/// The accounts to which this instance refuses a purchase for the lack of a token. Each has one order at most.
async fn without_token(client: &Client, sale: &str) -> BTreeSet<String> {
    let bought = join_all((0..SHOPPERS).map(|number| async move {
        let user = format!("buyer-{number}");
        let answer = decided(|| client.buy(&user, sale, "k", 1)).await;
        assert!([200, 201, 403].contains(&answer.status), "{answer:?}");
        (answer.status == 403).then_some(user)
    }));
    bought.await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_of_a_sale_that_sells_gets_a_stage_that_every_instance_follows_within_a_second() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let clients: [&Client; 2] = [&app, &other];
    let id = app.load_sale(&sale_with(&json!({"stock": 1000}))).await;
    let path = format!("/v1/sales/{id}");
    // Amends the guards, and the name by which both instances show that they follow. Whether then all shoppers need a token,
    // and whether some do.
    let staged = async |guards: &Value, name: &str| {
        let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin{}", &path[3..]));
        let amendment = json!({"guards": guards, "name": name});
        app.send(request.json(&amendment)).await.ok(200);
        poll::within(Duration::from_secs(1), "both instances follow", async || {
            let sales = join_all(clients.map(|client| client.get(Who::Nobody, &path))).await;
            sales.iter().all(|sale| sale.body["name"] == name)
        })
        .await;
        let shown = app.get(Who::Nobody, &path).await.ok(200).body["guards"].clone();
        [&shown["purchase_token"], &shown["staged"]["purchase_token"]].map(|it| it == true)
    };
    // Only in shadow, so nobody needs a token. Pages send one.
    let of = json!({"purchase_token": {"value": true, "percent": 40, "shadow": true}});
    assert_eq!(staged(&of, "in shadow").await, [false, true]);
    poll::answer("a purchase is counted", || async {
        for shopper in 0..SHOPPERS {
            let (user, key) = (format!("early-{shopper}"), uuid::Uuid::new_v4().to_string());
            let answer = decided(|| app.buy(&user, &id, &key, 1)).await;
            assert_ne!(answer.status, 403, "{answer:?}");
        }
        app.stats(&id).await["would_stop"]["purchase_token"].as_i64()
    })
    .await;

    let enforced = json!({"purchase_token": {"shadow": false}});
    assert_eq!(staged(&enforced, "enforced").await, [false, true]);
    let few = without_token(&other, &id).await;
    assert!((1..SHOPPERS).contains(&few.len()), "{few:?}");
    assert_eq!(without_token(&app, &id).await, few);
    let all = json!({"purchase_token": {"percent": 100}});
    assert_eq!(staged(&all, "for all").await, [true, false]);
    let nobody = json!({"purchase_token": {"percent": 0}});
    assert_eq!(staged(&nobody, "for nobody").await, [false, false]);
    assert_eq!(without_token(&other, &id).await, BTreeSet::new());
    assert_eq!(without_token(&app, &id).await, BTreeSet::new());
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staged_limit_of_holds_is_that_of_the_picked_accounts() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"per_user_limit": 5}))).await;
    amend(&app, &id, &json!({"holds_max": {"value": 1, "percent": 100}}))
        .await
        .ok(200);
    decided(|| app.buy("ada", &id, "one", 1)).await.ok(201);
    decided(|| app.buy("ada", &id, "two", 1))
        .await
        .no(409, "too_many_holds");
    let ended = amend(&app, &id, &json!({"holds_max": null})).await.ok(200);
    assert_eq!(ended.body.get("staged_guards"), None);
    decided(|| app.buy("ada", &id, "two", 1)).await.ok(201);
    for (guards, named) in [
        (json!({"holds_max": 1}), "holds_max must be an object"),
        (
            json!({"proof_cost": {"value": 1, "percent": 1}}),
            "no guard proof_cost has stages",
        ),
        (
            json!({"holds_max": {"value": 1, "percent": 1, "shadow": true}}),
            "holds_max has no shadow",
        ),
    ] {
        let answer = amend(&app, &id, &guards).await.no(400, "invalid_request");
        assert!(answer.text("detail").contains(named), "{answer:?}");
    }
    app.assert_balanced(&id).await;
}

/// The accounts to which this request is refused with the code. All others get a 2xx.
async fn refused_with<F: Future<Output = Answer>>(code: &str, send: impl Fn(String) -> F) -> BTreeSet<String> {
    let send = &send;
    let refused = some_at_a_time(|number| async move {
        let user = format!("picked-{number}");
        let answer = decided(|| send(user.clone())).await;
        let is_refused = answer.status >= 400;
        assert!(!is_refused || answer.code() == code, "{answer:?}");
        is_refused.then_some(user)
    });
    refused.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staged_guards_of_a_sale_meet_the_picked_accounts_alone() {
    let app = TestApp::start().await;
    for (terms, guard, value, code) in [
        (json!({}), "waiting_room", json!(true), "admission_required"),
        (
            json!({"guards": {"purchase_token": true}}),
            "challenge",
            json!("captcha"),
            "challenge_required",
        ),
        (
            json!({"payment_window_seconds": 1}),
            "unpaid_cooldown_seconds",
            json!(600),
            "cooling_down",
        ),
    ] {
        let mut sale = sale_with(&terms);
        sale["items"][0]["stock"] = json!(1000);
        let id = app.load_sale(&sale).await;
        amend(&app, &id, &json!({guard: {"value": value, "percent": 40}}))
            .await
            .ok(200);
        let buy = async |key: &str| {
            let (app, id) = (&app, &id);
            refused_with(code, |user| async move { app.buy(&user, id, key, 1).await }).await
        };
        let picked = match guard {
            "challenge" => {
                let (app, path) = (&app, &format!("/v1/sales/{id}/tokens"));
                refused_with(code, |user| async move {
                    let request = app.request(Method::POST, Who::Shopper(&user), path);
                    app.send(request.json(&json!({"idempotency_key": "k"}))).await
                })
                .await
            }
            "unpaid_cooldown_seconds" => {
                assert_eq!(buy("unpaid").await, BTreeSet::new(), "{guard}");
                app.wait_for_units(&id, [1000, 0, 0]).await;
                buy("next").await
            }
            _ => buy("k").await,
        };
        assert!((1..SHOPPERS).contains(&picked.len()), "{guard}: {picked:?}");
    }
}

/// What each account gets at the waiting room: `place`, or the code of its refusal.
async fn in_room(app: &Client, sale: &str) -> BTreeMap<String, String> {
    let path = &format!("/v1/sales/{sale}/waiting-room");
    let asked = (0..SHOPPERS).map(|number| async move {
        let user = format!("picked-{number}");
        let request = || app.request(Method::POST, Who::Shopper(&user), path).json(&json!({}));
        let answer = decided(|| app.send(request())).await;
        let got = if answer.status == 200 { "place" } else { answer.code() };
        let got = got.to_owned();
        (user, got)
    });
    stream::iter(asked).buffer_unordered(8).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_room_of_a_stage_has_places_for_its_shoppers_alone_and_before_the_start_only_if_it_is_for_all() {
    let app = &TestApp::start().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let terms = json!({"stock": 1000, "starts_at": starts_at});
    let id = &app.load_sale(&sale_with(&terms)).await;
    let got = async |percent: u32, expected: &[&str]| {
        let room = json!({"waiting_room": {"value": true, "percent": percent}});
        amend(app, id, &room).await.ok(200);
        poll::answer(&format!("{expected:?} at {percent} %"), || async {
            let got = in_room(app, id).await;
            let each: BTreeSet<&str> = got.values().map(String::as_str).collect();
            (each == expected.iter().copied().collect()).then_some(got)
        })
        .await
    };
    got(40, &["sale_not_open"]).await;
    got(100, &["place"]).await;
    got(0, &["sale_not_open"]).await;
    app.operate(id, "pause").await.ok(200);
    got(40, &["sale_not_open"]).await;
    app.operate(id, "resume").await.ok(200);
    app.operate(id, "open").await.ok(200);
    let open = got(40, &["not_found", "place"]).await;
    let spared = |got: &BTreeMap<String, String>| -> BTreeSet<String> {
        let spared = got.iter().filter(|(_, got)| *got == "not_found");
        spared.map(|(user, _)| user.clone()).collect()
    };
    let refused = refused_with(
        "admission_required",
        |user| async move { app.buy(&user, id, "k", 1).await },
    )
    .await;
    assert_eq!(spared(&open).len() + refused.len(), SHOPPERS);
    assert!(spared(&open).is_disjoint(&refused), "{refused:?}");

    // Pages offer nothing in a pause.
    let started = &app.load_sale(&sale()).await;
    let room = json!({"waiting_room": {"value": true, "percent": 40}});
    amend(app, started, &room).await.ok(200);
    poll::answer("the stage holds", || async {
        let got = in_room(app, started).await;
        got.values().any(|got| got == "place").then_some(())
    })
    .await;
    app.operate(started, "pause").await.ok(200);
    poll::answer("nobody gets a place in a pause", || async {
        let got = in_room(app, started).await;
        got.values().all(|got| got == "sale_not_open").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_can_spare_shoppers_a_room_that_is_for_all() {
    let app = &TestApp::start().await;
    let id = &app
        .load_sale(&sale_with(&json!({"guards": {"waiting_room": true}})))
        .await;
    for (percent, is_for_all, expected) in [(40, true, vec!["not_found", "place"]), (100, false, vec!["not_found"])] {
        let room = json!({"waiting_room": {"value": false, "percent": percent}});
        amend(app, id, &room).await.ok(200);
        poll::answer(&format!("{expected:?} at {percent} %"), || async {
            let got = in_room(app, id).await;
            let each: BTreeSet<&str> = got.values().map(String::as_str).collect();
            (each == expected.iter().copied().collect()).then_some(())
        })
        .await;
        let path = format!("/v1/sales/{id}");
        poll::answer("the sale shows it", || async {
            let shown = app.get(Who::Nobody, &path).await.ok(200).body["guards"].clone();
            (shown["waiting_room"] == is_for_all && shown.get("staged").is_none()).then_some(())
        })
        .await;
    }
}
