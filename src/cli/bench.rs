//! `flashsale bench`: measures this program on this machine.

use super::Failure;
use super::output::{print, print_json};
use crate::bench::report::Report;
use crate::bench::rivals::{self, Way};
use crate::bench::{Options, ceiling, compare, scale};
use crate::config::Config;
use crate::telemetry;
use std::path::PathBuf;

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
    /// Print the report as JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|it| (0.1..=3600.0).contains(it));
    seconds.ok_or_else(|| "write seconds from 0.1 to 3600".to_owned())
}

impl Measuring {
    fn options(&self) -> Options {
        Options {
            quick: self.quick,
            seconds: self.seconds,
            clients: self.clients.map(usize::from),
            rounds: self.rounds.map(usize::from),
            seed: self.seed,
            out: self.out.clone(),
            data: self.data.clone().unwrap_or_else(std::env::temp_dir),
        }
    }

    /// Writes and prints what was measured.
    fn tell(&self, report: &Report) -> Result<(), Failure> {
        let page = report.write(&self.out)?;
        if self.json {
            print_json(&report.json())
        } else {
            print(&format!("{}\n{}\n", report.text(), page.display()))
        }
    }
}

/// Measures.
///
/// # Errors
/// `Fault` when something cannot be started or measured, `No` when the program itself broke a promise in `compare`; a goal
/// that is missed is neither.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Ceiling(measuring) => measuring.tell(&ceiling::run(measuring.options())?),
        Command::All(measuring) => {
            measuring.tell(&ceiling::run(measuring.options())?)?;
            measuring.tell(&scale::run(measuring.options())?)?;
            compare_ways(measuring)
        }
        Command::Compare(measuring) => compare_ways(measuring),
        Command::Scale(measuring) => measuring.tell(&scale::run(measuring.options())?),
        Command::Serve { way } => {
            let config = Config::load()?;
            let _telemetry = telemetry::init(&config.log, false, None)?;
            Ok(rivals::serve(&config, *way)?)
        }
    }
}

fn compare_ways(measuring: &Measuring) -> Result<(), Failure> {
    let (report, broken) = compare::run(measuring.options())?;
    measuring.tell(&report)?;
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Failure::No(format!("promises were broken: {}", broken.join("; "))))
    }
}
