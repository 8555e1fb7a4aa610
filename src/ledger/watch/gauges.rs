//! Gauges that are read on request: whether Postgres answers, what waits in the ledger, how busy the connections are.

use crate::domain::fault::Fault;
use crate::ledger::Ledger;

/// What waits in the ledger, in all sales.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// Undelivered messages to the stock.
    pub messages: i64,
    /// How long the oldest of them has waited, in seconds.
    pub oldest_seconds: f64,
}

/// The connections of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
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
    pub async fn ping(&self) -> Result<(), Fault> {
        sqlx::query_scalar!("select 1 as \"one!\"")
            .fetch_one(&self.reports)
            .await
            .map(drop)
            .map_err(Fault::from)
    }

    pub async fn waiting(&self) -> Result<Waiting, Fault> {
        let row = sqlx::query!(
            "select count(*) as \"messages!\", \
             coalesce(extract(epoch from now() - min(created_at)), 0)::float8 as \"oldest!\" \
             from outbox where failure is null"
        )
        .fetch_one(&self.reports)
        .await?;
        Ok(Waiting {
            messages: row.messages,
            oldest_seconds: row.oldest.max(0.0),
        })
    }

    pub fn pools(&self) -> [PoolState; 7] {
        self.named_pools().map(|(name, pool)| {
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
