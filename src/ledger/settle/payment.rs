//! Payments: each recorded once for ever. The order, its units, the payment and the message to the stock change in one
//! transaction. Payments of one sale that come at the same time share one. A crash before its commit leaves nothing, and
//! the payments are settled later.

mod decide;
mod recorded;

use super::order::{Decided, resolve};
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::OrderState;
use crate::domain::order::payment::{Payment, PaymentOutcome};
use crate::ledger::{Ledger, Tx, begin_brief, begin_in_order, begin_unless_locked, commit, step, unless_locked};
use chrono::{DateTime, Utc};
use decide::{Decision, decide, lock_orders};
use sqlx::PgConnection;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr;
use tracing::Instrument as _;
use uuid::Uuid;

/// The outcome of settling a payment.
#[derive(Debug, Clone)]
pub enum Settlement {
    /// The payment is recorded with this outcome. If it has paid a reserved order, the decision comes with it.
    Settled(PaymentOutcome, Option<Decided>),
    /// The ledger has no such order; nothing was recorded.
    NoOrder,
    /// Another transaction has locked the order or its grant for long, locked the sale a moment ago, or just recorded one
    /// of the payments. Nothing was recorded.
    Locked,
}

/// A payment that waits to be settled.
#[derive(Debug, Clone)]
pub struct PendingPayment {
    pub payment: Payment,
    pub received_at: DateTime<Utc>,
}

impl Ledger {
    /// Settles payments of one sale that have just arrived, as far as the ledger has their orders. Either all of them
    /// are committed, or none. Fails with `Unavailable` when Postgres does not answer: the provider must send them
    /// again.
    pub async fn settle_payments(&self, payments: &[Payment]) -> Result<Vec<Settlement>, Fault> {
        let sale = payments
            .iter()
            .find_map(Payment::order)
            .map(|order| order.sale_number());
        let locked = vec![Settlement::Locked; payments.len()];
        let Some(mut tx) = begin_unless_locked(&self.payments, &self.locked_sales, sale).await? else {
            return Ok(locked);
        };
        let Some(settled) = settle(&mut tx, payments).await? else {
            sale.into_iter().for_each(|sale| self.locked_sales.note(sale));
            return Ok(locked);
        };
        commit(tx).await?;
        Ok(settled)
    }

    /// Records a payment whose order is not in the ledger: pending while an event may still bring the order, else
    /// unmatched. Fails with `Unavailable` when Postgres does not answer: the provider must send it again.
    pub async fn record_payment(&self, payment: &Payment, outcome: PaymentOutcome) -> Result<PaymentOutcome, Fault> {
        let recorded = sqlx::query!(
            "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at) \
             select $1::text, $2::text, $3::text, $4::int8, $5::text, $6::text, \
                 case when $6 <> 'pending' then now() end \
             where not exists (select from archived_payments where payment_id = $1) on conflict do nothing",
            payment.payment_id,
            payment.webhook_id,
            payment.order_id,
            payment.amount_minor,
            payment.currency,
            outcome.as_str()
        )
        .execute(&self.payments)
        .instrument(step("insert payment"))
        .await?;
        Ok(if recorded.rows_affected() == 1 {
            outcome
        } else {
            PaymentOutcome::Duplicate
        })
    }

    /// Up to `max` payments that wait to be settled, oldest first, after the one given.
    pub async fn pending_payments(
        &self,
        after: Option<&PendingPayment>,
        max: i64,
    ) -> Result<Vec<PendingPayment>, Fault> {
        let mut tx = begin_in_order(&self.jobs).await?;
        let rows = sqlx::query!(
            "select payment_id, webhook_id, order_id, amount_minor, currency, received_at from payments \
             where outcome = 'pending' and received_at >= coalesce($1, '-infinity'::timestamptz) \
                 and ($1 is null or (received_at, payment_id) > ($1, $2)) \
             order by received_at, payment_id limit $3",
            after.map(|after| after.received_at),
            after.map(|after| after.payment.payment_id.as_str()),
            max
        )
        .fetch_all(&mut *tx)
        .await?;
        let payments = rows.into_iter().map(|row| PendingPayment {
            payment: Payment {
                payment_id: row.payment_id,
                webhook_id: row.webhook_id,
                order_id: row.order_id,
                amount_minor: row.amount_minor,
                currency: row.currency,
            },
            received_at: row.received_at,
        });
        Ok(payments.collect())
    }

    /// Which of these payments' orders the ledger has.
    pub async fn known_orders(&self, payments: &[PendingPayment]) -> Result<HashSet<OrderId>, Fault> {
        let ids: Vec<_> = payments
            .iter()
            .filter_map(|it| it.payment.order())
            .map(|id| id.0)
            .collect();
        let known = sqlx::query_scalar!("select order_id from orders where order_id = any($1)", &ids);
        let known = known.fetch_all(&self.jobs).await?;
        Ok(known.into_iter().map(OrderId).collect())
    }

    /// Settles a pending payment. With `gone`, no event is left that could announce its order. Fails with `Unavailable`
    /// when Postgres does not answer; the next run tries again.
    pub async fn settle_pending(&self, payment: &Payment, gone: bool) -> Result<Settlement, Fault> {
        let mut tx = begin_brief(&self.jobs).await?;
        let mine = sqlx::query_scalar!(
            "select payment_id from payments where payment_id = $1 and outcome = 'pending' for update skip locked",
            payment.payment_id
        );
        if mine.fetch_optional(&mut *tx).await?.is_none() {
            return Ok(Settlement::Settled(PaymentOutcome::Duplicate, None));
        }
        let Some(mut orders) = lock_orders(&mut tx, &[payment]).await? else {
            return Ok(Settlement::Locked);
        };
        let mut order = payment.order().and_then(|id| orders.remove(&id));
        let decision = order.as_mut().map(|order| decide(order, payment));
        if decision.is_none() && !gone {
            return Ok(Settlement::NoOrder);
        }
        let outcome = decision.as_ref().map_or(PaymentOutcome::Unmatched, |it| it.outcome);
        sqlx::query!(
            "update payments set outcome = $2, reason = $3, settled_at = now(), \
             matched_order_id = $4 where payment_id = $1",
            payment.payment_id,
            outcome.as_str(),
            decision.as_ref().and_then(|it| it.reason.as_deref()),
            decision.as_ref().map(|it| it.order.0)
        )
        .execute(&mut *tx)
        .await?;
        let pays = decision.is_some_and(|it| it.pays);
        let paying = order.filter(|_| pays).map(|it| (it.order, it.shard));
        let paid = resolve(&mut tx, paying.into_iter().collect(), OrderState::Paid).await;
        let Some(mut paid) = unless_locked(paid)? else {
            return Ok(Settlement::Locked);
        };
        commit(tx).await?;
        Ok(Settlement::Settled(outcome, paid.pop()))
    }
}

/// Settles payments in a transaction; `None` if another one has locked an order or a grant for long, or has just recorded
/// a payment that would apply. All transactions that settle lock orders by their ids, then record payments by their ids,
/// then lock grants.
async fn settle(tx: &mut Tx, payments: &[Payment]) -> Result<Option<Vec<Settlement>>, Fault> {
    let known = known(tx, payments).await?;
    let new: Vec<&Payment> = payments.iter().filter(|it| !known.contains(&it.payment_id)).collect();
    let Some(mut orders) = lock_orders(tx, &new).await? else {
        return Ok(None);
    };
    let mut decisions: BTreeMap<&str, Decision<'_>> = BTreeMap::new();
    for payment in new {
        if let Some(id) = payment.order()
            && let Some(order) = orders.get_mut(&id)
        {
            let decision = decisions.entry(payment.payment_id.as_str());
            decision.or_insert_with(|| decide(order, payment));
        }
    }
    let Some(recorded) = unless_locked(insert_payments(tx, &decisions).await)? else {
        return Ok(None);
    };
    let is_recorded = |decision: &Decision<'_>| recorded.contains(&decision.payment.payment_id);
    // The other transaction may have recorded it for another order. Then a later payment of this order would be owed
    // back, though nothing has paid the order.
    let mut applied = decisions.values().filter(|it| it.outcome == PaymentOutcome::Applied);
    if !applied.all(is_recorded) {
        return Ok(None);
    }
    let paying = decisions.values().filter(|it| it.pays);
    let paying = paying.filter_map(|it| orders.remove(&it.order));
    let paying = paying.map(|it| (it.order, it.shard)).collect();
    let Some(paid) = unless_locked(resolve(tx, paying, OrderState::Paid).await)? else {
        return Ok(None);
    };
    let mut paid: HashMap<OrderId, Decided> = paid.into_iter().map(|it| (it.order.id, it)).collect();
    let settlements = payments
        .iter()
        .map(|payment| match decisions.get(payment.payment_id.as_str()) {
            Some(decision) if ptr::eq(decision.payment, payment) && is_recorded(decision) => {
                let decided = decision.pays.then(|| paid.remove(&decision.order));
                Settlement::Settled(decision.outcome, decided.flatten())
            }
            None if !known.contains(&payment.payment_id) => Settlement::NoOrder,
            // Recorded before, by another process just now, or as another copy in this group.
            _ => Settlement::Settled(PaymentOutcome::Duplicate, None),
        });
    Ok(Some(settlements.collect()))
}

/// The ids of those payments that were recorded before. Those of an archived sale are in its file.
async fn known(tx: &mut Tx, payments: &[Payment]) -> Result<HashSet<String>, Fault> {
    let ids: Vec<&str> = payments.iter().map(|it| it.payment_id.as_str()).collect();
    let found = sqlx::query_scalar!(
        "select payment_id as \"id!\" from payments where payment_id = any($1) \
         union all select payment_id from archived_payments where payment_id = any($1)",
        &ids as &[&str]
    );
    let found = found.fetch_all(&mut **tx).instrument(step("find payments")).await?;
    Ok(found.into_iter().collect())
}

/// Records decided payments. Returns the ids of those that no other transaction has recorded meanwhile.
async fn insert_payments(
    tx: &mut PgConnection,
    decisions: &BTreeMap<&str, Decision<'_>>,
) -> Result<HashSet<String>, sqlx::Error> {
    if decisions.is_empty() {
        return Ok(HashSet::new());
    }
    let payments: Vec<&Payment> = decisions.values().map(|it| it.payment).collect();
    let ids: Vec<&str> = payments.iter().map(|it| it.payment_id.as_str()).collect();
    let webhooks: Vec<&str> = payments.iter().map(|it| it.webhook_id.as_str()).collect();
    let orders: Vec<&str> = payments.iter().map(|it| it.order_id.as_str()).collect();
    let amounts: Vec<i64> = payments.iter().map(|it| it.amount_minor).collect();
    let currencies: Vec<&str> = payments.iter().map(|it| it.currency.as_str()).collect();
    let outcomes: Vec<&str> = decisions.values().map(|it| it.outcome.as_str()).collect();
    let reasons: Vec<Option<&str>> = decisions.values().map(|it| it.reason.as_deref()).collect();
    let matched: Vec<Uuid> = decisions.values().map(|it| it.order.0).collect();
    let recorded = sqlx::query_scalar!(
        "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, reason, \
             matched_order_id, settled_at) \
         select p.payment_id, p.webhook_id, p.order_id, p.amount_minor, p.currency, p.outcome, p.reason, \
             p.matched_order_id, now() \
         from unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::text[], $7::text[], $8::uuid[]) \
             as p (payment_id, webhook_id, order_id, amount_minor, currency, outcome, reason, matched_order_id) \
         on conflict do nothing returning payment_id",
        &ids as &[&str],
        &webhooks as &[&str],
        &orders as &[&str],
        &amounts,
        &currencies as &[&str],
        &outcomes as &[&str],
        &reasons as &[Option<&str>],
        &matched
    );
    let recorded = recorded.fetch_all(tx).instrument(step("insert payments")).await?;
    Ok(recorded.into_iter().collect())
}
