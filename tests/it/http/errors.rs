//! The table of codes, and what every answer carries. That an error is `application/problem+json` with its members
//! and `Retry-After` where it belongs is checked by the client on each answer of every test.

use crate::support::app::{self, ADMIN_KEY, Client, Instance, JWT_SECRET, TestApp, Who, environment, sale, sale_with};
use crate::support::crowd::World;
use crate::support::{poll, servers};
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};
use actix_web::{App as HttpApp, HttpResponse, HttpServer};
use flashsale::config::Secret;
use flashsale::domain::guard::GuardSettings;
use flashsale::domain::token_keys::TokenKeys;
use flashsale::guard::challenge::Easel;
use flashsale::guard::gate::Gate;
use flashsale::guard::sign_ins::SignIns;
use flashsale::http::extract::Tokens;
use flashsale::http::live::Live;
use flashsale::http::problem::Problem;
use flashsale::http::request_id::request_id;
use flashsale::http::survive::survive;
use flashsale::http::{Api, Part, Shared, Weather, routes};
use reqwest::Method;
use serde_json::json;
use std::net::TcpListener;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_answered_and_the_next_request_is_served() {
    let world = World::new().await;
    let shared = Arc::new(Shared {
        metrics: Arc::default(),
        tokens: Tokens::new(JWT_SECRET.as_bytes()),
        token_keys: TokenKeys::derived(JWT_SECRET.as_bytes()),
        admin_key: Secret::new(ADMIN_KEY.to_owned()),
        webhook_secret: Secret::new(app::webhook_key()),
        easel: Easel::default(),
        gate: Arc::new(Gate::new(GuardSettings::default())),
        guards: GuardSettings::default(),
        sale_guards: flashsale::domain::sale_guards::SaleGuards::default(),
        trusted_proxies: Vec::new(),
        followers: std::sync::Arc::default(),
        sign_ins: SignIns::default(),
        live: Live::default(),
        development: None,
        ending: tokio_util::sync::CancellationToken::new(),
        weather: Weather::default(),
    });
    let (app, listener) = (Arc::clone(&world.app), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = HttpServer::new(move || {
        let api = Api {
            app: Arc::clone(&app),
            shared: Arc::clone(&shared),
        };
        let in_handler = web::get().to(async || -> HttpResponse { panic!("in a handler") });
        let in_flow = web::get().to(async |api: Data<Api>| -> Result<HttpResponse, Problem> {
            let ended: Result<(), Problem> = api.for_shopper(|_| async { panic!("in a flow") }).await;
            ended.map(|()| HttpResponse::Ok().finish())
        });
        HttpApp::new()
            .app_data(Data::new(api))
            .route("/handler", in_handler)
            .route("/flow", in_flow)
            .configure(routes(false, Part::All))
            .wrap(from_fn(survive))
            .wrap(from_fn(request_id))
    });
    let server = server.workers(1).disable_signals().listen(listener).unwrap().run();
    let (handle, serving) = (server.handle(), tokio::spawn(server));
    let client = Client::at(&url);
    for path in ["/handler", "/flow", "/handler"] {
        client.get(Who::Nobody, path).await.no(503, "unavailable");
        client.get(Who::Nobody, "/readyz").await.ok(200);
    }
    handle.stop(true).await;
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_request_id_that_is_given_comes_back_and_one_that_is_not_is_made() {
    let app = TestApp::start_api_only().await;
    let longest = "r".repeat(128);
    for (path, given) in [
        ("/healthz", "a-1"),
        ("/v1/nowhere", longest.as_str()),
        ("/v1/admin/sales", "x"),
    ] {
        let request = app
            .request(Method::GET, Who::Nobody, path)
            .header("X-Request-Id", given);
        assert_eq!(app.send(request).await.header("x-request-id"), Some(given), "{path}");
    }
    let longer = "r".repeat(129);
    for senseless in ["", "two words", longer.as_str()] {
        let request = app
            .request(Method::GET, Who::Nobody, "/healthz")
            .header("X-Request-Id", senseless);
        let made = app.send(request).await.header("x-request-id").unwrap().to_owned();
        assert!(uuid::Uuid::parse_str(&made).is_ok(), "{made}");
    }
    let first = app.get(Who::Nobody, "/healthz").await;
    let second = app.get(Who::Nobody, "/healthz").await;
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

#[tokio::test]
async fn a_problem_says_what_is_wrong_for_people_and_for_programs() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let request = app.buying("ada", &id, "k").json(&json!({"sku": "phone"}));
    let missing = app.send(request).await.no(400, "invalid_request");
    assert!(missing.text("detail").contains("quantity"), "{missing:?}");
    let request = app.request(Method::POST, Who::Shopper("ada"), &format!("/v1/sales/{id}/orders"));
    let keyless = app.send(request.json(&json!({"sku": "phone", "quantity": 1}))).await;
    keyless.no(400, "idempotency_key_missing");
    let nobody = app.request(Method::POST, Who::Nobody, &format!("/v1/sales/{id}/orders"));
    let nobody = app.send(nobody).await.no(401, "unauthenticated");
    assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
    app.buy_sku("ada", &id, "k", "nothing", 1).await.no(404, "not_found");
}

#[tokio::test]
async fn sale_not_open_names_each_state() {
    let app = TestApp::start_api_only().await;
    for (way, state) in [
        (vec![], "draft"),
        (vec!["preload", "open", "pause"], "paused"),
        (vec!["preload", "open", "close"], "closed"),
        (vec!["preload"], "scheduled"),
    ] {
        let id = app
            .create_sale(&sale_with(&json!({
                "starts_at": "2099-01-01T00:00:00Z", "ends_at": "2099-01-02T00:00:00Z",
            })))
            .await;
        for verb in way {
            app.operate(&id, verb).await.ok(200);
        }
        let refused = app.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
        assert_eq!(refused.body["sale_state"], state);
        assert!(refused.text("detail").contains(state), "{refused:?}");
    }
}

#[tokio::test]
async fn an_empty_token_bucket_answers_overloaded_and_refills() {
    let app = TestApp::with("api", &[("FLASHSALE_GATEWAY_RATE", "5")]).await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/sales/{id}");
    let mut refused = None;
    for _ in 0..50 {
        let answer = app.get(Who::Nobody, &path).await;
        if answer.status != 200 {
            refused = Some(answer.no(503, "overloaded"));
            break;
        }
    }
    let refused = refused.expect("fifty requests at five a second");
    // Operators, the payment provider and machines do not stand behind the shoppers.
    app.admin(&id, "").await.ok(200);
    app.get(Who::Nobody, "/healthz").await.ok(200);
    app.get(Who::Nobody, "/readyz").await.ok(200);
    app.webhook("msg_1", "{}").await.no(400, "invalid_request");
    poll::wait_out(refused.retry_after()).await;
    app.get(Who::Nobody, &path).await.ok(200);
}

#[tokio::test]
async fn a_stock_that_has_lost_a_sale_is_written_anew_and_one_that_is_gone_is_unavailable() {
    let redis = servers::fresh_redis();
    let environment = environment(&redis.server.url(), &servers::database().await);
    let instance = Instance::start(&environment, "api").may_log_errors();
    let id = instance.load_sale(&sale()).await;
    let bought = instance.buy("ada", &id, "k", 1).await.ok(201);
    let raw = crate::support::raw::Raw::connect(&redis.server.url());
    let _flushed: String = raw.call(&mut redis::cmd("FLUSHALL"));
    // In the meantime it is unavailable, never sold out.
    poll::answer("bob buys", || async {
        let answer = instance.buy("bob", &id, "k", 1).await;
        if answer.status == 503 {
            answer.no(503, "unavailable");
            return None;
        }
        Some(answer.ok(201))
    })
    .await;
    // Nothing drains here, so nobody else knew of the first order: the same request makes it once more.
    assert_eq!(instance.buy("ada", &id, "k", 1).await.ok(201).id(), bought.id());
    instance.get(Who::Nobody, "/readyz").await.ok(200);
    redis.server.stop();
    instance.buy("bob", &id, "k", 1).await.no(503, "unavailable");
    instance.order("ada", &bought.id()).await.no(503, "unavailable");
    let reason = instance.get(Who::Nobody, "/readyz").await.no(503, "unavailable");
    assert!(reason.text("detail").contains("Redis"), "{reason:?}");
    instance.get(Who::Nobody, "/healthz").await.ok(200);
}
