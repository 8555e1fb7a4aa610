//! Measures Flashsale on the machine it runs on: against its parts alone, against other ways to sell, by size, and
//! against bots. `loadtest/README.md` says what each figure means.
//!
//! Each run but that of the bots starts its own servers, starts `flashsale` as a child process, and generates the load
//! in this process. All child processes end with the run, also when the run fails.

pub mod bots;
pub mod ceiling;
pub mod cli;
pub mod compare;
pub mod cost;
pub mod load;
pub mod machine;
pub mod numbers;
pub mod operator;
pub mod page;
pub mod plot;
pub mod program;
pub mod report;
pub mod resp;
pub mod rivals;
pub mod rush;
pub mod scale;
pub mod shoppers;
pub mod sql;
pub mod wire;
pub mod world;

use anyhow::{Context as _, Result, bail};
use flashsale::stderr;
use indicatif::{ProgressBar, ProgressStyle};
use load::{Outcome, Tally, Window};
use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// The error of a run that was interrupted.
pub const INTERRUPTED: &str = "interrupted before there was a report";

/// The most shoppers of a window: each token takes memory, and time to sign.
const SHOPPERS_MAX: usize = 500_000;
/// Connections of windows that ignore `--clients`.
const CONNECTIONS: usize = 256;
/// Files and connections to Redis and Postgres that the generator or the program opens beside the clients' connections.
const OTHER_FILES: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A trial of a few seconds; its figures mean nothing.
    pub quick: bool,
    /// The length of each window.
    pub seconds: Option<f64>,
    pub clients: Option<usize>,
    /// How many times each measurement is repeated.
    pub rounds: Option<usize>,
    /// The start of the idempotency keys.
    pub seed: u16,
    pub out: PathBuf,
    /// The folder for the servers' data during the run.
    pub data: PathBuf,
    /// Cancelled when the run must end; see [`stop_by_signal`].
    pub stop: CancellationToken,
}

impl Options {
    /// A measuring window, after a warm-up of a quarter of its length.
    pub fn window(&self, usual: f64) -> Window {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.3 } else { usual });
        Window {
            warm: Duration::from_secs_f64(seconds / 4.0),
            measured: Duration::from_secs_f64(seconds),
        }
    }

    /// The first salt of the run's idempotency keys; the run counts up from it.
    pub fn first_salt(&self) -> u32 {
        u32::from(self.seed) << 16
    }

    pub fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { usual })
    }

    /// The first number in a trial, the second in a measurement.
    pub const fn size(&self, quick: usize, usual: usize) -> usize {
        if self.quick { quick } else { usual }
    }

    /// Checks that the limit of open files allows a connection for each client, in the generator and in the program.
    pub fn check_files(&self) -> Result<()> {
        self.check_files_of(machine::open_files_max())
    }

    /// Passes where the system sets no limit or does not report it.
    fn check_files_of(&self, max: Option<usize>) -> Result<()> {
        let clients = self.clients.unwrap_or_default().max(CONNECTIONS);
        let wanted = clients + OTHER_FILES;
        match max {
            Some(max) if max < wanted => bail!(
                "{clients} connections take {wanted} open files, and this process may have {max}; raise that with \
                 ulimit -n {wanted}, or ask for fewer with --clients"
            ),
            _ => Ok(()),
        }
    }

    /// The shoppers for a window with at most this many purchases a second.
    pub fn shoppers(&self, window: Window, rate_max: f64) -> usize {
        let seconds = (window.warm + window.measured).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundred thousand"
        )]
        let shoppers = (seconds * rate_max).ceil() as usize;
        shoppers.min(SHOPPERS_MAX)
    }
}

/// A run: its options, its runtime and its stop token.
pub struct Bench {
    pub options: Options,
    /// Cancelled by SIGINT and SIGTERM.
    pub stop: CancellationToken,
    /// What a reader of the figures must know; notes of the report.
    pub remarks: RefCell<Vec<String>>,
    runtime: Runtime,
    bar: Option<ProgressBar>,
}

impl Bench {
    /// Prepares a run of this many steps.
    pub fn new(options: Options, steps: usize) -> Result<Self> {
        // One thread, so that the generator leaves the other cores to the program under test.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
            // The template is a constant and valid.
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Ok(Self {
            stop: options.stop.clone(),
            options,
            remarks: RefCell::default(),
            runtime: runtime.context("cannot start the runtime")?,
            bar,
        })
    }

    /// Runs a future on the generator's thread.
    pub fn wait_for<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(what)
    }

    /// Shows the next step. Fails when the run is interrupted.
    pub fn step(&self, what: &str) -> Result<()> {
        match &self.bar {
            Some(bar) => {
                bar.inc(1);
                bar.set_message(what.to_owned());
            }
            None => stderr::line(format_args!("{what} …")),
        }
        self.go_on()
    }

    /// Prints a remark, and keeps it for the report.
    pub fn remark(&self, remark: String) {
        self.print(&remark);
        self.remarks.borrow_mut().push(remark);
    }

    /// Adds the remarks on a window that expected this outcome.
    pub fn note(&self, tally: &Tally, outcome: Outcome<'_>, what: &str) {
        for remark in tally.remarks(outcome, what) {
            self.remark(remark);
        }
    }

    /// Prints a measurement.
    pub fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => stderr::line(format_args!("  {text}")),
        }
    }

    /// Fails when the run is interrupted.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.is_cancelled() {
            bail!(INTERRUPTED);
        }
        Ok(())
    }

    /// Calls `attempt` every few milliseconds until it returns a value. Fails after `limit`, and when `attempt` fails.
    pub fn poll<T>(&self, what: &str, limit: Duration, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let began = std::time::Instant::now();
        loop {
            self.go_on()?;
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            if began.elapsed() > limit {
                bail!("{what}: not within {} s", limit.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A token that the first SIGINT or SIGTERM cancels. The second signal ends this process and every child. One token
/// serves all measurements of a run.
pub fn stop_by_signal() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let stopping = stop.clone();
    thread::spawn(move || {
        runtime.block_on(async {
            for is_first in [true, false] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_first {
                    stderr::line("ending the servers …");
                    stopping.cancel();
                }
            }
        });
        std::process::exit(130);
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_for_the_clients_are_refused_with_advice() {
        let options = |clients| Options {
            clients,
            ..Options::default()
        };
        let said = options(Some(4096)).check_files_of(Some(1024)).unwrap_err().to_string();
        assert!(
            said.starts_with("4096 connections take 4352 open files, and this process may have 1024"),
            "{said}"
        );
        assert!(said.contains("ulimit -n 4352") && said.contains("--clients"), "{said}");
        for (clients, max) in [(Some(4096), Some(4352)), (Some(4096), None), (None, Some(1024))] {
            assert!(options(clients).check_files_of(max).is_ok());
        }
        // Some windows have more connections than `--clients` says.
        assert!(options(Some(1)).check_files_of(Some(256)).is_err());
    }
}
