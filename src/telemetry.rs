//! Logs: to standard error, for a human on a terminal and as JSON lines anywhere else. Traces: to an OpenTelemetry collector,
//! where the configuration names one.

mod otlp;

use crate::domain::event::Origin;
use crate::domain::fault::Fault;
use anyhow::Context as _;
use std::io::IsTerminal as _;
use tracing::Span;
use tracing::span::Id;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Whether a line that could not be written is told of, on standard error again: that ends the thread where it is this that
/// nobody can read any more, and with it the request that it was answering.
const TELLS_OF_ITSELF: bool = false;

/// Where traces go.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The collector, without the path.
    pub url: &'a str,
    /// The share of requests that is traced, unless whoever asks has decided it.
    pub ratio: f64,
}

/// Logging and tracing for as long as this is held; what waits for the collector is sent when it is dropped.
#[derive(Default)]
#[must_use]
pub struct Telemetry {
    _traces: Option<otlp::Traces>,
}

/// Starts logging for the whole process, once: as JSON lines where `json` says so or nobody sees a terminal.
///
/// # Errors
/// When the filter is not one, the collector has no address that can be used, or logging was started before.
pub fn init(filter: &str, json: bool, export: Option<Export<'_>>) -> anyhow::Result<Telemetry> {
    // What these libraries call information is about themselves; naming them in the filter still wins.
    // A request that is none is its sender's fault, and would else let anybody fill the log with errors.
    // The address of a webhook may be a secret.
    let filter = format!(
        "tokio_cron_scheduler=warn,sqlx=warn,actix_server=warn,actix_http::h1::dispatcher=off,redis=error,ureq=warn,\
         {filter}"
    );
    let filter = EnvFilter::try_new(filter).context("FLASHSALE_LOG is not a tracing filter")?;
    let json = json || !std::io::stderr().is_terminal();
    if let Some(export) = export {
        return exporting(filter, json, export);
    }
    // Without a layer of its own for each, so that what the filter leaves out costs a purchase nothing.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(TELLS_OF_ITSELF);
    let started = if json {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))?;
    Ok(Telemetry::default())
}

fn exporting(filter: EnvFilter, json: bool, export: Export<'_>) -> anyhow::Result<Telemetry> {
    let traces = otlp::Traces::start(export)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(TELLS_OF_ITSELF);
    let lines = if json {
        lines.json().flatten_event(true).with_ansi(false).boxed()
    } else {
        lines.boxed()
    };
    let started = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces.layer())
        .try_init();
    started.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))?;
    Ok(Telemetry { _traces: Some(traces) })
}

/// Makes a span part of the trace that whoever asks has begun, as W3C Trace Context says it.
pub fn follow(span: &Span, traceparent: &str) {
    otlp::follow(span, traceparent);
}

/// The request that is being answered, if it is traced.
#[must_use]
pub fn origin() -> Option<Origin> {
    otlp::origin()
}

/// The same as the parent of a span: whatever comes of a request that is not traced begins a trace of its own.
#[must_use]
pub fn parent() -> Option<Id> {
    origin().and_then(|_| Span::current().id())
}

/// What a job takes up in one go, as a span that begins before it is known what that will be: until it is entered, it may
/// still be linked to what it is about, which decides whether it is traced, or be forgotten.
#[must_use]
pub struct Batch(Span);

impl Batch {
    /// One whose span has just been made.
    pub const fn of(span: Span) -> Self {
        Self(span)
    }

    /// Notes a moment on the way.
    pub fn mark(&self, what: &'static str) {
        otlp::mark(&self.0, what);
    }

    /// It is about this request, so it is traced, too.
    pub fn link(&self, origin: Origin) {
        otlp::link(&self.0, origin);
    }

    /// Makes a span of the batch a part of that request's trace instead, with a link to the batch.
    pub fn report(&self, span: Span, origin: Origin) -> Span {
        otlp::adopt(&span, origin);
        if let Some(batch) = otlp::origin_of(&self.0) {
            otlp::link(&span, batch);
        }
        span
    }

    /// There was nothing to take up: nobody is told of it.
    pub fn forget(self) {
        otlp::forget(&self.0);
    }

    /// It came to nothing, and why.
    pub fn fail(self, fault: &Fault) {
        failed(&self.0);
        self.0.record("fault", tracing::field::display(fault));
    }

    /// Its span, which has what is noted about it and what runs within it.
    #[must_use]
    pub const fn span(&self) -> &Span {
        &self.0
    }
}

/// Marks a span, which has a field for it, as of something that failed: so collectors know it.
pub fn failed(span: &Span) {
    span.record("otel.status_code", "ERROR");
}
