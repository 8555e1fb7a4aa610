//! Logs go to standard error: as text on a terminal, as JSON lines elsewhere. Traces go to an OpenTelemetry
//! collector, if the configuration names one.

mod otlp;

use anyhow::Context as _;
pub use otlp::{BatchSpan, follow, origin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{IsTerminal as _, StderrLock, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tracing::Span;
use tracing::span::Id;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

/// Whether the logger reports its own failed writes. The report would go to standard error again. If standard error
/// is closed, the report panics and ends the thread, with the request that it answers.
const TELLS_OF_ITSELF: bool = false;

/// What an unshared pipe takes at once if it takes anything, in bytes.
const PIPE_PAGE: usize = 4096;

/// Lines that nobody has taken since the start, and how many of them the log has reported.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static REPORTED: AtomicU64 = AtomicU64::new(0);
/// Whether the last line that was written lacks its end.
static IS_CUT: AtomicBool = AtomicBool::new(false);

/// Standard error, for lines of the log. A reader of a pipe that stalls must not stop the sale. So a line is dropped if
/// standard error does not take it at once, or refuses it.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        // Under the lock, nothing of this process fills the pipe between the poll and the write.
        let mut stderr = std::io::stderr().lock();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        for (number, part) in line.chunks(PIPE_PAGE - 1).enumerate() {
            let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
            let is_ready = poll(&mut polled, Some(&now)) == Ok(1);
            let ends_line = if IS_CUT.load(Ordering::Relaxed) { "\n" } else { "" };
            let write = |stderr: &mut StderrLock<'_>| {
                stderr.write_all(ends_line.as_bytes())?;
                IS_CUT.store(false, Ordering::Relaxed);
                stderr.write_all(part)
            };
            let is_written = is_ready && write(&mut stderr).is_ok();
            if !is_written {
                DROPPED.fetch_add(1, Ordering::Relaxed);
                // A refused write may have written a part.
                IS_CUT.fetch_or(number > 0 || is_ready, Ordering::Relaxed);
                break;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Logs how many lines nobody has taken since the start, if there are more than at the last report.
pub fn report_dropped() {
    let lines = DROPPED.load(Ordering::Relaxed);
    if lines == REPORTED.load(Ordering::Relaxed) {
        return;
    }
    tracing::warn!(
        lines,
        "lines of the log were dropped since the start: its reader had stalled, or its disk was full"
    );
    // This line may have been dropped, too.
    if DROPPED.load(Ordering::Relaxed) == lines {
        REPORTED.store(lines, Ordering::Relaxed);
    }
}

/// Where traces go.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The collector's address, without the path.
    pub url: &'a str,
    /// The share of requests that is traced. A request that brings its own trace follows the decision of that trace.
    pub ratio: f64,
}

/// Keeps tracing on until it is dropped. The drop sends the spans that wait for the collector.
#[derive(Default)]
#[must_use]
pub struct Telemetry {
    _traces: Option<otlp::Traces>,
}

/// Starts logging for the whole process, once. It logs JSON lines if `json` is set or standard error is no terminal.
/// Fails when the filter is invalid, the collector's address cannot be used, or logging was started before.
pub fn init(filter: &str, json: bool, export: Option<Export<'_>>) -> anyhow::Result<Telemetry> {
    // At `info`, these libraries log about themselves. A filter that names them still wins.
    // A malformed request is its client's fault: it must not let any client fill the log with errors.
    // The client of webhooks would log their addresses, which may be secrets.
    // While Postgres hangs, sqlx would warn of each slow statement, where one line says what is wrong.
    // It would also complain of the home folder of root, which `up` leaves to become another user.
    // The scheduler would call each job that ends while the process stops an error. Each job's outcome is counted.
    let filter = format!(
        "tokio_cron_scheduler=off,sqlx=error,sqlx_postgres::options::pgpass=off,actix_server=warn,\
         actix_http::h1::dispatcher=off,redis=error,ureq=warn,{filter}"
    );
    let filter = EnvFilter::try_new(filter).context("FLASHSALE_LOG is not a tracing filter")?;
    let json = json || !std::io::stderr().is_terminal();
    let telemetry = match export {
        Some(export) => exporting(filter, json, export)?,
        None => plain(filter, json)?,
    };
    // The usual hook waits for the reader of standard error.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(thread = thread.name(), %backtrace, %panic, "a thread panicked");
    }));
    Ok(telemetry)
}

fn plain(filter: EnvFilter, json: bool) -> anyhow::Result<Telemetry> {
    // One filter for the whole subscriber, and none on a layer: a line that it drops then costs a purchase nothing.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines)
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
        .with_writer(|| Lines)
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

/// The current request as the parent of a span, if the request is traced. Otherwise the span begins a trace of its
/// own.
pub fn parent() -> Option<Id> {
    origin().and_then(|_| Span::current().id())
}

/// Marks a span as failed, in the form that collectors know. The span must have the field `otel.status_code`.
pub fn failed(span: &Span) {
    span.record("otel.status_code", "ERROR");
}
