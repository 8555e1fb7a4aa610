//! Connections to Postgres: pools whose sessions have time limits, and the check that each connection has a session of
//! its own. A crash closes them all.

use crate::domain::fault::Fault;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool, Row as _};
use std::str::FromStr as _;
use std::time::Duration;

/// How long the first connections may take.
const REACH_MAX: Duration = Duration::from_secs(5);
/// How often the first connections are asked for their sessions. A busy pooler may give both the same one again.
const SESSION_CHECKS: usize = 5;
/// How long a statement waits for a lock.
pub(super) const LOCK_MAX: &str = "5s";
/// How long a call waits for a free connection.
const ACQUIRE_MAX: Duration = Duration::from_millis(1200);

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL cannot be parsed, or is that of a pooler whose clients share sessions. The text names the setting.
    #[error("{0}")]
    WrongUrl(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Whether a client of Postgres can parse this URL. Fails with `WrongUrl`.
pub fn check_url(url: &str) -> Result<(), ConnectError> {
    options(url).map(drop)
}

/// Connects outside of any pool: a pool retries until its time is over, and loses the reason. Fails with `WrongUrl`, or
/// `Unavailable` when the server cannot be reached.
pub(super) async fn reach(url: &str) -> Result<(), ConnectError> {
    let options = options(url)?;
    let place = format!("{}:{}", options.get_host(), options.get_port());
    let unreachable = |why: &str| {
        ConnectError::Fault(Fault::Unavailable(format!(
            "Postgres at {place} cannot be used: {why}; check FLASHSALE_DATABASE_URL"
        )))
    };
    match tokio::time::timeout(REACH_MAX, are_sessions_shared(&options)).await {
        Ok(Ok(false)) => Ok(()),
        Ok(Ok(true)) => Err(ConnectError::WrongUrl(format!(
            "FLASHSALE_DATABASE_URL names a pooler at {place} whose clients share sessions (transaction mode); name one \
             in session mode, or Postgres itself"
        ))),
        Ok(Err(sqlx::Error::Database(error))) => Err(unreachable(error.message())),
        Ok(Err(error)) => Err(unreachable(&error.to_string())),
        Err(_) => Err(unreachable("no answer in time")),
    }
}

/// Whether two open connections share a session of Postgres, or one changes between sessions. Then a prepared statement
/// may be that of another connection, and a lock, a limit or `LISTEN` stays with a session that others use.
///
/// A pooler in transaction mode has a session for each transaction. Most take the session that was returned last, so
/// both connections get the same one; the others take turns, so one connection gets several.
async fn are_sessions_shared(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut first = PgConnection::connect_with(options).await?;
    let mut second = PgConnection::connect_with(options).await?;
    let (one, other) = (session(&mut first).await?, session(&mut second).await?);
    let mut is_shared = one == other;
    for _ in 0..SESSION_CHECKS {
        is_shared |= session(&mut first).await? != one || session(&mut second).await? != other;
    }
    first.close().await?;
    second.close().await?;
    Ok(is_shared)
}

/// The number of the connection's session. Without a prepared statement, which a pooler may not know.
async fn session(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    connection.fetch_one("select pg_backend_pid()").await?.try_get(0)
}

/// How to connect, with those parameters alone that every pooler takes. sqlx would add one for floats as text; they come
/// in binary.
fn options(url: &str) -> Result<PgConnectOptions, ConnectError> {
    let options = PgConnectOptions::from_str(url);
    let options = options.map_err(|error| ConnectError::WrongUrl(format!("FLASHSALE_DATABASE_URL: {error}")))?;
    let options = options.extra_float_digits(None);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("flashsale"),
    })
}

/// A pool with time limits: `statement_max` for a statement, and `idle_max` for a pause inside a transaction. The
/// second one frees the locks of a process that stands still. It connects at its first use, so that a busy Postgres keeps
/// no process from starting.
pub(super) fn pool(
    url: &str,
    connections_max: u32,
    statement_max: &str,
    idle_max: &str,
) -> Result<PgPool, ConnectError> {
    pool_with(url, connections_max, limits(statement_max, LOCK_MAX, idle_max))
}

/// A pool for what shoppers and payment providers wait for. Its statements find their rows by indexes. For a list of ids,
/// Postgres would read a whole table as long as it has no statistics of it.
pub(super) fn indexed_pool(url: &str, connections_max: u32) -> Result<PgPool, ConnectError> {
    let limits = limits("1500ms", LOCK_MAX, "5s");
    pool_with(url, connections_max, format!("{limits}; set enable_seqscan = off"))
}

/// A pool whose sessions begin with these statements.
fn pool_with(url: &str, connections_max: u32, settings: String) -> Result<PgPool, ConnectError> {
    Ok(PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_MAX)
        .after_connect(move |connection, _| {
            // Made of constants.
            let settings = AssertSqlSafe(settings.clone());
            Box::pin(async move {
                connection.execute(settings).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options(url)?))
}

/// The statements that set a session's time limits. A pooler refuses or ignores limits that come as parameters of the
/// connection. No statement is worth compiling, which takes Postgres up to 200 ms: without statistics of a young table it
/// thinks otherwise.
pub(super) fn limits(statement_max: &str, lock_max: &str, idle_max: &str) -> String {
    format!(
        "set statement_timeout = '{statement_max}'; set lock_timeout = '{lock_max}'; \
         set idle_in_transaction_session_timeout = '{idle_max}'; set jit = off"
    )
}
