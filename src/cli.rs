//! The command line: one subcommand a file, exit codes 0 (done), 1 (the answer is no) and 2 (bad usage or
//! configuration).

pub mod alerts;
mod answer;
pub mod audit;
pub mod ban;
pub mod bench;
mod client;
mod duration;
pub mod guards;
pub mod healthcheck;
pub mod inspect;
pub mod migrate;
#[cfg(test)]
mod mock_server;
mod output;
pub mod pay;
pub mod rebuild;
pub mod sale;
mod sale_file;
pub mod serve;
mod setting;
pub mod token;
pub mod up;
mod watch;

use crate::config::ConfigError;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Sell scarce stock in a flash sale: never oversold, never a unit leaked, never sold twice to one request.
#[derive(Parser)]
#[command(name = "flashsale", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a private Redis and Postgres, and serve everything on top of them.
    Up(up::Args),
    /// Serve HTTP, run the jobs, or both, against a Redis and a Postgres of your own.
    Serve(serve::Args),
    /// Bring the schema of the database up to this binary.
    Migrate,
    /// Create, open, restock and follow sales.
    Sale(sale::Args),
    /// Print a shopper's bearer token.
    Token(token::Args),
    /// Play the payment provider: mark an order as paid.
    Pay(pay::Args),
    /// Count every unit of a sale in Redis and in Postgres.
    Audit(audit::Args),
    /// Write a sale's stock in Redis anew from Postgres, after a loss.
    Rebuild(rebuild::Args),
    /// Ban accounts, list bans, and lift them.
    Ban(ban::Args),
    /// List what the guards tell of, or follow it.
    Alerts(alerts::Args),
    /// Show or change the limits in front of what shoppers ask.
    Guards(guards::Args),
    /// Decode what Redis holds of a sale, for a human who looks for a mistake.
    Inspect(inspect::Args),
    /// Measure this program on this machine, beside its parts and beside other ways to sell.
    Bench(bench::Args),
    /// Ask the instance with this configuration whether it is ready; for container health checks.
    #[command(hide = true)]
    Healthcheck,
}

/// How a command can end other than well; each has its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The answer is no: exit code 1.
    #[error("{0}")]
    No(String),
    /// Bad usage or configuration: exit code 2. The text is one line that names the variable or the file.
    #[error("{0}")]
    Usage(String),
    /// A fault: exit code 1.
    #[error("{0:#}")]
    Fault(#[from] anyhow::Error),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Migrate => migrate::run(),
        Command::Sale(args) => sale::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Pay(args) => pay::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Rebuild(args) => rebuild::run(&args),
        Command::Ban(args) => ban::run(&args),
        Command::Alerts(args) => alerts::run(&args),
        Command::Guards(args) => guards::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Healthcheck => healthcheck::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("flashsale: {failure}");
            match failure {
                Failure::Usage(_) => ExitCode::from(2),
                Failure::No(_) | Failure::Fault(_) => ExitCode::FAILURE,
            }
        }
    }
}
