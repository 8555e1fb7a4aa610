//! What guards tell the operators of.

use super::{Ledger, fault, word};
use crate::domain::alert::{Alert, AlertKind};
use crate::domain::fault::Fault;
use crate::domain::ids::UserId;

impl Ledger {
    /// Raises an alert.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn raise_alert(&self, kind: AlertKind, user: &UserId, detail: &str) -> Result<(), Fault> {
        sqlx::query!(
            "insert into guard_alerts (kind, user_id, detail) values ($1, $2, $3)",
            kind.as_str(),
            user.as_str(),
            detail
        )
        .execute(&self.api)
        .await
        .map_err(|error| fault(&error))?;
        Ok(())
    }

    /// Up to `max` alerts, newest first, older than the one with this number.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn guard_alerts(&self, before: Option<i64>, max: i64) -> Result<Vec<Alert>, Fault> {
        let rows = sqlx::query!(
            "select alert_id, raised_at, kind, user_id, detail from guard_alerts \
             where $1::int8 is null or alert_id < $1 order by alert_id desc limit $2",
            before,
            max
        )
        .fetch_all(&self.reports)
        .await
        .map_err(|error| fault(&error))?;
        rows.into_iter()
            .map(|row| {
                Ok(Alert {
                    id: row.alert_id,
                    raised_at: row.raised_at,
                    kind: AlertKind::from_name(&row.kind)
                        .ok_or_else(|| Fault::Bug(format!("in the ledger: an alert of kind {}", row.kind)))?,
                    user: word(&row.user_id)?,
                    detail: row.detail,
                })
            })
            .collect()
    }

    /// Forgets alerts of a month ago.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn forget_alerts(&self) -> Result<(), Fault> {
        sqlx::query!("delete from guard_alerts where raised_at < now() - interval '30 days'")
            .execute(&self.jobs)
            .await
            .map_err(|error| fault(&error))?;
        Ok(())
    }
}
