//! The operators' settings of the guards, and the refusal counts of each layer.

use super::news::CHANGED;
use super::{Ledger, begin, commit};
use crate::domain::fault::Fault;
use crate::domain::guard::{GuardChanges, Layer};
use crate::domain::ids::SaleId;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

impl Ledger {
    /// The operators' settings, which override the configuration.
    pub async fn guard_changes(&self) -> Result<GuardChanges, Fault> {
        let settings = sqlx::query_scalar!("select settings from guard_settings")
            .fetch_one(&self.api)
            .await?;
        serde_json::from_value(settings).map_err(|error| Fault::Bug(format!("the guards' settings: {error}")))
    }

    /// Applies `changes` to the settings: a null removes a setting, and other settings stay. Stores the result if
    /// `is_right` accepts it, and notifies every process. Returns the new settings, or what is wrong.
    pub async fn change_guards<E>(
        &self,
        changes: Map<String, Value>,
        is_right: impl FnOnce(Value) -> Result<GuardChanges, E>,
    ) -> Result<Result<GuardChanges, E>, Fault> {
        let mut tx = begin(&self.api).await?;
        let before = sqlx::query_scalar!("select settings from guard_settings for update")
            .fetch_one(&mut *tx)
            .await?;
        let mut settings = before.as_object().cloned().unwrap_or_default();
        settings.extend(changes);
        settings.retain(|_, value| !value.is_null());
        let settings = Value::Object(settings);
        let changed = match is_right(settings.clone()) {
            Ok(changed) => changed,
            Err(wrong) => return Ok(Err(wrong)),
        };
        sqlx::query!("update guard_settings set settings = $1", settings)
            .execute(&mut *tx)
            .await?;
        sqlx::query!("select pg_notify($1, '') as told", CHANGED)
            .fetch_one(&mut *tx)
            .await?;
        commit(tx).await?;
        Ok(Ok(changed))
    }

    /// Adds refusal counts, for sales that exist. Returns for how many pairs of sale and layer.
    pub async fn add_refusal_counts(&self, counts: &HashMap<(SaleId, Layer), u32>) -> Result<usize, Fault> {
        // In one order, so that two processes do not wait for each other.
        let counts: BTreeMap<(Uuid, &str), i64> = counts
            .iter()
            .map(|((sale, layer), count)| ((sale.0, layer.as_str()), i64::from(*count)))
            .collect();
        let sales: Vec<Uuid> = counts.keys().map(|(sale, _)| *sale).collect();
        let layers: Vec<String> = counts.keys().map(|(_, layer)| (*layer).to_owned()).collect();
        let refused: Vec<i64> = counts.values().copied().collect();
        let added = sqlx::query!(
            "insert into guard_stopped as known (sale_id, layer, stopped) \
             select n.sale_id, n.layer, n.stopped from unnest($1::uuid[], $2::text[], $3::int8[]) \
             as n (sale_id, layer, stopped) join sales s on s.sale_id = n.sale_id \
             on conflict (sale_id, layer) do update set stopped = known.stopped + excluded.stopped",
            &sales,
            &layers,
            &refused
        )
        .execute(&self.jobs)
        .await?;
        Ok(usize::try_from(added.rows_affected()).unwrap_or(usize::MAX))
    }

    /// How many requests for a sale each layer has refused.
    pub async fn refusal_counts(&self, sale: SaleId) -> Result<BTreeMap<String, i64>, Fault> {
        let rows = sqlx::query!("select layer, stopped from guard_stopped where sale_id = $1", sale.0)
            .fetch_all(&self.reports)
            .await?;
        Ok(rows.into_iter().map(|row| (row.layer, row.stopped)).collect())
    }
}
