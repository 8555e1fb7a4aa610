//! News: a drain tells every process what it has committed, in the same transaction (`NOTIFY`).

use super::{Ledger, Tx, fault};
use crate::domain::fault::Fault;
use sqlx::postgres::PgListener;

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
}

impl News {
    /// Returns after a commit, and after a new connection: what was told in between was not heard.
    ///
    /// # Errors
    /// `Unavailable` when there is no connection any more.
    pub async fn next(&mut self) -> Result<(), Fault> {
        self.0.try_recv().await.map_err(|error| fault(&error))?;
        Ok(())
    }
}

/// Tells it everybody, once this transaction is committed.
pub(super) async fn tell(tx: &mut Tx) -> Result<(), Fault> {
    sqlx::query!("select pg_notify($1, '') as told", CHANNEL)
        .execute(&mut **tx)
        .await
        .map_err(|error| fault(&error))?;
    Ok(())
}
