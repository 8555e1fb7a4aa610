//! Accounts that hold and do not pay: how much they may hold, and how long they must wait.

use crate::support::app::{TestApp, Who, sale_with};
use crate::support::poll::{self, PATIENCE, within};
use serde_json::{Value, json};

fn guarded(guards: &Value) -> Value {
    sale_with(&json!({"guards": guards, "payment_window_seconds": 1}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_holds_no_more_orders_than_the_sale_allows_until_it_pays_or_cancels() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale_with(&json!({"guards": {"holds_max": 2}}))).await;
    let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
    assert_eq!(shown.body["guards"]["holds_max"], 2);
    let first = app.buy("ada", &id, "a", 1).await.ok(201);
    let second = app.buy("ada", &id, "b", 1).await.ok(201);
    let refused = app.buy("ada", &id, "c", 1).await.no(409, "too_many_holds");
    assert!(refused.text("detail").contains("pay"), "{}", refused.body);
    app.buy("bob", &id, "c", 1).await.ok(201);
    app.buy("ada", &id, "a", 1).await.ok(200);
    assert_eq!(app.pay("pay_of_a_hold", &first.body).await, "applied");
    poll::answer("a paid order is no hold", || async {
        let answer = app.buy("ada", &id, "c", 1).await;
        (answer.status == 201).then_some(())
    })
    .await;
    app.buy("ada", &id, "d", 1).await.no(409, "too_many_holds");
    app.cancel("ada", &second.id()).await.ok(200);
    app.buy("ada", &id, "d", 1).await.ok(201);
    within(PATIENCE, "the refusals are counted", async || {
        app.stats(&id).await["stopped"]["holds"].as_i64() >= Some(2)
    })
    .await;
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_let_a_hold_expire_waits_and_waiting_it_out_succeeds() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&guarded(&json!({"unpaid_cooldown_seconds": 10}))).await;
    let order = app.buy("ada", &id, "a", 1).await.ok(201);
    app.wait_for_order("ada", &order.id(), "expired").await;
    // By then the message has been delivered to the shard.
    app.wait_for_units(&id, [10, 0, 0]).await;
    let refused = app.buy("ada", &id, "b", 1).await.no(429, "cooling_down");
    app.buy("bob", &id, "b", 1).await.ok(201);
    let seconds = refused.retry_after();
    assert!((1..=10).contains(&seconds), "{seconds}");
    poll::wait_out(seconds).await;
    app.buy("ada", &id, "next", 1).await.ok(201);
    within(PATIENCE, "the refusals are counted", async || {
        app.stats(&id).await["stopped"]["cooldown"].as_i64() >= Some(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_says_nothing_is_guarded_as_the_instance_is_configured() {
    let guards = r#"{"holds_max": 1, "unpaid_cooldown_seconds": 60}"#;
    let app = TestApp::with("all", &[("FLASHSALE_SALE_GUARDS", guards)]).await;
    let usual = app.load_sale(&sale_with(&json!({}))).await;
    app.buy("ada", &usual, "a", 1).await.ok(201);
    app.buy("ada", &usual, "b", 1).await.no(409, "too_many_holds");
    let says = app.load_sale(&sale_with(&json!({"guards": {"holds_max": 0}}))).await;
    app.buy("ada", &says, "a", 1).await.ok(201);
    app.buy("ada", &says, "b", 1).await.ok(201);
    assert_eq!(
        app.admin(&says, "").await.ok(200).body["guards"]["unpaid_cooldown_seconds"],
        60
    );
    for (guards, detail) in [
        (
            json!({"holds_max": -1}),
            "guards: holds_max must be 0 to 100000, not -1",
        ),
        (
            json!({"challenge": "pow"}),
            "guards: challenge must be none, proof_of_work or captcha",
        ),
        (
            json!({"waiting_room": "yes"}),
            "guards: waiting_room must be true or false",
        ),
    ] {
        let refused = app.try_create_sale(&sale_with(&json!({ "guards": guards }))).await;
        assert_eq!(refused.no(400, "invalid_request").text("detail"), detail);
    }
}
