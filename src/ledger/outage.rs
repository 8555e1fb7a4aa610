//! Outages: times in which no worker came to the ledger. An order is stored with its deadline without them. As long as it is
//! reserved, each query adds the outages since it was created; the decision stores the sum.

use super::{Ledger, begin, commit};
use crate::domain::fault::Fault;
use crate::domain::outage::{Outage, Outages};
use crate::domain::time::from_millis;
use chrono::{DateTime, TimeDelta, Utc};

/// A shorter gap between two visits is none.
const GAP: TimeDelta = TimeDelta::seconds(5);
/// Outages are forgotten after so much time in which workers came. No hold lasts longer than a day of it.
const KEPT: TimeDelta = TimeDelta::days(30);

impl Ledger {
    /// Notes that a worker has come; returns the outage that this ended, if any.
    pub async fn beat(&self) -> Result<Option<TimeDelta>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let since: DateTime<Utc> = sqlx::query_scalar!("select beaten_at from heartbeat for update")
            .fetch_one(&mut *tx)
            .await?;
        // The clock, not the transaction's start: the row may have been waited for.
        let until: DateTime<Utc> =
            sqlx::query_scalar!("update heartbeat set beaten_at = clock_timestamp() returning beaten_at")
                .fetch_one(&mut *tx)
                .await?;
        let gap = until - since;
        let outage = gap > GAP;
        if outage {
            sqlx::query!("insert into outages (since, until) values ($1, $2)", since, until)
                .execute(&mut *tx)
                .await?;
        }
        commit(tx).await?;
        Ok(outage.then_some(gap))
    }

    /// Every outage that a hold of today may be extended by.
    pub async fn outages(&self) -> Result<Outages, Fault> {
        let rows = sqlx::query!("select since, until from outages order by until desc")
            .fetch_all(&self.jobs)
            .await?;
        // Rounded up: no hold ends a part of a millisecond early.
        let outages = rows.into_iter().map(|row| Outage {
            since: row.since.timestamp_millis(),
            until: row.until.timestamp_millis() + 1,
        });
        Ok(Outages(outages.collect()))
    }

    /// Forgets outages that no hold of today is extended by.
    pub async fn forget_outages(&self) -> Result<(), Fault> {
        let outages = self.outages().await?;
        let now: DateTime<Utc> = sqlx::query_scalar!("select now() as \"now!\"")
            .fetch_one(&self.jobs)
            .await?;
        let kept = KEPT.num_milliseconds();
        let before = from_millis(outages.due(now.timestamp_millis(), kept) - kept);
        sqlx::query!("delete from outages where until < $1", before)
            .execute(&self.jobs)
            .await?;
        Ok(())
    }
}
