//! The audit log of operators' actions: append-only, kept for ninety days at least.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::console::{Action, NewAction, OperatorName};
use crate::ledger::Ledger;
use serde_json::Value;

impl Ledger {
    /// Stores that an action has begun; returns its number.
    pub async fn begin_action(&self, new: &NewAction) -> Result<i64, Fault> {
        sqlx::query_scalar!(
            "insert into operator_actions (actor, session_id, operator, address, action, sale_id, detail) \
             values ($1, $2, $3, $4, $5, $6, $7) returning action_id",
            new.actor.as_str(),
            new.actor.session(),
            new.operator.as_ref().map(OperatorName::as_str),
            new.address,
            new.action,
            new.sale.map(|sale| sale.0),
            Value::Object(new.detail.clone())
        )
        .fetch_one(&self.api)
        .await
        .map_err(Fault::from)
    }

    /// Stores the outcome of an action, and its sale if that was not known when the action began.
    pub async fn end_action(&self, id: i64, outcome: &str, sale: Option<SaleId>) -> Result<(), Fault> {
        sqlx::query!(
            "update operator_actions set outcome = $2, ended_at = now(), sale_id = coalesce(sale_id, $3) \
             where action_id = $1 and outcome is null",
            id,
            outcome,
            sale.map(|sale| sale.0)
        )
        .execute(&self.api)
        .await?;
        Ok(())
    }

    /// Up to `max` actions, newest first, older than the one with this number; of one sale, or all.
    pub async fn actions(&self, sale: Option<SaleId>, before: Option<i64>, max: i64) -> Result<Vec<Action>, Fault> {
        let rows = sqlx::query_as!(
            Action,
            "select action_id as id, begun_at, ended_at, actor, session_id, operator, address, action, sale_id, \
             detail, outcome from operator_actions where ($1::uuid is null or sale_id = $1) and ($2::int8 is null or action_id < $2) \
             order by action_id desc limit $3",
            sale.map(|sale| sale.0),
            before,
            max
        );
        rows.fetch_all(&self.reports).await.map_err(Fault::from)
    }
}
