//! `flashsale up`: private servers, then everything that `serve` does.

use super::Failure;

/// Arguments of `up`.
#[derive(clap::Args)]
pub struct Args {}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// `Fault` when a server does not start.
pub fn run(_args: &Args) -> Result<(), Failure> {
    Ok(())
}
