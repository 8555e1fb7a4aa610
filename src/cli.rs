//! The command line, one subcommand a file. Exit codes are 0 (done), 1 (the answer is no) and 2 (bad usage or
//! configuration).

pub mod instance;
pub mod operator;
pub mod shared;
pub mod shell;
pub mod shopper;

use crate::config::{Config, ConfigError, Secret};
use crate::domain::code::Code;
use crate::ledger::ConnectError;
use crate::stderr;
use crate::telemetry::{self, Export, Telemetry};
use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use instance::{config, healthcheck, migrate, serve, up};
use operator::{actions, alerts, audit, ban, dead_letters, guards, inspect, orders, rebuild, refunds, sale};
use serde_json::Value;
use shared::output;
use shell::{complete_words, completions, man};
use shopper::{buy, pay, token};
use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

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
    /// Start a private Redis and Postgres, then serve HTTP and run the jobs.
    Up(up::Args),
    /// Serve HTTP, run the jobs, or both, with your own Redis and Postgres.
    Serve(serve::Args),
    /// Check or show the configuration.
    Config(config::Args),
    /// Apply the missing database migrations.
    Migrate(migrate::Args),
    /// Create, open, restock and watch sales.
    Sale(sale::Args),
    /// Print a shopper's bearer token.
    Token(token::Args),
    /// Buy as a shopper, with the sale's guards.
    Buy(buy::Args),
    /// Act as the payment provider: send the signed webhook that marks an order as paid.
    Pay(pay::Args),
    /// List orders of a sale or an account, or show one order with its payments.
    Orders(orders::Args),
    /// List payments that must be refunded, and mark them as refunded.
    Refunds(refunds::Args),
    /// Count every unit of a sale in Redis and in Postgres, and print what differs.
    Audit(audit::Args),
    /// List dead letters (events that Postgres could not store), and settle them.
    DeadLetters(dead_letters::Args),
    /// Rebuild a sale's stock in Redis from Postgres.
    Rebuild(rebuild::Args),
    /// Ban accounts, list bans, and lift them.
    Ban(ban::Args),
    /// List or follow guard warnings.
    Alerts(alerts::Args),
    /// List the audit log of operators' actions, newest first.
    Actions(actions::Args),
    /// Show or change the guards: the limits on shoppers' requests.
    Guards(guards::Args),
    /// Decode a sale's keys in Redis, to find a fault.
    Inspect(inspect::Args),
    /// Print a shell's completion script.
    Completions(completions::Args),
    /// Print the ids and SKUs for the word under the cursor, for completion scripts.
    #[command(hide = true)]
    CompleteWords(complete_words::Args),
    /// Print one manual page, or write them all.
    Man(man::Args),
    /// Ask the instance of this configuration whether it is ready, for container health checks.
    #[command(hide = true)]
    Healthcheck,
}

/// Why a command fails. Each variant has its exit code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The answer is no: exit code 1.
    #[error("{0}")]
    No(String),
    /// Bad usage or configuration: exit code 2. The text is one line and names the variable or the file.
    #[error("{0}")]
    Usage(String),
    /// The API refuses: exit code 2 if the request is wrong, else 1.
    #[error("{text}")]
    Refused {
        text: String,
        /// The API's answer, which `--json` prints; null if another server answered something else.
        problem: Box<Value>,
    },
    /// A fault: exit code 1.
    #[error("{0:#}")]
    Fault(#[source] anyhow::Error),
}

impl Failure {
    /// Prints the failure after the program's name, and gives its exit code.
    #[must_use]
    pub fn report(self, program: &str) -> ExitCode {
        stderr::line(format_args!("{program}: {self}"));
        ExitCode::from(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Refused { problem, .. } if problem["code"] == Code::InvalidRequest.as_str() => 2,
            Self::No(_) | Self::Refused { .. } | Self::Fault(_) => 1,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast_ref() {
            Some(ConnectError::WrongUrl(text)) => Self::Usage(text.clone()),
            _ => Self::Fault(error),
        }
    }
}

/// Starts logging, and tracing if it is configured. Both end when the returned value is dropped.
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

fn command() -> clap::Command {
    Cli::command()
}

/// Reads an argument whose error is the rest of a sentence, such as `must have 1 to 200 characters`.
fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse::<T>().map_err(|wrong| format!("it {wrong}"))
}

/// Whether `--json` is among the arguments of the subcommand.
fn has_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => has_json(inner),
        None => matches
            .try_get_one::<bool>("json")
            .is_ok_and(|json| json == Some(&true)),
    }
}

/// The error of a wrong command line, for a person who reads it. An unknown option is hardly meant as a value.
fn without_tip(mut error: clap::Error) -> clap::Error {
    let is_option =
        matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(arg)) if arg.starts_with("--"));
    if is_option && let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

#[must_use]
pub fn main() -> ExitCode {
    let matches = command()
        .try_get_matches()
        .unwrap_or_else(|error| without_tip(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command()).exit());
    let outcome = match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Sale(args) => sale::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Buy(args) => buy::run(&args),
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
        Command::Completions(args) => completions::run(&args),
        Command::CompleteWords(args) => complete_words::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Healthcheck => healthcheck::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Failure::Refused { problem, .. } = &failure
                && problem.is_object()
                && has_json(&matches)
            {
                // On one line, as the entries of a stream before it. The failure is reported also without a reader.
                let _unread = output::print(&format!("{problem}\n"));
            }
            failure.report("flashsale")
        }
    }
}
