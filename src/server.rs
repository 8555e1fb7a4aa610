//! One running process: connections, HTTP, jobs and their end.

use crate::cli::Failure;
use crate::config::Config;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// HTTP and jobs.
    All,
    /// HTTP only.
    Api,
    /// Jobs only.
    Worker,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// `Fault` when a server cannot be reached.
pub fn run_until_signal(_config: Config, _role: Role) -> Result<(), Failure> {
    Ok(())
}
