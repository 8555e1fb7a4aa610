//! Dead letters: events that the drain could not apply. Also lists the messages that shards refuse.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::dead_letter::{DeadLetterId, Note, RefusedMessage};
use crate::domain::order::event::Position;
use crate::ledger::outbox::Message;
use crate::ledger::{Ledger, small, unsigned};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// A dead letter, as it is stored.
#[derive(Debug, Clone)]
pub struct PutAside {
    shard: i16,
    epoch: i64,
    seq: i64,
    /// The event's bytes.
    pub event: Vec<u8>,
    /// Why the drain could not apply it.
    pub reason: String,
    /// The order that was revoked for it.
    pub order_id: Option<Uuid>,
    /// When it became a dead letter.
    pub created_at: DateTime<Utc>,
    /// When an operator settled it.
    pub settled_at: Option<DateTime<Utc>>,
    /// What the operator did about it.
    pub note: Option<String>,
}

impl PutAside {
    pub fn id(&self) -> Result<DeadLetterId, Fault> {
        let (shard, epoch, seq) = (unsigned(i64::from(self.shard))?, self.epoch, self.seq);
        let position = Position { epoch, seq };
        Ok(DeadLetterId { shard, position })
    }
}

impl Ledger {
    /// The shards of a sale that have dead letters.
    pub async fn shards_with_dead_letters(&self, sale: SaleId) -> Result<Vec<u16>, Fault> {
        let shards = sqlx::query_scalar!("select distinct shard from dead_letters where sale_id = $1", sale.0);
        let shards = shards.fetch_all(&self.jobs).await?;
        shards.into_iter().map(|shard| unsigned(i64::from(shard))).collect()
    }

    /// Up to `max` dead letters of a sale, by shard and position, after the one given. `settled` selects the settled
    /// ones, or the others.
    pub async fn dead_letters(
        &self,
        sale: SaleId,
        settled: Option<bool>,
        after: Option<DeadLetterId>,
        max: i64,
    ) -> Result<Vec<PutAside>, Fault> {
        let letters = sqlx::query_as!(
            PutAside,
            "select shard, epoch, seq, event, reason, order_id, created_at, settled_at, note from dead_letters \
             where sale_id = $1 and ($2::bool is null or (settled_at is not null) = $2) \
                 and ($3::int2 is null or (shard, epoch, seq) > ($3, $4::int8, $5::int8)) \
             order by shard, epoch, seq limit $6",
            sale.0,
            settled,
            after.map(|it| small(it.shard)),
            after.map(|it| it.position.epoch),
            after.map(|it| it.position.seq),
            max
        );
        letters.fetch_all(&self.api).await.map_err(Fault::from)
    }

    /// Settles a dead letter, once; returns it as it is then, if it exists. Fails with `Unavailable` when Postgres does
    /// not answer; a repeated call finds the outcome.
    pub async fn settle_dead_letter(
        &self,
        sale: SaleId,
        id: DeadLetterId,
        note: &Note,
    ) -> Result<Option<PutAside>, Fault> {
        sqlx::query!(
            "update dead_letters set settled_at = now(), note = $5 \
             where sale_id = $1 and shard = $2 and epoch = $3 and seq = $4 and settled_at is null",
            sale.0,
            small(id.shard),
            id.position.epoch,
            id.position.seq,
            note.as_str()
        )
        .execute(&self.api)
        .await?;
        // The note of the first call stays.
        let letter = sqlx::query_as!(
            PutAside,
            "select shard, epoch, seq, event, reason, order_id, created_at, settled_at, note from dead_letters \
             where sale_id = $1 and shard = $2 and epoch = $3 and seq = $4",
            sale.0,
            small(id.shard),
            id.position.epoch,
            id.position.seq
        );
        letter.fetch_optional(&self.api).await.map_err(Fault::from)
    }

    /// Up to `max` messages that shards of a sale refuse, oldest first, after the one with this number.
    pub async fn refused_messages(
        &self,
        sale: SaleId,
        after: Option<i64>,
        max: i64,
    ) -> Result<Vec<RefusedMessage>, Fault> {
        let rows = sqlx::query!(
            "select outbox_id, shard, message, failure as \"failure!\", created_at from outbox \
             where sale_id = $1 and failure is not null and ($2::int8 is null or outbox_id > $2) \
             order by outbox_id limit $3",
            sale.0,
            after,
            max
        );
        let rows = rows.fetch_all(&self.api).await?;
        let messages = rows.into_iter().map(|row| {
            let mut refused = RefusedMessage {
                id: row.outbox_id,
                shard: unsigned(i64::from(row.shard))?,
                kind: None,
                order_id: None,
                order_state: None,
                user: None,
                sku: None,
                units: None,
                failure: row.failure,
                since: row.created_at,
            };
            fill_in(Message::read(row.message).ok(), &mut refused);
            Ok(refused)
        });
        messages.collect()
    }
}

/// Fills in what a refused message says, as far as it can be read.
fn fill_in(message: Option<Message>, it: &mut RefusedMessage) {
    match message {
        None => {}
        Some(Message::State) => it.kind = Some("state"),
        Some(Message::Resolve {
            order,
            user,
            sku,
            quantity,
            state,
            at: _,
        }) => {
            it.kind = Some("resolve");
            (it.order_id, it.order_state) = (Some(order), Some(state));
            (it.user, it.sku, it.units) = (Some(user), Some(sku), Some(quantity));
        }
        Some(Message::Ban { user }) => (it.kind, it.user) = (Some("ban"), Some(user)),
        Some(Message::Restock { id: _, sku, units }) => {
            (it.kind, it.sku, it.units) = (Some("restock"), Some(sku), Some(units));
        }
        Some(Message::Withdrawn { transfer: _ }) => it.kind = Some("withdrawn"),
        Some(Message::GiveBack { sku, units, .. }) => {
            (it.kind, it.sku, it.units) = (Some("give_back"), Some(sku), Some(units));
        }
    }
}
