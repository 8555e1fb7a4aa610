//! A private Redis. Each acknowledged write is on disk (unless tests say otherwise), so a kill -9 loses none. The
//! next start ends a server that was left behind and cuts a torn end off the append-only file.

use super::Options;
use super::child::{self, EndStep, Log, Server};
use super::folder::{self, SocketFolder};
use super::home::Home;
use super::identity::Identity;
use anyhow::{Context as _, bail};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PROGRAM: &str = "redis-server";
const CHECKER: &str = "redis-check-aof";
const INSTALL: &str = "install it with `apt-get install redis-server`";
const SOCKET: &str = "redis.sock";
/// A Redis with an append-only file has everything on disk already, so its end takes milliseconds.
const END: &[EndStep] = &[(Signal::SIGTERM, Duration::from_secs(10))];
/// Loading a large append-only file may take minutes. A server that ends is noticed at once.
const READY_LIMIT: Duration = Duration::from_secs(300);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A private Redis on a Unix socket. It stops when this is dropped, and when this process ends, however that ends.
#[derive(Debug)]
pub struct RedisServer {
    // In the order of the drop: the server has ended before another may use its folder.
    server: Server,
    socket: PathBuf,
    _sockets: SocketFolder,
    _lock: File,
}

impl RedisServer {
    /// Starts a Redis whose files are in `dir/redis`, and waits until it answers. Fails when Redis is not installed,
    /// the folder is in use, or the server does not start. The error shows the end of its log.
    pub fn start(dir: &Path, options: &Options) -> anyhow::Result<Self> {
        let Some(program) = child::find_in_path(PROGRAM) else {
            bail!("{PROGRAM} is not in PATH; {INSTALL}")
        };
        let dir = folder::open(dir)?;
        let Home { path: home, identity } = Home::open(&dir, "redis", options.durable)?;
        let lock = folder::lock(&home.join("lock"))?;
        child::end_leftovers(&home, PROGRAM, END)?;

        let log = Log::new(dir.join("redis.log"))?;
        let is_restart = repair(&home, identity, &log)?;
        let sockets = folder::socket_folder(&dir, "redis", &home, SOCKET)?;
        folder::private_for(&sockets, identity)?;
        let socket = sockets.join(SOCKET);
        let mut command = child::command(&program, "TERM", identity);
        command
            .current_dir(&home)
            .args(["--port", "0", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&home)
            .envs(options.environment.iter().map(|(name, value)| (name, value)));
        for (name, value) in settings(options)? {
            command.arg(format!("--{name}")).arg(value);
        }
        let server = Server::start(PROGRAM, command, log, END)?;
        let redis = Self {
            server,
            socket,
            _sockets: SocketFolder(sockets),
            _lock: lock,
        };
        redis.server.wait_ready(READY_LIMIT, || match redis.ask("PING") {
            Ok(answer) if answer == "+PONG" => Ok(()),
            Ok(answer) => Err(answer),
            Err(error) => Err(error.to_string()),
        })?;
        if is_restart && options.durable {
            // A second safeguard against a torn file (see `repair`): new writes go to a file that was never torn.
            let answer = redis
                .ask("BGREWRITEAOF")
                .context("redis-server does not answer BGREWRITEAOF")?;
            if !answer.starts_with('+') {
                tracing::warn!(answer, "redis-server does not rewrite its append-only file");
            }
        }
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("unix://{}", folder::in_url(&self.socket))
    }

    pub const fn pid(&self) -> u32 {
        self.server.pid()
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends the server as `kill -9` does, and waits for its end.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Sends one inline command and returns the first line of the reply. A start needs no more, so it needs no
    /// client.
    fn ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

impl Deref for RedisServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// The server's settings. Those of the options come last, so that they win.
fn settings(options: &Options) -> anyhow::Result<Vec<(String, String)>> {
    let maxmemory = (machine_memory()? / 2).to_string();
    let mut settings = vec![
        ("unixsocketperm", "700"),
        ("daemonize", "no"),
        ("save", ""),
        ("maxmemory", &maxmemory),
        ("maxmemory-policy", "noeviction"),
        // A script that runs for 200 ms is a fault. Other clients get BUSY then, and not only after 5 s.
        ("busy-reply-threshold", "200"),
        // A minute after a refused rush, rate windows expire by the ten thousand. Redis removes them in rounds, and
        // each round blocks all clients for a quarter of its period or more. At the default of 10 rounds a second,
        // that is 25 ms.
        ("hz", "100"),
        ("enable-debug-command", "no"),
        ("enable-module-command", "no"),
    ];
    if options.durable {
        settings.extend([
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("no-appendfsync-on-rewrite", "no"),
            ("aof-load-truncated", "no"),
            ("aof-use-rdb-preamble", "yes"),
            // While Redis rewrites the file, a child uses a processor and the disk, and purchases wait. At the
            // default of 64 MB, that was one second in every six of a rush.
            ("auto-aof-rewrite-min-size", "256mb"),
        ]);
    } else {
        settings.push(("appendonly", "no"));
    }
    let ours = settings
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(ours.chain(options.settings.iter().cloned()).collect())
}

/// The memory that this process may use, in bytes: the machine's, or its control group's limit if that is lower.
fn machine_memory() -> anyhow::Result<u64> {
    let info = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let total = info
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .context("/proc/meminfo has no MemTotal")?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    Ok(limit.unwrap_or(u64::MAX).min(total * 1024))
}

/// Cuts a torn end off the append-only file. Returns whether there is such a file.
///
/// A script's writes are between `MULTI` and `EXEC` in the file. Redis 7.0 itself would cut inside such a block and
/// leave its `MULTI`, which swallows all later writes at the next start. The checker cuts before the `MULTI`.
fn repair(home: &Path, identity: Option<Identity>, log: &Log) -> anyhow::Result<bool> {
    let folder = home.join("appendonlydir");
    let manifest = folder.join("appendonly.aof.manifest");
    let Ok(listed) = fs::read_to_string(&manifest) else {
        return Ok(false);
    };
    let Some(program) = child::find_in_path(CHECKER) else {
        bail!("{CHECKER} is not in PATH; {INSTALL}")
    };
    let command = |program: &Path| {
        let mut command = child::command(program, "KILL", identity);
        command.current_dir(home);
        command
    };
    let mut check = command(&program);
    check.arg(&manifest);
    if child::run_logged(check, log).is_ok() {
        return Ok(true);
    }

    // Only the end of the newest file can be torn. A copy is kept: its end may show what happened.
    let newest = listed
        .lines()
        .rev()
        .find(|line| line.ends_with(" type i"))
        .and_then(|line| line.split(' ').nth(1));
    let Some(newest) = newest else {
        bail!(
            "{}",
            log.with_tail(&format!("{} is damaged; restore it from a backup", folder.display()))
        );
    };
    let stamp = chrono::Utc::now().format("%Y%m%dT%H%M%S%.3fZ");
    let copy = home.join(format!("{newest}.torn-{stamp}"));
    // Redis's own user makes the copy: root writes nothing into another user's folder.
    let mut keep = command(Path::new("cp"));
    keep.arg("--").arg(folder.join(newest)).arg(&copy);
    child::run_logged(keep, log).with_context(|| format!("cannot write {}", copy.display()))?;
    let mut fix = command(&program);
    fix.arg("--fix").arg(&manifest);
    let (reader, mut answer) = io::pipe().context("cannot make a pipe")?;
    answer.write_all(b"y\n").context("cannot write to a pipe")?;
    drop(answer);
    fix.stdin(reader);
    let fixed = child::run_logged(fix, log);
    fixed.with_context(|| {
        format!(
            "{} is damaged and cannot be repaired; restore it from a backup",
            folder.display()
        )
    })?;
    tracing::warn!(kept = %copy.display(), "the append-only file was torn by a crash; its unfinished end was cut off");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::FOR_TESTS;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    /// Sends commands at once, with a QUIT at the end, and returns all replies.
    fn send(redis: &RedisServer, commands: &str) -> String {
        let mut stream = UnixStream::connect(&redis.socket).unwrap();
        stream.write_all(format!("{commands}QUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A folder that other users may enter: root runs Redis as another user.
    fn own_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn a_folder_serves_one_redis_at_a_time() {
        let dir = own_folder();
        let first = RedisServer::start(dir.path(), &FOR_TESTS).unwrap();
        let refusal = RedisServer::start(dir.path(), &FOR_TESTS).unwrap_err().to_string();
        assert!(refusal.contains("is in use by process"), "{refusal}");
        assert!(first.ended().is_none());
        first.stop();
        assert!(first.ended().is_some());
        drop(first);
        RedisServer::start(dir.path(), &FOR_TESTS).unwrap();
    }

    #[test]
    fn nothing_acknowledged_is_lost_over_two_kills_and_a_torn_tail() {
        let dir = own_folder();
        let redis = RedisServer::start(dir.path(), &Options::default()).unwrap();
        assert!(send(&redis, "CONFIG GET hz\r\n").contains("\r\n100\r\n"));
        let script = "redis.call('DECRBY','stock',3) redis.call('INCR','orders')";
        send(
            &redis,
            &format!("SET stock 100\r\nEVAL \"{script}\" 0\r\nEVAL \"{script}\" 0\r\n"),
        );
        redis.kill();
        drop(redis);
        // Tear the second script's writes: 97 with one order is right, 94 with one order would be a leak.
        let file = dir.path().join("redis/appendonlydir/appendonly.aof.1.incr.aof");
        let length = fs::metadata(&file).unwrap().len();
        File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(length - 20)
            .unwrap();

        let redis = RedisServer::start(dir.path(), &Options::default()).unwrap();
        let answer = send(&redis, "GET stock\r\nGET orders\r\nSET after yes\r\n");
        assert_eq!(answer, "$2\r\n97\r\n$1\r\n1\r\n+OK\r\n+OK\r\n");
        redis.kill();
        drop(redis);
        let redis = RedisServer::start(dir.path(), &Options::default()).unwrap();
        assert_eq!(
            send(&redis, "GET stock\r\nGET after\r\n"),
            "$2\r\n97\r\n$3\r\nyes\r\n+OK\r\n"
        );
        let kept = fs::read_dir(dir.path().join("redis")).unwrap();
        assert_eq!(
            kept.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".torn-"))
                .count(),
            1
        );
    }

    #[test]
    fn a_long_path_is_no_obstacle() {
        let dir = own_folder();
        let long = dir.path().join("a folder with a name".repeat(6));
        let redis = RedisServer::start(&long, &FOR_TESTS).unwrap();
        assert!(redis.url().starts_with("unix:///tmp/flashsale-"), "{}", redis.url());
        assert_eq!(redis.ask("PING").unwrap(), "+PONG");
    }

    #[test]
    fn a_server_that_does_not_start_shows_its_log() {
        let dir = own_folder();
        let settings = vec![("maxclients".to_owned(), "nonsense".to_owned())];
        let error = RedisServer::start(dir.path(), &Options { settings, ..FOR_TESTS }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("redis.log") && text.contains("maxclients"), "{text}");
    }
}
