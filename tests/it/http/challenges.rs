//! Challenges: a sale may give tokens only to shoppers who have solved one, once each.

use crate::support::app::{Answer, Client, TestApp, Who, sale, sale_with};
use crate::support::servers;
use altcha::{SolveChallengeOptions, solve_challenge};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{SaleId, UserId};
use flashsale::domain::shopper::challenge::{Challenge, LASTS};
use flashsale::flow::App;
use flashsale::guard::challenge::{ChallengeDrawer, Posing, pose};
use flashsale::ledger::Ledger;
use flashsale::stock::Stock;
use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Instant;
use uuid::Uuid;

const REQUIRED: (u16, &str) = (403, "challenge_required");
const FAILED: (u16, &str) = (403, "challenge_failed");

fn guarded(kind: &str) -> Value {
    sale_with(&json!({"guards": {"purchase_token": true, "challenge": kind, "proof_cost": 10}}))
}

async fn ask(client: &Client, user: &str, sale: &str) -> Answer {
    let request = client.request(Method::POST, Who::Shopper(user), "/v1/challenges");
    client.send(request.json(&json!({"sale_id": sale}))).await
}

async fn token(client: &Client, user: &str, sale: &str, key: &str, challenge: &Value) -> Answer {
    let request = client.request(Method::POST, Who::Shopper(user), &format!("/v1/sales/{sale}/tokens"));
    let body = json!({"idempotency_key": key, "challenge": challenge});
    client.send(request.json(&body)).await
}

async fn buy(client: &Client, user: &str, sale: &str, key: &str, token: &str) -> Answer {
    let request = client.buying(user, sale, key);
    let request = request.header("X-Purchase-Token", token);
    client.send(request.json(&json!({"sku": "phone", "quantity": 1}))).await
}

/// The widget's submission.
fn solved(challenge: &Answer) -> String {
    let challenge: altcha::Challenge = serde_json::from_value(challenge.body["altcha"].clone()).unwrap();
    let solution = solve_challenge(SolveChallengeOptions::new(&challenge))
        .unwrap()
        .unwrap();
    STANDARD.encode(json!({"challenge": challenge, "solution": solution}).to_string())
}

/// A challenge with a known answer, stored as an instance stores its own.
async fn known(user: &str, sale: &str, answer: &str) -> Uuid {
    let (id, user) = (Uuid::new_v4(), user.parse().unwrap());
    let stock = Stock::connect(&servers::redis()).await.unwrap();
    let challenge = Challenge {
        id,
        sale: sale.parse().unwrap(),
        user: &user,
    };
    stock.pose_challenge(&challenge, answer, LASTS).await.unwrap();
    id
}

fn lasts(answer: &Answer) -> i64 {
    let expires_at: DateTime<Utc> = answer.text("expires_at").parse().unwrap();
    (expires_at - Utc::now()).num_seconds()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_of_work_buys_once_and_its_retries_find_the_same() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&guarded("proof_of_work")).await;
    token(&app, "ada", &id, "k", &Value::Null)
        .await
        .no(REQUIRED.0, REQUIRED.1);
    let posed = ask(&app, "ada", &id).await.ok(201);
    assert_eq!(posed.text("kind"), "proof_of_work");
    assert!((270..=300).contains(&lasts(&posed)), "{posed:?}");
    let parameters = &posed.body["altcha"]["parameters"];
    assert_eq!(
        (&parameters["algorithm"], &parameters["cost"]),
        (&json!("SHA-256"), &json!(10))
    );
    let answer = json!({"id": posed.id(), "answer": solved(&posed)});
    for client in [&*other, &*app, &*other] {
        let handed = token(client, "ada", &id, "k", &answer).await.ok(201);
        let bought = buy(client, "ada", &id, "k", handed.text("token")).await;
        assert!([200, 201].contains(&bought.status), "{bought:?}");
    }
    for (user, key) in [("ada", "l"), ("bob", "k")] {
        token(&app, user, &id, key, &answer).await.no(REQUIRED.0, REQUIRED.1);
    }
    // A replay of an order needs neither.
    let again = app.buy("ada", &id, "k", 1).await.ok(200);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    app.assert_balanced(&id).await;
}

/// As a shopper asks who cannot see pictures.
async fn ask_unseen(client: &Client, user: &str, sale: &str) -> Answer {
    let request = client.request(Method::POST, Who::Shopper(user), "/v1/challenges");
    let body = json!({"sale_id": sale, "without_picture": true});
    client.send(request.json(&body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_is_taken_in_place_of_a_picture_unless_the_sale_allows_none() {
    let app = TestApp::shared_api_only().await;
    // Challenges are counted by account, in a Redis that tests share.
    let [ada, bob, cyd] = ["ada", "bob", "cyd"].map(|name| format!("{name}-{}", Uuid::new_v4()));
    let guards = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 20});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let public = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
    assert_eq!(public.body["guards"]["captcha_proof"], true);
    assert_eq!(
        ask(&app, &ada, &id).await.ok(201).text("kind"),
        "captcha",
        "a picture unless asked otherwise"
    );
    let posed = ask_unseen(&app, &ada, &id).await.ok(201);
    assert_eq!(posed.body["altcha"]["parameters"]["cost"], 20);
    let answer = json!({"id": posed.id(), "answer": solved(&posed)});
    let handed = token(&app, &ada, &id, "k", &answer).await.ok(201);
    buy(&app, &ada, &id, "k", handed.text("token")).await.ok(201);
    // A proof answers no picture, and captcha text no proof; captcha text still answers a picture.
    let other = ask_unseen(&app, &bob, &id).await.ok(201);
    let picture = known(&bob, &id, "AB3XY").await;
    for (id_of, wrong) in [
        (json!(picture), solved(&other)),
        (json!(other.id()), "ab3xy".to_owned()),
    ] {
        let answer = json!({"id": id_of, "answer": wrong});
        token(&app, &bob, &id, "k", &answer).await.no(FAILED.0, FAILED.1);
    }
    let picture = known(&bob, &id, "AB3XY").await;
    let answer = json!({"id": picture, "answer": "ab3xy"});
    token(&app, &bob, &id, "k", &answer).await.ok(201);
    // Nobody has to switch it on.
    let usual = app.load_sale(&guarded("captcha")).await;
    let public = app.get(Who::Nobody, &format!("/v1/sales/{usual}")).await.ok(200);
    assert_eq!(public.body["guards"]["captcha_proof"], true);
    let posed = ask_unseen(&app, &cyd, &usual).await.ok(201);
    assert_eq!(posed.body["altcha"]["parameters"]["cost"], 4000);
    // A sale that allows none shows pictures only.
    let guards = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 0});
    let strict = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let public = app.get(Who::Nobody, &format!("/v1/sales/{strict}")).await.ok(200);
    assert_eq!(public.body["guards"]["captcha_proof"], false);
    ask_unseen(&app, &cyd, &strict).await.no(404, "not_found");
    let picture = known(&cyd, &strict, "AB3XY").await;
    let answer = json!({"id": picture, "answer": solved(&other)});
    token(&app, &cyd, &strict, "k", &answer).await.no(FAILED.0, FAILED.1);
    let proofs = app.load_sale(&guarded("proof_of_work")).await;
    assert_eq!(
        ask_unseen(&app, &cyd, &proofs).await.ok(201).text("kind"),
        "proof_of_work"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captcha_is_an_image_and_its_letters_have_no_case() {
    let app = TestApp::shared_api_only().await;
    let (id, next) = (
        app.load_sale(&guarded("captcha")).await,
        app.load_sale(&guarded("captcha")).await,
    );
    let posed = ask(&app, "ada", &id).await.ok(201);
    assert_eq!(posed.text("kind"), "captcha");
    assert!((270..=300).contains(&lasts(&posed)), "{posed:?}");
    let image = posed.text("image").strip_prefix("data:image/png;base64,").unwrap();
    assert!(STANDARD.decode(image).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    // Nobody can read it here, so this answer is wrong, and the challenge is gone.
    let guess = json!({"id": posed.id(), "answer": "00000"});
    token(&app, "ada", &id, "k", &guess).await.no(FAILED.0, FAILED.1);
    token(&app, "ada", &id, "k", &guess).await.no(REQUIRED.0, REQUIRED.1);

    let right = json!({"id": known("ada", &id, "AB3XY").await, "answer": " ab3Xy"});
    token(&app, "bob", &id, "k", &right).await.no(REQUIRED.0, REQUIRED.1);
    token(&app, "ada", &next, "k", &right).await.no(REQUIRED.0, REQUIRED.1);
    let handed = token(&app, "ada", &id, "k", &right).await.ok(201);
    buy(&app, "ada", &id, "k", handed.text("token")).await.ok(201);
    let retried = json!({"id": right["id"], "answer": "AB3XY"});
    token(&app, "ada", &id, "k", &retried).await.ok(201);
    token(&app, "ada", &id, "l", &retried).await.no(REQUIRED.0, REQUIRED.1);
    // A token for another request is not valid for this one.
    buy(&app, "ada", &id, "l", handed.text("token"))
        .await
        .no(403, "purchase_token_required");
    // Refusals by guards are published a second later, without those of other sales.
    crate::support::poll::answer("four were refused", || async {
        let stopped = app.stats(&id).await["stopped"]["challenge"].as_u64();
        (stopped == Some(4)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_gets_at_most_five_challenges_a_minute() {
    let app = TestApp::start_api_only().await;
    let (id, next) = (
        app.load_sale(&guarded("captcha")).await,
        app.load_sale(&guarded("proof_of_work")).await,
    );
    // Other tests of this Redis have shoppers of their own.
    let (ada, bob) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
    let sales = [&id, &next, &id, &next, &id];
    let began = Instant::now();
    for answer in join_all(sales.map(|sale| ask(&app, &ada, sale))).await {
        answer.ok(201);
    }
    let refused = ask(&app, &ada, &next).await.no(429, "rate_limited");
    let least = 59_u64.saturating_sub(began.elapsed().as_secs());
    assert!((least..=61).contains(&refused.retry_after()), "{refused:?}");
    ask(&app, &bob, &id).await.ok(201);
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    assert!(
        metrics.contains("flashsale_guard_refusals_total{layer=\"challenge\"} 1\n"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_over_its_limit_takes_no_place_and_one_that_got_none_has_used_up_nothing() {
    let app = TestApp::start_api_only().await;
    let id: SaleId = app.load_sale(&guarded("captcha")).await.parse().unwrap();
    let stock = Stock::connect(&app.environment["FLASHSALE_REDIS_URL"]).await.unwrap();
    let ledger = Ledger::connect(&app.environment["FLASHSALE_DATABASE_URL"], ConnectionPools::default())
        .await
        .unwrap();
    let world = App::new(stock, ledger);
    world.sales.learn().await.unwrap();
    let user: UserId = Uuid::new_v4().to_string().parse().unwrap();
    // Others take all places.
    let (full, free) = (ChallengeDrawer::new(0), ChallengeDrawer::new(1));
    for _ in 0..6 {
        let answer = pose(&world, &full, id, &user, false).await;
        assert!(matches!(answer, Err(Fault::Overloaded(_))), "{answer:?}");
    }
    for _ in 0..5 {
        let answer = pose(&world, &free, id, &user, false).await.unwrap();
        assert!(matches!(answer, Posing::Posed { .. }), "{answer:?}");
    }
    let answer = pose(&world, &full, id, &user, false).await.unwrap();
    assert!(matches!(answer, Posing::Limited { .. }), "{answer:?}");
    // After that, the process refuses further requests without Redis.
    let most = async || {
        for n in 0..100 {
            let Posing::Limited { wait_ms } = pose(&world, &full, id, &user, false).await.unwrap() else {
                panic!("it is over its limit");
            };
            if wait_ms <= 6000 {
                return n;
            }
        }
        100
    };
    assert!(most().await < 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn challenges_are_posed_to_shoppers_for_sales_that_ask_for_one() {
    let app = TestApp::shared_api_only().await;
    let (without, token_only) = (
        app.load_sale(&sale()).await,
        app.load_sale(&sale_with(&json!({"guards": {"purchase_token": true}})))
            .await,
    );
    for id in [&without, &token_only] {
        let refused = ask(&app, "ada", id).await.no(404, "not_found");
        assert!(refused.text("detail").contains("asks for none"), "{refused:?}");
        // A challenge is neither needed there, nor does one do harm.
        let some = json!({"id": "x", "answer": "y"});
        for challenge in [&Value::Null, &some] {
            token(&app, "ada", id, "k", challenge).await.ok(201);
        }
    }
    let unknown = ask(&app, "ada", "01a2004e-9e16-74fe-b2c9-db6e9ef58fa3").await;
    assert!(unknown.no(404, "not_found").text("detail").contains("such sale"));
    let request = app.request(Method::POST, Who::Nobody, "/v1/challenges");
    app.send(request.json(&json!({"sale_id": without})))
        .await
        .no(401, "unauthenticated");
    app.get(Who::Shopper("ada"), "/v1/challenges")
        .await
        .no(405, "method_not_allowed");
    for wrong in [
        json!({}),
        json!({"sale_id": 1}),
        json!({"sale_id": "x"}),
        json!({"sale_id": without, "more": 1}),
    ] {
        let request = app.request(Method::POST, Who::Shopper("ada"), "/v1/challenges");
        app.send(request.json(&wrong)).await.no(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_malformed_challenge_is_refused_and_never_a_fault() {
    let app = TestApp::shared_api_only().await;
    let (image, proof) = (
        app.load_sale(&guarded("captcha")).await,
        app.load_sale(&guarded("proof_of_work")).await,
    );
    let texts = prop_oneof![
        any::<String>(),
        "[A-Za-z0-9]{0,8}",
        // Payloads with arbitrary parts.
        ("\\PC{0,20}", any::<u32>()).prop_map(|(key, counter)| {
            STANDARD.encode(json!({"challenge": key, "solution": {"counter": counter, "derivedKey": key}}).to_string())
        }),
        Just(STANDARD.encode("[".repeat(8000))),
    ];
    let ids = prop_oneof![
        any::<String>(),
        any::<u128>().prop_map(|id| Uuid::from_u128(id).to_string())
    ];
    let mut runner = TestRunner::default();
    for round in 0..60 {
        for sale in [&image, &proof] {
            let mut answer = json!({
                "id": ids.new_tree(&mut runner).unwrap().current(),
                "answer": texts.new_tree(&mut runner).unwrap().current(),
            });
            if round % 2 == 0 {
                answer["id"] = json!(known("ada", sale, "no answer of these").await);
            }
            let refused = token(&app, "ada", sale, "k", &answer).await;
            let code = if round % 2 == 0 { FAILED.1 } else { REQUIRED.1 };
            assert_eq!((refused.status, refused.code()), (403, code), "{answer}: {refused:?}");
        }
    }
    for wrong in [
        json!("x"),
        json!({}),
        json!({"id": "x"}),
        json!({"id": 1, "answer": "x"}),
        json!([]),
    ] {
        token(&app, "ada", &image, "k", &wrong).await.no(400, "invalid_request");
    }
}
