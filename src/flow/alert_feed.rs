//! Alert feed: hand each alert, once it is committed, to all who follow them here.
//!
//! One task reads new alerts for all of them. Whoever comes later, or cannot keep up, reads what it has missed by
//! itself, by the numbers of alerts, which are committed in their order. Nothing is written; a crash leaves nothing,
//! and followers go on elsewhere after the last alert that they have.

use super::App;
use crate::domain::alert::Alert;
use crate::domain::fault::Fault;
use crate::ledger::Ledger;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How many may follow one instance. Whoever has gone without a word gives way once the system gives up sending to him,
/// which may take a quarter of an hour.
pub const FOLLOWERS_MAX: usize = 64;
/// Alerts that are kept for followers who are busy; who misses more reads them from the ledger.
const KEPT_MAX: usize = 256;
/// Alerts that are read in one step.
const PAGE_MAX: usize = 100;
/// After so long without news, alerts are looked for all the same.
const NEWS_MAX: Duration = Duration::from_millis(800);
/// How long one look may take.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long a follower waits after a look that failed.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Hands out alerts as they come.
pub struct AlertFeed {
    /// There may be a new one.
    pub(super) wanted: Notify,
    fresh: broadcast::Sender<Arc<Alert>>,
    /// Whether it is known from which alert on they are handed out.
    is_ready: watch::Sender<bool>,
    places: Arc<Semaphore>,
    ended: CancellationToken,
}

impl Default for AlertFeed {
    fn default() -> Self {
        Self {
            wanted: Notify::default(),
            fresh: broadcast::Sender::new(KEPT_MAX),
            is_ready: watch::Sender::new(false),
            places: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            ended: CancellationToken::new(),
        }
    }
}

impl AlertFeed {
    /// Ends all who follow, and whoever begins to.
    pub fn end(&self) {
        self.ended.cancel();
    }
}

/// Hands out new alerts for as long as the process runs. While Postgres is away there are none; afterwards, all that
/// came in between.
pub async fn keep(app: &App) {
    let feed = &app.alert_feed;
    let (mut last, mut is_broken) = (None, false);
    loop {
        let looked = timeout(LOOK_MAX, look(app, &mut last)).await;
        let broken = looked.ok().and_then(Result::err).filter(|fault| !fault.is_passing());
        // Said once, and not again with every look.
        if let Some(fault) = broken.as_ref().filter(|_| !is_broken) {
            tracing::error!(%fault, "alerts cannot be read");
        }
        is_broken = broken.is_some();
        if last.is_some() {
            feed.is_ready.send_replace(true);
        }
        let _no_news = timeout(NEWS_MAX, feed.wanted.notified()).await;
    }
}

/// Hands out what came after the `last` one.
async fn look(app: &App, last: &mut Option<i64>) -> Result<(), Fault> {
    let mut after = match *last {
        Some(after) => after,
        None => *last.insert(app.ledger.newest_alert().await?),
    };
    loop {
        let page = read_page(&app.ledger, after).await?;
        let is_last = page.len() < PAGE_MAX;
        for alert in page {
            after = alert.id;
            *last = Some(after);
            // There may be nobody.
            let _nobody = app.alert_feed.fresh.send(Arc::new(alert));
        }
        if is_last {
            return Ok(());
        }
    }
}

async fn read_page(ledger: &Ledger, after: i64) -> Result<Vec<Alert>, Fault> {
    ledger
        .alerts_after(after, i64::try_from(PAGE_MAX).unwrap_or(i64::MAX))
        .await
}

pub struct Follower {
    feed: Arc<AlertFeed>,
    ledger: Ledger,
    fresh: broadcast::Receiver<Arc<Alert>>,
    /// Read from the ledger, and not handed out yet.
    page: VecDeque<Alert>,
    /// The number of the last one that was handed out.
    last: i64,
    /// Whether the ledger may have some before the next fresh one.
    is_behind: bool,
    _place: OwnedSemaphorePermit,
}

/// Follows alerts: those after the one with this number, or those that are new from now on. `None` when so many do that
/// there is no place.
pub async fn follow(app: &App, after: Option<i64>) -> Result<Option<Follower>, Fault> {
    let feed = Arc::clone(&app.alert_feed);
    let Ok(place) = Arc::clone(&feed.places).try_acquire_owned() else {
        return Ok(None);
    };
    let mut is_ready = feed.is_ready.subscribe();
    if timeout(LOOK_MAX, is_ready.wait_for(|is_ready| *is_ready))
        .await
        .is_err()
    {
        return Err(Fault::Unavailable(
            "it is not known yet which alerts are new".to_owned(),
        ));
    }
    // Before the ledger is asked: an alert is in its answer or comes afterwards, or both.
    let fresh = feed.fresh.subscribe();
    let newest = app.ledger.newest_alert().await?;
    Ok(Some(Follower {
        feed,
        ledger: app.ledger.clone(),
        fresh,
        page: VecDeque::new(),
        // A number that was never given, as after a restore of an older copy, would keep all others out.
        last: after.unwrap_or(newest).min(newest),
        is_behind: after.is_some_and(|after| after < newest),
        _place: place,
    }))
}

impl Follower {
    /// The number of the last alert that was handed out, or of the one after which this began.
    #[must_use]
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// Waits for the next alert; `None` when this instance ends. Whoever stops to wait misses nothing.
    pub async fn next(&mut self) -> Option<Arc<Alert>> {
        let ended = self.feed.ended.clone();
        // Looked at first: a follower with much to read must not go on for ever.
        tokio::select! {
            biased;
            () = ended.cancelled() => None,
            alert = self.wait() => Some(alert),
        }
    }

    async fn wait(&mut self) -> Arc<Alert> {
        loop {
            if let Some(alert) = self.page.pop_front() {
                self.last = alert.id;
                return Arc::new(alert);
            }
            if self.is_behind {
                match timeout(LOOK_MAX, read_page(&self.ledger, self.last)).await {
                    Ok(Ok(page)) => {
                        self.is_behind = page.len() == PAGE_MAX;
                        self.page = page.into();
                    }
                    _ => sleep(AFTER_FAULT).await,
                }
                continue;
            }
            match self.fresh.recv().await {
                Ok(alert) if alert.id > self.last => {
                    self.last = alert.id;
                    return alert;
                }
                Ok(_known) => {}
                Err(RecvError::Lagged(_)) => self.is_behind = true,
                // The feed holds the other end for as long as there are followers.
                Err(RecvError::Closed) => self.feed.ended.cancelled().await,
            }
        }
    }
}
