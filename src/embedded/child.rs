//! A server as a child process: it starts with us, is watched, and ends with us.

use anyhow::{Context as _, anyhow, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How often something is looked at while we wait for it.
const POLL: Duration = Duration::from_millis(20);
/// What is read of a log's end, and how many of its lines are shown.
const TAIL_BYTES: u64 = 16 * 1024;
const TAIL_LINES: usize = 20;

/// A user and group to run as.
pub type Identity = (u32, u32);

/// A command under `setpriv`: it gets `death_signal` when we die, however we die, and runs as `identity` if there
/// is one. It is in a process group of its own, so that Ctrl-C reaches only us and we stop it in our own order.
pub fn command(program: &Path, death_signal: &str, identity: Option<Identity>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", death_signal]);
    if let Some((uid, gid)) = identity {
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command.arg("--").arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Spawns from one thread that lives as long as the process. The kernel sends the death signal when the spawning
/// *thread* ends, so a child that a test's or a pool's thread spawned would die too soon.
pub fn spawn(command: Command) -> anyhow::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The one who asked waits for the answer; if it is gone, so is the need for the child.
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

/// Runs a command to its end, with its output in `log`.
pub fn run_logged(mut command: Command, log: &Path) -> anyhow::Result<()> {
    let output = append_to(log)?;
    command
        .stdout(output.try_clone().context("cannot share the log")?)
        .stderr(output);
    let status = spawn(command)?.wait().context("cannot wait for a child")?;
    if !status.success() {
        bail!("{}", with_tail(&format!("ended with {status}"), log));
    }
    Ok(())
}

/// Opens a log for more, and puts the last start's log aside so that logs stay small and a tail is of this start.
pub fn new_log(path: &Path) -> anyhow::Result<File> {
    if path.exists() {
        fs::rename(path, path.with_extension("log.1")).with_context(|| format!("cannot rename {}", path.display()))?;
    }
    append_to(path)
}

/// Opens a log for more.
pub fn append_to(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A message with a log's path and last lines.
pub fn with_tail(message: &str, log: &Path) -> String {
    let tail = tail(log).unwrap_or_else(|error| format!("(cannot read it: {error})"));
    format!("{message}; the end of {}:\n{tail}", log.display())
}

fn tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

/// One step of ending a server: a signal and how long it may take.
pub type EndStep = (&'static str, Duration);

/// A running server.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    pid: u32,
    child: Mutex<Child>,
    log: PathBuf,
    end: &'static [EndStep],
}

impl Server {
    /// Starts a server with its output in `log`. It is ended by the steps in `end`, then killed.
    pub fn start(
        name: &'static str,
        mut command: Command,
        log: PathBuf,
        end: &'static [EndStep],
    ) -> anyhow::Result<Self> {
        let output = append_to(&log)?;
        command
            .stdout(output.try_clone().context("cannot share the log")?)
            .stderr(output);
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

    /// Why the server no longer runs, with the end of its log; nothing while it runs.
    pub fn ended(&self) -> Option<String> {
        let outcome = self.try_wait();
        let how = match outcome {
            Ok(None) => return None,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Some(with_tail(
            &format!(
                "{} ended by itself ({how}); start again, it goes on where it was",
                self.name
            ),
            &self.log,
        ))
    }

    /// Waits until `ready` says yes; it says why not otherwise.
    pub fn wait_ready(&self, limit: Duration, mut ready: impl FnMut() -> Result<(), String>) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(why) = self.ended() {
                bail!("{why}");
            }
            let Err(reason) = ready() else { return Ok(()) };
            if Instant::now() > deadline {
                let message = format!("{} was not ready within {} s ({reason})", self.name, limit.as_secs());
                bail!("{}", with_tail(&message, &self.log));
            }
            thread::sleep(POLL);
        }
    }

    /// Ends the server and waits for its end, which is bounded. Does nothing when it has ended.
    pub fn stop(&self) {
        for (signal, limit) in self.end {
            if !matches!(self.try_wait(), Ok(None)) {
                return;
            }
            send(signal, self.pid);
            let deadline = Instant::now() + *limit;
            while matches!(self.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
        self.kill();
    }

    /// Ends the server as `kill -9` does, and waits for its end.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing more can be done about an error here: the process is ours, killed, and waited for.
        let _ended = child.kill().and_then(|()| child.wait());
    }

    fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a signal. The shell's own `kill` does it: there is no safe call in std and no `kill` on a bare Debian.
fn send(signal: &str, pid: u32) {
    let script = format!("kill -s {signal} {pid}");
    // The process may be gone by now, which is what is wanted.
    let _gone = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status();
}

/// Ends the servers of an earlier run that still work in `folder`, gently at first. The caller holds the folder's
/// lock, so they are nobody's. A server is known by its program's name and by its working folder, which no stale
/// pid file can get wrong.
pub fn end_leftovers(folder: &Path, program: &str, end: &[EndStep]) -> anyhow::Result<()> {
    for (signal, limit) in end.iter().chain(&[("KILL", Duration::from_secs(5))]) {
        for pid in working_in(folder, program)? {
            tracing::info!(pid, program, signal, "ending a server that an earlier run left behind");
            send(signal, pid);
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
        // A process may end between any two of these looks; those of other users cannot be looked at.
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
