//! The traces at a collector: requests with their scripts and statements, the batches of jobs, and the links between
//! them.

use crate::support::app::{Instance, TestApp, Who, sale, sale_with};
use crate::support::collector::{Sent, collector, collector_answering};
use crate::support::poll::{self, PATIENCE, within};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tokio::net::TcpSocket;

/// Traced purchases that a batch links to.
const TRACED_MAX: usize = 32;
/// The trace that a proxy has begun, and its request's span there.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PROXY: &str = "00f067aa0ba902b7";
/// A collector's status of a failed span.
const ERROR: i32 = 2;

/// Everything that the collector got.
#[derive(Default)]
struct Collected {
    /// The processes of the spans: name and value of each attribute.
    resources: BTreeSet<(String, String)>,
    spans: Vec<Span>,
}

impl Collected {
    /// Adds the new requests.
    fn collect(&mut self, sent: &Sent) {
        while let Ok((head, body)) = sent.try_recv() {
            assert!(head.starts_with("POST /v1/traces "), "{head}");
            let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
            for of in request.resource_spans {
                self.resources.extend(pairs(&of.resource.unwrap().attributes));
                self.spans
                    .extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
    }

    fn called(&self, name: &'static str) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.name == name)
    }

    /// The only span of this name.
    fn one(&self, name: &'static str) -> &Span {
        let all: Vec<_> = self.called(name).collect();
        assert_eq!(all.len(), 1, "{name}: {all:#?}");
        all[0]
    }

    /// The names of the direct parts of a span; of statements and scripts, their own.
    fn within(&self, span: &Span) -> BTreeSet<String> {
        let parts = self
            .spans
            .iter()
            .filter(|it| it.trace_id == span.trace_id && it.parent_span_id == span.span_id);
        let own = |it: &Span| said(it, "step").or_else(|| said(it, "script"));
        let name = |it: &Span| own(it).unwrap_or_else(|| it.name.clone());
        parts.map(name).collect()
    }
}

fn pairs(attributes: &[KeyValue]) -> impl Iterator<Item = (String, String)> {
    attributes.iter().map(|pair| {
        let value = match pair.value.clone().and_then(|it| it.value) {
            Some(Any::StringValue(text)) => text,
            Some(Any::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (pair.key.clone(), value)
    })
}

/// An attribute of a span.
fn said(span: &Span, name: &str) -> Option<String> {
    pairs(&span.attributes).find_map(|(key, value)| (key == name).then_some(value))
}

/// The links of a span: trace and span.
fn links(span: &Span) -> Vec<(&[u8], &[u8])> {
    let links = span.links.iter();
    links.map(|link| (&link.trace_id[..], &link.span_id[..])).collect()
}

fn marks(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_str()).collect()
}

/// These bytes, as `traceparent` writes them.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Headers for the collector may be a key.
#[tokio::test]
async fn a_collector_that_redirects_is_not_followed() {
    let (elsewhere, followed) = collector();
    let answer = format!("HTTP/1.1 302 Found\r\nlocation: {elsewhere}/\r\ncontent-length: 0\r\n\r\n");
    let (url, sent) = collector_answering(answer);
    let variables = [("FLASHSALE_OTLP_URL", url.as_str()), ("FLASHSALE_OTLP_RATIO", "1")];
    let mut app = TestApp::with("api", &variables).await;
    app.get(Who::Nobody, "/healthz").await.ok(200);
    // At the end of the process, all waiting spans are sent.
    app.instance.terminate();
    sent.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert!(followed.try_recv().is_err(), "it was followed");
}

/// The steps of a batch that is drained without a fault.
const DRAIN: [&str; 5] = ["insert orders", "hold units", "move position", "commit", "trim"];

#[tokio::test]
async fn a_trace_that_a_proxy_has_begun_goes_through_the_script_and_the_drain_into_the_ledger() {
    let (url, sent) = collector();
    let app = TestApp::with(
        "all",
        &[
            ("FLASHSALE_LOG", "info"),
            ("FLASHSALE_OTLP_URL", &url),
            // Only those that a proxy marks.
            ("FLASHSALE_OTLP_RATIO", "0"),
            ("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=a-test"),
            ("OTEL_SERVICE_NAME", "shop-of-the-test"),
        ],
    )
    .await;
    let id = app.load_sale(&sale()).await;
    let not_traced = app.buy("ada", &id, "not-traced", 1).await.ok(201);
    app.wait_for_order("ada", &not_traced.id(), "reserved").await;
    let request = app
        .buying("ada", &id, "traced")
        .header("traceparent", format!("00-{TRACE}-{PROXY}-01"))
        .header("x-request-id", "traced-1");
    let order = app
        .send(request.json(&json!({"sku": "phone", "quantity": 1})))
        .await
        .ok(201);
    app.wait_for_order("ada", &order.id(), "reserved").await;
    // At the end of the process, all waiting spans are sent.
    let mut instance = app.instance;
    instance.terminate();
    let mut traces = Collected::default();
    traces.collect(&sent);
    let resources: BTreeMap<_, _> = traces.resources.iter().cloned().collect();
    assert_eq!(resources["service.name"], "shop-of-the-test");
    assert_eq!(resources["deployment.environment.name"], "a-test");
    assert!(resources.contains_key("service.version") && resources.contains_key("service.instance.id"));

    let request = traces.one("request");
    assert_eq!(
        (hex(&request.trace_id), hex(&request.parent_span_id)),
        (TRACE.to_owned(), PROXY.to_owned())
    );
    assert_eq!(said(request, "request_id").as_deref(), Some("traced-1"));
    assert_eq!(marks(request), ["reserved"]);
    assert_eq!(traces.within(request), set(&["purchase", "drained"]));
    // Its own trace has the time of the drain,
    let drained = traces.one("drained");
    assert_eq!(
        (&drained.trace_id, &drained.parent_span_id),
        (&request.trace_id, &request.span_id)
    );
    assert_eq!(said(drained, "order"), Some(order.id()));
    assert!(said(drained, "epoch").is_some() && said(drained, "seq").is_some());
    assert!(drained.start_time_unix_nano > request.start_time_unix_nano);
    // and the batch, which has a span of its own although nothing but this purchase is traced.
    let batch = traces.one("drain");
    assert_eq!(links(drained), [(&batch.trace_id[..], &batch.span_id[..])]);
    assert_eq!(links(batch), [(&request.trace_id[..], &request.span_id[..])]);
    assert!(batch.parent_span_id.is_empty() && batch.trace_id != request.trace_id);
    assert_eq!(said(batch, "sale"), Some(id));
    assert_eq!(
        (said(batch, "events"), said(batch, "orders")),
        (Some("1".into()), Some("1".into()))
    );
    // Its events are also found by their positions.
    for (of_batch, of_order) in [("epoch", "epoch"), ("first", "seq"), ("last", "seq")] {
        assert_eq!(said(batch, of_batch), said(drained, of_order));
    }
    assert_eq!(marks(batch), ["claimed", "read"]);
    assert_eq!(traces.within(batch), set(&DRAIN));
    // Nothing else is sent.
    let names: BTreeSet<String> = traces.spans.iter().map(|span| span.name.clone()).collect();
    assert_eq!(names, set(&["request", "script", "drained", "drain", "sql"]));
}

#[tokio::test]
async fn a_batch_is_linked_to_so_many_of_its_purchases_and_no_more_whichever_process_they_came_from() {
    let (url, sent) = collector();
    let variables = [
        ("FLASHSALE_LOG", "info"),
        ("FLASHSALE_OTLP_URL", url.as_str()),
        ("FLASHSALE_OTLP_RATIO", "1"),
    ];
    let mut app = TestApp::with("api", &variables).await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1, "stock": 100}))).await;
    let many = TRACED_MAX + 8;
    let mut orders = Vec::new();
    for shopper in 0..many {
        orders.push(app.buy(&format!("shopper-{shopper}"), &id, "k", 1).await.ok(201).id());
    }
    // A worker without traces of its own drains all of them at once.
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_OTLP_RATIO".to_owned(), "0".to_owned());
    let mut worker = Instance::start(&environment, "worker");
    app.wait_for_order("shopper-0", &orders[0], "reserved").await;
    worker.terminate();
    app.instance.terminate();
    let mut traces = Collected::default();
    traces.collect(&sent);

    let batch = traces.one("drain");
    assert_eq!(said(batch, "events"), Some(many.to_string()));
    let purchases: BTreeMap<&[u8], &Span> = traces
        .called("request")
        .filter(|it| said(it, "method").as_deref() == Some("POST"))
        .map(|it| (&it.span_id[..], it))
        .collect();
    let linked = links(batch);
    assert_eq!(linked.len(), TRACED_MAX);
    for (trace, span) in &linked {
        assert_eq!(purchases[span].trace_id, *trace);
    }
    let drained: Vec<&Span> = traces.called("drained").collect();
    assert_eq!(drained.len(), TRACED_MAX);
    for span in drained {
        assert!(linked.contains(&(&span.trace_id[..], &span.parent_span_id[..])));
        assert!(orders.contains(&said(span, "order").unwrap()));
    }
}

#[tokio::test]
async fn payments_and_the_jobs_batches_are_traced_with_their_statements_and_no_empty_one_is() {
    let (url, sent) = collector();
    let app = TestApp::with(
        "all",
        &[
            ("FLASHSALE_LOG", "info"),
            ("FLASHSALE_OTLP_URL", &url),
            ("FLASHSALE_OTLP_RATIO", "1"),
        ],
    )
    .await;
    let id = app.load_sale(&sale()).await;
    for user in ["ada", "cy", "dan"] {
        let order = app.buy(user, &id, "k", 1).await.ok(201);
        app.wait_for_order(user, &order.id(), "reserved").await;
        assert_eq!(app.pay(user, &order.body).await, "applied");
    }
    let brief = app.load_sale(&sale_with(&json!({"payment_window_seconds": 1}))).await;
    let unpaid = app.buy("bob", &brief, "k", 1).await.ok(201);
    app.wait_for_order("bob", &unpaid.id(), "expired").await;
    let mut database = app.database().await;
    within(PATIENCE, "all messages are delivered", async || {
        let waiting: i64 = sqlx::query_scalar("select count(*) from outbox")
            .fetch_one(&mut database)
            .await
            .unwrap();
        waiting == 0
    })
    .await;
    let mut instance = app.instance;
    instance.terminate();
    let mut traces = Collected::default();
    traces.collect(&sent);

    let steps = [
        "begin",
        "find payments",
        "lock orders",
        "insert payments",
        "update orders",
        "write messages",
        "move units",
        "commit",
    ];
    let mut delivered = Vec::new();
    for payment in traces.called("payment") {
        let request = traces
            .called("request")
            .find(|it| it.span_id == payment.parent_span_id)
            .unwrap();
        assert_eq!(said(request, "path").as_deref(), Some("/v1/webhooks/payments"));
        assert_eq!(traces.within(payment), set(&steps));
        let scripts = traces
            .called("script")
            .filter(|it| it.parent_span_id == request.span_id)
            .filter_map(|it| said(it, "script"));
        delivered.push(scripts.collect::<BTreeSet<_>>());
    }
    assert_eq!(delivered.len(), 3);
    // The stock gets it in the same request, unless the job is there first, as it may be once a second.
    assert!(delivered.contains(&set(&["resolve"])), "{delivered:?}");

    let expired = traces
        .called("expire")
        .find(|it| said(it, "orders").as_deref() == Some("1"));
    let steps = ["begin", "expire orders", "move units", "write messages", "commit"];
    assert_eq!(traces.within(expired.unwrap()), set(&steps));
    let releases: Vec<&Span> = traces.called("release").collect();
    assert!(!releases.is_empty());
    for release in releases {
        assert_ne!(said(release, "messages").unwrap(), "0");
        assert_eq!(marks(release), ["taken", "delivered"]);
        let steps = traces.within(release);
        assert!(
            steps.contains("mark messages delivered") && steps.contains("commit"),
            "{steps:?}"
        );
        assert!(
            !steps.contains("script"),
            "one for each message would be too many: {steps:?}"
        );
    }
    for batch in traces.called("drain") {
        assert_ne!(said(batch, "events").unwrap(), "0");
        assert_eq!(traces.within(batch), set(&DRAIN));
    }
    // Scripts and statements are part of another span.
    for part in traces.called("script").chain(traces.called("sql")) {
        assert!(!part.parent_span_id.is_empty(), "{part:#?}");
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_drained_is_marked_in_the_traces_of_its_purchases() {
    let (url, sent) = collector();
    let app = TestApp::with(
        "all",
        &[
            ("FLASHSALE_LOG", "info"),
            ("FLASHSALE_OTLP_URL", &url),
            ("FLASHSALE_OTLP_RATIO", "1"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ],
    )
    .await;
    let id = app.load_sale(&sale()).await;
    let mut database = app.database().await;
    // The drain changes grants, and other jobs only read them.
    let mut lock = sqlx::Connection::begin(&mut database).await.unwrap();
    let grants = "lock table grants in exclusive mode";
    sqlx::query(grants).execute(&mut *lock).await.unwrap();
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    let mut traces = Collected::default();
    let is_error = |span: &Span| span.status.as_ref().is_some_and(|it| it.code == ERROR);
    poll::eventually("a batch has failed", || {
        traces.collect(&sent);
        traces.called("drained").any(is_error) && traces.called("drain").any(is_error)
    });
    let failed = traces.called("drain").find(|it| is_error(it)).unwrap();
    assert!(said(failed, "fault").unwrap().contains("lock timeout"), "{failed:#?}");
    assert!(traces.called("drained").all(|it| said(it, "order") == Some(order.id())));
    lock.rollback().await.unwrap();
    app.wait_for_order("ada", &order.id(), "reserved").await;
    poll::eventually("it was drained", || {
        traces.collect(&sent);
        traces.called("drained").any(|it| !is_error(it))
    });
}

/// Makes two requests with a traced parent. Returns everything that the collector got.
async fn traced_by(variables: &[(&str, &str)]) -> Collected {
    let (url, sent) = collector();
    let fixed = [("FLASHSALE_LOG", "info"), ("FLASHSALE_OTLP_URL", url.as_str())];
    let app = TestApp::with("all", &[&fixed[..], variables].concat()).await;
    let id = app.load_sale(&sale()).await;
    for key in ["first", "second"] {
        let request = app
            .buying("ada", &id, key)
            .header("traceparent", format!("00-{TRACE}-{PROXY}-01"));
        let order = app
            .send(request.json(&json!({"sku": "phone", "quantity": 1})))
            .await
            .ok(201);
        app.wait_for_order("ada", &order.id(), "reserved").await;
    }
    // Meanwhile the jobs have run their scripts: permits are renewed more often than once a second.
    let renewed = "flashsale_permit_renewals_total{result=\"renewed\"} ";
    poll::answer("permits are renewed", || async {
        let text = app.get(Who::Nobody, "/metrics").await.ok(200).text;
        let count = text.lines().find_map(|line| line.strip_prefix(renewed)).unwrap();
        (count.parse::<f64>().unwrap() >= 8.0).then_some(())
    })
    .await;
    let mut instance = app.instance;
    instance.terminate();
    let mut traces = Collected::default();
    traces.collect(&sent);
    traces
}

#[tokio::test]
async fn nobody_but_a_proxy_has_requests_traced() {
    let traces = traced_by(&[("FLASHSALE_OTLP_RATIO", "0")]).await;
    assert!(traces.spans.is_empty(), "{:#?}", traces.spans);
}

#[tokio::test]
async fn scripts_are_traced_within_requests_and_not_those_of_the_jobs() {
    let traces = traced_by(&[("FLASHSALE_OTLP_RATIO", "1")]).await;
    let scripts: Vec<&Span> = traces.called("script").collect();
    assert!(scripts.len() > 2, "{scripts:#?}");
    assert!(scripts.iter().all(|it| !it.parent_span_id.is_empty()), "{scripts:#?}");
    assert!(traces.called("request").all(|it| hex(&it.trace_id) != TRACE));
}

#[tokio::test]
async fn a_collector_that_is_away_is_reported_once_and_delays_nobody() {
    // Nobody listens here, and no other test gets the port.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", taken.local_addr().unwrap());
    let environment = [
        ("FLASHSALE_LOG", "info"),
        ("FLASHSALE_OTLP_URL", url.as_str()),
        ("FLASHSALE_OTLP_RATIO", "1"),
        // So that there are several batches.
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let app = TestApp::with("all", &environment).await;
    let id = app.load_sale(&sale()).await;
    let says = "the collector takes no traces";
    poll::answer("the log says so", || async { app.log().contains(says).then_some(()) }).await;
    for shopper in ["ada", "bob", "cleo"] {
        app.buy(shopper, &id, "k", 1).await.ok(201);
    }
    let mut instance = app.instance;
    instance.terminate();
    poll::answer("the log is whole", || async {
        instance.log().contains("\"stopped\"").then_some(())
    })
    .await;
    let log = instance.log();
    assert_eq!(log.matches(says).count(), 1, "{log}");
}
