//! What a first visit shows and costs, without a script and with one.

use crate::support::app::{TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, Window, development};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};

const SCRIPTS: &str = "Emulation.setScriptExecutionDisabled";

/// The texts of a page, but for times, and whether they are shown.
const TEXTS: &str = "const texts = '#name, #state, #until, #notice, #countdown small, #items h3, #items .pill, #items .price, '
        + '#items .item > .small, #items .choice label, #items .buy, #sales a, #sales .pill, #sales p:last-child, .brand, '
        + '#message p, #items legend, #items .option, .description:not([hidden]), .picture:not([hidden])';
    const shown = [...document.querySelectorAll(texts)];
    return [document.title, ...shown.map((it) => [it.textContent, it.className.replace(' scripted', ''), it.hidden])]";

/// What a sale may have on its page besides names: items of one group, texts, and pictures, which every instance has.
fn described() -> Value {
    let item = |sku: &str, more: Value| {
        let mut item = json!({"sku": sku, "name": sku, "price_minor": 1900, "currency": "EUR", "stock": 5,
            "per_user_limit": 1, "description": format!("The {sku}.\nOne line more."),
            "image_url": "/assets/-/icon.svg"});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    let items = [
        item("s", json!({"group": "Shirt", "option": "S"})),
        item("cap", json!({})),
        item(
            "m",
            json!({"group": "Shirt", "option": "M", "price_minor": 2100, "stock": 1}),
        ),
        item("last", json!({"group": "Of one"})),
    ];
    json!({"items": items, "description": "Warm things.\nOnce a year.", "image_url": "/assets/-/icon.svg"})
}

/// Waits until the script has taken the reading, and has replaced the items.
async fn has_script(window: &Window) {
    let waiting = "return document.querySelectorAll('#reading, #items .buy[disabled]').length";
    poll::within(PATIENCE, "the script runs", async || {
        window.run(waiting, &[]).await == 0
    })
    .await;
}

/// Leaves the page, so that the next one is a new visit.
async fn leave(window: &Window) {
    window.driver().goto("about:blank").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_can_be_read_without_a_script() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.devtools(SCRIPTS, json!({"value": true})).await;
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    window.goto(&format!("/sales/{id}")).await;
    window.sees("#name", "A sale").await;
    window.sees("#state", "On sale").await;
    window.sees("#when", "UTC").await;
    window.sees("#items h3", "A phone").await;
    window.sees("#items .price", "€499.00").await;
    window.sees("noscript", "Buying needs JavaScript").await;
    // A countdown that stands still, and buttons that do nothing, are not shown.
    for nothing in ["#countdown", "#items .buy", "#language"] {
        window.misses(nothing).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_shows_what_the_server_has_written() {
    let app = TestApp::start().await;
    let later = rfc3339(Utc::now() + TimeDelta::hours(30));
    let ends = rfc3339(Utc::now() + TimeDelta::hours(50));
    let soon = json!({"starts_at": later, "ends_at": ends, "currency": "JPY", "per_user_limit": 20});
    let room = json!({"starts_at": later, "ends_at": ends, "guards": {"waiting_room": true}});
    let (low, paused) = (
        json!({"stock": 1, "per_user_limit": 1, "currency": "CHF"}),
        json!({"name": "Paused"}),
    );
    let mut pages = Vec::new();
    for changes in [&json!({}), &soon, &room, &low, &paused, &described()] {
        let id = app.load_sale(&sale_with(changes)).await;
        pages.push(format!("/sales/{id}"));
    }
    let paused = pages[4].trim_start_matches("/sales/");
    app.operate(paused, "pause").await.ok(200);
    let message = json!({"zh": "再等十分钟。"});
    let path = format!("/v1/admin{}/message", pages[5]);
    let message = app.request(Method::PUT, Who::Operator, &path).json(&message);
    app.send(message).await.ok(200);
    poll::answer("the page shows the message", || async {
        let page = app.get(Who::Nobody, &pages[5]).await.ok(200);
        page.text.contains("lang=\"zh-CN\">再等").then_some(())
    })
    .await;
    let gone = app.load_sale(&sale()).await;
    app.restock(&gone, "k", "phone", -10).await.ok(200);
    pages.extend([format!("/sales/{gone}"), "/".to_owned()]);
    let window = Window::open(&app).await;
    for page in pages {
        window.devtools(SCRIPTS, json!({"value": true})).await;
        window.goto(&page).await;
        let written = window.run(TEXTS, &[]).await;
        window.devtools(SCRIPTS, json!({"value": false})).await;
        leave(&window).await;
        window.goto(&page).await;
        has_script(&window).await;
        assert_eq!(window.run(TEXTS, &[]).await, written, "{page}");
        assert!(written.as_array().unwrap().len() > 5, "{written}");
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_visit_is_three_requests_of_45_kb_and_the_next_one_is_one() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    // The files, how many requests there were before the page was loaded, and the bytes of it all.
    let cost = "const [visit] = performance.getEntriesByType('navigation');
        const files = performance.getEntriesByType('resource').filter(({ startTime }) => startTime < visit.loadEventEnd);
        const names = files.map(({ name }) => name.split('/').at(-1)).sort().join();
        const asked = [visit, ...files].filter(({ transferSize }) => transferSize > 0);
        return [names, asked.length, [visit, ...files].reduce((sum, it) => sum + it.encodedBodySize, 0)]";
    for (path, files) in [
        (format!("/sales/{id}"), "sale-page.js,shop.css"),
        ("/".to_owned(), "sales-page.js,shop.css"),
    ] {
        let window = Window::open(&app).await;
        window.goto(&path).await;
        has_script(&window).await;
        let first = window.run(cost, &[]).await;
        assert_eq!((&first[0], &first[1]), (&json!(files), &json!(3)));
        let bytes = first[2].as_u64().unwrap();
        assert!((5_000..45_000).contains(&bytes), "{bytes}");
        leave(&window).await;
        window.goto(&path).await;
        // Within a second the page itself is kept, too, and the script asks how the sale stands.
        let asked = window.run(cost, &[]).await[1].as_u64().unwrap();
        assert!(asked <= 1, "{asked}");
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_moves_while_a_page_loads() {
    let app = development().await;
    let id = app.load_sale(&sale_with(&described())).await;
    let moved = "let sum = 0;
        const add = (entries) => entries.forEach(({ value }) => { sum += value; });
        const observer = new PerformanceObserver((list) => add(list.getEntries()));
        observer.observe({ type: 'layout-shift', buffered: true });
        return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => {
            add(observer.takeRecords());
            resolve(sum);
        })))";
    for (width, height) in [(360, 820), (1280, 800)] {
        let appearance = Appearance {
            width,
            height,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        let still = async |what: &str| {
            has_script(&window).await;
            let sum: Value = window.run(moved, &[]).await;
            assert!(sum.as_f64().unwrap() < 0.05, "{what} at {width}: {sum}");
        };
        window.goto("/").await;
        still("the list").await;
        window.goto_sale(&id).await;
        still("a sale").await;
        // A shopper who is signed in sees other parts.
        window.sign_in("ada").await;
        window.driver().refresh().await.unwrap();
        window.sees("#no-orders", "None yet").await;
        still("a shopper's sale").await;
        window.close().await;
    }
}
