//! Outages: times in which no worker reached the ledger. An order is stored with a deadline that counts none. While the
//! order is reserved, each query adds the outages since its creation. The decision stores the sum.

use crate::domain::fault::Fault;
use crate::domain::order::outage::{Outage, Outages};
use crate::domain::time::from_millis;
use crate::ledger::{Ledger, begin, commit};
use chrono::{DateTime, TimeDelta, Utc};

/// A shorter gap between two heartbeats is no outage.
const GAP: TimeDelta = TimeDelta::seconds(5);
/// Outages are deleted after so much time without an outage. No hold lasts longer than a day of such time.
const KEPT: TimeDelta = TimeDelta::days(30);

impl Ledger {
    /// Stores a worker's heartbeat; returns the length of the outage that it ended, if any.
    pub async fn beat(&self) -> Result<Option<TimeDelta>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let since: DateTime<Utc> = sqlx::query_scalar!("select beaten_at from heartbeat for update")
            .fetch_one(&mut *tx)
            .await?;
        // The clock, not the transaction's start: the transaction may have waited for the row.
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

    /// Every outage that may extend a hold of today.
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

    /// Deletes outages that extend no hold of today.
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
