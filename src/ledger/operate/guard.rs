//! The operators' settings of the guards, and the refusal counts of each layer.
//!
//! The settings for everybody and the stages are two columns. An instance of a version without stages reads the settings
//! alone, and applies them to all shoppers.

use crate::domain::fault::Fault;
use crate::domain::guard::{Effect, GuardOverrides, Layer, RefusalTotals, merge_patch};
use crate::domain::ids::SaleId;
use crate::ledger::news::notify_changed;
use crate::ledger::{Ledger, begin, commit};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

impl Ledger {
    /// The operators' settings and stages, which override the configuration.
    pub async fn guard_overrides(&self) -> Result<GuardOverrides, Fault> {
        let row = sqlx::query!("select settings, stages from guard_settings")
            .fetch_one(&self.api)
            .await?;
        let unreadable = |error: serde_json::Error| Fault::Bug(format!("the guards' settings: {error}"));
        Ok(GuardOverrides {
            changed: serde_json::from_value(row.settings).map_err(unreadable)?,
            staged: serde_json::from_value(row.stages).map_err(unreadable)?,
        })
    }

    /// Applies a patch to the settings and stages, as [`merge_patch`] does. Stores the result if `is_right` accepts it,
    /// and notifies every process. Returns the new ones, or what is wrong.
    pub async fn change_guards<E>(
        &self,
        patch: Map<String, Value>,
        is_right: impl FnOnce(Value, Value) -> Result<GuardOverrides, E>,
    ) -> Result<Result<GuardOverrides, E>, Fault> {
        let mut tx = begin(&self.api).await?;
        let before = sqlx::query!("select settings, stages from guard_settings for update")
            .fetch_one(&mut *tx)
            .await?;
        let mut settings = before.settings.as_object().cloned().unwrap_or_default();
        let mut stages = before.stages.as_object().cloned().unwrap_or_default();
        merge_patch(&mut settings, &mut stages, patch);
        let (settings, stages) = (Value::Object(settings), Value::Object(stages));
        let changed = match is_right(settings.clone(), stages.clone()) {
            Ok(changed) => changed,
            Err(wrong) => return Ok(Err(wrong)),
        };
        sqlx::query!("update guard_settings set settings = $1, stages = $2", settings, stages)
            .execute(&mut *tx)
            .await?;
        notify_changed(&mut tx).await?;
        commit(tx).await?;
        Ok(Ok(changed))
    }

    /// Adds refusal counts, for sales that exist. Returns for how many pairs of sale and layer. Sales that are being
    /// archived are left out, as in [`Ledger::add_history`].
    pub async fn add_refusal_counts(&self, counts: &HashMap<(SaleId, Layer, Effect), u32>) -> Result<usize, Fault> {
        // In one order, so that two processes do not wait for each other.
        let mut pairs: BTreeMap<(Uuid, &str), (i64, i64)> = BTreeMap::new();
        for ((sale, layer, effect), count) in counts {
            let (stopped, would_stop) = pairs.entry((sale.0, layer.as_str())).or_default();
            match effect {
                Effect::Refused => *stopped += i64::from(*count),
                Effect::Shadow => *would_stop += i64::from(*count),
            }
        }
        let sales: Vec<Uuid> = pairs.keys().map(|(sale, _)| *sale).collect();
        let layers: Vec<String> = pairs.keys().map(|(_, layer)| (*layer).to_owned()).collect();
        let (stopped, would_stop): (Vec<i64>, Vec<i64>) = pairs.into_values().unzip();
        let added = sqlx::query!(
            "insert into guard_stopped as known (sale_id, layer, stopped, would_stop) \
             select n.sale_id, n.layer, n.stopped, n.would_stop \
             from unnest($1::uuid[], $2::text[], $3::int8[], $4::int8[]) \
             as n (sale_id, layer, stopped, would_stop) join sales s on s.sale_id = n.sale_id \
             for key share of s skip locked \
             on conflict (sale_id, layer) do update set stopped = known.stopped + excluded.stopped, \
             would_stop = known.would_stop + excluded.would_stop",
            &sales,
            &layers,
            &stopped,
            &would_stop
        )
        .execute(&self.jobs)
        .await?;
        Ok(usize::try_from(added.rows_affected()).unwrap_or(usize::MAX))
    }

    /// How many requests for a sale each layer has refused, and would have refused.
    pub async fn refusal_counts(&self, sale: SaleId) -> Result<RefusalTotals, Fault> {
        let rows = sqlx::query!(
            "select layer, stopped, would_stop from guard_stopped where sale_id = $1",
            sale.0
        )
        .fetch_all(&self.reports)
        .await?;
        let mut totals = RefusalTotals::default();
        for row in rows {
            let counts = [
                (&mut totals.stopped, row.stopped),
                (&mut totals.would_stop, row.would_stop),
            ];
            for (by_layer, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                by_layer.insert(row.layer.clone(), count);
            }
        }
        Ok(totals)
    }
}
