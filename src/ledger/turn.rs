//! Turns: work that one process does at a time, under a lock. Postgres frees the lock when the process dies or stands
//! still.

use super::{Ledger, Tx, begin};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;

/// A turn that lasts until it is ended or dropped.
pub struct Turn(Tx);

impl Ledger {
    /// The turn to rebalance a sale; `None` while another process has it.
    pub async fn turn_to_rebalance(&self, sale: SaleId) -> Result<Option<Turn>, Fault> {
        self.turn(&format!("rebalancing of {}", sale.0)).await
    }

    /// The turn to wait for the deadlines of holds; `None` while another process has it.
    pub async fn turn_to_await_deadlines(&self) -> Result<Option<Turn>, Fault> {
        self.turn("awaiting deadlines").await
    }

    async fn turn(&self, work: &str) -> Result<Option<Turn>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let alone = sqlx::query_scalar!(
            "select pg_try_advisory_xact_lock(hashtextextended($1, 0)) as \"alone!\"",
            work
        );
        let alone = alone.fetch_one(&mut *tx).await?;
        Ok(alone.then_some(Turn(tx)))
    }
}

impl Turn {
    /// Lets another process have the turn. Fails with `Unavailable` when Postgres does not answer: then it frees the
    /// turn by itself.
    pub async fn end(self) -> Result<(), Fault> {
        self.0.rollback().await.map_err(Fault::from)
    }
}
