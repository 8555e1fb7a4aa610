//! Conservation checks: which process runs one, and what the last ones of each sale found.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::ledger::Ledger;
use std::collections::HashMap;
use std::time::Duration;
use uuid::Uuid;

/// What a conservation check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conservation {
    pub sale: SaleId,
    /// Units that no place has, or that two places have.
    pub difference: i64,
    /// Held and sold units in which Redis and Postgres differ, on the shards that were compared.
    pub drift: i64,
    /// Whether every shard was compared with the ledger.
    pub is_complete: bool,
}

/// What is known of a sale by its checks so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownConservation {
    pub sale: SaleId,
    /// `None` before the first check has ended.
    pub difference: Option<i64>,
    /// `None` before the first complete check.
    pub drift: Option<i64>,
    /// Since the last complete check. Before the first one, since the first claim.
    pub age_seconds: i64,
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

    /// Stores what a check found, if the sale's check has not been deleted meanwhile. An incomplete check that found no
    /// drift keeps the stored one: the shards that it did not compare may have it.
    pub async fn note_conservation(&self, found: Conservation) -> Result<(), Fault> {
        let drift = (found.is_complete || found.drift != 0).then_some(found.drift);
        sqlx::query!(
            "update conservation_checks set difference = $2, drift = coalesce($3, drift), \
             uncounted_since = case when $4 then now() else uncounted_since end where sale_id = $1",
            found.sale.0,
            found.difference,
            drift,
            found.is_complete
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// What is known of at most `max` sales. Sales with a difference or a drift come first, then those that were not
    /// counted for the longest time above a minute, then the newest.
    pub async fn conservation(&self, max: i64) -> Result<Vec<KnownConservation>, Fault> {
        let rows = sqlx::query!(
            "select sale_id, difference, drift, \
                 extract(epoch from now() - uncounted_since)::int8 as \"age_seconds!\" \
             from conservation_checks \
             order by coalesce(difference, 0) = 0 and coalesce(drift, 0) = 0, \
                 least(uncounted_since, now() - interval '1 minute'), sale_id desc limit $1",
            max
        );
        let rows = rows.fetch_all(&self.jobs).await?;
        let known = rows.into_iter().map(|row| KnownConservation {
            sale: SaleId(row.sale_id),
            difference: row.difference,
            drift: row.drift,
            age_seconds: row.age_seconds,
        });
        Ok(known.collect())
    }

    /// Deletes the checks of all other sales.
    pub async fn keep_conservation(&self, of: &[SaleId]) -> Result<(), Fault> {
        let of: Vec<Uuid> = of.iter().map(|sale| sale.0).collect();
        sqlx::query!("delete from conservation_checks where sale_id <> all ($1)", &of)
            .execute(&self.jobs)
            .await?;
        Ok(())
    }

    /// Deletes the check of a sale, unless it has a finding.
    pub async fn forget_conservation(&self, sale: SaleId) -> Result<(), Fault> {
        sqlx::query!(
            "delete from conservation_checks where sale_id = $1 and difference = 0 and drift = 0",
            sale.0
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Of each of these closed sales: whether a hold is not decided or a message is not delivered, and whether the sale
    /// has a check.
    pub async fn closed_conservation(&self, of: &[SaleId]) -> Result<HashMap<SaleId, (bool, bool)>, Fault> {
        let of: Vec<Uuid> = of.iter().map(|sale| sale.0).collect();
        let found = sqlx::query!(
            "select closed.sale_id as \"sale_id!\", \
                 exists (select from orders o where o.sale_id = closed.sale_id and o.state = 'reserved') \
                     or exists (select from outbox m where m.sale_id = closed.sale_id) as \"has_open_holds!\", \
                 c.sale_id is not null as \"has_check!\" \
             from unnest($1::uuid[]) as closed (sale_id) left join conservation_checks c using (sale_id)",
            &of
        );
        let found = found.fetch_all(&self.jobs).await?;
        Ok(found
            .into_iter()
            .map(|it| (SaleId(it.sale_id), (it.has_open_holds, it.has_check)))
            .collect())
    }
}
