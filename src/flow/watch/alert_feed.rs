//! Alert feed: hand each guard warning, once it is committed, to its followers on this instance.
//!
//! One task reads new warnings for all followers. A follower that comes later, or cannot keep up, reads what it has
//! missed by itself. It goes by the numbers of warnings, which are committed in order. Nothing is written. A crash
//! leaves nothing, and followers go on elsewhere after their last warning.

use crate::domain::fault::Fault;
use crate::domain::operator::alert::Alert;
use crate::flow::recover::bulletin::wait_for_news;
use crate::flow::{App, whole};
use crate::ledger::Ledger;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Followers of one instance. A follower that has vanished frees its place once the system gives up sending to it,
/// which may take a quarter of an hour.
pub const FOLLOWERS_MAX: usize = 64;
/// Warnings that are kept for busy followers; a follower that misses more reads them from the ledger.
const KEPT_MAX: usize = 256;
/// Warnings that are read in one step.
const PAGE_MAX: usize = 100;
/// How long one reading may take.
const READ_MAX: Duration = Duration::from_secs(2);
/// How long a follower waits after a reading that failed.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Hands out guard warnings as they come.
pub struct AlertFeed {
    /// Wakes the feed: there may be a new warning.
    pub(in crate::flow) wanted: Notify,
    fresh: broadcast::Sender<Arc<Alert>>,
    /// Whether the feed knows which warnings are new.
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
    /// Ends all followers, also those that begin later.
    pub fn end(&self) {
        self.ended.cancel();
    }
}

/// Hands out new warnings for as long as the process runs. While Postgres is away there are none; afterwards come all
/// that were raised in between.
pub async fn keep(app: &App) {
    let feed = &app.alert_feed;
    let (mut last, mut is_broken) = (None, false);
    loop {
        let read = timeout(READ_MAX, read_new(app, &mut last)).await;
        let is_read = matches!(read, Ok(Ok(())));
        let broken = read.ok().and_then(Result::err).filter(|fault| !fault.is_passing());
        // Logged once, and not again at every reading.
        if let Some(fault) = broken.as_ref().filter(|_| !is_broken) {
            tracing::error!(%fault, "cannot read new guard warnings");
        }
        is_broken = broken.is_some();
        if last.is_some() {
            feed.is_ready.send_replace(true);
        }
        let _either = wait_for_news(app, &feed.wanted, is_read).await;
    }
}

/// Hands out the warnings after the `last` one.
async fn read_new(app: &App, last: &mut Option<i64>) -> Result<(), Fault> {
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
            // There may be no follower.
            let _nobody = app.alert_feed.fresh.send(Arc::new(alert));
        }
        if is_last {
            return Ok(());
        }
    }
}

async fn read_page(ledger: &Ledger, after: i64) -> Result<Vec<Alert>, Fault> {
    ledger.alerts_after(after, whole(PAGE_MAX)).await
}

pub struct Follower {
    feed: Arc<AlertFeed>,
    ledger: Ledger,
    fresh: broadcast::Receiver<Arc<Alert>>,
    /// Read from the ledger, and not handed out yet.
    page: VecDeque<Alert>,
    /// The number of the last warning that was handed out.
    last: i64,
    /// Whether the ledger may have some before the next fresh one.
    is_behind: bool,
    _place: OwnedSemaphorePermit,
}

/// Follows warnings: those after the one with this number, or new ones from now on. `None` when all places are taken.
pub async fn follow(app: &App, after: Option<i64>) -> Result<Option<Follower>, Fault> {
    let feed = Arc::clone(&app.alert_feed);
    let Ok(place) = Arc::clone(&feed.places).try_acquire_owned() else {
        return Ok(None);
    };
    let mut is_ready = feed.is_ready.subscribe();
    if timeout(READ_MAX, is_ready.wait_for(|ready| *ready)).await.is_err() {
        return Err(Fault::Unavailable(
            "could not read yet which guard warnings are new".to_owned(),
        ));
    }
    // Subscribe before the ledger is asked: a warning is in its answer or comes afterwards, or both.
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
    /// The number of the last warning that was handed out, or of the one after which this began.
    pub const fn last(&self) -> i64 {
        self.last
    }

    /// Waits for the next warning; `None` when this instance ends. A dropped wait loses nothing.
    pub async fn next(&mut self) -> Option<Arc<Alert>> {
        let ended = self.feed.ended.clone();
        // Check the end first: a follower with much to read must not go on for ever.
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
                match timeout(READ_MAX, read_page(&self.ledger, self.last)).await {
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
                // The feed holds the sender for as long as there are followers.
                Err(RecvError::Closed) => self.feed.ended.cancelled().await,
            }
        }
    }
}
