//! `flashsale serve`: runs the API, the jobs or both, with a Redis and a Postgres that the operator runs.

use crate::cli::Failure;
use crate::cli::shared::client::own_url;
use crate::cli::shared::output;
use crate::config::Config;
use crate::domain::deployment::development;
use crate::server::{self, Listeners, Role, ServeError};
use std::io::Write as _;
use tokio_util::sync::CancellationToken;

#[derive(clap::Args)]
#[command(after_help = "\
Needs FLASHSALE_REDIS_URL, FLASHSALE_DATABASE_URL, FLASHSALE_ADMIN_KEY, FLASHSALE_JWT_SECRET and FLASHSALE_WEBHOOK_SECRET,
in the environment or in flashsale.toml.

Examples:
  flashsale migrate && flashsale serve
  FLASHSALE_LISTEN=0.0.0.0:8080 flashsale serve --role api
  FLASHSALE_METRICS_LISTEN=127.0.0.1:9090 flashsale serve --role worker")]
pub struct Args {
    /// What this process does; any number of each may run side by side.
    #[arg(long, value_enum, default_value_t = Role::All)]
    role: Role,
    /// Log JSON lines, even on a terminal.
    #[arg(long)]
    json: bool,
}

/// Serves until SIGINT or SIGTERM.
pub fn run(args: &Args) -> Result<(), Failure> {
    let config = Config::load()?;
    let _telemetry = crate::cli::start_logging(&config, args.json)?;
    Ok(server::run_until_signal(
        &config,
        args.role,
        Listeners::bind(&config, args.role)?,
        false,
        &CancellationToken::new(),
        |served| {
            if config.development {
                let page = format!("{}/", own_url(served.shop, config.tls.is_some()));
                let link = development::link(&page, config.jwt_secret.expose());
                // Not in the journal, which is kept and which other users read.
                let link = if output::goes_to_journal() {
                    output::LINK_NOT_KEPT
                } else {
                    &link
                };
                // Output without a reader is no error.
                let _unread = writeln!(std::io::stdout(), "Development mode: {link}");
            }
        },
    )?)
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::SchemaBehind(text) => Self::No(text),
            ServeError::Fault(fault) => fault.into(),
        }
    }
}
