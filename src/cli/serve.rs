//! `flashsale serve`: the API, the jobs or both, against servers that somebody else runs.

use super::Failure;
use crate::config::Config;
use crate::server::{self, Role};

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
/// `Usage` when the configuration is missing or wrong, `Fault` when a server cannot be reached.
pub fn run(args: &Args) -> Result<(), Failure> {
    let config = Config::load()?;
    server::run_until_signal(config, args.role)
}
