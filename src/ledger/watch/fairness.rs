//! Who got the units of sales: what instances know of accounts that have just bought, and units by bucket.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::fairness::{AccountHash, AddressGroup, BucketUnits};
use crate::ledger::Ledger;
use std::time::Duration;
use uuid::Uuid;

/// Buyers that one call reads.
const BUYERS_MAX: i64 = 10_000;

/// What an instance knows of an account that has bought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buyer {
    pub sale: SaleId,
    pub account: AccountHash,
    /// Units that the account got at this instance.
    pub units: i64,
    /// Purchases that the account sent to this instance.
    pub attempts: i64,
    /// For how long this instance had known the account before its order; none if it had not.
    pub known_for_ms: Option<i64>,
    /// How long ago it bought.
    pub bought_ago_ms: i64,
}

/// An account that has just bought at another instance.
#[derive(Debug)]
pub struct RecentBuyer {
    pub sale: SaleId,
    pub account: AccountHash,
    pub bought_ago_ms: i64,
}

/// Units that went to a bucket of addresses.
#[derive(Debug)]
pub struct AddressUnits {
    pub sale: SaleId,
    pub group: AddressGroup,
    pub bucket: i32,
    pub units: i64,
}

impl Ledger {
    /// Adds units to buckets of addresses. No bucket may come twice. The buckets have one order, so that two processes
    /// do not wait for each other.
    pub async fn add_address_units(&self, units: &[AddressUnits]) -> Result<(), Fault> {
        let sales: Vec<Uuid> = units.iter().map(|it| it.sale.0).collect();
        let groups: Vec<String> = units.iter().map(|it| it.group.as_str().to_owned()).collect();
        let buckets: Vec<i32> = units.iter().map(|it| it.bucket).collect();
        let more: Vec<i64> = units.iter().map(|it| it.units).collect();
        sqlx::query!(
            "insert into sale_buyers as known (sale_id, measure, bucket, units) \
             select n.sale_id, n.measure, n.bucket, n.units \
             from unnest($1::uuid[], $2::text[], $3::int4[], $4::int8[]) as n (sale_id, measure, bucket, units) \
             join sales s on s.sale_id = n.sale_id order by n.sale_id, n.measure, n.bucket \
             on conflict (sale_id, measure, bucket) do update set units = known.units + excluded.units",
            &sales,
            &groups,
            &buckets,
            &more
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Notes what an instance knows of accounts that have bought. No account may come twice in one call. If an account
    /// has two orders within seconds, the time before the first one counts.
    pub async fn add_buyers(&self, instance: Uuid, buyers: &[Buyer]) -> Result<(), Fault> {
        let sales: Vec<Uuid> = buyers.iter().map(|it| it.sale.0).collect();
        let accounts: Vec<i64> = buyers.iter().map(|it| it.account.0).collect();
        let units: Vec<i64> = buyers.iter().map(|it| it.units).collect();
        let attempts: Vec<i64> = buyers.iter().map(|it| it.attempts).collect();
        // No age is negative.
        let ages: Vec<i64> = buyers.iter().map(|it| it.known_for_ms.unwrap_or(-1)).collect();
        let bought: Vec<i64> = buyers.iter().map(|it| it.bought_ago_ms).collect();
        sqlx::query!(
            "insert into recent_buyers as known (sale_id, account, instance, units, attempts, known_for_ms, bought_at) \
             select n.sale_id, n.account, $1, n.units, n.attempts, nullif(n.age_ms, -1), \
                 now() - n.ago_ms * interval '1 millisecond' \
             from unnest($2::uuid[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[]) \
                 as n (sale_id, account, units, attempts, age_ms, ago_ms) \
             join sales s on s.sale_id = n.sale_id \
             on conflict (sale_id, account, instance) do update set units = known.units + excluded.units, \
                 attempts = greatest(known.attempts, excluded.attempts)",
            instance,
            &sales,
            &accounts,
            &units,
            &attempts,
            &ages,
            &bought
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Accounts that bought at other instances, were noted within the last `since`, and of which this instance has noted
    /// nothing.
    pub async fn recent_buyers(&self, instance: Uuid, since: Duration) -> Result<Vec<RecentBuyer>, Fault> {
        let rows = sqlx::query!(
            "select sale_id, account, \
                 (extract(epoch from now() - min(bought_at)) * 1000)::int8 as \"bought_ago_ms!\" \
             from recent_buyers b \
             where units > 0 and instance <> $1 and noted_at > now() - $2 * interval '1 second' \
                 and not exists (select from recent_buyers own where own.sale_id = b.sale_id \
                     and own.account = b.account and own.instance = $1) \
             group by sale_id, account limit $3",
            instance,
            since.as_secs_f64(),
            BUYERS_MAX
        );
        let rows = rows.fetch_all(&self.jobs).await?.into_iter();
        let buyers = rows.map(|row| RecentBuyer {
            sale: SaleId(row.sale_id),
            account: AccountHash(row.account),
            bought_ago_ms: row.bought_ago_ms,
        });
        Ok(buyers.collect())
    }

    /// Counts the units of the buyers that were noted five seconds ago, and forgets these buyers. `attempts` and
    /// `known_for_ms` are the lower bounds of the buckets. One process at a time does this, so that none waits for another.
    pub async fn count_buyers(&self, attempts: &[i64], known_for_ms: &[i64]) -> Result<(), Fault> {
        // An instance that says what it knows after the others were counted has no units, so its row counts nothing.
        sqlx::query!(
            "with turn as materialized ( \
                 select pg_try_advisory_xact_lock(hashtextextended('counting of buyers', 0)) as is_mine \
             ), ripe as materialized ( \
                 select b.sale_id, b.account from recent_buyers b, turn where turn.is_mine \
                 group by b.sale_id, b.account having min(b.noted_at) < now() - interval '5 seconds' limit 10000 \
             ), gone as ( \
                 delete from recent_buyers b using ripe r where b.sale_id = r.sale_id and b.account = r.account \
                 returning b.sale_id, b.account, b.units, b.attempts, b.known_for_ms \
             ), buyers as ( \
                 select sale_id, sum(units) as units, sum(attempts)::int8 as attempts, \
                     max(known_for_ms) as known_for_ms \
                 from gone group by sale_id, account having sum(units) > 0 \
             ), counted as ( \
                 select sale_id, units, 'attempts' as measure, width_bucket(attempts, $1::int8[]) as bucket from buyers \
                 union all \
                 select sale_id, units, 'first_seen', coalesce(width_bucket(known_for_ms, $2::int8[]) + 1, 0) \
                 from buyers \
             ) \
             insert into sale_buyers as known (sale_id, measure, bucket, units) \
             select c.sale_id, c.measure, c.bucket, sum(c.units)::int8 \
             from counted c join sales s on s.sale_id = c.sale_id group by c.sale_id, c.measure, c.bucket \
             on conflict (sale_id, measure, bucket) do update set units = known.units + excluded.units",
            attempts,
            known_for_ms
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Who got the units of a sale.
    pub async fn buyer_counts(&self, sale: SaleId) -> Result<Vec<BucketUnits>, Fault> {
        let counts = sqlx::query_as!(
            BucketUnits,
            "select measure, bucket, units from sale_buyers where sale_id = $1",
            sale.0
        );
        counts.fetch_all(&self.reports).await.map_err(Fault::from)
    }
}
