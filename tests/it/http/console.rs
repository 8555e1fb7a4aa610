//! The console's back door: sessions, protection against other sites, the audit log, the live feed, and its own addresses.

use crate::support::app::{
    ADMIN_KEY, Answer, Client, Instance, TestApp, Who, environment, rfc3339, sale, sale_with, token_of,
};
use crate::support::poll::{PATIENCE, Patience};
use crate::support::{document, poll, servers};
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::connection_pools::ConnectionPools;
use flashsale::ledger::Ledger;
use jsonwebtoken::Header;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use sqlx::PgConnection;
use std::collections::BTreeMap;
use std::time::Duration;

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
    let done = actions(&app, "?limit=3").await;
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
async fn every_action_of_an_operator_is_in_the_audit_log() {
    let app = TestApp::start_api_only().await;
    let ada = Operator::sign_in(&app).await;
    let creates = ada.asks(&app, Method::POST, "/v1/admin/sales").json(&sale());
    let id = app.send(creates).await.ok(201).id();
    let wrong = sale_with(&json!({"shards": 0}));
    let creates = ada.asks(&app, Method::POST, "/v1/admin/sales").json(&wrong);
    app.send(creates).await.no(400, "invalid_request");
    app.run(&["sale", "preload", &id]).ended(0);
    app.operate(&id, "resume").await.no(409, "invalid_transition");
    app.restock(&id, "k", "phone", 5).await.ok(200);
    let ban = json!({"user": "bot", "reason": "many accounts"});
    app.send(ada.asks(&app, Method::POST, "/v1/admin/bans").json(&ban))
        .await
        .ok(201);
    // Reads do nothing, and unauthorised requests did nothing.
    app.stats(&id).await;
    app.get(Who::Operator, "/v1/admin/nothing").await.no(404, "not_found");
    app.post(Who::Nobody, &format!("/v1/admin/sales/{id}/close"))
        .await
        .no(401, "unauthenticated");
    app.post(Who::Operator, "/v1/admin/nothing").await.no(404, "not_found");

    let all = actions(&app, "").await;
    let listed: Vec<[&str; 3]> = all
        .iter()
        .map(|action| ["actor", "action", "outcome"].map(|member| action[member].as_str().unwrap()))
        .collect();
    let expected = [
        ["console", "bans.create", "done"],
        ["api_key", "sales.restock", "done"],
        ["api_key", "sales.resume", "invalid_transition"],
        ["api_key", "sales.preload", "done"],
        ["console", "sales.create", "invalid_request"],
        ["console", "sales.create", "done"],
        ["console", "session.create", "done"],
    ];
    assert_eq!(listed, expected);
    for action in &all {
        assert_eq!(action["address"], "127.0.0.1");
        assert_eq!(
            action["session_id"].is_string(),
            action["actor"] == "console",
            "{action}"
        );
        let at = |member: &str| action[member].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
        assert!(at("begun_at") <= at("ended_at") && Utc::now() - at("begun_at") < TimeDelta::minutes(1));
    }
    assert_eq!(all[0]["detail"], ban);
    assert_eq!(all[1]["detail"], json!({"sku": "phone", "quantity": 5}));
    let asked = &all[5]["detail"];
    assert_eq!(asked["items"], sale()["items"]);
    assert_eq!(asked["purchase_rate"], json!({"limit": 1000, "window_ms": 60_000}));
    // Of one sale, also its creation, whose id nobody knew before; page by page.
    let of_sale = actions(&app, &format!("?sale_id={id}")).await;
    assert_eq!(of_sale, [&all[1..4], &all[5..6]].concat());
    let page = app.get(Who::Operator, "/v1/admin/actions?limit=3").await.ok(200);
    assert_eq!(page.body, json!({"data": all[..3], "has_more": true}));
    let before = all[2]["id"].as_i64().unwrap();
    assert_eq!(actions(&app, &format!("?starting_after={before}")).await, all[3..]);
    for wrong in ["?sale_id=x", "?starting_after=x", "?limit=x", "?before=1"] {
        let path = format!("/v1/admin/actions{wrong}");
        app.get(Who::Operator, &path).await.no(400, "invalid_request");
    }
    app.get(Who::Nobody, "/v1/admin/actions")
        .await
        .no(401, "unauthenticated");
    let rest = all.iter().map(Value::to_string).collect::<String>();
    assert!(!rest.contains(ADMIN_KEY));
}

#[tokio::test]
async fn the_audit_log_shows_the_names_that_operators_gave() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let path = |verb: &str| format!("/v1/admin/sales/{id}/{verb}");
    let answer = sign_in_with(&app, &json!({"key": ADMIN_KEY, "name": " 王伟 <b> "}))
        .await
        .ok(201);
    assert_eq!(answer.text("name"), "王伟 <b>");
    let ada = Operator::of(&answer);
    // The session keeps the name, on every instance, and no header replaces it.
    let session = other.send(ada.with_cookie(&other, Method::GET, SESSION)).await.ok(200);
    assert_eq!(session.text("name"), "王伟 <b>");
    let pauses = ada
        .asks(&other, Method::POST, &path("pause"))
        .header("X-Operator", "Eve");
    other.send(pauses).await.ok(200);
    for (verb, name) in [("resume", "Bob"), ("pause", "Zoë")] {
        let request = app.request(Method::POST, Who::Operator, &path(verb));
        let name = reqwest::header::HeaderValue::from_bytes(name.as_bytes()).unwrap();
        app.send(request.header("X-Operator", name)).await.ok(200);
    }
    app.operate(&id, "resume").await.ok(200);
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    // An operator without a given name has none.
    for body in [json!({"key": ADMIN_KEY}), json!({"key": ADMIN_KEY, "name": null})] {
        let answer = sign_in_with(&app, &body).await.ok(201);
        assert_eq!(answer.body["name"], Value::Null);
    }
    let listed: Vec<_> = actions(&app, "?limit=8")
        .await
        .iter()
        .map(|action| [&action["action"], &action["actor"], &action["operator"]].map(Clone::clone))
        .collect();
    let expected = [
        json!(["session.create", "console", null]),
        json!(["session.create", "console", null]),
        json!(["session.delete", "console", "王伟 <b>"]),
        json!(["sales.resume", "api_key", null]),
        json!(["sales.pause", "api_key", "Zoë"]),
        json!(["sales.resume", "api_key", "Bob"]),
        json!(["sales.pause", "console", "王伟 <b>"]),
        json!(["session.create", "console", "王伟 <b>"]),
    ];
    assert_eq!(json!(listed), json!(expected));
}

#[tokio::test]
async fn a_named_key_proves_its_name_and_does_what_its_role_includes() {
    let (view, run) = ("9b74c9897bac770ffc029102a200c5de", "c4ca4238a0b923820dcc509a6f75849b");
    let keys = format!("ada:view:{view},bob:run:{run}");
    let app = TestApp::with("api", &[("FLASHSALE_OPERATOR_KEYS", &keys)]).await;
    let id = app.load_sale(&sale()).await;
    let pause = format!("/v1/admin/sales/{id}/pause");
    let by = |key: &str, method: Method, path: &str| app.request(method, Who::Bearer(key), path);
    app.send(by(view, Method::GET, "/v1/admin/sales")).await.ok(200);
    let refused = app.send(by(view, Method::POST, &pause)).await.no(403, "forbidden");
    assert!(refused.text("detail").contains("view"), "{refused:?}");
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
    // A header replaces no name that is proven.
    let paused = by(run, Method::POST, &pause).header("X-Operator", "Eve");
    app.send(paused).await.ok(200);
    let create = by(run, Method::POST, "/v1/admin/sales").json(&json!({}));
    app.send(create).await.no(403, "forbidden");
    // The session has the name and the role of its key.
    let answer = sign_in_with(&app, &json!({"key": view, "name": "Eve"})).await.ok(201);
    assert_eq!((answer.text("name"), answer.text("role")), ("ada", "view"));
    let ada = Operator::of(&answer);
    assert!(ada.is_signed_in(&app).await);
    app.send(ada.asks(&app, Method::POST, &pause))
        .await
        .no(403, "forbidden");
    let listed: Vec<_> = actions(&app, "?limit=5")
        .await
        .iter()
        .map(|action| [&action["action"], &action["operator"], &action["outcome"]].map(Clone::clone))
        .collect();
    let expected = [
        json!(["sales.pause", "ada", "forbidden"]),
        json!(["session.create", "ada", "done"]),
        json!(["sales.create", "bob", "forbidden"]),
        json!(["sales.pause", "bob", "done"]),
        json!(["sales.pause", "ada", "forbidden"]),
    ];
    assert_eq!(json!(listed), json!(expected));
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    assert!(!ada.is_signed_in(&app).await);
}

#[tokio::test]
async fn a_request_with_an_unprintable_name_is_refused_and_nothing_is_done() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let before = done(&app).await;
    let long = "x".repeat(65);
    for name in ["", " ", "a\nb", "a\u{1b}[2J", "a\u{0}", "a\u{202e}b", &long] {
        let answer = sign_in_with(&app, &json!({"key": ADMIN_KEY, "name": name})).await;
        let answer = answer.no(400, "invalid_request");
        assert!(
            answer.text("detail").starts_with("name must have 1 to 64"),
            "{answer:?}"
        );
        assert!(answer.header("set-cookie").is_none());
    }
    sign_in_with(&app, &json!({"key": ADMIN_KEY, "name": 1}))
        .await
        .no(400, "invalid_request");
    let pause = format!("/v1/admin/sales/{id}/pause");
    let pauses = || app.request(Method::POST, Who::Operator, &pause);
    let latin = reqwest::header::HeaderValue::from_bytes(b"Zo\xeb").unwrap();
    let turned = reqwest::header::HeaderValue::from_bytes("a\u{202e}b".as_bytes()).unwrap();
    for request in [
        pauses().header("X-Operator", ""),
        pauses().header("X-Operator", &*long),
        pauses().header("X-Operator", "a\tb"),
        pauses().header("X-Operator", "a").header("X-Operator", "b"),
        pauses().header("X-Operator", latin),
        pauses().header("X-Operator", turned),
    ] {
        let refused = app.send(request).await.no(400, "invalid_request");
        assert!(refused.text("detail").contains("X-Operator"), "{refused:?}");
    }
    // An unauthorised client is refused, with any name.
    let stranger = app
        .request(Method::POST, Who::Bearer("wrong"), &pause)
        .header("X-Operator", "");
    app.send(stranger).await.no(401, "unauthenticated");
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
    assert_eq!(done(&app).await, before);
    let named = pauses().header("X-Operator", "x".repeat(64));
    app.send(named).await.ok(200);
    assert_eq!(actions(&app, "").await[0]["operator"], "x".repeat(64));
}

#[tokio::test]
async fn an_action_that_cannot_be_recorded_is_not_done() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::query("alter table operator_actions rename to away")
        .execute(&mut database)
        .await
        .unwrap();
    let refused = app.operate(&id, "pause").await.no(503, "unavailable");
    assert!(refused.text("detail").contains("nothing was done"), "{refused:?}");
    assert_eq!(refused.body["nothing_done"], true);
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
    sqlx::query("alter table away rename to operator_actions")
        .execute(&mut database)
        .await
        .unwrap();
    app.operate(&id, "pause").await.ok(200);
    let TestApp { instance, .. } = app;
    drop(instance.may_log_errors());
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
async fn an_outcome_that_cannot_be_recorded_does_not_change_the_answer() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    let sabotage = "create function never() returns trigger language plpgsql as \
        $$ begin raise exception 'never' using errcode = '57000'; end $$; \
        create trigger never before update on operator_actions for each row execute function never()";
    sqlx::raw_sql(sabotage).execute(&mut database).await.unwrap();
    let request = app.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{id}/pause"));
    app.send(request.header("X-Request-Id", "named-in-the-log"))
        .await
        .ok(200);
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "paused");
    assert_eq!(actions(&app, "").await[0]["outcome"], Value::Null);
    let said = app.logged("could not record the outcome of an action").await;
    assert!(said.contains("named-in-the-log"), "{said}");
}

#[tokio::test]
async fn a_path_that_changes_by_decoding_is_no_path() {
    let app = TestApp::start_api_only().await;
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
async fn an_action_that_may_still_go_on_has_no_outcome() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; select from sales for update")
        .execute(&mut database)
        .await
        .unwrap();
    app.operate(&id, "pause").await.no(503, "unavailable");
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
    let last = actions(&app, "").await[0].clone();
    assert_eq!(
        (&last["action"], &last["outcome"]),
        (&json!("sales.pause"), &Value::Null)
    );
}

#[tokio::test]
async fn a_sign_out_whose_client_hangs_up_leaves_an_outcome() {
    let app = TestApp::start_api_only().await;
    let ada = Operator::sign_in(&app).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; select from console_sessions for update")
        .execute(&mut database)
        .await
        .unwrap();
    hang_up(&app, ada.asks(&app, Method::DELETE, SESSION)).await;
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
    poll::answer("its outcome is recorded", || async {
        let last = actions(&app, "").await[0].clone();
        (last["action"] == "session.delete" && last["outcome"] == "done").then_some(())
    })
    .await;
    assert!(!ada.is_signed_in(&app).await);
}

#[tokio::test]
async fn nobody_keeps_what_operators_and_shoppers_are_answered() {
    let app = TestApp::start_api_only().await;
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
    let app = TestApp::start_api_only().await;
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
async fn an_action_whose_process_died_has_no_outcome() {
    let mut app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; select from sales for update")
        .execute(&mut database)
        .await
        .unwrap();
    let (client, sale) = (Client::at(&app.url), id.clone());
    let pause = tokio::spawn(async move {
        let request = client.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{sale}/pause"));
        request.send().await.is_err()
    });
    let mut other = app.database().await;
    poll::within(PATIENCE, "the action has begun", async || {
        count(&mut other, "operator_actions where outcome is null").await == 1
    })
    .await;
    app.instance.kill();
    assert!(pause.await.unwrap());
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
    let again = app.another("api");
    let last = actions(&again, "").await[0].clone();
    assert_eq!(
        (&last["action"], &last["outcome"]),
        (&json!("sales.pause"), &Value::Null)
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_an_outcome() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; select from sales for update")
        .execute(&mut database)
        .await
        .unwrap();
    let path = format!("/v1/admin/sales/{id}/pause");
    hang_up(&app, app.request(Method::POST, Who::Operator, &path)).await;
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
    poll::answer("its outcome is recorded", || async {
        let last = actions(&app, "").await[0].clone();
        (last["action"] == "sales.pause" && last["outcome"] == "done").then_some(())
    })
    .await;
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "paused");
}

#[tokio::test]
async fn the_audit_log_forgets_by_age_alone() {
    let app = TestApp::start_api_only().await;
    let mut database = app.database().await;
    let insert = "insert into operator_actions (actor, action, begun_at) \
        select 'api_key', 'sales.open', now() - interval '91 days' from generate_series(1, 10); \
        insert into operator_actions (actor, action) select 'api_key', 'sales.pause' from generate_series(1, 100100)";
    sqlx::raw_sql(insert).execute(&mut database).await.unwrap();
    let ledger = Ledger::connect(&app.environment["FLASHSALE_DATABASE_URL"], ConnectionPools::default())
        .await
        .unwrap();
    for forgotten in [Some(6), Some(4), None] {
        assert_eq!(ledger.forget_actions(90, 6).await.unwrap(), forgotten);
    }
    assert_eq!(count(&mut database, "operator_actions").await, 100_100);
    assert_eq!(
        count(&mut database, "operator_actions where action = 'sales.open'").await,
        0
    );
}

/// With the role that the instance serves with.
#[tokio::test]
async fn nobody_changes_or_deletes_what_is_in_the_audit_log() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    app.operate(&id, "pause").await.ok(200);
    let before = actions(&app, "").await;
    let mut database = app.database().await;
    for sabotage in [
        "delete from operator_actions",
        "truncate operator_actions",
        "update operator_actions set operator = 'eve'",
        "update operator_actions set begun_at = now() - interval '91 days'",
        "update operator_actions set outcome = 'refused'",
        "update operator_actions set outcome = null, ended_at = null",
        "update operator_actions set sale_id = gen_random_uuid()",
    ] {
        let refused = sqlx::raw_sql(sabotage).execute(&mut database).await.unwrap_err();
        assert!(refused.to_string().contains("append-only"), "{sabotage}: {refused}");
    }
    assert_eq!(actions(&app, "").await, before);
}

#[tokio::test]
async fn each_action_is_a_line_in_the_log_before_it_begins_and_one_with_its_outcome() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; select from sales for update")
        .execute(&mut database)
        .await
        .unwrap();
    let (client, sale) = (Client::clone(&app), id.clone());
    let pause = tokio::spawn(async move {
        let request = client.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{sale}/pause"));
        client
            .send(request.header("X-Operator", "Ada").json(&json!({"why": "a test"})))
            .await
    });
    let lines = |message: &'static str| {
        let lines = app.log();
        let lines: Vec<Value> = lines
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        lines
            .into_iter()
            .filter(|line| line["message"] == message && line["target"] == "flashsale::audit_log")
            .collect::<Vec<_>>()
    };
    // It waits for the lock, so it has done nothing.
    let begun = poll::answer("the line is there", || async {
        lines("an action begins")
            .into_iter()
            .find(|line| line["action"] == "sales.pause")
    })
    .await;
    assert_eq!(
        json!([
            begun["actor"],
            begun["operator"],
            begun["address"],
            begun["sale_id"],
            begun["detail"]
        ]),
        json!(["api_key", "Ada", "127.0.0.1", id, "{\"why\":\"a test\"}"])
    );
    assert!(
        lines("an action has ended")
            .iter()
            .all(|line| line["action_id"] != begun["action_id"])
    );
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
    pause.await.unwrap().ok(200);
    poll::answer("the outcome is there", || async {
        let ended = lines("an action has ended");
        ended
            .into_iter()
            .find(|line| line["action_id"] == begun["action_id"] && line["outcome"] == "done")
    })
    .await;
}

#[tokio::test]
async fn reads_of_shoppers_data_and_refusals_for_lack_of_authority_are_in_the_audit_log() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    for _ in 0..3 {
        app.get(Who::Operator, "/v1/admin/orders?user=ada").await.ok(200);
    }
    app.get(Who::Operator, "/v1/admin/orders?user=bob").await.ok(200);
    app.get(Who::Operator, "/v1/admin/bans?user=ada").await.ok(200);
    app.get(Who::Operator, &format!("/v1/admin/orders/{order}"))
        .await
        .ok(200);
    app.get(Who::Operator, "/v1/admin/alerts").await.ok(200);
    app.get(Who::Operator, &format!("/v1/admin/sales/{id}/dead-letters"))
        .await
        .ok(200);
    let entries = |all: &[Value]| -> Vec<Value> {
        let entries = all
            .iter()
            .map(|it| json!([it["actor"], it["action"], it["detail"], it["outcome"]]));
        entries.collect()
    };
    let expected = [
        json!(["api_key", "sales.dead-letters.read", {}, "done"]),
        json!(["api_key", "alerts.read", {}, "done"]),
        json!(["api_key", "orders.read", {"id": order}, "done"]),
        json!(["api_key", "bans.read", {"user": "ada"}, "done"]),
        json!(["api_key", "orders.read", {"user": "bob"}, "done"]),
        json!(["api_key", "orders.read", {"user": "ada"}, "done"]),
    ];
    assert_eq!(entries(&actions(&app, "?limit=6").await), expected);
    let ada = Operator::sign_in(&app).await;
    app.post(Who::Bearer("wrong"), &format!("/v1/admin/sales/{id}/close"))
        .await
        .no(401, "unauthenticated");
    app.get(Who::Bearer("wrong"), "/v1/admin/orders?user=ada")
        .await
        .no(401, "unauthenticated");
    try_to_sign_in(&app, "wrong").await.no(401, "unauthenticated");
    let forged = ada.with_cookie(&app, Method::POST, &format!("/v1/admin/sales/{id}/pause"));
    app.send(forged).await.no(403, "console_token_required");
    // The answers do not wait for their entries.
    let mut refused = poll::answer("the refusals are recorded", || async {
        let all = entries(&actions(&app, "?limit=10").await);
        let refused: Vec<Value> = all
            .into_iter()
            .filter(|it| it[0] == "nobody" && it[3].is_string())
            .collect();
        (refused.len() == 4).then_some(refused)
    })
    .await;
    refused.sort_by_key(ToString::to_string);
    let expected = [
        json!(["nobody", "orders.read", {}, "unauthenticated"]),
        json!(["nobody", "sales.close", {}, "unauthenticated"]),
        json!(["nobody", "sales.pause", {}, "console_token_required"]),
        json!(["nobody", "session.create", {}, "unauthenticated"]),
    ];
    assert_eq!(refused, expected);
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
}

#[tokio::test]
async fn the_audit_log_has_the_query_of_an_action_and_the_reads_of_each_operator() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    app.post(Who::Operator, &format!("/v1/admin/sales/{id}/rebuild?dry_run=true"))
        .await
        .ok(200);
    for name in ["Ada", "Bob", "Ada"] {
        let request = app.request(Method::GET, Who::Operator, "/v1/admin/orders?user=ada");
        app.send(request.header("X-Operator", name)).await.ok(200);
    }
    let logged = actions(&app, "?limit=3").await;
    let logged = logged
        .iter()
        .map(|it| json!([it["operator"], it["action"], it["detail"]]));
    let expected = [
        json!(["Bob", "orders.read", {"user": "ada"}]),
        json!(["Ada", "orders.read", {"user": "ada"}]),
        json!([null, "sales.rebuild", {"dry_run": "true"}]),
    ];
    assert_eq!(logged.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn an_operator_cannot_fill_the_audit_log_with_refused_actions() {
    let app = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let id = app.load_sale(&sale()).await;
    let lift = async |address: &str| {
        let request = app.request(Method::POST, Who::Operator, "/v1/admin/bans/lift");
        let request = request.header("X-Forwarded-For", address);
        app.send(request.json(&json!({"user": "nobody"}))).await
    };
    // Several at once: all of them must be within a minute.
    for _ in 0..30 {
        for answer in futures_util::future::join_all((0..20).map(|_| lift("192.0.2.1"))).await {
            answer.no(404, "not_found");
        }
    }
    let refused = lift("192.0.2.1").await.no(429, "rate_limited");
    assert!((1..=60).contains(&refused.retry_after()), "{refused:?}");
    let mut database = app.database().await;
    let before = count(&mut database, "operator_actions").await;
    for _ in 0..20 {
        lift("192.0.2.1").await.no(429, "rate_limited");
    }
    assert_eq!(count(&mut database, "operator_actions").await, before);
    // Another operator is not delayed, and nobody who stops a sale is.
    lift("192.0.2.2").await.no(404, "not_found");
    let pause = app.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{id}/pause"));
    app.send(pause.header("X-Forwarded-For", "192.0.2.1")).await.ok(200);
}

#[tokio::test]
async fn many_who_show_wrong_keys_are_sixty_entries_in_a_minute() {
    let app = TestApp::with("api", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let began = std::time::Instant::now();
    for number in 0..100 {
        let request = app.request(Method::GET, Who::Bearer("wrong"), "/v1/admin/sales");
        let request = request.header("X-Forwarded-For", format!("198.51.100.{number}"));
        app.send(request).await.no(401, "unauthenticated");
    }
    let mut database = app.database().await;
    let refusals = "operator_actions where actor = 'nobody'";
    poll::within(PATIENCE, "the refusals are recorded", async || {
        count(&mut database, refusals).await >= 60
    })
    .await;
    // One more may have been recorded in each second since the minute began.
    let recorded = count(&mut database, refusals).await;
    let most = 65 + began.elapsed().as_secs();
    assert!(u64::try_from(recorded).unwrap() <= most, "{recorded}, not {most}");
}

#[tokio::test]
async fn a_draft_is_changed_by_the_same_rules_as_it_is_created_and_nothing_else_is() {
    let app = TestApp::start().await;
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

/// The events of a stream.
struct Events {
    response: Response,
    text: String,
}

impl Events {
    async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
        }
    }

    /// The data of the next event of this name; nothing at the end of the stream.
    async fn next(&mut self, name: &str) -> Option<Value> {
        let reading = async {
            loop {
                while let Some((event, rest)) = self.text.split_once("\n\n") {
                    let data = event.strip_prefix(&format!("event: {name}\ndata: ")).map(str::to_owned);
                    self.text = rest.to_owned();
                    if let Some(data) = data {
                        return Some(serde_json::from_str(&data).unwrap());
                    }
                }
                let chunk = self.response.chunk().await.unwrap()?;
                self.text += std::str::from_utf8(&chunk).unwrap();
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
        read.unwrap_or_else(|_| panic!("no event {name} in time"))
    }
}

/// A sample has exactly the members of its document.
fn assert_as_described(sample: &Value) {
    let described = document::validator(&json!({"$ref": "#/components/schemas/LiveSample"}), true);
    let wrong: Vec<String> = described.iter_errors(sample).map(|it| it.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {sample}");
}

#[tokio::test]
async fn a_sale_is_followed_live_by_sample() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 4, "stock": 6}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let ada = Operator::sign_in(&app).await;
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    assert_eq!(live.next("course").await.unwrap(), json!([]));
    let first = live.next("sample").await.unwrap();
    assert_as_described(&first);
    let sale = &first["sale"];
    assert_eq!(
        (&sale["state"], &sale["items"][0]["available"]),
        (&json!("open"), &json!(6))
    );
    assert_eq!(sale["shards"].as_array().unwrap().len(), 4);
    assert_eq!(first["point"]["accepted"], Value::Null, "there is no earlier sample");
    for server in ["redis", "postgres"] {
        assert!(
            first["health"][server]["milliseconds"].as_f64().unwrap() >= 0.0,
            "{first}"
        );
        assert_eq!(first["health"][server]["fault"], Value::Null);
    }
    // One shopper takes all of it, so the home shard has to borrow; another one comes too late.
    for key in ["a", "b"] {
        app.buy("ada", &id, key, 2).await.ok(201);
    }
    app.buy("bob", &id, "k", 2).await.ok(201);
    for user in ["cyd", "dan"] {
        app.buy(user, &id, "k", 1).await.no(409, "sold_out");
    }
    let (mut accepted, mut sold_out, mut answered) = (0, 0, 0);
    let last = loop {
        let sample = live.next("sample").await.unwrap();
        let point = &sample["point"];
        accepted += point["accepted"].as_i64().unwrap();
        sold_out += point["answers"]["sold_out"].as_i64().unwrap_or(0);
        answered += point["answers"]["reserved"].as_i64().unwrap_or(0);
        assert_eq!(
            point["p50"].is_f64(),
            !point["answers"].as_object().unwrap().is_empty(),
            "{point}"
        );
        if accepted == 3 && sold_out == 2 && answered == 3 && sample["sale"]["orders"]["reserved"] == 3 {
            break sample;
        }
    };
    assert_eq!(last["sale"]["items"][0]["held"], 6);
    let received: i64 = last["sale"]["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["units"][4].as_i64().unwrap())
        .sum();
    assert!(received > 0, "some were borrowed: {last}");
    // A viewer who comes later gets the course of it.
    let mut other = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let course = other.next("course").await.unwrap();
    let seen: i64 = course
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|point| point["accepted"].as_i64())
        .sum();
    assert_eq!(seen, 3);
    other.next("sample").await.unwrap();
}

/// A number of each shard.
fn each_shard(shards: &Value, count: impl Fn(&Value) -> Value) -> Vec<i64> {
    let shards = shards.as_array().unwrap().iter();
    shards.map(|shard| count(shard).as_i64().unwrap()).collect()
}

/// Of each shard, the units that have left it and whose arrival it does not know.
async fn in_transit(client: &Client, sale: &str) -> Vec<i64> {
    let stats = client.stats(sale).await;
    each_shard(&stats["shards"], |shard| shard["in_transit"]["phone"].clone())
}

#[tokio::test]
async fn a_shard_reports_units_on_their_way_until_it_learns_of_their_arrival() {
    for (point, is_there) in [("transfer.after_out", false), ("transfer.after_in", true)] {
        let mut app = TestApp::with("api", &[("FLASHSALE_CRASH_AT", point)]).await;
        let id = app.load_sale(&sale_with(&json!({"shards": 3, "stock": 9}))).await;
        assert_eq!(in_transit(&app, &id).await, [0; 3]);
        // The home shard has three, so that two have to come from another one; there, the process ends.
        let body = json!({"sku": "phone", "quantity": 5});
        assert!(app.buying("ada", &id, "k").json(&body).send().await.is_err(), "{point}");
        app.environment.remove("FLASHSALE_CRASH_AT");
        let observer = app.another("api");
        let stats = observer.stats(&id).await;
        let sent = each_shard(&stats["shards"], |shard| shard["sent"]["phone"].clone());
        let units: i64 = sent.iter().sum();
        assert_eq!(sent.iter().filter(|sent| **sent > 0).count(), 1, "{stats}");
        // Arrived units are free there; their sender does not know yet.
        assert_eq!(
            stats["items"][0]["in_transit"],
            if is_there { 0 } else { units },
            "{stats}"
        );
        assert_eq!(in_transit(&observer, &id).await, sent, "{point}");
        let path = format!("/v1/admin/sales/{id}/live");
        let mut live = Events::open(observer.request(Method::GET, Who::Operator, &path)).await;
        let sample = live.next("sample").await.unwrap();
        let shards = &sample["sale"]["shards"];
        assert_eq!(each_shard(shards, |shard| shard["units"][5].clone()), sent, "{sample}");
        assert_eq!(
            each_shard(shards, |shard| shard["items"]["phone"][5].clone()),
            sent,
            "{sample}"
        );
        let _worker = app.another("worker");
        poll::within(Duration::from_secs(30), "the lender knows of it", async || {
            in_transit(&observer, &id).await == [0; 3]
        })
        .await;
        observer.assert_balanced(&id).await;
    }
}

#[tokio::test]
async fn a_signed_out_operator_no_longer_sees_the_sale() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let ada = Operator::sign_in(&app).await;
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    live.next("sample").await.unwrap();
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    assert!(live.next("signed_out").await.is_some());
    assert!(live.next("sample").await.is_none(), "the stream has ended");
    let again = app.send(ada.with_cookie(&app, Method::GET, &path)).await;
    again.no(401, "unauthenticated");

    // The same if another operator ends the session.
    let bob = Operator::sign_in(&app).await;
    let mut live = Events::open(bob.with_cookie(&app, Method::GET, &path)).await;
    live.next("sample").await.unwrap();
    let session = app.get(Who::Operator, SESSIONS).await.ok(200).body["data"][0]["session_id"].clone();
    let end = app.request(Method::POST, Who::Operator, "/v1/admin/sessions/end");
    app.send(end.json(&json!({"session_id": session}))).await.ok(200);
    assert!(live.next("signed_out").await.is_some());
}

#[tokio::test]
async fn a_page_of_another_site_reads_nothing_with_the_cookie_of_an_operator() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    for path in ["/v1/admin/sales".to_owned(), format!("/v1/admin/sales/{id}/audit")] {
        for (site, status) in [
            ("same-origin", 200),
            ("none", 200),
            ("same-site", 401),
            ("cross-site", 401),
        ] {
            let request = ada.with_cookie(&app, Method::GET, &path).header("Sec-Fetch-Site", site);
            let answer = app.send(request).await;
            assert_eq!(answer.status, status, "{path} {site}");
        }
    }
}

/// No process can ask Postgres then whether the session has ended. Without jobs: one of them deletes sessions.
#[tokio::test]
async fn a_stream_ends_when_its_session_was_to_end_also_while_postgres_is_away() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    let mut database = app.database().await;
    sqlx::raw_sql("update console_sessions set expires_at = now() + interval '10 seconds'")
        .execute(&mut database)
        .await
        .unwrap();
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path)).await;
    let mut alerts = Events::open(ada.with_cookie(&app, Method::GET, "/v1/admin/alerts/stream")).await;
    sqlx::raw_sql("alter table console_sessions rename to away")
        .execute(&mut database)
        .await
        .unwrap();
    assert!(live.next("signed_out").await.is_some());
    // Alerts may come before it ends.
    while alerts.next("alert").await.is_some() {}
}

#[tokio::test]
async fn a_stream_ends_with_the_session_that_it_was_asked_for_with_and_with_no_other() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let ada = Operator::sign_in(&app).await;
    let path = format!("/v1/admin/sales/{id}/live");
    // Judged by the key; the cookie only came along.
    let mut live = Events::open(ada.with_cookie(&app, Method::GET, &path).bearer_auth(ADMIN_KEY)).await;
    let mut alerts = Events::open(ada.with_cookie(&app, Method::GET, "/v1/admin/alerts/stream")).await;
    app.send(ada.asks(&app, Method::DELETE, SESSION)).await.ok(200);
    assert!(alerts.next("alert").await.is_none(), "the stream has ended");
    // More than can have been sent before that.
    for _ in 0..15 {
        assert!(live.next("sample").await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purchases_that_the_gateway_refuses_are_seen_live() {
    let app = TestApp::with("all", &[("FLASHSALE_GATEWAY_RATE", "1")]).await;
    let id = app.load_sale(&sale_with(&json!({"stock": 1000}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let keys: Vec<String> = (0..30).map(|number| format!("k{number}")).collect();
    let answers = futures_util::future::join_all(keys.iter().map(|key| app.buy("ada", &id, key, 1))).await;
    // A request that could not buy anything is no purchase.
    for _ in 0..5 {
        app.get(Who::Nobody, &format!("/v1/sales/{id}")).await;
    }
    let refused = answers.iter().filter(|answer| answer.status == 503).count();
    assert!(refused > 0);
    // By which limit, and not by a less specific code.
    let (mut seen, mut all) = (0, 0);
    while all < answers.len() as u64 {
        let point = live.next("sample").await.unwrap()["point"].clone();
        let counts = point["answers"].as_object().unwrap();
        seen += counts.get("instance_limit").map_or(0, |count| count.as_u64().unwrap());
        all += counts.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
    }
    assert_eq!((seen, all), (refused as u64, answers.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purchases_refused_before_any_check_are_counted_and_seen_live() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let body = json!({"sku": "phone", "quantity": 1});
    let orders = format!("/v1/sales/{id}/orders");
    let claims = json!({"sub": "ada", "exp": Utc::now().timestamp() + 100});
    let foreign = token_of(&Header::default(), "of another instance, and long enough", &claims);
    let foreign = app.request(Method::POST, Who::Bearer(&foreign), &orders);
    app.send(foreign.header("Idempotency-Key", "k").json(&body))
        .await
        .no(401, "unauthenticated");
    let keyless = app.request(Method::POST, Who::Shopper("ada"), &orders);
    app.send(keyless.json(&body)).await.no(400, "idempotency_key_missing");
    app.send(app.buying("ada", &id, "k").body("nonsense"))
        .await
        .no(400, "invalid_request");
    app.buy("ada", &id, "k", 0).await.no(400, "invalid_request");
    app.send(app.buying("ada", &id, "k").body("x".repeat(17_000)))
        .await
        .no(413, "payload_too_large");
    // It names no sale, so only the instance counts it.
    app.buy("ada", "no-uuid", "k", 1).await.no(404, "not_found");
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    // They are sent within a second or two.
    for _ in 0..10 {
        let point = live.next("sample").await.unwrap()["point"].clone();
        assert_eq!(point["p99"], Value::Null, "no purchase was checked");
        for (code, count) in point["answers"].as_object().unwrap() {
            *seen.entry(code.clone()).or_default() += count.as_u64().unwrap();
        }
        if seen.values().sum::<u64>() >= 5 {
            break;
        }
    }
    let metrics = app.get(Who::Nobody, "/metrics").await.text;
    for (code, count) in [
        ("unauthenticated", 1),
        ("idempotency_key_missing", 1),
        ("invalid_request", 2),
        ("payload_too_large", 1),
    ] {
        assert_eq!(seen.get(code), Some(&count), "{seen:?}");
        let line = format!("flashsale_purchases_total{{outcome=\"{code}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

/// How many instances a sample reports as not silent.
fn heard(sample: &Value) -> usize {
    let instances = sample["instances"].as_array().unwrap();
    instances.iter().filter(|it| it["silent_seconds"].is_null()).count()
}

/// The purchases of all samples.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    reserved: u64,
    sold_out: u64,
}

impl Seen {
    fn add(&mut self, sample: &Value) {
        let count = |answer: &str| sample["point"]["answers"][answer].as_u64().unwrap_or(0);
        self.reserved += count("reserved");
        self.sold_out += count("sold_out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_any_instance_are_seen_live_on_every_instance_and_once() {
    let app = TestApp::start().await;
    let mut other = app.another("api");
    let id = app.load_sale(&sale_with(&json!({"stock": 1}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live.next("sample").await.unwrap()) < 2 {}
    let mut live_there = Events::open(other.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live_there.next("sample").await.unwrap()) < 2 {}
    other.buy("ada", &id, "k", 1).await.ok(201);
    for user in ["bob", "cyd", "dan"] {
        other.buy(user, &id, "k", 1).await.no(409, "sold_out");
    }
    app.buy("eve", &id, "k", 1).await.no(409, "sold_out");
    let all = Seen {
        reserved: 1,
        sold_out: 4,
    };
    for feed in [&mut live, &mut live_there] {
        let (mut seen, patience) = (Seen::default(), Patience::of(PATIENCE));
        while seen.reserved < all.reserved || seen.sold_out < all.sold_out {
            assert!(!patience.is_over(), "not in time: {seen:?}");
            let sample = feed.next("sample").await.unwrap();
            let point = &sample["point"];
            assert_eq!(
                point["p99"].is_f64(),
                !point["answers"].as_object().unwrap().is_empty(),
                "{point}"
            );
            assert_eq!(sample["others_fault"], Value::Null);
            seen.add(&sample);
        }
        for _ in 0..3 {
            seen.add(&feed.next("sample").await.unwrap());
        }
        assert_eq!(seen, all, "each of them is sent once");
    }
    // A killed instance is silent first, and then no longer listed.
    let name = live.next("sample").await.unwrap()["instances"][1]["name"].clone();
    drop(live_there);
    other.kill();
    let patience = Patience::of(PATIENCE);
    let (mut was_silent, mut seen) = (false, Seen::default());
    loop {
        assert!(!patience.is_over(), "it is still listed");
        let sample = live.next("sample").await.unwrap();
        seen.add(&sample);
        let instances = sample["instances"].as_array().unwrap();
        let Some(dead) = instances.iter().find(|it| it["name"] == name) else {
            break;
        };
        was_silent |= dead["silent_seconds"].is_f64();
    }
    assert!(was_silent);
    assert_eq!(seen, Seen::default(), "earlier counts are not sent again");
}

#[tokio::test]
async fn a_sale_that_nobody_watches_any_more_is_not_counted_anywhere() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    while heard(&live.next("sample").await.unwrap()) < 2 {}
    drop(live);
    let mut database = app.database().await;
    // A viewer who reloads the page finds it counted; after that, no instance sends any more. Each sends once a second.
    let silent = "select coalesce(max(told_at) < clock_timestamp() - interval '3 seconds', true) from told_counts";
    poll::within(Duration::from_secs(60), "no instance sends anything", async || {
        sqlx::query_scalar(silent).fetch_one(&mut database).await.unwrap()
    })
    .await;
    drop(other);
}

#[tokio::test]
async fn counts_of_others_that_cannot_be_read_leave_the_own_ones() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let mut database = app.database().await;
    // Later counts are new.
    live.next("sample").await.unwrap();
    // As while Postgres does not answer, which would halt the rest as well.
    let mut transaction = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("lock table told_counts")
        .execute(&mut *transaction)
        .await
        .unwrap();
    app.buy("ada", &id, "k", 1).await.ok(201);
    let mut seen = Seen::default();
    loop {
        let sample = live.next("sample").await.unwrap();
        seen.add(&sample);
        if sample["others_fault"].is_string() && seen.reserved == 1 {
            assert_eq!(heard(&sample), 1);
            assert_eq!(sample["sale"]["state"], "open", "the rest of it is sent");
            break;
        }
    }
    transaction.rollback().await.unwrap();
    while live.next("sample").await.unwrap()["others_fault"].is_string() {}
}

#[tokio::test]
async fn as_many_may_watch_as_there_are_places_and_no_sale_that_is_none() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    app.get(Who::Nobody, &path).await.no(401, "unauthenticated");
    let stranger = format!("/v1/admin/sales/{}/live", uuid::Uuid::new_v4());
    app.get(Who::Operator, &stranger).await.no(404, "not_found");
    app.post(Who::Operator, &path).await.no(405, "method_not_allowed");
    let mut viewers = Vec::new();
    for _ in 0..64 {
        viewers.push(Events::open(app.request(Method::GET, Who::Operator, &path)).await);
    }
    app.get(Who::Operator, &path).await.no(503, "overloaded");
    for viewer in &mut viewers {
        viewer.next("sample").await.unwrap();
    }
    drop(viewers);
    poll::answer("a place is free again", || async {
        let request = app.request(Method::GET, Who::Operator, &path);
        let response = request.send().await.unwrap();
        (response.status().as_u16() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_with_its_instance_without_delay() {
    let mut app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    let took = app.instance.terminate();
    // Less than the ten seconds that open requests get.
    assert!(took < Duration::from_secs(8), "{took:?}");
    while live.next("sample").await.is_some() {}
}

#[tokio::test]
async fn while_postgres_is_away_a_sample_has_the_units_and_the_backlog() {
    let mut postgres = servers::FreshPostgres::start().await;
    let environment = environment(&servers::redis(), &postgres.url());
    let instance = Instance::start(&environment, "all").may_log_errors();
    let id = instance.load_sale(&sale_with(&json!({"stock": 5}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(instance.request(Method::GET, Who::Operator, &path)).await;
    let before = live.next("sample").await.unwrap();
    assert_eq!(
        (&before["sale"]["state"], &before["stock"]),
        (&json!("open"), &Value::Null)
    );
    postgres.stop();
    for shopper in ["ada", "bob"] {
        instance.buy(shopper, &id, "k", 1).await.ok(201);
    }
    loop {
        let sample = live.next("sample").await.unwrap();
        assert_as_described(&sample);
        if sample["sale"].is_null() && sample["stock"]["undrained_events"] == 2 {
            let item = &sample["stock"]["items"][0];
            assert_eq!(
                (&item["total"], &item["available"], &item["held"]),
                (&json!(5), &json!(3), &json!(2))
            );
            assert!(!sample["stock"]["shards"].as_array().unwrap().is_empty());
            assert!(sample["fault"].is_string(), "{sample}");
            break;
        }
    }
    postgres.restart();
    while live.next("sample").await.unwrap()["sale"].is_null() {}
}

#[tokio::test]
async fn a_server_that_is_away_is_named_and_the_stream_goes_on() {
    let redis = servers::fresh_redis();
    let environment = environment(&redis.server.url(), &servers::database().await);
    let instance = Instance::start(&environment, "all").may_log_errors();
    let id = instance.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(instance.request(Method::GET, Who::Operator, &path)).await;
    live.next("sample").await.unwrap();
    drop(redis);
    loop {
        let sample = live.next("sample").await.unwrap();
        if sample["sale"].is_null() {
            assert!(sample["health"]["redis"]["fault"].is_string(), "{sample}");
            assert_eq!(sample["health"]["postgres"]["fault"], Value::Null, "{sample}");
            assert!(sample["fault"].is_string());
            break;
        }
    }
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

#[tokio::test]
async fn a_sale_that_starts_later_says_when_in_the_console_too() {
    let app = TestApp::start_api_only().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let id = app.load_sale(&sale_with(&json!({"starts_at": starts_at}))).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut live = Events::open(app.request(Method::GET, Who::Operator, &path)).await;
    let sample = live.next("sample").await.unwrap();
    assert_eq!(
        (&sample["sale"]["state"], &sample["sale"]["starts_at"]),
        (&json!("scheduled"), &json!(starts_at))
    );
    app.operate(&id, "open").await.ok(200);
    while live.next("sample").await.unwrap()["sale"]["state"] != "open" {}
}
