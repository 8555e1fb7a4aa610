//! Guard warnings: guards raise them, and a sender delivers each to the operators' webhook. A crash leaves a claim that
//! ends by itself; then the warning is sent again.

use crate::domain::fault::Fault;
use crate::domain::ids::UserId;
use crate::domain::operator::alert::{Alert, AlertKind, DELIVER_FOR, ListedAlert};
use crate::ledger::news::RAISED;
use crate::ledger::{Ledger, begin, commit, unsigned, word};
use chrono::{DateTime, Utc};
use std::time::Duration;
use uuid::Uuid;

/// How long a warning stays claimed by one sender: longer than a delivery may take. Then others may send it.
const CLAIM: Duration = Duration::from_secs(15);
/// Warnings that are given up in one step.
const GIVE_UP_MAX: i64 = 1000;

/// A claimed warning: no other sender delivers it meanwhile.
#[derive(Debug, Clone)]
pub struct ClaimedAlert {
    pub alert: Alert,
    /// Its id for the webhook.
    pub webhook_id: Uuid,
    /// How often its delivery was attempted before.
    pub attempts: u32,
    /// Until when it is claimed.
    claimed_until: DateTime<Utc>,
}

/// A warning from the columns of its row.
fn alert(id: i64, raised_at: DateTime<Utc>, kind: &str, user: &str, detail: String) -> Result<Alert, Fault> {
    Ok(Alert {
        id,
        raised_at,
        kind: AlertKind::from_name(kind)
            .ok_or_else(|| Fault::Bug(format!("in the ledger: a guard warning of kind {kind}")))?,
        user: word(user)?,
        detail,
    })
}

impl Ledger {
    /// Raises a warning, and notifies every process. Warnings become visible in the order of their numbers: a reader
    /// that has seen one has seen all before it.
    pub async fn raise_alert(&self, kind: AlertKind, user: &UserId, detail: &str) -> Result<(), Fault> {
        sqlx::query!(
            "with turn as (select pg_advisory_xact_lock(hashtextextended('raising of alerts', 0)) as taken), \
                 raised as (insert into guard_alerts (kind, user_id, detail) select $1, $2, $3 from turn \
                     returning alert_id) \
             select pg_notify($4, '') as notified from raised",
            kind.as_str(),
            user.as_str(),
            detail,
            RAISED
        )
        .fetch_one(&self.jobs)
        .await?;
        Ok(())
    }

    /// Up to `max` warnings, newest first, older than the one with this number.
    pub async fn guard_alerts(&self, before: Option<i64>, max: i64) -> Result<Vec<ListedAlert>, Fault> {
        let rows = sqlx::query!(
            "select alert_id, raised_at, kind, user_id, detail, delivered_at, given_up_at from guard_alerts \
             where $1::int8 is null or alert_id < $1 order by alert_id desc limit $2",
            before,
            max
        )
        .fetch_all(&self.reports)
        .await?;
        let alerts = rows.into_iter().map(|row| {
            Ok(ListedAlert {
                alert: alert(row.alert_id, row.raised_at, &row.kind, &row.user_id, row.detail)?,
                delivered_at: row.delivered_at,
                given_up_at: row.given_up_at,
            })
        });
        alerts.collect()
    }

    /// How many warnings are younger than that, counted up to `max`.
    pub async fn recent_alerts(&self, within: Duration, max: i64) -> Result<i64, Fault> {
        sqlx::query_scalar!(
            "select count(*) as \"recent!\" from (select 1 as one from guard_alerts \
             where raised_at > now() - $1 * interval '1 second' limit $2) recent",
            within.as_secs_f64(),
            max
        )
        .fetch_one(&self.reports)
        .await
        .map_err(Fault::from)
    }

    /// Up to `max` warnings, oldest first, newer than the one with this number.
    pub async fn alerts_after(&self, after: i64, max: i64) -> Result<Vec<Alert>, Fault> {
        let rows = sqlx::query!(
            "select alert_id, raised_at, kind, user_id, detail from guard_alerts \
             where alert_id > $1 order by alert_id limit $2",
            after,
            max
        )
        .fetch_all(&self.api)
        .await?;
        rows.into_iter()
            .map(|row| alert(row.alert_id, row.raised_at, &row.kind, &row.user_id, row.detail))
            .collect()
    }

    /// The number of the newest warning; 0 when there is none.
    pub async fn newest_alert(&self) -> Result<i64, Fault> {
        sqlx::query_scalar!("select coalesce(max(alert_id), 0) as \"newest!\" from guard_alerts")
            .fetch_one(&self.api)
            .await
            .map_err(Fault::from)
    }

    /// Claims the oldest warning that is due; `None` when there is none, or while another sender has claimed one. So
    /// warnings arrive one after the other, in their order.
    pub async fn claim_alert(&self) -> Result<Option<ClaimedAlert>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        let is_first = sqlx::query_scalar!(
            "select pg_try_advisory_xact_lock(hashtextextended('claiming of alerts', 0)) as \"locked!\""
        )
        .fetch_one(&mut *tx)
        .await?;
        if !is_first {
            return Ok(None);
        }
        let row = sqlx::query!(
            "update guard_alerts set claimed_until = now() + $2 * interval '1 second' where alert_id = \
                 (select alert_id from guard_alerts where delivered_at is null and given_up_at is null \
                  and not_before <= now() and raised_at > now() - $1 * interval '1 second' \
                  order by alert_id limit 1 for update skip locked) \
             and not exists (select from guard_alerts where delivered_at is null and given_up_at is null \
                 and claimed_until > now()) \
             returning alert_id, raised_at, kind, user_id, detail, webhook_id, attempts, \
                 claimed_until as \"claimed_until!\"",
            DELIVER_FOR.as_secs_f64(),
            CLAIM.as_secs_f64()
        )
        .fetch_optional(&mut *tx)
        .await?;
        commit(tx).await?;
        let Some(row) = row else {
            return Ok(None);
        };
        Ok(Some(ClaimedAlert {
            alert: alert(row.alert_id, row.raised_at, &row.kind, &row.user_id, row.detail)?,
            webhook_id: row.webhook_id,
            attempts: unsigned(i64::from(row.attempts))?,
            claimed_until: row.claimed_until,
        }))
    }

    /// Notes that the webhook has accepted a warning. Fails with `Unavailable` when Postgres does not answer: the
    /// warning is sent once more when its claim is over.
    pub async fn alert_delivered(&self, claimed: &ClaimedAlert) -> Result<(), Fault> {
        // This counts also if the claim is over, or if the warning was given up meanwhile.
        sqlx::query!(
            "update guard_alerts set delivered_at = now(), given_up_at = null, claimed_until = null, \
             attempts = attempts + 1 where alert_id = $1 and delivered_at is null",
            claimed.alert.id
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Notes that the webhook has not accepted a warning, which is sent again after this time. Fails with `Unavailable`
    /// when Postgres does not answer: the warning is sent once more when its claim is over.
    pub async fn alert_failed(&self, claimed: &ClaimedAlert, again_after: Duration) -> Result<(), Fault> {
        // If the claim is over, the sender that has the warning now decides.
        sqlx::query!(
            "update guard_alerts set attempts = attempts + 1, claimed_until = null, \
             not_before = now() + $3 * interval '1 second' \
             where alert_id = $1 and claimed_until = $2 and delivered_at is null",
            claimed.alert.id,
            claimed.claimed_until,
            again_after.as_secs_f64()
        )
        .execute(&self.jobs)
        .await?;
        Ok(())
    }

    /// Gives up warnings that were not delivered in time; returns how many.
    pub async fn give_alerts_up(&self) -> Result<u64, Fault> {
        let given_up = sqlx::query!(
            "update guard_alerts set given_up_at = now(), claimed_until = null where alert_id in \
                 (select alert_id from guard_alerts where delivered_at is null and given_up_at is null \
                  and raised_at <= now() - $1 * interval '1 second' \
                  and (claimed_until is null or claimed_until <= now()) \
                  order by alert_id limit $2 for update skip locked)",
            DELIVER_FOR.as_secs_f64(),
            GIVE_UP_MAX
        )
        .execute(&self.jobs)
        .await?;
        Ok(given_up.rows_affected())
    }
}
