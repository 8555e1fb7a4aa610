//! The console's page of one sale: a draft that waits for nothing, a missing sale, lines with different strokes, and
//! every item.

use crate::support::app::{TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::Window;
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};

const NAME: &str = "#sale-name";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_not_there_shows_nothing_that_could_be_done_with_it() {
    let app = TestApp::shared().await;
    let draft = app.create_sale(&sale_with(&json!({"name": "A draft"}))).await;
    let window = Window::open(&app).await.expect(&["404"]);
    window.open_console(&format!("/console/sales/{draft}")).await;
    window.sees(NAME, "A draft").await;
    window.sees("#stream", "up to date").await;
    // Another operator deletes it.
    let path = format!("/v1/admin/sales/{draft}");
    app.send(app.request(Method::DELETE, Who::Operator, &path))
        .await
        .ok(200);
    window.click("#do-preload").await;
    window.sees(NAME, "There is no such sale").await;
    window
        .sees("[aria-labelledby=table-audit-log] tbody", "Delete draft")
        .await;
    let gone = [
        "#actions",
        "#stream",
        "#sale-state",
        "#sale-until",
        "#audit",
        "#restock-sku",
        ".facts",
        ".plots",
    ];
    for part in gone {
        window.misses(part).await;
    }
    assert_eq!(window.focus().await, "main#main.");
    assert_eq!(
        window.driver().title().await.unwrap(),
        "There is no such sale. · Console"
    );
    window.change_language("zh-CN").await;
    window.sees(NAME, "没有这个活动").await;
    window.change_language("en").await;

    window.goto("/console/sales/00000000-0000-4000-8000-000000000000").await;
    window.sees(NAME, "There is no such sale").await;
    for part in gone {
        window.misses(part).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_are_left_keep_no_connection_and_are_live_again_for_who_comes_back() {
    let app = TestApp::shared().await;
    let mut sales = Vec::new();
    for n in 0..8 {
        let name = format!("Sale {n}");
        sales.push((app.load_sale(&sale_with(&json!({ "name": name }))).await, name));
    }
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    // More than a browser has connections to one server.
    for (id, name) in &sales {
        let path = format!("/console/sales/{id}");
        let opened = tokio::time::timeout(PATIENCE, window.goto(&path)).await;
        assert!(opened.is_ok(), "the browser waits for a connection");
        window.sees(NAME, name).await;
        window.sees("#stream", "up to date").await;
    }
    window.leave_by("history.back()").await;
    let (id, name) = &sales[6];
    window.sees(NAME, name).await;
    app.buy("ada", id, "k", 3).await.ok(201);
    window.sees(".unit .numbers", "7 available · 3 held").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_counts_down_to_nothing() {
    let app = TestApp::shared().await;
    let draft = app.create_sale(&sale()).await;
    let late = json!({"name": "Late", "starts_at": rfc3339(Utc::now() - TimeDelta::hours(1))});
    let late = app.create_sale(&sale_with(&late)).await;
    let window = Window::open(&app).await;
    for id in [&draft, &late] {
        window.goto(&format!("/sales/{id}")).await;
        window.sees("#until", "This sale is not announced yet").await;
        window.misses("#countdown").await;
    }
    window.open_console(&format!("/console/sales/{late}")).await;
    window
        .sees("#sale-until", "It does not start before it is published")
        .await;
    window.misses("#view .countdown").await;
    // Its page in the shop shows what shoppers will see.
    window.sees("#to-shop", "Preview").await;
    window.click("#to-shop").await;
    window.sees("#items", "A phone").await;
    window.sees("#name", "Late").await;
    window.goto(&format!("/console/sales/{late}")).await;
    window.does("#do-preload").await;
    window.sees("#sale-until", "Ends in").await;
    window.sees("#to-shop", "Shop page").await;
    window.sees("#view .countdown", ":").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_item_of_a_sale_is_among_its_details() {
    let app = TestApp::shared().await;
    let items: Vec<Value> = (0..60)
        .map(|number| {
            json!({"sku": format!("sku-{number:02}"), "name": "A", "price_minor": 1, "currency": "EUR", "stock": 1,
                "per_user_limit": 1})
        })
        .collect();
    let draft = app.create_sale(&sale_with(&json!({"items": items}))).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{draft}")).await;
    window.sees(".facts", "sku-00").await;
    window.sees(".facts", "sku-59").await;
    window.close().await;
}

/// Draws a plot with so many lines, of which the last ones are the highest. Returns the strokes and names of its legend,
/// and the strokes of its lines.
const DRAW: &str = "return import(new URL('console-plot.js', document.querySelector('script[type=module]').src)).then(({ plotOf }) => {
    const plot = plotOf({ title: 'plotAnswers', hint: 'plotAnswersHint', unit: 'aSecond', nameOf: (it) => it, first: 1 });
    document.getElementById('view').append(plot.node);
    const keys = Array.from({ length: Number(arguments[0]) }, (_none, at) => `line ${at}`);
    const values = Object.fromEntries(keys.map((key, at) => [key, at + 1]));
    plot.update([{ at: 1000, values }, { at: 2000, values }], keys);
    const stroke = (path) => getComputedStyle(path).strokeDasharray;
    return {
        legend: [...plot.node.querySelectorAll('.legend path')].map(stroke),
        lines: [...plot.node.querySelectorAll('.frame .line')].map(stroke),
        names: [...plot.node.querySelectorAll('.legend li')].map((it) => it.innerText.replace(/\\s+/g, ' ').trim()),
    };
})";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_lines_of_a_plot_have_the_same_stroke_and_the_legend_shows_each() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view h1", "Sales").await;
    for (drawn, lines) in [("3", 3), ("8", 8), ("20", 8)] {
        let plot = window.run(DRAW, &[drawn]).await;
        let mut strokes: Vec<&str> = plot["legend"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_str().unwrap())
            .collect();
        assert_eq!(plot["legend"], plot["lines"], "{plot}");
        strokes.sort_unstable();
        strokes.dedup();
        assert_eq!(strokes.len(), lines, "{plot}");
    }
    // The lowest are drawn as one, and the sum is right: 1 to 13.
    let names = window.run(DRAW, &["20"]).await["names"].clone();
    let names: Vec<&str> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    assert_eq!((names[0], names[7]), ("line 13 14", "others 91"), "{names:?}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_point_alone_between_gaps_is_drawn() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view h1", "Sales").await;
    let draw = "return import(new URL('console-plot.js', document.querySelector('script[type=module]').src)).then(({ plotOf }) => {
        const plot = plotOf({ title: 'plotLatency', hint: 'plotLatencyHint', unit: 'milliseconds', nameOf: (it) => it });
        const points = [null, 1, null, 2, 3, null, 4].map((p50, at) => ({ at: 1000 * at, values: { p50 } }));
        plot.update(points, ['p50']);
        return plot.node.querySelector('.frame .line').getAttribute('d');
    })";
    let path = window.run(draw, &[]).await;
    let parts: Vec<&str> = path.as_str().unwrap().split('M').skip(1).collect();
    assert_eq!(parts.len(), 3, "{path}");
    // A part that only moves the pen draws nothing.
    assert!(parts.iter().all(|part| part.contains(['L', 'h'])), "{path}");
    window.close().await;
}

/// The verdict on an open sale of one item with these numbers.
const JUDGE: &str = "return import(new URL('console-verdict.js', document.querySelector('script[type=module]').src)).then(({ observed, verdictPart }) => {
    const [available, held, sold, waiting] = JSON.parse(arguments[0]);
    const items = [{ sku: 'phone', total: 50, available, held, sold, in_transit: 0 }];
    const health = { redis: { fault: null }, postgres: { fault: null } };
    const seen = observed();
    seen.see({ point: { at: 1000 }, health, sale: { items }, stock: null });
    const sale = { items: [{ sku: 'phone' }], guards: { admissions_per_second: 1 } };
    const live = { items, health, fault: null, waiting_room: { waiting, admitted: 0 } };
    const part = verdictPart({});
    part.update({ sale, live, state: 'open', points: [], isConnected: true, now: 1000, pausedAt: null, name: (sku) => sku }, seen, []);
    return part.node.querySelector('.verdict span').textContent;
})";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_counts_units_that_may_come_back_and_shoppers_who_wait() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view h1", "Sales").await;
    for (numbers, verdict) in [
        ("[50, 0, 0, 0]", "Open. Nobody is buying now."),
        (
            "[0, 50, 0, 0]",
            "Everything is taken: 50 units are held unpaid and may come back. All units of phone are taken.",
        ),
        ("[0, 0, 50, 0]", "Everything is sold out. phone is sold out."),
        (
            "[49, 1, 0, 36]",
            "Open. 36 shoppers wait, the waiting room lets in 1 a second.",
        ),
    ] {
        assert_eq!(window.run(JUDGE, &[numbers]).await, verdict, "{numbers}");
    }
    window.close().await;
}

/// The verdict on an open sale of a phone and a pad after these readings: each the time, the free phones, the held ones,
/// and the free pads. The report may know when the phone was sold out, in seconds from 0.
const JUDGE_PACE: &str = "const home = document.querySelector('script[type=module]').src;
return Promise.all(['console-verdict.js', 'format.js'].map((file) => import(new URL(file, home)))).then(([{ observed, verdictPart }, { timeExact }]) => {
    const [readings, reported] = JSON.parse(arguments[0]);
    const health = { redis: { fault: null }, postgres: { fault: null } };
    const seen = observed();
    let items = [];
    for (const [at, phones, held, pads] of readings) {
        items = [
            { sku: 'phone', total: 500, available: phones, held, sold: 0, in_transit: 0 },
            { sku: 'pad', total: 500, available: pads, held: 0, sold: 0, in_transit: 0 },
        ];
        seen.see({ point: { at }, health, sale: { items }, stock: null });
    }
    seen.learn([{ sku: 'phone', sold_out_after_seconds: reported }], new Date(0).toISOString());
    const sale = { items, guards: { admissions_per_second: 1 } };
    const live = { items, health, fault: null };
    const part = verdictPart({});
    part.update({ sale, live, state: 'open', points: [], isConnected: true, now: 1000, pausedAt: null, name: (sku) => sku }, seen, []);
    const text = part.node.querySelector('.verdict span').textContent;
    return [2, 7].reduce((all, second) => all.replace(timeExact(1000 * second), `TIME ${second}`), text);
})";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_says_how_long_an_item_lasts_and_when_another_sold_out() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view h1", "Sales").await;
    for (numbers, added) in [
        // Twenty pads a minute, of which eighty are left.
        (
            "[[[1000, 9, 0, 100], [61000, 9, 0, 80]], null]",
            "pad lasts about 4 min at this rate.",
        ),
        // Only the first to go is named.
        (
            "[[[1000, 9, 0, 100], [61000, 6, 0, 80]], null]",
            "phone lasts about 2 min at this rate.",
        ),
        ("[[[1000, 9, 0, 100], [10000, 9, 0, 80]], null]", ""),
        (
            "[[[1000, 9, 0, 100], [2000, 0, 0, 100]], null]",
            "phone sold out at TIME 2.",
        ),
        (
            "[[[1000, 9, 0, 100], [2000, 0, 9, 100]], null]",
            "All units of phone were taken at TIME 2.",
        ),
        // Sold out before this page was opened: only the report knows when.
        ("[[[9000, 0, 0, 100]], null]", "phone is sold out."),
        ("[[[9000, 0, 0, 100]], 7]", "phone sold out at TIME 7."),
    ] {
        let verdict = format!("Open. Nobody is buying now. {added}");
        assert_eq!(
            window.run(JUDGE_PACE, &[numbers]).await,
            verdict.trim_end(),
            "{numbers}"
        );
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_counted_from_the_one_that_holds_or_not_at_all() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view h1", "Sales").await;
    let since = "return import(new URL('console-verdict.js', document.querySelector('script[type=module]').src)).then(({ pausedSince }) => {
        const actions = arguments[0].split(' ').map((one, at) => {
            const [action, outcome] = one.split(':');
            return { action: `sales.${action}`, outcome: outcome ?? null, begun_at: new Date(1000 * at).toISOString() };
        });
        return pausedSince(actions.reverse());
    })";
    // Each action a second after the one before. One without an outcome is unknown.
    for (actions, expected) in [
        ("open:done pause:done", json!(1000)),
        ("pause:done pause:done amend:done pause", json!(0)),
        ("pause:done resume:done pause", json!(2000)),
        (
            "pause:done resume:done pause:invalid_transition pause:done",
            json!(3000),
        ),
        ("pause:done resume:done", Value::Null),
        ("pause:done resume:done pause pause:done", Value::Null),
        ("pause:done resume pause:done", Value::Null),
    ] {
        assert_eq!(window.run(since, &[actions]).await, expected, "{actions}");
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_title_of_a_tab_says_what_is_in_it() {
    let app = TestApp::shared().await;
    let draft = app.create_sale(&sale_with(&json!({"name": "Launch"}))).await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let (sale, edit) = (format!("/sales/{draft}"), format!("/sales/{draft}/edit"));
    for (path, heading, title) in [
        ("", "Sales", "Sales · Console"),
        ("/orders", "Orders", "Orders · Console"),
        ("/accounts", "Accounts", "Accounts · Console"),
        ("/money", "Money", "Money · Console"),
        ("/limits", "Limits", "Limits · Console"),
        ("/audit-log", "Audit log", "Audit log · Console"),
        ("/sales/new", "New sale", "New sale · Console"),
        (&edit, "Edit draft", "Edit draft · Console"),
        (&sale, "Launch", "Launch · Console"),
    ] {
        window.goto(&format!("/console{path}")).await;
        window.sees("#view h1", heading).await;
        window.has_title(title).await;
    }
    window.goto("/console/limits").await;
    window.sees("#view h1", "Limits").await;
    window.change_language("zh-CN").await;
    window.sees("#view h1", "限制").await;
    window.has_title("限制 · 控制台").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_closed_before_its_time_shows_both_ends_no_waiting_room_and_no_restock() {
    let app = TestApp::shared().await;
    let late = json!({"ends_at": "2037-11-22T12:00:00Z", "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&late)).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#sale-times", "2037").await;
    window.sees_tile("In the waiting room", |text| text == "0").await;
    window.sees_tile("Let in, yet to buy", |text| text == "0").await;
    window.sees("#restock-sku", "").await;
    app.operate(&id, "close").await.ok(200);
    window.driver().refresh().await.unwrap();
    window.sees("#sale-state", "Closed").await;
    window.sees(".unit .numbers", "10 available").await;
    window.sees_tile("In the waiting room", str::is_empty).await;
    window.misses("#restock-sku").await;
    poll::within(PATIENCE, "both ends are there", async || {
        let times = window.text("#sale-times").await.unwrap_or_default();
        let ends = times.split_once(" · planned end: ");
        ends.is_some_and(|(real, planned)| !real.contains("2037") && planned.contains("2037"))
    })
    .await;
    window.goto(&format!("/sales/{id}")).await;
    window.sees("#until", "This sale is over").await;
    let when = window.text("#when").await.unwrap();
    assert!(!when.is_empty() && !when.contains('–'), "{when}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_sold_or_left_is_not_rounded_away() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 10_000}))).await;
    app.buy("ada", &id, "k", 1).await.ok(201);
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window
        .sees(&format!("tr:has(a[href='/console/sales/{id}'])"), "99.9 %")
        .await;
    window.goto(&format!("/console/sales/{id}")).await;
    for share in ["0.1 %", "99.9 %"] {
        window.sees(".unit .large", share).await;
    }
    window.close().await;
}
