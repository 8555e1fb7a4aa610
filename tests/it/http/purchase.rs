//! Purchases: idempotency, the order of the checks, the sliding window, the limit for one shopper, the stock.

use super::decided;
use crate::support::app::{Answer, TestApp, rfc3339, sale, sale_with};
use crate::support::poll;
use crate::support::raw::Raw;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// An answer's order without the members that change when it is drained.
fn order(answer: &Answer) -> Value {
    let mut order = answer.body.clone();
    order.as_object_mut().unwrap().remove("confirmed");
    order
}

/// The same key again finds the same order.
#[track_caller]
fn is_replay(again: &Answer, first: &Answer) {
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.header("idempotency-replayed"), Some("true"), "{again:?}");
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.body["id"], first.body["id"]);
}

#[tokio::test]
async fn a_purchase_is_an_order_with_everything_that_the_contract_names() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 90}))).await;
    let bought = app.buy("ada", &id, "k", 2).await.ok(201);
    let order_id = bought.id();
    assert_eq!(
        bought.header("location"),
        Some(format!("/v1/orders/{order_id}").as_str())
    );
    assert_eq!(bought.header("idempotency-replayed"), None);
    let created: DateTime<Utc> = bought.text("created_at").parse().unwrap();
    assert_eq!(
        bought.body,
        json!({
            "id": order_id, "sale_id": id, "sku": "phone", "quantity": 2, "amount_minor": 99_800, "currency": "EUR",
            "state": "reserved", "confirmed": false, "created_at": rfc3339(created),
            "expires_at": rfc3339(created + TimeDelta::seconds(90)), "paid_at": null,
        })
    );
    assert!(uuid::Uuid::parse_str(&order_id).unwrap().to_string() == order_id);
    assert_eq!(app.order("ada", &order_id).await.ok(200).body, bought.body);
    assert_eq!(app.units(&id).await, [8, 2, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_same_key_finds_the_same_order_at_any_time_and_through_any_instance() {
    let mut app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let first = app.buy("ada", &id, "k", 5).await.ok(201);
    let again = async |client: &crate::support::app::Client| {
        let again = client.buy("ada", &id, "k", 5).await;
        is_replay(&again, &first);
        again
    };
    assert_eq!(order(&again(&app).await), order(&first));
    assert_eq!(order(&again(&other).await), order(&first));
    // When the stock is empty.
    app.buy("bob", &id, "k", 5).await.ok(201);
    app.buy("cyd", &id, "k", 1).await.no(409, "sold_out");
    assert_eq!(order(&again(&app).await), order(&first));
    app.operate(&id, "pause").await.ok(200);
    assert_eq!(order(&again(&other).await), order(&first));
    app.operate(&id, "resume").await.ok(200);
    app.operate(&id, "close").await.ok(200);
    assert_eq!(order(&again(&app).await), order(&first));
    // After the process has been killed, and once the ledger has the order.
    app.instance.kill();
    app.instance = app.another("all");
    assert_eq!(order(&again(&app).await), order(&first));
    app.wait_for_order("ada", &first.id(), "reserved").await;
    assert_eq!(again(&app).await.body["confirmed"], true);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_same_key_finds_its_order_paid_or_cancelled_and_makes_no_new_one() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    let paid = app.buy("ada", &id, "paid", 1).await.ok(201);
    assert_eq!(app.pay("pay_of_a_key", &paid.body).await, "applied");
    let cancelled = app.buy("ada", &id, "cancelled", 2).await.ok(201);
    app.cancel("ada", &cancelled.id()).await.ok(200);
    app.wait_for_units(&id, [9, 0, 1]).await;
    for (key, quantity, first) in [("paid", 1, &paid), ("cancelled", 2, &cancelled)] {
        let again = app.buy("ada", &id, key, quantity).await;
        is_replay(&again, first);
        assert_eq!(again.body["state"], key);
    }
    assert_eq!(app.units(&id).await, [9, 0, 1]);
    assert_eq!(app.orders("ada", &id).await.body["data"].as_array().unwrap().len(), 2);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused_and_another_shoppers_key_is_another_key() {
    let app = TestApp::shared_api_only().await;
    let mut request = sale();
    let mut case = request["items"][0].clone();
    case["sku"] = json!("case");
    request["items"].as_array_mut().unwrap().push(case);
    let id = app.load_sale(&request).await;
    let first = app.buy("ada", &id, "k", 2).await.ok(201);
    app.buy("ada", &id, "k", 1).await.no(422, "idempotency_key_reused");
    // Also a body with an item that the sale does not have: the key is checked first.
    for sku in ["case", "nothing"] {
        app.buy_sku("ada", &id, "k", sku, 2)
            .await
            .no(422, "idempotency_key_reused");
    }
    app.buy_sku("bob", &id, "k", "nothing", 2).await.no(404, "not_found");
    let bobs = app.buy("bob", &id, "k", 1).await.ok(201);
    assert_ne!(bobs.id(), first.id());
    // The same key in another sale is another request.
    let other = app.load_sale(&sale()).await;
    app.buy("ada", &other, "k", 1).await.ok(201);
    is_replay(&app.buy("ada", &id, "k", 2).await, &first);
    for sale in [&id, &other] {
        app.assert_balanced(sale).await;
    }
}

#[tokio::test]
async fn one_key_sent_many_times_at_once_makes_one_order() {
    let app = TestApp::start().await;
    let other = app.another("all");
    let id = app.load_sale(&sale()).await;
    let calls = (0..24).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other }.clone();
        let id = id.clone();
        tokio::spawn(async move { decided(|| client.buy("ada", &id, "k", 3)).await })
    });
    let (mut created, mut orders) = (0, Vec::new());
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap();
        match answer.status {
            201 => created += 1,
            _ => assert_eq!(answer.ok(200).header("idempotency-replayed"), Some("true")),
        }
        orders.push(answer_id(&other, &id).await);
    }
    orders.dedup();
    // The 201 may have come too late, as a 503.
    assert!(created <= 1 && orders.len() == 1, "{created} created: {orders:?}");
    assert_eq!(app.units(&id).await, [7, 3, 0]);
    app.assert_balanced(&id).await;
}

/// The id of the shopper's only order.
async fn answer_id(client: &crate::support::app::Client, sale: &str) -> Value {
    let orders = client.orders("ada", sale).await.ok(200).body;
    assert_eq!(orders["data"].as_array().unwrap().len(), 1);
    orders["data"][0]["id"].clone()
}

#[tokio::test]
async fn many_shoppers_at_once_buy_exactly_the_stock_and_sold_out_is_only_said_when_it_is() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app
        .load_sale(&sale_with(&json!({"shards": 8, "stock": 37, "per_user_limit": 1})))
        .await;
    let calls = (0..80).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other };
        let (user, id) = (format!("user{number}"), &id);
        async move {
            let answer = decided(|| client.buy(&user, id, "k", 1)).await;
            // 200 for an order whose first answer was 503.
            if [200, 201].contains(&answer.status) {
                return 1;
            }
            answer.no(409, "sold_out");
            // Nothing comes back in this sale: a unit that is free now was free at the refusal.
            assert_eq!(client.units(id).await, [0, 37, 0]);
            0
        }
    });
    assert_eq!(join_all(calls).await.into_iter().sum::<i32>(), 37);
    assert_eq!(app.units(&id).await, [0, 37, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_purchase_is_filled_from_all_shards_together() {
    let app = TestApp::shared_api_only().await;
    let id = app
        .load_sale(&sale_with(&json!({"shards": 10, "per_user_limit": 10})))
        .await;
    app.buy("ada", &id, "all", 10).await.ok(201);
    app.buy("bob", &id, "one", 1).await.no(409, "sold_out");
    let order = app.orders("ada", &id).await.body["data"][0]["id"].clone();
    app.cancel("ada", order.as_str().unwrap()).await.ok(200);
    // A refusal is not remembered under its key.
    app.buy("bob", &id, "one", 1).await.ok(201);
    app.buy("cyd", &id, "more than there are", 10).await.no(409, "sold_out");
    app.buy("cyd", &id, "more than there are", 9).await.ok(201);
    assert_eq!(app.units(&id).await, [0, 10, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn each_check_comes_in_its_place() {
    let app = TestApp::start_api_only().await;
    let redis = Raw::connect(&app.environment["FLASHSALE_REDIS_URL"]);
    let id = app
        .load_sale(&sale_with(&json!({
            "shards": 1, "stock": 3, "per_user_limit": 2, "purchase_rate": {"limit": 3, "window_ms": 60_000},
        })))
        .await;
    // Ada has an order under a key, and every other check would refuse: the key comes first.
    let first = app.buy("ada", &id, "first", 1).await.ok(201);
    let ban = |until: i64| {
        let buyer = format!("{{{id}:0}}:buyer:ada");
        let until = [&u32::try_from(until / 1000).unwrap().to_be_bytes()[..], &[0, 1]].concat();
        let _length: i64 = redis.call(redis::cmd("SETRANGE").arg(buyer).arg(0).arg(until));
    };
    app.buy("bob", &id, "k", 2).await.ok(201);
    // Limit per shopper before stock: no unit is left, and ada may not have two more.
    let limited = app.buy("ada", &id, "limit", 2).await.no(409, "purchase_limit_reached");
    assert!(
        limited
            .text("detail")
            .starts_with("one shopper may have 2 of this item")
    );
    app.operate(&id, "pause").await.ok(200);
    // Open before the limit per shopper.
    let paused = app.buy("ada", &id, "open", 2).await.no(409, "sale_not_open");
    assert_eq!(paused.body["sale_state"], "paused");
    assert!(paused.text("detail").contains("paused"));
    // The window before open: it has three requests now.
    app.buy("ada", &id, "window", 2).await.no(429, "rate_limited");
    // The ban before the window.
    ban((Utc::now() + TimeDelta::minutes(1)).timestamp_millis());
    app.buy("ada", &id, "ban", 2).await.no(403, "banned");
    // The key before the ban.
    is_replay(&app.buy("ada", &id, "first", 1).await, &first);
    app.buy("ada", &id, "first", 2).await.no(422, "idempotency_key_reused");
    // Reading and cancelling are no purchases.
    app.order("ada", &first.id()).await.ok(200);
    app.cancel("ada", &first.id()).await.ok(200);
    // A ban ends by itself.
    ban(Utc::now().timestamp_millis() - 1);
    app.buy("ada", &id, "after", 1).await.no(429, "rate_limited");
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn admitted_requests_count_in_the_window_and_retries_or_its_own_refusals_do_not() {
    let app = TestApp::shared_api_only().await;
    let id = app
        .load_sale(&sale_with(&json!({
            "per_user_limit": 1, "purchase_rate": {"limit": 3, "window_ms": 60_000},
        })))
        .await;
    app.buy("ada", &id, "k1", 1).await.ok(201);
    for _ in 0..5 {
        // Replays do not count.
        app.buy("ada", &id, "k1", 1).await.ok(200);
        app.buy("ada", &id, "k1", 2).await.no(422, "idempotency_key_reused");
        // A refusal counts once for its key.
        app.buy("ada", &id, "k2", 1).await.no(409, "purchase_limit_reached");
    }
    app.operate(&id, "pause").await.ok(200);
    app.buy("ada", &id, "k3", 1).await.no(409, "sale_not_open");
    for key in ["k4", "k5"] {
        app.buy("ada", &id, key, 1).await.no(429, "rate_limited");
    }
    // The window knows the key that it let through.
    app.buy("ada", &id, "k3", 1).await.no(409, "sale_not_open");
    // Other requests do not count either.
    for _ in 0..4 {
        app.buy_sku("bob", &id, "k", "nothing", 1).await.no(404, "not_found");
        app.buy("bob", &id, "k", 0).await.no(400, "invalid_request");
    }
    app.operate(&id, "resume").await.ok(200);
    app.buy("bob", &id, "k", 1).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn waiting_out_retry_after_succeeds() {
    let app = TestApp::shared_api_only().await;
    let id = app
        .load_sale(&sale_with(&json!({"purchase_rate": {"limit": 2, "window_ms": 6_000}})))
        .await;
    app.buy("ada", &id, "k1", 1).await.ok(201);
    app.buy("ada", &id, "k2", 1).await.ok(201);
    let refused = app.buy("ada", &id, "k3", 1).await.no(429, "rate_limited");
    assert!((1..=6).contains(&refused.retry_after()), "{refused:?}");
    // A refused request does not make the wait longer.
    for number in 4..8 {
        app.buy("ada", &id, &format!("k{number}"), 1)
            .await
            .no(429, "rate_limited");
    }
    // Each shopper has their own window.
    app.buy("bob", &id, "k3", 1).await.ok(201);
    poll::wait_out(refused.retry_after()).await;
    app.buy("ada", &id, "k3", 1).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_limit_counts_what_is_reserved_and_paid_and_not_what_went_back() {
    let app = TestApp::shared().await;
    let id = app
        .load_sale(&sale_with(&json!({"per_user_limit": 2, "payment_window_seconds": 6})))
        .await;
    app.buy("ada", &id, "too many", 3)
        .await
        .no(409, "purchase_limit_reached");
    let paid = app.buy("ada", &id, "paid", 1).await.ok(201);
    assert_eq!(app.pay("pay_of_a_limit", &paid.body).await, "applied");
    let given_back = app.buy("ada", &id, "given back", 1).await.ok(201);
    app.buy("ada", &id, "one more", 1)
        .await
        .no(409, "purchase_limit_reached");
    app.cancel("ada", &given_back.id()).await.ok(200);
    let left = app.buy("ada", &id, "one more", 1).await.ok(201);
    app.buy("ada", &id, "and one", 1)
        .await
        .no(409, "purchase_limit_reached");
    app.wait_for_order("ada", &left.id(), "expired").await;
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.buy("ada", &id, "and one", 1).await.ok(201);
    app.buy("ada", &id, "a third", 1)
        .await
        .no(409, "purchase_limit_reached");
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn an_expired_order_gives_its_units_to_the_next_and_its_key_still_finds_it() {
    let app = TestApp::shared().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 1, "payment_window_seconds": 5})))
        .await;
    let first = app.buy("ada", &id, "k", 1).await.ok(201);
    app.buy("bob", &id, "k", 1).await.no(409, "sold_out");
    app.wait_for_order("ada", &first.id(), "expired").await;
    app.wait_for_units(&id, [1, 0, 0]).await;
    let again = app.buy("ada", &id, "k", 1).await;
    is_replay(&again, &first);
    assert_eq!(again.body["state"], "expired");
    app.buy("bob", &id, "k", 1).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn user_ids_of_any_bytes_are_distinct() {
    let app = TestApp::shared().await;
    let id = app
        .load_sale(&sale_with(&json!({"per_user_limit": 1, "stock": 50})))
        .await;
    let users = [
        "ada".to_owned(),
        "Ada".to_owned(),
        "ada ".to_owned(),
        "{ada}".to_owned(),
        "}:shard".to_owned(),
        "a\nb".to_owned(),
        "a\r\nb".to_owned(),
        "é".to_owned(),
        "e\u{301}".to_owned(),
        "🦀".to_owned(),
        "';drop table orders;--".to_owned(),
        "../..".to_owned(),
        "u".repeat(128),
        "🦀".repeat(32),
    ];
    let mut orders = Vec::new();
    for user in &users {
        let order = app.buy(user, &id, "k", 1).await.ok(201).id();
        app.buy(user, &id, "k2", 1).await.no(409, "purchase_limit_reached");
        app.wait_for_order(user, &order, "reserved").await;
        let listed = app.orders(user, &id).await.ok(200).body;
        assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{user:?}");
        orders.push(order);
    }
    for (user, order) in users.iter().zip(&orders) {
        for another in orders.iter().filter(|another| *another != order) {
            app.order(user, another).await.no(404, "not_found");
        }
        app.cancel(user, order).await.ok(200);
    }
    app.wait_for_units(&id, [50, 0, 0]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn keys_of_a_shopper_with_more_orders_than_redis_keeps_find_their_orders_in_the_ledger() {
    const ORDERS: usize = 180;
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app
        .load_sale(&sale_with(&json!({"stock": 500, "per_user_limit": 400})))
        .await;
    // All of them are reserved at first, so ada's row is long: later decisions are left to the ledger.
    let mut bought = Vec::new();
    for number in 0..ORDERS {
        bought.push(app.buy("ada", &id, &format!("k{number}"), 1).await.ok(201));
    }
    assert_eq!(app.pay("pay_1", &bought[1].body).await, "applied");
    for order in bought.iter().skip(2).step_by(2).chain([&bought[0]]) {
        app.cancel("ada", &order.id()).await.ok(200);
    }
    let held = i64::try_from(ORDERS / 2 - 1).unwrap();
    app.wait_for_units(&id, [500 - held - 1, held, 1]).await;
    let redis = Raw::connect(&app.environment["FLASHSALE_REDIS_URL"]);
    let row = || -> usize {
        let lengths = [0, 1].map(|shard| {
            let buyer = format!("{{{id}:{shard}}}:buyer:ada");
            redis.call::<usize>(redis::cmd("STRLEN").arg(buyer))
        });
        lengths.into_iter().sum()
    };
    // More than ninety orders of at least 38 bytes are not in it.
    let rest = 11 + 6 + 12 * ORDERS;
    assert!(row().saturating_sub(rest) / 38 < ORDERS - 60, "{}", row());

    for (number, first) in bought.iter().enumerate() {
        let (key, state) = (
            format!("k{number}"),
            match number {
                1 => "paid",
                _ if number % 2 == 0 => "cancelled",
                _ => "reserved",
            },
        );
        let client = if number % 3 == 0 { &*other } else { &*app.instance };
        let again = client.buy("ada", &id, &key, 1).await;
        is_replay(&again, first);
        assert_eq!(again.body["state"], state, "{key}");
        client.buy("ada", &id, &key, 2).await.no(422, "idempotency_key_reused");
        // A flood for a missing item would be answered without the ledger.
        if number < 10 {
            client
                .buy_sku("ada", &id, &key, "nothing", 1)
                .await
                .no(422, "idempotency_key_reused");
        }
        let found = client.order("ada", &first.id()).await.ok(200);
        assert_eq!(found.body["state"], state, "{key}");
        client.order("bob", &first.id()).await.no(404, "not_found");
    }
    let listed = app.orders("ada", &id).await.ok(200);
    let ids = |answers: &[Value]| -> Vec<String> {
        let ids = answers.iter().map(|it| it["id"].as_str().unwrap().to_owned());
        ids.collect()
    };
    let all: Vec<Value> = bought.iter().map(|it| it.body.clone()).collect();
    assert_eq!(ids(listed.body["data"].as_array().unwrap()), ids(&all));

    // A cancelled order is not cancelled into anything else, and a new key is a new order.
    app.cancel("ada", &bought[0].id()).await.ok(200);
    let new = app.buy("ada", &id, "new", 3).await.ok(201);
    is_replay(&other.buy("ada", &id, "new", 3).await, &new);
    other.buy("ada", &id, "new", 1).await.no(422, "idempotency_key_reused");
    assert_eq!(app.pay("pay_2", &new.body).await, "applied");
    app.wait_for_units(&id, [500 - held - 4, held, 4]).await;
    is_replay(&app.buy("ada", &id, "new", 3).await, &new);
    // Ada's units count as before: one and three are paid.
    let left = 400 - held - 4;
    app.buy("ada", &id, "one more", left + 1)
        .await
        .no(409, "purchase_limit_reached");
    app.buy("ada", &id, "the rest", left).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn copies_of_one_request_of_a_shopper_with_orders_in_the_ledger_alone_make_one_order() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app
        .load_sale(&sale_with(&json!({"stock": 500, "per_user_limit": 400})))
        .await;
    for number in 0..150 {
        app.buy("ada", &id, &format!("k{number}"), 1).await.ok(201);
    }
    let orders = app.orders("ada", &id).await.ok(200);
    let orders = orders.body["data"].as_array().unwrap();
    for some in orders[..40].chunks(4) {
        let cancelled = some
            .iter()
            .map(|order| decided(|| app.cancel("ada", order["id"].as_str().unwrap())));
        for answer in join_all(cancelled).await {
            answer.ok(200);
        }
    }
    // While orders are being left to the ledger, as long as it takes.
    for round in 0..20 {
        let key = format!("round {round}");
        let copies = (0..6).map(|n| {
            let client = if n % 2 == 0 { &*app.instance } else { &*other };
            let (id, key) = (&id, &key);
            decided(move || client.buy("ada", id, key, 1))
        });
        let answers = join_all(copies).await;
        let ids: std::collections::BTreeSet<String> = answers.iter().map(Answer::id).collect();
        assert_eq!(ids.len(), 1, "{answers:?}");
        // The 201 may have come too late, as a 503.
        let new = answers.iter().filter(|answer| answer.status == 201).count();
        assert!(new <= 1, "{answers:?}");
        let order = ids.first().unwrap();
        decided(|| app.cancel("ada", order)).await.ok(200);
    }
    app.wait_for_units(&id, [500 - 110, 110, 0]).await;
    app.assert_balanced(&id).await;
}
