//! Traces by OTLP over HTTP: requests, the scripts that they run, and what is logged within them at `debug` or above.

use super::Export;
use crate::domain::host::is_this_machine;
use anyhow::Context as _;
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
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

/// How long the collector may take to accept a batch, and how long the end waits for it.
const SEND_MAX: Duration = Duration::from_secs(5);
/// What a collector knows this program by, unless it is told otherwise.
const SERVICE: &str = "flashsale";
/// What a collector answers is not read further.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Spans on their way to the collector; what it does not take in time is dropped, never waited for.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to export from a thread of its own.
    ///
    /// # Errors
    /// When the address is none.
    pub fn start(export: Export<'_>) -> anyhow::Result<Self> {
        let uri = export
            .url
            .parse::<Uri>()
            .context("FLASHSALE_OTLP_URL is not an address")?;
        let host = uri.host().unwrap_or_default();
        let mut agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
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
        let share = Sampler::TraceIdRatioBased(export.ratio);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(share)))
            .with_resource(resource())
            .build();
        Ok(Self(provider))
    }

    /// What turns spans into those of OpenTelemetry.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        // Asked anew for each line: sqlx asks whether one would be logged, and logs none. An answer that is kept beside a
        // filter that is not asked again would then be taken for that about the next line, which would be missing in the log.
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

/// What is said of this process with every batch. What OpenTelemetry's own variables say wins.
fn resource() -> Resource {
    let own = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", Uuid::new_v4().to_string()),
    ];
    let resource = Resource::builder_empty()
        .with_service_name(SERVICE)
        .with_attributes(own)
        .with_detector(Box::new(EnvResourceDetector::new()));
    // The detector that reads this one would call a service without a name unknown.
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        _ => resource,
    }
    .build()
}

impl Drop for Traces {
    fn drop(&mut self) {
        // A collector that is away must not keep the process.
        let _lost = self.0.shutdown_with_timeout(SEND_MAX);
    }
}

/// See [`super::follow`].
pub fn follow(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    // A span that is not exported has no parent.
    let _not_ours = span.set_parent(TraceContextPropagator::new().extract(&carrier));
}

/// Sends by the client that the rest of the program uses; on the exporter's own thread, which may wait.
#[derive(Debug)]
struct Http {
    agent: ureq::Agent,
    /// Whether the last batch was not taken, which is said once.
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

    /// Says once that the collector takes nothing, and once that it does again.
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

// What `#[async_trait]` would write.
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
