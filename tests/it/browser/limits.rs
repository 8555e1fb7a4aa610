//! The limits of the gateway in the console: what is configured, changed and in force.

use super::window::Window;
use crate::support::app::{TestApp, Who, sale};
use serde_json::{Value, json};
use thirtyfour::Key;

const RATE: &str = "#limit-address_rate";

async fn changed(app: &TestApp) -> Value {
    app.get(Who::Operator, "/v1/admin/guards").await.ok(200).body["changed"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_changes_a_limit_and_takes_it_back() {
    let app = TestApp::with("all", &[("FLASHSALE_ADDRESS_RATE", "500")]).await;
    let window = Window::open(&app).await.expect(&["400"]);
    window.open_console("/console/limits").await;
    window.sees("#view h1", "Limits").await;
    window.sees(RATE, "500").await;
    window.sees("#limits-now", "takes all requests").await;
    // No is no, and what is no number is told beside the field.
    window.click("#changeIt-address_rate").await;
    window.sees("dialog h2", "Requests a second of one address").await;
    assert_eq!(window.value("limit-value").await, "500");
    window.types("limit-value", "many").await;
    window.click("dialog .strong").await;
    window.sees("#limit-value-wrong", "A whole number").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(changed(&app).await, json!({}));

    window.click("#changeIt-address_rate").await;
    window.types("limit-value", "800").await;
    window.click("dialog .strong").await;
    window.sees(".result", "Requests a second of one address: 800").await;
    window.sees(RATE, "800").await;
    assert_eq!(changed(&app).await, json!({"address_rate": 800}));
    // What cannot be is refused in the API's words, and nothing is changed.
    window.click("#changeIt-shared_rate").await;
    window.types("limit-value", "1000001").await;
    window.click("dialog .strong").await;
    window.sees(".result", "shared_rate must be 0 to 1000000").await;
    assert_eq!(changed(&app).await, json!({"address_rate": 800}));
    window.driver().refresh().await.unwrap();
    window.sees(RATE, "800").await;
    window.does("#takeBack-address_rate").await;
    window.sees(".result", "Requests a second of one address: 500").await;
    window.misses("#takeBack-address_rate").await;
    assert_eq!(changed(&app).await, json!({}));
    window.goto("/console/trail").await;
    window.sees("#view tbody tr:first-child", "Change limits").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_is_deleted_after_a_question_and_leaves_the_list() {
    let app = TestApp::start().await;
    let draft = app.create_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{draft}")).await;
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
    app.get(Who::Operator, &format!("/v1/admin/sales/{draft}"))
        .await
        .no(404, "not_found");
    window.goto("/console/trail").await;
    window.sees("#view tbody tr:first-child", "Delete draft").await;
    window.close().await;
}
