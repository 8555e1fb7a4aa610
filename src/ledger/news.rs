//! News: a drain tells every process that it has committed (`NOTIFY`). Afterwards, not in the same transaction: commits
//! that notify queue up behind one lock, each for as long as the disk takes.

use super::{Ledger, fault};
use crate::domain::fault::Fault;
use sqlx::postgres::PgListener;
use uuid::Uuid;

/// Where drains tell it.
const CHANNEL: &str = "flashsale_drained";

/// Hears of commits.
pub struct News(PgListener);

impl Ledger {
    /// Listens from now on, on a connection of its own.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer.
    pub async fn news(&self) -> Result<News, Fault> {
        let mut listener = PgListener::connect_with(&self.news)
            .await
            .map_err(|error| fault(&error))?;
        listener.listen(CHANNEL).await.map_err(|error| fault(&error))?;
        Ok(News(listener))
    }

    /// Tells every process that `process` has committed orders.
    ///
    /// # Errors
    /// `Unavailable` when Postgres does not answer: then nobody hears of it.
    pub async fn tell_committed(&self, process: Uuid) -> Result<(), Fault> {
        // What is told need not outlive a crash, so the commit does not wait for the disk.
        sqlx::query!(
            "select set_config('synchronous_commit', 'off', true) as kept, pg_notify($1, $2) as told",
            CHANNEL,
            process.to_string()
        )
        .fetch_one(&self.jobs)
        .await
        .map_err(|error| fault(&error))?;
        Ok(())
    }
}

impl News {
    /// Returns after a commit of another process than `own`, and after a new connection: what was told in between was
    /// not heard.
    ///
    /// # Errors
    /// `Unavailable` when there is no connection any more.
    pub async fn next(&mut self, own: Uuid) -> Result<(), Fault> {
        let own = own.to_string();
        loop {
            match self.0.try_recv().await.map_err(|error| fault(&error))? {
                Some(news) if news.payload() == own => {}
                _ => return Ok(()),
            }
        }
    }
}
