//! Stages: operators try a guard on a part of the shoppers, and see what it would refuse. Its picked shoppers alone meet
//! it on the sale's page.

use crate::support::app::{Answer, Client, TestApp, Who, rfc3339, sale, sale_with, while_unavailable};
use crate::support::poll;
use crate::support::window::{Window, shared_development};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::Key;
use uuid::Uuid;

const SHADOW: &str = "[aria-labelledby=table-shadow] tbody";
const BUY: &str = "#items .buy";
const NOTE: &str = "#items .outcome .note";
const NEWEST_ACTION: &str = "[aria-labelledby=table-audit-log] tbody tr:first-child";

async fn amend(app: &Client, sale: &str, guards: &Value) -> Answer {
    let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{sale}"));
    app.send(request.json(&json!({"guards": guards}))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_guard_in_shadow_would_refuse_stand_beside_the_refused_ones() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let shadow = json!({"purchase_token": {"value": true, "percent": 100, "shadow": true}});
    amend(&app, &id, &shadow).await.ok(200);
    poll::answer("the stage counts a purchase", || async {
        app.buy("ada", &id, &Uuid::new_v4().to_string(), 1).await;
        app.stats(&id).await["would_stop"]["purchase_token"].as_i64()
    })
    .await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window
        .sees("#guards-refused", "purchase token, in shadow (refused nobody)")
        .await;
    // And whom they would refuse, with the account's orders.
    window.click("#to-shadow").await;
    window.sees(SHADOW, "purchase token").await;
    window
        .click(&format!("{SHADOW} a[href='/console/orders?user=ada']"))
        .await;
    window.sees("[aria-labelledby=table-orders] tbody", "A sale").await;
    // Of all sales, from the limits.
    window.goto("/console/limits").await;
    window.click("a[href='/console/shadow']").await;
    window.sees(SHADOW, "ada").await;
    window
        .sees(&format!("{SHADOW} a[href='/console/sales/{id}']"), "A sale")
        .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_tries_a_limit_on_a_part_of_the_shoppers_and_then_on_nobody() {
    let app = TestApp::with("all", &[("FLASHSALE_ADDRESS_RATE", "500")]).await;
    let staged = async || app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body["staged"].clone();
    let window = Window::open(&app).await;
    window.open_console("/console/limits").await;
    window.sees("#limit-address_rate", "500").await;
    window.misses("#tryIt-adaptive_min_rate").await;
    window.misses("#tryNoMore-address_rate").await;
    window.click("#tryIt-address_rate").await;
    window.sees("dialog", "The others keep: 500.").await;
    window.holds("stage-value", "500").await;
    window.holds("stage-percent", "10").await;
    window.holds("stage-effect", "shadow").await;
    window.types("stage-percent", "101").await;
    window.click("dialog .strong").await;
    window.sees("#stage-percent-wrong", "from 0 to 100").await;
    window.types("stage-percent", "20").await;
    window.types("stage-value", "300").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".result", "300, for 20 %, in shadow now.").await;
    window.sees("#limit-address_rate", "300, for 20 %, in shadow").await;
    let shadow = json!({"value": 300, "percent": 20, "shadow": true});
    assert_eq!(staged().await, json!({"address_rate": shadow}));

    window.click("#tryIt-address_rate").await;
    window.holds("stage-value", "300").await;
    window.types("stage-effect", "enforced").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees("#limit-address_rate", "300, for 20 %, enforced").await;
    window.click("#changeIt-address_rate").await;
    window.sees("dialog", "ends the trial").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.click("#tryNoMore-address_rate").await;
    window.sees("#limit-address_rate", "300, for 0 %").await;
    window.misses("#tryNoMore-address_rate").await;
    let nobody = json!({"value": 300, "percent": 0, "shadow": false});
    assert_eq!(staged().await, json!({"address_rate": nobody}));
    window.does("#takeBack-address_rate").await;
    window.misses("#takeBack-address_rate").await;
    assert_eq!(staged().await, json!({}));

    // A guard warning refuses nobody, so its limit has no shadow.
    window.click("#tryIt-browsing_alert_above").await;
    window.sees("dialog .strong", "Try").await;
    window.misses("#stage-effect").await;
    // It is off, so there is no value to begin with.
    window.holds("stage-value", "").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.goto("/console/audit-log").await;
    window
        .sees(
            "#view tbody",
            "Requests a second of one address: 300, for 20 %, enforced",
        )
        .await;
    window
        .sees("#view tbody", "Requests a second of one address: for 0 %")
        .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_tries_guards_of_a_sale_that_sells_and_ends_all_trials_at_once() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let staged = async || app.admin(&id, "").await.ok(200).body["staged_guards"].clone();
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.click("#further summary").await;
    window.sees("#do-try", "Try a guard").await;
    window.misses("#do-end-trials").await;
    window.click("#do-try").await;
    window.sees("dialog", "Try a guard of “A sale”").await;
    // A challenge needs a purchase token for all.
    window.misses("#try-guard option[value=challenge]").await;
    let gap = "const box = (selector) => document.querySelector(selector).getBoundingClientRect();
        return box('dialog .strong').top - box('#try-guard').bottom";
    assert!(window.run(gap, &[]).await.as_f64() > Some(8.0));
    window.types("try-guard", "purchase_token").await;
    window.click("dialog .strong").await;
    window.sees("dialog", "The part gets: yes. The others keep: no.").await;
    window.misses("#stage-value").await;
    window.holds("stage-percent", "10").await;
    window.holds("stage-effect", "shadow").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".result", "The trial is stored").await;
    window.sees(".facts", "purchase token: for 10 %, in shadow").await;
    window
        .sees("#on-trial", "On trial purchase token: for 10 %, in shadow")
        .await;
    let token = json!({"value": true, "percent": 10, "shadow": true});
    assert_eq!(staged().await, json!({"purchase_token": token}));

    window.change_language("zh-CN").await;
    window.click("#further summary").await;
    window.click("#do-try").await;
    window.sees("dialog", "试用“A sale”的防护").await;
    window.types("try-guard", "holds").await;
    window.click("dialog .strong").await;
    window.sees("dialog", "其余顾客仍为：不限。").await;
    window.holds("stage-value", "").await;
    window.misses("#stage-effect").await;
    window.types("stage-value", "2").await;
    window.types("stage-percent", "50").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".result", "试用已保存").await;
    window.change_language("en").await;
    window.sees(".facts", "unpaid orders: 2, for 50 %, enforced").await;
    window
        .sees(NEWEST_ACTION, "Guards: unpaid orders: 2, for 50 %, enforced")
        .await;

    // A waiting room on trial admits at a rate, too.
    let room = json!({"waiting_room": {"value": true, "percent": 10, "shadow": true}});
    amend(&app, &id, &room).await.ok(200);
    window.sees("#on-trial", "waiting room").await;
    window.click("#further summary").await;
    window.click("#do-amend").await;
    window.sees("dialog h2", "Amend “A sale”").await;
    window.types("amend-admissions_per_second", "9").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".result", "The sale is amended").await;
    let amended = app.admin(&id, "").await.ok(200).body;
    assert_eq!(amended["guards"]["admissions_per_second"], 9);

    // A trial that picks nobody is a trial, too.
    amend(&app, &id, &json!({"holds_max": {"percent": 0}})).await.ok(200);
    window.click("#further summary").await;
    window.click("#do-end-trials").await;
    window.sees("dialog h2", "End all trials of “A sale”?").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(staged().await["purchase_token"], token);
    window.click("#further summary").await;
    window.does("#do-end-trials").await;
    window.sees(".result", "The trials have ended").await;
    window.misses("#on-trial").await;
    window.sees(".facts", "Guards none").await;
    assert_eq!(staged().await, Value::Null);
    window.click("#further summary").await;
    window.sees("#do-try", "Try a guard").await;
    window.misses("#do-end-trials").await;
    window.sees(NEWEST_ACTION, "unpaid orders: no stage").await;
    window.close().await;
}

/// Gives a guard a stage. Every instance follows within a second.
async fn stage(app: &Client, sale: &str, guard: &str, stage: Value) {
    let path = format!("/v1/sales/{sale}");
    let name = format!("A sale {}", Uuid::new_v4());
    let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{sale}"));
    let amendment = json!({"name": name, "guards": {guard: stage}});
    app.send(request.json(&amendment)).await.ok(200);
    poll::answer("the sale is amended", || async {
        (app.get(Who::Nobody, &path).await.ok(200).body["name"] == name).then_some(())
    })
    .await;
}

/// A shopper whom a stage of less than all picks, and one whom it does not.
async fn picked_and_spared(is_picked: impl AsyncFn(&str) -> bool) -> [String; 2] {
    let (mut picked, mut spared) = (None, None);
    for _ in 0..100 {
        // Challenges are counted by account, in a Redis that tests share.
        let user = Uuid::new_v4().to_string();
        let found = if is_picked(&user).await {
            &mut picked
        } else {
            &mut spared
        };
        *found = Some(user);
        if let (Some(picked), Some(spared)) = (&picked, &spared) {
            return [picked.clone(), spared.clone()];
        }
    }
    panic!("the stage picks all or nobody");
}

/// Buys on the sale's page as this shopper. Returns the requests of the page that end so.
async fn requests_of_a_purchase(app: &Client, sale: &str, user: &str, path: &str) -> Value {
    let window = Window::open(app).await.expect(&["403"]);
    window.goto_sale(sale).await;
    window.sign_in(user).await;
    window.sees(BUY, "Buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    let sent =
        "return performance.getEntriesByType('resource').filter(({ name }) => name.endsWith(arguments[0])).length";
    let sent = window.run(sent, &[path]).await;
    window.close().await;
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_shoppers_whom_a_stage_picks_wait_in_its_room() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 1000, "per_user_limit": 3})))
        .await;
    stage(&app, &id, "waiting_room", json!({"value": true, "percent": 40})).await;
    let [picked, spared] = picked_and_spared(async |user| {
        let request = || {
            app.request(
                Method::POST,
                Who::Shopper(user),
                &format!("/v1/sales/{id}/waiting-room"),
            )
        };
        let answer = while_unavailable(|| app.send(request().json(&json!({})))).await;
        answer.status == 200
    })
    .await;
    let path = "/waiting-room";
    assert_eq!(requests_of_a_purchase(&app, &id, &spared, path).await, json!(0));
    assert_ne!(requests_of_a_purchase(&app, &id, &picked, path).await, json!(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_shoppers_whom_a_stage_picks_solve_its_challenge() {
    let app = shared_development().await;
    let guards = json!({"guards": {"purchase_token": true, "proof_cost": 1}});
    let id = app.load_sale(&sale_with(&guards)).await;
    let challenge = json!({"value": "proof_of_work", "percent": 40});
    stage(&app, &id, "challenge", challenge).await;
    let [picked, spared] = picked_and_spared(async |user| {
        let request = || app.request(Method::POST, Who::Shopper(user), &format!("/v1/sales/{id}/tokens"));
        let body = json!({"idempotency_key": "k"});
        let answer = while_unavailable(|| app.send(request().json(&body))).await;
        assert!([201, 403].contains(&answer.status), "{answer:?}");
        answer.status == 403
    })
    .await;
    let path = "/v1/challenges";
    assert_eq!(requests_of_a_purchase(&app, &id, &spared, path).await, json!(0));
    assert_eq!(requests_of_a_purchase(&app, &id, &picked, path).await, json!(1));
}

/// Lets the page read the sale no more, as between two of its readings.
const READ_NO_MORE: &str = "const real = window.fetch;
    const last = real(`/v1/sales/${arguments[0]}`);
    window.fetch = (path, options) =>
        path.endsWith(`/v1/sales/${arguments[0]}`) ? last.then((it) => it.clone()) : real(path, options);
    return last.then(() => true)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picked_shopper_buys_on_a_page_that_has_not_read_the_stage_yet() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["403"]);
    window.sees(BUY, "Buy").await;
    window.run(READ_NO_MORE, &[&id]).await;
    stage(&app, &id, "waiting_room", json!({"value": true, "percent": 100})).await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shoppers_in_the_room_of_a_stage_buy_once_it_is_taken_back() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let terms = json!({"stock": 500, "starts_at": starts_at, "guards": {"admissions_per_second": 1}});
    let id = app.load_sale(&sale_with(&terms)).await;
    stage(&app, &id, "waiting_room", json!({"value": true, "percent": 100})).await;
    let path = format!("/v1/sales/{id}/waiting-room");
    for crowd in 0..200 {
        let user = format!("crowd-{crowd}");
        let ask = || app.send(app.request(Method::POST, Who::Shopper(&user), &path).json(&json!({})));
        while_unavailable(ask).await.ok(200);
    }
    app.operate(&id, "open").await.ok(200);
    // The turn would come after minutes.
    let window = Window::of_shopper(&app, &id, "ada")
        .await
        .expect(&["404", "409", "ERR"]);
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees("#items .room .place", "Ahead of you").await;
    window.misses("#items .pill.is-available").await;
    window.change_language("zh-CN").await;
    window.sees("#items .room .place", "您前面的人数").await;
    // A pause ends nobody's wish, also if the page learns it by a reload.
    window.block(&["*/waiting-room"]).await;
    app.operate(&id, "pause").await.ok(200);
    stage(&app, &id, "waiting_room", json!({"percent": 0})).await;
    window.driver().refresh().await.unwrap();
    window.sees("#items .item", "").await;
    window.block(&[]).await;
    window.finds(NOTE, "活动一开售").await;
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "活动一开售").await;
    app.operate(&id, "resume").await.ok(200);
    window.finds(NOTE, "已为您保留").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_is_taken_back_before_the_start_keeps_the_wish_until_then() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let id = app.load_sale(&sale_with(&json!({"starts_at": starts_at}))).await;
    stage(&app, &id, "waiting_room", json!({"value": true, "percent": 100})).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["404", "409"]);
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    stage(&app, &id, "waiting_room", json!({"percent": 0})).await;
    window.finds(NOTE, "as soon as the sale sells").await;
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "as soon as the sale sells").await;
    // The room comes back, and there is still a lot to draw.
    stage(&app, &id, "waiting_room", json!({"percent": 100})).await;
    window.sees(NOTE, "You are in the waiting room").await;
    app.operate(&id, "open").await.ok(200);
    window.finds(NOTE, "Reserved for you").await;
    window.close().await;
}

/// Leaves requests for a purchase token without an answer.
const NO_TOKENS: &str = "const real = window.fetch;
    window.fetch = (path, options) => {
        if (!path.endsWith('/tokens')) { return real(path, options); }
        const begun = performance.now();
        return new Promise((_, reject) => options.signal.addEventListener('abort', () => {
            window.waited = performance.now() - begun;
            reject(options.signal.reason);
        }));
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_in_shadow_keeps_nobody_from_buying_where_no_token_can_be_had() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let shadow = json!({"value": true, "percent": 100, "shadow": true});
    stage(&app, &id, "purchase_token", shadow).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.run(NO_TOKENS, &[]).await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    let waited = window.run("return window.waited", &[]).await.as_f64();
    assert!(waited > Some(0.0) && waited < Some(4000.0), "{waited:?} ms");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_counts_who_buys_without_the_token_that_pages_bring() {
    let app = shared_development().await;
    let shadow = json!({"value": true, "percent": 100, "shadow": true});
    // On a busy machine, the page may not get its token within a second, and then buys without one.
    for _ in 0..4 {
        let id = app.load_sale(&sale()).await;
        stage(&app, &id, "purchase_token", shadow.clone()).await;
        assert_eq!(requests_of_a_purchase(&app, &id, "ada", "/tokens").await, json!(1));
        app.buy("bot", &id, "k", 1).await.ok(201);
        let path = format!("/v1/admin/guards/shadow?sale_id={id}");
        let listed = poll::answer("the bot is listed", || async {
            let entries = app.get(Who::Operator, &path).await.ok(200).body["data"].clone();
            let users = entries.as_array().unwrap().iter().map(|it| it["user"].clone());
            let users: Vec<Value> = users.collect();
            users.contains(&json!("bot")).then_some(users)
        });
        if listed.await == ["bot"] {
            let count = poll::answer("the stage counts a purchase", || async {
                app.stats(&id).await["would_stop"]["purchase_token"].as_i64()
            });
            assert_eq!(count.await, 1);
            return;
        }
    }
    panic!("each page bought without a token");
}
