//! A private Postgres. Each commit is on disk (unless tests say otherwise), so a kill -9 loses none. The next start
//! ends a server that was left behind and removes an unfinished database cluster.

use super::Options;
use super::child::{self, EndStep, Log, Server};
use super::folder::{self, SocketFolder};
use super::home::{self, Home};
use super::identity::Identity;
use anyhow::{Context as _, bail};
use nix::sys::signal::Signal;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const PROGRAM: &str = "postgres";
const INSTALL: &str = "install it with `apt-get install postgresql`";
/// Where Debian keeps the programs, by major version; most of them are not in `PATH`.
const DEBIAN: &str = "/usr/lib/postgresql";
const PORT: u16 = 5432;
const SOCKET: &str = ".s.PGSQL.5432";
/// The superuser, who only makes the database and the other role.
const USER: &str = "flashsale";
/// The role that owns the database and its content. It is no superuser, so it can start no program and read no file.
const OWNER: &str = "flashsale_app";
const DATABASE: &str = "flashsale";
/// INT is Postgres's fast shutdown: end the sessions, write a checkpoint. QUIT ends at once; the next start then
/// recovers.
const END: &[EndStep] = &[
    (Signal::SIGINT, Duration::from_secs(20)),
    (Signal::SIGQUIT, Duration::from_secs(5)),
];
/// A recovery after a crash may take minutes. A server that ends is noticed at once.
const READY_LIMIT: Duration = Duration::from_secs(300);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Creates the role and gives it the database, with the tables that the superuser created before that role existed.
/// Indexes and the like follow their table.
const GIVE_DATABASE: &str = "do $$
declare
    item record;
begin
    if not exists (select from pg_roles where rolname = 'OWNER') then
        create role OWNER login;
    end if;
    execute format('alter database %I owner to OWNER', current_database());
    alter schema public owner to OWNER;
    for item in
        select oid::regclass as name from pg_class
        where relnamespace = 'public'::regnamespace and relowner <> 'OWNER'::regrole and relkind in ('r', 'p', 'v')
    loop
        execute format('alter table %s owner to OWNER', item.name);
    end loop;
    for item in
        select oid::regclass as name from pg_class
        where relnamespace = 'public'::regnamespace and relowner <> 'OWNER'::regrole and relkind = 'S'
    loop
        execute format('alter sequence %s owner to OWNER', item.name);
    end loop;
    for item in
        select oid::regprocedure as name from pg_proc
        where pronamespace = 'public'::regnamespace and proowner <> 'OWNER'::regrole
    loop
        execute format('alter routine %s owner to OWNER', item.name);
    end loop;
end
$$";

/// A private Postgres on a Unix socket. It stops when this is dropped, and when this process ends, however that ends.
#[derive(Debug)]
pub struct PostgresServer {
    // In the order of the drop: the server has ended before another may use its folder.
    server: Server,
    sockets: SocketFolder,
    _lock: File,
}

impl PostgresServer {
    /// Starts a Postgres whose files are in `dir/postgres`, and waits until its database answers. Fails when Postgres
    /// is not installed, the folder is in use, or the server does not start. The error shows the end of its log.
    pub fn start(dir: &Path, options: &Options) -> anyhow::Result<Self> {
        let dir = folder::open(dir)?;
        let Home { path: home, identity } = Home::open(&dir, "postgres", options.durable)?;
        let lock = folder::lock(&home.join("lock"))?;
        let data = home.join("data");
        let programs = find_programs(&data)?;
        child::end_leftovers(&data, PROGRAM, END)?;

        let log = Log::new(dir.join("postgres.log"))?;
        if !data.exists() {
            make_cluster(&programs, &home, &log, identity, options.durable)?;
        }
        let sockets = folder::socket_folder(&dir, "postgres", &home, SOCKET)?;
        folder::private_for(&sockets, identity)?;
        // The lock and the search for leftovers have shown that no other server uses these folders. A pid in a stale
        // file may belong to another process by now, and Postgres would take that process for a running Postgres.
        let stale = [data.join("postmaster.pid"), sockets.join(format!("{SOCKET}.lock"))];
        home::remove_files(&stale, identity)?;
        let mut command = child::command(&programs.join(PROGRAM), "INT", identity);
        command
            .current_dir(&home)
            .arg("-D")
            .arg(&data)
            .envs(options.environment.iter().map(|(name, value)| (name, value)));
        for (name, value) in settings(&sockets, options) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let server = Server::start(PROGRAM, command, log, END)?;
        let postgres = Self {
            server,
            sockets: SocketFolder(sockets),
            _lock: lock,
        };
        postgres.server.wait_ready(READY_LIMIT, || {
            postgres.open_database().map_err(|error| error.to_string())
        })?;
        Ok(postgres)
    }

    pub fn url(&self) -> String {
        self.url_of(USER)
    }

    /// The URL for clients that need only the database. It names a role that owns the database and has no other rights.
    /// Fails when Postgres refuses to give the database to the role.
    pub fn owner_url(&self) -> anyhow::Result<String> {
        let give = GIVE_DATABASE.replace("OWNER", OWNER);
        run_sql(&self.sockets.0, DATABASE, Some(&give)).context("cannot give the database to its role")?;
        Ok(self.url_of(OWNER))
    }

    fn url_of(&self, user: &str) -> String {
        let sockets = folder::in_url(&self.sockets.0);
        format!("postgres:///{DATABASE}?host={sockets}&user={user}")
    }

    /// Connects to the database, and creates it if it is missing.
    fn open_database(&self) -> Result<(), sqlx::Error> {
        let sockets = &self.sockets.0;
        let opened = run_sql(sockets, DATABASE, None);
        match opened.as_ref().err().and_then(sqlx::Error::as_database_error) {
            Some(error) if error.code().as_deref() == Some("3D000") => {
                run_sql(sockets, "postgres", Some(&format!("CREATE DATABASE {DATABASE}")))
            }
            _ => opened,
        }
    }
}

impl Deref for PostgresServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn settings(sockets: &Path, options: &Options) -> Vec<(String, String)> {
    // The setting is a list separated by commas. Quotes keep a path with commas together.
    let sockets = format!("\"{}\"", sockets.display().to_string().replace('"', "\"\""));
    let safe = if options.durable { "on" } else { "off" };
    let ours = [
        ("listen_addresses", ""),
        ("unix_socket_directories", &sockets),
        ("unix_socket_permissions", "0700"),
        ("cluster_name", "flashsale"),
        ("max_connections", "100"),
        ("shared_buffers", if options.durable { "256MB" } else { "64MB" }),
        ("fsync", safe),
        // Tests also kill Postgres, and expect every commit to be there.
        ("synchronous_commit", "on"),
        ("full_page_writes", safe),
        // With the default of 1 GB, a rush causes a checkpoint every few seconds. After each, Postgres writes whole
        // pages again.
        ("max_wal_size", if options.durable { "4GB" } else { "1GB" }),
        ("timezone", "UTC"),
    ];
    let ours = ours
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    ours.chain(options.settings.iter().cloned()).collect()
}

/// The folder of `postgres` and `initdb`: of the version that created the data, else of the newest version.
fn find_programs(data: &Path) -> anyhow::Result<PathBuf> {
    let made_by = fs::read_to_string(data.join("PG_VERSION"))
        .ok()
        .map(|version| version.trim().to_owned());
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(DEBIAN).into_iter().flatten().flatten() {
        if let Some(version) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            versions.push((version, entry.path().join("bin")));
        }
    }
    versions.retain(|(_, bin)| ["postgres", "initdb"].iter().all(|program| bin.join(program).is_file()));
    versions.sort();
    if let Some(wanted) = made_by.as_ref().and_then(|version| version.parse::<u32>().ok()) {
        if let Some((_, bin)) = versions.iter().find(|(version, _)| *version == wanted) {
            return Ok(bin.clone());
        }
        if !versions.is_empty() {
            bail!(
                "{} was made by Postgres {wanted}, which is not installed; install postgresql-{wanted} or move the data \
                 to a newer version with pg_upgrade",
                data.display()
            );
        }
    }
    if let Some((_, bin)) = versions.pop() {
        return Ok(bin);
    }
    child::find_in_path(PROGRAM)
        .and_then(|program| Some(program.canonicalize().ok()?.parent()?.to_owned()))
        .filter(|bin| bin.join("initdb").is_file())
        .with_context(|| format!("Postgres is neither in PATH nor in {DEBIAN}; {INSTALL}"))
}

/// Creates the database cluster. The folder gets its final name when the cluster is complete, so a crash before
/// leaves no incomplete cluster under that name.
fn make_cluster(
    programs: &Path,
    home: &Path,
    log: &Log,
    identity: Option<Identity>,
    durable: bool,
) -> anyhow::Result<()> {
    let fresh = home.join("data.new");
    // The unfinished cluster of a killed run has no data: its processes are killed at once.
    for (folder, program) in [(home, "initdb"), (home, PROGRAM), (&fresh, PROGRAM)] {
        child::end_leftovers(folder, program, &[])?;
    }
    match fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", fresh.display()));
        }
        _ => {}
    }
    let mut command = child::command(&programs.join("initdb"), "KILL", identity);
    // `trust` is enough: only the servers' own user can reach the socket.
    command.args([
        "-U",
        USER,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        // The same order as C.UTF-8, but Postgres compares the bytes itself.
        "--lc-collate=C",
        "--data-checksums",
        "--no-instructions",
    ]);
    if !durable {
        command.arg("--no-sync");
    }
    command.current_dir(home).arg("-D").arg(&fresh);
    child::run_logged(command, log).context("initdb cannot make the database cluster")?;
    fs::rename(&fresh, home.join("data")).with_context(|| format!("cannot rename {}", fresh.display()))
}

/// Connects to the server with this socket folder and runs at most one statement.
fn run_sql(sockets: &Path, database: &str, statement: Option<&str>) -> Result<(), sqlx::Error> {
    let options = PgConnectOptions::new_without_pgpass()
        .socket(sockets)
        .port(PORT)
        .username(USER)
        .database(database)
        .disable_statement_logging();
    let run = async {
        let mut connection = options.connect().await?;
        if let Some(statement) = statement {
            // Every statement is from this file.
            sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
                .execute(&mut connection)
                .await?;
        }
        connection.close().await
    };
    let run = async {
        let ran = tokio::time::timeout(ANSWER_LIMIT, run).await;
        ran.unwrap_or_else(|_late| Err(sqlx::Error::PoolTimedOut))
    };
    // On a thread of its own, because the caller may be a task of a runtime.
    let ran = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(run)
        });
        running.join()
    });
    ran.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::FOR_TESTS;
    use std::process::Command;

    fn sql(postgres: &PostgresServer, statement: &str) -> Result<(), sqlx::Error> {
        run_sql(&postgres.sockets.0, DATABASE, Some(statement))
    }

    #[test]
    fn rows_outlive_a_kill_and_a_stale_pid_file() {
        let dir = tempfile::tempdir().unwrap();
        let postgres = PostgresServer::start(dir.path(), &FOR_TESTS).unwrap();
        let refusal = PostgresServer::start(dir.path(), &FOR_TESTS).unwrap_err().to_string();
        assert!(refusal.contains("is in use by process"), "{refusal}");
        sql(&postgres, "CREATE TABLE kept (id int)").unwrap();
        postgres.kill();
        drop(postgres);
        let postgres = PostgresServer::start(dir.path(), &FOR_TESTS).unwrap();
        sql(&postgres, "SELECT * FROM kept").unwrap();
        let lost = sql(&postgres, "SELECT * FROM lost").unwrap_err();
        assert_eq!(lost.as_database_error().unwrap().code().unwrap(), "42P01");
    }

    #[test]
    fn a_folder_that_postgres_may_not_enter_is_no_obstacle() {
        use std::os::unix::fs::PermissionsExt as _;
        let start = || {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
            for _restart in 0..2 {
                let postgres = PostgresServer::start(dir.path(), &FOR_TESTS).unwrap();
                sql(&postgres, "CREATE TABLE IF NOT EXISTS kept (id int)").unwrap();
            }
            dir.path().join("postgres").canonicalize().unwrap()
        };
        let first = start();
        let second = start();
        assert!(!first.exists(), "{} outlived its folder", first.display());
        let _rest = fs::remove_dir_all(second);
    }

    #[test]
    fn the_url_works_for_the_driver_and_for_psql() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a b&c", "a,b"] {
            let postgres = PostgresServer::start(&dir.path().join(name), &FOR_TESTS).unwrap();
            let psql = Command::new("psql")
                .args([&postgres.url(), "-Atc", "SELECT 40 + 2"])
                .output()
                .unwrap();
            assert_eq!(
                String::from_utf8_lossy(&psql.stdout),
                "42\n",
                "{}",
                String::from_utf8_lossy(&psql.stderr)
            );
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                use sqlx::Connection as _;
                let mut connection = sqlx::PgConnection::connect(&postgres.url()).await.unwrap();
                let (sum,): (i32,) = sqlx::query_as("SELECT 40 + 2")
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                assert_eq!(sum, 42);
            });
        }
    }

    #[test]
    fn a_server_that_does_not_start_shows_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let settings = vec![("max_connections".to_owned(), "nonsense".to_owned())];
        let error = PostgresServer::start(dir.path(), &Options { settings, ..FOR_TESTS }).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("postgres.log") && text.contains("max_connections"),
            "{text}"
        );
    }
}
