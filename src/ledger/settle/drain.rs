//! The drain: applies each event exactly once. A shard's position moves in the transaction that stores its rows, and an
//! order's id, its key and its event are each unique for ever. A crash leaves the position and the rows as they were.

mod insert;
mod recover;
mod units;

use self::insert::{insert_all, insert_orders};
pub use self::recover::{Recovered, RowOrder};
use self::units::{NewOrders, UnitSource, hold_units};
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::event::{Event, Position, Reserved};
use crate::domain::order::{Accepted, Order, OrderState};
use crate::domain::sale::{Durability, Item, Sale};
use crate::domain::time::{Millis, from_millis};
use crate::ledger::outbox::{Message, send_all};
use crate::ledger::recover::standing::NotedServer;
use crate::ledger::{Ledger, Tx, begin, commit, is_about_data, small, step};
use chrono::{DateTime, Utc};
use sqlx::Executor as _;
use std::collections::HashMap;
use tracing::Instrument as _;
use uuid::Uuid;

/// How many attempts one transaction makes to store parts of a batch with bad rows. The next transaction takes the rows
/// that are not reached.
const TRIES_MAX: usize = 64;

/// A claimed shard: no other process drains it until this is dropped or applied. The lock on its row is fence, lock and
/// queue in one.
pub struct DrainClaim {
    tx: Tx,
    pub sale: SaleId,
    shard: u16,
    /// The last event that was drained.
    pub position: Position,
    /// The shard's epoch in the ledger.
    pub epoch: i64,
    pub noted: NotedServer,
}

/// The outcome of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events that were processed, from the first on: all, unless too many of them could not be stored.
    pub events: usize,
    /// Orders that are new in the ledger.
    pub inserted: usize,
    /// Of these, the orders that the ledger revoked.
    pub revoked: usize,
    /// Events that became dead letters.
    pub dead: usize,
    /// New orders that were not revoked, if the sale's shoppers wait for the ledger.
    pub orders: Vec<Accepted>,
}

/// An order of a batch that fits the sale.
struct BatchOrder<'a> {
    /// Its event's place in the batch.
    at: usize,
    event: &'a Event,
    reserved: &'a Reserved,
    item: &'a Item,
}

/// An event that becomes a dead letter.
struct DeadEvent<'a> {
    /// Its place in the batch.
    at: usize,
    event: &'a Event,
    reason: String,
    /// Its order, if that fits the sale.
    row: Option<&'a BatchOrder<'a>>,
}

/// An order that was inserted.
struct InsertedOrder {
    order: Uuid,
    user: String,
    sku: String,
    quantity: i64,
    seq: i64,
    expires_at: DateTime<Utc>,
}

impl Ledger {
    /// Claims a shard for draining; `None` while another process has it.
    pub async fn claim_shard(&self, sale: SaleId, shard: u16) -> Result<Option<DrainClaim>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        // The weakest lock that serves. A transaction that pays, cancels or expires holds a grant that the drain wants,
        // and its message refers to this row. `for update` would block that reference, and both would wait for ever.
        let row = sqlx::query!(
            "select epoch, drained_epoch, drained_seq, run_id from shards where sale_id = $1 and shard = $2 \
             for no key update skip locked",
            sale.0,
            small(shard)
        )
        .fetch_optional(&mut *tx)
        .instrument(step("claim"))
        .await?;
        Ok(row.map(|row| DrainClaim {
            tx,
            sale,
            shard,
            position: Position {
                epoch: row.drained_epoch,
                seq: row.drained_seq,
            },
            epoch: row.epoch,
            noted: row.run_id.into(),
        }))
    }
}

impl DrainClaim {
    /// Applies events that follow the claim's position, in their order, and commits. Fails with `Unavailable` when
    /// Postgres does not answer: then all of the batch is committed, or nothing.
    pub async fn apply(mut self, sale: &Sale, events: &[Event], now: Millis) -> Result<Drained, Fault> {
        let mut rows = Vec::with_capacity(events.len());
        let mut dead: Vec<DeadEvent<'_>> = Vec::new();
        for (at, event) in events.iter().enumerate() {
            match row(sale, at, event) {
                Ok(row) => rows.push(row),
                Err(reason) => dead.push(DeadEvent {
                    at,
                    event,
                    reason,
                    row: None,
                }),
            }
        }
        let mut drained = Drained {
            events: events.len(),
            ..Drained::default()
        };
        let quick = self.insert_new(&rows, sale.durability).await?;
        if quick == QuickInsert::Stored {
            drained.inserted = rows.len();
        } else {
            let units = match quick {
                QuickInsert::Short => UnitSource::Gathered,
                QuickInsert::Stored | QuickInsert::Refused => UnitSource::Own,
            };
            let inserted = self.insert(&rows, units, now).await?;
            let (new, processed) = match inserted {
                Ok(new) => (new, rows.len()),
                Err(error) => {
                    tracing::warn!(sale = %self.sale, shard = self.shard, %error, "a batch was refused; searching for the bad rows");
                    self.insert_by_halves(&rows, error, now, &mut dead).await?
                }
            };
            if let Some(left) = rows.get(processed) {
                drained.events = left.at;
                dead.retain(|it| it.at < left.at);
            }
            drained.inserted = new.held.len() + new.revoked;
            drained.revoked = new.revoked;
            if sale.durability == Durability::Postgres {
                drained.orders = orders(self.sale, self.noted.server().as_ref(), &rows, &new.held);
            }
        }
        let Some(last) = events.get(..drained.events).and_then(|them| them.last()) else {
            return Ok(drained);
        };
        let last = last.position;
        self.write_dead_letters(&dead, now).await?;
        drained.dead = dead.len();
        self.move_position(last).await?;
        commit(self.tx).await?;
        Ok(drained)
    }

    async fn write_dead_letters(&mut self, dead: &[DeadEvent<'_>], now: Millis) -> Result<(), Fault> {
        for it in dead {
            let Position { epoch, seq } = it.event.position;
            tracing::error!(
                sale = %self.sale, shard = self.shard, epoch, seq, reason = %it.reason, revoked = it.row.is_some(),
                "could not store an event; it is a dead letter (`flashsale dead-letters`)"
            );
            sqlx::query!(
                "insert into dead_letters (sale_id, shard, epoch, seq, event, reason, order_id) \
                 values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing",
                self.sale.0,
                small(self.shard),
                epoch,
                seq,
                it.event.raw.as_slice(),
                it.reason,
                it.row.map(|row| row.reserved.order.0)
            )
            .execute(&mut *self.tx)
            .await?;
            // The order can never be paid. So its shard gets it as revoked, and withholds its units. A repeated
            // delivery changes nothing.
            if let Some(row) = it.row {
                let of = row.reserved;
                let units = (row.item.sku.to_string(), i64::from(of.quantity));
                let message = Message::resolve(of.order.0, of.user.as_str(), units, OrderState::Revoked, now);
                send_all(&mut self.tx, self.sale, &[(self.shard, message)]).await?;
            }
        }
        Ok(())
    }

    async fn move_position(&mut self, last: Position) -> Result<(), Fault> {
        sqlx::query!(
            "update shards set drained_epoch = $3, drained_seq = $4 where sale_id = $1 and shard = $2 \
             and (drained_epoch, drained_seq) < ($3, $4)",
            self.sale.0,
            small(self.shard),
            last.epoch,
            last.seq
        )
        .execute(&mut *self.tx)
        .instrument(step("move position"))
        .await?;
        Ok(())
    }

    /// Stores rows of the usual kind: the ledger has none of them, and the shard's own grants suffice for all. That is
    /// much cheaper than [`DrainClaim::insert`], which searches for conflicts and returns what it inserts. If the rows
    /// are of another kind, none is stored.
    async fn insert_new(&mut self, rows: &[BatchOrder<'_>], durability: Durability) -> Result<QuickInsert, Fault> {
        let is_new = |row: &BatchOrder<'_>| row.event.position > self.position;
        // A shopper who waits for the ledger gets the order as the ledger has it, so the inserted rows are needed.
        if rows.is_empty() || durability == Durability::Postgres || !rows.iter().all(is_new) {
            return Ok(QuickInsert::Refused);
        }
        self.tx.execute("savepoint quick").await?;
        let quick = match insert_all(&mut self.tx, self.sale, self.shard, rows).await {
            // The commit releases the savepoint, too.
            Ok(true) => return Ok(QuickInsert::Stored),
            Ok(false) => QuickInsert::Short,
            Err(error) if is_about_data(&error) => QuickInsert::Refused,
            Err(error) => return Err(error.into()),
        };
        self.tx.execute("rollback to savepoint quick").await?;
        Ok(quick)
    }

    /// Stores rows and counts their units as held, behind a savepoint. The inner error says why the data cannot be
    /// stored; then nothing of it is.
    async fn insert(
        &mut self,
        rows: &[BatchOrder<'_>],
        units: UnitSource,
        now: Millis,
    ) -> Result<Result<NewOrders, String>, Fault> {
        if rows.is_empty() {
            return Ok(Ok(NewOrders::default()));
        }
        for units in units.to_try() {
            let mut savepoint = sqlx::Connection::begin(&mut *self.tx).await?;
            let outcome = match insert_orders(&mut savepoint, self.sale, self.shard, rows).await {
                Ok(inserted) => hold_units(&mut savepoint, self.sale, self.shard, &inserted, now, *units).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(Some(new)) => {
                    savepoint.commit().await?;
                    return Ok(Ok(new));
                }
                Ok(None) => savepoint.rollback().await?,
                Err(error) if is_about_data(&error) => {
                    savepoint.rollback().await?;
                    return Ok(Err(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Fault::Bug("gathered units were not taken".to_owned()))
    }

    /// Stores rows of which some cannot be stored, and finds those by halves. `error` says why all rows together
    /// failed. Returns what is new, and how many rows were processed, from the first on.
    ///
    /// Only the orders are stored piece by piece; their units are counted together at the end. Every transaction locks
    /// grants in the order of the SKUs, and the locks of a released savepoint last.
    async fn insert_by_halves<'a>(
        &mut self,
        rows: &'a [BatchOrder<'a>],
        error: String,
        now: Millis,
        dead: &mut Vec<DeadEvent<'a>>,
    ) -> Result<(NewOrders, usize), Fault> {
        let (mut inserted, mut processed, mut tries) = (Vec::new(), 0, 0);
        // The last piece is the next one.
        let mut pieces = vec![rows];
        let mut refused = Some(error);
        while tries < TRIES_MAX
            && let Some(piece) = pieces.pop()
        {
            let refusal = match refused.take() {
                Some(error) => Err(error),
                None => {
                    tries += 1;
                    self.insert_piece(piece).await?
                }
            };
            match (refusal, piece) {
                (Ok(new), _) => {
                    inserted.extend(new);
                    processed += piece.len();
                }
                (Err(reason), [row]) => {
                    dead.push(DeadEvent {
                        at: row.at,
                        event: row.event,
                        reason,
                        row: Some(row),
                    });
                    processed += 1;
                }
                (Err(_), _) => {
                    let (first, second) = piece.split_at(piece.len() / 2);
                    pieces.extend([second, first]);
                }
            }
        }
        for units in UnitSource::Own.to_try() {
            let mut savepoint = sqlx::Connection::begin(&mut *self.tx).await?;
            let held = hold_units(&mut savepoint, self.sale, self.shard, &inserted, now, *units).await;
            if let Some(new) = held? {
                savepoint.commit().await?;
                return Ok((new, processed));
            }
            savepoint.rollback().await?;
        }
        Err(Fault::Bug("gathered units were not taken".to_owned()))
    }

    /// Stores the orders of some rows behind a savepoint, without their units. The inner error is as for
    /// [`DrainClaim::insert`].
    async fn insert_piece(&mut self, rows: &[BatchOrder<'_>]) -> Result<Result<Vec<InsertedOrder>, String>, Fault> {
        let mut savepoint = sqlx::Connection::begin(&mut *self.tx).await?;
        match insert_orders(&mut savepoint, self.sale, self.shard, rows).await {
            Ok(inserted) => {
                savepoint.commit().await?;
                Ok(Ok(inserted))
            }
            Err(error) if is_about_data(&error) => {
                savepoint.rollback().await?;
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The outcome of [`DrainClaim::insert_new`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuickInsert {
    Stored,
    /// The shard's own grants do not suffice.
    Short,
    /// The ledger has some of the rows or cannot store them, or the quick way was not attempted.
    Refused,
}

fn row<'a>(sale: &'a Sale, at: usize, event: &'a Event) -> Result<BatchOrder<'a>, String> {
    let reserved = event.reserved.as_ref().map_err(ToString::to_string)?;
    let item = sale
        .items
        .get(usize::from(reserved.item))
        .ok_or("the sale has no such item")?;
    if reserved.order.sale_number() != sale.number {
        return Err("the order is of another sale".to_owned());
    }
    Ok(BatchOrder {
        at,
        event,
        reserved,
        item,
    })
}

type Savepoint<'a> = sqlx::Transaction<'a, sqlx::Postgres>;

/// The orders of a batch that are held by now, as the ledger has them.
fn orders(
    sale: SaleId,
    server: Option<&Server>,
    rows: &[BatchOrder<'_>],
    held: &HashMap<Uuid, DateTime<Utc>>,
) -> Vec<Accepted> {
    let by = server.and_then(Server::replication_id);
    let held = rows.iter().filter_map(|row| {
        let reserved = row.reserved;
        let expires_at = *held.get(&reserved.order.0)?;
        let order = Order {
            id: reserved.order,
            sale_id: sale,
            sku: row.item.sku.clone(),
            quantity: reserved.quantity,
            amount_minor: row.item.price_of(reserved.quantity),
            currency: row.item.currency.clone(),
            state: OrderState::Reserved,
            confirmed: true,
            created_at: from_millis(reserved.created_at),
            expires_at,
            paid_at: None,
            user: reserved.user.clone(),
        };
        let (event, by) = (row.event.position, by.clone());
        Some(Accepted { order, event, by })
    });
    held.collect()
}
