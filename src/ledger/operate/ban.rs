//! Bans: accounts that may not buy. Each decision is stored with the messages that deliver it, so a crash leaves both
//! or none.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::operator::console::OperatorName;
use crate::domain::sale::shard::home_shard;
use crate::domain::shopper::ban::{Ban, BanEnd, BannedBy, NewBan};
use crate::ledger::news::notify_changed;
use crate::ledger::outbox::{Message, send_all};
use crate::ledger::{Ledger, Tx, acquire, begin, commit, small, unsigned, word};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

struct BanRow {
    user_id: String,
    reason: String,
    banned_by: String,
    operator: Option<String>,
    banned_at: DateTime<Utc>,
    banned_until: Option<DateTime<Utc>>,
    lifted_at: Option<DateTime<Utc>>,
    sessions_from: Option<DateTime<Utc>>,
    revision: i32,
    change: i64,
}

impl BanRow {
    fn into_ban(self) -> Result<Ban, Fault> {
        let banned_by = BannedBy::from_name(&self.banned_by)
            .ok_or_else(|| Fault::Bug(format!("in the ledger: banned by {}", self.banned_by)))?;
        Ok(Ban {
            user: word(&self.user_id)?,
            reason: self.reason,
            banned_by,
            // An instance of a version without names leaves the one of the decision before.
            operator: self.operator.filter(|_| banned_by == BannedBy::Operator),
            banned_at: self.banned_at,
            banned_until: self.banned_until,
            lifted_at: self.lifted_at,
            sessions_from: self.sessions_from,
            revision: unsigned(i64::from(self.revision))?,
            change: self.change,
        })
    }
}

/// Selects bans by a condition.
macro_rules! select_bans {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query_as!(BanRow, "select user_id, reason, banned_by, operator, banned_at, banned_until, lifted_at, \
            sessions_from, revision, change from bans where " + $condition $(, $argument)*)
    };
}

impl Ledger {
    /// Bans an account, and writes a message for its home shard in every sale that is in Redis. If an earlier decision
    /// ended its sessions, they stay ended. `None` when a guard would ban an account that is banned, or whose ban was
    /// lifted less than two minutes ago: an operator's decision outranks a guard's. `None` also when the end has passed.
    pub async fn ban(&self, new: &NewBan) -> Result<Option<Ban>, Fault> {
        let (at, after) = match new.end {
            BanEnd::Never => (None, None),
            BanEnd::At(at) => (Some(at), None),
            BanEnd::After(seconds) => (None, Some(i64::from(seconds))),
        };
        let mut tx = begin(&self.jobs).await?;
        lock_changes(&mut tx).await?;
        let row = sqlx::query_as!(
            BanRow,
            "insert into bans as known (user_id, reason, banned_by, operator, banned_until, sessions_from, change) \
             select $1, $2, $3, $8, it.until, case when $5 then now() end, nextval('ban_changes') \
             from (select coalesce($4::timestamptz, now() + $7::int8 * interval '1 second') as until) it \
             where it.until is null or it.until > now() \
             on conflict (user_id) do update set reason = excluded.reason, banned_by = excluded.banned_by, \
                 operator = excluded.operator, banned_at = now(), banned_until = excluded.banned_until, \
                 lifted_at = null, sessions_from = coalesce(excluded.sessions_from, known.sessions_from), \
                 revision = known.revision % 32767 + 1, change = excluded.change \
             where $6 or known.banned_until <= now() or known.lifted_at < now() - interval '2 minutes' \
             returning user_id, reason, banned_by, operator, banned_at, banned_until, lifted_at, sessions_from, \
                 revision, change",
            new.user.as_str(),
            new.reason,
            new.banned_by.as_str(),
            at,
            new.end_sessions,
            new.banned_by == BannedBy::Operator,
            after,
            new.operator.as_ref().map(OperatorName::as_str)
        )
        .fetch_optional(&mut *tx)
        .await?;
        decided(tx, &new.user, row).await
    }

    /// The bans and lifts of the last ten minutes, at most ten thousand of them: a Redis that has lost its last writes
    /// may lack them.
    pub async fn recent_bans(&self) -> Result<Vec<Ban>, Fault> {
        recent_bans(&mut *acquire(&self.jobs).await?).await
    }

    /// The last decision about each account of which a message to these shards is undelivered.
    pub async fn waiting_bans(&self, sale: SaleId, shards: &[u16]) -> Result<Vec<Ban>, Fault> {
        let shards: Vec<i16> = shards.iter().map(|shard| small(*shard)).collect();
        let rows = select_bans!(
            "user_id in \
                 (select message ->> 'user' from outbox where sale_id = $1 and shard = any($2) \
                  and failure is null and message ->> 'kind' <> 'resolve' and message ->> 'kind' = 'ban')",
            sale.0,
            &shards
        )
        .fetch_all(&self.jobs)
        .await?;
        rows.into_iter().map(BanRow::into_ban).collect()
    }

    /// Lifts an account's ban; `None` when the account is not banned.
    pub async fn lift_ban(&self, user: &UserId) -> Result<Option<Ban>, Fault> {
        let mut tx = begin(&self.jobs).await?;
        lock_changes(&mut tx).await?;
        let row = sqlx::query_as!(
            BanRow,
            "update bans set lifted_at = now(), revision = revision % 32767 + 1, change = nextval('ban_changes') \
             where user_id = $1 and lifted_at is null and (banned_until is null or banned_until > now()) \
             returning user_id, reason, banned_by, operator, banned_at, banned_until, lifted_at, sessions_from, \
                 revision, change",
            user.as_str()
        )
        .fetch_optional(&mut *tx)
        .await?;
        decided(tx, user, row).await
    }

    /// The ban of an account, if it is in force.
    pub async fn ban_in_force(&self, user: &UserId) -> Result<Option<Ban>, Fault> {
        let row = select_bans!(
            "user_id = $1 and lifted_at is null and (banned_until is null or banned_until > now())",
            user.as_str()
        );
        let row = row.fetch_optional(&self.api).await?;
        row.map(BanRow::into_ban).transpose()
    }

    /// The last decision about an account, if there is one.
    pub async fn ban_of(&self, user: &UserId) -> Result<Option<Ban>, Fault> {
        let row = select_bans!("user_id = $1", user.as_str());
        // A caller that delivers the decision holds a connection of the jobs' pool, so this one uses another pool.
        let row = row.fetch_optional(&self.api).await?;
        row.map(BanRow::into_ban).transpose()
    }

    /// Up to `max` accounts that are banned now, in the order of their ids, after the one given.
    pub async fn banned(&self, after: Option<&UserId>, max: i64) -> Result<Vec<Ban>, Fault> {
        banned(&mut *acquire(&self.jobs).await?, after, max).await
    }

    /// Up to `max` accounts that are banned now, the latest decision first, after the one given.
    pub async fn banned_newest_first(&self, after: Option<&UserId>, max: i64) -> Result<Vec<Ban>, Fault> {
        let rows = select_bans!(
            "lifted_at is null and (banned_until is null or banned_until > now()) \
                 and ($1::text is null or change < (select change from bans where user_id = $1)) \
             order by change desc limit $2",
            after.map(UserId::as_str),
            max
        )
        .fetch_all(&self.reports)
        .await?;
        rows.into_iter().map(BanRow::into_ban).collect()
    }

    /// The last decision about each account, if its number is above this one: up to `max` of them, oldest first.
    pub async fn bans_since(&self, change: i64, max: i64) -> Result<Vec<Ban>, Fault> {
        let rows = select_bans!("change > $1 order by change limit $2", change, max);
        let rows = rows.fetch_all(&self.api).await?;
        rows.into_iter().map(BanRow::into_ban).collect()
    }
}

/// [`Ledger::recent_bans`] on a given connection. Decisions are numbered in their order, so Postgres reads the numbers
/// from the newest to the first that is too old.
pub(in crate::ledger) async fn recent_bans(connection: &mut PgConnection) -> Result<Vec<Ban>, Fault> {
    let rows = select_bans!(
        "change > coalesce((select max(change) from bans \
             where greatest(banned_at, lifted_at) <= now() - interval '10 minutes'), 0) \
         order by change desc limit 10000"
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(BanRow::into_ban).collect()
}

/// [`Ledger::banned`] on a given connection.
pub(in crate::ledger) async fn banned(
    connection: &mut PgConnection,
    after: Option<&UserId>,
    max: i64,
) -> Result<Vec<Ban>, Fault> {
    let rows = select_bans!(
        "user_id > $1 and lifted_at is null and (banned_until is null or banned_until > now()) \
         order by user_id limit $2",
        after.map_or("", UserId::as_str),
        max
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(BanRow::into_ban).collect()
}

/// Lets one transaction decide at a time, so that decisions become visible in the order of their numbers. It also
/// excludes the start of a sale's loading: the sale gets the decisions before it, and later decisions find the sale.
pub(super) async fn lock_changes(tx: &mut Tx) -> Result<(), Fault> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('bans', 0)) as locked")
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Writes the messages of a decision, commits it, and returns the ban. Without a row, nothing was decided.
async fn decided(mut tx: Tx, user: &UserId, row: Option<BanRow>) -> Result<Option<Ban>, Fault> {
    let Some(row) = row else {
        return Ok(None);
    };
    let sales = sqlx::query!(
        "select sale_id, secret, shards from sales where state <> 'draft' and retired_at is null order by number"
    )
    .fetch_all(&mut *tx)
    .await?;
    for sale in sales {
        let secret: [u8; 32] = sale
            .secret
            .try_into()
            .map_err(|_wrong| Fault::Bug("in the ledger: a secret has not 32 bytes".to_owned()))?;
        let home = home_shard(&secret, user, unsigned(i64::from(sale.shards))?);
        let message = Message::Ban {
            user: user.as_str().to_owned(),
        };
        send_all(&mut tx, SaleId(sale.sale_id), &[(home, message)]).await?;
    }
    notify_changed(&mut tx).await?;
    commit(tx).await?;
    row.into_ban().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guards_ban_has_no_operator_though_the_decision_before_had_one() {
        let by = |banned_by: &str| BanRow {
            user_id: "bot".to_owned(),
            reason: "a test".to_owned(),
            banned_by: banned_by.to_owned(),
            operator: Some("Ada".to_owned()),
            banned_at: DateTime::UNIX_EPOCH,
            banned_until: None,
            lifted_at: None,
            sessions_from: None,
            revision: 2,
            change: 1,
        };
        let operator = |banned_by: &str| by(banned_by).into_ban().unwrap().operator;
        assert_eq!(operator("operator"), Some("Ada".to_owned()));
        assert_eq!(operator("browsing"), None);
    }
}
