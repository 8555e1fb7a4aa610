//! The sessions of operators at the console.

use super::{Ledger, begin, commit, word};
use crate::domain::console::{OperatorName, SESSION_SECONDS, SESSIONS_MAX, Session};
use crate::domain::fault::Fault;
use std::net::IpAddr;

impl Ledger {
    /// Begins a session. Beyond [`SESSIONS_MAX`], the oldest sessions end.
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
            "delete from console_sessions where session_id in \
                 (select session_id from console_sessions order by created_at desc, session_id offset $1)",
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

    /// The session of this digest, if it exists and has not ended.
    pub async fn session(&self, digest: &[u8; 32]) -> Result<Option<Session>, Fault> {
        let row = sqlx::query!(
            "select session_id, operator, expires_at from console_sessions where digest = $1 and expires_at > now()",
            digest.as_slice()
        )
        .fetch_optional(&self.api)
        .await?;
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

    /// Deletes expired sessions.
    pub async fn forget_sessions(&self) -> Result<(), Fault> {
        sqlx::query!("delete from console_sessions where expires_at < now()")
            .execute(&self.jobs)
            .await?;
        Ok(())
    }
}
