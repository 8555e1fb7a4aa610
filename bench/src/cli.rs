//! The command line of `flashsale-bench`.

use crate::report::{Folder, Report};
use crate::rivals::{self, Way};
use crate::{Options, bots, ceiling, compare, scale, stop_by_signal};
use anyhow::anyhow;
use clap::Parser as _;
use flashsale::cli::Failure;
use flashsale::cli::shared::output::{print, print_json};
use flashsale::config::Config;
use flashsale::telemetry;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;

/// Measures Flashsale on this machine.
#[derive(clap::Parser)]
#[command(after_help = "\
Each command starts its own servers and takes some minutes. Run it on a machine that does nothing else.

Examples:
  flashsale-bench all
  flashsale-bench ceiling
  flashsale-bench compare --json > compare.json
  flashsale-bench scale --quick --out /tmp")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Run all three, one after the other, in about 25 minutes.
    #[command(after_help = "Example:\n  flashsale-bench all --out loadtest/results")]
    All(Measuring),
    /// Measure what the parts can do at most, and what share of that the whole program reaches.
    #[command(after_help = "Example:\n  flashsale-bench ceiling --seconds 10 --rounds 5")]
    Ceiling(Measuring),
    /// Run one load on five ways to sell: the speed of each, and the state of its stock after parts are killed.
    #[command(after_help = "Example:\n  flashsale-bench compare --clients 256 --out loadtest/results")]
    Compare(Measuring),
    /// Measure the cost of a purchase as items, shards, sales and holds grow, and estimate a million purchases a
    /// second.
    #[command(after_help = "Example:\n  flashsale-bench scale --data /mnt/ssd --json")]
    Scale(Measuring),
    /// Send people and bots to sales, each with one guard more, and measure who gets the units.
    #[command(after_help = "Example:\n  ./dev bots --small")]
    Bots(bots::Args),
    /// Serve another way to sell, for `compare`.
    #[command(hide = true)]
    Rival {
        /// The way to sell.
        way: Way,
    },
}

/// The options of a measurement.
#[derive(clap::Args)]
struct Measuring {
    /// Try the command in a few seconds; the figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Connections of the simulated shoppers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: Option<u16>,
    /// Rounds of measurement; figures are medians over the rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Seed of the keys; another seed gives other keys, and so other orders.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u16,
    /// The folder of the report.
    #[arg(long, value_name = "DIR", default_value = "loadtest/results")]
    out: PathBuf,
    /// The folder of the servers' data during the run, on a disk like that of production [default: the system's
    /// folder for temporary files].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the report as JSON instead of text; `all` prints one object with a member for each report.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|it| (0.1..=3600.0).contains(it));
    seconds.ok_or_else(|| "write seconds from 0.1 to 3600".to_owned())
}

impl Measuring {
    fn options(&self, stop: CancellationToken) -> Options {
        Options {
            quick: self.quick,
            seconds: self.seconds,
            clients: self.clients.map(usize::from),
            rounds: self.rounds.map(usize::from),
            seed: self.seed,
            out: self.out.clone(),
            data: self.data.clone().unwrap_or_else(std::env::temp_dir),
            stop,
        }
    }

    /// Measures one part after the other, and writes and prints each report.
    fn measure(&self, parts: &[Part]) -> Result<(), Failure> {
        let refused = |error: anyhow::Error| Failure::Usage(format!("{error:#}"));
        let options = self.options(stop_by_signal()?);
        options.check_files().map_err(refused)?;
        let _folder = Folder::ready(&self.out).map_err(refused)?;
        let mut reports = Reports::default();
        let (mut written, mut outcome) = (Vec::new(), Ok(()));
        for part in parts {
            let (report, broken) = match part.measure(options.clone()) {
                Ok(measured) => measured,
                Err(error) => {
                    outcome = outcome.and(Err(self.ended(error, *part, &written)));
                    break;
                }
            };
            if !broken.is_empty() {
                let broken = format!("promises were broken: {}", broken.join("; "));
                outcome = outcome.and(Err(Failure::No(broken)));
            }
            // A failed write does not stop the print: the measurement took minutes.
            let page = report.write(&self.out);
            if self.json {
                reports.0.push((part.name(), report.json()));
            } else {
                let place = page
                    .as_ref()
                    .map_or_else(|_| String::new(), |page| format!("{}\n", page.display()));
                print(&format!("{}\n{place}", report.text()))?;
            }
            match page {
                Ok(_) => written.push(part.name()),
                Err(error) => outcome = outcome.and(Err(Failure::Fault(error))),
            }
        }
        match reports.0.as_slice() {
            [] => {}
            [(_, report)] if parts.len() == 1 => print_json(report)?,
            _ => print_json(&reports)?,
        }
        outcome
    }

    /// The failure of a part, with the reports that were written before it.
    fn ended(&self, error: anyhow::Error, part: Part, written: &[&str]) -> Failure {
        if written.is_empty() {
            return Failure::Fault(error);
        }
        Failure::Fault(anyhow!(
            "{}: {error:#}; the reports of the parts before it, {}, are in {}",
            part.name(),
            written.join(" and "),
            self.out.display(),
        ))
    }
}

#[derive(Clone, Copy)]
enum Part {
    Ceiling,
    Scale,
    Compare,
}

impl Part {
    const ALL: [Self; 3] = [Self::Ceiling, Self::Scale, Self::Compare];

    const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Scale => "scale",
            Self::Compare => "compare",
        }
    }

    /// Returns the report and the promises that were broken.
    fn measure(self, options: Options) -> anyhow::Result<(Report, Vec<String>)> {
        match self {
            Self::Ceiling => Ok((ceiling::run(options)?, Vec::new())),
            Self::Scale => Ok((scale::run(options)?, Vec::new())),
            Self::Compare => compare::run(options),
        }
    }
}

/// Reports of several parts: one object, in the order in which they were measured.
#[derive(Default)]
struct Reports(Vec<(&'static str, Value)>);

impl Serialize for Reports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, report)| (name, report)))
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::All(measuring) => measuring.measure(&Part::ALL),
        Command::Ceiling(measuring) => measuring.measure(&[Part::Ceiling]),
        Command::Compare(measuring) => measuring.measure(&[Part::Compare]),
        Command::Scale(measuring) => measuring.measure(&[Part::Scale]),
        Command::Bots(args) => bots::run(args),
        Command::Rival { way } => {
            let config = Config::load()?;
            let _telemetry = telemetry::init(&config.log, false, None)?;
            Ok(rivals::serve(&config, way)?)
        }
    }
}

/// Runs the command. A missed goal is no failure; a promise that `flashsale` broke is one.
pub fn main() -> ExitCode {
    run(Cli::parse().command).map_or_else(|failure| failure.report("flashsale-bench"), |()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        measuring: Measuring,
    }

    #[test]
    fn reports_of_several_parts_are_one_object_in_the_order_of_the_run() {
        let reports = Reports(Part::ALL.map(|part| (part.name(), json!({"a": 1}))).into());
        let text = serde_json::to_string(&reports).unwrap();
        assert_eq!(text, r#"{"ceiling":{"a":1},"scale":{"a":1},"compare":{"a":1}}"#);
    }

    #[test]
    fn what_was_measured_before_an_interruption_is_reported() {
        let Line { measuring } = Line::parse_from(["bench", "--out", "/results"]);
        let ended = |written: &[&str]| {
            measuring
                .ended(anyhow!("interrupted"), Part::Compare, written)
                .to_string()
        };
        assert_eq!(ended(&[]), "interrupted");
        assert_eq!(
            ended(&["ceiling", "scale"]),
            "compare: interrupted; the reports of the parts before it, ceiling and scale, are in /results"
        );
    }
}
