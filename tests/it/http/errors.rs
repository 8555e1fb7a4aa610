//! The table of codes, and the members of every answer. The test client checks on each answer of every test that an error
//! is `application/problem+json` with its members, and that it has `Retry-After` where it belongs.

use super::health::not_ready;
use crate::support::app::{self, ADMIN_KEY, Client, Instance, JWT_SECRET, TestApp, Who, environment, sale, sale_with};
use crate::support::crowd::World;
use crate::support::document::{DOCUMENT, operations};
use crate::support::window::{development, development_key};
use crate::support::{poll, servers};
use actix_web::body::to_bytes;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};
use actix_web::{App as HttpApp, HttpResponse, HttpServer, ResponseError as _};
use flashsale::config::Secret;
use flashsale::domain::code::Code;
use flashsale::domain::guard::GuardSettings;
use flashsale::domain::operator::keys::OperatorKeys;
use flashsale::domain::shop::link::ShopLinks;
use flashsale::domain::shop::look::ShopLook;
use flashsale::domain::shopper::token_keys::TokenKeys;
use flashsale::domain::stage::StageKey;
use flashsale::guard::actions::{KnownReads, RefusedActions};
use flashsale::guard::challenge::ChallengeDrawer;
use flashsale::guard::gate::Gate;
use flashsale::guard::sign_ins::SignIns;
use flashsale::http::admin::audits::Audits;
use flashsale::http::admin::lists::Exports;
use flashsale::http::admin::live::Live;
use flashsale::http::extract::Tokens;
use flashsale::http::pages::Pages;
use flashsale::http::problem::Problem;
use flashsale::http::request_id::request_id;
use flashsale::http::{Api, FaultLog, Part, ROUTES, Shared, routes};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_answered_and_the_next_request_is_served() {
    let world = World::new().await;
    let shared = Arc::new(Shared {
        metrics: Arc::default(),
        tokens: Tokens::new(JWT_SECRET.as_bytes()),
        token_keys: TokenKeys::derived(JWT_SECRET.as_bytes()),
        operator_keys: Secret::new(OperatorKeys::parse(ADMIN_KEY, "", |_key| Ok(())).unwrap()),
        webhook_secret: Secret::new(app::webhook_key()),
        challenge_drawer: ChallengeDrawer::default(),
        gate: Arc::new(Gate::new(
            GuardSettings::default(),
            StageKey::derived(JWT_SECRET.as_bytes()),
        )),
        guards: GuardSettings::default(),
        sale_guards: flashsale::domain::sale::guards::SaleGuards::default(),
        trusted_proxies: Vec::new(),
        is_https: false,
        is_proxy_mentioned: AtomicBool::default(),
        followers: std::sync::Arc::default(),
        sign_ins: SignIns::default(),
        refused_actions: RefusedActions::default(),
        known_reads: KnownReads::default(),
        live: Live::default(),
        audits: Audits::default(),
        exports: Exports::default(),
        instance: "shop".to_owned(),
        pages: Pages::new(false, &ShopLinks::default(), &ShopLook::default()),
        development: None,
        ending: tokio_util::sync::CancellationToken::new(),
        faults: FaultLog::default(),
    });
    let (app, listener) = (Arc::clone(&world.app), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("http://{}", listener.local_addr().unwrap());
    let machines = Arc::clone(&world.app);
    let server = HttpServer::new(move || {
        let api = Api::new((*app).clone(), Arc::clone(&shared));
        let in_handler = web::get().to(async || -> HttpResponse { panic!("in a handler") });
        let in_flow = web::get().to(async |api: Data<Api>| -> Result<HttpResponse, Problem> {
            let ended: Result<(), Problem> = api.for_shopper(|_| async { panic!("in a flow") }).await;
            ended.map(|()| HttpResponse::Ok().finish())
        });
        HttpApp::new()
            .app_data(Data::new(api))
            .app_data(Data::from(Arc::clone(&machines)))
            .route("/handler", in_handler)
            .route("/flow", in_flow)
            .configure(routes(false, Part::All))
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
async fn no_answer_is_taken_for_another_type_or_used_by_another_origin() {
    let app = TestApp::shared_api_only().await;
    for (who, path, status) in [
        (Who::Nobody, "/healthz", 200),
        (Who::Operator, "/v1/admin/sales", 200),
        (Who::Nobody, "/v1/admin/sales", 401),
        (Who::Nobody, "/v1/nowhere", 404),
        (Who::Nobody, "/v1/sales?limit=x", 400),
    ] {
        let answer = app.get(who, path).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(
            answer.header("cross-origin-resource-policy"),
            Some("same-origin"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_request_id_that_is_given_comes_back_and_one_that_is_not_is_made() {
    let app = TestApp::start_api_only().await;
    let proxied = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let longest = "r".repeat(128);
    for (path, given) in [
        ("/healthz", "a-1"),
        ("/v1/nowhere", longest.as_str()),
        ("/v1/admin/sales", "x"),
    ] {
        let request = app
            .request(Method::GET, Who::Nobody, path)
            .header("X-Request-Id", given);
        let said = app.send(request).await.header("x-request-id").unwrap().to_owned();
        assert_eq!(said, format!("client-{given}"), "{path}");
        let request = proxied
            .request(Method::GET, Who::Nobody, path)
            .header("X-Request-Id", given);
        assert_eq!(
            proxied.send(request).await.header("x-request-id"),
            Some(given),
            "{path}"
        );
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
    let app = TestApp::shared_api_only().await;
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

/// An id that nothing has.
const NO_ID: &str = "019ac1f2-7c40-7d3a-9b1e-2f6a5c8e4d10";

/// Words that mean something only to a developer of this program.
const OF_RUST: [&str; 8] = ["struct", "enum", "variant", "i64", "u32", "usize", "Body", "line 1"];

#[tokio::test]
async fn errors_in_a_body_are_described_in_words_of_the_api() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let said = async |method: Method, who: Who<'_>, path: &str, body: &serde_json::Value| {
        let request = app.request(method, who, path).header("Idempotency-Key", "k");
        let answer = app.send(request.json(body)).await.no(400, "invalid_request");
        let detail = answer.text("detail").to_owned();
        assert!(
            !OF_RUST.iter().any(|word| detail.contains(word)),
            "{path} {body}: {detail}"
        );
        detail
    };
    let buying = format!("/v1/sales/{id}/orders");
    for (body, expected) in [
        (json!([]), "the body must be JSON: an object with sku and quantity"),
        (
            json!(["phone", 1]),
            "the body must be JSON: an object with sku and quantity",
        ),
        (json!("phone"), "the body must be JSON: an object with sku and quantity"),
        (json!({"sku": "phone"}), "quantity is missing"),
        (
            json!({"sku": "phone", "quantity": "1"}),
            "quantity must be an integer from 1 to 100000",
        ),
        (json!({"sku": "phone", "quantity": 0}), "quantity must be 1 to 100000"),
        (
            json!({"sku": 7, "quantity": 1}),
            "sku must be a string of 1 to 64 characters",
        ),
        (
            json!({"sku": "phone", "quantity": 1, "colour": 1}),
            "colour is unknown; known are ",
        ),
    ] {
        let detail = said(Method::POST, Who::Shopper("ada"), &buying, &body).await;
        assert!(detail.starts_with(expected), "{detail}");
    }
    // Each route that reads a body, with something that is none, and with members of the wrong kinds.
    for (method, path, operation) in operations() {
        let Some(schema) = operation.pointer("/requestBody/content/application~1json/schema") else {
            continue;
        };
        let who = match path {
            "/v1/webhooks/payments" => continue,
            _ if path.starts_with("/v1/admin") => Who::Operator,
            _ => Who::Shopper("ada"),
        };
        let path = path.replace("{id}", &id);
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let detail = said(method.clone(), who, &path, &json!([])).await;
        assert!(detail.starts_with("the body must be JSON: an object "), "{detail}");
        let schema = schema["$ref"]
            .as_str()
            .map_or(schema, |at| DOCUMENT.pointer(&at[1..]).unwrap());
        for name in schema["properties"].as_object().unwrap().keys() {
            let mut body = operation["requestBody"]["content"]["application/json"]["example"].clone();
            body[name] = json!([[]]);
            let detail = said(method.clone(), who, &path, &body).await;
            assert!(
                detail.starts_with(&format!("{name} must be ")) || detail.starts_with(&format!("{name}[0] must be ")),
                "{detail}"
            );
        }
    }
    let request = app
        .buying("ada", &id, "k")
        .body("{\"sku\":}")
        .header("Content-Type", "application/json");
    let broken = app.send(request).await.no(400, "invalid_request");
    assert!(
        broken.text("detail").starts_with("the body is not JSON: "),
        "{broken:?}"
    );
    assert!(
        app.webhook("msg_1", "[]")
            .await
            .no(400, "invalid_request")
            .text("detail")
            .contains("an object with type")
    );
}

#[tokio::test]
async fn a_query_is_taken_within_its_bounds_and_by_its_names() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    for (who, path, query, expected) in [
        (
            Who::Nobody,
            "/v1/sales",
            "limit=0",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Nobody,
            "/v1/sales",
            "limit=101",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Nobody,
            "/v1/sales",
            "limit=some",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Nobody,
            "/v1/sales",
            "starting_after=x",
            "starting_after must be a UUID",
        ),
        (
            Who::Nobody,
            "/v1/sales",
            "offset=3",
            "offset is unknown; known are limit and starting_after",
        ),
        (
            Who::Operator,
            "/v1/admin/sales",
            "limit=0",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Operator,
            "/v1/admin/alerts",
            "limit=101",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Operator,
            "/v1/admin/bans",
            "limit=101",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Operator,
            "/v1/admin/bans",
            "account=ada",
            "account is unknown; known are limit, starting_after, newest_first and user",
        ),
        (
            Who::Operator,
            "/v1/admin/payments",
            "limit=0",
            "limit must be an integer from 1 to 100",
        ),
        (
            Who::Operator,
            "/v1/admin/orders",
            "user=ada&state=payed",
            "state must be reserved, paid, cancelled, expired or revoked",
        ),
        (Who::Shopper("ada"), "/v1/orders", "", "sale_id is missing"),
        (Who::Shopper("ada"), "/v1/orders", "sale_id=x", "sale_id: not a UUID"),
        (
            Who::Shopper("ada"),
            "/v1/orders",
            &format!("sale_id={id}&state=paid"),
            "state is unknown; known are sale_id",
        ),
    ] {
        let answer = app
            .get(who, &format!("{path}?{query}"))
            .await
            .no(400, "invalid_request");
        assert_eq!(answer.text("detail"), expected, "{path}?{query}");
    }
    for query in ["limit=1", "limit=100", ""] {
        app.get(Who::Nobody, &format!("/v1/sales?{query}")).await.ok(200);
    }
}

#[tokio::test]
async fn every_path_refuses_other_methods_and_names_its_own() {
    let development = development().await;
    let app = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let mut allowed = BTreeMap::<&str, BTreeSet<&str>>::new();
    for route in ROUTES.iter() {
        allowed.entry(route.path).or_default().insert(route.method.as_str());
        // Only an answer without an end has no head.
        if route.method == "GET" && !["/v1/admin/sales/{id}/live", "/v1/admin/alerts/stream"].contains(&route.path) {
            allowed.entry(route.path).or_default().insert("HEAD");
        }
    }
    assert!(allowed.len() > 50, "{}", allowed.len());
    for (number, (template, methods)) in allowed.iter().enumerate() {
        let path = template
            .replace("{id}", NO_ID)
            .replace("{name}", "icon.svg")
            .replace("{version}", "-");
        let path = path.replace("{view}", "audit-log").replace("{code}", "sold_out");
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            if methods.contains(method) {
                continue;
            }
            let at = format!("{method} {path}");
            let client = if path.starts_with("/dev/") { &development } else { &app };
            let request = client
                .request(method.parse().unwrap(), Who::Operator, &path)
                .header("X-Development-Key", development_key())
                // An operator's refused actions are limited for each address.
                .header("X-Forwarded-For", format!("10.0.0.{number}"));
            let refused = request.send().await.unwrap();
            assert_eq!(refused.status(), 405, "{at}");
            let named = refused.headers()["allow"].to_str().unwrap().split(", ");
            assert_eq!(named.collect::<BTreeSet<_>>(), *methods, "{at}");
            let problem: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap_or_default();
            if method != "HEAD" {
                assert_eq!(problem["code"], "method_not_allowed", "{at}");
                let detail = problem["detail"].as_str().unwrap();
                assert!(methods.iter().all(|method| detail.contains(method)), "{at}: {detail}");
            }
        }
    }
}

#[tokio::test]
async fn the_type_of_every_problem_leads_to_its_explanation() {
    let ports = ["FLASHSALE_METRICS_LISTEN", "FLASHSALE_ADMIN_LISTEN"]
        .map(|name| (name, format!("127.0.0.1:{}", servers::free_port())));
    let variables: Vec<_> = ports.iter().map(|(name, address)| (*name, address.as_str())).collect();
    let app = TestApp::with("api", &variables).await;
    let others = ports
        .each_ref()
        .map(|(_, address)| Client::at(&format!("http://{address}")));
    for client in others.iter().chain([&**app]) {
        for code in Code::ALL {
            let sent = to_bytes(Problem::new(*code, "").error_response().into_body())
                .await
                .unwrap();
            let problem: Value = serde_json::from_slice(&sent).unwrap();
            // As a client finds it, wherever the problem was answered.
            let asked = reqwest::Url::parse(&format!("{}/v1/sales/{NO_ID}", client.url)).unwrap();
            let address = asked.join(problem["type"].as_str().unwrap()).unwrap();
            assert_eq!((address.host_str(), address.port()), (asked.host_str(), asked.port()));
            let page = client.get(Who::Nobody, address.path()).await.ok(200);
            assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
            let text = page
                .text
                .replace("<code>", "`")
                .replace("</code>", "`")
                .replace("&quot;", "\"");
            for said in [
                code.as_str(),
                &code.status().to_string(),
                code.title(),
                code.cause(),
                code.advice(),
            ] {
                assert!(
                    !said.is_empty() && text.contains(said),
                    "{code:?} does not say {said:?}: {text}"
                );
            }
        }
        let unknown = client.get(Who::Nobody, "/problems/nothing").await.no(404, "not_found");
        client.get(Who::Nobody, unknown.text("type")).await.ok(200);
        // A person reads which codes there are.
        let request = client.request(Method::GET, Who::Nobody, "/problems/nothing");
        let page = request.header("Accept", "text/html,*/*;q=0.8").send().await.unwrap();
        assert_eq!(page.status().as_u16(), 404);
        assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
        let page = page.text().await.unwrap();
        assert!(
            page.contains("There is no such code.") && page.contains("id=\"sold_out\""),
            "{page}"
        );
    }
}

#[tokio::test]
async fn sale_not_open_names_each_state() {
    let app = TestApp::shared_api_only().await;
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
    // Operators, the payment provider and machines do not wait behind the shoppers.
    app.admin(&id, "").await.ok(200);
    app.get(Who::Nobody, "/healthz").await.ok(200);
    app.get(Who::Nobody, "/readyz").await.ok(200);
    app.webhook("msg_1", "{}").await.no(400, "invalid_request");
    poll::wait_out(refused.retry_after()).await;
    app.get(Who::Nobody, &path).await.ok(200);
}

#[tokio::test]
async fn a_stock_that_lost_a_sale_is_rebuilt_and_one_that_is_gone_is_unavailable() {
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
    // Nothing drains here, so only Redis knew the first order: the same request makes it once more.
    assert_eq!(instance.buy("ada", &id, "k", 1).await.ok(201).id(), bought.id());
    instance.get(Who::Nobody, "/readyz").await.ok(200);
    redis.server.stop();
    instance.buy("bob", &id, "k", 1).await.no(503, "unavailable");
    instance.order("ada", &bought.id()).await.no(503, "unavailable");
    let refused = not_ready(&instance, Who::Nobody).await;
    assert_eq!(refused.text("detail"), "not ready: redis does not answer");
    let refused = not_ready(&instance, Who::Operator).await;
    assert!(refused.text("detail").contains("Redis"), "{refused:?}");
    instance.get(Who::Nobody, "/healthz").await.ok(200);
}
