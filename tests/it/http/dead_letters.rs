//! Events and messages that one side could not take from the other: listed for operators, dealt with, and no longer counted.

use crate::support::app::{Answer, Client, TestApp, Who, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::raw::Raw;
use flashsale::stock::keys::ShardKey;
use reqwest::Method;
use serde_json::{Value, json};

async fn settle(client: &Client, id: &str, position: &str, note: &str) -> Answer {
    let path = format!("/v1/admin/sales/{id}/dead-letters/settle");
    let request = client.request(Method::POST, Who::Operator, &path);
    client
        .send(request.json(&json!({"position": position, "note": note})))
        .await
}

/// Positions of the dead letters that are listed so.
async fn listed(app: &TestApp, id: &str, query: &str) -> Vec<String> {
    let page = app.admin(id, &format!("/dead-letters?{query}")).await.ok(200);
    let all = page.body["data"].as_array().unwrap().iter();
    all.map(|it| it["position"].as_str().unwrap().to_owned()).collect()
}

impl TestApp {
    /// Loads a sale of one shard, in which ada's order and two events without one cannot be stored. Returns the sale and
    /// the order.
    pub async fn load_sale_with_dead_letters(&self) -> (String, String) {
        let id = self.load_sale(&sale_with(&json!({"shards": 1}))).await;
        let order = self.buy("ada", &id, "k", 2).await.ok(201).id();
        let in_its_place = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, \
             amount_minor, currency, state, created_at, expires_at, resolved_at, epoch, seq) \
             values (gen_random_uuid(), $1::uuid, 0, 'phone', 'somebody', 'k', 1, 0, 'EUR', 'cancelled', now(), \
             now() + interval '1 hour', now(), 1, 1)";
        sqlx::query(in_its_place)
            .bind(uuid::Uuid::parse_str(&id).unwrap())
            .execute(&mut self.database().await)
            .await
            .unwrap();
        let events = ShardKey {
            sale: id.parse().unwrap(),
            shard: 0,
        }
        .events();
        let raw = Raw::connect(&self.environment["FLASHSALE_REDIS_URL"]);
        for value in ["\0\0", "<b>no event</b>"] {
            let mut add = redis::cmd("XADD");
            let _id: String = raw.call(add.arg(&events).arg("1-*").arg("reserved").arg(value));
        }
        (id, order)
    }

    /// Waits until so many dead letters of a sale are counted.
    pub async fn wait_for_dead_letters(&self, id: &str, count: u64) {
        poll::within(PATIENCE, "the dead letters are counted", async || {
            self.stats(id).await["alerts"]["dead_letters"] == count
        })
        .await;
    }

    /// Writes messages into the outbox that a shard has refused.
    pub async fn refuse(&self, id: &str, messages: &[Value]) {
        for message in messages {
            sqlx::query(
                "insert into outbox (sale_id, shard, message, failure) values ($1, 0, $2, 'the shard <says> no')",
            )
            .bind(uuid::Uuid::parse_str(id).unwrap())
            .bind(message)
            .execute(&mut self.database().await)
            .await
            .unwrap();
        }
    }
}

#[tokio::test]
async fn dead_letters_are_listed_and_dealt_with_once() {
    let mut app = TestApp::start_api_only().await;
    let (id, order) = app.load_sale_with_dead_letters().await;
    let worker = app.another("worker").may_log_errors();
    app.wait_for_dead_letters(&id, 3).await;
    let all = ["0:1-1", "0:1-2", "0:1-3"];
    assert_eq!(listed(&app, &id, "").await, all);
    assert_eq!(listed(&app, &id, "limit=2").await, all[..2]);
    assert_eq!(listed(&app, &id, "limit=2&starting_after=0:1-2").await, all[2..]);
    assert_eq!(listed(&app, &id, "settled=true").await, [""; 0]);
    let page = app.admin(&id, "/dead-letters?limit=2").await.ok(200).body;
    assert_eq!(page["has_more"], true);
    let [first, second] = [&page["data"][0], &page["data"][1]];
    assert_eq!((&first["order_id"], &first["bytes"]), (&json!(order), &Value::Null));
    assert!(
        first["reason"].as_str().unwrap().contains("another order in its place"),
        "{first}"
    );
    let event = &first["event"];
    assert_eq!(
        [
            &event["order_id"],
            &event["user"],
            &event["idempotency_key"],
            &event["sku"],
            &event["quantity"]
        ],
        [&json!(order), &json!("ada"), &json!("k"), &json!("phone"), &json!(2)]
    );
    assert_eq!(
        (&second["event"], &second["bytes"]),
        (&Value::Null, &json!("\\x00\\x00"))
    );
    assert_eq!(
        (&second["order_id"], &second["settled_at"]),
        (&Value::Null, &Value::Null)
    );
    // Once the shard is rebuilt, the audit names only events without an order.
    app.operate(&id, "rebuild").await.ok(200);
    let differences = async || app.admin(&id, "/audit").await.ok(200).body["differences"].clone();
    let named = differences().await;
    assert_eq!(named.as_array().unwrap().len(), 2, "{named}");
    assert!(named[0].as_str().unwrap().starts_with("shard 0: event 1-2 "), "{named}");

    let settled = settle(&app, &id, "0:1-2", " asked the <b>others</b> ").await.ok(200);
    assert_eq!(settled.text("note"), "asked the <b>others</b>");
    app.wait_for_dead_letters(&id, 2).await;
    assert_eq!(differences().await.as_array().unwrap().len(), 1);
    // A repetition is answered the same, by every instance; another note is not recorded.
    let other = app.another("api");
    let again = settle(&other, &id, "0:1-2", "asked the <b>others</b>").await.ok(200);
    assert_eq!(again.body, settled.body);
    let refused = settle(&other, &id, "0:1-2", "nothing")
        .await
        .no(409, "invalid_transition");
    assert!(
        refused.text("detail").contains("asked the <b>others</b>"),
        "{refused:?}"
    );
    app.wait_for_dead_letters(&id, 2).await;
    assert_eq!(listed(&app, &id, "settled=false").await, ["0:1-1", "0:1-3"]);
    let kept = app.admin(&id, "/dead-letters?settled=true").await.ok(200);
    assert_eq!(kept.body["data"], json!([settled.body]));

    // By command.
    let shown = app.run(&["dead-letters", "list", &id]).ended(0).stdout;
    for part in ["0:1-1", "ada", "phone", &order, "another order in its place", "0:1-3"] {
        assert!(shown.contains(part) && !shown.contains("0:1-2"), "{part}: {shown}");
    }
    app.environment
        .insert("FLASHSALE_OPERATOR".to_owned(), "Zoë".to_owned());
    let args = ["dead-letters", "settle", &id, "0:1-1", "--note", "informed ada"];
    for _ in 0..2 {
        assert_eq!(app.run(&args).ended(0).stdout, "0:1-1 is dealt with: informed ada\n");
    }
    let args = ["dead-letters", "settle", &id, "0:1-3", "--note", "none", "--json"];
    assert_eq!(app.run(&args).ended(0).json()["note"], "none");
    let settled = app
        .run(&["dead-letters", "list", &id, "--settled", "--json"])
        .ended(0)
        .json();
    assert_eq!(settled.as_array().unwrap().len(), 3);
    for (position, code) in [("0:1-1", "invalid_transition"), ("0:1-9", "not_found")] {
        let refused = app
            .run(&["dead-letters", "settle", &id, position, "--note", "x"])
            .ended(1);
        assert!(refused.stderr.contains(code), "{refused:?}");
    }
    for (position, note) in [("1-2", "x"), ("0:1-2", " ")] {
        app.run(&["dead-letters", "settle", &id, position, "--note", note])
            .ended(2);
    }
    app.wait_for_dead_letters(&id, 0).await;
    app.assert_balanced(&id).await;
    let read = app.admin(&id, "").await.ok(200);
    assert_eq!(read.body["id"], *id);
    let actions = app
        .get(Who::Operator, &format!("/v1/admin/actions?sale_id={id}"))
        .await
        .ok(200);
    let all = actions.body["data"].as_array().unwrap();
    let first = all
        .iter()
        .rfind(|it| it["action"] == "sales.dead-letters.settle")
        .unwrap();
    assert_eq!(
        (&first["outcome"], &first["detail"]),
        (
            &json!("done"),
            &json!({"position": "0:1-2", "note": " asked the <b>others</b> "})
        )
    );
    assert_eq!(
        (&all[0]["operator"], &all[0]["outcome"]),
        (&json!("Zoë"), &json!("not_found"))
    );
    drop(worker);
}

#[tokio::test]
async fn only_an_event_that_was_put_aside_can_be_dealt_with() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let nowhere = "019ac1f2-7c40-7d3a-9b1e-2f6a5c8e4d10";
    settle(&app, &id, "0:1-1", "x").await.no(404, "not_found");
    settle(&app, &id, "999:1-1", "x").await.no(404, "not_found");
    settle(&app, nowhere, "0:1-1", "x").await.no(404, "not_found");
    for list in ["/dead-letters", "/refused-messages"] {
        app.admin(nowhere, list).await.no(404, "not_found");
        let empty = app.admin(&id, list).await.ok(200);
        assert_eq!(empty.body, json!({"data": [], "has_more": false}));
    }
    for body in [
        json!({}),
        json!({"position": "0:1-1"}),
        json!({"note": "x"}),
        json!({"position": "0:01-1", "note": "x"}),
        json!({"position": 1, "note": "x"}),
        json!({"position": "0:1-1", "note": ""}),
        json!({"position": "0:1-1", "note": "a\nb"}),
        json!({"position": "0:1-1", "note": "a\u{202e}b"}),
        json!({"position": "0:1-1", "note": "x".repeat(201)}),
        json!({"position": "0:1-1", "note": "x", "shard": 0}),
    ] {
        let path = format!("/v1/admin/sales/{id}/dead-letters/settle");
        let request = app.request(Method::POST, Who::Operator, &path);
        app.send(request.json(&body)).await.no(400, "invalid_request");
    }
    for wrong in [
        "/dead-letters?starting_after=1-2",
        "/dead-letters?settled=no",
        "/refused-messages?starting_after=x",
        "/refused-messages?settled=true",
    ] {
        app.admin(&id, wrong).await.no(400, "invalid_request");
    }
}

#[tokio::test]
async fn decisions_that_shards_refuse_are_listed_until_the_sale_is_rebuilt() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 2).await.ok(201).id();
    let resolve = json!({"kind": "resolve", "order": order, "user": "ada", "sku": "phone", "quantity": 2, "state": "cancelled",
        "at": 0});
    app.refuse(
        &id,
        &[
            resolve,
            json!({"kind": "ban", "user": "bob"}),
            json!({"kind": "news"}),
            json!({}),
        ],
    )
    .await;
    assert_eq!(app.stats(&id).await["alerts"]["failed_releases"], 4);
    let page = app.admin(&id, "/refused-messages").await.ok(200).body;
    let messages = page["data"].as_array().unwrap();
    let kinds: Vec<_> = messages.iter().map(|it| it["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("resolve"), Some("ban"), None, None]);
    let first = &messages[0];
    for (member, expected) in [
        ("shard", json!(0)),
        ("order_id", json!(order)),
        ("order_state", json!("cancelled")),
        ("user", json!("ada")),
        ("sku", json!("phone")),
        ("units", json!(2)),
        ("failure", json!("the shard <says> no")),
    ] {
        assert_eq!(first[member], expected, "{member}");
    }
    let rest = format!("/refused-messages?limit=2&starting_after={}", first["id"]);
    let rest = app.admin(&id, &rest).await.ok(200).body;
    assert_eq!(
        (&rest["data"], &rest["has_more"]),
        (&json!(messages[1..3]), &json!(true))
    );
    // A redelivered message is no longer refused.
    app.operate(&id, "rebuild").await.ok(200);
    let left = app.admin(&id, "/refused-messages").await.ok(200).body;
    assert_eq!(left["data"], json!([]));
    assert_eq!(app.stats(&id).await["alerts"]["failed_releases"], 0);
    // A newer version may be able to read two of them.
    let waiting = "select count(*) from outbox where message ->> 'kind' is null or message ->> 'kind' = 'news'";
    let waiting: i64 = sqlx::query_scalar(waiting)
        .fetch_one(&mut app.database().await)
        .await
        .unwrap();
    assert_eq!(waiting, 2);
}

/// The counts that are read each second while somebody watches must not cost more with every settled event.
#[tokio::test]
async fn the_counts_of_pending_work_are_read_by_index() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let queries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| {
        let cached: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
        cached["query"].as_str().unwrap().to_owned()
    });
    let count = queries
        .filter(|query| query.contains("as \"dead!\""))
        .collect::<Vec<_>>();
    let [count] = &count[..] else { panic!("{count:?}") };
    let mut database = TestApp::start_api_only().await.database().await;
    for of_sale in ["null", "'019ac1f2-7c40-7d3a-9b1e-2f6a5c8e4d10'"] {
        let explained = format!(
            "explain {}",
            count
                .replace("$1::uuid", &format!("{of_sale}::uuid"))
                .replace("$1", of_sale)
        );
        for statement in [
            "insert into dead_letters (sale_id, shard, epoch, seq, event, reason, settled_at, note) \
             select gen_random_uuid(), 0, 1, n, '', '', now(), 'x' from generate_series(1, 5000) n",
            "analyze dead_letters",
        ] {
            sqlx::query(statement).execute(&mut database).await.unwrap();
        }
        let plan: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(explained))
            .fetch_all(&mut database)
            .await
            .unwrap();
        let plan = plan.join("\n");
        assert!(plan.contains("dead_letters_to_settle"), "{plan}");
    }
}
