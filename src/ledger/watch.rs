//! What is only known when it is asked for: does Postgres answer, what waits in the ledger, how busy are the connections.

use super::{Ledger, fault};
use crate::domain::fault::Fault;
use sqlx::PgPool;

/// What waits in the ledger, in all sales.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// Messages that the stock has to be told.
    pub messages: i64,
    /// For how long the oldest of them has waited, in seconds.
    pub oldest_seconds: f64,
    /// For how long the most overdue unpaid order should have expired, in seconds.
    pub overdue_seconds: f64,
}

/// The connections of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// What it is for.
    pub name: &'static str,
    /// How many are open and do nothing.
    pub idle: usize,
    /// How many are in use.
    pub busy: usize,
    /// How many there may be.
    pub max: u32,
}

impl Ledger {
    /// Returns once Postgres has answered.
    ///
    /// # Errors
    /// `Unavailable` when it does not.
    pub async fn ping(&self) -> Result<(), Fault> {
        sqlx::query_scalar!("select 1 as \"one!\"")
            .fetch_one(&self.reports)
            .await
            .map(drop)
            .map_err(|error| fault(&error))
    }

    /// What waits.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn waiting(&self) -> Result<Waiting, Fault> {
        // A shard at a time: so each is one look into the index.
        let row = sqlx::query!(
            "select (select count(*) from outbox where failure is null) as \"messages!\", \
             (select coalesce(extract(epoch from now() - min(created_at)), 0)::float8 \
                 from outbox where failure is null) as \"oldest!\", \
             (select coalesce(extract(epoch from max(now() - due.expires_at)), 0)::float8 \
                 from shards s join sales on sales.sale_id = s.sale_id and sales.retired_at is null \
                 cross join lateral (select o.expires_at from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                     and o.state = 'reserved' order by o.expires_at limit 1) due) as \"overdue!\""
        )
        .fetch_one(&self.reports)
        .await
        .map_err(|error| fault(&error))?;
        Ok(Waiting {
            messages: row.messages,
            oldest_seconds: row.oldest.max(0.0),
            // Before the first deadline, nothing is overdue.
            overdue_seconds: row.overdue.max(0.0),
        })
    }

    /// Every pool.
    #[must_use]
    pub fn pools(&self) -> [PoolState; 5] {
        [
            ("api", &self.api),
            ("payments", &self.payments),
            ("jobs", &self.jobs),
            ("reports", &self.reports),
            ("news", &self.news),
        ]
        .map(|(name, pool): (&'static str, &PgPool)| {
            let (open, idle) = (usize::try_from(pool.size()).unwrap_or(usize::MAX), pool.num_idle());
            PoolState {
                name,
                idle,
                busy: open.saturating_sub(idle),
                max: pool.options().get_max_connections(),
            }
        })
    }
}
