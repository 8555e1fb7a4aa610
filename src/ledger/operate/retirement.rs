//! Retiring: what a sale that is over has in Redis is removed page by page. After a crash, the next run goes on.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::ledger::{Ledger, Tx, begin, commit, small, unsigned, word};
use chrono::{DateTime, Utc};

impl Ledger {
    /// Notes the sales that ended or were closed a day ago and that Redis, whose clock says `now`, no longer sells.
    pub async fn note_over(&self, now: DateTime<Utc>) -> Result<(), Fault> {
        sqlx::query!(
            "update sales set over_at = now() where over_at is null and retired_at is null \
             and state not in ('draft', 'loading') and least(ends_at, closed_at) < now() - interval '24 hours' \
             and (state = 'closed' or ends_at <= $1)",
            now
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Up to `max` sales after this number that ended or were closed 25 hours ago and still have keys in Redis, each with
    /// its number. They have no pending restocks. For a day, a repeated key gets its first answer. The rest of the time is
    /// for instances that learn late that a sale is `leaving`, also where no worker noted for hours that it is over.
    pub async fn retirable(&self, after: i32, max: i64) -> Result<Vec<(i32, SaleId)>, Fault> {
        let found = sqlx::query!(
            "select number, sale_id from sales s where number > $1 and retired_at is null \
             and over_at < now() - interval '30 minutes' and least(ends_at, closed_at) < now() - interval '25 hours' \
             and not exists (select from restocks r where r.sale_id = s.sale_id and r.state = 'pending') \
             order by number limit $2",
            after,
            max
        );
        let found = found.fetch_all(&self.jobs).await?.into_iter();
        Ok(found.map(|row| (row.number, SaleId(row.sale_id))).collect())
    }

    /// The shards of a sale that still have keys in Redis. Each comes with whether the ledger has a message for it, or a
    /// reserved order.
    pub async fn unretired(&self, id: SaleId) -> Result<Vec<(u16, bool)>, Fault> {
        let rows = sqlx::query!(
            "select shard, exists (select from outbox o where o.sale_id = s.sale_id and o.shard = s.shard) \
                 or exists (select from orders o where o.sale_id = s.sale_id and o.shard = s.shard \
                     and o.state = 'reserved') as \"is_open!\" \
             from shards s where sale_id = $1 and retired_at is null order by shard",
            id.0
        );
        let rows = rows.fetch_all(&self.jobs).await?.into_iter();
        rows.map(|row| Ok((unsigned(i64::from(row.shard))?, row.is_open)))
            .collect()
    }

    /// Postpones the retirement of a sale by half an hour. For the first five minutes, the sale is not `leaving`, so its
    /// shards can be reconciled. Those that have left Redis already are rebuilt.
    pub async fn put_off_retirement(&self, id: SaleId) -> Result<(), Fault> {
        let mut tx = begin(&self.jobs).await?;
        sqlx::query!(
            "update sales set over_at = now(), retired_to = '', retiring = '{}' where sale_id = $1 and retired_at is null",
            id.0
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("update shards set retired_at = null where sale_id = $1", id.0)
            .execute(&mut *tx)
            .await?;
        commit(tx).await
    }

    /// The next shoppers whose keys have to be removed, of the shards that are being removed now. These are the shards of
    /// the page before, as far as they are among `shards`. If none is, all of `shards` are removed from their first
    /// shoppers on. `None` while another worker removes shoppers of this sale, when none of these shards has keys, and
    /// after [`Ledger::put_off_retirement`].
    pub async fn next_to_retire(&self, id: SaleId, shards: &[u16], max: i64) -> Result<Option<Retiring>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let begun = sqlx::query!(
            "select retired_to, retiring from sales where sale_id = $1 and retired_at is null \
             and over_at < now() - interval '30 minutes' for no key update skip locked",
            id.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(begun) = begun else {
            return Ok(None);
        };
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        // Another worker may have removed some since the caller chose them.
        let left = sqlx::query_scalar!(
            "select shard from shards where sale_id = $1 and shard = any($2) and retired_at is null order by shard",
            id.0,
            &shards
        );
        let left = left.fetch_all(&mut *tx).await?;
        let resumed: Vec<i16> = left
            .iter()
            .copied()
            .filter(|shard| begun.retiring.contains(shard))
            .collect();
        let (shards, position) = if resumed.is_empty() {
            (left, String::new())
        } else {
            (resumed, begun.retired_to)
        };
        if shards.is_empty() {
            return Ok(None);
        }
        let rows = sqlx::query!(
            "select distinct user_id, shard from orders where sale_id = $1 and shard = any($2) and user_id > $3 \
             order by user_id limit $4",
            id.0,
            &shards,
            position,
            max
        )
        .fetch_all(&mut *tx)
        .await?;
        let shoppers = rows
            .into_iter()
            .map(|row| Ok((unsigned(i64::from(row.shard))?, word(&row.user_id)?)));
        Ok(Some(Retiring {
            shoppers: shoppers.collect::<Result<_, Fault>>()?,
            sale: id,
            shards,
            tx,
        }))
    }
}

/// Shoppers whose keys one worker removes.
pub struct Retiring {
    tx: Tx,
    sale: SaleId,
    shards: Vec<i16>,
    /// Each with the home shard, in their order.
    pub shoppers: Vec<(u16, UserId)>,
}

impl Retiring {
    /// The shards that are being removed. Fails with `Bug` when the ledger has an impossible shard.
    pub fn shards(&self) -> Result<Vec<u16>, Fault> {
        self.shards.iter().map(|shard| unsigned(i64::from(*shard))).collect()
    }

    /// Notes that the shoppers' keys have been removed. Fails with `Unavailable` when Postgres does not answer; the
    /// keys are removed once more.
    pub async fn removed(mut self) -> Result<(), Fault> {
        if let Some((_, last)) = self.shoppers.last() {
            sqlx::query!(
                "update sales set retired_to = $2, retiring = $3 where sale_id = $1",
                self.sale.0,
                last.as_str(),
                &self.shards
            )
            .execute(&mut *self.tx)
            .await?;
        }
        commit(self.tx).await
    }

    /// Notes that all keys of the shards have been removed. Returns whether the sale has no others. Fails with
    /// `Unavailable` when Postgres does not answer; the keys are removed once more.
    pub async fn retired(mut self) -> Result<bool, Fault> {
        sqlx::query!(
            "update shards set retired_at = now() where sale_id = $1 and shard = any($2)",
            self.sale.0,
            &self.shards
        )
        .execute(&mut *self.tx)
        .await?;
        let is_last = sqlx::query_scalar!(
            "update sales set retired_to = '', retiring = '{}', retired_at = case when not exists \
                 (select from shards where sale_id = $1 and retired_at is null) then now() end \
             where sale_id = $1 returning retired_at is not null as \"is_last!\"",
            self.sale.0
        )
        .fetch_one(&mut *self.tx)
        .await?;
        commit(self.tx).await?;
        Ok(is_last)
    }
}
