//! A program as a child process of the run: the measured program, or another way to sell.

use anyhow::{Context as _, ensure};
use flashsale::embedded::child::{self, EndStep, Log, Server};
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Requests in flight and jobs get this time to finish; then the process is killed.
const END: &[EndStep] = &[(Signal::SIGTERM, Duration::from_secs(15))];
/// Reconciling a large stock may take long. A process that ends is noticed at once.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The `flashsale` beside this binary.
pub fn flashsale() -> anyhow::Result<PathBuf> {
    let path = own_path()?.with_file_name("flashsale");
    ensure!(
        path.exists(),
        "{} is missing; build the whole workspace with the same profile",
        path.display()
    );
    Ok(path)
}

/// This binary, which also serves the other ways to sell.
pub fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's path")
}

/// One process. It ends when this is dropped, and when the parent process ends, however that ends.
#[derive(Debug)]
pub struct Program {
    server: Server,
}

impl Program {
    /// Starts a program with these arguments and variables only, with its log in `dir/NAME.log`. Waits until a
    /// line of the log contains `ready`. `dir` must not hold a `flashsale.toml`, which would add settings.
    ///
    /// Fails when the program cannot be started, or ends before it is ready. The error shows the end of its log.
    pub fn start(
        name: &'static str,
        program: &Path,
        dir: &Path,
        arguments: &[&str],
        environment: &[(String, String)],
        ready: &str,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = child::command(program, "KILL", None);
        command
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .current_dir(dir);
        let server = Server::start(name, command, Log::new(log.clone())?, END)?;
        let program = Self { server };
        program.server.wait_ready(READY_LIMIT, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let is_ready = said.lines().any(|line| line.contains(ready));
            is_ready.then_some(()).ok_or_else(|| format!("it has not said {ready}"))
        })?;
        Ok(program)
    }

    pub const fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Why the program no longer runs, with the end of its log; `None` while it runs.
    pub fn ended(&self) -> Option<String> {
        self.server.ended()
    }

    /// Ends the program by SIGTERM, as an operator does, and waits for its end.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Ends the program as `kill -9` does, and waits for its end.
    pub fn kill(&self) {
        self.server.kill();
    }
}
