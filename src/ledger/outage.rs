//! Outages: times in which no worker came to the ledger. Nobody could pay then, so holds last that much longer.

use super::{Ledger, be_brief, begin, commit, fault, small, unsigned};
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
             where s.extending_since is not null or s.extended_until < (select max(until) from outages)"
        )
        .fetch_all(&self.jobs)
        .await
        .map_err(|error| fault(&error))?;
        rows.into_iter()
            .map(|row| Ok((SaleId(row.sale_id), unsigned(i64::from(row.shard))?)))
            .collect()
    }

    /// Extends a shard's holds by what each had of the outages since the last time, up to `max` orders in the sequence of
    /// their events; returns whether all of them have been by every outage. Orders that are drained later are stored with their
    /// extension.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: then these are not extended, and the next call begins with them.
    pub async fn extend_holds(&self, sale: SaleId, shard: u16, max: i64) -> Result<bool, Fault> {
        let mut tx = begin(&self.jobs).await?;
        be_brief(&mut tx).await?;
        // The drain holds the same row, so no order comes in between the statements. Of what has been drained when it
        // begins, all orders have an event up to the last one; whatever comes later is stored by `extended_until`.
        let at = sqlx::query!(
            "select extended_until, extending_since, extending_epoch, extending_seq, extending_to_epoch, \
                 extending_to_seq, drained_epoch, drained_seq, (select max(until) from outages) as last \
             from shards where sale_id = $1 and shard = $2 for no key update",
            sale.0,
            small(shard)
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        let (since, until, from, to) = match (at.extending_since, at.last) {
            (Some(since), _) => (
                since,
                at.extended_until,
                (at.extending_epoch, at.extending_seq),
                (at.extending_to_epoch, at.extending_to_seq),
            ),
            (None, Some(last)) if at.extended_until < last => {
                (at.extended_until, last, (0, 0), (at.drained_epoch, at.drained_seq))
            }
            (None, _) => return Ok(true),
        };
        let page = sqlx::query!(
            "with page as materialized \
                 (select order_id, epoch, seq from orders \
                  where sale_id = $1 and shard = $2 and state = 'reserved' \
                      and (epoch, seq) > ($3, $4) and (epoch, seq) <= ($5, $6) \
                  order by epoch, seq limit $7), \
             extended as \
                 (update orders set expires_at = expires_at + \
                      (select sum(o.until - greatest(o.since, orders.created_at)) from outages o \
                       where o.until > $8 and o.until <= $9 and o.until > orders.created_at) \
                  where order_id = any(array(select order_id from page)) and state = 'reserved' \
                      and exists (select from outages o \
                          where o.until > $8 and o.until <= $9 and o.until > orders.created_at)) \
             select epoch, seq, (select count(*) from page) as \"orders!\" from page \
             order by epoch desc, seq desc limit 1",
            sale.0,
            small(shard),
            from.0,
            from.1,
            to.0,
            to.1,
            max,
            since,
            until
        )
        .fetch_optional(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        let next = page.filter(|page| page.orders == max);
        let is_over = next.is_none();
        let next = next.map_or((0, 0), |page| (page.epoch, page.seq));
        sqlx::query!(
            "update shards set extended_until = $3, extending_since = $4, extending_epoch = $5, extending_seq = $6, \
                 extending_to_epoch = $7, extending_to_seq = $8 where sale_id = $1 and shard = $2",
            sale.0,
            small(shard),
            until,
            (!is_over).then_some(since),
            next.0,
            next.1,
            to.0,
            to.1
        )
        .execute(&mut *tx)
        .await
        .map_err(|error| fault(&error))?;
        commit(tx).await?;
        Ok(is_over && at.last.is_none_or(|last| last <= until))
    }

    /// Forgets outages that ended a month ago, unless the holds of a shard have still to be extended by them: nothing that was
    /// held then is held today.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn forget_outages(&self) -> Result<(), Fault> {
        sqlx::query!(
            "delete from outages o where o.until < now() - interval '30 days' and not exists \
                 (select from shards s join sales on sales.sale_id = s.sale_id and sales.retired_at is null \
                  where s.extending_since is not null or s.extended_until < o.until)"
        )
        .execute(&self.jobs)
        .await
        .map_err(|error| fault(&error))?;
        Ok(())
    }
}
