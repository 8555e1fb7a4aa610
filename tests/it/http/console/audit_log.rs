//! The audit log: what it records of operators' requests, and what a request is that cannot be recorded.

use super::{Operator, SESSION, actions, count, done, hang_up, sign_in_with, try_to_sign_in};
use crate::http::export;
use crate::support::app::{ADMIN_KEY, Client, TestApp, Who, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::ledger::Ledger;
use reqwest::Method;
use serde_json::{Value, json};

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
async fn the_audit_log_is_listed_and_exported_between_two_times() {
    const MINUTES: i64 = 2500;
    let app = TestApp::start_api_only().await;
    let sale = uuid::Uuid::new_v4();
    // An action a minute. Numbers grow with time, so these are the first ones.
    let insert = "insert into operator_actions \
         (begun_at, ended_at, actor, operator, address, action, sale_id, detail, outcome) \
         select begun_at, begun_at + interval '20 milliseconds', 'api_key', '=ada', '203.0.113.7', 'bans.create', \
         case when minute % 3 = 0 then $1 end, '{\"user\": \"a, b\"}'::jsonb, 'done' \
         from generate_series(0, $2 - 1) minute cross join lateral \
         (select timestamptz '2026-11-01T00:00:00Z' + minute * interval '1 minute' as begun_at) times \
         order by minute";
    sqlx::query(insert)
        .bind(sale)
        .bind(MINUTES)
        .execute(&mut app.database().await)
        .await
        .unwrap();
    let start: DateTime<Utc> = "2026-11-01T00:00:00Z".parse().unwrap();
    let at = |minute: i64| (start + TimeDelta::minutes(minute)).format("%FT%TZ").to_string();
    let minute_of = |action: &Value| {
        let begun: DateTime<Utc> = action["begun_at"].as_str().unwrap().parse().unwrap();
        (begun - start).num_minutes()
    };
    let listed = async |query: &str| -> Vec<i64> { actions(&app, query).await.iter().map(minute_of).collect() };
    for (from, to, expected) in [
        (Some(100), Some(103), &[102, 101, 100][..]),
        (None, Some(2), &[1, 0]),
        (Some(MINUTES - 2), None, &[MINUTES - 1, MINUTES - 2]),
        (Some(100), Some(100), &[]),
        (Some(MINUTES), None, &[]),
        (None, Some(0), &[]),
    ] {
        let bounds = [("from", from), ("to", to)].into_iter();
        let bounds = bounds.filter_map(|(name, minute)| Some(format!("{name}={}", at(minute?))));
        let query = format!("?{}", bounds.collect::<Vec<_>>().join("&"));
        assert_eq!(listed(&query).await, expected, "{query}");
    }
    let some = format!("?from={}&to={}", at(100), at(103));
    assert_eq!(listed(&format!("{some}&sale_id={sale}")).await, [102]);
    // Page by page.
    let path = format!("/v1/admin/actions{some}&limit=2");
    let page = app.get(Who::Operator, &path).await.ok(200).body;
    assert_eq!(page["has_more"], true);
    let last = page["data"][1]["id"].as_i64().unwrap();
    assert_eq!(listed(&format!("{some}&starting_after={last}")).await, [100]);
    for wrong in ["?from=x", "?to=2026-11-01", &format!("?from={}&to={}", at(1), at(0))] {
        let path = format!("/v1/admin/actions{wrong}");
        app.get(Who::Operator, &path).await.no(400, "invalid_request");
    }
    let printed = app.run(&["actions", "--from", &at(100), "--to", &at(103), "--json"]);
    let printed = printed.ended(0).json();
    assert_eq!(
        printed.as_array().unwrap().iter().map(minute_of).collect::<Vec<_>>(),
        [102, 101, 100]
    );

    let table = export(&app, &format!("/v1/admin/actions?from={}&to={}", at(99), at(100))).await;
    assert_eq!(table.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(
        table.headers()["content-disposition"],
        "attachment; filename=\"audit-log.csv\""
    );
    let heads = "id,begun_at,ended_at,actor,session_id,operator,address,action,sale_id,detail,outcome\r\n";
    assert_eq!(
        table.text().await.unwrap(),
        format!(
            "{heads}100,2026-11-01T01:39:00.000Z,2026-11-01T01:39:00.020Z,api_key,,'=ada,203.0.113.7,bans.create,\
             {sale},\"{{\"\"user\"\":\"\"a, b\"\"}}\",done\r\n"
        )
    );
    // More than one part of it, and each action once.
    let table = export(&app, &format!("/v1/admin/actions?to={}", at(MINUTES - 10))).await;
    let table = table.text().await.unwrap();
    let ids: Vec<i64> = table
        .lines()
        .skip(1)
        .map(|row| row.split(',').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(ids, (1..=MINUTES - 10).rev().collect::<Vec<_>>());
    assert_eq!(export(&app, "/v1/admin/actions?from=x").await.status(), 400);
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
            // Of so many, a busy machine leaves some without an answer. They count as well.
            assert!([404, 503].contains(&answer.status), "{answer:?}");
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
async fn a_key_cannot_fill_the_audit_log_with_stops_that_its_role_lacks() {
    let view = "9b74c9897bac770ffc029102a200c5de";
    let keys = format!("ada:view:{view}");
    let settings = [
        ("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1"),
        ("FLASHSALE_OPERATOR_KEYS", keys.as_str()),
    ];
    let app = TestApp::with("api", &settings).await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/pause");
    let pause = async || {
        let request = app.request(Method::POST, Who::Bearer(view), &path);
        app.send(request.header("X-Forwarded-For", "192.0.2.1")).await
    };
    for _ in 0..30 {
        for answer in futures_util::future::join_all((0..20).map(|_| pause())).await {
            answer.no(403, "forbidden");
        }
    }
    pause().await.no(429, "rate_limited");
    // Another key at this address is not delayed.
    let lift = app.request(Method::POST, Who::Operator, "/v1/admin/bans/lift");
    let lift = lift.header("X-Forwarded-For", "192.0.2.1");
    app.send(lift.json(&json!({"user": "nobody"})))
        .await
        .no(404, "not_found");
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
