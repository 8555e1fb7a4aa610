//! Purchase tokens: a sale may ask for one, and each is good for one request of one shopper.

use crate::support::app::{Answer, Client, JWT_SECRET, TestApp, Who, sale, sale_with};
use chrono::{DateTime, Utc};
use flashsale::domain::sale::guards::SaleGuards;
use flashsale::domain::shopper::purchase_token::{Bound, LASTS_SECONDS};
use flashsale::domain::shopper::token_keys::TokenKeys;
use reqwest::Method;
use serde_json::{Value, json};

const REQUIRED: (u16, &str) = (403, "purchase_token_required");

fn guarded() -> Value {
    sale_with(&json!({"guards": {"purchase_token": true}}))
}

async fn token_for(client: &Client, user: &str, sale: &str, key: &str) -> String {
    let request = client.request(Method::POST, Who::Shopper(user), &format!("/v1/sales/{sale}/tokens"));
    let answer = client
        .send(request.json(&json!({"idempotency_key": key})))
        .await
        .ok(201);
    let expires_at: DateTime<Utc> = answer.text("expires_at").parse().unwrap();
    let lasts = expires_at - Utc::now();
    assert!(
        (LASTS_SECONDS - 30..=LASTS_SECONDS).contains(&lasts.num_seconds()),
        "{lasts}"
    );
    answer.text("token").to_owned()
}

async fn buy(client: &Client, user: &str, sale: &str, key: &str, token: &str) -> Answer {
    let request = client
        .buying(user, sale, key)
        .json(&json!({"sku": "phone", "quantity": 1}));
    client.send(request.header("X-Purchase-Token", token)).await
}

/// A token as an instance with this secret would have signed it, good for so many seconds.
fn signed(secret: &str, sale: &str, user: &str, key: &str, seconds: i64) -> String {
    let (user, key) = (user.parse().unwrap(), key.parse().unwrap());
    let bound = Bound {
        sale: sale.parse().unwrap(),
        user: &user,
        key: &key,
    };
    TokenKeys::derived(secret.as_bytes()).sign(&bound, Utc::now().timestamp() + seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_asks_for_tokens_sells_for_the_right_one_and_for_no_other() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let (id, next) = (app.load_sale(&guarded()).await, app.load_sale(&guarded()).await);
    let mut expected = json!(SaleGuards::default());
    expected["purchase_token"] = true.into();
    assert_eq!(app.admin(&id, "").await.ok(200).body["guards"], expected);
    app.buy("ada", &id, "k", 1).await.no(REQUIRED.0, REQUIRED.1);
    let token = token_for(&app, "ada", &id, "k").await;
    let wrong = [
        ("none", String::new()),
        ("no token", "token".to_owned()),
        ("another shopper's", token_for(&app, "bob", &id, "k").await),
        ("another sale's", token_for(&app, "ada", &next, "k").await),
        ("another request's", token_for(&app, "ada", &id, "l").await),
        (
            "another secret's",
            signed("another secret that nobody here knows", &id, "ada", "k", 60),
        ),
        ("expired", signed(JWT_SECRET, &id, "ada", "k", -1)),
        ("too long", signed(JWT_SECRET, &id, "ada", "k", LASTS_SECONDS + 60)),
        ("cut off", token[..token.len() - 1].to_owned()),
        ("of another version", token.replacen("v1", "v2", 1)),
    ];
    let mut words = Vec::new();
    for (name, token) in wrong {
        let refused = buy(&other, "ada", &id, "k", &token).await.no(REQUIRED.0, REQUIRED.1);
        words.push((name, refused.body));
    }
    // No answer says what was wrong with it.
    assert!(words.iter().all(|(_, body)| *body == words[0].1), "{words:?}");
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    let order = buy(&other, "ada", &id, "k", &token).await.ok(201);
    // A retry is accepted again; a thief of the token can only repeat the request.
    for client in [&*app, &*other] {
        let again = buy(client, "ada", &id, "k", &token).await.ok(200);
        assert_eq!(again.id(), order.id());
    }
    buy(&app, "bob", &id, "k", &token).await.no(REQUIRED.0, REQUIRED.1);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_has_its_order_needs_no_token_any_more() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&guarded()).await;
    let token = token_for(&app, "ada", &id, "k").await;
    let order = buy(&app, "ada", &id, "k", &token).await.ok(201);
    let expired = signed(JWT_SECRET, &id, "ada", "k", -1);
    for token in [expired.as_str(), ""] {
        let again = buy(&app, "ada", &id, "k", token).await.ok(200);
        assert_eq!(
            (again.id(), again.header("idempotency-replayed")),
            (order.id(), Some("true"))
        );
    }
    app.buy("ada", &id, "k", 2).await.no(422, "idempotency_key_reused");
    app.wait_for_order("ada", &order.id(), "reserved").await;
    app.cancel("ada", &order.id()).await.ok(200);
    assert_eq!(app.buy("ada", &id, "k", 1).await.ok(200).body["state"], "cancelled");
    app.buy("ada", &id, "new", 1).await.no(REQUIRED.0, REQUIRED.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_handed_out_to_shoppers_for_sales_that_there_are() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ask = async |who: Who<'_>, sale: &str, body: &Value| {
        let request = app.request(Method::POST, who, &format!("/v1/sales/{sale}/tokens"));
        app.send(request.json(body)).await
    };
    let body = json!({"idempotency_key": "k"});
    ask(Who::Shopper("ada"), &id, &body).await.ok(201);
    ask(Who::Nobody, &id, &body).await.no(401, "unauthenticated");
    ask(Who::Shopper("ada"), "01a2004e-9e16-74fe-b2c9-db6e9ef58fa3", &body)
        .await
        .no(404, "not_found");
    for wrong in [
        json!({}),
        json!({"idempotency_key": ""}),
        json!({"idempotency_key": "k", "more": 1}),
        json!({"idempotency_key": "é"}),
    ] {
        ask(Who::Shopper("ada"), &id, &wrong).await.no(400, "invalid_request");
    }
    // A sale that asks for none sells with any.
    buy(&app, "ada", &id, "k", "whatever").await.ok(201);
    app.try_create_sale(&sale_with(&json!({"guards": {"token": true}})))
        .await
        .no(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_tokens_are_changed_one_instance_after_the_other() {
    let (old, new) = (
        "a:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
        "b:MTEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    );
    let app = TestApp::with("all", &[("FLASHSALE_TOKEN_KEYS", old)]).await;
    let id = app.load_sale(&guarded()).await;
    let token = token_for(&app, "ada", &id, "k").await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_TOKEN_KEYS".to_owned(), format!("{new},{old}"));
    let second = crate::support::app::Instance::start(&environment, "api");
    buy(&second, "ada", &id, "k", &token).await.ok(201);
    let token = token_for(&second, "bob", &id, "k").await;
    assert!(token.starts_with("v1.b."), "{token}");
    buy(&app, "bob", &id, "k", &token).await.no(REQUIRED.0, REQUIRED.1);
    buy(&second, "bob", &id, "k", &token).await.ok(201);
}
