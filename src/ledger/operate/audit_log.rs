//! The audit log of operators' actions: append-only, kept for ninety days at least.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::console::{Action, NewAction, OperatorName, WantedActions};
use crate::ledger::snapshot::Snapshot;
use crate::ledger::{Ledger, acquire};
use serde_json::Value;
use sqlx::PgConnection;

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

    /// Up to `max` actions, newest first.
    pub async fn actions(&self, wanted: &WantedActions, max: i64) -> Result<Vec<Action>, Fault> {
        let mut connection = acquire(&self.reports).await?;
        newest(&mut connection, wanted, max).await
    }
}

impl Snapshot {
    /// Up to `max` actions, newest first.
    pub async fn actions(&mut self, wanted: &WantedActions, max: i64) -> Result<Vec<Action>, Fault> {
        newest(&mut self.0, wanted, max).await
    }
}

async fn newest(connection: &mut PgConnection, wanted: &WantedActions, max: i64) -> Result<Vec<Action>, Fault> {
    // Numbers grow with time, but for the seconds that a statement may take, and for a new server's clock. So the index
    // `operator_actions_by_age` turns each time, with an hour to spare, into a number. Between the two numbers the list
    // follows the primary key or `operator_actions_by_sale`, and passes over the actions of two hours at most.
    let rows = sqlx::query_as!(
        Action,
        "select action_id as id, begun_at, ended_at, actor, session_id, operator, address, action, sale_id, \
         detail, outcome from operator_actions where ($1::uuid is null or sale_id = $1) \
         and begun_at >= coalesce($2::timestamptz, '-infinity') and begun_at < coalesce($3::timestamptz, 'infinity') \
         and action_id > coalesce((select a.action_id from operator_actions a \
             where a.begun_at < $2::timestamptz - interval '1 hour' order by a.begun_at desc limit 1), 0) \
         and action_id < coalesce(least($4::int8, (select a.action_id from operator_actions a \
             where a.begun_at > $3::timestamptz + interval '1 hour' order by a.begun_at limit 1)), 9223372036854775807) \
         order by action_id desc limit $5",
        wanted.sale.map(|sale| sale.0),
        wanted.from,
        wanted.to,
        wanted.before,
        max
    );
    rows.fetch_all(connection).await.map_err(Fault::from)
}
