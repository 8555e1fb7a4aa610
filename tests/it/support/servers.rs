//! The servers of this process: each is started when the first test asks for it and ends with the process, however
//! it ends.

mod cluster;
mod postgres;

use super::authority::Authority;
use super::poll::eventually;
use super::raw::Raw;
use super::root;
use chrono::Utc;
pub use cluster::Cluster;
use flashsale::embedded::{PostgresServer, RedisOptions, RedisServer};
pub use postgres::{
    FreshPostgres, as_app, as_role, database, database_of_dump, database_of_people, make_roles, run_script,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

/// The folder of this process's servers, in the one that `./dev` names or in the build's folder for tests. Nothing runs at
/// the end of a test process, so each one clears the folders of earlier processes; a lock shows which of them still run.
pub static FOLDER: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
    let all = match std::env::var_os("FLASHSALE_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("it"),
    };
    fs::create_dir_all(&all).unwrap();
    for entry in fs::read_dir(&all).unwrap().flatten() {
        let left = File::open(entry.path().join("lock")).is_ok_and(|lock| lock.try_lock().is_ok());
        if left {
            // Another process may be clearing the same folder.
            let _rest = fs::remove_dir_all(entry.path());
        }
    }
    // The lock is taken before the folder has its name, so nobody finds it without.
    let fresh = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(&all)
        .unwrap()
        .keep();
    let lock = File::create(fresh.join("lock")).unwrap();
    lock.lock().unwrap();
    let folder = all.join(uuid::Uuid::new_v4().simple().to_string());
    fs::rename(&fresh, &folder).unwrap();
    // Postgres runs as another user if we are root, and must be able to pass.
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, lock)
});

static REDIS: LazyLock<RedisServer> = LazyLock::new(|| start_redis(&FOLDER.0, Vec::new()));

/// Libraries to start a server with, each built once: a weak disk, a wrong clock, and an address that connections come
/// from.
pub static WEAK_DISK: LazyLock<PathBuf> = LazyLock::new(|| library("torture/weak_disk.c"));
static WRONG_CLOCK: LazyLock<PathBuf> = LazyLock::new(|| library("support/wrong_clock.c"));
pub static FROM_ADDRESS: LazyLock<PathBuf> = LazyLock::new(|| library("support/from_address.c"));

fn library(source: &str) -> PathBuf {
    let source = root().join("tests/it").join(source);
    // On a disk: a program may not be run from memory everywhere. Other processes build the same, so it is there at once.
    let library = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(source.file_name().unwrap())
        .with_extension("so");
    let fresh = library.with_extension(std::process::id().to_string());
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&fresh, &source])
        .arg("-ldl")
        .output()
        .unwrap_or_else(|error| panic!("cc is needed to build {}, as for Rust: {error}", source.display()));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::rename(&fresh, &library).unwrap();
    library
}

fn start_redis(folder: &Path, settings: Vec<(String, String)>) -> RedisServer {
    let options = RedisOptions {
        durable: false,
        settings: usual().into_iter().chain(settings).collect(),
        ..RedisOptions::default()
    };
    RedisServer::start(folder, &options).unwrap()
}

/// The settings of every Redis that keeps nothing. Other clients get BUSY as late as Redis does by itself: on processors
/// full of tests, a script of some milliseconds takes 200. Its own work is done less often than for a shop: the tests have
/// up to forty idle servers at a time.
fn usual() -> [(String, String); 2] {
    [("busy-reply-threshold", "5000"), ("hz", "20")].map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// A folder of a test's own. Servers run as another user if we are root, and must be able to pass.
pub fn own_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// The URL of the Redis that all tests share: each uses a sale of its own, and none flushes or configures it.
pub fn redis() -> String {
    REDIS.url()
}

/// A Redis of the test's own, to fill, flush, configure and stop; it ends when it is dropped.
pub struct FreshRedis {
    pub server: RedisServer,
    _folder: tempfile::TempDir,
}

pub fn fresh_redis() -> FreshRedis {
    fresh_redis_with(&[])
}

/// The same, with settings.
pub fn fresh_redis_with(settings: &[(&str, &str)]) -> FreshRedis {
    let folder = own_folder();
    let settings = settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    FreshRedis {
        server: start_redis(folder.path(), settings.collect()),
        _folder: folder,
    }
}

/// A primary and its replicas, of the test's own; they reach each other by TCP.
pub struct ReplicatedRedis {
    pub primary: TcpRedis,
    pub replicas: Vec<TcpRedis>,
    /// Of every one of them.
    settings: &'static [(&'static str, &'static str)],
    environment: Vec<(String, String)>,
}

/// A replica is served at once, instead of waiting five seconds for others.
const REPLICATED: &[(&str, &str)] = &[("repl-diskless-sync-delay", "0")];

/// One of them; it ends when it is dropped.
pub struct TcpRedis {
    pub server: RedisServer,
    pub port: u16,
    folder: tempfile::TempDir,
    options: RedisOptions,
}

/// A free port, which no other caller gets before a server takes it: below those that systems give to connections, and
/// each at most once.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    let mut tries = (0..1000).map(|_| rand::random_range(15_000..32_000));
    let free = tries.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok() && given.insert(*port));
    free.expect("a port between 15000 and 32000 is free")
}

impl TcpRedis {
    fn in_environment(settings: &[(&str, &str)], environment: Vec<(String, String)>) -> Self {
        let port = free_port();
        let own = vec![("port".to_owned(), port.to_string())];
        Self::at(port, own, settings, environment)
    }

    /// One that speaks TLS alone, to clients with a certificate.
    pub fn with_tls(authority: &Authority) -> Self {
        Self::with_tls_and(authority, &[])
    }

    fn with_tls_and(authority: &Authority, settings: &[(&str, &str)]) -> Self {
        let port = free_port();
        Self::at(port, authority.of_redis(port), settings, Vec::new())
    }

    fn at(
        port: u16,
        own: Vec<(String, String)>,
        settings: &[(&str, &str)],
        environment: Vec<(String, String)>,
    ) -> Self {
        let bind = ("bind".to_owned(), "127.0.0.1".to_owned());
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = own
            .into_iter()
            .chain([bind, no_purger()])
            .chain(usual())
            .chain(settings);
        let folder = own_folder();
        let options = RedisOptions {
            durable: false,
            settings: settings.collect(),
            environment,
        };
        Self {
            server: RedisServer::start(folder.path(), &options).unwrap(),
            port,
            folder,
            options,
        }
    }

    /// Starts one that has ended, on the data in its folder.
    fn start_again(self) -> Self {
        let Self {
            server,
            port,
            folder,
            options,
        } = self;
        drop(server);
        Self {
            server: RedisServer::start(folder.path(), &options).unwrap(),
            port,
            folder,
            options,
        }
    }

    /// A connection over TCP to this node.
    fn raw(&self) -> Raw {
        Raw::connect(&self.server.url())
    }

    /// Makes a node of a cluster the replica of another, once it knows it.
    fn replicate(&self, primary: &Self) {
        let id: String = primary.raw().call(redis::cmd("CLUSTER").arg("MYID"));
        eventually("a replica knows its primary", || {
            let answer: Result<String, _> = self.raw().try_call(redis::cmd("CLUSTER").arg("REPLICATE").arg(&id));
            answer.is_ok()
        });
    }

    /// Waits until a replica follows it.
    fn is_followed(&self) {
        eventually("a replica follows", || {
            let info: String = self.raw().call(redis::cmd("INFO").arg("replication"));
            info.contains("state=online")
        });
    }
}

impl ReplicatedRedis {
    /// Starts a primary and so many replicas.
    pub fn start(replicas: usize) -> Self {
        Self::with(replicas, REPLICATED)
    }

    /// The same, with these settings.
    pub fn with(replicas: usize, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self::of_every(replicas, settings, Vec::new())
    }

    /// The same, with one clock for all.
    pub fn with_clock(replicas: usize, clock: &WrongClock) -> Self {
        Self::of_every(replicas, REPLICATED, clock.environment())
    }

    fn of_every(
        replicas: usize,
        settings: &'static [(&'static str, &'static str)],
        environment: Vec<(String, String)>,
    ) -> Self {
        let mut redis = Self {
            primary: TcpRedis::in_environment(settings, environment.clone()),
            replicas: Vec::new(),
            settings,
            environment,
        };
        for _ in 0..replicas {
            redis.add_replica();
        }
        redis
    }

    /// Starts one more replica and waits until it follows.
    pub fn add_replica(&mut self) {
        let replica = TcpRedis::in_environment(self.settings, self.environment.clone());
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg("127.0.0.1").arg(self.primary.port);
        let _ok: String = Raw::connect(&replica.server.url()).call(&mut follow);
        self.replicas.push(replica);
        let (primary, expected) = (Raw::connect(&self.primary.server.url()), self.replicas.len());
        eventually("the replica follows", || {
            let info: String = primary.call(redis::cmd("INFO").arg("replication"));
            info.matches("state=online").count() == expected
        });
    }

    /// Waits until every replica has all data of the primary.
    pub fn in_step(&self) {
        let offset = |redis: &TcpRedis, name: &str| -> String {
            let info: String = Raw::connect(&redis.server.url()).call(redis::cmd("INFO").arg("replication"));
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.to_owned()
        };
        eventually("the replicas are in step", || {
            let expected = offset(&self.primary, "master_repl_offset:");
            let mut replicas = self.replicas.iter();
            replicas.all(|replica| offset(replica, "slave_repl_offset:") == expected)
        });
    }

    /// Makes a replica a primary of its own, regardless of the old one.
    pub fn promote(&mut self) -> Self {
        let primary = self.replicas.remove(0);
        let _ok: String = Raw::connect(&primary.server.url()).call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
        Self {
            primary,
            replicas: Vec::new(),
            settings: self.settings,
            environment: self.environment.clone(),
        }
    }
}

/// Suspended processes, as if the machine hung, until this is dropped.
pub struct Frozen(Vec<u32>);

impl Frozen {
    /// A server without children.
    pub fn one(pid: u32) -> Self {
        stop(&[pid]);
        Self(vec![pid])
    }

    /// A Postgres: no new session begins, and the present ones stand still.
    pub fn postgres(server: &PostgresServer) -> Self {
        stop(&[server.pid()]);
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
        let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        stop(&children);
        Self([vec![server.pid()], children].concat())
    }
}

/// Suspends processes. A thread that runs goes on for a moment after the signal, so this waits until all stand still.
fn stop(pids: &[u32]) {
    signal("STOP", pids);
    let stands_still = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets; an ended thread has none.
        !stat
            .rsplit(") ")
            .next()
            .is_some_and(|it| it.starts_with(['R', 'S', 'D']))
    };
    eventually("the processes stand still", || {
        let threads = pids
            .iter()
            .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
        threads.flatten().flatten().all(stands_still)
    });
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal("CONT", &self.0);
    }
}

/// Ends a server without warning, as `kill -9` does.
pub fn kill(pid: u32) {
    signal("KILL", &[pid]);
}

pub fn signal(name: &str, pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -s {name} {}", pids.join(" "));
    // One of them may have ended by itself.
    let _sent = Command::new("sh").args(["-c", &script]).status().unwrap();
}

/// The clock of a process, which can be set.
pub struct WrongClock(PathBuf);

impl WrongClock {
    /// A clock that is right.
    pub fn new() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let clock = FOLDER.0.join(format!("clock-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        let clock = Self(clock);
        clock.set(0);
        clock
    }

    /// Sets it to so many milliseconds after the right time, or before it. In one step: the server reads it all the while.
    pub fn set(&self, millis: i64) {
        self.write(&millis.to_string());
    }

    /// Makes it stand at the right time.
    pub fn stop(&self) {
        self.write(&format!("0 {}", Utc::now().timestamp_millis()));
    }

    fn write(&self, text: &str) {
        let next = self.0.with_extension("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, &self.0).unwrap();
    }

    /// The variables of the process that has it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
        vec![variable("LD_PRELOAD", &WRONG_CLOCK), variable("WRONG_CLOCK", &self.0)]
    }
}

/// The setting by which Redis has no thread that purges memory. On a wrong clock that thread never sleeps: it waits by the
/// right one, for moments of the wrong one.
fn no_purger() -> (String, String) {
    ("jemalloc-bg-thread".to_owned(), "no".to_owned())
}

/// A Redis of the test's own whose clock can be set.
pub fn redis_with_clock() -> (FreshRedis, WrongClock) {
    let (folder, clock) = (own_folder(), WrongClock::new());
    let options = RedisOptions {
        durable: false,
        settings: [no_purger()].into_iter().chain(usual()).collect(),
        environment: clock.environment(),
    };
    let server = RedisServer::start(folder.path(), &options).unwrap();
    let redis = FreshRedis {
        server,
        _folder: folder,
    };
    (redis, clock)
}

/// A Redis of the test's own that keeps acknowledged data, to kill and to start again on the same folder.
pub struct DurableRedis {
    server: Option<RedisServer>,
    folder: tempfile::TempDir,
}

impl DurableRedis {
    pub fn start() -> Self {
        let mut redis = Self {
            server: None,
            folder: own_folder(),
        };
        redis.restart();
        redis
    }

    /// One that starts on a copy of these append-only files.
    pub fn on(files: &Path) -> Self {
        let folder = own_folder();
        let data = folder.path().join("redis/appendonlydir");
        fs::create_dir_all(&data).unwrap();
        copy_files(files, &data);
        let mut redis = Self { server: None, folder };
        redis.restart();
        redis
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server.as_ref().unwrap().url()
    }

    pub fn pid(&self) -> u32 {
        self.server.as_ref().unwrap().pid()
    }

    /// `kill -9`, by its id.
    pub fn kill(&mut self) {
        let server = self.server.take().unwrap();
        kill(server.pid());
        super::poll::eventually("Redis has ended", || server.ended().is_some());
    }

    /// Starts it on the data in its folder.
    pub fn restart(&mut self) {
        self.server = Some(RedisServer::start(self.folder.path(), &RedisOptions::default()).unwrap());
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("redis/appendonlydir")
    }

    /// The file that it writes to now.
    pub fn newest_file(&self) -> PathBuf {
        let files = fs::read_dir(self.data()).unwrap().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
        files
            .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
            .unwrap()
    }

    /// A copy of its data as they are now.
    pub fn copy(&self) -> tempfile::TempDir {
        let copy = own_folder();
        copy_files(&self.data(), copy.path());
        copy
    }

    /// Puts older data in the place of those of a server that was killed.
    pub fn go_back_to(&self, copy: &tempfile::TempDir) {
        fs::remove_dir_all(self.data()).unwrap();
        fs::create_dir(self.data()).unwrap();
        copy_files(copy.path(), &self.data());
    }
}

/// Copies a folder with everything in it, its owners too.
fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Copies files into a folder, which goes with them to the owner of the one above it: root's servers run as another user.
pub fn copy_files(from: &Path, to: &Path) {
    let owner = fs::metadata(to.parent().unwrap()).unwrap();
    let give = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy).unwrap();
        give(&copy);
    }
    give(to);
}
