//! One Postgres transaction for each purchase, in one round trip: a function and its commit. All purchases queue for
//! the item's row. The function locks that row last, for one statement and the commit.

use super::{Books, Sold, Wanted, no_answer, order};
use flashsale::domain::fault::Fault;

/// The codes that the function raises when other purchases won after its first checks. Postgres then rolls back all its
/// work.
const LIMIT_REACHED: &str = "S0001";
const SOLD_OUT: &str = "S0002";

pub(super) struct DatabaseOnly(Books);

impl DatabaseOnly {
    pub(super) const fn over(books: Books) -> Self {
        Self(books)
    }

    /// Sells, or gives the refusal; `None` if the item does not exist.
    pub(super) async fn sell(&self, wanted: &Wanted) -> Result<Option<Sold>, Fault> {
        let Some(item) = self.0.listed(wanted).await? else {
            return Ok(None);
        };
        let order = order(wanted, &item);
        let answer: Result<String, sqlx::Error> =
            sqlx::query_scalar("select buy($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
                .bind(order.id.0)
                .bind(order.sale_id.0)
                .bind(order.sku.as_str())
                .bind(wanted.user.as_str())
                .bind(wanted.key.as_str())
                .bind(wanted.quantity)
                .bind(item.per_user_limit)
                .bind(order.amount_minor)
                .bind(&order.currency)
                .bind(order.created_at)
                .bind(order.expires_at)
                .fetch_one(&self.0.pool)
                .await;
        let raised = |error: &sqlx::Error, code| {
            error
                .as_database_error()
                .is_some_and(|it| it.code().as_deref() == Some(code))
        };
        match answer {
            Ok(answer) => match answer.as_str() {
                "new" => Ok(Some(Sold::New(order))),
                "known" => self.0.find(wanted).await,
                "limit" => Ok(Some(Sold::LimitReached)),
                "out" => Ok(Some(Sold::Out)),
                other => Err(no_answer(other)),
            },
            Err(error) if raised(&error, LIMIT_REACHED) => Ok(Some(Sold::LimitReached)),
            Err(error) if raised(&error, SOLD_OUT) => Ok(Some(Sold::Out)),
            Err(error) => Err(no_answer(error)),
        }
    }
}
