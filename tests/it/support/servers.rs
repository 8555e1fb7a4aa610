//! The servers of this process: each is started when the first test asks for it and ends with the process, however
//! it ends.

use flashsale::embedded::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
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

static REDIS: LazyLock<RedisServer> = LazyLock::new(|| start_redis(&FOLDER.0));

static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(|| {
    let options = PostgresOptions {
        durable: false,
        settings: vec![("max_connections".to_owned(), "400".to_owned())],
    };
    PostgresServer::start(&FOLDER.0, &options).unwrap()
});

fn start_redis(folder: &Path) -> RedisServer {
    let options = RedisOptions {
        durable: false,
        settings: Vec::new(),
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
        server: start_redis(folder.path()),
        _folder: folder,
    }
}

/// A Redis of the test's own that keeps what it acknowledged, to kill and to start again on the same folder.
pub struct DurableRedis {
    server: Option<RedisServer>,
    folder: tempfile::TempDir,
}

impl DurableRedis {
    pub fn start() -> Self {
        let mut redis = Self {
            server: None,
            folder: tempfile::tempdir_in(&FOLDER.0).unwrap(),
        };
        redis.restart();
        redis
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server.as_ref().unwrap().url()
    }

    /// `kill -9`, by its id.
    pub fn kill(&mut self) {
        let server = self.server.take().unwrap();
        signal("KILL", server.pid());
        super::poll::eventually("Redis has ended", || server.ended().is_some());
    }

    /// Starts it on what is in its folder.
    pub fn restart(&mut self) {
        self.server = Some(RedisServer::start(self.folder.path(), &RedisOptions::default()).unwrap());
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("redis/appendonlydir")
    }

    /// A copy of its data as they are now.
    pub fn copy(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir_in(&FOLDER.0).unwrap();
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

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Sends a signal to a process of the test's own.
fn signal(name: &str, pid: u32) {
    let sent = std::process::Command::new("sh")
        .args(["-c", &format!("kill -s {name} {pid}")])
        .status();
    assert!(sent.unwrap().success());
}

/// A Postgres of the test's own with one database that has every migration, to stop and to start again.
pub struct FreshPostgres {
    server: Option<PostgresServer>,
    folder: tempfile::TempDir,
}

impl FreshPostgres {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
        // Postgres runs as another user if we are root, and must be able to pass.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut postgres = Self { server: None, folder };
        postgres.restart();
        flashsale::ledger::migrate(&postgres.url()).await.unwrap();
        postgres
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server.as_ref().unwrap().url()
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    pub fn restart(&mut self) {
        let options = PostgresOptions {
            durable: false,
            settings: Vec::new(),
        };
        self.server = Some(PostgresServer::start(self.folder.path(), &options).unwrap());
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
