//! What the ledger forgets: guard warnings, actions of operators, the history of sales, and the accounts in orders. One
//! call handles one batch and returns its rows, `None` if nothing was due. A crash leaves whole batches; the next call
//! goes on.

use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::ledger::{Ledger, begin, commit, unsigned};
use sqlx::postgres::PgQueryResult;

impl Ledger {
    /// Deletes guard warnings after so many days.
    pub async fn forget_warnings(&self, days: u16, max: i64) -> Result<Option<u64>, Fault> {
        let deleted = sqlx::query!(
            "delete from guard_alerts where alert_id in (select alert_id from guard_alerts \
             where raised_at < now() - make_interval(days => $1) order by raised_at limit $2 for update skip locked)",
            i32::from(days),
            max
        );
        Ok(rows(&deleted.execute(&self.jobs).await?))
    }

    /// Deletes actions of operators after so many days. The table refuses to delete those of the last ninety.
    pub async fn forget_actions(&self, days: u16, max: i64) -> Result<Option<u64>, Fault> {
        let deleted = sqlx::query!(
            "delete from operator_actions where action_id in (select action_id from operator_actions \
             where begun_at < now() - make_interval(days => $1) order by begun_at limit $2 for update skip locked)",
            i32::from(days),
            max
        );
        Ok(rows(&deleted.execute(&self.jobs).await?))
    }

    /// Deletes the history of retired sales, so many days after their ends.
    pub async fn forget_history(&self, days: u16, max: i64) -> Result<Option<u64>, Fault> {
        let deleted = sqlx::query!(
            "delete from sale_history where (sale_id, at) in (select h.sale_id, h.at from sales s \
                 join sale_history h using (sale_id) where s.retired_at is not null \
                 and least(s.ends_at, s.closed_at) < now() - make_interval(days => $1) \
                 limit $2 for update of h skip locked)",
            i32::from(days),
            max
        );
        Ok(rows(&deleted.execute(&self.jobs).await?))
    }

    /// Replaces the accounts in orders of a retired sale, so many days after its end, by names that only these orders
    /// have. After the last order, deletes the sale's dead letters, whose events name accounts. A sale waits while money
    /// is owed back, or a dead letter or message is unsettled.
    pub async fn forget_accounts(&self, days: u16, max: i64) -> Result<Option<u64>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let due = sqlx::query!(
            "select sale_id, number, accounts_forgotten_to from sales s \
             where retired_at is not null and accounts_forgotten_at is null \
                 and least(ends_at, closed_at) < now() - make_interval(days => $1) \
                 and not exists (select from outbox o where o.sale_id = s.sale_id) \
                 and not exists (select from dead_letters d where d.sale_id = s.sale_id and d.settled_at is null) \
                 and not exists (select from payments p join orders o on o.order_id = p.matched_order_id \
                     where o.sale_id = s.sale_id and p.outcome = 'refund_due' and p.refunded_at is null) \
             order by number limit 1 for no key update skip locked",
            i32::from(days)
        );
        let Some(sale) = due.fetch_optional(&mut *tx).await? else {
            return Ok(None);
        };
        let [first, last] = OrderId::bounds_of_sale(unsigned(i64::from(sale.number))?);
        let page = sqlx::query!(
            "with page as ( \
                 select order_id from orders where sale_id = $1 and order_id > $2 and order_id <= $3 \
                 order by order_id limit $4 \
             ), renamed as ( \
                 update orders o set user_id = 'forgotten-' || o.order_id from page where o.order_id = page.order_id \
             ) \
             select count(*) as \"orders!\", (array_agg(order_id order by order_id desc))[1] as last from page",
            sale.sale_id,
            sale.accounts_forgotten_to.unwrap_or(first.0),
            last.0,
            max
        )
        .fetch_one(&mut *tx)
        .await?;
        if page.last.is_none() {
            sqlx::query!("delete from dead_letters where sale_id = $1", sale.sale_id)
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query!(
            "update sales set accounts_forgotten_to = $2, \
             accounts_forgotten_at = case when $2::uuid is null then now() end where sale_id = $1",
            sale.sale_id,
            page.last
        )
        .execute(&mut *tx)
        .await?;
        commit(tx).await?;
        Ok(Some(unsigned(page.orders)?))
    }
}

fn rows(done: &PgQueryResult) -> Option<u64> {
    Some(done.rows_affected()).filter(|rows| *rows > 0)
}
