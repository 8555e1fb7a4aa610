//! `flashsale serve`: the API, the jobs or both, against servers that somebody else runs.

use super::Failure;
use super::client::own_url;
use crate::config::Config;
use crate::domain::development;
use crate::server::{self, Role, ServeError};
use crate::telemetry;
use std::io::Write as _;
use tokio_util::sync::CancellationToken;

/// Arguments of `serve`.
#[derive(clap::Args)]
pub struct Args {
    /// What this process does; any number of each may run side by side.
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// `Usage` when the configuration is missing or wrong, `No` when the schema is behind, `Fault` when a server cannot
/// be reached.
pub fn run(args: &Args) -> Result<(), Failure> {
    let config = Config::load()?;
    telemetry::init(&config.log)?;
    Ok(server::run_until_signal(
        &config,
        args.role,
        false,
        &CancellationToken::new(),
        |served| {
            if config.development {
                let page = format!("{}/", own_url(served.shop, config.tls.is_some()));
                let link = development::link(&page, config.jwt_secret.expose());
                // Not in the log, which others read. Whoever does not read our output does not need this line.
                let _unread = writeln!(std::io::stdout(), "Development mode: {link}");
            }
        },
    )?)
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::SchemaBehind(text) => Self::No(text),
            ServeError::Fault(fault) => Self::Fault(fault),
        }
    }
}
