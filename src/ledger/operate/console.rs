//! The sessions of operators at the console.

use crate::domain::fault::Fault;
use crate::domain::operator::console::{
    IDLE_SECONDS, ListedSession, OperatorName, SESSION_SECONDS, SESSIONS_MAX, Session,
};
use crate::ledger::{Ledger, begin, commit, word};
use std::net::IpAddr;
use uuid::Uuid;

impl Ledger {
    /// Begins a session. Beyond [`SESSIONS_MAX`], the oldest sessions of the name with the most sessions end: a key that
    /// may only read must not end those of others.
    pub async fn begin_session(
        &self,
        digest: &[u8; 32],
        operator: Option<&OperatorName>,
        address: IpAddr,
    ) -> Result<Session, Fault> {
        let mut tx = begin(&self.api).await?;
        let row = sqlx::query!(
            "insert into console_sessions (digest, operator, address, expires_at) \
             values ($1, $2, $3, now() + $4 * interval '1 second') returning session_id, expires_at",
            digest.as_slice(),
            operator.map(OperatorName::as_str),
            address.to_string(),
            SESSION_SECONDS as f64
        )
        .fetch_one(&mut *tx)
        .await?;
        sqlx::query!(
            "delete from console_sessions where session_id in (select session_id from console_sessions \
                 order by row_number() over (partition by operator order by created_at desc, session_id), \
                     created_at desc, session_id offset $1)",
            SESSIONS_MAX
        )
        .execute(&mut *tx)
        .await?;
        commit(tx).await?;
        Ok(Session {
            id: row.session_id,
            operator: operator.cloned(),
            expires_at: row.expires_at,
        })
    }

    /// The session of this digest, if it exists and has not ended. Notes, once a minute, that it is in use.
    pub async fn session(&self, digest: &[u8; 32]) -> Result<Option<Session>, Fault> {
        let row = sqlx::query!(
            "select session_id, operator, expires_at, last_used_at < now() - interval '1 minute' as \"is_stale!\" \
             from console_sessions \
             where digest = $1 and expires_at > now() and last_used_at > now() - $2 * interval '1 second'",
            digest.as_slice(),
            IDLE_SECONDS as f64
        )
        .fetch_optional(&self.api)
        .await?;
        if let Some(row) = row.as_ref().filter(|row| row.is_stale) {
            let used = sqlx::query!(
                "update console_sessions set last_used_at = now() where session_id = $1",
                row.session_id
            );
            // A ledger that takes no writes still answers reads. The next request tries again.
            if let Err(error) = used.execute(&self.api).await {
                tracing::debug!(%error, "a session's use is not noted");
            }
        }
        row.map(|row| {
            Ok(Session {
                id: row.session_id,
                operator: row.operator.as_deref().map(word).transpose()?,
                expires_at: row.expires_at,
            })
        })
        .transpose()
    }

    /// Ends the session of this digest.
    pub async fn end_session(&self, digest: &[u8; 32]) -> Result<(), Fault> {
        sqlx::query!("delete from console_sessions where digest = $1", digest.as_slice())
            .execute(&self.api)
            .await?;
        Ok(())
    }

    /// Up to `max` sessions that have not ended, the newest first.
    pub async fn sessions(&self, max: i64) -> Result<Vec<ListedSession>, Fault> {
        let sessions = sqlx::query_as!(
            ListedSession,
            "select session_id, operator as name, address, created_at, last_used_at, expires_at from console_sessions \
             where expires_at > now() and last_used_at > now() - $1 * interval '1 second' \
             order by created_at desc, session_id limit $2",
            IDLE_SECONDS as f64,
            max
        )
        .fetch_all(&self.api)
        .await?;
        Ok(sessions)
    }

    /// Ends the session of this id, and returns it as it was. None if there is none.
    pub async fn end_listed_session(&self, id: Uuid) -> Result<Option<ListedSession>, Fault> {
        let session = sqlx::query_as!(
            ListedSession,
            "delete from console_sessions where session_id = $1 \
             returning session_id, operator as name, address, created_at, last_used_at, expires_at",
            id
        )
        .fetch_optional(&self.api)
        .await?;
        Ok(session)
    }

    /// Deletes expired sessions. Idle ones stay until then: older instances do not note that a session is in use.
    pub async fn forget_sessions(&self) -> Result<(), Fault> {
        sqlx::query!("delete from console_sessions where expires_at < now()")
            .execute(&self.jobs)
            .await?;
        Ok(())
    }
}
