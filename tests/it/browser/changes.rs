//! Operators amend a published sale, and set the message to its shoppers.

use crate::support::app::{Client, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, Window, shared_development};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::Key;

const RESULT: &str = ".result";
const NEWEST_ACTION: &str = "[aria-labelledby=table-audit-log] tbody tr:first-child";

async fn set_message(app: &Client, sale: &str, message: &Value) {
    let path = format!("/v1/admin/sales/{sale}/message");
    let request = app.request(Method::PUT, Who::Operator, &path).json(message);
    app.send(request).await.ok(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_shopper_reads_and_hears_what_the_shop_says_in_a_language_of_their_own() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.misses("#message").await;
    window.click("#items .buy").await;
    window
        .sees("#items .outcome .note", "You are in the waiting room")
        .await;
    set_message(&app, &id, &json!({"en": "More <b>at</b> 18:00.", "zh": "18:00 补货。"})).await;
    window.finds("#message", "From the shop").await;
    window.sees("#message-text", "More <b>at</b> 18:00.").await;
    let live = "return document.getElementById('live').textContent";
    poll::within(PATIENCE, "a screen reader says it", async || {
        window.run(live, &[]).await == "From the shop: More <b>at</b> 18:00."
    })
    .await;
    window.change_language("zh-CN").await;
    window.sees("#message-text[lang=zh-CN]", "18:00 补货。").await;
    // A reader of the other language gets the text that there is.
    set_message(&app, &id, &json!({"en": "Ten more minutes."})).await;
    window.finds("#message-text[lang=en]", "Ten more minutes.").await;
    window.sees("#message", "商店消息").await;
    set_message(&app, &id, &json!({})).await;
    let refresh = "document.dispatchEvent(new Event('visibilitychange'))";
    poll::within(PATIENCE, "the message is gone", async || {
        window.run(refresh, &[]).await;
        window.text("#message").await.is_none()
    })
    .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sets_the_message_to_the_shoppers_of_a_sale() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["400"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.click("#further summary").await;
    window.click("#do-message").await;
    window.sees("dialog h2", "Message to the shoppers of “A sale”").await;
    // The menu is closed, and its title gets the focus after the dialog.
    window.misses("#do-message").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(window.focus().await, "summary#.button");
    window.press(Key::Enter).await;
    window.sees("#do-message", "Message").await;
    let [bar, menu] = ["#actions .big", "#further .actions"]
        .map(|part| format!("return document.querySelector('{part}').getBoundingClientRect().toJSON()"));
    let (pause, menu) = (window.run(&bar, &[]).await, window.run(&menu, &[]).await);
    assert!(
        menu["top"].as_f64() >= pause["bottom"].as_f64(),
        "{menu} covers {pause}"
    );
    window.click("#do-message").await;
    window.fill("#message-en", "More at 18:00.").await;
    // What is wrong is said beside its field, also if only the server finds it.
    for (wrong, said) in [
        ("等".repeat(281), "At most 280 characters"),
        ("\u{202e}补货".to_owned(), "zh must have"),
    ] {
        window.types("message-zh", &wrong).await;
        window.click("dialog .strong").await;
        window.sees("#message-zh-wrong", said).await;
        assert_eq!(window.run("return document.activeElement.id", &[]).await, "message-zh");
    }
    window.types("message-zh", "18:00 补货。").await;
    window.press(Key::Enter).await;
    window.misses("dialog").await;
    window.sees(RESULT, "The message is stored").await;
    window.sees(".facts", "More at 18:00. · 18:00 补货。").await;
    for text in ["Message to shoppers", "Message in English: More at 18:00."] {
        window.sees(NEWEST_ACTION, text).await;
    }
    let message = async || app.admin(&id, "").await.ok(200).body["message"].clone();
    assert_eq!(message().await, json!({"en": "More at 18:00.", "zh": "18:00 补货。"}));

    // The dialog begins with the present message, and two empty texts remove it.
    window.click("#further summary").await;
    window.click("#do-message").await;
    window.sees("#sure-text", "Now: More at 18:00.").await;
    window.holds("message-en", "More at 18:00.").await;
    window.holds("message-zh", "18:00 补货。").await;
    window.types("message-en", "").await;
    window.types("message-zh", "").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".facts", "Message to shoppers –").await;
    assert_eq!(message().await, json!({}));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_sells_gets_another_name_and_rate_and_a_later_end_and_no_earlier_one() {
    let app = TestApp::start().await;
    let room = json!({"guards": {"waiting_room": true, "admissions_per_second": 7}});
    let id = app.load_sale(&sale_with(&room)).await;
    let before = app.admin(&id, "").await.ok(200).body;
    let window = Window::open(&app).await.expect(&["409"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.click("#further summary").await;
    window.click("#do-amend").await;
    window.sees("dialog h2", "Amend “A sale”").await;
    window.sees("dialog .actions", "Cancel").await;
    window.holds("amend-name", "A sale").await;
    window.holds("amend-admissions_per_second", "7").await;
    // However low the window is, the buttons are in view.
    let low = Appearance {
        height: 500,
        ..Appearance::default()
    };
    window.appear(low).await;
    let cut = "const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
        const dialog = document.querySelector('dialog');
        return dialog.scrollHeight > dialog.clientHeight ? bottom('dialog .strong') - bottom('dialog') : 'all fits'";
    let below = window.run(cut, &[]).await;
    assert!(below.as_f64().is_some_and(|it| it < 0.0), "{below}");
    window.appear(Appearance::default()).await;
    // It has started.
    window.misses("#amend-starts_at").await;
    window.click("dialog .strong").await;
    window.sees("#amend-name-wrong", "Nothing is changed").await;
    window.types("amend-ends_at", "2020-01-01T00:00:00").await;
    window.click("dialog .strong").await;
    window.sees("#amend-ends_at-wrong", "It can only become later").await;
    window.misses("#amend-name-wrong").await;
    assert_eq!(
        window.run("return document.activeElement.id", &[]).await,
        "amend-ends_at"
    );
    window.types("amend-ends_at", "2037-11-22T12:00:00").await;
    window.types("amend-name", "Longer").await;
    window.types("amend-admissions_per_second", "9").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(RESULT, "The sale is amended").await;
    window.sees("#sale-name", "Longer").await;
    for text in ["Change sale", "Name: Longer", "Admissions a second: 9"] {
        window.sees(NEWEST_ACTION, text).await;
    }
    let after = app.admin(&id, "").await.ok(200).body;
    assert_eq!(
        (&after["name"], &after["guards"]["admissions_per_second"]),
        (&json!("Longer"), &json!(9))
    );
    assert!(after["ends_at"].as_str().unwrap().starts_with("2037-11-2"), "{after}");
    // What was not touched is not sent: the field has no milliseconds.
    assert_eq!(after["starts_at"], before["starts_at"]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_has_not_begun_gets_a_later_start_and_no_earlier_one() {
    let app = TestApp::start().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::hours(1));
    let terms = json!({"starts_at": starts_at, "ends_at": "2037-11-24T12:00:00Z"});
    let id = app.load_sale(&sale_with(&terms)).await;
    let before = app.admin(&id, "").await.ok(200).body;
    let window = Window::open(&app).await.expect(&["409"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.click("#further summary").await;
    window.click("#do-amend").await;
    window.sees("dialog h2", "Amend “A sale”").await;
    window.types("amend-starts_at", "2020-01-01T00:00:00").await;
    window.click("dialog .strong").await;
    window.sees("#amend-starts_at-wrong", "It can only become later").await;
    window.types("amend-starts_at", "2037-11-22T12:00:00").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(RESULT, "The sale is amended").await;
    window.sees("#sale-times", "2037").await;
    let after = app.admin(&id, "").await.ok(200).body;
    assert_eq!(after["state"], "scheduled");
    // The field has the browser's time zone.
    assert!(after["starts_at"].as_str().unwrap().starts_with("2037-11-2"), "{after}");
    assert_eq!(after["ends_at"], before["ends_at"]);
    // Shoppers wait for the later start, too.
    poll::within(PATIENCE, "shoppers see it", async || {
        let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body;
        shown["starts_at"] == after["starts_at"]
    })
    .await;
    app.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_sells_gets_a_description_and_a_picture_and_loses_them_again() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let texts = async || {
        let sale = app.admin(&id, "").await.ok(200).body;
        ["description", "image_url"].map(|name| sale[name].clone())
    };
    let window = Window::open(&app).await.expect(&["400"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.click("#further summary").await;
    window.click("#do-amend").await;
    window.holds("amend-description", "").await;
    window.fill("#amend-description", "Warm things.").await;
    // Enter begins a line there.
    window.press(Key::Enter).await;
    window.holds("amend-description", "Warm things.\n").await;
    window.types("amend-image_url", "winter.jpg").await;
    window.click("dialog .strong").await;
    window
        .sees("#amend-image_url-wrong", "An https address, or a path")
        .await;
    window.types("amend-image_url", "/winter.jpg").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".facts", "Description Warm things.").await;
    assert_eq!(texts().await, [json!("Warm things."), json!("/winter.jpg")]);

    window.click("#further summary").await;
    window.click("#do-amend").await;
    window.holds("amend-description", "Warm things.").await;
    window.types("amend-description", "").await;
    window.types("amend-image_url", "").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(".facts", "Description –").await;
    assert_eq!(texts().await, [json!(null), json!(null)]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_item_of_a_sale_that_sells_gets_other_texts_and_loses_them_again() {
    let app = TestApp::start().await;
    let mut request = sale();
    let mut second = request["items"][0].clone();
    second["sku"] = json!("case");
    second["name"] = json!("A case");
    second["description"] = json!("Leather.");
    request["items"].as_array_mut().unwrap().push(second);
    let id = app.load_sale(&request).await;
    let have_texts = async |expected: Value| {
        let sale = app.admin(&id, "").await.ok(200).body;
        let items = sale["items"].as_array().unwrap().iter();
        let texts: Vec<_> = items.map(|item| [&item["description"], &item["image_url"]]).collect();
        assert_eq!(json!(texts), expected);
    };
    let window = Window::open(&app).await.expect(&["400"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    let begin = async |description: &str| {
        window.click("#further summary").await;
        window.click("#do-item").await;
        window.sees("dialog h2", "Texts of an item of “A sale”").await;
        window.fill("#which-item", "case").await;
        window.click("dialog .strong").await;
        window.sees("dialog h2", "Texts of “case · A case”").await;
        window.holds("item-description", description).await;
    };
    begin("Leather.").await;
    window.click("dialog .strong").await;
    window.sees("#item-description-wrong", "Nothing is changed").await;
    window.types("item-image_url", "case.jpg").await;
    window.click("dialog .strong").await;
    window
        .sees("#item-image_url-wrong", "An https address, or a path")
        .await;
    assert_eq!(
        window.run("return document.activeElement.id", &[]).await,
        "item-image_url"
    );
    window.types("item-image_url", "/case.jpg").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(RESULT, "The item’s texts are stored").await;
    let picture = "Address of the picture: /case.jpg";
    window
        .sees(".facts", &format!("Description: Leather., {picture}"))
        .await;
    // What was not touched is not sent.
    window.sees(NEWEST_ACTION, &format!("Items: case: {picture}")).await;
    have_texts(json!([[null, null], ["Leather.", "/case.jpg"]])).await;
    poll::within(PATIENCE, "shoppers see it", async || {
        let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body;
        shown["items"][1]["image_url"] == "/case.jpg"
    })
    .await;

    begin("Leather.").await;
    window.types("item-description", "").await;
    window.types("item-image_url", "").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window
        .sees(NEWEST_ACTION, "Items: case: Description: –, Address of the picture: –")
        .await;
    have_texts(json!([[null, null], [null, null]])).await;
    window.close().await;
}
