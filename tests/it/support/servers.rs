//! The servers of this process: each is started when the first test asks for it and ends with the process, however
//! it ends.

use super::poll::eventually;
use super::raw::Raw;
use flashsale::embedded::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tokio::sync::OnceCell;

/// The folder of this process's servers, in the build's folder for tests. Nothing runs at the end of a test
/// process, so each one clears away what the ones before it left; a lock tells which of them still run.
static FOLDER: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("it");
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
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    (folder, lock)
});

static REDIS: LazyLock<RedisServer> = LazyLock::new(|| start_redis(&FOLDER.0, Vec::new()));

static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(|| {
    let options = PostgresOptions {
        durable: false,
        settings: vec![("max_connections".to_owned(), "400".to_owned())],
    };
    PostgresServer::start(&FOLDER.0, &options).unwrap()
});

fn start_redis(folder: &Path, settings: Vec<(String, String)>) -> RedisServer {
    let options = RedisOptions {
        durable: false,
        settings,
    };
    RedisServer::start(folder, &options).unwrap()
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
    let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
    FreshRedis {
        server: start_redis(folder.path(), Vec::new()),
        _folder: folder,
    }
}

/// A primary and its replicas, of the test's own; they reach each other by TCP.
pub struct ReplicatedRedis {
    pub primary: TcpRedis,
    pub replicas: Vec<TcpRedis>,
}

/// One of them; it ends when it is dropped.
pub struct TcpRedis {
    pub server: RedisServer,
    pub port: u16,
    _folder: tempfile::TempDir,
}

impl TcpRedis {
    fn start() -> Self {
        // Nobody else is given it in the moment until the server takes it.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let settings = [
            ("port", port.to_string().as_str()),
            ("bind", "127.0.0.1"),
            // A replica is served at once, instead of waiting five seconds for others.
            ("repl-diskless-sync-delay", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
        Self {
            server: start_redis(folder.path(), settings.into()),
            port,
            _folder: folder,
        }
    }
}

impl ReplicatedRedis {
    /// Starts a primary and so many replicas.
    pub fn start(replicas: usize) -> Self {
        let mut redis = Self {
            primary: TcpRedis::start(),
            replicas: Vec::new(),
        };
        for _ in 0..replicas {
            redis.add_replica();
        }
        redis
    }

    /// Starts one more replica and waits until it follows.
    pub fn add_replica(&mut self) {
        let replica = TcpRedis::start();
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

    /// Waits until every replica has all that the primary has.
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

    /// Makes a replica a primary of its own, whatever the old one does.
    pub fn promote(&mut self) -> Self {
        let primary = self.replicas.remove(0);
        let _ok: String = Raw::connect(&primary.server.url()).call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
        Self {
            primary,
            replicas: Vec::new(),
        }
    }
}

/// Processes that are stopped in the middle of whatever they do, as if the machine hung, until this is dropped.
pub struct Frozen(Vec<u32>);

impl Frozen {
    /// A server without children.
    pub fn one(pid: u32) -> Self {
        signal("STOP", &[pid]);
        Self(vec![pid])
    }

    /// A Postgres: no new session begins, and those that there are stand still.
    pub fn postgres(server: &PostgresServer) -> Self {
        signal("STOP", &[server.pid()]);
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
        let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        signal("STOP", &children);
        Self([vec![server.pid()], children].concat())
    }
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

fn signal(name: &str, pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let script = format!("kill -s {name} {}", pids.join(" "));
    // One of them may have ended by itself.
    let _sent = Command::new("sh").args(["-c", &script]).status().unwrap();
}

/// A Postgres of the test's own with one migrated database, to freeze and stop.
pub struct FreshPostgres {
    pub server: PostgresServer,
    _folder: tempfile::TempDir,
}

pub async fn fresh_postgres() -> FreshPostgres {
    let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
    // Postgres runs as another user if we are root.
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let options = PostgresOptions {
        durable: false,
        settings: Vec::new(),
    };
    let server = PostgresServer::start(folder.path(), &options).unwrap();
    flashsale::ledger::migrate(&server.url()).await.unwrap();
    FreshPostgres {
        server,
        _folder: folder,
    }
}

/// The URL of a database of the test's own, with every migration applied.
pub async fn database() -> String {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    let template = TEMPLATE
        .get_or_init(|| async {
            let name = create_database("template1").await;
            flashsale::ledger::migrate(&database_url(&name)).await.unwrap();
            name
        })
        .await;
    database_url(&create_database(template).await)
}

async fn create_database(template: &str) -> String {
    let name = format!("it_{}", uuid::Uuid::new_v4().simple());
    let connected = <sqlx::PgConnection as sqlx::Connection>::connect(&POSTGRES.url()).await;
    let mut connection = connected.unwrap();
    // Both names are ours: letters, digits and underscores.
    let statement = sqlx::AssertSqlSafe(format!("create database {name} template {template}"));
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    name
}

fn database_url(name: &str) -> String {
    let url = POSTGRES.url();
    let (_, options) = url.split_once('?').unwrap();
    format!("postgres:///{name}?{options}")
}

#[tokio::test]
async fn every_test_has_a_migrated_database_of_its_own() {
    let (one, other) = (database().await, database().await);
    assert_ne!(one, other);
    for url in [one, other] {
        let ledger = flashsale::ledger::Ledger::connect(&url).await.unwrap();
        assert_eq!(ledger.migrations_missing().await.unwrap(), 0);
        ledger.close().await;
    }
}
