//! Accounts that operators ban and release, beside a sale and in the list of all.

use crate::support::app::{TestApp, Who, sale};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::Window;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use thirtyfour::Key;

const ALERTS: &str = "[aria-labelledby=table-alerts] tbody";
const NEWEST: &str = "[aria-labelledby=table-newestBans] tbody";
const BANS: &str = "[aria-labelledby=table-bans] tbody";
const REASON: &str = "alert-ban-reason";
/// The outcome of an action on an account.
const SAID: &str = "#accounts .result";

/// An instance with a sale, and an account of this name with a warning.
async fn alerted(name: &str) -> (TestApp, String, String) {
    let app = TestApp::with("all", &[("FLASHSALE_BROWSING_ALERT_ABOVE", "1")]).await;
    let id = app.load_sale(&sale()).await;
    // Page views are counted in a Redis that tests share.
    let bot = format!("{name}-{}", uuid::Uuid::new_v4());
    for _ in 0..3 {
        app.get(Who::Shopper(&bot), "/v1/sales").await.ok(200);
    }
    (app, id, bot)
}

async fn bans(app: &TestApp) -> Value {
    app.get(Who::Operator, "/v1/admin/bans").await.ok(200).body["data"].clone()
}

async fn act(app: &TestApp, path: &str, body: &Value) {
    let request = app.request(Method::POST, Who::Operator, path);
    let answer = app.send(request.json(body)).await;
    assert!(answer.status < 300, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_is_banned_and_let_go_again_beside_the_sale_that_it_bothers() {
    let (app, id, bot) = alerted("<img src=x onerror='window.hurt = 1'>").await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(ALERTS, &bot).await;
    // The navigation counts recent guard warnings on every page.
    window.goto(&format!("/console/sales/{id}")).await;
    let badge = "return document.querySelector('#nav a[href=\"/console/accounts\"]').dataset.badge ?? ''";
    poll::within(PATIENCE, "the badge counts the warning", async || {
        window.run(badge, &[]).await == "1"
    })
    .await;
    window.sees("#accounts", "Nobody is banned").await;
    let ban = format!("{ALERTS} button");
    // Cancelling the dialog changes nothing.
    window.click(&ban).await;
    window.sees("dialog h2", &format!("Ban {bot}?")).await;
    window.sees("dialog #sure-text", "What it holds, it keeps").await;
    assert_eq!(
        window.value(REASON).await,
        "very many page views: more than 1 page views within a minute"
    );
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(bans(&app).await, json!([]));
    // A ban needs a reason, and typed text is kept: after a cancelled dialog, and after a lost answer.
    window.click(&ban).await;
    window.types(REASON, "").await;
    window.click("dialog .strong").await;
    window.sees("#alert-ban-reason-wrong", "Fill this in").await;
    window.types(REASON, "<b>resells</b>").await;
    window.fill("#alert-ban-span", "For ever").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.block(&["*/v1/admin/bans"]).await;
    window.does(&ban).await;
    window.sees(SAID, "It is not known whether that worked").await;
    window.block(&[]).await;
    // Also over a reload.
    window.driver().refresh().await.unwrap();
    window.sees(ALERTS, &bot).await;
    window.click(&ban).await;
    assert_eq!(
        [window.value(REASON).await, window.value("alert-ban-span").await],
        ["<b>resells</b>", "ever"]
    );
    window.click("dialog .strong").await;
    window.sees(SAID, &format!("{bot} is banned")).await;
    window.sees(NEWEST, &bot).await;
    window.sees(NEWEST, "<b>resells</b>").await;
    window.sees(NEWEST, "For ever").await;
    app.buy(&bot, &id, "k", 1).await.no(403, "banned");

    window.driver().refresh().await.unwrap();
    window.sees(NEWEST, &bot).await;
    let lift = format!("{NEWEST} button");
    window.click(&lift).await;
    window.sees("dialog h2", &bot).await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(bans(&app).await[0]["user"], bot);
    window.does(&lift).await;
    window.sees(SAID, &format!("The ban of {bot} is lifted")).await;
    window.sees("#accounts", "Nobody is banned").await;
    window.misses(NEWEST).await;
    let focus = "return document.activeElement.id";
    assert_eq!(window.run(focus, &[]).await, "main", "the button is gone");
    app.buy(&bot, &id, "k", 1).await.ok(201);
    let hurt = "return window.hurt ?? document.querySelectorAll('main img, td b').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));

    // Both are in the audit log, like every action of operators.
    let actions = app.get(Who::Operator, "/v1/admin/actions?limit=2").await.ok(200).body["data"].clone();
    for (action, name) in actions.as_array().unwrap().iter().zip(["bans.lift", "bans.create"]) {
        assert_eq!((&action["action"], &action["outcome"]), (&json!(name), &json!("done")));
        assert_eq!(
            (&action["actor"], &action["detail"]["user"]),
            (&json!("console"), &json!(bot))
        );
    }
    assert_eq!(actions[1]["detail"]["reason"], "<b>resells</b>");
    window.goto("/console/audit-log").await;
    window.sees("#view tbody tr:first-child", "Lift ban").await;
    window.sees("#view tbody tr:nth-child(2)", "<b>resells</b>").await;
    window
        .sees("#view tbody tr:nth-child(2)", "End its sessions as well: no")
        .await;
    window.sees("#view tbody", "Newest first: yes").await;
    window.sees("#view tbody tr:nth-child(2)", &bot).await;
    assert_eq!(window.run(hurt, &[]).await, json!(0));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_sale_stand_the_newest_bans_as_they_come_and_go_and_the_way_to_all() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#accounts", "Nobody is banned").await;
    for number in 0..12 {
        // Not in the order of their names.
        let user = format!("bot-{}", (number * 5) % 12);
        act(&app, "/v1/admin/bans", &json!({"user": user, "reason": "a test"})).await;
    }
    let listed = format!("return [...document.querySelectorAll('{NEWEST} code')].map((it) => it.textContent)");
    let newest = |numbers: std::ops::RangeInclusive<i32>| -> Value {
        numbers
            .rev()
            .map(|number| format!("bot-{}", (number * 5) % 12))
            .collect()
    };
    let lists = async |what: &str, wanted: Value| {
        poll::within(Duration::from_secs(20), what, async || {
            window.run(&listed, &[]).await == wanted
        })
        .await;
    };
    lists("the newest ten are listed by themselves", newest(2..=11)).await;
    let is_hidden = "return document.querySelector('[aria-labelledby=table-newestBans] + button').hidden";
    assert_eq!(window.run(is_hidden, &[]).await, true, "there are no more of them here");
    act(&app, "/v1/admin/bans/lift", &json!({"user": "bot-7"})).await;
    lists("one is lifted elsewhere", newest(1..=10)).await;
    window.click("#accounts > p a").await;
    window.sees("#view h1", "Accounts").await;
    window.sees(BANS, "bot-0").await;
    let rows = format!("return document.querySelectorAll('{BANS} tr').length");
    assert_eq!(window.run(&rows, &[]).await, 11);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_is_banned_by_its_name_or_from_its_alert_in_the_list_of_all() {
    let (app, id, bot) = alerted("bot").await;
    let window = Window::open(&app).await;
    window.open_console("/console/accounts").await;
    window.sees(ALERTS, &bot).await;
    window.change_language("zh-CN").await;
    window.sees(ALERTS, "浏览过于频繁：一分钟内浏览页面超过 1 次").await;
    window.change_language("en").await;
    // All that is missing shows at once.
    window.click("form.panel button").await;
    window
        .sees("form.panel .errors a[href='#ban-user']", "Fill this in")
        .await;
    window
        .sees("form.panel .errors a[href='#ban-reason']", "Fill this in")
        .await;
    window.fill("#ban-user", "mallory").await;
    window.click("form.panel button").await;
    window.misses("form.panel .errors").await;
    window.sees("#ban-reason-wrong", "Fill this in").await;
    assert_eq!(window.run("return document.activeElement.id", &[]).await, "ban-reason");
    window.fill("#ban-reason", "<b>looks</b> too often").await;
    // The question says what the ban will be.
    window.click("form.panel button").await;
    for text in [
        "For how long: A day",
        "Reason: <b>looks</b> too often",
        "It stays signed in.",
    ] {
        window.sees("dialog #sure-text", text).await;
    }
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.does("form.panel button").await;
    window.sees(".result", "mallory is banned").await;
    window.sees(BANS, "<b>looks</b> too often").await;
    assert_eq!(
        [window.value("ban-user").await, window.value("ban-reason").await],
        ["", ""]
    );
    window.does(&format!("{ALERTS} button")).await;
    window.sees(".result", &format!("{bot} is banned")).await;
    window
        .sees(BANS, "very many page views: more than 1 page views within a minute")
        .await;
    for user in ["mallory", &bot] {
        app.buy(user, &id, "k", 1).await.no(403, "banned");
    }
    // An operator is shown by name, if there is one.
    window.sees(&format!("{BANS} tr:nth-child(2)"), "an operator").await;
    let ban = json!({"user": "mallory", "reason": "a test"});
    let request = app.request(Method::POST, Who::Operator, "/v1/admin/bans");
    app.send(request.header("X-Operator", "<b>Zoe").json(&ban))
        .await
        .ok(201);
    // The newest ban comes first.
    window.sees(&format!("{BANS} tr:first-child td > bdi"), "<b>Zoe").await;
    window.does(&format!("{BANS} tr:first-child button")).await;
    window.sees(".result", "The ban of mallory is lifted").await;
    poll::within(PATIENCE, "it is gone from the list", async || {
        !window.text(BANS).await.unwrap_or_default().contains("mallory")
    })
    .await;
    // The notice goes with a search of another account.
    window.fill("#look-up", "ada").await;
    window.press(Key::Enter).await;
    window.sees("#view", "This account is not banned").await;
    window.misses(".result").await;
    app.buy("mallory", &id, "k", 1).await.ok(201);
    app.buy(&bot, &id, "k", 1).await.no(403, "banned");
    // From a warning to the orders of its account.
    window.click(&format!("{ALERTS} a")).await;
    window.sees("#view h1", "Orders").await;
    window.holds("find-user", &bot).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_of_a_day_ends_by_the_servers_clock_a_day_from_now() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await;
    // A browser whose clock is two days behind.
    let script = "const real = Date.now; Date.now = () => real() - 172_800_000;";
    window
        .devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}))
        .await;
    window.open_console("/console/accounts").await;
    window.fill("#ban-user", "mallory").await;
    window.fill("#ban-reason", "looks too often").await;
    window.does("form.panel button").await;
    window.sees(".result", "mallory is banned").await;
    let ban = bans(&app).await[0].clone();
    let at = |name: &str| -> DateTime<Utc> { ban[name].as_str().unwrap().parse().unwrap() };
    let length = at("banned_until") - at("banned_at");
    assert!((length - TimeDelta::days(1)).num_seconds().abs() < 10, "{ban}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_ends_at_the_time_that_the_operator_chooses() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await;
    window.open_console("/console/accounts").await;
    window.fill("#ban-user", "mallory").await;
    window.fill("#ban-reason", "looks too often").await;
    window.misses("#ban-until").await;
    window.types("ban-span", "until").await;
    window.sees("#ban-until-hint", "time zone").await;
    for (time, wrong) in [("", "A date and a time"), ("2020-01-01T00:00:00", "lies ahead")] {
        window.types("ban-until", time).await;
        window.click("form.panel button").await;
        window.sees("#ban-until-wrong", wrong).await;
    }
    window.types("ban-until", "2037-01-01T00:00:00").await;
    window.click("form.panel button").await;
    window.sees("dialog #sure-text", "Until: Jan 1, 2037").await;
    window.click("dialog .strong").await;
    window.sees(".result", "mallory is banned").await;
    window.misses("#ban-until").await;
    let end = window
        .run("return new Date('2037-01-01T00:00:00').toISOString()", &[])
        .await;
    assert_eq!(bans(&app).await[0]["banned_until"], end);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_one_account_among_many_and_only_the_first_page_loads_by_itself() {
    let app = TestApp::start().await;
    for number in 0..103 {
        let user = format!("bot-{number:03}");
        act(&app, "/v1/admin/bans", &json!({"user": user, "reason": "a test"})).await;
    }
    let window = Window::open(&app).await;
    window.open_console("/console/accounts").await;
    window.sees(BANS, "bot-099").await;
    let rows = format!("return document.querySelectorAll('{BANS} tr').length");
    let has_rows = async |what: &str, count: i64| {
        poll::within(Duration::from_secs(20), what, async || {
            window.run(&rows, &[]).await == count
        })
        .await;
    };
    has_rows("a page is shown", 100).await;
    window.click("[aria-labelledby=table-bans] + button").await;
    has_rows("the second page is shown", 103).await;
    // New and lifted bans on the first page appear by themselves, and the second page stays without a request.
    window
        .run(
            "window.asked = []; const own = window.fetch;
            window.fetch = (path, more) => { window.asked.push(String(path)); return own(path, more); }",
            &[],
        )
        .await;
    act(&app, "/v1/admin/bans/lift", &json!({"user": "bot-007"})).await;
    poll::within(Duration::from_secs(20), "it is gone from the list", async || {
        !window.text(BANS).await.unwrap_or_default().contains("bot-007")
    })
    .await;
    has_rows("the others are still there", 102).await;
    act(
        &app,
        "/v1/admin/bans",
        &json!({"user": "bot-000-more", "reason": "a test"}),
    )
    .await;
    window.sees(BANS, "bot-000-more").await;
    has_rows("it is one more", 103).await;
    window.sees(BANS, "bot-102").await;
    poll::within(
        Duration::from_secs(30),
        "the list is requested again and again",
        async || {
            let asked = "return window.asked.filter((it) => it.includes('/bans')).length >= 4";
            window.run(asked, &[]).await == true
        },
    )
    .await;
    // If a page begins elsewhere than before, all is read once more.
    let behind = "return window.asked.filter((it) => it.includes('starting_after')).length <= 2";
    assert_eq!(window.run(behind, &[]).await, true);

    let gap = "const box = (selector) => document.querySelector(selector).getBoundingClientRect();
        return box('#look-up-form button').left - box('#look-up').right";
    assert!(window.run(gap, &[]).await.as_f64() > Some(0.0));
    window.types("look-up", "bot-101").await;
    window.click("#look-up-form button").await;
    has_rows("the one is shown", 1).await;
    window.sees(BANS, "bot-101").await;
    window.does(&format!("{BANS} button")).await;
    window.sees(".result", "The ban of bot-101 is lifted").await;
    window.sees("#view", "This account is not banned").await;
    window.types("look-up", "").await;
    window.click("#look-up-form button").await;
    has_rows("the first page of all is shown again", 100).await;
    window.close().await;
}
