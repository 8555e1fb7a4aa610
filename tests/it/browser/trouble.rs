//! What a page makes of reloads, other tabs, and a server that is gone for a while.

use crate::support::app::{Instance, TestApp, environment, rfc3339, sale, sale_with};
use crate::support::raw::Raw;
use crate::support::window::{Window, development};
use crate::support::{poll, servers};
use chrono::{TimeDelta, Utc};
use flashsale::stock::keys::ShardKey;
use serde_json::{Value, json};
use std::time::Duration;
use thirtyfour::Key;

const BUY: &str = "#items .buy";
const NOTE: &str = "#items .outcome .note";
const ORDER: &str = "#orders .order .pill";
const PURCHASES: &[&str] = &["*/orders"];

async fn key(window: &Window) -> String {
    window.attempt().await.unwrap()["key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_whose_answer_was_lost_is_one_order_also_after_a_reload() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let drawn = key(&window).await;
    // The request has come through, and its answer has not.
    let order = app.buy("ada", &id, &drawn, 1).await.ok(201).id();
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "We do not know yet").await;
    assert_eq!(key(&window).await, drawn);
    window.block(&[]).await;
    window.sees(NOTE, "It is yours").await;
    window.sees("#orders .number", &order).await;
    assert_eq!(window.attempt().await, None);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_is_asked_for_by_its_key_alone_when_the_sale_is_over() {
    let app = development().await;
    let guards = json!({"guards": {"purchase_token": true}});
    let id = app.load_sale(&sale_with(&guards)).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let attempt = window.attempt().await.unwrap();
    assert_eq!(attempt["isOpen"], true);
    // The request has come through, and its answer has not; then the sale ends.
    let request = app.buying("ada", &id, attempt["key"].as_str().unwrap());
    let request = request.header("X-Purchase-Token", attempt["purchaseToken"]["token"].as_str().unwrap());
    let body = json!({"sku": "phone", "quantity": 1});
    let order = app.send(request.json(&body)).await.ok(201).id();
    app.operate(&id, "close").await.ok(200);
    window.driver().refresh().await.unwrap();
    window.sees(BUY, "Asking").await;
    window.block(&[]).await;
    window.sees(NOTE, "It is yours").await;
    window.sees("#orders .number", &order).await;
    assert_eq!(window.attempt().await, None);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_shopper_at_the_same_browser_sees_nothing_of_the_last_ones() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let drawn = key(&window).await;
    window.click("#sign-out").await;
    window.misses(NOTE).await;
    assert_eq!(window.focus().await, "main#main.");
    window.sign_in("bob").await;
    window.block(&[]).await;
    window.sees("#no-orders", "None yet").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    assert_eq!(key(&window).await, drawn, "hers waits for her");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.click("#sign-out").await;
    window.sign_in("ada").await;
    window.sees(NOTE, "It is yours").await;
    assert_eq!(app.units(&id).await, [8, 2, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tabs_buy_once_for_one_click() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let first = window.driver().window().await.unwrap();
    let second = window.driver().new_tab().await.unwrap();
    window.driver().switch_to_window(second).await.unwrap();
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees(NOTE, "Another tab is buying").await;
    window.sees(BUY, "In another tab").await;
    window.click(BUY).await;
    window.driver().switch_to_window(first.clone()).await.unwrap();
    window.block(&[]).await;
    window.sees(ORDER, "Reserved").await;
    // The other one hears of it.
    let tabs = window.driver().windows().await.unwrap();
    let other = tabs.into_iter().find(|tab| *tab != first).unwrap();
    window.driver().switch_to_window(other).await.unwrap();
    window.sees(ORDER, "Reserved").await;
    window.sees(BUY, "Buy").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_outlives_its_server_and_says_so() {
    let address = format!("127.0.0.1:{}", servers::free_port());
    let variables = [("FLASHSALE_DEVELOPMENT", "true"), ("FLASHSALE_LISTEN", &*address)];
    let mut app = TestApp::with("all", &variables).await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR", "503"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    app.instance.kill();
    window.sees("#connection", "does not answer").await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let drawn = key(&window).await;
    app.instance = Instance::start(&app.environment, "all");
    window.sees("#connection", "Connected again").await;
    window.sees(NOTE, "It is yours").await;
    window.sees(ORDER, "Reserved").await;
    window.misses("#connection").await;
    let again = app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_cannot_be_read_are_not_said_to_be_none() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.block(&["*/v1/orders*"]).await;
    window.sign_in("ada").await;
    window.sees("#no-orders", "Your orders cannot be read now").await;
    window.click("#language").await;
    window.sees("#no-orders", "暂时无法读取您的订单").await;
    window.click("#language").await;
    window.block(&[]).await;
    window.sees("#orders .number", &order).await;
    window.misses("#no-orders").await;
    // What was read stands, whatever comes after.
    window.block(&["*/v1/orders*"]).await;
    window.sees(ORDER, "Reserved").await;
    window.misses("#no-orders").await;
    window.click("#sign-out").await;
    window.block(&[]).await;
    window.sign_in("bob").await;
    window.sees("#no-orders", "None yet").await;
    window.close().await;
}

/// Answers purchases by a refusal, for as long as `window.refusal` has one.
const REFUSING: &str = "const real = window.fetch;
    window.fetch = (path, options) => {
        if (window.refusal && options.method === 'POST' && path.endsWith('/orders')) {
            const [status, code] = window.refusal;
            return Promise.resolve(new Response(JSON.stringify({ status, code }), { status }));
        }
        return real(path, options);
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_does_not_look_at_the_key_does_not_make_the_page_forget_it() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.run(REFUSING, &[]).await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let drawn = key(&window).await;
    for refusal in [
        "[404, 'not_found']",
        "[400, 'invalid_request']",
        "[413, 'payload_too_large']",
        "[418, 'a_code_of_tomorrow']",
    ] {
        // The next time that the page asks by itself.
        window.run(&format!("window.refusal = {refusal}"), &[]).await;
        window.sees(NOTE, "We still do not know").await;
        assert_eq!(key(&window).await, drawn, "{refusal}");
        window.run("window.refusal = null", &[]).await;
        window.click("#items .outcome .actions button").await;
        window.sees(NOTE, "We do not know yet").await;
    }
    window.block(&[]).await;
    window.sees(NOTE, "It is yours").await;
    app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_the_last_word_only_once_an_earlier_request_can_do_nothing_any_more() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR", "409"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    // The page does not hear that the sale is over, nor what became of its request.
    window.block(&["*/orders", "*/v1/sales/*"]).await;
    app.operate(&id, "close").await.ok(200);
    window.click(BUY).await;
    poll::within(Duration::from_secs(5), "it was sent", async || {
        window.attempt().await.is_some_and(|attempt| attempt["isOpen"] == true)
    })
    .await;
    // As if it had been sent when the page comes again, however long all this took: until then it hears nothing.
    let sent_now = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
        const attempt = JSON.parse(localStorage.getItem(name));
        localStorage.setItem(name, JSON.stringify({ ...attempt, askedAt: Date.now() + 2000 }))";
    window.run(sent_now, &[]).await;
    window.block(&[]).await;
    window.run("location.reload()", &[]).await;
    // Asked for at once, and told that the sale is over: the first one may still be at work.
    window.sees(NOTE, "We do not know yet").await;
    assert_eq!(window.attempt().await.unwrap()["isOpen"], true);
    window.sees(NOTE, "The sale is over. Nothing was bought").await;
    let asked = asked(&window).await;
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[1].sent - asked[0].sent > 2.9, "{asked:?}");
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_asks_no_more_often_of_a_shop_that_is_busy_and_says_what_it_is() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    let refuse = format!(
        "const real = window.fetch; window.asked = [];
        const waits = [1, 1, 5];
        window.fetch = (path, options) => {{
            if (path !== '/v1/sales/{id}') {{ return real(path, options); }}
            window.asked.push(performance.now());
            const wait = waits.shift();
            const body = JSON.stringify({{ status: 503, code: 'overloaded' }});
            return wait === undefined ? real(path, options)
                : Promise.resolve(new Response(body, {{ status: 503, headers: {{ 'Retry-After': String(wait) }} }}));
        }}"
    );
    window.run(&refuse, &[]).await;
    window.sees("#connection", "The shop is very busy").await;
    poll::within(Duration::from_secs(25), "it was asked four times", async || {
        window.run("return window.asked.length", &[]).await == 4
    })
    .await;
    window.sees("#connection", "Connected again").await;
    let asked = window.run("return window.asked", &[]).await;
    let asked: Vec<f64> = serde_json::from_value(asked).unwrap();
    let waited: Vec<f64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    // A sale that sells is asked for every three seconds, a quarter more or less.
    assert!(waited[0] > 2200.0 && waited[1] > 2200.0, "{waited:?}");
    assert!(waited[2] > 4990.0, "{waited:?}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_signed_out_in_between_goes_on_after_signing_in() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["401"]);
    window.goto_sale(&id).await;
    // What is no token is told at once, and one that nobody signed when it is used.
    window.fill("#token", "hunter2").await;
    window.press(Key::Enter).await;
    window.sees("#sign-in-why", "not a token").await;
    window.fill("#token", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.x").await;
    window.click("#by-token button").await;
    window.sees("#sign-in-why", "Sign in again").await;
    window.fill("#token", &crate::support::app::token("ada")).await;
    window.click("#by-token button").await;
    window.sees("#who", "ada").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.click("#sign-out").await;
    window.misses("#orders").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_asked_for_again_is_told_as_it_is_by_now() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    for words in ["Paid. Thank you", "Cancelled. You gave it back"] {
        window.block(PURCHASES).await;
        window.click(BUY).await;
        window.sees(NOTE, "We do not know yet").await;
        // The request has come through, its answer has not, and the order is decided meanwhile.
        let order = app.buy("ada", &id, &key(&window).await, 1).await.ok(201).body;
        if words.starts_with("Paid") {
            assert_eq!(app.pay("pay_while_lost", &order).await, "applied");
        } else {
            app.cancel("ada", order["id"].as_str().unwrap()).await.ok(200);
        }
        window.block(&[]).await;
        window.sees(NOTE, words).await;
        let told = "return document.getElementById('live').textContent";
        poll::within(Duration::from_secs(5), "a screen reader is told", async || {
            window.run(told, &[]).await.as_str().unwrap().contains(words)
        })
        .await;
        assert_eq!(window.attempt().await, None);
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_sent_is_not_bought_a_day_later_without_a_press() {
    let app = development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    // Whoever loads the page anew means to go on.
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "You are in the waiting room").await;
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    let age = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
        const attempt = JSON.parse(localStorage.getItem(name));
        attempt.seen -= 24 * 3600_000;
        localStorage.setItem(name, JSON.stringify(attempt));
        return name";
    let name = window.run(age, &[]).await;
    let begun = window.attempt().await.unwrap();
    assert_eq!(begun["isOpen"], false);
    app.operate(&id, "open").await.ok(200);
    window.goto_sale(&id).await;
    window.sees(NOTE, "You had begun to buy 1 of this").await;
    // And not by looking once more.
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "You had begun to buy 1 of this").await;
    window.finds(BUY, "Queue to buy").await;
    assert_eq!(app.orders("ada", &id).await.ok(200).body["data"], json!([]));
    assert_eq!(window.attempt().await.unwrap(), begun);
    window.click("#items .outcome button.quiet").await;
    window.misses(NOTE).await;
    assert_eq!(window.focus().await, "li#.item");
    assert_eq!(window.attempt().await, None);
    // Whoever wants to go on does.
    let back = "localStorage.setItem(arguments[0], arguments[1])";
    window.run(back, &[name.as_str().unwrap(), &begun.to_string()]).await;
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "You had begun to buy 1 of this").await;
    window.click("#items .outcome .actions button").await;
    window.sees(NOTE, "It is yours").await;
    assert_eq!(window.focus().await, "li#.item");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// Makes the attempt that the browser keeps a day older; only where no page goes on with it.
const AGE: &str = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
    const attempt = JSON.parse(localStorage.getItem(name));
    for (const time of ['seen', 'sentAt']) { attempt[time] -= 24 * 3600_000; }
    localStorage.setItem(name, JSON.stringify(attempt))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_and_not_answered_is_not_asked_for_a_day_later_without_a_press() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    let again = "#items .outcome .actions button:not(.quiet)";
    let forget = "#items .outcome button.quiet";
    for is_wanted in [false, true] {
        window.block(PURCHASES).await;
        window.click(BUY).await;
        window.sees(NOTE, "We do not know yet").await;
        let drawn = key(&window).await;
        window.goto("/").await;
        window.sees("#sales", "A sale").await;
        window.run(AGE, &[]).await;
        // From now on, asking would buy it.
        window.block(&[]).await;
        window.goto_sale(&id).await;
        window.sees(NOTE, "was never answered").await;
        window.driver().refresh().await.unwrap();
        window.sees(NOTE, "was never answered").await;
        window.sees("#no-orders", "None yet").await;
        // A look at the sale later, still nothing was asked.
        window.finds(again, "Ask again").await;
        assert_eq!(app.units(&id).await, [10, 0, 0]);
        assert_eq!(key(&window).await, drawn, "its key is kept");
        if is_wanted {
            window.click(again).await;
            window.sees(NOTE, "It is yours").await;
            app.buy("ada", &id, &drawn, 1).await.ok(200);
            assert_eq!(app.units(&id).await, [9, 1, 0]);
        } else {
            window.click(forget).await;
            window.misses(NOTE).await;
            window.sees(BUY, "Buy").await;
        }
        assert_eq!(window.focus().await, "li#.item");
        assert_eq!(window.attempt().await, None);
    }
    window.close().await;
}

/// The page's clock goes on by this, as that of a telephone does that was locked.
const SLEEP: &str = "const real = Date.now; Date.now = () => real.call(Date) + 3 * 3600_000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_slept_buys_nothing_without_a_press() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We do not know yet").await;
    let drawn = key(&window).await;
    window.run(SLEEP, &[]).await;
    // From now on, asking would buy it.
    window.block(&[]).await;
    window.sees(NOTE, "was never answered").await;
    window.finds("#items .outcome button.quiet", "Forget it").await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.click("#items .outcome .actions button:not(.quiet)").await;
    window.sees(NOTE, "It is yours").await;
    app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_turn_comes_while_the_page_slept_is_asked_before_it_buys() {
    let app = development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::seconds(20));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    window.run(SLEEP, &[]).await;
    app.operate(&id, "open").await.ok(200);
    window.sees(NOTE, "You had begun to buy 1 of this").await;
    // Not by looking once more, either.
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "You had begun to buy 1 of this").await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.click("#items .outcome .actions button").await;
    window.sees(NOTE, "It is yours").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// The brake of a sale, as it holds while too much waits for the ledger. Nobody permits the shards to sell meanwhile, so nobody
/// finds that it need not hold; once that is let go, it is what the instance finds.
struct Brake {
    raw: Raw,
    shards: Vec<ShardKey>,
}

impl Brake {
    fn hold(app: &TestApp, sale: &str, shards: u16) -> Self {
        let sale = sale.parse().unwrap();
        let held = Self {
            raw: Raw::connect(&app.environment["FLASHSALE_REDIS_URL"]),
            shards: (0..shards).map(|shard| ShardKey { sale, shard }).collect(),
        };
        let permit_until = u64::try_from(Utc::now().timestamp_millis()).unwrap() + 60_000;
        // The brake and the end of the permit, as `stock::record` has them.
        let braked = [&[1], &permit_until.to_be_bytes()[2..]].concat();
        for shard in &held.shards {
            let () = held.raw.call(redis::cmd("SET").arg(shard.halt()).arg(""));
            let _length: i64 = held
                .raw
                .call(redis::cmd("SETRANGE").arg(shard.shard()).arg(1).arg(&braked));
        }
        held
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        for shard in &self.shards {
            let _gone: i64 = self.raw.call(redis::cmd("DEL").arg(shard.halt()));
        }
    }
}

/// One purchase that the page asked for: when, in seconds of its own clock, and how long it was told to wait.
#[derive(Debug)]
struct Asked {
    sent: f64,
    answered: f64,
    wait: f64,
}

/// The purchases that the page has asked for and that were answered.
async fn asked(window: &Window) -> Vec<Asked> {
    let events = window.network().await;
    window.asked_nobody_else(&events);
    let of = |event: &Value| (event["method"].clone(), event["params"]["requestId"].clone());
    let sent = events.iter().filter(|event| {
        let request = &event["params"]["request"];
        event["method"] == "Network.requestWillBeSent"
            && request["method"] == "POST"
            && request["url"].as_str().unwrap().ends_with("/orders")
    });
    let asked = sent.filter_map(|sent| {
        let answer = (json!("Network.responseReceived"), sent["params"]["requestId"].clone());
        let answer = events.iter().find(|event| of(event) == answer)?;
        let headers = answer["params"]["response"]["headers"].as_object().unwrap();
        let wait = headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
        Some(Asked {
            sent: sent["params"]["timestamp"].as_f64().unwrap(),
            answered: answer["params"]["timestamp"].as_f64().unwrap(),
            wait: wait.map_or(0.0, |(_, seconds)| seconds.as_str().unwrap().parse().unwrap()),
        })
    });
    asked.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_too_busy_is_asked_again_when_it_said() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["503"]);
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    let brake = Brake::hold(&app, &id, 2);
    window.click(BUY).await;
    window.sees(NOTE, "The shop is very busy").await;
    window.sees("#items .outcome .timer", "Again in").await;
    // It said that nothing was done.
    poll::within(Duration::from_secs(5), "nothing is open", async || {
        window.attempt().await.unwrap()["isOpen"] == false
    })
    .await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    drop(brake);
    window.sees(NOTE, "It is yours").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    let asked = asked(&window).await;
    assert!(asked.len() > 1 && asked[0].wait >= 1.0, "{asked:?}");
    for two in asked.windows(2) {
        let waited = two[1].sent - two[0].answered;
        assert!(waited >= two[0].wait - 0.01, "{asked:?}");
    }
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_loaded_while_postgres_is_away_sells() {
    let mut postgres = servers::FreshPostgres::start().await;
    let mut environment = environment(&servers::redis(), &postgres.url());
    environment.insert("FLASHSALE_DEVELOPMENT".to_owned(), "true".to_owned());
    let app = Instance::start(&environment, "all").may_log_errors();
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.click(BUY).await;
    window.sees(NOTE, "It is yours").await;
    postgres.stop();
    window.driver().refresh().await.unwrap();
    window.sees("#state", "On sale").await;
    window.sees(ORDER, "Reserved").await;
    window.click(BUY).await;
    window.sees(NOTE, "It is yours").await;
    window.sees("#orders li:nth-child(2) .pill", "Reserved").await;
    window.misses("#connection").await;
    window.close().await;
}
