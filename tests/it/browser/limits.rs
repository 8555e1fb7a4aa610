//! The limits of the gateway in the console: configured, changed and in force.

use crate::support::app::{TestApp, Who, sale};
use crate::support::window::{TELEPHONE, Window};
use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::Key;

const RATE: &str = "#limit-address_rate";

/// An instance whose rate adapts.
const ADAPTIVE: &[(&str, &str)] = &[
    ("FLASHSALE_ADAPTIVE_MIN_RATE", "10"),
    ("FLASHSALE_ADAPTIVE_MAX_RATE", "1000"),
    ("FLASHSALE_BROWSING_BAN_ABOVE", "1000"),
];

async fn changed(app: &TestApp) -> Value {
    app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body["changed"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_changes_a_limit_and_takes_it_back() {
    let app = TestApp::with("all", &[("FLASHSALE_ADDRESS_RATE", "500")]).await;
    let window = Window::open(&app).await;
    window.open_console("/console/limits").await;
    window.sees("#view h1", "Limits").await;
    window.sees(RATE, "500").await;
    window.sees("#limits-now", "takes all requests").await;
    // A bare 0 could be read as "lets nobody in".
    window.sees("#limit-account_rate", "no limit").await;
    window.sees("#limit-browsing_ban_above", "off").await;
    window.click("#changeIt-account_rate").await;
    window.sees("dialog", "Now: no limit.").await;
    window.sees("#limit-value-hint", "0 means no limit").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.click("#changeIt-browsing_ban_seconds").await;
    window
        .sees("#limit-value-hint", "only while page views ban accounts")
        .await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    // Cancelling the dialog changes nothing, and an invalid number is marked beside the field.
    window.click("#changeIt-address_rate").await;
    window.sees("dialog h2", "Requests a second of one address").await;
    window.holds("limit-value", "500").await;
    window.types("limit-value", "many").await;
    window.click("dialog .strong").await;
    window.sees("#limit-value-wrong", "A whole number").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(changed(&app).await, json!({}));

    window.click("#changeIt-address_rate").await;
    window.sees("dialog .strong", "Change").await;
    window.types("limit-value", "8,000").await;
    window.click("dialog .strong").await;
    window.sees(".result", "Requests a second of one address: 8,000").await;
    window.misses("dialog").await;
    assert_eq!(window.focus().await, "button#changeIt-address_rate.");
    window.sees(RATE, "8,000").await;
    assert_eq!(changed(&app).await, json!({"address_rate": 8000}));
    window.driver().refresh().await.unwrap();
    window.sees(RATE, "8,000").await;
    window.does("#takeBack-address_rate").await;
    window.sees(".result", "Requests a second of one address: 500").await;
    window.misses("#takeBack-address_rate").await;
    assert_eq!(changed(&app).await, json!({}));
    window.goto("/console/audit-log").await;
    window.sees("#view tbody tr:first-child", "Change limits").await;
    for value in ["8,000", "As configured"] {
        let asked = format!("Requests a second of one address: {value}");
        window.sees("#view tbody", &asked).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_refused_stays_to_be_put_right_also_after_a_reload() {
    let app = TestApp::with("all", ADAPTIVE).await;
    let window = Window::open(&app).await.expect(&["400", "ERR"]);
    window.open_console("/console/limits").await;
    window.sees("#limit-adaptive_max_rate", "1,000").await;
    window.click("#changeIt-adaptive_max_rate").await;
    window.sees("dialog .strong", "Change").await;
    // Only the API finds two limits that contradict each other.
    window.types("limit-value", "7").await;
    window.click("dialog .strong").await;
    window
        .sees("#limit-value-wrong", "adaptive_min_rate must be 1 to adaptive_max_rate")
        .await;
    window.holds("limit-value", "7").await;
    assert_eq!(window.focus().await, "input#limit-value.");
    assert_eq!(changed(&app).await, json!({}));
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.driver().refresh().await.unwrap();
    window.sees("#limit-adaptive_max_rate", "1,000").await;
    window.click("#changeIt-adaptive_max_rate").await;
    window.sees("dialog .strong", "Change").await;
    window.holds("limit-value", "7").await;
    window.types("limit-value", "70").await;
    window.block(&["*/v1/admin/guards"]).await;
    window.click("dialog .strong").await;
    window.sees(".result", "It is not known whether that worked").await;
    window.block(&[]).await;
    window.click("#changeIt-adaptive_max_rate").await;
    window.sees("dialog .strong", "Change").await;
    window.holds("limit-value", "70").await;
    window.press(Key::Enter).await;
    window
        .sees(".result", "Highest rate of an adaptive instance: 70 now")
        .await;
    assert_eq!(changed(&app).await, json!({"adaptive_max_rate": 70}));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_time_are_typed_and_shown_with_their_unit() {
    let app = TestApp::with("all", ADAPTIVE).await;
    let window = Window::open(&app).await;
    window.open_console("/console/limits").await;
    window.sees("#limit-adaptive_latency_ms", "200 ms").await;
    window.sees("#limit-browsing_ban_seconds", "1 d").await;
    window.click("#changeIt-browsing_ban_seconds").await;
    window.sees("dialog", "Now: 1 d.").await;
    window.holds("limit-value", "1 d").await;
    // A number alone could mean seconds or days, and the API has whole seconds.
    for wrong in ["90", "500 ms", "367 d", ""] {
        window.types("limit-value", wrong).await;
        window.click("dialog .strong").await;
        let bounds = "A time such as 1 h 30 min or 90 s, from 1 s to 366 d.";
        window.sees("#limit-value-wrong", bounds).await;
        assert_eq!(window.focus().await, "input#limit-value.", "{wrong}");
    }
    assert_eq!(changed(&app).await, json!({}));
    window.types("limit-value", "1 h 30 min").await;
    window.click("dialog .strong").await;
    window.sees(".result", "Such a ban lasts: 1 h 30 min now.").await;
    window.sees("#limit-browsing_ban_seconds", "1 h 30 min").await;
    window.click("#changeIt-adaptive_latency_ms").await;
    window.holds("limit-value", "200 ms").await;
    window.types("limit-value", "1500 ms").await;
    window.click("dialog .strong").await;
    window.sees("#limit-adaptive_latency_ms", "1 s 500 ms").await;
    let stored = json!({"adaptive_latency_ms": 1500, "browsing_ban_seconds": 5400});
    assert_eq!(changed(&app).await, stored);

    // Several errors stand above the fields, too, each with a link to its field.
    window.click("#tryIt-address_rate").await;
    window.sees("dialog .strong", "Try").await;
    window.types("stage-value", "many").await;
    window.types("stage-percent", "101").await;
    window.click("dialog .strong").await;
    window.sees("dialog .errors", "2 fields need a correction").await;
    window
        .sees("dialog .errors a[href='#stage-value']", "A whole number from")
        .await;
    window.click("dialog .errors a[href='#stage-percent']").await;
    assert_eq!(window.focus().await, "input#stage-percent.");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_telephone_a_row_is_a_card_with_all_its_values_and_buttons() {
    let app = TestApp::start().await;
    app.load_sale(&sale()).await;
    let window = Window::with(&app, TELEPHONE).await;
    window.open_console("/console/limits").await;
    window.sees("#tryIt-address_rate", "Try").await;
    let label = "return document.querySelector('#limit-address_rate td:nth-child(4)').dataset.label";
    assert_eq!(window.run(label, &[]).await, "In force");
    let cut = "const width = document.documentElement.clientWidth;
        return [...document.querySelectorAll('td, td *')].filter((it) => it.checkVisibility())
            .filter((it) => it.getBoundingClientRect().right > width).map((it) => it.textContent)";
    assert_eq!(window.run(cut, &[]).await, json!([]));
    window.change_language("zh-CN").await;
    window.sees("#tryIt-address_rate", "试用").await;
    assert_eq!(window.run(label, &[]).await, "生效值");
    window.change_language("en").await;
    window.goto("/console").await;
    window.sees("#view tbody", "100 %").await;
    assert_eq!(window.run(cut, &[]).await, json!([]));
    window.close().await;
}

/// A bound as an error text has it, in the unit that the limit's name ends with.
fn bound(text: &str, name: &str) -> i64 {
    if let Ok(number) = text.replace(',', "").parse() {
        return number;
    }
    let parts: Vec<&str> = text.split(' ').collect();
    let milliseconds = parts.chunks(2).map(|part| {
        let length = match part[1] {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "min" => 60_000,
            "s" => 1000,
            "ms" => 1,
            other => panic!("{name}: {text} has the unit {other}"),
        };
        part[0].parse::<i64>().unwrap() * length
    });
    milliseconds.sum::<i64>() / if name.ends_with("_seconds") { 1000 } else { 1 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_names_the_same_bounds_of_each_limit_as_the_api() {
    let app = TestApp::with("all", ADAPTIVE).await;
    let window = Window::open(&app).await;
    window.open_console("/console/limits").await;
    let settings = app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body["configured"].clone();
    for name in settings.as_object().unwrap().keys() {
        let row = format!("#limit-{name}");
        window.sees(&row, name).await;
        window.click(&format!("#changeIt-{name}")).await;
        window.sees("dialog .strong", "Change").await;
        window.types("limit-value", "99999999999").await;
        window.click("dialog .strong").await;
        window.sees("#limit-value-wrong", " from ").await;
        let said = window.text("#limit-value-wrong").await.unwrap();
        let (_, bounds) = said.trim_end_matches('.').rsplit_once(" from ").unwrap();
        let (least, most) = bounds.split_once(" to ").unwrap();
        let [least, most] = [least, most].map(|text| bound(text, name));
        window.press(Key::Escape).await;
        window.misses("dialog").await;
        for (value, status) in [(least, 200), (most, 200), (least - 1, 400), (most + 1, 400)] {
            let patch = app.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
            let answer = app.send(patch.json(&json!({name: value}))).await;
            assert_eq!(answer.status, status, "{name}: {value}: {answer:?}");
        }
        let patch = app.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
        app.send(patch.json(&json!({name: null}))).await.ok(200);
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_another_operator_changes_are_seen_and_asked_about_as_they_are() {
    let app = TestApp::with("all", &[("FLASHSALE_ADDRESS_RATE", "500")]).await;
    let change = async |rate: u32| {
        let patch = app.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
        app.send(patch.json(&json!({"address_rate": rate}))).await.ok(200);
    };
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console("/console/limits").await;
    window.sees(RATE, "500").await;
    change(600).await;
    window.click("#changeIt-address_rate").await;
    window.sees("dialog", "Now: 600.").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    change(700).await;
    window.sees(RATE, "700").await;
    // If the server does not answer, the page asks again by itself.
    window.block(&["*/v1/admin/guards"]).await;
    window.sees("#view .warning", "We keep trying").await;
    change(800).await;
    window.block(&[]).await;
    window.sees(RATE, "800").await;
    window.misses("#view .warning").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_is_deleted_after_a_question_and_leaves_the_list() {
    let app = TestApp::start().await;
    let draft = app.create_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{draft}")).await;
    window.sees("#do-delete", "Delete").await;
    window.click("#do-delete").await;
    window.sees("dialog h2", "Delete").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    app.get(Who::Operator, &format!("/v1/admin/sales/{draft}"))
        .await
        .ok(200);
    window.does("#do-delete").await;
    window.sees("#view h1", "Sales").await;
    window.sees("#view", "There are no sales yet").await;
    // A missing sale is not requested any more: the browser would log each 404.
    let events = window.network().await;
    let of = |it: &Value, what: &str| it["params"]["request"][what].as_str().unwrap_or_default().to_owned();
    let sent = |it: &Value| it["method"] == "Network.requestWillBeSent";
    let deletion = events
        .iter()
        .find(|it| sent(it) && of(it, "method") == "DELETE")
        .unwrap();
    let id = &deletion["params"]["requestId"];
    let is_answer = |it: &Value| it["method"] == "Network.responseReceived" && it["params"]["requestId"] == *id;
    let answered = events.iter().position(is_answer).unwrap();
    let later = events[answered..].iter().filter(|it| sent(it));
    let later = later.filter(|it| of(it, "url").contains(&format!("/v1/admin/sales/{draft}")));
    assert_eq!(later.count(), 0);
    app.get(Who::Operator, &format!("/v1/admin/sales/{draft}"))
        .await
        .no(404, "not_found");
    window.goto("/console/audit-log").await;
    window.sees("#view tbody tr:first-child", "Delete draft").await;
    window.close().await;
}
