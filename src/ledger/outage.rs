//! Outages: times in which no worker came to the ledger. Nobody could pay then, so holds last that much longer.

use super::{Ledger, begin, commit, fault, small, unsigned};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use chrono::{DateTime, TimeDelta, Utc};

/// A shorter gap between two visits is none.
const GAP: TimeDelta = TimeDelta::seconds(5);

impl Ledger {
    /// Notes that a worker has come; returns the outage that this ended, if any.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn beat(&self) -> Result<Option<TimeDelta>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let since: DateTime<Utc> = sqlx::query_scalar!("select beaten_at from heartbeat for update")
            .fetch_one(&mut *tx)
            .await
            .map_err(|error| fault(&error))?;
        // The clock, not the transaction's start: the row may have been waited for.
        let until: DateTime<Utc> =
            sqlx::query_scalar!("update heartbeat set beaten_at = clock_timestamp() returning beaten_at")
                .fetch_one(&mut *tx)
                .await
                .map_err(|error| fault(&error))?;
        let gap = until - since;
        let outage = gap > GAP;
        if outage {
            sqlx::query!("insert into outages (since, until) values ($1, $2)", since, until)
                .execute(&mut *tx)
                .await
                .map_err(|error| fault(&error))?;
        }
        commit(tx).await?;
        Ok(outage.then_some(gap))
    }

    /// Shards whose holds have not been extended by every outage.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn shards_to_extend(&self) -> Result<Vec<(SaleId, u16)>, Fault> {
        let rows = sqlx::query!(
            "select s.sale_id, s.shard from shards s \
             join sales on sales.sale_id = s.sale_id and sales.retired_at is null \
             where s.extended_until < (select max(until) from outages)"
        )
        .fetch_all(&self.jobs)
        .await
        .map_err(|error| fault(&error))?;
        rows.into_iter()
            .map(|row| Ok((SaleId(row.sale_id), unsigned(i64::from(row.shard))?)))
            .collect()
    }

    /// Extends a shard's holds by what each had of the outages since the last time; returns how many holds that were.
    /// Orders that are drained later are stored with their extension.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: then none is extended, and all of them the next time.
    pub async fn extend_holds(&self, sale: SaleId, shard: u16) -> Result<usize, Fault> {
        let mut tx = begin(&self.jobs).await?;
        // The drain holds the same row, so no order comes in between the two statements.
        let before: DateTime<Utc> = sqlx::query_scalar!(
            "select extended_until from shards where sale_id = $1 and shard = $2 for no key update",
            sale.0,
            small(shard)
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        let extended = sqlx::query!(
            "update orders set expires_at = expires_at + \
                 (select sum(o.until - greatest(o.since, orders.created_at)) from outages o \
                  where o.until > $3 and o.until > orders.created_at) \
             where sale_id = $1 and shard = $2 and state = 'reserved' \
                 and exists (select from outages o where o.until > $3 and o.until > orders.created_at)",
            sale.0,
            small(shard),
            before
        )
        .execute(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        sqlx::query!(
            "update shards set extended_until = greatest(extended_until, (select max(until) from outages)) \
             where sale_id = $1 and shard = $2",
            sale.0,
            small(shard)
        )
        .execute(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        commit(tx).await?;
        usize::try_from(extended.rows_affected()).map_err(|error| Fault::Bug(error.to_string()))
    }
}
