//! `flashsale bench`: what the program gets out of the machine that it runs on, beside what its parts could do at most
//! and beside other ways to sell. `loadtest/README.md` says what each figure means.
//!
//! Each run starts servers of its own, runs this very program as a child process, and generates the load from here.
//! Everything ends with the run, however it ends.

pub mod ceiling;
pub mod compare;
pub mod load;
pub mod machine;
pub mod numbers;
pub mod operator;
pub mod page;
pub mod plot;
pub mod report;
pub mod resp;
pub mod rivals;
pub mod rush;
pub mod scale;
pub mod shoppers;
pub mod sql;
pub mod wire;
pub mod world;

use crate::stderr;
use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use load::Window;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Why nothing came of a run that was ended.
pub const INTERRUPTED: &str = "interrupted before there was a report";

/// No window has more shoppers: their tokens take memory, and time to be made.
const SHOPPERS_MAX: usize = 500_000;
/// Connections that some windows have whatever `--clients` says.
const CONNECTIONS: usize = 256;
/// What else the generator or the program has open: files, and connections to Redis and Postgres.
const OTHER_FILES: usize = 256;

#[derive(Clone, Debug)]
pub struct Options {
    /// Only a trial of a few seconds.
    pub quick: bool,
    /// How long each window is measured.
    pub seconds: Option<f64>,
    pub clients: Option<usize>,
    /// How often everything is measured.
    pub rounds: Option<usize>,
    /// What the keys of requests begin with.
    pub seed: u16,
    pub out: PathBuf,
    /// Where the servers keep their data meanwhile.
    pub data: PathBuf,
    /// Cancelled when the run is to end; see [`stop_by_signal`].
    pub stop: CancellationToken,
}

impl Options {
    /// A window, after a quarter of it that is not counted.
    #[must_use]
    pub fn window(&self, usual: f64) -> Window {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.3 } else { usual });
        Window {
            warm: Duration::from_secs_f64(seconds / 4.0),
            measured: Duration::from_secs_f64(seconds),
        }
    }

    /// What the first keys of a run begin with; the run counts on from there.
    #[must_use]
    pub fn first_salt(&self) -> u32 {
        u32::from(self.seed) << 16
    }

    #[must_use]
    pub fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { usual })
    }

    /// One number for a trial, another for a measurement.
    #[must_use]
    pub const fn size(&self, quick: usize, usual: usize) -> usize {
        if self.quick { quick } else { usual }
    }

    /// Whether the generator, and the program that it starts, may have as many connections as there are clients.
    ///
    /// # Errors
    /// When they may not.
    pub fn check_files(&self) -> Result<()> {
        self.check_files_of(machine::open_files_max())
    }

    /// Where the system does not tell how many there may be, nobody knows better.
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

    /// Shoppers for a window with this many purchases a second at the most.
    #[must_use]
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

/// A run: its options, what it runs on, and whether somebody wants it to end.
pub struct Bench {
    pub options: Options,
    /// Cancelled by SIGINT and SIGTERM.
    pub stop: CancellationToken,
    runtime: Runtime,
    bar: Option<ProgressBar>,
}

impl Bench {
    /// Makes ready for a run of so many steps.
    ///
    /// # Errors
    /// When threads cannot be had.
    pub fn new(options: Options, steps: usize) -> Result<Self> {
        // One thread: everything that the generator does not use is left to what it measures.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX));
            // The template is fixed and good.
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Ok(Self {
            stop: options.stop.clone(),
            options,
            runtime: runtime.context("cannot start the runtime")?,
            bar,
        })
    }

    /// Waits for something on the generator's thread.
    pub fn wait_for<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(what)
    }

    /// Says what comes next.
    ///
    /// # Errors
    /// When somebody wants the run to end.
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

    /// Says something that was measured.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => stderr::line(format_args!("  {text}")),
        }
    }

    /// Whether the run may go on.
    ///
    /// # Errors
    /// When somebody wants it to end.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.is_cancelled() {
            bail!(INTERRUPTED);
        }
        Ok(())
    }

    /// Looks every few milliseconds until something is there.
    ///
    /// # Errors
    /// What the look says, and when it takes longer than `limit`.
    pub fn poll<T>(&self, what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let began = std::time::Instant::now();
        loop {
            self.go_on()?;
            if let Some(found) = look()? {
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

/// A token that the first SIGINT or SIGTERM cancels; the second ends us, and with us every child. One is enough for all
/// that is measured in a run.
///
/// # Errors
/// When signals cannot be had.
pub fn stop_by_signal() -> Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let told = stop.clone();
    thread::spawn(move || {
        runtime.block_on(async {
            for is_first in [true, false] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_first {
                    stderr::line("ending the servers …");
                    told.cancel();
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
    fn too_few_open_files_for_the_clients_are_told_with_what_to_do() {
        let options = |clients| Options {
            quick: false,
            seconds: None,
            clients,
            rounds: None,
            seed: 1,
            out: PathBuf::new(),
            data: PathBuf::new(),
            stop: CancellationToken::new(),
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
        // Some windows have more connections than were asked for.
        assert!(options(Some(1)).check_files_of(Some(256)).is_err());
    }
}
