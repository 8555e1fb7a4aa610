//! One transaction of Postgres a purchase. The row of the item, for which all of them queue, is locked last, so that it
//! is locked no longer than one statement and the commit take.

use super::{Books, Sold, Wanted, insert, no_answer, order};
use crate::domain::fault::Fault;

/// See the module.
pub(super) struct DatabaseOnly(Books);

impl DatabaseOnly {
    pub(super) const fn over(books: Books) -> Self {
        Self(books)
    }

    /// Sells, or says why not; nothing where there is no such item.
    pub(super) async fn sell(&self, wanted: &Wanted) -> Result<Option<Sold>, Fault> {
        let Some(item) = self.0.listed(wanted).await? else {
            return Ok(None);
        };
        let order = order(wanted, &item);
        let mut tx = self.0.pool.begin().await.map_err(no_answer)?;
        if !insert(&mut *tx, wanted, &order).await.map_err(no_answer)? {
            tx.rollback().await.map_err(no_answer)?;
            return self.0.find(wanted).await;
        }
        // Nobody's first purchase meets the condition of the update, so that is asked of it here.
        let within_limit = wanted.quantity <= item.per_user_limit
            && sqlx::query(
                "insert into buyers (sale_id, sku, user_id, units) values ($1, $2, $3, $4) \
                 on conflict (sale_id, sku, user_id) do update set units = buyers.units + excluded.units \
                 where buyers.units + excluded.units <= $5",
            )
            .bind(wanted.sale.0)
            .bind(wanted.sku.as_str())
            .bind(wanted.user.as_str())
            .bind(wanted.quantity)
            .bind(item.per_user_limit)
            .execute(&mut *tx)
            .await
            .map_err(no_answer)?
            .rows_affected()
                == 1;
        if !within_limit {
            tx.rollback().await.map_err(no_answer)?;
            return Ok(Some(Sold::LimitReached));
        }
        let taken = sqlx::query(
            "update items set available = available - $3 where sale_id = $1 and sku = $2 and available >= $3",
        )
        .bind(wanted.sale.0)
        .bind(wanted.sku.as_str())
        .bind(i64::from(wanted.quantity))
        .execute(&mut *tx)
        .await
        .map_err(no_answer)?;
        if taken.rows_affected() == 0 {
            tx.rollback().await.map_err(no_answer)?;
            return Ok(Some(Sold::Out));
        }
        tx.commit().await.map_err(no_answer)?;
        Ok(Some(Sold::New(order)))
    }
}
