//! Reports between instances for live pages: which sales are watched, and how their purchases are answered. They go
//! through Postgres because it has one clock, and because selling does not depend on it. A lost report is replaced by
//! the next one.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::pulse::{Counts, InstanceReport};
use crate::ledger::Ledger;
use serde_json::Value;
use std::time::Duration;
use uuid::Uuid;

/// Reports that are older than this are not read.
const LASTS: Duration = Duration::from_secs(10);
/// For how long a report is kept at least.
const KEPT: Duration = Duration::from_secs(60);

impl Ledger {
    /// Marks a sale as watched for `lasts` from now on. Returns what up to `max` other instances reported about it in
    /// the last ten seconds.
    pub async fn watch_sale(
        &self,
        sale: SaleId,
        lasts: Duration,
        instance: Uuid,
        max: i64,
    ) -> Result<Vec<InstanceReport>, Fault> {
        let rows = sqlx::query!(
            "with watched as ( \
                 insert into watched_sales (sale_id, watched_until) values ($1, now() + $2 * interval '1 second') \
                 on conflict (sale_id) do update set watched_until = excluded.watched_until) \
             select instance_id, instance, counted_seconds, counts, \
                 extract(epoch from now() - told_at)::float8 as \"age_seconds!\" \
             from told_counts \
             where sale_id = $1 and instance_id <> $3 and told_at > now() - $4 * interval '1 second' \
             order by instance_id limit $5",
            sale.0,
            lasts.as_secs_f64(),
            instance,
            LASTS.as_secs_f64(),
            max
        )
        .fetch_all(&self.reports)
        .await?;
        let reports = rows.into_iter().map(|row| {
            let counts = serde_json::from_value(row.counts);
            Ok(InstanceReport {
                id: row.instance_id,
                instance: row.instance,
                age_seconds: row.age_seconds.max(0.0),
                counted_seconds: row.counted_seconds,
                counts: counts.map_err(|error| Fault::Bug(format!("counts of an instance: {error}")))?,
            })
        });
        reports.collect()
    }

    /// Up to `max` sales that are watched on any instance.
    pub async fn watched_sales(&self, max: i64) -> Result<Vec<SaleId>, Fault> {
        let sales = sqlx::query_scalar!(
            "select sale_id from watched_sales where watched_until > now() order by sale_id limit $1",
            max
        )
        .fetch_all(&self.jobs)
        .await?;
        Ok(sales.into_iter().map(SaleId).collect())
    }

    /// Reports what an instance has counted for each of these sales, and for how long. Deletes old reports of other
    /// instances.
    pub async fn report_counts(
        &self,
        instance: Uuid,
        name: &str,
        counted: &[(SaleId, Duration, Counts)],
    ) -> Result<(), Fault> {
        let sales: Vec<Uuid> = counted.iter().map(|(sale, ..)| sale.0).collect();
        let seconds: Vec<f64> = counted.iter().map(|(_, lasted, _)| lasted.as_secs_f64()).collect();
        let counts: Result<Vec<Value>, _> = counted
            .iter()
            .map(|(.., counts)| serde_json::to_value(counts))
            .collect();
        let counts = counts.map_err(|error| Fault::Bug(format!("counts: {error}")))?;
        sqlx::query!(
            "insert into told_counts (sale_id, instance_id, instance, counted_seconds, counts) \
             select n.sale_id, $1, $2, n.counted_seconds, n.counts \
             from unnest($3::uuid[], $4::float8[], $5::jsonb[]) as n (sale_id, counted_seconds, counts) \
             on conflict (sale_id, instance_id) do update set instance = excluded.instance, told_at = now(), \
                 counted_seconds = excluded.counted_seconds, counts = excluded.counts",
            instance,
            name,
            &sales,
            &seconds,
            &counts
        )
        .execute(&self.jobs)
        .await?;
        // No instance waits for a row that another one has locked.
        sqlx::query!(
            "with watched as ( \
                 delete from watched_sales where sale_id in (select sale_id from watched_sales \
                     where watched_until < now() - $2 * interval '1 second' for update skip locked)) \
             delete from told_counts where (sale_id, instance_id) in (select sale_id, instance_id from told_counts \
                 where told_at < now() - $2 * interval '1 second' and instance_id <> $1 for update skip locked)",
            instance,
            KEPT.as_secs_f64()
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }
}
