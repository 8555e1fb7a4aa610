//! The ledger: Postgres, which decides what becomes of a unit after it is reserved. Only this module names `sqlx`. The
//! constraints of its tables carry the promises: a write that would break one fails.
//!
//! Every call fails with `Unavailable` when Postgres does not answer in time. Doc comments name other faults, and what
//! an unknown outcome leaves where that is not obvious.

mod connect;
mod cursor;
mod migrate;
pub mod news;
pub mod operate;
pub mod outbox;
pub mod recover;
pub mod settle;
pub mod snapshot;
mod transaction;
pub mod turn;
pub mod watch;

use crate::domain::deployment::connection_pools::ConnectionPools;
use crate::domain::fault::Fault;
pub use connect::{ConnectError, check_url};
use connect::{indexed_pool, limits, pool, reach};
use cursor::Cursor;
pub use migrate::migrate;
use sqlx::PgPool;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use transaction::{
    LockedSales, Tx, acquire, be_brief, begin, begin_brief, begin_in_order, begin_unless_locked, begin_with, commit,
    step, unless_locked,
};

/// How long closing waits for statements that still run.
const CLOSE_MAX: Duration = Duration::from_secs(5);

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
    bulletins: recover::bulletin::Kept,
    locked_sales: Arc<LockedSales>,
    /// Of messages by the time from which they may be delivered, and of holds by their deadline.
    due_messages: Cursor,
    due_holds: Cursor,
}

impl Ledger {
    /// Connects. Fails with `WrongUrl`, or `Unavailable` when the server cannot be reached.
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
            bulletins: recover::bulletin::Kept::default(),
            locked_sales: Arc::default(),
            due_messages: Cursor::default(),
            due_holds: Cursor::default(),
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
