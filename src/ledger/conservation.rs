//! Conservation checks: which process runs one, and what the last one of each sale found.

use super::Ledger;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use std::time::Duration;
use uuid::Uuid;

/// What a conservation check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conservation {
    pub sale: SaleId,
    /// Units that no place has, or that two places have.
    pub difference: i64,
    /// Held and sold units in which Redis and Postgres differ.
    pub drift: i64,
}

impl Ledger {
    /// Claims the next check of a sale; `false` when a process has begun one within `every`.
    pub async fn claim_conservation(&self, sale: SaleId, every: Duration) -> Result<bool, Fault> {
        let claimed = sqlx::query!(
            "insert into conservation_checks (sale_id, began_at) values ($1, now()) \
             on conflict (sale_id) do update set began_at = now() \
             where conservation_checks.began_at < now() - make_interval(secs => $2)",
            sale.0,
            every.as_secs_f64()
        );
        let claimed = claimed.execute(&self.jobs).await?;
        Ok(claimed.rows_affected() == 1)
    }

    /// Stores what a check found, if the sale's check has not been deleted meanwhile.
    pub async fn note_conservation(&self, found: Conservation) -> Result<(), Fault> {
        sqlx::query!(
            "update conservation_checks set difference = $2, drift = $3 where sale_id = $1",
            found.sale.0,
            found.difference,
            found.drift
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// What the last checks found, for at most `max` sales. Sales with a difference or a drift come first.
    pub async fn conservation(&self, max: i64) -> Result<Vec<Conservation>, Fault> {
        let rows = sqlx::query!(
            "select sale_id, difference, drift from conservation_checks \
             order by (difference, drift) = (0, 0), began_at desc limit $1",
            max
        );
        let rows = rows.fetch_all(&self.jobs).await?;
        let found = rows.into_iter().map(|row| Conservation {
            sale: SaleId(row.sale_id),
            difference: row.difference,
            drift: row.drift,
        });
        Ok(found.collect())
    }

    /// Deletes the checks of all other sales.
    pub async fn keep_conservation(&self, of: &[SaleId]) -> Result<(), Fault> {
        let of: Vec<Uuid> = of.iter().map(|sale| sale.0).collect();
        sqlx::query!("delete from conservation_checks where sale_id <> all ($1)", &of)
            .execute(&self.jobs)
            .await?;
        Ok(())
    }
}
