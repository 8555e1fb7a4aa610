//! The view of operators from outside: metrics, the rules and the dashboard over them, and the compose profile that brings
//! all of it. `./dev rules` checks the rules themselves.

use crate::support::app::{Answer, Instance, TestApp, Who, sale_with, while_unavailable};
use crate::support::poll;
use flashsale::config::Settings;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// All labels. A shopper, an order, an item or an address is not among them.
const LABELS: [&str; 17] = [
    "outcome", "client", "status", "script", "fault", "result", "state", "task", "kind", "layer", "server", "pool",
    "version", "profile", "reason", "sale", "finding",
];
/// No metric has more series than this, without the buckets of each.
const SERIES_MAX: usize = 50;
/// The ending of a name is its unit; these are counts.
const COUNTS: [&str; 15] = [
    "flashsale_purchases_in_flight",
    "flashsale_http_connections",
    "flashsale_gateway_rate",
    "flashsale_backlog_events",
    "flashsale_shards",
    "flashsale_shard_epoch_max",
    "flashsale_conservation_difference_units",
    "flashsale_ledger_drift_units",
    "flashsale_outbox_messages",
    "flashsale_needs_attention",
    "flashsale_server_up",
    "flashsale_postgres_connections",
    "flashsale_postgres_connections_max",
    "flashsale_redis_servers",
    "flashsale_build_info",
];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every rule, by the name of its alert.
fn rules() -> BTreeMap<String, Value> {
    let all = yaml("observe/alerts.yml");
    let groups = all["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
    let named: Vec<(String, Value)> = rules
        .map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule))
        .collect();
    let count = named.len();
    let by_name: BTreeMap<String, Value> = named.into_iter().collect();
    assert_eq!(by_name.len(), count, "two alerts have one name");
    by_name
}

/// Every text under one of these keys.
fn texts(value: &Value, keys: &[&str], found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if keys.contains(&key.as_str()) => found.push(text.to_owned()),
                    _ => texts(value, keys, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, keys, found)),
        _ => {}
    }
}

/// The queries of the dashboard and the rules.
fn expressions() -> Vec<String> {
    let mut found = Vec::new();
    texts(&yaml("observe/alerts.yml"), &["expr"], &mut found);
    assert!(found.len() >= 25, "{found:?}");
    let dashboard: Value = serde_json::from_str(&file("observe/grafana/flashsale.json")).unwrap();
    texts(&dashboard, &["expr", "query"], &mut found);
    assert!(found.len() >= 80, "{}", found.len());
    found
}

/// Our names in an expression.
fn names(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words
        .filter(|word| word.starts_with("flashsale_") || word.starts_with("process_"))
        .collect()
}

/// The values of our labels that an expression asks for, those of `=~` and `!~` one by one.
fn asked_values(expression: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices('"').step_by(2) {
        let (before, after) = (&expression[..at], &expression[at + 1..]);
        let value = after.split('"').next().unwrap();
        let label = before.trim_end_matches(['=', '~', '!']);
        let label = label.rsplit(['{', ',', ' ']).next().unwrap();
        if LABELS.contains(&label) && !value.contains('$') {
            found.push((label, value.split('|').collect()));
        }
    }
    found
}

#[test]
fn queries_find_label_values_in_every_form() {
    let expression = r#"a{client="x",status=~"4xx|5xx"} / b{le="1", pool!="news",instance=~"$instance"}"#;
    assert_eq!(
        asked_values(expression),
        [
            ("client", vec!["x"]),
            ("status", vec!["4xx", "5xx"]),
            ("pool", vec!["news"])
        ]
    );
}

/// One metric as it is served.
#[derive(Debug, Default)]
struct Served {
    kind: String,
    help: String,
    /// Name and labels of each of its samples.
    series: BTreeMap<String, f64>,
}

/// Reads the older text by its own rules.
fn read(text: &str) -> BTreeMap<String, Served> {
    let mut all: BTreeMap<String, Served> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            current = name.to_owned();
            let before = all.insert(
                current.clone(),
                Served {
                    help: help.to_owned(),
                    ..Served::default()
                },
            );
            assert!(before.is_none(), "{name} is described twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "a type without help");
            all.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let served = all.get_mut(&current).unwrap();
            let sample = series.split('{').next().unwrap();
            let suffixes: &[&str] = match served.kind.as_str() {
                "histogram" => &["_bucket", "_count", "_sum"],
                "counter" | "gauge" => &[""],
                other => panic!("{current} is a {other}"),
            };
            assert!(
                suffixes.iter().any(|suffix| sample == format!("{current}{suffix}")),
                "{line} under {current}"
            );
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(
                served.series.insert(series.to_owned(), value).is_none(),
                "{series} is listed twice"
            );
        }
    }
    all
}

/// The labels of a series.
fn labels(series: &str) -> Vec<(&str, &str)> {
    let inside = series
        .split_once('{')
        .map_or("", |(_, rest)| rest.trim_end_matches('}'));
    let pairs = inside.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap()).collect()
}

async fn served(client: &Instance) -> BTreeMap<String, Served> {
    read(&client.get(Who::Nobody, "/metrics").await.ok(200).text)
}

fn value(all: &BTreeMap<String, Served>, series: &str) -> f64 {
    let found = all.values().find_map(|it| it.series.get(series));
    *found.unwrap_or_else(|| panic!("no {series}"))
}

#[tokio::test]
async fn every_metric_that_a_rule_or_the_dashboard_names_is_served_and_the_other_way_round() {
    let app = TestApp::start().await;
    // Two gauges are of sales, once a worker has checked one.
    app.load_sale(&sale_with(&json!({}))).await;
    let served = poll::answer("a sale has been checked", || async {
        let all = served(&app).await;
        let is_checked = !all["flashsale_ledger_drift_units"].series.is_empty();
        is_checked.then_some(all)
    })
    .await;
    let samples: BTreeSet<&str> = served
        .values()
        .flat_map(|it| it.series.keys())
        .map(|series| series.split('{').next().unwrap())
        .collect();
    let (mut asked, mut pairs) = (BTreeSet::new(), 0);
    for expression in &expressions() {
        for name in names(expression) {
            assert!(samples.contains(name), "{expression} names {name}, which nobody serves");
            asked.insert(name.to_owned());
        }
        // And with no label value that never occurs, nor an omitted one that never would.
        for (label, values) in asked_values(expression) {
            for value in values {
                let pair = format!("{label}=\"{value}\"");
                let mut all = served.values().flat_map(|it| it.series.keys());
                assert!(all.any(|series| series.contains(&pair)), "{expression}: {pair}");
                pairs += 1;
            }
        }
    }
    assert!(pairs > 30, "{pairs} label values are queried");
    for (name, metric) in &served {
        let is_asked = metric
            .series
            .keys()
            .any(|series| asked.contains(series.split('{').next().unwrap()));
        assert!(
            is_asked,
            "{name} is served, and neither a rule nor the dashboard shows it"
        );
    }
}

#[tokio::test]
async fn every_metric_has_help_a_name_in_base_units_and_few_labels() {
    let app = TestApp::start().await;
    let served = served(&app).await;
    assert!(served.len() > 45, "{}", served.len());
    for (name, metric) in &served {
        let is_snake = name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
        assert!(
            is_snake && (name.starts_with("flashsale_") || name.starts_with("process_")),
            "{name}"
        );
        assert!(
            metric.help.len() > 15 && metric.help.ends_with('.'),
            "{name}: {:?}",
            metric.help
        );
        let is_in_base_units = match metric.kind.as_str() {
            "counter" => name.ends_with("_total"),
            "histogram" => name.ends_with("_seconds"),
            _ => {
                let units = ["_seconds", "_bytes", "_ratio", "_fds"];
                !name.ends_with("_total")
                    && (units.iter().any(|it| name.ends_with(it)) || COUNTS.contains(&name.as_str()))
            }
        };
        assert!(is_in_base_units, "{name} is a {}", metric.kind);
        let mut sets = BTreeSet::new();
        for series in metric.series.keys() {
            let labels: Vec<_> = labels(series).into_iter().filter(|(name, _)| *name != "le").collect();
            for (label, _) in &labels {
                // `job` and `instance` are Prometheus's own.
                assert!(LABELS.contains(label), "{series}");
            }
            sets.insert(labels.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        }
        assert!(sets.len() <= SERIES_MAX, "{name} has {} series", sets.len());
    }
    let bounds: Vec<String> = served["flashsale_purchase_duration_seconds"]
        .series
        .keys()
        .filter_map(|series| Some(labels(series).into_iter().find(|(name, _)| *name == "le")?.1.to_owned()))
        .collect();
    for bound in ["\"0.001\"", "\"10.0\"", "\"+Inf\""] {
        assert!(bounds.iter().any(|it| it == bound), "{bounds:?}");
    }
}

#[tokio::test]
async fn every_outcome_is_counted_and_only_a_sale_adds_a_series() {
    let app = TestApp::start().await;
    let keys = |all: &BTreeMap<String, Served>| -> BTreeSet<String> {
        let series = all.values().flat_map(|it| it.series.keys().cloned());
        series.filter(|series| !series.contains("{sale=")).collect()
    };
    let before = keys(&served(&app).await);
    // Two units a shard: home shards run short, and borrow until nothing is left anywhere.
    let id = app
        .load_sale(&sale_with(&json!({"shards": 4, "stock": 8, "per_user_limit": 2})))
        .await;
    let mut sold = Vec::new();
    for shopper in 0..12 {
        let answer = app.buy_sku(&format!("shopper-{shopper}"), &id, "k", "phone", 1).await;
        if answer.status == 201 {
            sold.push(answer);
        } else {
            answer.no(409, "sold_out");
        }
    }
    assert_eq!(sold.len(), 8);
    app.wait_for_order("shopper-0", &sold[0].id(), "reserved").await;
    assert_eq!(app.pay("pay_1", &sold[0].body).await, "applied");
    app.cancel("shopper-1", &sold[1].id()).await.ok(200);
    let buying = |who| app.request(Method::POST, who, &format!("/v1/sales/{id}/orders"));
    app.send(buying(Who::Nobody)).await.no(401, "unauthenticated");
    let incomplete = buying(Who::Shopper("ada")).header("Idempotency-Key", "k");
    app.send(incomplete.json(&json!({"sku": "phone"})))
        .await
        .no(400, "invalid_request");
    app.signed("pay_2", "0", "v1,none", "{}")
        .await
        .no(401, "unauthenticated");
    app.get(Who::Bearer("wrong"), "/v1/admin/sales")
        .await
        .no(401, "unauthenticated");
    let after = poll::answer("everything is counted", || async {
        let all = served(&app).await;
        let is_counted = value(&all, "flashsale_orders_drained_total") >= 8.0
            && value(&all, "flashsale_releases_total{result=\"applied\"}") >= 2.0
            && value(&all, "flashsale_shards{state=\"selling\"}") >= 4.0
            && value(&all, "flashsale_job_runs_total{task=\"alerts\",result=\"done\"}") >= 1.0;
        is_counted.then_some(all)
    })
    .await;
    assert_eq!(keys(&after), before, "no event adds a series");
    let is = |series: &str, expected: f64| {
        let value = value(&after, series);
        assert!(
            (value - expected).abs() < f64::EPSILON,
            "{series} is {value}, not {expected}"
        );
    };
    is("flashsale_purchases_total{outcome=\"reserved\"}", 8.0);
    is("flashsale_purchases_total{outcome=\"sold_out\"}", 4.0);
    is("flashsale_purchases_total{outcome=\"unauthenticated\"}", 1.0);
    is("flashsale_purchases_total{outcome=\"invalid_request\"}", 1.0);
    is("flashsale_purchase_duration_seconds_count", 14.0);
    is("flashsale_payments_total{outcome=\"applied\"}", 1.0);
    is("flashsale_payments_total{outcome=\"refused\"}", 1.0);
    is("flashsale_payments_total{outcome=\"failed\"}", 0.0);
    is("flashsale_payment_duration_seconds_count", 2.0);
    is("flashsale_http_requests_total{client=\"provider\",status=\"4xx\"}", 1.0);
    is("flashsale_http_requests_total{client=\"provider\",status=\"2xx\"}", 1.0);
    is("flashsale_http_requests_total{client=\"operator\",status=\"4xx\"}", 1.0);
    is("flashsale_server_up{server=\"redis\"}", 1.0);
    is("flashsale_server_up{server=\"postgres\"}", 1.0);
    is("flashsale_needs_attention{kind=\"refunds_due\"}", 0.0);
    is("flashsale_needs_attention{kind=\"revoked_orders\"}", 0.0);
    is("flashsale_shards{state=\"stopped\"}", 0.0);
    let more = |series: &str, least: f64| {
        let value = value(&after, series);
        assert!(value >= least, "{series} is {value}");
    };
    // Of the last four shoppers, the first one alone needed the script.
    more("flashsale_script_duration_seconds_count{script=\"purchase\"}", 9.0);
    more("flashsale_shortages_total{outcome=\"sold_out\"}", 4.0);
    more("flashsale_drain_batch_duration_seconds_count", 1.0);
    more("flashsale_drain_delay_seconds_count", 1.0);
    more("flashsale_permit_renewals_total{result=\"renewed\"}", 4.0);
    more("flashsale_shard_epoch_max", 1.0);
    more("flashsale_job_runs_total{task=\"alerts\",result=\"done\"}", 1.0);
    more("flashsale_redis_memory_bytes", 1.0);
    more("process_open_fds", 5.0);
    // The shard that asks.
    more("flashsale_http_connections", 1.0);
    more("process_cpu_seconds_total", 0.01);
    // Every shard had two units, and some home shard ran out before the others.
    let borrowed = value(&after, "flashsale_transferred_units_total");
    let brought = value(&after, "flashsale_shortages_total{outcome=\"brought\"}");
    assert!(
        (brought > 0.0) <= (borrowed > 0.0),
        "{brought} were brought, {borrowed} units"
    );
}

#[tokio::test]
async fn while_postgres_is_away_the_backlog_is_shown_and_every_drain_fails() {
    let mut postgres = crate::support::servers::FreshPostgres::start().await;
    let environment = crate::support::app::environment(&crate::support::servers::redis(), &postgres.url());
    let app = Instance::start(&environment, "all").may_log_errors();
    let id = app.load_sale(&crate::support::app::sale()).await;
    let first = app.buy("before", &id, "k", 1).await.ok(201);
    app.wait_for_order("before", &first.id(), "reserved").await;
    postgres.stop();
    for shopper in 0..3 {
        app.buy(&format!("shopper-{shopper}"), &id, "k", 1).await.ok(201);
    }
    poll::answer("the backlog is shown", || async {
        let all = served(&app).await;
        let is_told = value(&all, "flashsale_backlog_events") >= 3.0
            && value(&all, "flashsale_backlog_oldest_age_seconds") > 1.0
            && value(&all, "flashsale_drain_rounds_total{result=\"failed\"}") >= 1.0;
        is_told.then_some(())
    })
    .await;
    let round = "flashsale_drain_last_round_timestamp_seconds";
    let (failed, last) = {
        let all = served(&app).await;
        (
            value(&all, "flashsale_drain_rounds_total{result=\"failed\"}"),
            value(&all, round),
        )
    };
    poll::answer("another round has failed", || async {
        let all = served(&app).await;
        let more = value(&all, "flashsale_drain_rounds_total{result=\"failed\"}");
        assert!(
            (value(&all, round) - last).abs() < f64::EPSILON,
            "a failed round counts as one"
        );
        (more > failed).then_some(())
    })
    .await;
    postgres.restart();
    poll::answer("the backlog is gone", || async {
        let all = served(&app).await;
        let is_gone = value(&all, "flashsale_backlog_events") == 0.0 && value(&all, round) > last;
        is_gone.then_some(())
    })
    .await;
}

#[tokio::test]
async fn both_text_formats_have_the_same_series_each_by_its_own_rules() {
    let app = TestApp::start_api_only().await;
    let ask = async |accept: &str| -> Answer {
        let request = app
            .request(Method::GET, Who::Nobody, "/metrics")
            .header("accept", accept);
        app.send(request).await.ok(200)
    };
    // As Prometheus asks.
    let open = ask("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1").await;
    assert!(
        open.header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text.ends_with("# EOF\n") && open.text.contains("# TYPE flashsale_purchases counter\n"));
    let classic = ask("text/plain").await;
    assert!(
        classic
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(classic.text.contains("# TYPE flashsale_purchases_total counter\n"));
    let series = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    assert_eq!(series(&open.text), series(&classic.text));
}

#[tokio::test]
async fn a_process_without_http_serves_its_metrics_at_the_configured_address() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_METRICS_LISTEN".to_owned(), "127.0.0.1:0".to_owned());
    let worker = Instance::start(&environment, "worker");
    let address = poll::answer("the worker says where", || async {
        let log = worker.log();
        let line = log.lines().find(|line| line.contains("serving metrics"))?;
        let event: Value = serde_json::from_str(line).unwrap();
        Some(event["address"].as_str().unwrap().to_owned())
    })
    .await;
    let machine = crate::support::app::Client::at(&format!("http://{address}"));
    let text = machine.get(Who::Nobody, "/metrics").await.ok(200).text;
    let all = read(&text);
    assert!(value(&all, "flashsale_drain_last_round_timestamp_seconds") > 1e9);
    assert!(value(&all, "flashsale_job_last_success_timestamp_seconds{task=\"expire\"}") > 1e9);
    machine.get(Who::Nobody, "/healthz").await.ok(200);
    while_unavailable(|| machine.get(Who::Nobody, "/readyz")).await.ok(200);
    for path in ["/v1/sales", "/v1/admin/sales", "/"] {
        machine.get(Who::Operator, path).await.no(404, "not_found");
    }
    // A process without jobs reports a zero.
    let all = served(&app).await;
    assert!(value(&all, "flashsale_drain_last_round_timestamp_seconds") == 0.0);
    environment.insert("FLASHSALE_METRICS_LISTEN".to_owned(), "nowhere".to_owned());
    let refused = crate::support::app::program(&environment, &["serve"]).output().unwrap();
    let refused = crate::support::app::Ran::of(refused).ended(2);
    assert!(refused.stderr.contains("FLASHSALE_METRICS_LISTEN"), "{refused:?}");
}

#[tokio::test]
async fn a_request_is_followed_by_its_id_to_the_script_and_by_its_order_to_the_ledger() {
    let app = TestApp::with("all", &[("FLASHSALE_LOG", "info,flashsale=debug")]).await;
    let id = app.load_sale(&crate::support::app::sale()).await;
    let request = app.buying("ada", &id, "k").header("x-request-id", "from-my-proxy-1");
    let order = app
        .send(request.json(&json!({"sku": "phone", "quantity": 1})))
        .await
        .ok(201);
    assert_eq!(order.header("x-request-id"), Some("client-from-my-proxy-1"));
    app.wait_for_order("ada", &order.id(), "reserved").await;
    let events = poll::answer("the drain logs the order", || async {
        let log = app.log();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let about: Vec<Value> = events.filter(|event| event["order"] == *order.id()).collect();
        let are_there = ["reserved", "an order is in the ledger"]
            .iter()
            .all(|message| about.iter().any(|event| event["message"] == *message));
        are_there.then_some(about)
    })
    .await;
    let of = |message: &str| events.iter().find(|event| event["message"] == message).unwrap();
    let (reserved, drained) = (of("reserved"), of("an order is in the ledger"));
    let spans = reserved["spans"].as_array().unwrap();
    assert_eq!(spans[0]["name"], "request", "{reserved}");
    assert_eq!(spans[0]["request_id"], "client-from-my-proxy-1", "{reserved}");
    for place in ["epoch", "seq"] {
        assert!(reserved[place].is_number(), "{reserved}");
        assert_eq!(reserved[place], drained[place]);
    }
}

#[tokio::test]
async fn an_error_is_logged_with_the_id_of_its_request() {
    let redis = crate::support::servers::fresh_redis();
    let database = crate::support::servers::database().await;
    let mut environment = crate::support::app::environment(&redis.server.url(), &database);
    environment.insert("FLASHSALE_LOG".to_owned(), "info".to_owned());
    let instance = Instance::start(&environment, "api");
    let id = instance.load_sale(&crate::support::app::sale()).await;
    drop(redis);
    let request = instance
        .buying("ada", &id, "k")
        .header("x-request-id", "while-it-was-away");
    instance
        .send(request.json(&json!({"sku": "phone", "quantity": 1})))
        .await
        .no(503, "unavailable");
    let line = instance.logged("requests are answered 503").await;
    assert!(line.contains("\"request_id\":\"client-while-it-was-away\""), "{line}");
}

#[test]
fn every_alert_is_described_and_says_what_to_do() {
    let described = file("docs/alerts.md");
    let headings: BTreeSet<&str> = described.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let rules = rules();
    let alerts: BTreeSet<&str> = rules.keys().map(String::as_str).collect();
    assert_eq!(headings, alerts);
    for (name, rule) in &rules {
        let part = described.split(&format!("### {name}\n")).nth(1).unwrap();
        let part = part.split("\n#").next().unwrap();
        assert!(part.contains("**Check:**") && part.contains("**Do:**"), "{name}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}");
        assert!(part.contains(&format!("`{severity}`")), "{name} is {severity}");
        if let Some(time) = rule["for"].as_str() {
            assert!(part.contains(&format!("after {time}")), "{name}: {time}");
        }
        for annotation in ["summary", "action"] {
            let text = rule["annotations"][annotation].as_str().unwrap();
            assert!(text.len() > 20 && text.ends_with('.'), "{name}: {text}");
        }
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        // Within the repository, so that it is there wherever a copy of that is.
        assert_eq!(url, format!("docs/alerts.md#{}", name.to_lowercase()));
        // Each has a test of its own that promtool runs.
        let tests = file("observe/alerts_test.yml");
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
        // One that waits has one that shows how long: it is pending, and then it fires.
        let pending = format!("{{labels: '{{alertname=\"{name}\", alertstate=\"pending\"}}', value: 1}}");
        assert_eq!(
            rule["for"].is_string(),
            tests.contains(&pending),
            "{name}: how long it waits is not tested"
        );
        // Prometheus itself knows whether an instance is up.
        let asked = rule["expr"].as_str().unwrap();
        assert!(
            !names(asked).is_empty() || asked.contains("up{job=\"flashsale\"}"),
            "{name} asks nothing of ours"
        );
    }
}

#[test]
fn the_names_in_the_documents_are_names_of_metrics() {
    let dashboard_and_rules: BTreeSet<String> = expressions()
        .iter()
        .flat_map(|it| names(it).into_iter().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let bases: BTreeSet<&str> = dashboard_and_rules
        .iter()
        .map(|name| name.trim_end_matches("_bucket").trim_end_matches("_count"))
        .collect();
    for path in ["docs/alerts.md", "docs/guards.md"] {
        for name in names(&file(path)) {
            assert!(name.ends_with('_') || bases.contains(name), "{path}: {name}");
        }
    }
}

/// The variables in one of the tables of docs/configuration.md: those of instances, those of commands, those of compose
/// itself.
fn documented_variables(table: usize) -> BTreeSet<String> {
    let page = file("docs/configuration.md");
    let tables: Vec<&str> = page.split("| variable |").skip(1).collect();
    assert_eq!(tables.len(), 3, "{page}");
    let rows = tables[table].lines().skip(2).take_while(|row| row.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn the_file_of_settings_has_the_keys_that_are_documented() {
    let documented = documented_variables(0);
    for name in ["FLASHSALE_ADAPTIVE_MIN_RATE", "FLASHSALE_BROWSING_BAN_SECONDS"] {
        assert!(documented.contains(name), "{documented:?}");
    }
    let refused = Settings::from_sources(|_| None, Some("none = \"x\"")).err().unwrap();
    let refused = refused.to_string();
    let (_, keys) = refused.split_once("the keys are ").unwrap();
    let keys = keys.split(", ").map(|key| format!("FLASHSALE_{}", key.to_uppercase()));
    assert_eq!(keys.collect::<BTreeSet<String>>(), documented);
}

#[test]
fn compose_passes_every_variable_on_that_can_be_set_there() {
    // The container's own, and a value that is refused where others can ask.
    let own = ["FLASHSALE_LISTEN", "FLASHSALE_DEVELOPMENT"].map(str::to_owned);
    let mut wanted: BTreeSet<String> = documented_variables(0).difference(&own.into()).cloned().collect();
    // Of those of the commands: the API is where the command is.
    let of_commands = "FLASHSALE_OPERATOR".to_owned();
    assert!(documented_variables(1).contains(&of_commands));
    wanted.insert(of_commands);
    let compose = yaml("docker-compose.yml");
    let settings = compose["services"]["app"]["environment"].as_object().unwrap();
    let ours = settings.keys().filter(|name| name.starts_with("FLASHSALE_")).cloned();
    assert_eq!(ours.collect::<BTreeSet<String>>(), wanted);
    for (name, value) in settings {
        let value = value.as_str().unwrap();
        assert!(
            value.starts_with(&format!("${{{name}:-")) && value.ends_with('}'),
            "{name}: {value}"
        );
    }
    // Its other variables are documented with their defaults, and no others.
    let text = file("docker-compose.yml");
    let read = text
        .split("${")
        .skip(1)
        .filter_map(|it| it.split('}').next()?.split_once(":-"));
    let read: BTreeMap<&str, &str> = read.filter(|(name, _)| !settings.contains_key(*name)).collect();
    let names: BTreeSet<String> = read.keys().map(|&name| name.to_owned()).collect();
    assert_eq!(names, documented_variables(2));
    let page = file("docs/configuration.md");
    for (name, default) in read {
        let row = page
            .lines()
            .find(|it| it.starts_with('|') && it.contains(&format!("`{name}`")))
            .unwrap();
        assert!(row.contains(&format!("`{default}`")), "{name}: {row}");
    }
}

#[test]
fn every_redis_of_compose_starts_alike_and_keeps_what_it_has() {
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_object().unwrap();
    let alone = &services["redis"];
    let start = alone["command"].as_array().unwrap().last().unwrap().as_str().unwrap();
    for needed in [
        "redis-check-aof --fix",
        "--aof-load-truncated no",
        "--appendfsync always",
        "--hz 100",
    ] {
        assert!(start.contains(needed), "{needed}: {start}");
    }
    let nodes = ["redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6"];
    let mut kept = BTreeSet::new();
    for name in nodes.iter().chain(&["redis"]) {
        let service = &services[*name];
        assert_eq!(service["command"], alone["command"], "{name}");
        assert_eq!(service["restart"], alone["restart"], "{name}");
        let volume = service["volumes"][0].as_str().unwrap();
        assert!(
            volume.ends_with(":/data") && kept.insert(volume.to_owned()),
            "{name}: {volume}"
        );
        let is_node = service["environment"]["REDIS_MORE"]
            .as_str()
            .is_some_and(|it| it.contains("--cluster-enabled yes"));
        assert_eq!(is_node, *name != "redis", "{name}");
    }
    // And the app gets their address as the guides say.
    for path in ["docs/configuration.md", "docs/operations.md", "docker-compose.yml"] {
        assert!(
            file(path).contains("REDIS_MODE=cluster docker compose --profile cluster up"),
            "{path}"
        );
    }
}

#[test]
fn the_compose_profile_mounts_files_that_are_there_and_know_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compose = yaml("docker-compose.yml");
    let services = compose["services"].as_object().unwrap();
    let volumes = compose["volumes"].as_object().unwrap();
    let mut mounted: BTreeMap<(String, String), PathBuf> = BTreeMap::new();
    for (name, service) in services {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let parts: Vec<&str> = volume.as_str().unwrap().split(':').collect();
            match parts[0].strip_prefix("./") {
                Some(path) => {
                    assert!(root.join(path).is_file(), "{name} mounts {path}");
                    assert_eq!(parts[2], "ro", "{name} may write {path}");
                    mounted.insert((name.clone(), parts[1].to_owned()), root.join(path));
                }
                None => assert!(volumes.contains_key(parts[0]), "{name}: {volume}"),
            }
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
    let observing: BTreeSet<&str> = services
        .iter()
        .filter(|(_, it)| it["profiles"] == json!(["observe"]))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(observing, BTreeSet::from(["grafana", "prometheus"]));
    let at = |service: &str, path: &str| mounted.get(&(service.to_owned(), path.to_owned())).unwrap().clone();
    let read = |path: PathBuf| -> Value { serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap() };

    let prometheus = read(at("prometheus", "/etc/prometheus/prometheus.yml"));
    for rules in prometheus["rule_files"].as_array().unwrap() {
        at("prometheus", &format!("/etc/prometheus/{}", rules.as_str().unwrap()));
    }
    let job = &prometheus["scrape_configs"][0];
    // The rules and the dashboard go by this name.
    assert_eq!(job["job_name"], "flashsale");
    let target = job["static_configs"][0]["targets"][0].as_str().unwrap();
    let (host, port) = target.split_once(':').unwrap();
    assert!(
        services["app"]["ports"][0]
            .as_str()
            .unwrap()
            .ends_with(&format!(":{port}"))
    );
    assert_eq!(host, "app");
    // And traces need no image of their own.
    let settings = compose["services"]["app"]["environment"].as_object().unwrap();
    for variable in ["FLASHSALE_OTLP_URL", "FLASHSALE_OTLP_RATIO"] {
        assert!(settings.contains_key(variable), "{variable} does not reach the app");
    }

    let source = read(at("grafana", "/etc/grafana/provisioning/datasources/flashsale.yml"));
    let source = &source["datasources"][0];
    let url = source["url"].as_str().unwrap();
    assert!(url.starts_with("http://prometheus:"), "{url}");
    let provider = read(at("grafana", "/etc/grafana/provisioning/dashboards/flashsale.yml"));
    let folder = provider["providers"][0]["options"]["path"].as_str().unwrap();
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(at("grafana", &format!("{folder}/flashsale.json"))).unwrap()).unwrap();
    let mut uids = Vec::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        texts(&panel["datasource"], &["uid"], &mut uids);
    }
    assert!(
        uids.len() > 30 && uids.iter().all(|uid| *uid == source["uid"]),
        "{uids:?}"
    );
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        .as_str()
        .unwrap();
    at("grafana", home);
}
