//! This very program as a child process, for those who measure it from outside.

use super::child::{self, EndStep, Log, Server};
use anyhow::Context as _;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Requests in flight and jobs have their time; then it is killed.
const END: &[EndStep] = &[(Signal::SIGTERM, Duration::from_secs(15))];
/// Reconciling a large stock takes its time; a process that dies is noticed at once.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// One process of this program; it ends when this is dropped and when our process ends, however it ends.
#[derive(Debug)]
pub struct Program {
    server: Server,
}

impl Program {
    /// Starts this program with these arguments and these variables and no others, its log in `dir/NAME.log`, and waits
    /// until the log has a line with `ready` in it. `dir` holds no `flashsale.toml`, so that nothing else decides.
    ///
    /// # Errors
    /// When it cannot be started or ends at once; says what its log says.
    pub fn start(
        name: &'static str,
        dir: &Path,
        arguments: &[&str],
        environment: &[(String, String)],
        ready: &str,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot tell which program this is")?;
        let log = dir.join(format!("{name}.log"));
        let mut command = child::command(&program, "KILL", None);
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

    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Why it no longer runs, with the end of its log; nothing while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.server.ended()
    }

    /// Ends it as an operator does, and waits for its end.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Ends it as `kill -9` does, and waits for its end.
    pub fn kill(&self) {
        self.server.kill();
    }
}
