//! Databases of their own for tests, and Postgres servers of their own.

use super::{FOLDER, WEAK_DISK, WrongClock, copy_folder, kill, own_folder};
use crate::support::poll::eventually;
use crate::support::root;
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::embedded::{PostgresOptions, PostgresServer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tokio::sync::OnceCell;

static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(|| {
    let options = PostgresOptions {
        durable: false,
        settings: [
            ("max_connections", "800"),
            // It visits one database after the other, and there is one for each test.
            ("autovacuum_naptime", "1d"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..PostgresOptions::default()
    };
    PostgresServer::start(&FOLDER.0, &options).unwrap()
});

/// The files of a server with one database that has every migration: copies start sooner than new ones are made.
async fn migrated_files() -> &'static Path {
    static FILES: OnceCell<PathBuf> = OnceCell::const_new();
    let files = FILES.get_or_init(|| async {
        let folder = FOLDER.0.join("migrated");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let options = PostgresOptions {
            durable: false,
            ..PostgresOptions::default()
        };
        let server = PostgresServer::start(&folder, &options).unwrap();
        flashsale::ledger::migrate(&server.url()).await.unwrap();
        has_no_age(&server.url()).await;
        server.stop();
        folder.join("postgres")
    });
    files.await
}

/// The age of a template is no outage: the first heartbeat in a copy follows one that is yet to come.
async fn has_no_age(template: &str) {
    let mut template = <sqlx::PgConnection as sqlx::Connection>::connect(template)
        .await
        .unwrap();
    let fresh = "update heartbeat set beaten_at = now() + interval '1 day'";
    sqlx::query(fresh).execute(&mut template).await.unwrap();
    sqlx::Connection::close(template).await.unwrap();
}

/// A copy is the same ledger by its name: in one Redis, its instances would count on those of the other copies.
async fn is_another_ledger(copy: &str) {
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(copy).await.unwrap();
    let rename = "update _sqlx_migrations set installed_on = clock_timestamp()";
    sqlx::query(rename).execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
}

/// A Postgres of the test's own with one database that has every migration, to stop and to start again.
pub struct FreshPostgres {
    server: Option<PostgresServer>,
    folder: tempfile::TempDir,
    options: PostgresOptions,
}

impl FreshPostgres {
    pub async fn start() -> Self {
        Self::with(PostgresOptions {
            durable: false,
            ..PostgresOptions::default()
        })
        .await
    }

    /// One on a disk that may fill up: its fault is written into the returned file; see `weak_disk.c`.
    pub async fn on_weak_disk() -> (Self, PathBuf) {
        let disk = FOLDER.0.join(format!("disk-{}", uuid::Uuid::new_v4().simple()));
        fs::write(&disk, "").unwrap();
        let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
        let postgres = Self::with(PostgresOptions {
            durable: false,
            environment: vec![variable("LD_PRELOAD", &WEAK_DISK), variable("WEAK_DISK", &disk)],
            ..PostgresOptions::default()
        });
        (postgres.await, disk)
    }

    /// One whose commits are on disk, for several instances.
    pub async fn on_disk() -> Self {
        Self::with(PostgresOptions {
            durable: true,
            settings: vec![("max_connections".to_owned(), "800".to_owned())],
            ..PostgresOptions::default()
        })
        .await
    }

    /// One with this clock.
    pub async fn with_clock(clock: &WrongClock) -> Self {
        Self::with(PostgresOptions {
            durable: false,
            environment: clock.environment(),
            ..PostgresOptions::default()
        })
        .await
    }

    /// One that counts its statements.
    pub async fn counting() -> Self {
        Self::with(PostgresOptions {
            durable: false,
            settings: vec![("shared_preload_libraries".to_owned(), "pg_stat_statements".to_owned())],
            ..PostgresOptions::default()
        })
        .await
    }

    async fn with(options: PostgresOptions) -> Self {
        let folder = own_folder();
        // Postgres runs as another user if we are root, and must be able to pass.
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let files = migrated_files().await;
        // A server whose user may not enter this folder has its files elsewhere, behind a link.
        let is_copied = !files.is_symlink();
        if is_copied {
            copy_folder(files, &folder.path().join("postgres"));
        }
        let mut postgres = Self {
            server: None,
            folder,
            options,
        };
        postgres.restart();
        if !is_copied {
            flashsale::ledger::migrate(&postgres.url()).await.unwrap();
        }
        is_another_ledger(&postgres.url()).await;
        postgres
    }

    /// The same after every start.
    pub fn url(&self) -> String {
        self.server().url()
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        let url = self.url();
        let folder = url.split_once("host=").unwrap().1.split('&').next().unwrap();
        // The tests' folder has a name without characters that a URL would have to hide.
        Path::new(folder).join(".s.PGSQL.5432")
    }

    pub fn server(&self) -> &PostgresServer {
        self.server.as_ref().unwrap()
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("postgres/data")
    }

    /// A copy of its data, to be taken while it is stopped.
    pub fn copy(&self) -> tempfile::TempDir {
        let copy = own_folder();
        copy_folder(&self.data(), &copy.path().join("data"));
        copy
    }

    /// Puts an earlier copy in the place of its data, while it is stopped.
    pub fn go_back_to(&self, copy: &tempfile::TempDir) {
        fs::remove_dir_all(self.data()).unwrap();
        copy_folder(&copy.path().join("data"), &self.data());
    }

    /// Ends it as `kill -9` does, if it runs; its sessions see that and end.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take()
            && server.ended().is_none()
        {
            kill(server.pid());
            eventually("Postgres has ended", || server.ended().is_some());
        }
    }

    /// Starts it on the data in its folder; does nothing while it runs.
    pub fn restart(&mut self) {
        if self.server.as_ref().is_some_and(|server| server.ended().is_none()) {
            return;
        }
        self.server = None;
        self.server = Some(PostgresServer::start(self.folder.path(), &self.options).unwrap());
    }
}

/// The URL of a database of the test's own for the superuser, with every migration applied by the role that owns the tables.
pub async fn database() -> String {
    static TEMPLATE: OnceCell<String> = OnceCell::const_new();
    let server = POSTGRES.url();
    let template = TEMPLATE
        .get_or_init(|| async {
            let name = create_database(&server, "template1").await;
            let (url, passwords) = (database_url(&server, &name), FOLDER.0.join("roles"));
            fs::create_dir(&passwords).unwrap();
            for role in ["owner", "app"] {
                fs::write(passwords.join(role), role).unwrap();
            }
            make_roles(&url, &passwords);
            let owner = as_role(&url, "flashsale_owner");
            flashsale::ledger::migrate(&owner).await.unwrap();
            has_no_age(&url).await;
            name
        })
        .await;
    database_url(&server, &create_database(&server, template).await)
}

/// The same on a database that sorts text as people do, not by its bytes.
pub async fn database_of_people() -> String {
    let server = POSTGRES.url();
    let template = "template0 locale_provider icu icu_locale 'en-US'";
    let url = database_url(&server, &create_database(&server, template).await);
    flashsale::ledger::migrate(&url).await.unwrap();
    url
}

/// The URL of a database of the test's own that a dump fills, with every migration since.
pub async fn database_of_dump(dump: &Path, and: &str) -> String {
    let server = POSTGRES.url();
    let url = database_url(&server, &create_database(&server, "template0").await);
    let connected = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await;
    let dump = fs::read_to_string(dump).unwrap() + and;
    let filled = sqlx::raw_sql(sqlx::AssertSqlSafe(dump))
        .execute(&mut connected.unwrap())
        .await;
    filled.unwrap();
    flashsale::ledger::migrate(&url).await.unwrap();
    url
}

async fn create_database(server: &str, template: &str) -> String {
    let name = format!("it_{}", uuid::Uuid::new_v4().simple());
    let connected = <sqlx::PgConnection as sqlx::Connection>::connect(server).await;
    let mut connection = connected.unwrap();
    // Both are ours.
    let statement = sqlx::AssertSqlSafe(format!("create database {name} template {template}"));
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    name
}

/// Makes the roles of the compose file in a database, with the passwords in the files of a folder.
pub fn make_roles(database: &str, passwords: &Path) {
    run_script("roles.sql", database, passwords);
}

/// Runs a script of the folder `compose` as the superuser, with the passwords in the files of a folder.
pub fn run_script(name: &str, database: &str, passwords: &Path) {
    let (scripts, here) = (root().join("compose"), format!("{}/", passwords.display()));
    for script in ["roles.sql", "one-role.sql"] {
        let written = fs::read_to_string(scripts.join(script))
            .unwrap()
            .replace("/secrets/", &here)
            .replace("/docker-entrypoint-initdb.d/", &here);
        fs::write(passwords.join(script), written).unwrap();
    }
    let ran = Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-f"])
        .arg(passwords.join(name))
        .output()
        .expect("psql is part of Debian's package postgresql-client");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// The URL of the superuser, for another role.
pub fn as_role(url: &str, role: &str) -> String {
    let (database, _superuser) = url.rsplit_once("user=").unwrap();
    format!("{database}user={role}")
}

/// The URL of a database from [`database`] for the role that serves, which owns nothing.
pub fn as_app(url: &str) -> String {
    as_role(url, "flashsale_app")
}

fn database_url(server: &str, name: &str) -> String {
    let (_, options) = server.split_once('?').unwrap();
    format!("postgres:///{name}?{options}")
}

#[tokio::test]
async fn every_test_has_a_migrated_database_of_its_own() {
    let (one, other) = (database().await, database().await);
    assert_ne!(one, other);
    for url in [one, other] {
        let ledger = flashsale::ledger::Ledger::connect(&url, ConnectionPools::default())
            .await
            .unwrap();
        assert_eq!(ledger.migrations_missing().await.unwrap(), 0);
        ledger.close().await;
    }
}
