//! For machines: alive, ready, counted.

use crate::support::app::{Answer, Client, Instance, Ran, TestApp, Who, environment, program, sale};
use crate::support::poll::PATIENCE;
use crate::support::raw::Raw;
use crate::support::{poll, servers};
use serde_json::{Value, json};

/// Waits until the instance answers that it is not ready: the answer may be half a second old.
pub async fn not_ready(instance: &Client, who: Who<'_>) -> Answer {
    poll::answer("the instance is not ready", || async {
        let answer = instance.get(who, "/readyz").await;
        (answer.status == 503).then(|| answer.no(503, "unavailable"))
    })
    .await
}

async fn is_ready(instance: &Client) {
    poll::answer("the instance is ready", || async {
        (instance.get(Who::Nobody, "/readyz").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_instance_answers_whether_it_runs_and_whether_it_is_ready() {
    let app = TestApp::start_api_only().await;
    app.get(Who::Nobody, "/healthz").await.ok(200);
    let ready = app.get(Who::Nobody, "/readyz").await.ok(200);
    assert_eq!(ready.body, json!({"status": "ready"}), "warnings are for operators");
    let ready = app.get(Who::Operator, "/readyz").await.ok(200);
    assert!(ready.body["warnings"].is_array(), "{ready:?}");
    let ready = app.get(Who::Bearer("wrong"), "/readyz").await.ok(200);
    assert_eq!(ready.body["warnings"], Value::Null);
    app.run(&["healthcheck"]).ended(1);
}

#[tokio::test]
async fn a_redis_that_evicts_is_not_ready_and_the_reason_says_what_to_do() {
    let redis = servers::fresh_redis();
    let raw = Raw::connect(&redis.server.url());
    let instance = Instance::start(&environment(&redis.server.url(), &servers::database().await), "api");
    instance.get(Who::Nobody, "/readyz").await.ok(200);
    let set =
        |policy: &str| -> String { raw.call(redis::cmd("CONFIG").arg("SET").arg("maxmemory-policy").arg(policy)) };
    for policy in ["allkeys-lru", "volatile-ttl"] {
        set(policy);
        let refused = not_ready(&instance, Who::Nobody).await;
        assert_eq!(refused.text("detail"), "not ready: redis may evict stock");
        let refused = not_ready(&instance, Who::Operator).await;
        assert!(refused.text("detail").contains(policy), "{refused:?}");
        set("noeviction");
        is_ready(&instance).await;
    }
    // The log names it once each time, with the reason.
    let said = |text: &str, why: &str| {
        let is_said = |line: &&str| line.contains(text) && line.contains(why);
        instance.log().lines().filter(is_said).count()
    };
    // A busy machine may have been not ready for other reasons, too.
    poll::eventually("the log has both ends", || {
        said("this instance is ready again", "") >= 2
    });
    assert_eq!(said("this instance is not ready", "evict"), 2);
    assert!(instance.log().contains("volatile-ttl"), "{}", instance.log());
}

#[tokio::test]
async fn settings_that_may_lose_orders_are_warned_of_and_the_instance_stays_ready() {
    let redis = servers::DurableRedis::start();
    let (raw, database) = (Raw::connect(&redis.url()), servers::database().await);
    let environment = environment(&redis.url(), &database);
    let instance = Instance::start(&environment, "api");
    let warnings = async |instance: &Instance| -> Vec<String> {
        let ready = instance.get(Who::Operator, "/readyz").await.ok(200);
        serde_json::from_value(ready.body["warnings"].clone()).unwrap()
    };
    assert_eq!(warnings(&instance).await, [""; 0]);
    for (name, bad, good) in [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("aof-load-truncated", "yes", "no"),
        ("maxmemory", "0", "500mb"),
    ] {
        let set = |value: &str| -> String { raw.call(redis::cmd("CONFIG").arg("SET").arg(name).arg(value)) };
        set(bad);
        let said = poll::answer(name, || async {
            let said = warnings(&instance).await;
            (said.len() == 1 && said[0].contains(name)).then_some(said)
        })
        .await;
        // The log names it once, at the start.
        let other = Instance::start(&environment, "api");
        warnings(&other).await;
        assert_eq!(other.log().matches(&said[0]).count(), 1, "{}", other.log());
        set(good);
    }
    // A managed Redis may keep its settings to itself.
    let mut refuse = redis::cmd("ACL");
    let _ok: String = raw.call(refuse.arg("SETUSER").arg("default").arg("-config"));
    poll::answer("the settings cannot be read", || async {
        let said = warnings(&instance).await;
        (said.len() == 1 && said[0].contains("cannot be read")).then_some(())
    })
    .await;
}

/// A listener of its own for machines is private: it answers the reason.
#[tokio::test]
async fn the_listeners_of_operators_and_machines_say_why_an_instance_is_not_ready() {
    let redis = servers::fresh_redis();
    let raw = Raw::connect(&redis.server.url());
    let mut environment = environment(&redis.server.url(), &servers::database().await);
    let ports = ["FLASHSALE_METRICS_LISTEN", "FLASHSALE_ADMIN_LISTEN"].map(|name| {
        let address = format!("127.0.0.1:{}", servers::free_port());
        environment.insert(name.to_owned(), address.clone());
        Client::at(&format!("http://{address}"))
    });
    let instance = Instance::start(&environment, "api");
    let mut set = redis::cmd("CONFIG");
    let _ok: String = raw.call(set.arg("SET").arg("maxmemory-policy").arg("allkeys-lru"));
    for private in &ports {
        let refused = not_ready(private, Who::Nobody).await;
        assert!(refused.text("detail").contains("allkeys-lru"), "{refused:?}");
    }
    let refused = not_ready(&instance, Who::Nobody).await;
    assert_eq!(refused.text("detail"), "not ready: redis may evict stock");
}

/// Shoppers wait for a locked table, on all connections of the shoppers' pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_pauses_a_sale_while_shoppers_hold_every_connection_of_theirs() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    sqlx::raw_sql("begin; lock table orders in access exclusive mode")
        .execute(&mut database)
        .await
        .unwrap();
    let crowd: Vec<_> = (0..100)
        .map(|n| {
            let (client, sale) = (Client::clone(&app), id.clone());
            tokio::spawn(async move {
                loop {
                    // Without the ledger, an order in Redis is 200; on a slow machine there is no answer in time.
                    let _listed = client.orders(&format!("shopper-{n}"), &sale).await;
                }
            })
        })
        .collect();
    let mut watch = app.database().await;
    let waiting =
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    poll::within(PATIENCE, "every connection is taken", async || {
        sqlx::query_scalar::<_, i64>(waiting)
            .fetch_one(&mut watch)
            .await
            .unwrap()
            // So many connections for shoppers has an instance of the tests.
            == 4
    })
    .await;
    for verb in ["pause", "resume", "pause"] {
        app.operate(&id, verb).await.ok(200);
    }
    assert!(crowd.iter().all(|shopper| !shopper.is_finished()));
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
    sqlx::raw_sql("rollback").execute(&mut database).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_is_behind_is_refused_at_the_start_and_not_ready_later() {
    let app = TestApp::start_api_only().await;
    let forget = "delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)";
    sqlx::query(forget).execute(&mut app.database().await).await.unwrap();
    let refused = not_ready(&app, Who::Nobody).await;
    assert_eq!(refused.text("detail"), "not ready: the schema is behind");
    let refused = not_ready(&app, Who::Operator).await;
    assert!(refused.text("detail").contains("flashsale migrate"), "{refused:?}");
    for role in ["all", "api", "worker"] {
        let ran = app.run(&["serve", "--role", role]).ended(1);
        let last = ran.stderr.lines().last().unwrap();
        assert!(last.contains("flashsale migrate"), "{ran:?}");
    }
}

#[tokio::test]
async fn migrate_brings_an_empty_database_up_and_again_changes_nothing() {
    let database = servers::database().await;
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&database)
        .await
        .unwrap();
    sqlx::raw_sql("drop schema public cascade; create schema public")
        .execute(&mut connection)
        .await
        .unwrap();
    let environment = environment(&servers::redis(), &database);
    Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(1);
    for _ in 0..2 {
        Ran::of(program(&environment, &["migrate"]).output().unwrap()).ended(0);
    }
    let instance = Instance::start(&environment, "all");
    instance.get(Who::Nobody, "/readyz").await.ok(200);
    let id = instance.load_sale(&sale()).await;
    instance.buy("ada", &id, "k", 1).await.ok(201);
    instance.assert_balanced(&id).await;
}

#[tokio::test]
async fn metrics_show_the_memory_of_the_process_and_of_redis() {
    let app = TestApp::start().await;
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .parse::<u64>()
            .unwrap()
    };
    let text = poll::answer("Redis is measured", || async {
        let text = app.get(Who::Nobody, "/metrics").await.ok(200).text;
        (value(&text, "flashsale_redis_servers") == 1).then_some(text)
    })
    .await;
    for (name, mebibytes) in [("resident", 5..2_000), ("redis", 0..500)] {
        let bytes = value(&text, &format!("flashsale_{name}_memory_bytes"));
        assert!(bytes > 0 && mebibytes.contains(&(bytes >> 20)), "{name}: {bytes}");
    }
}

#[tokio::test]
async fn metrics_are_prometheus_text_that_counts_what_happened() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada-with-a-name", &id, "k", 1).await.ok(201);
    app.buy("ada-with-a-name", &id, "k", 1).await.ok(200);
    app.buy("ada-with-a-name", &id, "k2", 5)
        .await
        .no(409, "purchase_limit_reached");
    app.wait_for_order("ada-with-a-name", &order.id(), "reserved").await;
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    let text = poll::answer("the drain is counted", || async {
        let metrics = app.get(Who::Nobody, "/metrics").await.ok(200);
        assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
        metrics
            .text
            .contains("flashsale_orders_drained_total 1")
            .then_some(metrics.text)
    })
    .await;
    for line in [
        "flashsale_purchases_total{outcome=\"reserved\"} 1",
        "flashsale_purchases_total{outcome=\"replayed\"} 1",
        "flashsale_purchases_total{outcome=\"purchase_limit_reached\"} 1",
        "flashsale_payments_total{outcome=\"applied\"} 1",
        "# TYPE flashsale_purchase_duration_seconds histogram",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    // The gauges of live sales are labelled by sale; nothing else may name one.
    let text = text.replace(&format!("sale=\"{id}\""), "");
    for private in ["ada-with-a-name", &id, &order.id()] {
        assert!(!text.contains(private), "{private}");
    }
}
