//! Stages in the console: operators try a guard on a part of the shoppers, and see what it would refuse.

use crate::support::app::{Answer, Client, TestApp, Who, sale};
use crate::support::poll;
use crate::support::window::Window;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

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
    window.close().await;
}
