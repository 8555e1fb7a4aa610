//! The command line: one subcommand a file, exit codes 0 (done), 1 (the answer is no) and 2 (bad usage or
//! configuration).

pub mod actions;
pub mod alerts;
mod answer;
pub mod audit;
pub mod ban;
pub mod bench;
mod client;
pub mod completions;
pub mod config;
pub mod dead_letters;
mod duration;
mod events;
pub mod guards;
pub mod healthcheck;
pub mod inspect;
pub mod man;
pub mod migrate;
#[cfg(test)]
mod mock_server;
pub mod orders;
mod output;
mod pages;
pub mod pay;
mod progress;
pub mod rebuild;
pub mod refunds;
pub mod sale;
mod sale_file;
pub mod serve;
mod setting;
pub mod token;
pub mod up;
mod watch;

use crate::config::{Config, ConfigError, Secret};
use crate::stderr;
use crate::telemetry::{self, Export, Telemetry};
use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;

/// Sell scarce stock in a flash sale: never oversold, never a unit leaked, never sold twice to one request.
#[derive(Parser)]
#[command(
    name = "flashsale",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  flashsale up                                  # everything on this machine, with a demo sale
  flashsale sale create sale.example.toml
  flashsale sale watch 3f2c…
  source <(flashsale completions bash)

Exit codes: 0 done, 1 the answer is no, 2 bad usage or configuration."
)]
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
    /// Show what an instance would run with, and check it.
    Config(config::Args),
    /// Bring the schema of the database up to this binary.
    Migrate(migrate::Args),
    /// Create, open, restock and follow sales.
    Sale(sale::Args),
    /// Print a shopper's bearer token.
    Token(token::Args),
    /// Play the payment provider: mark an order as paid.
    Pay(pay::Args),
    /// List orders of a sale or an account, or show one with its payments.
    Orders(orders::Args),
    /// List money that is owed back, and say that it was paid back.
    Refunds(refunds::Args),
    /// Count every unit of a sale in Redis and in Postgres.
    Audit(audit::Args),
    /// List events that the ledger could not take in, and say that they are dealt with.
    DeadLetters(dead_letters::Args),
    /// Write a sale's stock in Redis anew from Postgres, after a loss.
    Rebuild(rebuild::Args),
    /// Ban accounts, list bans, and lift them.
    Ban(ban::Args),
    /// List what the guards tell of, or follow it.
    Alerts(alerts::Args),
    /// List what operators did, newest first.
    Actions(actions::Args),
    /// Show or change the limits in front of what shoppers ask.
    Guards(guards::Args),
    /// Decode what Redis holds of a sale, for a human who looks for a mistake.
    Inspect(inspect::Args),
    /// Measure this program on this machine, beside its parts and beside other ways to sell.
    Bench(bench::Args),
    /// Print what a shell needs to complete these commands.
    Completions(completions::Args),
    /// Print a manual page, or write them all.
    Man(man::Args),
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

/// Starts logging, and tracing where it is configured; both end when what is returned is dropped.
fn start_logging(config: &Config, json: bool) -> Result<Telemetry, Failure> {
    let traces = config.traces.as_ref().map(Secret::expose);
    let export = traces.map(|traces| Export {
        url: &traces.url,
        ratio: traces.ratio,
    });
    let telemetry = telemetry::init(&config.log, json, export).map_err(|error| match export {
        Some(_) => Failure::Usage(format!("{error:#}")),
        None => Failure::Fault(error),
    })?;
    for file in &config.exposed_files {
        tracing::warn!(
            file,
            "every user of this machine can read a file with secrets; run chmod o= on it"
        );
    }
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(telemetry)
}

/// Every command, with its arguments and help.
fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Sale(args) => sale::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Pay(args) => pay::run(&args),
        Command::Orders(args) => orders::run(&args),
        Command::Refunds(args) => refunds::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::DeadLetters(args) => dead_letters::run(&args),
        Command::Rebuild(args) => rebuild::run(&args),
        Command::Ban(args) => ban::run(&args),
        Command::Alerts(args) => alerts::run(&args),
        Command::Actions(args) => actions::run(&args),
        Command::Guards(args) => guards::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Healthcheck => healthcheck::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            stderr::line(format_args!("flashsale: {failure}"));
            match failure {
                Failure::Usage(_) => ExitCode::from(2),
                Failure::No(_) | Failure::Fault(_) => ExitCode::FAILURE,
            }
        }
    }
}
