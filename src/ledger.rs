//! The ledger: Postgres, which decides what becomes of a unit after it is reserved. Only this module names `sqlx`. The
//! constraints of its tables carry the promises: a write that would break one fails.
//!
//! Every call fails with `Unavailable` when Postgres does not answer in time. Doc comments name other faults, and what
//! an unknown outcome leaves where that is not obvious.

pub mod alert;
pub mod archive;
pub mod audit;
pub mod audit_log;
pub mod ban;
pub mod bulletin;
pub mod conservation;
pub mod console;
pub mod dead_letter;
pub mod draft;
pub mod drain;
pub mod fairness;
pub mod guard;
pub mod history;
mod locked_sales;
pub mod news;
pub mod order;
pub mod outage;
pub mod outbox;
pub mod payment;
pub mod pulse;
pub mod rebuild;
pub mod restock;
pub mod retention;
pub mod retirement;
pub mod sale;
pub mod turn;
pub mod watch;

use crate::domain::connection_pools::ConnectionPools;
use crate::domain::fault::Fault;
use locked_sales::LockedSales;
use sqlx::migrate::Migrator;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool, Postgres, Row as _, Transaction};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tracing::{Instrument as _, Span};

/// Without the lock of sqlx: [`apply_missing`] takes one of its own.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = sqlx::migrate!();
    migrations.set_locking(false);
    migrations
});

/// How long closing waits for statements that still run.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long the first connections may take.
const REACH_MAX: Duration = Duration::from_secs(5);
/// How often the first connections are asked for their sessions. A busy pooler may give both the same one again.
const SESSION_CHECKS: usize = 5;
/// How long a statement waits for a lock.
const LOCK_MAX: &str = "5s";
/// How often a process asks whether another one has finished the migrations.
const MIGRATED_EVERY: Duration = Duration::from_millis(250);
/// How long a call waits for a free connection.
const ACQUIRE_MAX: Duration = Duration::from_millis(1200);

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL is that of a pooler whose clients share sessions. The text names the setting, and what to write.
    #[error("{0}")]
    SharedSessions(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A handle on the ledger; clones share its pools. Shoppers, operators, payments, the jobs, reports, upkeep and news have a
/// pool each, so none can starve another.
#[derive(Clone)]
pub struct Ledger {
    api: PgPool,
    operators: PgPool,
    payments: PgPool,
    jobs: PgPool,
    reports: PgPool,
    /// For what each process follows all the while: sales, settings, bans, guard warnings and readiness.
    upkeep: PgPool,
    /// For the one connection that receives notifications.
    news: PgPool,
    bulletins: bulletin::Kept,
    locked_sales: Arc<LockedSales>,
}

impl Ledger {
    /// Connects. Fails with `SharedSessions`, or `Unavailable` when the server cannot be reached, or the URL is invalid.
    pub async fn connect(url: &str, pools: ConnectionPools) -> Result<Self, ConnectError> {
        reach(url).await?;
        Ok(Self {
            api: indexed_pool(url, pools.shoppers)?,
            operators: pool(url, pools.operators, "1500ms", "5s")?,
            payments: indexed_pool(url, pools.payments)?,
            jobs: pool(url, pools.jobs, "20s", "10s")?,
            reports: pool(url, pools.reports, "10s", "10s")?,
            upkeep: pool(url, pools.upkeep, "1500ms", "5s")?,
            news: pool(url, 1, "0", "10s")?,
            bulletins: bulletin::Kept::default(),
            locked_sales: Arc::default(),
        })
    }

    /// The same ledger for operators' requests: it uses the operators' pool in place of the shoppers'. So no crowd of
    /// shoppers keeps an operator from pausing a sale.
    #[must_use]
    pub fn for_operators(&self) -> Self {
        Self {
            api: self.operators.clone(),
            ..self.clone()
        }
    }

    /// The same ledger for what each process follows: it uses that pool in place of the shoppers'. So no crowd of
    /// shoppers makes a process seem unready, or keeps a changed setting from it.
    #[must_use]
    pub fn for_upkeep(&self) -> Self {
        Self {
            api: self.upkeep.clone(),
            ..self.clone()
        }
    }

    const fn named_pools(&self) -> [(&'static str, &PgPool); 7] {
        [
            ("api", &self.api),
            ("operators", &self.operators),
            ("payments", &self.payments),
            ("jobs", &self.jobs),
            ("reports", &self.reports),
            ("upkeep", &self.upkeep),
            ("news", &self.news),
        ]
    }

    /// Closes all connections. Statements that still run have a moment to finish.
    pub async fn close(&self) {
        let all = self.named_pools().map(|(_, pool)| pool.close());
        let all = futures_util::future::join(self.end_bulletins(), futures_util::future::join_all(all));
        if tokio::time::timeout(CLOSE_MAX, all).await.is_err() {
            tracing::warn!("the connections to Postgres did not close in time");
        }
    }

    /// A name by which instances that share a Redis know whether they share the ledger, too. A copy of the files has the
    /// same.
    pub async fn name(&self) -> Result<String, Fault> {
        // Not checked at compile time: sqlx creates this table, no migration of ours.
        let name = sqlx::query_scalar(
            "select md5(current_database() || ' ' || extract(epoch from min(installed_on))::text) \
             from _sqlx_migrations",
        );
        name.fetch_one(&self.upkeep).await.map_err(Fault::from)
    }

    /// How many migrations of this binary have not been applied.
    pub async fn migrations_missing(&self) -> Result<usize, Fault> {
        let there = sqlx::query_scalar!("select to_regclass('_sqlx_migrations') is not null as \"there!\"");
        if !there.fetch_one(&self.upkeep).await? {
            return Ok(MIGRATIONS.iter().count());
        }
        // Not checked at compile time: sqlx creates this table, no migration of ours.
        let applied: Vec<i64> = sqlx::query_scalar("select version from _sqlx_migrations where success")
            .fetch_all(&self.upkeep)
            .await?;
        Ok(MIGRATIONS
            .iter()
            .filter(|migration| !applied.contains(&migration.version))
            .count())
    }
}

/// Applies the missing migrations, while other processes use the ledger. A migration that waits too long for another
/// transaction fails, and may be repeated. Fails with `SharedSessions`, `Unavailable` when the server cannot be
/// reached, or `Bug` when a migration fails.
pub async fn migrate(url: &str) -> Result<(), ConnectError> {
    reach(url).await?;
    let pool = pool(url, 1, "0", "0")?;
    let outcome = apply_missing(&pool).await;
    pool.close().await;
    Ok(outcome?)
}

async fn apply_missing(pool: &PgPool) -> Result<(), Fault> {
    let mut connection = acquire(pool).await?;
    // The lock is polled, not waited for. A concurrent index build waits for every statement that runs, also for one
    // that waits for the building process.
    let lock = async |connection: &mut PgConnection| {
        sqlx::query_scalar!("select pg_try_advisory_lock(hashtextextended('flashsale migrations', 0)) as \"it!\"")
            .fetch_one(connection)
            .await
            .map_err(Fault::from)
    };
    let mut is_announced = false;
    while !lock(&mut connection).await? {
        if !is_announced {
            tracing::info!("another process applies migrations; waiting for it");
            is_announced = true;
        }
        tokio::time::sleep(MIGRATED_EVERY).await;
    }
    drop_unfinished_indexes(&mut connection).await?;
    for migration in MIGRATIONS.iter() {
        // A concurrent index build waits for older transactions and blocks none. Other changes block all others, so
        // their wait for a lock has a limit.
        let lock_max = if migration.no_tx { "0" } else { LOCK_MAX };
        sqlx::query_scalar!("select set_config('lock_timeout', $1, false)", lock_max)
            .fetch_one(&mut *connection)
            .await?;
        MIGRATIONS
            .run_to(migration.version, &mut *connection)
            .await
            .map_err(|error| Fault::Bug(format!("a migration failed: {error}")))?;
    }
    Ok(())
}

/// Drops indexes whose concurrent build broke off. Postgres never uses them, and they have the name of the missing
/// index.
async fn drop_unfinished_indexes(connection: &mut PgConnection) -> Result<(), Fault> {
    let unfinished = sqlx::query_scalar!(
        "select format('%I', c.relname) as \"index!\" from pg_index i join pg_class c on c.oid = i.indexrelid \
         where not i.indisvalid and c.relnamespace = current_schema()::regnamespace \
             and not exists (select from pg_stat_progress_create_index p where p.index_relid = i.indexrelid)"
    )
    .fetch_all(&mut *connection)
    .await?;
    for index in unfinished {
        // The name is from the catalogue, and quoted.
        sqlx::raw_sql(AssertSqlSafe(format!("drop index concurrently {index}")))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Connects outside of any pool: a pool retries until its time is over, and loses the reason. Fails with
/// `SharedSessions`, or `Unavailable` when the server cannot be reached, or the URL is invalid.
async fn reach(url: &str) -> Result<(), ConnectError> {
    let options = options(url)?;
    let place = format!("{}:{}", options.get_host(), options.get_port());
    let unreachable = |why: &str| {
        ConnectError::Fault(Fault::Unavailable(format!(
            "Postgres at {place} cannot be used: {why}; check FLASHSALE_DATABASE_URL"
        )))
    };
    match tokio::time::timeout(REACH_MAX, are_sessions_shared(&options)).await {
        Ok(Ok(false)) => Ok(()),
        Ok(Ok(true)) => Err(ConnectError::SharedSessions(format!(
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
fn options(url: &str) -> Result<PgConnectOptions, Fault> {
    let options = PgConnectOptions::from_str(url)?.extra_float_digits(None);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("flashsale"),
    })
}

/// A pool with time limits: `statement_max` for a statement, and `idle_max` for a pause inside a transaction. The
/// second one frees the locks of a process that stands still. It connects at its first use, so that a busy Postgres keeps
/// no process from starting.
fn pool(url: &str, connections_max: u32, statement_max: &str, idle_max: &str) -> Result<PgPool, Fault> {
    pool_with(url, connections_max, limits(statement_max, LOCK_MAX, idle_max))
}

/// A pool for what shoppers and payment providers wait for. Its statements find their rows by indexes. For a list of ids,
/// Postgres would read a whole table as long as it has no statistics of it.
fn indexed_pool(url: &str, connections_max: u32) -> Result<PgPool, Fault> {
    let limits = limits("1500ms", LOCK_MAX, "5s");
    pool_with(url, connections_max, format!("{limits}; set enable_seqscan = off"))
}

/// A pool whose sessions begin with these statements.
fn pool_with(url: &str, connections_max: u32, settings: String) -> Result<PgPool, Fault> {
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
fn limits(statement_max: &str, lock_max: &str, idle_max: &str) -> String {
    format!(
        "set statement_timeout = '{statement_max}'; set lock_timeout = '{lock_max}'; \
         set idle_in_transaction_session_timeout = '{idle_max}'; set jit = off"
    )
}

/// Maps an error of the client or the server to a fault.
impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        let passing = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Configuration(_) => true,
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                // These may pass: connection trouble, no resources, an operator's intervention (statement time-outs
                // too), a deadlock, a lock time-out, or a transaction that was idle for too long.
                ["08", "53", "57", "40"].contains(&code.get(..2).unwrap_or_default())
                    || ["55P03", "25P03", "25P04"].contains(&code.as_ref())
            }
            _ => false,
        };
        if passing {
            Self::Unavailable(format!("Postgres: {error}"))
        } else {
            Self::Bug(format!("Postgres: {error}"))
        }
    }
}

/// Whether the error is about the data itself, so that no retry can store it.
fn is_about_data(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    // Data exceptions, integrity violations, and a program limit (an index row too large).
    code.is_some_and(|code| ["22", "23", "54"].contains(&code.get(..2).unwrap_or_default()))
}

type Tx = Transaction<'static, Postgres>;

/// Whether the statement gave up because another transaction held a lock for too long.
fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "55P03")
}

/// The result of a statement; `None` if it gave up as in [`is_locked`].
fn unless_locked<T>(result: Result<T, sqlx::Error>) -> Result<Option<T>, Fault> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if is_locked(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Limits how long a transaction waits for a lock. A rebuild locks its shard for long, and the caller goes on with
/// other shards meanwhile.
async fn be_brief(tx: &mut Tx) -> Result<(), Fault> {
    sqlx::query!("set local lock_timeout = '200ms'")
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn begin(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(pool, "begin").await
}

/// Begins a transaction by this statement. A task of its own waits for it, also when the caller gives up: sqlx returns
/// a connection to the pool with the transaction open if the statement's future is dropped.
async fn begin_with(pool: &PgPool, statement: &'static str) -> Result<Tx, Fault> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin_with(statement).await });
    let begun = begun.instrument(step("begin")).await;
    begun
        .map_err(|error| Fault::Bug(format!("a transaction could not begin: {error}")))?
        .map_err(Fault::from)
}

/// Begins a transaction with the limit of [`be_brief`] from its first statement on.
async fn begin_brief(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(pool, "begin; set local lock_timeout = '200ms'").await
}

/// Begins such a transaction about a sale; `None` while the sale counts as locked.
async fn begin_unless_locked(pool: &PgPool, locked: &LockedSales, sale: Option<u32>) -> Result<Option<Tx>, Fault> {
    let is_locked = || sale.is_some_and(|sale| locked.contains(sale));
    if is_locked() {
        return Ok(None);
    }
    let tx = begin_brief(pool).await?;
    // Many requests of the sale may have queued for a connection before the first one found the lock.
    Ok((!is_locked()).then_some(tx))
}

/// Begins a transaction that takes the first rows of a queue. If the queue was empty when Postgres made its statistics,
/// the planner takes it for small. Postgres would then read and sort the full queue for each batch, instead of
/// following the index. So sorting is off, and no plan from the time of an empty queue is kept.
async fn begin_in_order(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(
        pool,
        "begin; set local enable_sort = off; set local plan_cache_mode = force_custom_plan",
    )
    .await
}

async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, Fault> {
    pool.acquire().await.map_err(Fault::from)
}

async fn commit(tx: Tx) -> Result<(), Fault> {
    let committed = tx.commit().instrument(step("commit")).await;
    committed.map_err(Fault::from)
}

/// A span for one step of a transaction, inside the current span. Without a current span there is none, because it
/// would be a trace of its own.
fn step(what: &'static str) -> Span {
    if Span::current().is_none() {
        Span::none()
    } else {
        tracing::debug_span!("sql", step = what, otel.kind = "client")
    }
}

/// Parses a stored text into a type of the domain.
fn word<T: FromStr<Err = E>, E: std::fmt::Display>(text: &str) -> Result<T, Fault> {
    text.parse()
        .map_err(|error: E| Fault::Bug(format!("in the ledger: {error}")))
}

/// A number as SQL stores it; [`unsigned`] is the way back.
fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

fn unsigned<T: TryFrom<i64>>(number: i64) -> Result<T, Fault> {
    T::try_from(number).map_err(|_| Fault::Bug(format!("in the ledger: {number} is out of range")))
}
