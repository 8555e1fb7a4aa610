//! The console while its servers are away: retries, actions that were not done, and unknown outcomes.

use crate::support::app::{ADMIN_KEY, Instance, TestApp, environment, sale};
use crate::support::servers;
use crate::support::window::Window;
use thirtyfour::Key;

const RESULT: &str = ".result";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_postgres_an_operator_reads_that_nothing_was_done_and_stays_signed_in() {
    let mut postgres = servers::FreshPostgres::start().await;
    let app = Instance::start(&environment(&servers::redis(), &postgres.url()), "all").may_log_errors();
    let id = app.load_sale(&sale()).await;
    // A request in flight during a sign-out is answered 401.
    let window = Window::open(&app).await.expect(&["503", "401"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#sale-state", "Open").await;
    window.sees("#stream", "up to date").await;
    postgres.stop();
    window.does("#do-pause").await;
    window.sees(RESULT, "Nothing was done").await;
    window
        .sees("#verdict", "buying goes on, paying and cancelling wait")
        .await;
    window
        .sees("#verdict a[href='/docs/alerts#flashsalepostgresdown']", "What to do")
        .await;
    window.sees("#system .tile.is-bad", "no answer").await;
    window
        .sees("#stream", "Units are up to date, all other numbers are of")
        .await;
    // An operator who has read it goes on.
    window.click(".result button").await;
    window.misses(RESULT).await;
    assert_eq!(window.focus().await, "button#do-pause.strong danger big");
    window.change_language("zh-CN").await;
    window.does("#do-pause").await;
    window.sees(RESULT, "没有执行任何操作").await;
    window.change_language("en").await;
    window.click("#sign-out").await;
    window.sees("#connection", "You are still signed in").await;
    postgres.restart();
    window.sees("#verdict", "Nobody is buying now").await;
    window.does("#do-pause").await;
    window.sees(RESULT, "The sale is paused").await;
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "You are signed out").await;
    window.misses("#connection").await;
    // Nothing signs in by itself, so no message says so.
    postgres.stop();
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.sees("#sign-in-why", "Try again in a moment").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_could_not_be_read_are_fetched_again() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console("/console/orders").await;
    window.sees("#view h1", "Orders").await;
    window.block(&["*/v1/admin/orders*"]).await;
    window.fill("#find-user", "ada").await;
    window.press(Key::Enter).await;
    window.sees("#view .list .warning", "We keep trying").await;
    window.block(&[]).await;
    window.sees(&format!("#view tbody a[title='{order}']"), "…").await;
    window.misses("#view .list .warning").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_console_says_since_when_nobody_can_buy_and_what_to_do() {
    let postgres = servers::FreshPostgres::start().await;
    let redis = servers::fresh_redis();
    let app = Instance::start(&environment(&redis.server.url(), &postgres.url()), "all").may_log_errors();
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["503"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#verdict", "Nobody is buying now").await;
    let frozen = servers::Frozen::one(redis.server.pid());
    window.sees("#verdict", "Redis has not answered since").await;
    window.sees("#verdict", "nobody can buy, nothing is lost").await;
    window.sees("#sale-state.is-bad", "Open").await;
    window
        .sees("#verdict a[href='/docs/alerts#flashsaleredisdown']", "What to do")
        .await;
    // What is not well is unfolded; the program's own text stands there.
    window.sees("#system summary", "not well").await;
    window.sees("#system .tile.is-bad", "no answer").await;
    window.sees("#stream", "Numbers of ").await;
    window.sees(".unit .numbers", "10 available").await;
    // The ledger has the pause before Redis answers.
    window.does("#do-pause").await;
    window.sees("#sale-state", "Paused").await;
    window.sees("#do-resume", "Resume").await;
    window.misses(RESULT).await;
    drop(frozen);
    window.sees("#verdict", "PAUSED for 0:").await;
    window.sees("#stream", "up to date").await;
    window.sees("#system summary", "all well").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_list_says_that_nobody_can_buy_and_every_page_says_since_when() {
    let postgres = servers::FreshPostgres::start().await;
    let redis = servers::fresh_redis();
    let app = Instance::start(&environment(&redis.server.url(), &postgres.url()), "all").may_log_errors();
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["503"]);
    window.open_console("/console").await;
    let row = format!("tr:has(a[href='/console/sales/{id}'])");
    window.sees(&row, "100 %").await;
    window.sees(&format!("{row} .pill.is-open"), "Open").await;
    window.misses("#verdict").await;
    let frozen = servers::Frozen::one(redis.server.pid());
    window.sees("#verdict", "nobody can buy, nothing is lost").await;
    window
        .sees("#verdict a[href='/docs/alerts#flashsaleredisdown']", "What to do")
        .await;
    window.sees(&format!("{row} .pill.is-bad"), "Open").await;
    window.sees(&row, "Not known").await;
    // A page that is opened later has no numbers, and the same time.
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees("#verdict", "Redis has not answered since").await;
    window.sees("#view", "There are no numbers of this sale yet").await;
    window.misses(".legend .key-sold").await;
    let since = window.text("#verdict").await.unwrap();
    window.goto("/console").await;
    window.sees("#verdict", &since).await;
    drop(frozen);
    window.misses("#verdict").await;
    window.sees(&format!("{row} .pill.is-open"), "Open").await;
    window.sees(&row, "100 %").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_outcome_is_shown_until_the_state_is_known() {
    let look = ".result .look";
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#stream", "up to date").await;
    let loses_an_answer = async || {
        window.block(&["*/pause"]).await;
        window.does("#do-pause").await;
        window.sees(RESULT, "It is not known whether that worked").await;
    };
    loses_an_answer().await;
    // It stays while the sale cannot be read.
    window.block(&["*/v1/admin/sales/*"]).await;
    window.click(look).await;
    window
        .sees(&format!("{look}[aria-disabled=false]"), "Look at the state")
        .await;
    window.block(&[]).await;
    window.click(look).await;
    window.misses(RESULT).await;
    assert_eq!(window.focus().await, "button#do-pause.strong danger big");
    // A new state answers by itself.
    loses_an_answer().await;
    app.operate(&id, "pause").await.ok(200);
    window.sees("#sale-state", "Paused").await;
    window.misses(RESULT).await;
    window.close().await;
}
