//! What operators do: preload, transitions, restock, stats, audit.

use crate::support::app::{ADMIN_KEY, TestApp, Who, rfc3339, sale, sale_with, token};
use crate::support::poll;
use chrono::{TimeDelta, Utc};
use flashsale::http::ROUTES;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn operators_need_their_key_and_shoppers_tokens_do_not_do() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    // Every route, so a new one cannot be left open; a missing path is 404 for everybody.
    let routes: Vec<(Method, String)> = ROUTES
        .iter()
        .filter(|route| route.path.starts_with("/v1/admin/") && route.path != "/v1/admin/session")
        .map(|route| (route.method.as_str().parse().unwrap(), route.path.replace("{id}", &id)))
        .collect();
    assert!(routes.len() > 25, "{routes:?}");
    let almost = &ADMIN_KEY[1..];
    let longer = format!("{ADMIN_KEY}0");
    let shopper = token("ada");
    for (method, path) in routes {
        let request = app.request(method.clone(), Who::Nobody, &path);
        app.send(request).await.no(401, "unauthenticated");
        for who in [Who::Bearer(almost), Who::Bearer(&longer), Who::Bearer(&shopper)] {
            let answer = app.send(app.request(method.clone(), who, &path)).await;
            // After ten of them.
            match answer.status {
                429 => answer.no(429, "rate_limited"),
                _ => answer.no(401, "unauthenticated"),
            };
        }
    }
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
}

#[tokio::test]
async fn preload_splits_the_stock_to_the_last_unit_and_only_once() {
    let app = TestApp::shared_api_only().await;
    let mut request = sale_with(&json!({"shards": 4}));
    let mut case = request["items"][0].clone();
    (case["sku"], case["stock"]) = (json!("case"), json!(3));
    request["items"].as_array_mut().unwrap().push(case);
    let id = app.create_sale(&request).await;
    let first = app.operate(&id, "preload").await.ok(200);
    assert_eq!(first.body["state"], "open", "starts_at has passed");
    let split = |body: &Value, sku: &str| {
        let shards = body["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 4);
        for (number, shard) in shards.iter().enumerate() {
            assert_eq!(shard["shard"], number);
        }
        let mut units: Vec<i64> = shards
            .iter()
            .map(|shard| shard["available"][sku].as_i64().unwrap())
            .collect();
        units.sort_unstable();
        units
    };
    assert_eq!(split(&first.body, "phone"), [2, 2, 3, 3]);
    assert_eq!(split(&first.body, "case"), [0, 1, 1, 1]);

    app.buy("ada", &id, "k", 2).await.ok(201);
    let again = app.operate(&id, "preload").await.ok(200);
    assert_eq!(
        split(&again.body, "phone").iter().sum::<i64>(),
        8,
        "nothing was refilled"
    );
    assert_eq!(app.units(&id).await, [8, 2, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn many_preloads_at_once_are_one() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.create_sale(&sale_with(&json!({"shards": 16, "stock": 1000}))).await;
    let calls = (0..8).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other }.clone();
        let id = id.clone();
        tokio::spawn(async move { client.preload(&id).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().ok(200);
    }
    assert_eq!(app.units(&id).await, [1000, 0, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_transition_that_makes_no_sense_is_refused_and_one_that_is_done_is_no_error() {
    let app = TestApp::shared_api_only().await;
    // How to get to a state, and the results of open, pause, resume and close; "!" is refused.
    let table = [
        ("draft", vec![], ["!", "!", "!", "!"]),
        ("scheduled", vec!["preload"], ["open", "paused", "!", "closed"]),
        ("open", vec!["preload", "open"], ["open", "paused", "!", "closed"]),
        (
            "paused",
            vec!["preload", "open", "pause"],
            ["!", "paused", "open", "closed"],
        ),
        ("closed", vec!["preload", "open", "close"], ["!", "!", "!", "closed"]),
    ];
    for (state, way, outcomes) in table {
        for (verb, outcome) in ["open", "pause", "resume", "close"].into_iter().zip(outcomes) {
            let later = rfc3339(Utc::now() + TimeDelta::minutes(30));
            let id = app.create_sale(&sale_with(&json!({"starts_at": later}))).await;
            for step in &way {
                app.operate(&id, step).await.ok(200);
            }
            assert_eq!(app.admin(&id, "").await.body["state"], state);
            let answer = app.operate(&id, verb).await;
            let expected = match outcome {
                "!" => {
                    assert_eq!(answer.no(409, "invalid_transition").body["sale_state"], state);
                    state
                }
                changed => {
                    assert_eq!(answer.ok(200).body["state"], changed, "{verb} of {state}");
                    changed
                }
            };
            assert_eq!(app.admin(&id, "").await.body["state"], expected);
            let bought = app.buy("ada", &id, "k", 1).await;
            match expected {
                "open" => _ = bought.ok(201),
                _ => assert_eq!(bought.no(409, "sale_not_open").body["sale_state"], expected),
            }
            app.assert_balanced(&id).await;
        }
    }
}

#[tokio::test]
async fn a_restock_is_applied_once_for_each_key() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let added = app.restock(&id, "more", "phone", 7).await.ok(200);
    assert_eq!(added.body["items"][0]["stock"], 17);
    assert_eq!(app.units(&id).await, [17, 0, 0]);
    app.restock(&id, "more", "phone", 7).await.ok(200);
    assert_eq!(app.units(&id).await, [17, 0, 0]);
    app.restock(&id, "more", "phone", 8)
        .await
        .no(422, "idempotency_key_reused");
    app.restock(&id, "less", "phone", -12).await.ok(200);
    app.restock(&id, "less", "phone", -12).await.ok(200);
    assert_eq!(app.units(&id).await, [5, 0, 0]);
    assert_eq!(app.stats(&id).await["items"][0]["total"], 5);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn units_are_taken_back_to_zero_and_never_below() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 8}))).await;
    app.buy("ada", &id, "k", 3).await.ok(201);
    let refused = app.restock(&id, "too many", "phone", -8).await;
    assert_eq!(
        refused.no(409, "insufficient_stock").text("detail"),
        "free units of phone: 7; to be taken back: 8"
    );
    app.wait_for_units(&id, [7, 3, 0]).await;
    app.restock(&id, "all", "phone", -7).await.ok(200);
    assert_eq!(app.units(&id).await, [0, 3, 0]);
    app.restock(&id, "one more", "phone", -1)
        .await
        .no(409, "insufficient_stock");
    app.buy("bob", &id, "k", 1).await.no(409, "sold_out");
    app.restock(&id, "again", "phone", 2).await.ok(200);
    app.buy("bob", &id, "k", 2).await.ok(201);
    assert_eq!(app.units(&id).await, [0, 5, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_restock_needs_a_key_a_loaded_sale_a_known_sku_and_a_number() {
    let app = TestApp::shared_api_only().await;
    let draft = app.create_sale(&sale()).await;
    let refused = app.restock(&draft, "k", "phone", 1).await;
    assert_eq!(refused.no(409, "invalid_transition").body["sale_state"], "draft");
    let id = app.load_sale(&sale()).await;
    app.restock(&id, "k", "nothing", 1).await.no(404, "not_found");
    for quantity in [0, i64::MAX, i64::MIN, 1_000_000_001] {
        app.restock(&id, "k", "phone", quantity)
            .await
            .no(400, "invalid_request");
    }
    let refused = app.restock(&id, "k", "phone", 999_999_999).await;
    assert_eq!(
        refused.no(409, "insufficient_stock").text("detail"),
        "phone would have more than 1000000000 units"
    );
    let request = app.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{id}/restock"));
    app.send(request.json(&json!({"sku": "phone", "quantity": 1})))
        .await
        .no(400, "idempotency_key_missing");
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_same_restock_sent_at_once_to_two_instances_is_one() {
    let app = TestApp::start().await;
    let other = app.another("all");
    let id = app.load_sale(&sale_with(&json!({"shards": 4, "stock": 100}))).await;
    for (key, quantity, left) in [("more", 50, 150), ("less", -120, 30)] {
        let calls = (0..6).map(|number| {
            let client = if number % 2 == 0 { &*app.instance } else { &*other }.clone();
            let id = id.clone();
            tokio::spawn(async move { client.restock(&id, key, "phone", quantity).await.status })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap(), 200);
        }
        app.wait_for_units(&id, [left, 0, 0]).await;
    }
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn stats_count_every_unit_and_every_order() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 2, "stock": 20}))).await;
    for user in ["ada", "bob", "cyd"] {
        app.buy(user, &id, "k", 2).await.ok(201);
    }
    let stats = app.stats(&id).await;
    assert_eq!(stats["sale_id"], *id);
    assert_eq!(stats["state"], "open");
    assert_eq!(
        stats["items"],
        json!([{"sku": "phone", "total": 20, "available": 14, "held": 6, "sold": 0, "in_transit": 0}])
    );
    assert_eq!(stats["undrained_events"], 3);
    assert_eq!(
        stats["orders"],
        json!({"reserved": 0, "paid": 0, "cancelled": 0, "expired": 0, "revoked": 0})
    );
    let shards = stats["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 2);
    let free = shards.iter().map(|shard| shard["available"]["phone"].as_i64().unwrap());
    assert_eq!(free.sum::<i64>(), 14);

    let worker = app.another("worker");
    let orders = app.orders("ada", &id).await.ok(200);
    let paid = orders.body["data"][0].clone();
    app.wait_for_order("ada", paid["id"].as_str().unwrap(), "reserved")
        .await;
    assert_eq!(app.pay("pay_1", &paid).await, "applied");
    let bobs = app.orders("bob", &id).await.ok(200).body["data"][0]["id"].clone();
    app.cancel("bob", bobs.as_str().unwrap()).await.ok(200);
    let cyds = app.orders("cyd", &id).await.ok(200).body["data"][0]["id"].clone();
    app.wait_for_order("cyd", cyds.as_str().unwrap(), "reserved").await;
    app.wait_for_units(&id, [16, 2, 2]).await;
    let stats = app.stats(&id).await;
    assert_eq!(stats["undrained_events"], 0);
    assert_eq!(
        stats["orders"],
        json!({"reserved": 1, "paid": 1, "cancelled": 1, "expired": 0, "revoked": 0})
    );
    app.assert_balanced(&id).await;
    drop(worker);
}

#[tokio::test]
async fn the_audit_lists_every_item_on_both_sides_also_before_the_drain() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    app.buy("ada", &id, "k", 4).await.ok(201);
    let audit = app.admin(&id, "/audit").await.ok(200).body;
    assert_eq!(audit["balanced"], true);
    assert_eq!(audit["differences"], json!([]));
    let item = &audit["items"][0];
    assert_eq!((&item["sku"], &item["total"]), (&json!("phone"), &json!(10)));
    assert_eq!(
        (&item["stock"]["held"], &item["stock"]["undrained"]),
        (&json!(4), &json!(4))
    );
    let by_command = app.run(&["audit", "--json", &id]).ended(0).json();
    assert_eq!(by_command["items"], audit["items"]);
}

#[tokio::test]
async fn the_audit_names_a_unit_that_is_not_where_it_should_be() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    sqlx::query("update grants set held = held + 1 where sale_id::text = $1 and shard = 1")
        .bind(&id)
        .execute(&mut app.database().await)
        .await
        .unwrap();
    let audit = app.admin(&id, "/audit").await.ok(200).body;
    assert_eq!(audit["balanced"], false);
    assert!(
        audit["differences"][0].as_str().unwrap().contains("phone, shard 1"),
        "{audit}"
    );
    let ran = app.run(&["audit", &id]).ended(1);
    assert!(ran.stdout.contains("difference: phone, shard 1"), "{ran:?}");
}

#[tokio::test]
async fn a_rebuilt_sale_has_all_its_orders_and_sells_on() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 3}))).await;
    let mut orders = Vec::new();
    for user in ["ada", "bob", "cyd"] {
        orders.push((user, app.buy(user, &id, "k", 2).await.ok(201).body));
    }
    assert_eq!(app.pay("p1", &orders[0].1).await, "applied");
    app.cancel("bob", orders[1].1["id"].as_str().unwrap()).await.ok(200);
    app.wait_for_units(&id, [6, 2, 2]).await;
    for _ in 0..2 {
        let rebuilt = app.operate(&id, "rebuild").await.ok(200).body;
        let expected = json!({"sale_id": id, "shards": 3, "orders": 3, "lost_orders": 0});
        assert_eq!(rebuilt, expected);
    }
    let stats = app.stats(&id).await;
    assert_eq!(stats["alerts"]["lost_orders"], 0, "{stats}");
    for (user, state) in [("ada", "paid"), ("bob", "cancelled"), ("cyd", "reserved")] {
        let again = app.buy(user, &id, "k", 2).await.ok(200);
        let first = orders.iter().find(|(of, _)| *of == user).unwrap();
        assert_eq!(
            (again.id(), again.text("state")),
            (first.1["id"].as_str().unwrap().to_owned(), state)
        );
        app.buy(user, &id, "k", 1).await.no(422, "idempotency_key_reused");
    }
    assert_eq!(app.units(&id).await, [6, 2, 2]);
    for user in ["ada", "cyd"] {
        app.buy(user, &id, "more", 4).await.no(409, "purchase_limit_reached");
    }
    app.buy("dan", &id, "k", 5).await.ok(201);
    app.buy("eve", &id, "k", 1).await.ok(201);
    app.buy("fay", &id, "k", 1).await.no(409, "sold_out");
    app.wait_for_units(&id, [0, 8, 2]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn only_a_sale_that_is_in_redis_can_be_rebuilt() {
    let app = TestApp::shared_api_only().await;
    let draft = app.create_sale(&sale()).await;
    let refused = app.operate(&draft, "rebuild").await.no(409, "invalid_transition");
    assert!(refused.text("detail").contains("draft"), "{refused:?}");
    let stranger = uuid::Uuid::new_v4().to_string();
    app.operate(&stranger, "rebuild").await.no(404, "not_found");
    app.operate("none", "rebuild").await.no(404, "not_found");
    // A sale keeps its state.
    let id = app.load_sale(&sale()).await;
    app.operate(&id, "pause").await.ok(200);
    app.operate(&id, "rebuild").await.ok(200);
    app.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
    app.operate(&id, "resume").await.ok(200);
    app.buy("ada", &id, "k", 1).await.ok(201);
    app.operate(&id, "close").await.ok(200);
    app.operate(&id, "rebuild").await.ok(200);
    let closed = app.buy("bob", &id, "k", 1).await.no(409, "sale_not_open");
    assert_eq!(closed.text("sale_state"), "closed");
}

#[tokio::test]
async fn what_an_operator_says_reaches_shoppers_at_every_instance_until_it_is_taken_away() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}");
    let tag = app.admin(&id, "").await.ok(200).header("etag").map(str::to_owned);
    let say = |body: Value| {
        let request = app.request(Method::PUT, Who::Operator, &format!("{path}/message"));
        app.send(request.json(&body))
    };
    let shown = async |message: Option<&Value>| {
        poll::within(poll::PATIENCE, "both instances show the message", async || {
            let mut answers = Vec::new();
            for instance in [&*app, &other] {
                answers.push(instance.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200));
            }
            answers.iter().all(|answer| answer.body.get("message") == message)
        })
        .await;
    };

    let message = json!({"en": "More at 18:00.", "zh": "18:00 补货。"});
    assert_eq!(say(message.clone()).await.ok(200).body["message"], message);
    shown(Some(&message)).await;
    let only = json!({"en": "Ten more minutes."});
    say(json!({"en": " Ten more minutes. ", "zh": ""})).await.ok(200);
    shown(Some(&only)).await;
    for (wrong, named) in [
        (json!({"en": "two\nlines"}), "en"),
        (json!({"zh": "等".repeat(281)}), "zh"),
        (json!({"xx": "Hallo"}), "xx"),
    ] {
        let refused = say(wrong).await.no(400, "invalid_request");
        assert!(refused.text("detail").contains(named), "{refused:?}");
    }
    let read = app.admin(&id, "").await.ok(200);
    assert_eq!(
        (&read.body["message"], read.header("etag").map(str::to_owned)),
        (&only, tag)
    );
    say(json!({})).await.ok(200);
    shown(None).await;
}
