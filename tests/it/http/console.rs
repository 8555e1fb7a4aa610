//! The console's back door: sessions, protection against other sites, and its own addresses.

mod audit_log;
mod live;

use crate::support::app::{ADMIN_KEY, Answer, Client, Instance, TestApp, Who, sale, sale_with};
use crate::support::poll::PATIENCE;
use crate::support::{poll, servers};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::ledger::Ledger;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgConnection;

const SESSION: &str = "/v1/admin/session";
const SESSIONS: &str = "/v1/admin/sessions";

/// A signed-in operator.
struct Operator {
    cookie: String,
    token: String,
}

impl Operator {
    async fn sign_in(client: &Client) -> Self {
        Self::of(&try_to_sign_in(client, ADMIN_KEY).await.ok(201))
    }

    fn of(answer: &Answer) -> Self {
        let cookie = answer.header("set-cookie").unwrap();
        Self {
            cookie: cookie.split(';').next().unwrap().to_owned(),
            token: answer.text("request_token").to_owned(),
        }
    }

    /// With the cookie alone, as any page could make a browser send it.
    fn with_cookie(&self, client: &Client, method: Method, path: &str) -> RequestBuilder {
        client
            .request(method, Who::Nobody, path)
            .header("Cookie", format!("theme=dark; {}", self.cookie))
    }

    /// As a page of the console asks.
    fn asks(&self, client: &Client, method: Method, path: &str) -> RequestBuilder {
        self.with_cookie(client, method, path)
            .header("X-Console-Token", &self.token)
    }

    async fn is_signed_in(&self, client: &Client) -> bool {
        let session = client
            .send(self.with_cookie(client, Method::GET, SESSION))
            .await
            .ok(200);
        session.body["signed_in"] == true
    }
}

async fn try_to_sign_in(client: &Client, key: &str) -> Answer {
    sign_in_with(client, &json!({"key": key})).await
}

async fn sign_in_with(client: &Client, body: &Value) -> Answer {
    let request = client.request(Method::POST, Who::Nobody, SESSION);
    client.send(request.json(body)).await
}

async fn actions(client: &Client, query: &str) -> Vec<Value> {
    let answer = client
        .get(Who::Operator, &format!("/v1/admin/actions{query}"))
        .await
        .ok(200);
    answer.body["data"].as_array().unwrap().clone()
}

/// How many actions were not refused for lack of authority.
async fn done(client: &Client) -> usize {
    let all = actions(client, "").await;
    all.iter().filter(|action| action["actor"] != "nobody").count()
}

#[tokio::test]
async fn a_session_holds_on_every_instance_until_it_is_ended_on_one() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let answer = try_to_sign_in(&app, ADMIN_KEY).await.ok(201);
    let cookie = answer.header("set-cookie").unwrap();
    for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/v1/admin", "; Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains("Secure"), "{cookie}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let ada = Operator::sign_in(&app).await;
    let bob = Operator::sign_in(&other).await;
    for client in [&*app.instance, &*other] {
        for operator in [&ada, &bob] {
            assert!(operator.is_signed_in(client).await);
            client
                .send(operator.with_cookie(client, Method::GET, "/v1/admin/sales"))
                .await
                .ok(200);
        }
    }
    let gone = app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    assert_eq!(gone.body, json!({"signed_in": false}));
    assert!(gone.header("set-cookie").unwrap().contains("Max-Age=0"));
    for client in [&*app.instance, &*other] {
        assert!(!ada.is_signed_in(client).await);
        assert!(bob.is_signed_in(client).await, "another session goes on");
        let asks = ada.asks(client, Method::GET, "/v1/admin/sales");
        client.send(asks).await.no(401, "unauthenticated");
        let creates = ada.asks(client, Method::POST, "/v1/admin/sales");
        client.send(creates.json(&sale())).await.no(401, "unauthenticated");
    }
    assert!(
        actions(&app, "")
            .await
            .iter()
            .all(|action| action["action"] != "sales.create")
    );
}

#[tokio::test]
async fn a_session_outlives_restarts_and_ends_with_its_time_or_the_key() {
    let mut app = TestApp::start_api_only().await;
    let ada = Operator::sign_in(&app).await;
    app.instance.terminate();
    let again = app.another("api");
    assert!(ada.is_signed_in(&again).await);
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_ADMIN_KEY".to_owned(), "canary-admin-key-another".to_owned());
    let rotated = Instance::start(&environment, "api");
    assert!(!ada.is_signed_in(&rotated).await, "a new key signs everybody out");
    let request = ada.asks(&rotated, Method::GET, "/v1/admin/sales");
    rotated.send(request).await.no(401, "unauthenticated");
    assert!(ada.is_signed_in(&again).await);
    sqlx::query("update console_sessions set created_at = now() - interval '1 day', expires_at = now()")
        .execute(&mut app.database().await)
        .await
        .unwrap();
    assert!(!ada.is_signed_in(&again).await);
    let request = ada.asks(&again, Method::GET, "/v1/admin/sales");
    again.send(request).await.no(401, "unauthenticated");
    let ledger = Ledger::connect(&app.environment["FLASHSALE_DATABASE_URL"], ConnectionPools::default())
        .await
        .unwrap();
    ledger.forget_sessions().await.unwrap();
    assert_eq!(count(&mut app.database().await, "console_sessions").await, 0);
}

#[tokio::test]
async fn a_session_that_is_idle_for_an_hour_ends() {
    let app = TestApp::start_api_only().await;
    let mut database = app.database().await;
    let (ada, bob) = (Operator::sign_in(&app).await, Operator::sign_in(&app).await);
    let last_used = async |database: &mut PgConnection, ago: &str| {
        let query = format!("update console_sessions set last_used_at = now() - interval '{ago}'");
        sqlx::query(sqlx::AssertSqlSafe(query)).execute(database).await.unwrap();
    };
    last_used(&mut database, "59 minutes").await;
    assert!(ada.is_signed_in(&app).await);
    // A request puts the end off.
    let recent = "console_sessions where last_used_at > now() - interval '1 minute'";
    assert_eq!(count(&mut database, recent).await, 1, "one of two");
    sqlx::query("update console_sessions set last_used_at = last_used_at - interval '2 minutes'")
        .execute(&mut database)
        .await
        .unwrap();
    assert!(ada.is_signed_in(&app).await);
    assert!(!bob.is_signed_in(&app).await);
    let asks = bob.asks(&app, Method::GET, "/v1/admin/sales");
    app.send(asks).await.no(401, "unauthenticated");
    let listed = app.get(Who::Operator, SESSIONS).await.ok(200);
    assert_eq!(listed.body["data"].as_array().unwrap().len(), 1);
    // Asking has not revived it.
    assert!(!bob.is_signed_in(&app).await);
    // A ledger that takes no writes still knows the session.
    last_used(&mut database, "2 minutes").await;
    sqlx::raw_sql(
        "create function refuse() returns trigger language plpgsql as 'begin raise exception $$full$$; end'; \
         create trigger refuse before update on console_sessions for each row execute function refuse()",
    )
    .execute(&mut database)
    .await
    .unwrap();
    assert!(ada.is_signed_in(&app).await);
}

#[tokio::test]
async fn a_key_with_too_many_sessions_ends_its_own_oldest_alone() {
    let view = "9b74c9897bac770ffc029102a200c5de";
    let keys = format!("ada:view:{view}");
    let app = TestApp::with("api", &[("FLASHSALE_OPERATOR_KEYS", &keys)]).await;
    let shared = Operator::sign_in(&app).await;
    let ada = Operator::of(&try_to_sign_in(&app, view).await.ok(201));
    for _ in 0..100 {
        try_to_sign_in(&app, view).await.ok(201);
    }
    assert!(shared.is_signed_in(&app).await);
    assert!(!ada.is_signed_in(&app).await);
}

#[tokio::test]
async fn one_session_of_several_is_ended_by_another_operator() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let (ada, bob) = (Operator::sign_in(&app).await, Operator::sign_in(&other).await);
    let list = async || app.send(ada.asks(&app, Method::GET, SESSIONS)).await.ok(200).body;
    let listed = list().await;
    let bobs = app.send(bob.with_cookie(&app, Method::GET, SESSION)).await.ok(200);
    let entries = listed["data"].as_array().unwrap();
    assert_eq!((entries.len(), &listed["has_more"]), (2, &json!(false)));
    // The newest is the first.
    let entry = &entries[0];
    assert_eq!(entry["session_id"], bobs.body["session_id"]);
    assert_eq!((&entry["name"], &entry["address"]), (&json!(null), &json!("127.0.0.1")));
    assert_eq!(entry["expires_at"], bobs.body["expires_at"]);
    assert!(!listed.to_string().contains(&bob.token), "{listed}");

    let end = |by: &Operator| by.asks(&app, Method::POST, "/v1/admin/sessions/end");
    let id = json!({"session_id": entry["session_id"]});
    // A page of another site cannot, and nobody without a session.
    let forged = ada.with_cookie(&app, Method::POST, "/v1/admin/sessions/end");
    app.send(forged.json(&id)).await.no(403, "console_token_required");
    let nobody = app.request(Method::POST, Who::Nobody, "/v1/admin/sessions/end");
    app.send(nobody.json(&id)).await.no(401, "unauthenticated");
    app.get(Who::Nobody, SESSIONS).await.no(401, "unauthenticated");
    assert!(bob.is_signed_in(&other).await);
    let ended = app.send(end(&ada).json(&id)).await.ok(200);
    assert_eq!(ended.body["session_id"], id["session_id"]);
    assert!(!bob.is_signed_in(&other).await && !bob.is_signed_in(&app).await);
    assert!(ada.is_signed_in(&other).await);
    assert_eq!(list().await["data"].as_array().unwrap().len(), 1);
    app.send(end(&ada).json(&id)).await.no(404, "not_found");
    let wrong = json!({"session_id": "bob"});
    app.send(end(&ada).json(&wrong)).await.no(400, "invalid_request");
    // A refusal for lack of authority may be recorded later than an action after it.
    let done = actions(&app, "").await;
    let done: Vec<_> = done.iter().map(|it| json!([it["action"], it["outcome"]])).collect();
    for outcome in ["done", "not_found"] {
        assert!(done.contains(&json!(["sessions.end", outcome])), "{done:?}");
    }
}

async fn count(database: &mut PgConnection, table: &str) -> i64 {
    let query = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(query).fetch_one(database).await.unwrap()
}

/// Sends a request, and hangs up once its action has begun and waits for a lock of the test's.
async fn hang_up(app: &TestApp, request: RequestBuilder) {
    let asked = tokio::spawn(request.send());
    let begun = "operator_actions, pg_stat_activity where outcome is null and datname = current_database() \
        and wait_event_type = 'Lock'";
    let mut database = app.database().await;
    poll::within(PATIENCE, "the action has begun", async || {
        count(&mut database, begun).await >= 1
    })
    .await;
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
}

#[tokio::test]
async fn the_ledgers_copy_of_a_session_signs_nobody_in() {
    let app = TestApp::start_api_only().await;
    let ada = Operator::sign_in(&app).await;
    let (digest, address): (Vec<u8>, String) = sqlx::query_as("select digest, address from console_sessions")
        .fetch_one(&mut app.database().await)
        .await
        .unwrap();
    assert_eq!(address, "127.0.0.1");
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = ada.cookie.split('=').next().unwrap();
    for made_up in [digest.as_str(), &ada.token, "", "x", ADMIN_KEY] {
        let request = app
            .request(Method::GET, Who::Nobody, "/v1/admin/sales")
            .header("Cookie", format!("{name}={made_up}"));
        app.send(request).await.no(401, "unauthenticated");
    }
    assert!(!app.log().contains(ada.cookie.split('=').nth(1).unwrap()));
}

#[tokio::test]
async fn a_cookie_alone_changes_nothing() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let before = done(&app).await;
    let (ada, bob) = (Operator::sign_in(&app).await, Operator::sign_in(&app).await);
    let pause = format!("/v1/admin/sales/{id}/pause");
    let pauses = || ada.with_cookie(&app, Method::POST, &pause);
    let hostile = [
        pauses(),
        pauses().header("X-Console-Token", ""),
        pauses().header("X-Console-Token", &bob.token),
        pauses().header("X-Console-Token", &ada.token[1..]),
        ada.asks(&app, Method::POST, &pause)
            .header("Origin", "https://evil.example"),
        ada.asks(&app, Method::POST, &pause).header("Origin", "null"),
        ada.asks(&app, Method::POST, &pause)
            .header("Sec-Fetch-Site", "cross-site"),
        ada.asks(&app, Method::POST, &pause)
            .header("Sec-Fetch-Site", "same-site"),
        ada.with_cookie(&app, Method::DELETE, SESSION),
    ];
    for request in hostile {
        app.send(request).await.no(403, "console_token_required");
    }
    let twice = ada.asks(&app, Method::POST, &pause).header("X-Console-Token", "x");
    app.send(twice).await.no(403, "console_token_required");
    // Another site cannot sign a browser in either.
    let strange = app
        .request(Method::POST, Who::Nobody, SESSION)
        .header("Origin", "https://evil.example");
    app.send(strange.json(&json!({"key": ADMIN_KEY})))
        .await
        .no(403, "console_token_required");
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
    assert_eq!(done(&app).await, before + 2, "two have signed in");
    let own = ada.asks(&app, Method::POST, &pause).header("Origin", &app.url);
    app.send(own).await.ok(200);
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "paused");
    // A request with a key is judged by it, with any cookie beside it.
    let wrong = ada.asks(&app, Method::POST, &pause).bearer_auth("wrong");
    app.send(wrong).await.no(401, "unauthenticated");
}

#[tokio::test]
async fn wrong_keys_are_counted_and_the_right_one_is_not_kept_waiting() {
    let app = TestApp::start_api_only().await;
    for wrong in ["", "x", &ADMIN_KEY[1..], &format!("{ADMIN_KEY}0")] {
        let answer = try_to_sign_in(&app, wrong).await.no(401, "unauthenticated");
        assert!(answer.text("detail").starts_with("key: "), "{answer:?}");
        assert!(answer.header("set-cookie").is_none());
    }
    for body in [json!({}), json!({"key": 1}), json!({"key": ADMIN_KEY, "more": 1})] {
        let request = app.request(Method::POST, Who::Nobody, SESSION).json(&body);
        app.send(request).await.no(400, "invalid_request");
    }
    for _ in 0..3 {
        try_to_sign_in(&app, "wrong").await.no(401, "unauthenticated");
        // However it is sent.
        app.get(Who::Bearer("wrong"), "/v1/admin/sales")
            .await
            .no(401, "unauthenticated");
    }
    for _ in 0..5 {
        try_to_sign_in(&app, "wrong").await.no(429, "rate_limited");
        let request = app.request(Method::POST, Who::Bearer("wrong"), "/v1/admin/sales");
        app.send(request).await.no(401, "unauthenticated");
    }
    app.logged("too many wrong operators' keys").await;
    assert_eq!(app.log().matches("too many wrong operators' keys").count(), 1);
    // A client behind the same address guesses: that keeps no operator out.
    try_to_sign_in(&app, ADMIN_KEY).await.ok(201);
    app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
    let refused = try_to_sign_in(&app, "wrong").await.no(429, "rate_limited");
    assert!((1..=6).contains(&refused.retry_after()), "{refused:?}");
    poll::wait_out(refused.retry_after()).await;
    try_to_sign_in(&app, "wrong").await.no(401, "unauthenticated");
    let ended = app.get(Who::Nobody, SESSION).await.ok(200);
    assert_eq!(ended.body, json!({"signed_in": false}));
}

#[tokio::test]
async fn a_cookie_of_https_goes_over_https_alone() {
    let app = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let signs_in = async |client: &Client, protocol: &str| {
        let request = client
            .request(Method::POST, Who::Nobody, SESSION)
            .header("X-Forwarded-For", "203.0.113.7")
            .header("X-Forwarded-Proto", protocol.to_owned());
        let answer = client.send(request.json(&json!({"key": ADMIN_KEY}))).await.ok(201);
        let cookie = answer.header("set-cookie").unwrap();
        assert_eq!(
            cookie.starts_with("__Secure-flashsale_console="),
            cookie.ends_with("; Secure"),
            "{cookie}"
        );
        let is_https = answer.header("strict-transport-security") == Some("max-age=31536000");
        assert_eq!(is_https, cookie.ends_with("; Secure"), "{answer:?}");
        let ada = Operator::of(&answer);
        for (protocol, signed_in) in [(protocol, true), ("http", !is_https)] {
            let request = ada.with_cookie(client, Method::GET, SESSION);
            let shown = client.send(request.header("X-Forwarded-Proto", protocol)).await.ok(200);
            assert_eq!(shown.body["signed_in"], signed_in, "{protocol}");
        }
        is_https
    };
    assert!(signs_in(&app, "https").await);
    assert!(!signs_in(&app, "http").await);
    assert_eq!(actions(&app, "").await[0]["address"], "203.0.113.7");
    // A client that is no trusted proxy may send any header.
    let open = TestApp::start_api_only().await;
    assert!(!signs_in(&open, "https").await);
    assert_eq!(actions(&open, "").await[0]["address"], "127.0.0.1");
}

#[tokio::test]
async fn a_request_whose_session_cannot_be_read_is_not_done() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    let mut database = app.database().await;
    sqlx::query("alter table console_sessions rename to away")
        .execute(&mut database)
        .await
        .unwrap();
    for (method, path) in [
        (Method::POST, format!("/v1/admin/sales/{id}/pause")),
        (Method::DELETE, SESSION.to_owned()),
    ] {
        let refused = app.send(ada.asks(&app, method, &path)).await.no(503, "unavailable");
        assert!(refused.text("detail").contains("nothing was done"), "{refused:?}");
        assert_eq!(refused.body["nothing_done"], true);
    }
    // A read gets no `nothing_done`.
    let read = app.send(ada.asks(&app, Method::GET, "/v1/admin/sales")).await;
    assert_eq!(read.no(503, "unavailable").body["nothing_done"], Value::Null);
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
    let TestApp { instance, .. } = app;
    drop(instance.may_log_errors());
}

#[tokio::test]
async fn a_path_that_changes_by_decoding_is_no_path() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    for path in [
        format!("/v1/admin/sales/{id}/%70ause"),
        format!("/v1/%61dmin/sales/{id}/pause"),
        format!("/v1/admin/s%61les/%{:x}{}/pause", id.as_bytes()[0], &id[1..]),
        format!("/v1/%73ales/{id}/orders"),
        "/v1/admin%2fsales".to_owned(),
    ] {
        app.post(Who::Nobody, &path).await.no(404, "not_found");
        app.post(Who::Operator, &path).await.no(404, "not_found");
    }
    for path in [
        "/%6detrics",
        "/%76%31/admin/sales",
        "/v1/%61dmin/session",
        "/%63onsole",
        "/healthz%",
    ] {
        app.get(Who::Operator, path).await.no(404, "not_found");
    }
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
}

#[tokio::test]
async fn nobody_keeps_what_operators_and_shoppers_are_answered() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    for answer in [
        app.get(Who::Operator, "/v1/admin/actions").await.ok(200),
        app.get(Who::Operator, "/v1/admin/nothing").await.no(404, "not_found"),
        app.get(Who::Nobody, "/v1/admin/sales").await.no(401, "unauthenticated"),
        app.operate(&id, "pause").await.ok(200),
        app.operate(&id, "pause").await.ok(200),
        app.order("ada", &order.id()).await.ok(200),
        app.buy("bob", &id, "k", 1).await.no(409, "sale_not_open"),
        order,
    ] {
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{answer:?}");
    }
}

#[tokio::test]
async fn of_two_changes_of_one_draft_the_one_with_an_old_version_is_refused() {
    let app = TestApp::shared_api_only().await;
    let created = app.try_create_sale(&sale()).await.ok(201);
    let path = format!("/v1/admin/sales/{}", created.id());
    let read = app.get(Who::Operator, &path).await.ok(200);
    let version = read.header("etag").unwrap().to_owned();
    assert_eq!(created.header("etag"), Some(&*version));
    let change = async |name: &str, version: &str| {
        let request = app.request(Method::PUT, Who::Operator, &path);
        let request = request.header("If-Match", version.to_owned());
        app.send(request.json(&sale_with(&json!({"name": name})))).await
    };
    let changed = change("Ada's", &version).await.ok(200);
    let newer = changed.header("etag").unwrap();
    assert_ne!(newer, version);
    for none in ["nonsense", "{}", "\"half", ""] {
        let refused = change("Bob's", none).await.no(400, "invalid_request");
        assert!(refused.text("detail").contains("If-Match"), "{refused:?}");
    }
    for old in [&*version, "\"x\""] {
        let refused = change("Bob's", old).await.no(409, "invalid_transition");
        assert!(refused.text("detail").contains("read it again"), "{refused:?}");
    }
    assert_eq!(app.get(Who::Operator, &path).await.ok(200).text("name"), "Ada's");
    // As it comes through a proxy that compresses.
    change("Cyd's", &format!("\"x\", W/{newer}")).await.ok(200);
    change("Dan's", "*").await.ok(200);
    assert_eq!(app.get(Who::Operator, &path).await.ok(200).text("name"), "Dan's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_asked_for_again_under_its_key_is_created_once() {
    let app = TestApp::start_api_only().await;
    let wanted = sale();
    let create = async |key: &str, body: &Value| {
        let request = app.request(Method::POST, Who::Operator, "/v1/admin/sales");
        app.send(request.header("Idempotency-Key", key.to_owned()).json(body))
            .await
    };
    let many = futures_util::future::join_all((0..6).map(|_| create("spring", &wanted))).await;
    let created: Vec<_> = many.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(created.len(), 1, "{many:?}");
    let id = created[0].id();
    for again in many.iter().filter(|answer| answer.status != 201) {
        let again = again.clone().ok(200);
        assert_eq!(
            (again.id(), again.header("idempotency-replayed")),
            (id.clone(), Some("true"))
        );
        assert_eq!(again.header("location"), created[0].header("location"));
    }
    // In any later state, it is the same sale.
    app.operate(&id, "preload").await.ok(200);
    assert_eq!(create("spring", &wanted).await.ok(200).id(), id);
    let other = sale_with(&json!({"name": "Another"}));
    create("spring", &other).await.no(422, "idempotency_key_reused");
    assert_ne!(create("summer", &wanted).await.ok(201).id(), id);
    create("", &wanted).await.no(400, "invalid_request");
    for _ in 0..2 {
        app.try_create_sale(&wanted).await.ok(201);
    }
    let sales = app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
    assert_eq!(sales.body["data"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_draft_is_changed_by_the_same_rules_as_it_is_created_and_nothing_else_is() {
    let app = TestApp::shared().await;
    let first = app.try_create_sale(&sale()).await.ok(201).body;
    let id = first["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/admin/sales/{id}");
    let change = async |body: &Value| {
        let request = app.request(Method::PUT, Who::Operator, &path);
        app.send(request.json(body)).await
    };
    let mut wanted = sale_with(&json!({"name": "Another", "shards": 3, "durability": "postgres",
        "guards": {"holds_max": 2}}));
    let mut second = wanted["items"][0].clone();
    (second["sku"], second["stock"]) = (json!("case"), json!(7));
    wanted["items"] = json!([second, wanted["items"][0]]);
    let changed = change(&wanted).await.ok(200).body;
    for member in ["name", "shards", "durability", "starts_at", "ends_at", "items"] {
        assert_eq!(changed[member], wanted[member], "{member}");
    }
    assert_eq!(
        (&changed["id"], &changed["created_at"]),
        (&first["id"], &first["created_at"])
    );
    assert_eq!(
        (&changed["state"], &changed["guards"]["holds_max"]),
        (&json!("draft"), &json!(2))
    );
    let mut wrong = wanted.clone();
    wrong["items"][1]["currency"] = json!("euro");
    let refused = change(&wrong).await.no(400, "invalid_request");
    assert!(refused.text("detail").starts_with("items[1].currency"), "{refused:?}");
    assert_eq!(app.admin(&id, "").await.ok(200).body["items"], wanted["items"]);
    app.operate(&id, "preload").await.ok(200);
    let refused = change(&wanted).await.no(409, "invalid_transition");
    assert_eq!(refused.body["sale_state"], "open", "{refused:?}");
    app.buy_sku("ada", &id, "k", "case", 1).await.ok(201);
    let stranger = format!("/v1/admin/sales/{}", uuid::Uuid::new_v4());
    let request = app.request(Method::PUT, Who::Operator, &stranger);
    app.send(request.json(&wanted)).await.no(404, "not_found");
}

#[tokio::test]
async fn operators_may_have_an_address_that_shoppers_cannot_reach() {
    let admin = format!("127.0.0.1:{}", servers::free_port());
    let app = TestApp::with("api", &[("FLASHSALE_ADMIN_LISTEN", &*admin)]).await;
    let operators = Client::at(&format!("http://{admin}"));
    let id = operators.load_sale(&sale()).await;
    for path in ["/healthz", "/readyz", "/assets/-/base.css"] {
        app.get(Who::Nobody, path).await.ok(200);
        operators.get(Who::Nobody, path).await.ok(200);
    }
    let (shop, console) = (format!("/sales/{id}"), format!("/console/sales/{id}"));
    for path in [&*shop, "/v1/sales"] {
        app.get(Who::Nobody, path).await.ok(200);
        operators.get(Who::Nobody, path).await.no(404, "not_found");
    }
    // The bare address leads to the console.
    let both: [(&Client, &str); 2] = [(&app, "<title>Sales"), (&operators, "<title>Console")];
    for (client, page) in both {
        let response = client.request(Method::GET, Who::Nobody, "/").send().await.unwrap();
        assert_eq!(response.status(), 200);
        let path = response.url().path().to_owned();
        let text = response.text().await.unwrap();
        assert!(text.contains(page), "{path}: {text}");
        assert_eq!(path, if page.ends_with("Console") { "/console" } else { "/" });
    }
    operators.post(Who::Nobody, "/").await.no(405, "method_not_allowed");
    // An operator gets a page, a program a problem.
    let lost = async |path: &str| {
        let request = operators.request(Method::GET, Who::Nobody, path);
        let answer = request.header("Accept", "text/html").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 404, "{path}");
        answer.headers()["content-type"].to_str().unwrap().to_owned()
    };
    for path in [&*shop, "/console/no/such/view"] {
        assert_eq!(lost(path).await, "text/html; charset=utf-8", "{path}");
    }
    assert_eq!(lost("/v1/sales").await, "application/problem+json");
    for path in ["/console", &console, "/metrics", "/v1/admin/session"] {
        operators.get(Who::Nobody, path).await.ok(200);
        app.get(Who::Nobody, path).await.no(404, "not_found");
    }
    for path in ["/v1/admin/sales", "/v1/admin/actions", "/v1/admin/guards"] {
        operators.get(Who::Operator, path).await.ok(200);
        app.get(Who::Operator, path).await.no(404, "not_found");
    }
    try_to_sign_in(&app, ADMIN_KEY).await.no(404, "not_found");
    let ada = Operator::sign_in(&operators).await;
    let pause = format!("/v1/admin/sales/{id}/pause");
    app.send(ada.asks(&app, Method::POST, &pause))
        .await
        .no(404, "not_found");
    let order = app.buy("ada", &id, "k", 1).await.ok(201).body;
    operators.buy("ada", &id, "other", 1).await.no(404, "not_found");
    assert_eq!(app.pay("pay_1", &order).await, "applied");
    operators.send(ada.asks(&operators, Method::POST, &pause)).await.ok(200);
    app.buy("bob", &id, "k", 1).await.no(409, "sale_not_open");
}

#[tokio::test]
async fn an_address_of_operators_that_is_taken_is_named() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_ADMIN_LISTEN".to_owned(), taken.clone());
    let refused = crate::support::app::program(&environment, &["serve"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&taken) && said.contains("FLASHSALE_ADMIN_LISTEN"),
        "{said}"
    );
    drop(held);
}
