//! Reads the stock, checks it and writes it back, as the usual article on this subject begins. Nothing is locked, and no
//! transaction keeps the statements together. So purchases at the same moment read the same stock, and a crash between
//! the two writes takes units without an order.

use super::{Books, Sold, Wanted, no_answer, order};
use flashsale::domain::fault::Fault;

pub(super) struct NoLock(Books);

impl NoLock {
    pub(super) const fn over(books: Books) -> Self {
        Self(books)
    }

    /// Sells, or gives the refusal; `None` if the item does not exist.
    pub(super) async fn sell(&self, wanted: &Wanted) -> Result<Option<Sold>, Fault> {
        let Some(item) = self.0.listed(wanted).await? else {
            return Ok(None);
        };
        if let Some(known) = self.0.find(wanted).await? {
            return Ok(Some(known));
        }
        let (available, has): (i64, i64) = sqlx::query_as(
            "select i.available, (select coalesce(sum(o.quantity), 0) from orders o \
                 where o.sale_id = i.sale_id and o.user_id = $3 and o.sku = i.sku) \
             from items i where i.sale_id = $1 and i.sku = $2",
        )
        .bind(wanted.sale.0)
        .bind(wanted.sku.as_str())
        .bind(wanted.user.as_str())
        .fetch_one(&self.0.pool)
        .await
        .map_err(no_answer)?;
        let quantity = i64::from(wanted.quantity);
        if available < quantity {
            return Ok(Some(Sold::Out));
        }
        if has + quantity > i64::from(item.per_user_limit) {
            return Ok(Some(Sold::LimitReached));
        }
        sqlx::query("update items set available = $3 where sale_id = $1 and sku = $2")
            .bind(wanted.sale.0)
            .bind(wanted.sku.as_str())
            .bind(available - quantity)
            .execute(&self.0.pool)
            .await
            .map_err(no_answer)?;
        let order = order(wanted, &item);
        let is_new = self.0.insert(wanted, &order).await.map_err(no_answer)?;
        // Otherwise a copy of this request was quicker.
        if is_new {
            Ok(Some(Sold::New(order)))
        } else {
            self.0.find(wanted).await
        }
    }
}
