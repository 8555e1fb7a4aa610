//! Transactions: how they begin, how long they wait for locks, and how they end. Postgres undoes one that a crash broke
//! off.

use crate::domain::fault::Fault;
use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres, Transaction};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

/// How long a sale counts as locked.
const LOCKED_FOR: Duration = Duration::from_millis(500);

pub(super) type Tx = Transaction<'static, Postgres>;

pub(super) async fn begin(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(pool, "begin").await
}

/// Begins a transaction by this statement. A task of its own waits for it, also when the caller gives up: sqlx returns
/// a connection to the pool with the transaction open if the statement's future is dropped.
pub(super) async fn begin_with(pool: &PgPool, statement: &'static str) -> Result<Tx, Fault> {
    let pool = pool.clone();
    let begun = tokio::spawn(async move { pool.begin_with(statement).await });
    let begun = begun.instrument(step("begin")).await;
    begun
        .map_err(|error| Fault::Bug(format!("a transaction could not begin: {error}")))?
        .map_err(Fault::from)
}

/// Begins a transaction with the limit of [`be_brief`] from its first statement on.
pub(super) async fn begin_brief(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(pool, "begin; set local lock_timeout = '200ms'").await
}

/// Begins such a transaction about a sale; `None` while the sale counts as locked.
pub(super) async fn begin_unless_locked(
    pool: &PgPool,
    locked: &LockedSales,
    sale: Option<u32>,
) -> Result<Option<Tx>, Fault> {
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
pub(super) async fn begin_in_order(pool: &PgPool) -> Result<Tx, Fault> {
    begin_with(
        pool,
        "begin; set local enable_sort = off; set local plan_cache_mode = force_custom_plan",
    )
    .await
}

pub(super) async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, Fault> {
    pool.acquire().await.map_err(Fault::from)
}

pub(super) async fn commit(tx: Tx) -> Result<(), Fault> {
    let committed = tx.commit().instrument(step("commit")).await;
    committed.map_err(Fault::from)
}

/// A span for one step of a transaction, inside the current span. Without a current span there is none, because it
/// would be a trace of its own.
pub(super) fn step(what: &'static str) -> Span {
    if Span::current().is_none() {
        Span::none()
    } else {
        tracing::debug_span!("sql", step = what, otel.kind = "client")
    }
}

/// Limits how long a transaction waits for a lock. A rebuild locks its shard for long, and the caller goes on with
/// other shards meanwhile.
pub(super) async fn be_brief(tx: &mut Tx) -> Result<(), Fault> {
    sqlx::query!("set local lock_timeout = '200ms'")
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Whether the statement gave up because another transaction held a lock for too long.
fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "55P03")
}

/// The result of a statement; `None` if it gave up as in [`is_locked`].
pub(super) fn unless_locked<T>(result: Result<T, sqlx::Error>) -> Result<Option<T>, Fault> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(error) if is_locked(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The sales that another transaction was just found to have locked: until when each counts as locked, by its number.
/// For a moment no other request waits for that lock on a connection.
#[derive(Default)]
pub(super) struct LockedSales(Mutex<HashMap<u32, Instant>>);

impl LockedSales {
    pub(super) fn contains(&self, sale: u32) -> bool {
        let until = self.0.lock();
        until.get(&sale).is_some_and(|until| Instant::now() < *until)
    }

    pub(super) fn note(&self, sale: u32) {
        let now = Instant::now();
        let mut until = self.0.lock();
        until.retain(|_, until| now < *until);
        until.insert(sale, now + LOCKED_FOR);
    }
}
