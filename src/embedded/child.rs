//! A server as a child process. Its end is noticed, and it ends with this process, however this process ends.

use super::folder;
use super::identity::Identity;
use anyhow::{Context as _, anyhow, bail};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is checked while this process waits for it.
const POLL: Duration = Duration::from_millis(20);
/// How much of a log's end is read.
const TAIL_BYTES: u64 = 16 * 1024;
/// How many of its lines an error message shows.
const TAIL_LINES: usize = 20;

/// The variables that a child inherits: the search path and the language. The other variables may hold secrets.
const HANDED_ON: [&str; 2] = ["PATH", "LANG"];

/// A command under `setpriv`. The kernel sends it `death_signal` when this process ends, however it ends. It runs as
/// `identity`, if there is one. It has a process group of its own, so that Ctrl-C reaches only this process, which
/// then stops its children in its own order.
pub fn command(program: &Path, death_signal: &str, identity: Option<Identity>) -> Command {
    // By its path: std searches the child's own PATH in a copy of this process, and copying a large process takes longer
    // than the start.
    let setpriv = find_in_path("setpriv").unwrap_or_else(|| PathBuf::from("setpriv"));
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", death_signal]);
    if let Some(Identity { uid, gid }) = identity {
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command.env_clear();
    command.envs(
        HANDED_ON
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
    command.arg("--").arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Spawns from one thread that runs as long as the process. The kernel sends the death signal when the spawning
/// *thread* ends, so a child of a test's or a pool's thread would end too soon.
pub fn spawn(command: Command) -> anyhow::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // If the caller no longer waits for the answer, the child is not needed.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ended = child.kill().and_then(|()| child.wait());
                }
            }
        });
        orders
    });
    let program = command.get_program().to_os_string();
    let (answer, outcome) = mpsc::channel();
    spawner
        .send((command, answer))
        .map_err(|_closed| anyhow!("the thread that starts processes has ended"))?;
    let spawned = outcome.recv().context("the thread that starts processes has ended")?;
    spawned.with_context(|| format!("cannot run {}; install the package util-linux", program.display()))
}

/// Runs a command until it ends, with its output in `log`.
pub fn run_logged(mut command: Command, log: &Log) -> anyhow::Result<()> {
    log.take_output_of(&mut command)?;
    let status = spawn(command)?.wait().context("cannot wait for a child")?;
    if !status.success() {
        bail!("{}", log.with_tail(&format!("ended with {status}")));
    }
    Ok(())
}

/// The output of a server and of the programs that prepare its start. The file stays open, so that this process can
/// read its end even as another user.
#[derive(Debug)]
pub struct Log {
    pub path: PathBuf,
    file: File,
}

impl Log {
    /// Renames the log of the last start, so that logs stay small and a tail belongs to this start.
    pub fn new(path: PathBuf) -> anyhow::Result<Self> {
        if path.exists() {
            fs::rename(&path, path.with_extension("log.1"))
                .with_context(|| format!("cannot rename {}", path.display()))?;
        }
        let options = OpenOptions::new().read(true).append(true).create(true).clone();
        let file = folder::open_file(&path, options).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file })
    }

    fn take_output_of(&self, command: &mut Command) -> anyhow::Result<()> {
        let output = || self.file.try_clone().context("cannot share the log");
        command.stdout(output()?).stderr(output()?);
        Ok(())
    }

    /// A message with the log's path and last lines.
    pub fn with_tail(&self, message: &str) -> String {
        let tail = self.tail().unwrap_or_else(|error| format!("(cannot read it: {error})"));
        format!("{message}; the end of {}:\n{tail}", self.path.display())
    }

    fn tail(&self) -> io::Result<String> {
        let length = self.file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length.min(TAIL_BYTES)).unwrap_or_default()];
        self.file.read_exact_at(&mut bytes, length.saturating_sub(TAIL_BYTES))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
    }
}

/// One step of ending a server: a signal, and the wait for its effect.
pub type EndStep = (Signal, Duration);

#[derive(Debug)]
pub struct Server {
    name: &'static str,
    pid: u32,
    child: Mutex<Child>,
    log: Log,
    end: &'static [EndStep],
}

impl Server {
    /// Starts a server with its output in `log`. [`Server::stop`] takes the steps in `end`, then kills it.
    pub fn start(name: &'static str, mut command: Command, log: Log, end: &'static [EndStep]) -> anyhow::Result<Self> {
        log.take_output_of(&mut command)?;
        let child = spawn(command)?;
        Ok(Self {
            name,
            pid: child.id(),
            child: Mutex::new(child),
            log,
            end,
        })
    }

    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Why the server no longer runs, with the end of its log; `None` while it runs.
    pub fn ended(&self) -> Option<String> {
        let outcome = self.try_wait();
        let how = match outcome {
            Ok(None) => return None,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let message = format!(
            "{} ended by itself ({how}); start again, and it recovers its data",
            self.name
        );
        Some(self.log.with_tail(&message))
    }

    /// Waits until `ready` returns `Ok`. Its error is the reason in the message after `limit`.
    pub fn wait_ready(&self, limit: Duration, mut ready: impl FnMut() -> Result<(), String>) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(why) = self.ended() {
                bail!("{why}");
            }
            let Err(reason) = ready() else { return Ok(()) };
            if Instant::now() > deadline {
                let message = format!("{} was not ready within {} s ({reason})", self.name, limit.as_secs());
                bail!("{}", self.log.with_tail(&message));
            }
            thread::sleep(POLL);
        }
    }

    /// Ends the server and waits for its end, with a limit. Does nothing if the server has ended.
    pub fn stop(&self) {
        for (signal, limit) in self.end {
            if !matches!(self.try_wait(), Ok(None)) {
                return;
            }
            send(*signal, self.pid);
            let deadline = Instant::now() + *limit;
            while matches!(self.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
        self.kill();
    }

    /// Ends the server as `kill -9` does, and waits for its end.
    pub fn kill(&self) {
        let mut child = self.child.lock();
        // No error is expected: the process is a child of this one, and an ended child is no error.
        let _ended = child.kill().and_then(|()| child.wait());
    }

    fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.child.lock().try_wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn send(signal: Signal, pid: u32) {
    // An error means that the process has ended, which is the goal.
    let _gone = i32::try_from(pid).map(|pid| signal::kill(Pid::from_raw(pid), signal));
}

/// Ends the servers of an earlier run that still work in `folder`, by the steps in `end` and then by a kill. The
/// caller holds the folder's lock, so no other process uses these servers. A server is known by its program's name
/// and its working folder: unlike a pid file, neither can be stale.
pub fn end_leftovers(folder: &Path, program: &str, end: &[EndStep]) -> anyhow::Result<()> {
    for (signal, limit) in end.iter().chain(&[(Signal::SIGKILL, Duration::from_secs(5))]) {
        for pid in working_in(folder, program)? {
            tracing::info!(
                pid,
                program,
                signal = signal.as_str(),
                "ending a server that an earlier run left behind"
            );
            send(*signal, pid);
        }
        let deadline = Instant::now() + *limit;
        while !working_in(folder, program)?.is_empty() {
            if Instant::now() > deadline {
                break;
            }
            thread::sleep(POLL);
        }
    }
    match working_in(folder, program)?.first() {
        None => Ok(()),
        Some(pid) => bail!(
            "an earlier {program} (process {pid}) still uses {} and does not end",
            folder.display()
        ),
    }
}

/// The processes of a program whose working folder this is.
fn working_in(folder: &Path, program: &str) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")? {
        // A process may end between two of these reads, and those of other users cannot be read.
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let path = entry.path();
        let is_program = fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == program);
        if is_program && fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Finds a program in `PATH`.
pub fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_nothing_of_our_environment_but_paths_and_language() {
        let output = command(Path::new("env"), "KILL", None).output().unwrap();
        let names = String::from_utf8(output.stdout).unwrap();
        let names: Vec<_> = names.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.contains(&"PATH") && std::env::vars_os().count() > HANDED_ON.len());
        assert!(names.iter().all(|name| HANDED_ON.contains(name)), "{names:?}");
    }
}
