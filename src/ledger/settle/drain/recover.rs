//! Recovers orders that the ledger had committed and lost, as happens when a standby is promoted that was behind.
//!
//! A decision is delivered to the shard after its commit, so a shopper's row proves what the ledger had decided. The
//! transaction that stores the orders marks the shard unverified. A crash leaves the orders to be recovered again, or a
//! shard to be reconciled.

use super::{BatchOrder, DrainClaim, UnitSource, row};
use crate::domain::fault::Fault;
use crate::domain::order::OrderState;
use crate::domain::order::event::{Event, Position};
use crate::domain::sale::Sale;
use crate::domain::time::{Millis, from_millis};
use crate::ledger::recover::standing::CLAIMED;
use crate::ledger::{Ledger, commit, small};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Orders that one statement stores, finds or decides.
const ORDERS_MAX: usize = 1000;

/// An order as a shopper's row has it.
#[derive(Debug, Clone)]
pub struct RowOrder {
    /// The event that had announced it.
    pub event: Event,
    /// What the ledger had decided.
    pub state: OrderState,
    /// When the ledger had decided; 0 while it had not.
    pub resolved_at: Millis,
}

impl RowOrder {
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        matches!(self.state, OrderState::Reserved | OrderState::Paid)
    }

    fn id(&self) -> Option<Uuid> {
        self.event.reserved.as_ref().ok().map(|it| it.order.0)
    }
}

/// The outcome of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Orders that are in the ledger again.
    pub orders: usize,
    /// Orders that the ledger still had, and whose decisions it has again.
    pub decisions: usize,
    /// Events that no row has an order for.
    pub lost: i64,
}

/// An order whose state has changed.
struct ChangedOrder {
    order_id: Uuid,
    sku: String,
    quantity: i64,
    state: String,
}

/// How many events after `before` and up to `until` belong to none of the rows' orders. Only events of the epoch of
/// `until` count. Nobody knows any more how many events an earlier epoch had.
fn lost(before: Position, until: Position, orders: impl Iterator<Item = Position>) -> i64 {
    let begin = before.drained_of(until.epoch);
    let is_in = |it: &Position| it.epoch == until.epoch && it.seq > begin && it.seq <= until.seq;
    let known = i64::try_from(orders.filter(is_in).count()).unwrap_or(i64::MAX);
    (until.seq - begin - known).max(0)
}

impl Ledger {
    /// The orders among these that the ledger has as reserved.
    pub async fn reserved_among(&self, orders: &[Uuid]) -> Result<HashSet<Uuid>, Fault> {
        let reserved = sqlx::query_scalar!(
            "select order_id from orders where order_id = any($1) and state = 'reserved'",
            orders
        );
        let reserved = reserved.fetch_all(&self.jobs).await?;
        Ok(reserved.into_iter().collect())
    }
}

impl DrainClaim {
    /// Stores the missing orders that have given their units back, and repeats the decisions about those that the
    /// ledger has. Nothing else changes.
    pub async fn recover_ended(mut self, sale: &Sale, orders: &[RowOrder]) -> Result<(), Fault> {
        self.store_ended(sale, orders).await?;
        commit(self.tx).await
    }

    /// Returns the orders that the ledger did not have.
    async fn store_ended(&mut self, sale: &Sale, orders: &[RowOrder]) -> Result<HashSet<Uuid>, Fault> {
        let ended: Vec<&RowOrder> = orders.iter().filter(|it| !it.is_kept()).collect();
        let new = self.store(sale, &ended, None).await?;
        self.decide(&ended, &new).await?;
        Ok(new)
    }

    /// Stores orders that the ledger had and lost, with its decisions about them. Moves the shard's position to
    /// `until`, and marks the shard unverified. The caller runs [`DrainClaim::recover_ended`] first, on every shard of
    /// the sale: units that were given back on one shard were sold again on another. Events in the gap without an order
    /// count as lost. Fails with `Unavailable` when Postgres does not answer: then all of this is committed, or
    /// nothing.
    pub async fn recover(
        mut self,
        sale: &Sale,
        orders: &[RowOrder],
        until: Position,
        now: Millis,
    ) -> Result<Recovered, Fault> {
        let kept: Vec<&RowOrder> = orders.iter().filter(|it| it.is_kept()).collect();
        let mut new = self.store_ended(sale, orders).await?;
        new.extend(self.store(sale, &kept, Some(now)).await?);
        let paid: Vec<&RowOrder> = kept.into_iter().filter(|it| it.state == OrderState::Paid).collect();
        self.decide(&paid, &HashSet::new()).await?;

        let recovered = Recovered {
            orders: new.len(),
            decisions: orders
                .iter()
                .filter(|it| it.id().is_some_and(|id| !new.contains(&id)))
                .count(),
            lost: lost(self.position, until, orders.iter().map(|it| it.event.position)),
        };
        sqlx::query!(
            "update shards set lost_orders = lost_orders + $5, run_id = $6::text || ltrim(run_id, $6), \
                 drained_epoch = case when (drained_epoch, drained_seq) < ($3, $4) then $3 else drained_epoch end, \
                 drained_seq = case when (drained_epoch, drained_seq) < ($3, $4) then $4 else drained_seq end \
             where sale_id = $1 and shard = $2",
            self.sale.0,
            small(self.shard),
            until.epoch,
            until.seq,
            recovered.lost,
            CLAIMED.to_string()
        )
        .execute(&mut *self.tx)
        .await?;
        commit(self.tx).await?;
        Ok(recovered)
    }

    /// Stores the orders that the ledger does not have, as reserved, and returns them. With a time in `hold`, they hold
    /// units, or are revoked if the item has none left.
    async fn store(&mut self, sale: &Sale, orders: &[&RowOrder], hold: Option<Millis>) -> Result<HashSet<Uuid>, Fault> {
        let mut rows = Vec::with_capacity(orders.len());
        for (at, order) in orders.iter().enumerate() {
            match row(sale, at, &order.event) {
                Ok(row) => rows.push(row),
                Err(reason) => self.not_recovered(order.event.position, &reason),
            }
        }
        rows.sort_by_key(|row| row.event.position);
        let before = self.known(&rows).await?;
        rows.retain(|row| !before.contains(&row.reserved.order.0));
        let mut stored = HashSet::new();
        for some in rows.chunks(ORDERS_MAX) {
            if self.store_some(some, hold).await?.is_ok() {
                stored.extend(some.iter().map(|row| row.reserved.order.0));
                continue;
            }
            // Another order has the place of one of them.
            for row in some.chunks(1) {
                match self.store_some(row, hold).await? {
                    Ok(()) => stored.extend(row.iter().map(|row| row.reserved.order.0)),
                    Err(why) => row.iter().for_each(|it| self.not_recovered(it.event.position, &why)),
                }
            }
        }
        Ok(stored)
    }

    async fn store_some(&mut self, rows: &[BatchOrder<'_>], hold: Option<Millis>) -> Result<Result<(), String>, Fault> {
        Ok(match hold {
            Some(now) => self.insert(rows, UnitSource::Own, now).await?.map(|_| ()),
            None => self.insert_piece(rows).await?.map(|_| ()),
        })
    }

    fn not_recovered(&self, at: Position, reason: &str) {
        tracing::error!(
            sale = %self.sale, shard = self.shard, epoch = at.epoch, seq = at.seq, %reason,
            "could not recover an order from a shopper's row into the ledger"
        );
    }

    /// The orders among these that the ledger has.
    async fn known(&mut self, rows: &[BatchOrder<'_>]) -> Result<HashSet<Uuid>, Fault> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.reserved.order.0).collect();
        let mut all = HashSet::new();
        for some in ids.chunks(ORDERS_MAX) {
            let known = sqlx::query_scalar!("select order_id from orders where order_id = any($1)", some);
            all.extend(known.fetch_all(&mut *self.tx).await?);
        }
        Ok(all)
    }

    /// Repeats decisions about reserved orders. Their units stop being held, except for the orders in `without_units`,
    /// which hold none.
    async fn decide(&mut self, orders: &[&RowOrder], without_units: &HashSet<Uuid>) -> Result<(), Fault> {
        for some in orders.chunks(ORDERS_MAX) {
            self.decide_some(some, without_units).await?;
        }
        Ok(())
    }

    async fn decide_some(&mut self, orders: &[&RowOrder], without_units: &HashSet<Uuid>) -> Result<(), Fault> {
        let ids: Vec<Uuid> = orders.iter().filter_map(|it| it.id()).collect();
        let states: Vec<String> = orders.iter().map(|it| it.state.to_string()).collect();
        let times: Vec<DateTime<Utc>> = orders.iter().map(|it| from_millis(it.resolved_at)).collect();
        let changed = sqlx::query_as!(
            ChangedOrder,
            "update orders o set state = d.state, resolved_at = d.at, \
                 paid_at = case when d.state = 'paid' then d.at end \
             from unnest($1::uuid[], $2::text[], $3::timestamptz[]) as d (id, state, at) \
             where o.order_id = d.id and o.state = 'reserved' \
             returning o.order_id as \"order_id!\", o.sku as \"sku!\", o.quantity::int8 as \"quantity!\", \
                 o.state as \"state!\"",
            &ids,
            &states,
            &times
        )
        .fetch_all(&mut *self.tx)
        .await?;
        let mut units: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for it in changed.into_iter().filter(|it| !without_units.contains(&it.order_id)) {
            let of = units.entry(it.sku).or_default();
            of.0 += it.quantity;
            if it.state == OrderState::Paid.as_str() {
                of.1 += it.quantity;
            }
        }
        // In the order of the SKUs, as every transaction locks grants.
        for (sku, (freed, sold)) in units {
            sqlx::query!(
                "update grants set held = held - $4, sold = sold + $5 where sale_id = $1 and sku = $2 and shard = $3",
                self.sale.0,
                sku,
                small(self.shard),
                freed,
                sold
            )
            .execute(&mut *self.tx)
            .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::lost;
    use crate::domain::order::event::Position;

    #[test]
    fn orders_of_an_earlier_epoch_hide_no_lost_event() {
        let at = |(epoch, seq)| Position { epoch, seq };
        type Case<'a> = ((i64, i64), (i64, i64), &'a [(i64, i64)], i64);
        let cases: [Case<'_>; 6] = [
            ((2, 4), (2, 7), &[(2, 5), (2, 6), (2, 7)], 0),
            ((2, 4), (2, 7), &[(2, 3), (2, 5), (2, 8)], 2),
            ((1, 5), (2, 0), &[(1, 6), (1, 7)], 0),
            (
                (1, 5),
                (2, 3),
                &[(1, 6), (1, 7), (1, 8), (1, 9), (1, 10), (1, 11), (1, 12), (2, 2)],
                2,
            ),
            ((1, 5), (2, 3), &[], 3),
            ((2, 7), (2, 7), &[], 0),
        ];
        for (before, until, orders, expected) in cases {
            let orders_at = orders.iter().copied().map(at);
            assert_eq!(
                lost(at(before), at(until), orders_at),
                expected,
                "{before:?} {until:?} {orders:?}"
            );
        }
    }
}
