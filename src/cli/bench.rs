//! `flashsale bench`: measures this program on this machine.

use super::Failure;
use super::output::{print, print_json};
use crate::bench::report::{Folder, Report};
use crate::bench::rivals::{self, Way};
use crate::bench::{Options, ceiling, compare, scale, stop_by_signal};
use crate::config::Config;
use crate::telemetry;
use anyhow::anyhow;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// Arguments of `bench`.
#[derive(clap::Args)]
#[command(after_help = "\
Each starts servers of its own and takes some minutes, on a machine that does nothing else.

Examples:
  flashsale bench all
  flashsale bench ceiling
  flashsale bench compare --json > compare.json
  flashsale bench scale --quick --out /tmp")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// All three, one after the other: up to twenty minutes.
    #[command(after_help = "Example:\n  flashsale bench all --out loadtest/results")]
    All(Measuring),
    /// What the parts could do at most, and what share of it the whole reaches.
    #[command(after_help = "Example:\n  flashsale bench ceiling --seconds 10 --rounds 5")]
    Ceiling(Measuring),
    /// One load, four ways to sell: how fast each is, and what is left of the stock when parts are killed.
    #[command(after_help = "Example:\n  flashsale bench compare --clients 256 --out loadtest/results")]
    Compare(Measuring),
    /// What a purchase costs as sales grow: items, shards, sales, live holds; and what a million a second would take.
    #[command(after_help = "Example:\n  flashsale bench scale --data /mnt/ssd --json")]
    Scale(Measuring),
    /// Serve another way to sell, for `compare`.
    #[command(hide = true)]
    Serve {
        /// Which one.
        way: Way,
    },
}

/// How to measure.
#[derive(clap::Args)]
struct Measuring {
    /// Only a trial of a few seconds: its figures say nothing.
    #[arg(long)]
    quick: bool,
    /// How long each window is measured.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Connections of the crowd.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    clients: Option<u16>,
    /// How often everything is measured; figures are medians.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Another one gives other keys, and so other orders.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u16,
    /// Where the report goes.
    #[arg(long, value_name = "DIR", default_value = "loadtest/results")]
    out: PathBuf,
    /// Where the servers keep their data meanwhile: on a disk like the one that is to be used [default: the system's
    /// folder for temporary files].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the report as JSON instead of text; those of `all` as one object with a member for each.
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

    /// Measures one part after the other, and writes and prints each.
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
            // Whatever comes of writing it: it took minutes to measure.
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

    /// Why nothing came of a part, and what there is of those before it.
    fn ended(&self, error: anyhow::Error, part: Part, written: &[&str]) -> Failure {
        if written.is_empty() {
            return Failure::Fault(error);
        }
        Failure::Fault(anyhow!(
            "{}: {error:#}; the reports of what was measured before, {}, are in {}",
            part.name(),
            written.join(" and "),
            self.out.display(),
        ))
    }
}

/// What can be measured.
#[derive(Clone, Copy)]
enum Part {
    Ceiling,
    Scale,
    Compare,
}

impl Part {
    /// All of them, in their order.
    const ALL: [Self; 3] = [Self::Ceiling, Self::Scale, Self::Compare];

    const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => "ceiling",
            Self::Scale => "scale",
            Self::Compare => "compare",
        }
    }

    /// The report, and which promises were broken.
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

/// Measures.
///
/// # Errors
/// `Fault` when something cannot be started or measured, `No` when the program itself broke a promise in `compare`; a goal
/// that is missed is neither.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::All(measuring) => measuring.measure(&Part::ALL),
        Command::Ceiling(measuring) => measuring.measure(&[Part::Ceiling]),
        Command::Compare(measuring) => measuring.measure(&[Part::Compare]),
        Command::Scale(measuring) => measuring.measure(&[Part::Scale]),
        Command::Serve { way } => {
            let config = Config::load()?;
            let _telemetry = telemetry::init(&config.log, false, None)?;
            Ok(rivals::serve(&config, *way)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
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
    fn what_was_measured_before_an_interruption_is_told() {
        let Line { measuring } = Line::parse_from(["bench", "--out", "/results"]);
        let ended = |written: &[&str]| {
            measuring
                .ended(anyhow!("interrupted"), Part::Compare, written)
                .to_string()
        };
        assert_eq!(ended(&[]), "interrupted");
        assert_eq!(
            ended(&["ceiling", "scale"]),
            "compare: interrupted; the reports of what was measured before, ceiling and scale, are in /results"
        );
    }
}
