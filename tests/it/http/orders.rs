//! Orders: who may see them, and how they are cancelled, before and after the ledger has them.

use crate::support::app::{TestApp, Who, sale, sale_with};
use serde_json::json;

#[tokio::test]
async fn shoppers_see_their_own_orders_and_nobody_elses() {
    let app = TestApp::start().await;
    let (id, other) = (app.load_sale(&sale()).await, app.load_sale(&sale()).await);
    let mut adas = Vec::new();
    for key in ["k1", "k2"] {
        adas.push(app.buy("ada", &id, key, 1).await.ok(201).id());
    }
    app.buy("ada", &other, "k1", 1).await.ok(201);
    let bobs = app.buy("bob", &id, "k1", 1).await.ok(201).id();
    let listed = async |user: &str| {
        let body = app.orders(user, &id).await.ok(200).body;
        let orders = body["data"].as_array().unwrap().clone();
        orders
            .iter()
            .map(|order| order["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // Before the drain and after it.
    for _ in 0..2 {
        assert_eq!(listed("ada").await, adas);
        assert_eq!(listed("bob").await, std::slice::from_ref(&bobs));
        assert!(listed("cyd").await.is_empty());
        app.order("bob", &adas[0]).await.no(404, "not_found");
        app.cancel("bob", &adas[0]).await.no(404, "not_found");
        app.wait_for_order("ada", &adas[0], "reserved").await;
    }
    for path in [format!("/v1/orders/{bobs}"), format!("/v1/orders?sale_id={id}")] {
        app.get(Who::Nobody, &path).await.no(401, "unauthenticated");
        app.get(Who::Operator, &path).await.no(401, "unauthenticated");
    }
    app.get(Who::Shopper("ada"), "/v1/orders")
        .await
        .no(400, "invalid_request");
    let stranger = uuid::Uuid::new_v4().to_string();
    app.order("ada", &stranger).await.no(404, "not_found");
    app.cancel("ada", &stranger).await.no(404, "not_found");
    assert_eq!(app.units(&id).await, [7, 3, 0]);
    for sale in [&id, &other] {
        app.assert_balanced(sale).await;
    }
}

#[tokio::test]
async fn operators_see_anybodys_order_with_its_shopper() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let shown = app
        .get(Who::Operator, &format!("/v1/admin/orders/{order}"))
        .await
        .ok(200);
    assert_eq!((shown.text("user"), shown.id()), ("ada", order));
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn before_the_drain_an_order_is_read_listed_and_cancelled_with_its_stock_back_at_once() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 5}))).await;
    let order = app.buy("ada", &id, "k", 5).await.ok(201).id();
    let read = app.order("ada", &order).await.ok(200);
    assert_eq!(
        (read.text("state"), &read.body["confirmed"]),
        ("reserved", &json!(false))
    );
    let listed = app.orders("ada", &id).await.ok(200).body;
    assert_eq!(listed["data"][0], read.body);
    app.order("bob", &order).await.no(404, "not_found");
    app.cancel("bob", &order).await.no(404, "not_found");

    let cancelled = app.cancel("ada", &order).await.ok(200);
    assert_eq!(cancelled.text("state"), "cancelled");
    // No job runs here: what is back is back because of the cancellation.
    assert_eq!(app.units(&id).await, [5, 0, 0]);
    app.buy("bob", &id, "k", 5).await.ok(201);
    let again = app.cancel("ada", &order).await.ok(200);
    assert_eq!(again.body, cancelled.body);
    assert_eq!(
        app.units(&id).await,
        [0, 5, 0],
        "a second cancellation gives nothing back"
    );
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn an_order_is_confirmed_once_a_worker_has_taken_it_in() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.order("ada", &order).await.ok(200).body["confirmed"], false);
    let _worker = app.another("worker");
    let confirmed = app.wait_for_order("ada", &order, "reserved").await;
    assert_eq!(app.orders("ada", &id).await.body["data"][0], confirmed.body);
    assert_eq!(app.buy("ada", &id, "k", 1).await.ok(200).body, confirmed.body);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_paid_or_expired_order_is_not_cancellable() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 2}))).await;
    let paid = app.buy("ada", &id, "paid", 1).await.ok(201);
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");
    let expired = app.buy("ada", &id, "expired", 1).await.ok(201);
    app.wait_for_order("ada", &expired.id(), "expired").await;
    for (order, state) in [(paid.id(), "paid"), (expired.id(), "expired")] {
        let refused = app.cancel("ada", &order).await.no(409, "order_not_cancellable");
        assert!(refused.text("detail").contains(state), "{refused:?}");
        assert_eq!(app.order("ada", &order).await.text("state"), state);
    }
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn cancelling_many_times_at_once_gives_the_units_back_once() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 4).await.ok(201).id();
    let calls = (0..12).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other }.clone();
        let order = order.clone();
        tokio::spawn(async move { client.cancel("ada", &order).await.ok(200).text("state").to_owned() })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), "cancelled");
    }
    app.wait_for_units(&id, [10, 0, 0]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn of_paying_and_cancelling_at_once_exactly_one_happens() {
    let app = TestApp::start().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 100, "per_user_limit": 100})))
        .await;
    let (mut paid, mut cancelled) = (0, 0);
    for number in 0..10 {
        let order = app.buy("ada", &id, &format!("k{number}"), 1).await.ok(201);
        let payment = format!("pay_{number}");
        let order_id = order.id();
        let (outcome, answer) = tokio::join!(app.pay(&payment, &order.body), app.cancel("ada", &order_id));
        match (outcome.as_str(), answer.status) {
            ("applied", 409) => paid += 1,
            ("refund_due", 200) => cancelled += 1,
            other => panic!("{other:?}"),
        }
    }
    app.wait_for_units(&id, [100 - paid, 0, paid]).await;
    let orders = app.stats(&id).await["orders"].clone();
    assert_eq!(
        (&orders["paid"], &orders["cancelled"]),
        (&json!(paid), &json!(cancelled))
    );
    app.assert_balanced(&id).await;
}
