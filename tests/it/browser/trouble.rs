//! A page across reloads, other tabs, and a server that is gone for a while.

use crate::support::app::{Instance, TestApp, environment, rfc3339, sale, sale_with};
use crate::support::poll::PATIENCE;
use crate::support::raw::Raw;
use crate::support::window::{Appearance, TELEPHONE, Window, development, shared_development};
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
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
    let drawn = key(&window).await;
    // The request has arrived, and its answer has not.
    let order = app.buy("ada", &id, &drawn, 1).await.ok(201).id();
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "We are checking whether").await;
    assert_eq!(key(&window).await, drawn);
    window.block(&[]).await;
    window.sees(NOTE, "Reserved for you").await;
    window.sees("#orders .number", &order[order.len() - 8..]).await;
    assert_eq!(window.attempt().await, None);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_sale_is_over_a_sent_purchase_is_probed_by_its_key_alone() {
    let app = shared_development().await;
    let guards = json!({"guards": {"purchase_token": true}});
    let id = app.load_sale(&sale_with(&guards)).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
    let attempt = window.attempt().await.unwrap();
    assert_eq!(attempt["isOpen"], true);
    // The request has arrived, and its answer has not; then the sale ends.
    let request = app.buying("ada", &id, attempt["key"].as_str().unwrap());
    let request = request.header("X-Purchase-Token", attempt["purchaseToken"]["token"].as_str().unwrap());
    let body = json!({"sku": "phone", "quantity": 1});
    let order = app.send(request.json(&body)).await.ok(201).id();
    app.operate(&id, "close").await.ok(200);
    window.driver().refresh().await.unwrap();
    window.sees(BUY, "Asking").await;
    window.block(&[]).await;
    window.sees(NOTE, "Reserved for you").await;
    window.sees("#orders .number", &order[order.len() - 8..]).await;
    assert_eq!(window.attempt().await, None);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_shopper_at_the_same_browser_sees_nothing_of_the_last_ones() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
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
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(app.units(&id).await, [8, 2, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tabs_buy_once_for_one_click() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
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
    // The other tab is notified.
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
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR", "503"]);
    app.instance.kill();
    window.sees("#connection", "does not answer").await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
    let drawn = key(&window).await;
    app.instance = Instance::start(&app.environment, "all");
    window.sees("#connection", "Connected again").await;
    window.sees(NOTE, "Reserved for you").await;
    window.sees(ORDER, "Reserved").await;
    window.misses("#connection").await;
    let again = app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// Whether the notice about the connection is on the screen of a page that is scrolled to its end.
const NOTICE_IN_VIEW: &str = "scrollTo(0, document.body.scrollHeight);
    const notice = document.getElementById('connection');
    const { top, left } = notice.getBoundingClientRect();
    return scrollY > 100 && document.elementFromPoint(left + 10, top + 10) === notice";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_without_a_connection_reads_so_wherever_the_page_is() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::with(
        &app,
        Appearance {
            height: 400,
            ..TELEPHONE
        },
    )
    .await
    .expect(&["ERR"]);
    window.goto_sale(&id).await;
    let network =
        |offline: bool| json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
    window.devtools("Network.enable", json!({})).await;
    window.devtools("Network.emulateNetworkConditions", network(true)).await;
    window.sees("#connection", "You are offline").await;
    assert_eq!(window.run(NOTICE_IN_VIEW, &[]).await, json!(true));
    window
        .devtools("Network.emulateNetworkConditions", network(false))
        .await;
    window.sees("#connection", "Connected again").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_cancellation_that_was_lost_the_page_says_what_it_knows() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    app.buy("ada", &id, "k", 1).await.ok(201);
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.sees("#items .payment .timer", "14:").await;
    let cancels = async || {
        window.click("#items .payment .actions button:nth-child(2)").await;
        window.sees("#items .payment .note", "Cancel this order?").await;
        window.click("#items .payment .actions button:nth-child(3)").await;
    };
    window.block(&["*/cancel"]).await;
    cancels().await;
    let wrong = "#items .payment .warning";
    window.sees(wrong, "We do not know yet whether that worked").await;
    // The orders are read again.
    window
        .sees(wrong, "It did not go through. It is still reserved for you.")
        .await;
    window.block(&[]).await;
    cancels().await;
    window.sees(NOTE, "Cancelled. You gave it back.").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_cannot_be_read_are_not_said_to_be_none() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.goto_sale(&id).await;
    window.block(&["*/v1/orders*"]).await;
    window.sign_in("ada").await;
    window.sees("#no-orders", "Your orders cannot be read now").await;
    window.change_language("zh-CN").await;
    window.sees("#no-orders", "暂时无法读取您的订单").await;
    window.change_language("en").await;
    window.block(&[]).await;
    window.sees("#orders .number", &order[order.len() - 8..]).await;
    window.misses("#no-orders").await;
    // A read value stays, after any later failure.
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
async fn a_refusal_without_a_check_of_the_key_does_not_make_the_page_forget_it() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.run(REFUSING, &[]).await;
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
    let drawn = key(&window).await;
    for refusal in [
        "[404, 'not_found']",
        "[400, 'invalid_request']",
        "[413, 'payload_too_large']",
        "[418, 'a_code_of_tomorrow']",
    ] {
        // The page's next request by itself.
        window.run(&format!("window.refusal = {refusal}"), &[]).await;
        window.sees(NOTE, "We still do not know").await;
        assert_eq!(key(&window).await, drawn, "{refusal}");
        window.run("window.refusal = null", &[]).await;
        window.click("#items .outcome .actions button").await;
        window.sees(NOTE, "We are checking whether").await;
    }
    window.block(&[]).await;
    window.sees(NOTE, "Reserved for you").await;
    app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_the_last_word_only_once_an_earlier_request_can_do_nothing_any_more() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR", "409"]);
    // The page does not learn that the sale is over, nor the outcome of its request.
    window.block(&["*/orders", "*/v1/sales/*"]).await;
    app.operate(&id, "close").await.ok(200);
    window.click(BUY).await;
    poll::within(PATIENCE, "it was sent", async || {
        window.attempt().await.is_some_and(|attempt| attempt["isOpen"] == true)
    })
    .await;
    // As if it had been sent when the page returns, however long all this took: until then the page gets no answer.
    let sent_now = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
        const attempt = JSON.parse(localStorage.getItem(name));
        localStorage.setItem(name, JSON.stringify({ ...attempt, askedAt: Date.now() + 2000 }))";
    window.run(sent_now, &[]).await;
    window.block(&[]).await;
    window.leave_by("location.reload()").await;
    // Asked for at once, and answered that the sale is over: the first request may still be at work.
    window.sees(NOTE, "We are checking whether").await;
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
async fn a_page_does_not_ask_a_busy_shop_more_often_and_says_that_it_is_busy() {
    let app = shared_development().await;
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
    // An open sale is polled every three seconds, a quarter more or less.
    assert!(waited[0] > 2200.0 && waited[1] > 2200.0, "{waited:?}");
    assert!(waited[2] > 4990.0, "{waited:?}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_who_was_signed_out_goes_on_after_signing_in() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["401"]);
    window.goto_sale(&id).await;
    // A malformed token is refused at once, and an unsigned one when it is used.
    window.fill("#token", "hunter2").await;
    window.press(Key::Enter).await;
    window.sees("#sign-in-why", "not a token").await;
    let invalid = "return document.activeElement.id + document.activeElement.ariaInvalid";
    assert_eq!(window.run(invalid, &[]).await, "tokentrue");
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
async fn a_replayed_order_is_shown_in_its_present_state() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    for words in ["Paid. Thank you", "Cancelled. You gave it back"] {
        window.block(PURCHASES).await;
        window.click(BUY).await;
        window.sees(NOTE, "We are checking whether").await;
        // The request has arrived, its answer has not, and the order is decided meanwhile.
        let order = app.buy("ada", &id, &key(&window).await, 1).await.ok(201).body;
        if words.starts_with("Paid") {
            assert_eq!(app.pay("pay_while_lost", &order).await, "applied");
        } else {
            app.cancel("ada", order["id"].as_str().unwrap()).await.ok(200);
        }
        window.block(&[]).await;
        window.sees(NOTE, words).await;
        let live = "return document.getElementById('live').textContent";
        poll::within(PATIENCE, "a screen reader gets it", async || {
            window.run(live, &[]).await.as_str().unwrap().contains(words)
        })
        .await;
        assert_eq!(window.attempt().await, None);
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsent_purchase_is_not_made_a_day_later_without_a_press() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    // A shopper who reloads the page means to go on.
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
    window.goto(&format!("/sales/{id}")).await;
    window.sees(NOTE, "Buy 1 A phone?").await;
    // A reload does not buy either.
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "Buy 1 A phone?").await;
    window.finds("#items .outcome .actions button", "Queue to buy").await;
    assert_eq!(app.orders("ada", &id).await.ok(200).body["data"], json!([]));
    assert_eq!(window.attempt().await.unwrap(), begun);
    window.click("#items .outcome button.quiet").await;
    window.misses(NOTE).await;
    assert_eq!(window.focus().await, "li#.item");
    assert_eq!(window.attempt().await, None);
    // A shopper who wants to go on presses the button.
    let back = "localStorage.setItem(arguments[0], arguments[1])";
    window.run(back, &[name.as_str().unwrap(), &begun.to_string()]).await;
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "Buy 1 A phone?").await;
    window.click("#items .outcome .actions button").await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(window.focus().await, "li#.item");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// Makes the browser's stored attempt a day older, unless a page goes on with it.
const AGE: &str = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.attempt.'));
    const attempt = JSON.parse(localStorage.getItem(name));
    for (const time of ['seen', 'sentAt']) { attempt[time] -= 24 * 3600_000; }
    localStorage.setItem(name, JSON.stringify(attempt))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_purchase_is_not_repeated_a_day_later_without_a_press() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    let again = "#items .outcome .actions button:not(.quiet)";
    let forget = "#items .outcome button.quiet";
    for is_wanted in [false, true] {
        window.block(PURCHASES).await;
        // A tap would do nothing just where the last one gave up the attempt. A script's click has no place.
        window.run("document.querySelector('#items .buy').click()", &[]).await;
        window.sees(NOTE, "We are checking whether").await;
        let drawn = key(&window).await;
        window.goto("/").await;
        window.sees("#sales", "A sale").await;
        window.run(AGE, &[]).await;
        // From now on, a request would buy it.
        window.block(&[]).await;
        window.goto_sale(&id).await;
        window.sees(NOTE, "was never answered").await;
        window.driver().refresh().await.unwrap();
        window.sees(NOTE, "was never answered").await;
        window.sees("#no-orders", "None yet").await;
        // A poll of the sale later, still nothing was requested.
        window.finds(again, "Ask again").await;
        assert_eq!(app.units(&id).await, [10, 0, 0]);
        assert_eq!(key(&window).await, drawn, "its key is kept");
        if is_wanted {
            window.click(again).await;
            window.sees(NOTE, "Reserved for you").await;
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

/// The page's clock goes on by this, as on a telephone that was locked.
const SLEEP: &str = "const real = Date.now; Date.now = () => real.call(Date) + 3 * 3600_000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_slept_buys_nothing_without_a_press() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.block(PURCHASES).await;
    window.click(BUY).await;
    window.sees(NOTE, "We are checking whether").await;
    let drawn = key(&window).await;
    window.run(SLEEP, &[]).await;
    // From now on, a request would buy it.
    window.block(&[]).await;
    window.sees(NOTE, "was never answered").await;
    window.finds("#items .outcome button.quiet", "Forget it").await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.click("#items .outcome .actions button:not(.quiet)").await;
    window.sees(NOTE, "Reserved for you").await;
    app.buy("ada", &id, &drawn, 1).await.ok(200);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_slept_through_its_turn_asks_before_it_buys() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.sees(BUY, "Queue to buy").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    window.run(SLEEP, &[]).await;
    app.operate(&id, "open").await.ok(200);
    window.sees(NOTE, "Buy 1 A phone?").await;
    // A reload does not buy either.
    window.driver().refresh().await.unwrap();
    window.sees(NOTE, "Buy 1 A phone?").await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.click("#items .outcome .actions button").await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// The brake of a sale, as it holds while too much waits for the ledger. No process permits the shards to sell meanwhile, so
/// none lifts the brake; once permits go on, the instance finds it.
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

/// A purchase of the page: when, in seconds of its own clock, and the `Retry-After`.
#[derive(Debug)]
struct Asked {
    sent: f64,
    answered: f64,
    wait: f64,
}

/// The page's purchases that were answered.
async fn asked(window: &Window) -> Vec<Asked> {
    let events = window.network().await;
    window.requests_to_home(&events);
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
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["503"]);
    let brake = Brake::hold(&app, &id, 2);
    window.click(BUY).await;
    window.sees(NOTE, "The shop is very busy").await;
    window.sees("#items .outcome .timer", "Again in").await;
    // It answered that nothing was done.
    poll::within(PATIENCE, "nothing is open", async || {
        window.attempt().await.unwrap()["isOpen"] == false
    })
    .await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    drop(brake);
    window.sees(NOTE, "Reserved for you").await;
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
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    postgres.stop();
    window.driver().refresh().await.unwrap();
    window.sees("#state", "On sale").await;
    window.sees(ORDER, "Reserved").await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    window.sees("#orders li:nth-child(2) .pill", "Reserved").await;
    window.misses("#connection").await;
    window.close().await;
}
