//! The outbox: the ledger's decisions that must be delivered to the stock. A message is written in the transaction of
//! its decision, and deleted once its shard has applied it. Applying a message twice changes nothing, so a crash only
//! delays it.

mod message;

use super::cursor::CursorQuery;
use super::{Ledger, Tx, begin, begin_in_order, commit, small, step, unsigned};
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use chrono::TimeDelta;
pub use message::Message;
use sqlx::PgConnection;
use std::collections::{BTreeMap, HashSet};
use tokio::time::Instant;
use tracing::Instrument as _;
use uuid::Uuid;

/// How long before the end of one batch the next one begins. A message is dated when its transaction begins, and is there
/// when that ends.
const OVERLAP: TimeDelta = TimeDelta::seconds(1);

/// A message and where it goes.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Its number in the outbox.
    pub id: i64,
    pub sale: SaleId,
    pub shard: u16,
    pub message: Message,
    /// How often its delivery was attempted before.
    pub attempts: i32,
}

/// The outcome of a delivery to a shard.
#[derive(Debug)]
pub enum Delivery {
    Applied {
        /// The server that applied it: if the shard is on another server by now, that one needs the message too.
        /// `None`: any server will do.
        by: Option<Server>,
    },
    Later,
    /// The shard refuses it: an operator has to decide.
    Failed(String),
}

/// Messages that no other process can take until they are settled.
pub struct OutgoingBatch {
    tx: Tx,
    /// First the messages of other kinds, then the decisions about orders, each oldest first.
    pub messages: Vec<Outgoing>,
    /// How many due messages this version cannot read. They are postponed.
    pub unreadable: u64,
    query: CursorQuery,
}

/// Writes messages; returns their numbers, in the same order.
pub(super) async fn send_each(
    tx: &mut PgConnection,
    sale: SaleId,
    messages: &[(u16, Message)],
) -> Result<Vec<i64>, sqlx::Error> {
    let shards: Vec<i16> = messages.iter().map(|(shard, _)| small(*shard)).collect();
    let bodies: Result<Vec<_>, _> = messages
        .iter()
        .map(|(_, message)| serde_json::to_value(message))
        .collect();
    let bodies = bodies.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let sent = sqlx::query_scalar!(
        "insert into outbox (sale_id, shard, message) select $1, * from unnest($2::int2[], $3::jsonb[]) \
         returning outbox_id",
        sale.0,
        &shards,
        &bodies
    );
    let mut numbers = sent.fetch_all(tx).instrument(step("write messages")).await?;
    // Postgres numbers the rows in the order of the arrays.
    numbers.sort_unstable();
    Ok(numbers)
}

/// [`send_each`] for callers that leave the delivery to the job `release`.
pub(super) async fn send_all(
    tx: &mut PgConnection,
    sale: SaleId,
    messages: &[(u16, Message)],
) -> Result<(), sqlx::Error> {
    send_each(tx, sale, messages).await.map(drop)
}

/// A sale's undelivered messages with their shards, oldest first.
pub(super) async fn waiting_of(tx: &mut Tx, sale: SaleId) -> Result<Vec<(u16, Message)>, Fault> {
    let mut waiting = Vec::new();
    let rows = sqlx::query!(
        "select shard, message from outbox where sale_id = $1 order by outbox_id",
        sale.0
    );
    for row in rows.fetch_all(&mut **tx).await? {
        if let Ok(message) = Message::read(row.message) {
            waiting.push((unsigned(i64::from(row.shard))?, message));
        }
    }
    Ok(waiting)
}

/// Notes why a message can never be delivered: an operator has to decide.
async fn refuse(tx: &mut Tx, message: i64, reason: &str) -> Result<(), Fault> {
    sqlx::query!(
        "update outbox set failure = $2, attempts = attempts + 1 where outbox_id = $1",
        message,
        reason
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Postpones a message that this version cannot read: a worker of a newer version may take it. After an hour it is listed with
/// those that shards refuse, until [`Ledger::retry_unreadable`] finds it readable.
async fn postpone_unreadable(tx: &mut Tx, message: i64, reason: &str) -> Result<(), Fault> {
    let row = sqlx::query!(
        "update outbox set attempts = attempts + 1, \
             not_before = now() + interval '1 second' * power(2, least(attempts, 6)), \
             failure = case when created_at < now() - interval '1 hour' then $2 end \
         where outbox_id = $1 returning sale_id, shard, attempts, failure is not null as \"refused!\"",
        message,
        reason
    )
    .fetch_one(&mut **tx)
    .await?;
    let (sale, shard) = (SaleId(row.sale_id), row.shard);
    if row.refused {
        tracing::error!(
            message, %sale, shard, %reason,
            "no instance could read a decision of the ledger for an hour (its sale's `refused-messages`)"
        );
    } else if row.attempts == 1 {
        tracing::warn!(message, %sale, shard, %reason, "a decision of the ledger waits for a newer version to deliver it");
    }
    Ok(())
}

impl Ledger {
    /// Has messages delivered that no instance could read for an hour and that this version reads; returns how many.
    pub async fn retry_unreadable(&self) -> Result<u64, Fault> {
        let listed = sqlx::query!(
            "select outbox_id, message from outbox where failure like 'no message: %' order by random() limit 1000"
        );
        let listed = listed.fetch_all(&self.jobs).await?;
        let readable = listed
            .into_iter()
            .filter(|row| Message::read(row.message.clone()).is_ok());
        let readable: Vec<i64> = readable.map(|row| row.outbox_id).collect();
        let due = sqlx::query!(
            "update outbox set failure = null, not_before = now() where outbox_id = any($1)",
            &readable
        );
        Ok(due.execute(&self.jobs).await?.rows_affected())
    }

    /// Takes up to `max` messages that are due, of one sale or of all, but none to the shards `except`. Messages of
    /// operators and guards come first, in at most half of the batch, so that undeliverable ones do not block decisions
    /// about orders. No message depends on another being delivered first. A shard that is being reconciled gets only
    /// what is asked for its sale: it is compared with the ledger while it stands still.
    pub async fn take_outgoing(
        &self,
        max: i64,
        sale: Option<SaleId>,
        except: &[(SaleId, u16)],
    ) -> Result<OutgoingBatch, Fault> {
        let mut unreadable = 0;
        loop {
            let mut batch = self.take_any(max, sale, except).await?;
            unreadable += batch.unreadable;
            // More messages may be due behind a batch without a readable one.
            if batch.messages.is_empty() && batch.unreadable > 0 {
                commit(batch.tx).await?;
                batch.query.advance();
            } else {
                if batch.messages.is_empty() {
                    batch.query.advance();
                }
                batch.unreadable = unreadable;
                return Ok(batch);
            }
        }
    }

    async fn take_any(&self, max: i64, sale: Option<SaleId>, except: &[(SaleId, u16)]) -> Result<OutgoingBatch, Fault> {
        let sales: Vec<Uuid> = except.iter().map(|(sale, _)| sale.0).collect();
        let shards: Vec<i16> = except.iter().map(|(_, shard)| small(*shard)).collect();
        let mut query = self.due_messages.query(Instant::now());
        let from = query.from().filter(|_| sale.is_none());
        // The messages of one sale are not searched in the order of all messages.
        let mut tx = match sale {
            None => begin_in_order(&self.jobs).await?,
            Some(_) => begin(&self.jobs).await?,
        };
        let rows = sqlx::query!(
            "with claimed as materialized (select sale_id, shard from shards where run_id like '?%'), \
             ahead as materialized \
                 (select outbox_id, sale_id, shard, message, attempts, not_before from outbox \
                  where failure is null and message ->> 'kind' <> 'resolve' and not_before <= now() \
                      and ($2::uuid is null or sale_id = $2) \
                      and (sale_id, shard) not in (select * from unnest($3::uuid[], $4::int2[])) \
                      and ($2 is not null or (sale_id, shard) not in (select * from claimed)) \
                  order by not_before, outbox_id limit ($1::int8 + 1) / 2 for update skip locked), \
             others as materialized \
                 (select outbox_id, sale_id, shard, message, attempts, not_before from outbox \
                  where failure is null and message ->> 'kind' = 'resolve' and not_before <= now() \
                      and not_before >= coalesce($5::timestamptz, '-infinity') \
                      and ($2::uuid is null or sale_id = $2) \
                      and (sale_id, shard) not in (select * from unnest($3::uuid[], $4::int2[])) \
                      and ($2 is not null or (sale_id, shard) not in (select * from claimed)) \
                  order by not_before, outbox_id limit $1 - (select count(*) from ahead) for update skip locked) \
             select outbox_id as \"outbox_id?\", sale_id as \"sale_id?\", shard as \"shard?\", \
                 message as \"message?\", attempts as \"attempts?\", until \
             from (select case when $2 is not null or cardinality($3) > 0 or exists (select from claimed) then null \
                     when (select count(*) from ahead) + (select count(*) from others) < $1 then now() \
                     else (select max(not_before) from others) end as until) as batch \
                 left join (select * from ahead union all select * from others) as due on true",
            max,
            sale.map(|sale| sale.0),
            &sales,
            &shards,
            from
        )
        .fetch_all(&mut *tx)
        .await?;
        // Messages that are left out stay due.
        if let Some(until) = rows.first().and_then(|row| row.until) {
            query.reach(until - OVERLAP);
        }
        let mut messages = Vec::with_capacity(rows.len());
        let mut unreadable = 0;
        for row in rows {
            // Without a message there is one row of nulls.
            let (Some(id), Some(sale), Some(shard)) = (row.outbox_id, row.sale_id, row.shard) else {
                continue;
            };
            match Message::read(row.message.unwrap_or_default()) {
                Ok(message) => messages.push(Outgoing {
                    id,
                    sale: SaleId(sale),
                    shard: unsigned(i64::from(shard))?,
                    message,
                    attempts: row.attempts.unwrap_or_default(),
                }),
                Err(reason) => {
                    postpone_unreadable(&mut tx, id, &reason).await?;
                    unreadable += 1;
                }
            }
        }
        Ok(OutgoingBatch {
            tx,
            messages,
            unreadable,
            query,
        })
    }

    /// Whether some shard's part of a restock is still undelivered. A part that its shard has refused does not count.
    pub async fn is_restock_on_its_way(&self, sale: SaleId, restock: Uuid) -> Result<bool, Fault> {
        sqlx::query_scalar!(
            "select exists (select from outbox where failure is null and message ->> 'kind' = 'restock' \
                 and sale_id = $1 and message ->> 'id' = $2) as \"it!\"",
            sale.0,
            restock.to_string()
        )
        .fetch_one(&self.api)
        .await
        .map_err(Fault::from)
    }

    /// Deletes refused messages of sales that Redis still has and that ended or were closed 25 hours ago. Returns how
    /// many messages of which sale.
    pub async fn forget_refused(&self) -> Result<Vec<(SaleId, i64)>, Fault> {
        let rows = sqlx::query!(
            "with gone as (delete from outbox o using sales s where o.failure is not null and s.sale_id = o.sale_id \
                 and s.retired_at is null and least(s.ends_at, s.closed_at) < now() - interval '25 hours' returning o.sale_id) \
             select sale_id as \"sale!\", count(*) as \"messages!\" from gone group by sale_id"
        )
        .fetch_all(&self.jobs)
        .await?;
        Ok(rows.into_iter().map(|row| (SaleId(row.sale), row.messages)).collect())
    }

    /// Marks messages of a sale delivered that the server `by` has just applied: deletes them. A message stays if a run
    /// of the job `release` has taken it, or if its shard is on another server by now, which needs it too. Fails with
    /// `Unavailable` when Postgres does not answer; the job `release` deletes them then.
    pub async fn mark_delivered(&self, sale: SaleId, ids: &[i64], by: &Server) -> Result<(), Fault> {
        let mut tx = begin(&self.api).await?;
        if settled_servers(&mut tx, &[sale]).await?.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "delete from outbox where outbox_id in \
             (select o.outbox_id from outbox o join shards s on s.sale_id = o.sale_id and s.shard = o.shard \
              where o.outbox_id = any($1) and ltrim(s.run_id, '?') = $2 for update of o skip locked)",
            ids,
            by.as_str()
        )
        .execute(&mut *tx)
        .instrument(step("mark messages delivered"))
        .await?;
        commit(tx).await
    }
}

/// Keeps other transactions from relying on which servers a sale's shards are on, and waits for those that do.
pub(super) async fn lock_servers(tx: &mut PgConnection, sale: SaleId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('servers of ' || $1::text, 0)) as locked",
        sale.0.to_string()
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The sales among these whose shards are certain to stay on their servers, by the ledger, until this transaction ends.
/// That holds from its next statement on.
pub(super) async fn settled_servers(tx: &mut PgConnection, sales: &[SaleId]) -> Result<HashSet<SaleId>, sqlx::Error> {
    let sales: Vec<Uuid> = sales.iter().map(|sale| sale.0).collect();
    let settled = sqlx::query!(
        "select sale as \"sale!\", \
             pg_try_advisory_xact_lock_shared(hashtextextended('servers of ' || sale::text, 0)) as \"settled!\" \
         from unnest($1::uuid[]) as sale",
        &sales
    )
    .fetch_all(tx)
    .instrument(step("lock servers"))
    .await?;
    let settled = settled.into_iter().filter(|row| row.settled);
    Ok(settled.map(|row| SaleId(row.sale)).collect())
}

impl OutgoingBatch {
    /// Stores the outcome of each delivery. Returns the sales with deliveries that do not count: to another server than
    /// the ledger knows, or while the ledger changes the server. Fails with `Unavailable` when Postgres does not
    /// answer; all messages are delivered again.
    pub async fn settle(mut self, deliveries: Vec<(i64, Delivery)>) -> Result<HashSet<SaleId>, Fault> {
        let sales: HashSet<SaleId> = self.messages.iter().map(|message| message.sale).collect();
        let sales: Vec<SaleId> = sales.into_iter().collect();
        let settled = settled_servers(&mut self.tx, &sales).await?;
        let unsettled = self.messages.iter().filter(|message| !settled.contains(&message.sale));
        let unsettled: HashSet<i64> = unsettled.map(|message| message.id).collect();
        // By the server that applied them. The statement finds them by their numbers: a join is planned without knowing
        // how many come.
        let mut applied: BTreeMap<Server, Vec<i64>> = BTreeMap::new();
        let (mut later, mut uncounted) = (Vec::new(), Vec::new());
        for (id, delivery) in deliveries {
            match delivery {
                Delivery::Applied { by: Some(_) } if unsettled.contains(&id) => uncounted.push(id),
                Delivery::Applied { by } => applied.entry(by.unwrap_or_default()).or_default().push(id),
                Delivery::Later => later.push(id),
                Delivery::Failed(reason) => refuse(&mut self.tx, id, &reason).await?,
            }
        }
        for (server, ids) in applied {
            let marked = sqlx::query_scalar!(
                "delete from outbox o where o.outbox_id = any($1) and ($2 = '' or exists \
                     (select from shards s where s.sale_id = o.sale_id and s.shard = o.shard \
                      and ltrim(s.run_id, '?') = $2)) returning o.outbox_id",
                &ids,
                server.as_str()
            )
            .fetch_all(&mut *self.tx)
            .instrument(step("mark messages delivered"))
            .await?;
            let marked: HashSet<i64> = marked.into_iter().collect();
            uncounted.extend(ids.into_iter().filter(|id| !marked.contains(id)));
        }
        if !uncounted.is_empty() {
            // No shard refused these, so they do not count as attempts.
            sqlx::query!(
                "update outbox set not_before = now() + interval '1 second' where outbox_id = any($1)",
                &uncounted
            )
            .execute(&mut *self.tx)
            .instrument(step("postpone undelivered messages"))
            .await?;
        }
        if !later.is_empty() {
            // A second, doubled with every attempt up to a minute. At most two for states and units that operators move:
            // other shards may already sell by a state, and an instance without permits may spend the attempts of a
            // restock.
            sqlx::query!(
                "update outbox set attempts = attempts + 1, not_before = now() + interval '1 second' * \
                     least(case when message ->> 'kind' in ('resolve', 'ban') then 60 else 2 end, \
                         power(2, least(attempts, 6))) \
                 where outbox_id = any($1)",
                &later
            )
            .execute(&mut *self.tx)
            .instrument(step("postpone the others"))
            .await?;
        }
        commit(self.tx).await?;
        self.query.advance();
        let uncounted = self.messages.iter().filter(|message| uncounted.contains(&message.id));
        Ok(uncounted.map(|message| message.sale).collect())
    }
}
