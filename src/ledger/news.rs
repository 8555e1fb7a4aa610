//! News: notifications from one process to all others through Postgres (`NOTIFY`). A drain notifies after its commit,
//! not in the same transaction: commits that notify queue up behind one lock, each for as long as the disk takes.

use super::{Ledger, Tx};
use crate::domain::fault::Fault;
use sqlx::postgres::PgListener;
use std::time::Duration;
use tokio::time::timeout;
use uuid::Uuid;

/// After so long without a notification, the connection must answer if somebody depends on notifications; after so many
/// such times, in any case. A network that drops a connection says nothing, and its instance would wait for ever.
const SILENCE_MAX: Duration = Duration::from_secs(2);
const SILENCES_MAX: u32 = 5;
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

const DRAINED: &str = "flashsale_drained";
/// The channel for changes of the guards, of bans, and of the list of sales.
const CHANGED: &str = "flashsale_changed";
/// The channel for new guard warnings.
pub(super) const RAISED: &str = "flashsale_raised";

pub struct News(PgListener);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification {
    /// Another process has committed orders.
    Committed,
    Changed,
    Raised,
    /// The connection is a new one: any notification may have been lost in between.
    Anything,
}

impl Ledger {
    /// Receives notifications from now on, on a connection of its own.
    pub async fn news(&self) -> Result<News, Fault> {
        let mut listener = PgListener::connect_with(&self.news).await?;
        let channels = [DRAINED, CHANGED, RAISED];
        listener.listen_all(channels).await?;
        Ok(News(listener))
    }

    /// Notifies every process that `process` has committed orders. Fails with `Unavailable` when Postgres does not
    /// answer: then no process is notified.
    pub async fn notify_committed(&self, process: Uuid) -> Result<(), Fault> {
        // A notification need not outlive a crash, so the commit does not wait for the disk.
        sqlx::query!(
            "select set_config('synchronous_commit', 'off', true) as kept, pg_notify($1, $2) as notified",
            DRAINED,
            process.to_string()
        )
        .fetch_one(&self.jobs)
        .await?;
        Ok(())
    }
}

/// Notifies every process of a change, once the transaction commits.
pub(super) async fn notify_changed(tx: &mut Tx) -> Result<(), sqlx::Error> {
    let notified = sqlx::query!("select pg_notify($1, '') as notified", CHANGED);
    notified.fetch_one(&mut **tx).await.map(drop)
}

impl News {
    /// Waits for the next notification, except those about commits of the process `own`. Fails with `Unavailable` when
    /// there is no connection any more. That is noticed soon while the caller depends on notifications.
    pub async fn next(&mut self, own: Uuid, depends: impl Fn() -> bool) -> Result<Notification, Fault> {
        let (own, mut silences) = (own.to_string(), 0);
        loop {
            let Ok(received) = timeout(SILENCE_MAX, self.0.try_recv()).await else {
                silences += 1;
                if depends() || silences >= SILENCES_MAX {
                    self.answers().await?;
                    silences = 0;
                }
                continue;
            };
            return Ok(match received? {
                None => Notification::Anything,
                Some(news) if news.channel() == CHANGED => Notification::Changed,
                Some(news) if news.channel() == RAISED => Notification::Raised,
                Some(news) if news.payload() == own => continue,
                Some(_) => Notification::Committed,
            });
        }
    }

    async fn answers(&mut self) -> Result<(), Fault> {
        let answer = sqlx::query_scalar!("select 1 as \"listens!\"").fetch_one(&mut self.0);
        match timeout(ANSWER_MAX, answer).await {
            Ok(answer) => answer.map(drop).map_err(Fault::from),
            Err(_) => Err(Fault::Unavailable("the connection for news does not answer".to_owned())),
        }
    }
}
