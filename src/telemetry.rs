//! Logs: to standard error, for a human on a terminal and as JSON lines anywhere else.

use anyhow::Context as _;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Starts logging for the whole process, once.
///
/// # Errors
/// When the filter is not one, or logging was started before.
pub fn init(filter: &str) -> anyhow::Result<()> {
    // What these libraries call information is about themselves; naming them in the filter still wins.
    // A request that is none is its sender's fault, and would else let anybody fill the log with errors.
    // The address of a webhook may be a secret.
    let filter = format!(
        "tokio_cron_scheduler=warn,sqlx=warn,actix_server=warn,actix_http::h1::dispatcher=off,redis=error,ureq=warn,\
         {filter}"
    );
    let filter = EnvFilter::try_new(filter).context("FLASHSALE_LOG is not a tracing filter")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))
}
