//! `flashsale healthcheck`: asks the instance of this configuration whether it is ready. For container images without
//! curl.

use crate::cli::Failure;
use crate::cli::shared::client::{own_url, trusting_anybody};
use crate::config::Config;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(3);

pub fn run() -> Result<(), Failure> {
    let config = Config::load()?;
    let url = format!("{}/readyz", own_url(config.listen, config.tls.is_some()));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(LIMIT))
        .http_status_as_error(false)
        .proxy(None)
        // The request has no secret that another server could use.
        .tls_config(trusting_anybody())
        .build()
        .into();
    let mut response = agent
        .get(&url)
        .call()
        .map_err(|error| Failure::No(format!("{url} does not answer: {error}")))?;
    if response.status().is_success() {
        return Ok(());
    }
    let reason = response
        .body_mut()
        .read_to_string()
        .unwrap_or_else(|error| error.to_string());
    Err(Failure::No(format!(
        "{url} answers {}: {}",
        response.status(),
        reason.trim()
    )))
}
