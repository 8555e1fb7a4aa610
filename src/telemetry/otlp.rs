//! Exports traces by OTLP over HTTP. They hold requests, batches of jobs, the scripts and statements of both, and
//! their log lines at `debug` or above. Nothing waits for a collector that is away; its spans are lost.

use super::Export;
use crate::domain::deployment::host::is_this_machine;
use crate::domain::fault::Fault;
use crate::domain::order::event::Origin;
use anyhow::Context as _;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::registry::LookupSpan;
use ureq::http::Uri;
use uuid::Uuid;

/// How long the collector may take to accept a batch of spans, and how long the end of the process waits for it.
const SEND_MAX: Duration = Duration::from_secs(5);
/// The default name of this service at the collector.
const SERVICE: &str = "flashsale";
/// How much of a collector's answer is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// The exporter of spans. It drops spans that the collector does not take in time.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts to export, on a thread of its own. Fails when the address cannot be used.
    pub fn start(export: Export<'_>) -> anyhow::Result<Self> {
        let uri = export
            .url
            .parse::<Uri>()
            .context("FLASHSALE_OTLP_URL is not an address")?;
        let host = uri.host().unwrap_or_default();
        let mut agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would send the headers, which may hold a key, to another server.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(SEND_MAX));
        if is_this_machine(host) {
            agent = agent.proxy(None);
        }
        let agent = agent.build().new_agent();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Http {
                agent,
                is_failing: AtomicBool::default(),
            })
            .with_endpoint(format!("{}/v1/traces", export.url.trim_end_matches('/')))
            .with_timeout(SEND_MAX)
            .build()
            .context("FLASHSALE_OTLP_URL cannot be used")?;
        let share = Share(Sampler::TraceIdRatioBased(export.ratio));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(share)))
            .with_resource(resource())
            .build();
        Ok(Self(provider))
    }

    /// The layer that turns spans into those of OpenTelemetry.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        // A dynamic filter, which is asked for each line. The library sqlx asks whether a line would be logged, and
        // then logs none. A cached filter would keep that answer for the next line, and the log would lack that line.
        let ours = dynamic_filter_fn(|line, _| {
            *line.level() <= Level::DEBUG && line.target().split(':').next() == Some("flashsale")
        });
        let ours = ours.with_max_level_hint(LevelFilter::DEBUG);
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_filter(ours)
    }
}

/// Samples traces that begin here: a share of the requests, and all work that is linked to a traced request. A batch is
/// linked to its purchases. The link carries the decision, so every instance follows it, even with another share.
#[derive(Clone, Debug)]
struct Share(Sampler);

impl ShouldSample for Share {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.0.should_sample(parent, trace, name, kind, attributes, links);
        if links.iter().any(|link| link.span_context.is_sampled()) {
            result.decision = SamplingDecision::RecordAndSample;
        }
        result
    }
}

/// The attributes of this process. Those in OpenTelemetry's own variables win.
fn resource() -> Resource {
    let own = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", Uuid::new_v4().to_string()),
    ];
    let resource = Resource::builder_empty()
        .with_service_name(SERVICE)
        .with_attributes(own)
        .with_detector(Box::new(EnvResourceDetector::new()));
    // Not by the SDK's detector of this variable: without the variable, it names the service unknown.
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        _ => resource,
    }
    .build()
}

impl Drop for Traces {
    fn drop(&mut self) {
        // A collector that is away must not hold up the end of the process.
        let _lost = self.0.shutdown_with_timeout(SEND_MAX);
    }
}

/// Makes a span part of the caller's trace, which `traceparent` names in the form of W3C Trace Context.
pub fn follow(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    // An error means that the span is not exported, and so needs no parent.
    let _not_ours = span.set_parent(TraceContextPropagator::new().extract(&carrier));
}

/// The current request as the origin of later work, if the request is traced.
pub fn origin() -> Option<Origin> {
    Context::map_current(traced)
}

fn traced(context: &Context) -> Option<Origin> {
    let span = context.span();
    let at = span.span_context();
    (at.is_valid() && at.is_sampled()).then(|| Origin {
        trace: at.trace_id().to_bytes(),
        span: at.span_id().to_bytes(),
    })
}

fn context_of(origin: Origin) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(origin.trace), SpanId::from_bytes(origin.span));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::NONE)
}

/// The span of a batch of a job. It begins before the content of the batch is known. Until it is entered, it can be
/// linked to requests, which decides whether it is traced, or be forgotten.
#[must_use]
pub struct BatchSpan(Span);

impl BatchSpan {
    /// A batch with a new span.
    pub const fn of(span: Span) -> Self {
        Self(span)
    }

    /// Adds a named moment to the span, and no line to the log.
    pub fn mark(&self, what: &'static str) {
        self.0.add_event(what, Vec::new());
    }

    /// Links the batch to this traced request, so that the batch is traced too.
    pub fn link(&self, origin: Origin) {
        self.0.add_link(context_of(origin));
    }

    /// Moves a span of the batch into the trace of this request, with a link to the batch.
    pub fn report(&self, span: Span, origin: Origin) -> Span {
        let _not_ours = span.set_parent(Context::new().with_remote_span_context(context_of(origin)));
        // This fixes whether the batch is traced: a later parent or link no longer changes that.
        if let Some(batch) = traced(&self.0.context()) {
            span.add_link(context_of(batch));
        }
        span
    }

    /// Drops the span of an empty batch, which was not entered yet: it becomes part of a trace that is not sampled.
    pub fn forget(self) {
        let _not_ours = self
            .0
            .set_parent(Context::new().with_remote_span_context(SpanContext::NONE));
    }

    /// Marks the batch as failed, with the reason.
    pub fn fail(self, fault: &Fault) {
        super::failed(&self.0);
        self.0.record("fault", tracing::field::display(fault));
    }

    /// The span, for fields and for the work within the batch.
    pub const fn span(&self) -> &Span {
        &self.0
    }
}

/// Sends with the HTTP client of the rest of the program. It blocks the exporter's own thread, which may wait.
#[derive(Debug)]
struct Http {
    agent: ureq::Agent,
    /// Whether the collector did not take the last batch. The log says so once.
    is_failing: AtomicBool,
}

impl Http {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(head, body.as_ref()))?;
        let (head, mut body) = response.into_parts();
        let bytes = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, bytes.into()))
    }

    /// Logs once that the collector takes no traces, and once that it takes them again.
    fn note(&self, sent: &Result<Response<Bytes>, ureq::Error>) {
        let reason = match sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status().as_u16())),
            // Without the address, which may carry a token.
            Err(ureq::Error::Io(error)) => Some(error.kind().to_string()),
            Err(ureq::Error::Timeout(_)) => Some("no answer in time".to_owned()),
            Err(ureq::Error::HostNotFound) => Some("there is no host of that name".to_owned()),
            Err(_) => Some("no answer that can be understood".to_owned()),
        };
        let was_failing = self.is_failing.swap(reason.is_some(), Ordering::Relaxed);
        match reason {
            Some(reason) if !was_failing => {
                tracing::warn!(
                    reason,
                    "the collector takes no traces; they are dropped until it does, and nothing waits for it"
                );
            }
            None if was_failing => tracing::info!("the collector takes traces again"),
            _ => {}
        }
    }
}

// The code that `#[async_trait]` would generate.
impl HttpClient for Http {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let sent = self.send(request);
        self.note(&sent);
        Box::pin(async move { Ok(sent?) })
    }
}
