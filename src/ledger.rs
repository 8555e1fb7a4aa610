//! The ledger: Postgres, which decides what becomes of a unit once it has been taken. This module alone names
//! `sqlx`. Its constraints carry the promises; the code only has to run into them.

pub mod alert;
pub mod audit;
pub mod ban;
pub mod console;
pub mod drain;
pub mod guard;
pub mod letter;
pub mod news;
pub mod order;
pub mod outage;
pub mod outbox;
pub mod payment;
pub mod pulse;
pub mod rebuild;
pub mod restock;
pub mod sale;
pub mod trail;
pub mod watch;

use crate::domain::fault::Fault;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::Duration;
use tracing::{Instrument as _, Span};

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!();

/// How long the end waits for what runs on a connection.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long the first connection may take.
const REACH_MAX: Duration = Duration::from_secs(5);
/// How long anybody waits for a free connection.
const ACQUIRE_MAX: Duration = Duration::from_millis(1200);

/// A handle on the ledger; clones share its pools. Payments, the API, the jobs, reports and news have a pool
/// each, so none can starve another.
#[derive(Clone)]
pub struct Ledger {
    api: PgPool,
    payments: PgPool,
    jobs: PgPool,
    reports: PgPool,
    /// For the one connection that listens.
    news: PgPool,
}

impl Ledger {
    /// Connects, and fails if nobody answers.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, or the URL is none.
    pub async fn connect(url: &str) -> Result<Self, Fault> {
        reach(url).await?;
        Ok(Self {
            api: pool(url, 12, "1500ms", "5s").await?,
            payments: pool(url, 6, "1500ms", "5s").await?,
            jobs: pool(url, 12, "20s", "10s").await?,
            reports: pool(url, 4, "10s", "10s").await?,
            news: pool(url, 1, "0", "10s").await?,
        })
    }

    /// Ends all connections; what runs on them has a moment to finish.
    pub async fn close(&self) {
        let all = [&self.api, &self.payments, &self.jobs, &self.reports, &self.news].map(PgPool::close);
        if tokio::time::timeout(CLOSE_MAX, futures_util::future::join_all(all))
            .await
            .is_err()
        {
            tracing::warn!("Postgres did not let go of its connections in time");
        }
    }

    /// Whether every migration of this binary has been applied; else the number of those that are missing.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn migrations_missing(&self) -> Result<usize, Fault> {
        let there = sqlx::query_scalar!("select to_regclass('_sqlx_migrations') is not null as \"there!\"");
        if !there.fetch_one(&self.api).await.map_err(|error| fault(&error))? {
            return Ok(MIGRATIONS.iter().count());
        }
        // Not checked at compile time: sqlx creates this table, no migration of ours.
        let applied: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations where success")
            .fetch_all(&self.api)
            .await
            .map_err(|error| fault(&error))?;
        Ok(MIGRATIONS
            .iter()
            .filter(|migration| !applied.contains(&migration.version))
            .count())
    }
}

/// Applies the migrations that are missing.
///
/// # Errors
/// `Unavailable` when the server cannot be reached, `Bug` when a migration fails.
pub async fn migrate(url: &str) -> Result<(), Fault> {
    reach(url).await?;
    let pool = pool(url, 1, "0", "0").await?;
    let outcome = MIGRATIONS
        .run(&pool)
        .await
        .map_err(|error| Fault::Bug(format!("a migration failed: {error}")));
    pool.close().await;
    outcome
}

/// Connects once, outside of any pool: a pool tries again until its time is over, and forgets why.
async fn reach(url: &str) -> Result<(), Fault> {
    let options = PgConnectOptions::from_str(url).map_err(|error| fault(&error))?;
    let place = format!("{}:{}", options.get_host(), options.get_port());
    let unreachable = |why: String| {
        Fault::Unavailable(format!(
            "Postgres at {place} cannot be used: {why}; check FLASHSALE_DATABASE_URL"
        ))
    };
    match tokio::time::timeout(REACH_MAX, sqlx::PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => connection.close().await.map_err(|error| fault(&error)),
        Ok(Err(sqlx::Error::Database(error))) => Err(unreachable(error.message().to_owned())),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable("no answer in time".to_owned())),
    }
}

/// Connections on which a statement, and a transaction between two statements, may take so long: what a process has
/// locked that stands still is given to others after `idle_max`.
async fn pool(url: &str, connections_max: u32, statement_max: &str, idle_max: &str) -> Result<PgPool, Fault> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| fault(&error))?
        .options([
            ("statement_timeout", statement_max),
            ("lock_timeout", "5s"),
            ("idle_in_transaction_session_timeout", idle_max),
            ("application_name", "flashsale"),
        ]);
    PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_MAX)
        .connect_with(options)
        .await
        .map_err(|error| fault(&error))
}

/// What an error of the client or the server means.
fn fault(error: &sqlx::Error) -> Fault {
    let passing = match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Configuration(_) => true,
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            // Connection trouble, no resources, operator's intervention (statement time-outs too), a deadlock, a lock
            // that did not come, or a transaction that stood still for too long: the same again may succeed.
            ["08", "53", "57", "40"].contains(&code.get(..2).unwrap_or_default())
                || ["55P03", "25P03", "25P04"].contains(&code.as_ref())
        }
        _ => false,
    };
    if passing {
        Fault::Unavailable(format!("Postgres: {error}"))
    } else {
        Fault::Bug(format!("Postgres: {error}"))
    }
}

/// Whether the error says that this very data cannot be stored, whatever else happens.
fn is_about_data(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    // Data exceptions, integrity violations, and a program limit (an index row too large).
    code.is_some_and(|code| ["22", "23", "54"].contains(&code.get(..2).unwrap_or_default()))
}

type Tx = Transaction<'static, Postgres>;

/// Has a transaction wait only for a moment for what somebody has locked: a shard that is being rebuilt is locked for long, and
/// others have their turn meanwhile.
async fn be_brief(tx: &mut Tx) -> Result<(), Fault> {
    sqlx::query!("set local lock_timeout = '200ms'")
        .execute(&mut **tx)
        .await
        .map_err(|error| fault(&error))?;
    Ok(())
}

async fn begin(pool: &PgPool) -> Result<Tx, Fault> {
    let begun = pool.begin().instrument(step("begin")).await;
    begun.map_err(|error| fault(&error))
}

/// Begins what takes the first rows of a queue. A queue that was empty when its statistics were made looks small however
/// long it has become since; then Postgres would read and sort all of it for each batch, instead of following the index
/// that has it in its order.
async fn begin_in_order(pool: &PgPool) -> Result<Tx, Fault> {
    let begun = pool
        .begin_with("begin; set local enable_sort = off")
        .instrument(step("begin"))
        .await;
    begun.map_err(|error| fault(&error))
}

async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, Fault> {
    pool.acquire().await.map_err(|error| fault(&error))
}

async fn commit(tx: Tx) -> Result<(), Fault> {
    let committed = tx.commit().instrument(step("commit")).await;
    committed.map_err(|error| fault(&error))
}

/// One step of a transaction, as a span of what it is part of. What is part of nothing would be a trace of its own.
fn step(what: &'static str) -> Span {
    if Span::current().is_none() {
        Span::none()
    } else {
        tracing::debug_span!("sql", step = what, otel.kind = "client")
    }
}

/// A stored text as one of our words.
fn word<T: FromStr<Err = E>, E: std::fmt::Display>(text: &str) -> Result<T, Fault> {
    text.parse()
        .map_err(|error: E| Fault::Bug(format!("in the ledger: {error}")))
}

/// A number of Rust as SQL stores it, and back.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn unsigned<T: TryFrom<i64>>(number: i64) -> Result<T, Fault> {
    T::try_from(number).map_err(|_| Fault::Bug(format!("in the ledger: {number} is out of range")))
}
