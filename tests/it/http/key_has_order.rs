//! `key_has_order`: a refusal of a purchase has `false` if its key certainly has no order, and otherwise no such member.

use crate::guides::clients::guide_of_codes;
use crate::support::app::{Answer, Client, Instance, Who, environment, sale_with};
use crate::support::document::operations;
use crate::support::poll;
use crate::support::servers::{database, fresh_redis};
use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Each code, and whether it was certain.
#[derive(Default)]
struct Seen(BTreeMap<String, BTreeSet<bool>>);

impl Seen {
    /// Records a refusal, and asserts whether it is certain that the key has no order.
    #[track_caller]
    fn note(&mut self, answer: Answer, status: u16, code: &str, is_certain: bool) {
        let answer = answer.no(status, code);
        let said = answer.body.get("key_has_order");
        assert_eq!(said, is_certain.then_some(&json!(false)), "{code}: {}", answer.body);
        self.0.entry(code.to_owned()).or_default().insert(is_certain);
    }
}

fn phone(request: RequestBuilder) -> RequestBuilder {
    request.json(&json!({"sku": "phone", "quantity": 1}))
}

/// A sale that sells, with some changes; its test closes it.
async fn sells(app: &Client, changes: &Value) -> String {
    app.load_sale(&sale_with(changes)).await
}

/// Buys until it is refused with this code.
async fn until(app: &Client, sale: &str, code: &str) -> Answer {
    poll::answer(code, || async {
        // At once: one by one, a busy machine would not ask faster than the limits fill up.
        let answers = join_all((0..30).map(|_| app.buy("eve", sale, "k", 1))).await;
        answers.into_iter().find(|answer| answer.code() == code)
    })
    .await
}

async fn set_guards(app: &Client, changes: &Value) {
    let request = app.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
    app.send(request.json(changes)).await.ok(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_of_a_purchase_says_whether_it_is_certain_that_its_key_has_no_order() {
    let redis = fresh_redis();
    let app = Instance::start(&environment(&redis.server.url(), &database().await), "all").may_log_errors();
    let mut seen = Seen::default();

    // An unreadable request names no key to check.
    let id = sells(&app, &json!({})).await;
    let path = format!("/v1/sales/{id}/orders");
    let nobody = app.request(Method::POST, Who::Nobody, &path);
    seen.note(app.send(phone(nobody)).await, 401, "unauthenticated", false);
    let keyless = app.request(Method::POST, Who::Shopper("ada"), &path);
    seen.note(app.send(phone(keyless)).await, 400, "idempotency_key_missing", false);
    let broken = app.buying("ada", &id, "k").json(&json!({"sku": "phone"}));
    seen.note(app.send(broken).await, 400, "invalid_request", false);
    let large = app.buying("ada", &id, "k").body(vec![b' '; 20_000]);
    seen.note(app.send(large).await, 413, "payload_too_large", false);
    let nowhere = "01999999-0000-7000-8000-000000000000";
    seen.note(app.buy("ada", nowhere, "k", 1).await, 404, "not_found", false);

    // The key is checked first.
    let unknown = app.buy_sku("ada", &id, "k", "spoon", 1).await;
    seen.note(unknown, 404, "not_found", true);
    app.buy("ada", &id, "k", 5).await.ok(201);
    seen.note(app.buy("ada", &id, "k", 4).await, 422, "idempotency_key_reused", false);
    let reused = app.buy_sku("ada", &id, "k", "spoon", 1).await;
    seen.note(reused, 422, "idempotency_key_reused", false);
    let above = app.buy("ada", &id, "more", 1).await;
    seen.note(above, 409, "purchase_limit_reached", true);
    app.buy("bob", &id, "k", 5).await.ok(201);
    seen.note(app.buy("cyd", &id, "k", 1).await, 409, "sold_out", true);
    let ban = app.request(Method::POST, Who::Operator, "/v1/admin/bans");
    let ban = ban.json(&json!({"user": "dan", "reason": "a test"}));
    app.send(ban).await.ok(201);
    seen.note(app.buy("dan", &id, "k", 1).await, 403, "banned", true);
    app.operate(&id, "pause").await.ok(200);
    seen.note(app.buy("cyd", &id, "k", 1).await, 409, "sale_not_open", true);
    app.operate(&id, "close").await.ok(200);
    seen.note(app.buy("cyd", &id, "k", 1).await, 409, "sale_not_open", true);
    let draft = app.create_sale(&sale_with(&json!({}))).await;
    seen.note(app.buy("ada", &draft, "k", 1).await, 409, "sale_not_open", true);

    // Guards of a sale.
    let once = json!({"purchase_rate": {"limit": 1, "window_ms": 60_000}});
    let limited = sells(&app, &once).await;
    app.buy("ada", &limited, "k", 1).await.ok(201);
    let refused = app.buy("ada", &limited, "next", 1).await;
    seen.note(refused, 429, "rate_limited", true);
    let held = sells(
        &app,
        &json!({"guards": {"holds_max": 1, "unpaid_cooldown_seconds": 60}}),
    )
    .await;
    let first = app.buy("ada", &held, "k", 1).await.ok(201);
    let refused = app.buy("ada", &held, "next", 1).await;
    seen.note(refused, 409, "too_many_holds", true);
    app.cancel("ada", &first.id()).await.ok(200);
    // The first that is cancelled at once is pardoned.
    let second = app.buy("ada", &held, "second", 1).await.ok(201);
    app.cancel("ada", &second.id()).await.ok(200);
    let refused = app.buy("ada", &held, "third", 1).await;
    seen.note(refused, 429, "cooling_down", true);
    let roomy = sells(&app, &json!({"guards": {"waiting_room": true}})).await;
    seen.note(app.buy("ada", &roomy, "k", 1).await, 403, "admission_required", true);
    let tokens = sells(&app, &json!({"guards": {"purchase_token": true}})).await;
    let refused = app.buy("ada", &tokens, "k", 1).await;
    seen.note(refused, 403, "purchase_token_required", true);
    // An account may not have every key checked.
    let refused = until(&app, &tokens, "rate_limited").await;
    seen.note(refused, 429, "rate_limited", false);

    // Limits before all of these, which check no key.
    set_guards(&app, &json!({"address_rate": 1})).await;
    let refused = until(&app, &limited, "rate_limited").await;
    seen.note(refused, 429, "rate_limited", false);
    set_guards(&app, &json!({"address_rate": 0, "instance_rate": 1})).await;
    let refused = until(&app, &limited, "overloaded").await;
    seen.note(refused, 503, "overloaded", false);
    set_guards(&app, &json!({"instance_rate": 0})).await;
    redis.server.stop();
    let refused = until(&app, &limited, "unavailable").await;
    seen.note(refused, 503, "unavailable", false);

    let (_, _, buy) = operations()
        .find(|(_, _, operation)| operation["operationId"] == "buy")
        .unwrap();
    let mut documented = BTreeSet::new();
    for answer in buy["responses"].as_object().unwrap().values() {
        let codes = answer.pointer("/content/application~1problem+json/schema/properties/code/enum");
        let codes = codes.into_iter().flat_map(|it| it.as_array().unwrap());
        documented.extend(codes.map(|code| code.as_str().unwrap().to_owned()));
    }
    assert_eq!(seen.0.keys().cloned().collect::<BTreeSet<_>>(), documented);
    let guide = guide_of_codes();
    for (code, certain) in seen.0 {
        let says = match (certain.contains(&true), certain.contains(&false)) {
            (true, true) => "some",
            (true, false) => "yes",
            _ => "no",
        };
        assert_eq!(guide[&code], says, "docs/api.md: {code}");
    }
}
