//! `flashsale config`: checks and shows the configuration of an instance.

use crate::cli::Failure;
use crate::cli::shared::output::{self, Table};
use crate::config::{Config, Settings};
use crate::ledger::check_url;
use crate::stderr;
use clap::Subcommand;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Reads the environment and flashsale.toml in the working folder, as `flashsale serve` does. It connects to no server.

Examples:
  flashsale config check
  flashsale config show --json | jq '.variables[] | select(.from != \"default\")'")]
pub struct Args {
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check every variable as `serve` does, and report misspelt names; exit code 2 at the first fault.
    #[command(after_help = "Example:\n  flashsale config check && systemctl restart flashsale")]
    Check,
    /// List every variable with its value and where it comes from; secrets are hidden.
    #[command(after_help = "Example:\n  flashsale config show")]
    Show,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Check => check(args.json),
        Verb::Show => show(args.json),
    }
}

fn check(json: bool) -> Result<(), Failure> {
    let checked = Settings::load().map_err(Failure::from).and_then(|settings| {
        if let Some(unknown) = settings.unknown().first() {
            return Err(Failure::Usage(unknown.to_string()));
        }
        let config = Config::from_settings(&settings)?;
        check_url(config.database_url.expose()).map_err(anyhow::Error::from)?;
        Ok(config)
    });
    if json {
        let problem = checked.as_ref().err().map(ToString::to_string);
        let warnings = checked.as_ref().map(warnings).unwrap_or_default();
        output::print_json(&json!({"valid": problem.is_none(), "problem": problem, "warnings": warnings}))?;
    }
    let config = checked?;
    if !json {
        warn(&warnings(&config));
        output::print("The configuration is valid: `flashsale serve` starts with it.\n")?;
    }
    Ok(())
}

/// The warnings that `serve` logs at its start with this configuration.
fn warnings(config: &Config) -> Vec<String> {
    let exposed = config
        .exposed_files
        .iter()
        .map(|file| format!("every user of this machine can read {file}, which holds secrets; run chmod o= on it"));
    exposed.chain(config.warnings.iter().cloned()).collect()
}

fn show(json: bool) -> Result<(), Failure> {
    let settings = Settings::load()?;
    let variables = settings.shown();
    if json {
        return output::print_json(&json!({"variables": variables, "unknown": settings.unknown()}));
    }
    let mut table = Table::new(["VARIABLE", "VALUE", "FROM"]);
    let cell = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    for variable in variables {
        table.row([variable.name.to_owned(), cell(variable.value), cell(variable.from)]);
    }
    output::print(&table.render())?;
    let unknown: Vec<String> = settings.unknown().iter().map(ToString::to_string).collect();
    warn(&unknown);
    Ok(())
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        stderr::line(format_args!("flashsale: {}", output::one_line(warning)));
    }
}
