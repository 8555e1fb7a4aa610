//! For machines: alive, ready, counted.

use crate::support::app::{Instance, Ran, TestApp, Who, environment, program, sale};
use crate::support::raw::Raw;
use crate::support::{poll, servers};

#[tokio::test]
async fn an_instance_that_lives_and_can_work_says_so() {
    let app = TestApp::start_api_only().await;
    app.get(Who::Nobody, "/healthz").await.ok(200);
    app.get(Who::Nobody, "/readyz").await.ok(200);
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
        let refused = instance.get(Who::Nobody, "/readyz").await.no(503, "unavailable");
        assert!(refused.text("detail").contains(policy), "{refused:?}");
    }
    set("noeviction");
    instance.get(Who::Nobody, "/readyz").await.ok(200);
}

#[tokio::test]
async fn what_may_cost_orders_is_said_and_is_no_reason_not_to_be_ready() {
    let redis = servers::DurableRedis::start();
    let (raw, database) = (Raw::connect(&redis.url()), servers::database().await);
    let environment = environment(&redis.url(), &database);
    let instance = Instance::start(&environment, "api");
    let warnings = async |instance: &Instance| -> Vec<String> {
        let ready = instance.get(Who::Nobody, "/readyz").await.ok(200);
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
        let said = warnings(&instance).await;
        assert!(said.len() == 1 && said[0].contains(name), "{name}: {said:?}");
        // The log says it once, at the start.
        let other = Instance::start(&environment, "api");
        warnings(&other).await;
        assert_eq!(other.log().matches(&said[0]).count(), 1, "{}", other.log());
        set(good);
    }
    // A managed Redis may keep its settings to itself.
    let mut refuse = redis::cmd("ACL");
    let _ok: String = raw.call(refuse.arg("SETUSER").arg("default").arg("-config"));
    let said = warnings(&instance).await;
    assert!(said.len() == 1 && said[0].contains("cannot be read"), "{said:?}");
}

#[tokio::test]
async fn a_schema_that_is_behind_is_refused_at_the_start_and_not_ready_later() {
    let app = TestApp::start_api_only().await;
    let forget = "delete from _sqlx_migrations where version = (select max(version) from _sqlx_migrations)";
    sqlx::query(forget).execute(&mut app.database().await).await.unwrap();
    let refused = app.get(Who::Nobody, "/readyz").await.no(503, "unavailable");
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
async fn metrics_tell_the_memory_of_the_process_and_of_redis() {
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
    for private in ["ada-with-a-name", &id, &order.id()] {
        assert!(!text.contains(private), "{private}");
    }
}
