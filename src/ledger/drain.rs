//! The drain: applies each event exactly once. A shard's position moves in the transaction that stores its rows, and an
//! order's id, its key and its event are each unique for ever. A crash leaves the position and the rows as they were.

mod recover;

pub use self::recover::{Recovered, RowOrder};
use super::outbox::{Message, send_all};
use super::rebuild::NotedServer;
use super::{Ledger, Tx, begin, commit, is_about_data, small, step};
use crate::domain::event::{Event, Position, Reserved};
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::{Accepted, Order, OrderState};
use crate::domain::sale::{Durability, Item, Sale};
use crate::domain::server::Server;
use crate::domain::time::{Millis, from_millis};
use chrono::{DateTime, Utc};
use sqlx::Executor as _;
use std::collections::{BTreeMap, HashMap, HashSet};
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
    /// Applies events that follow the claim's position, in their order, and commits.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: then all of the batch is committed, or nothing.
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

/// Where the units of a batch come from. An update that finds too few units on a shard's own grant may keep that row
/// locked. Gathering locks the grants of all shards in their order. So the first attempt is undone before the second,
/// or two drains would wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitSource {
    /// The shard's own grant alone.
    Own,
    Gathered,
}

impl UnitSource {
    /// The sources to try, one after the other.
    const fn to_try(self) -> &'static [Self] {
        match self {
            Self::Own => &[Self::Own, Self::Gathered],
            Self::Gathered => &[Self::Gathered],
        }
    }
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

/// Orders that were not in the ledger before.
#[derive(Default)]
struct NewOrders {
    /// Those whose units are held, with their deadlines.
    held: HashMap<Uuid, DateTime<Utc>>,
    /// How many others were revoked.
    revoked: usize,
}

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
        let (user, created_at) = (reserved.user.clone(), from_millis(reserved.created_at));
        let order = Order {
            confirmed: true,
            ..Order::held(
                reserved.order,
                sale,
                row.item,
                reserved.quantity,
                user,
                created_at,
                expires_at,
            )
        };
        let (event, by) = (row.event.position, by.clone());
        Some(Accepted { order, event, by })
    });
    held.collect()
}

/// Rows as Postgres takes them: column by column.
struct Columns<'a> {
    ids: Vec<Uuid>,
    skus: Vec<&'a str>,
    users: Vec<&'a str>,
    keys: Vec<&'a str>,
    quantities: Vec<i32>,
    amounts: Vec<i64>,
    currencies: Vec<&'a str>,
    created: Vec<DateTime<Utc>>,
    epochs: Vec<i64>,
    seqs: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(rows: &[BatchOrder<'a>]) -> Self {
        let quantity = |row: &BatchOrder<'_>| i32::try_from(row.reserved.quantity).unwrap_or(i32::MAX);
        Self {
            ids: rows.iter().map(|row| row.reserved.order.0).collect(),
            skus: rows.iter().map(|row| row.item.sku.as_str()).collect(),
            users: rows.iter().map(|row| row.reserved.user.as_str()).collect(),
            keys: rows.iter().map(|row| row.reserved.key.as_str()).collect(),
            quantities: rows.iter().map(quantity).collect(),
            amounts: rows
                .iter()
                .map(|row| row.item.price_of(row.reserved.quantity))
                .collect(),
            currencies: rows.iter().map(|row| row.item.currency.as_str()).collect(),
            created: rows.iter().map(|row| from_millis(row.reserved.created_at)).collect(),
            epochs: rows.iter().map(|row| row.event.position.epoch).collect(),
            seqs: rows.iter().map(|row| row.event.position.seq).collect(),
        }
    }
}

/// The one statement that inserts orders, with a tail of its own. It unnests the columns in step. If they were functions
/// of `from`, Postgres would store each whole column before it reads the first row.
macro_rules! insert_orders {
    ($query:ident ! ($($row:ident,)?), $tail:literal, $sale:expr, $shard:expr, $columns:expr) => {
        sqlx::$query!(
            $($row,)?
            "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
                 currency, created_at, expires_at, epoch, seq) \
             select o.id, $1, $2, o.sku, o.user_id, o.key, o.quantity, o.amount, o.currency, o.created, \
                 o.created + s.payment_window_seconds * interval '1 second', o.epoch, o.seq \
             from (select unnest($3::uuid[]) as id, unnest($4::text[]) as sku, unnest($5::text[]) as user_id, \
                 unnest($6::text[]) as key, unnest($7::int4[]) as quantity, unnest($8::int8[]) as amount, \
                 unnest($9::text[]) as currency, unnest($10::timestamptz[]) as created, unnest($11::int8[]) as epoch, \
                 unnest($12::int8[]) as seq) as o \
             join sales s on s.sale_id = $1" + $tail,
            $sale.0,
            small($shard),
            &$columns.ids,
            &$columns.skus as &[&str],
            &$columns.users as &[&str],
            &$columns.keys as &[&str],
            &$columns.quantities,
            &$columns.amounts,
            &$columns.currencies as &[&str],
            &$columns.created,
            &$columns.epochs,
            &$columns.seqs
        )
    };
}

/// Inserts orders and counts their units as held by the shard's own grants. `false` when these do not suffice.
///
/// # Errors
/// Also when the ledger has one of the orders.
async fn insert_all(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    rows: &[BatchOrder<'_>],
) -> Result<bool, sqlx::Error> {
    let columns = Columns::of(rows);
    insert_orders!(query!(), "", sale, shard, columns)
        .execute(&mut **tx)
        .instrument(step("insert orders"))
        .await?;
    let mut wanted: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        *wanted.entry(row.item.sku.as_str()).or_default() += i64::from(row.reserved.quantity);
    }
    hold_own(tx, sale, shard, &wanted).await
}

/// Inserts the orders that the ledger does not have; returns them in their order.
async fn insert_orders(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    rows: &[BatchOrder<'_>],
) -> Result<Vec<InsertedOrder>, sqlx::Error> {
    let columns = Columns::of(rows);
    let mut inserted = insert_orders!(
        query_as!(InsertedOrder,),
        " on conflict do nothing \
         returning order_id as \"order!\", user_id as \"user!\", sku as \"sku!\", \
             quantity::int8 as \"quantity!\", seq as \"seq!\", expires_at as \"expires_at!\"",
        sale,
        shard,
        columns
    )
    .fetch_all(&mut **tx)
    .instrument(step("insert orders"))
    .await?;
    refuse_strangers(tx, &columns.ids, &inserted).await?;

    inserted.sort_by_key(|order| order.seq);
    Ok(inserted)
}

/// Counts the units of new orders as held. `None` when the shard's own units were asked for and do not suffice.
async fn hold_units(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    inserted: &[InsertedOrder],
    now: Millis,
    units: UnitSource,
) -> Result<Option<NewOrders>, sqlx::Error> {
    let mut new = NewOrders::default();
    new.held.extend(inserted.iter().map(|it| (it.order, it.expires_at)));
    let mut by_sku: BTreeMap<&str, Vec<&InsertedOrder>> = BTreeMap::new();
    for order in inserted {
        by_sku.entry(order.sku.as_str()).or_default().push(order);
    }
    if units == UnitSource::Own {
        let sum = |orders: &[&InsertedOrder]| orders.iter().map(|order| order.quantity).sum();
        let wanted = by_sku.iter().map(|(sku, orders)| (*sku, sum(orders))).collect();
        return Ok(hold_own(tx, sale, shard, &wanted).await?.then_some(new));
    }
    // In the order of the SKUs, so that two drains never wait for each other.
    for (sku, orders) in by_sku {
        for refused in hold(tx, sale, shard, sku, orders, now).await? {
            new.held.remove(&refused.order);
            new.revoked += 1;
        }
    }
    Ok(Some(new))
}

/// Fails when an event was skipped although its own order is not in the ledger: another order has its key or its event.
async fn refuse_strangers(tx: &mut Savepoint<'_>, ids: &[Uuid], inserted: &[InsertedOrder]) -> Result<(), sqlx::Error> {
    if inserted.len() == ids.len() {
        return Ok(());
    }
    let new: HashSet<Uuid> = inserted.iter().map(|order| order.order).collect();
    let skipped: Vec<Uuid> = ids.iter().filter(|id| !new.contains(id)).copied().collect();
    // Raises a data error, which sends the event to the dead letters.
    sqlx::query_scalar!(
        "select case when exists (select from orders where order_id = id) then 1 \
         else ('order ' || id || ' has another order in its place')::int end as known \
         from unnest($1::uuid[]) as id",
        &skipped
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(())
}

/// Counts units of new orders as held, by SKU, if the shard's own grants suffice for each. The grants are locked in the
/// order of the SKUs, so that two drains never wait for each other. That order is by bytes, as everywhere else, not by
/// the database's collation.
///
/// Postgres plans the statement without knowing how many SKUs come. It would join them by a nested loop, which costs
/// more than everything else for a thousand items. So the index finds the SKUs, and a JSON document has their units.
async fn hold_own(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    wanted: &BTreeMap<&str, i64>,
) -> Result<bool, sqlx::Error> {
    let skus: Vec<String> = wanted.keys().map(|sku| (*sku).to_owned()).collect();
    let held = sqlx::query!(
        "with locked as materialized ( \
             select g.sku from grants g where g.sale_id = $1 and g.sku = any($3) and g.shard = $2 \
             order by g.sku collate \"C\" for no key update) \
         update grants g set held = g.held + ($4::jsonb ->> g.sku)::int8 \
         where g.sale_id = $1 and g.sku = any(array(select l.sku from locked l)) and g.shard = $2 \
             and g.granted - g.held - g.sold >= ($4::jsonb ->> g.sku)::int8",
        sale.0,
        small(shard),
        &skus,
        serde_json::to_value(wanted).map_err(|error| sqlx::Error::Encode(error.into()))?
    )
    .execute(&mut **tx)
    .instrument(step("hold units"))
    .await?;
    Ok(held.rows_affected() == wanted.len() as u64)
}

/// Counts the units of new orders as held, in their order, as far as the item has units. Revokes the other orders, and
/// returns them.
async fn hold<'a>(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    sku: &str,
    orders: Vec<&'a InsertedOrder>,
    now: Millis,
) -> Result<Vec<&'a InsertedOrder>, sqlx::Error> {
    let wanted: i64 = orders.iter().map(|order| order.quantity).sum();
    let mut free = gather(tx, sale, shard, sku, wanted).await?;
    let mut held = 0;
    let mut refused = Vec::new();
    for order in orders {
        if order.quantity <= free {
            free -= order.quantity;
            held += order.quantity;
        } else {
            refused.push(order);
        }
    }
    sqlx::query!(
        "update grants set held = held + $4 where sale_id = $1 and sku = $2 and shard = $3",
        sale.0,
        sku,
        small(shard),
        held
    )
    .execute(&mut **tx)
    .await?;
    revoke(tx, sale, shard, &refused, now).await?;
    Ok(refused)
}

/// Moves grants of the item to this shard, from the shards with the most free units. It ends when this shard has
/// `wanted` free, or no other shard has any; it returns what this shard then has free. It takes at least half of a
/// lender's free units. A shard that sells borrowed units is short again with the next batch, and each time the grants
/// of all shards are locked.
async fn gather(tx: &mut Savepoint<'_>, sale: SaleId, shard: u16, sku: &str, wanted: i64) -> Result<i64, sqlx::Error> {
    let rows = sqlx::query!(
        "select shard, granted - held - sold as \"free!\" from grants where sale_id = $1 and sku = $2 \
         order by shard for no key update",
        sale.0,
        sku
    )
    .fetch_all(&mut **tx)
    .await?;
    let (own, mut others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.shard == small(shard));
    let mut free = own.first().map_or(0, |row| row.free);
    others.sort_by_key(|row| std::cmp::Reverse(row.free));
    for other in others {
        if free >= wanted || other.free <= 0 {
            break;
        }
        let moved = (wanted - free).max(other.free / 2).min(other.free);
        free += moved;
        sqlx::query!(
            "update grants set granted = granted + case shard when $3 then $5::int8 else -($5::int8) end \
             where sale_id = $1 and sku = $2 and shard in ($3, $4)",
            sale.0,
            sku,
            small(shard),
            other.shard,
            moved
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(free)
}

/// Revokes orders whose units the item does not have: Redis had lost that they were sold.
async fn revoke(
    tx: &mut Savepoint<'_>,
    sale: SaleId,
    shard: u16,
    orders: &[&InsertedOrder],
    now: Millis,
) -> Result<(), sqlx::Error> {
    if orders.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = orders.iter().map(|order| order.order).collect();
    tracing::error!(%sale, shard, orders = ids.len(), "orders were revoked: Redis sold units that it had sold before");
    sqlx::query!(
        "update orders set state = 'revoked', resolved_at = now() where order_id = any($1)",
        &ids
    )
    .execute(&mut **tx)
    .await?;
    let revoked = |it: &&InsertedOrder| {
        let units = (it.sku.clone(), it.quantity);
        let message = Message::resolve(it.order, &it.user, units, OrderState::Revoked, now);
        (shard, message)
    };
    let messages: Vec<_> = orders.iter().map(revoked).collect();
    send_all(tx, sale, &messages).await
}
