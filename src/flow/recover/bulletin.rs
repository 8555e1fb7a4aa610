//! Bulletin: in each round of renewals, an instance asks the ledger one question. The answer has the standings of the
//! shards that it renews, and says what has changed of all that each instance follows. That is read only then. An instance
//! that renews nothing asks in every second round, while Postgres notifies it of changes. Then it asks more often whether
//! Postgres still can.
//!
//! While no bulletin is fresh, each task asks the ledger by itself, as often as it must. A crash leaves nothing.

use crate::domain::fault::Fault;
use crate::flow::watch::pulse::COUNTED_MAX;
use crate::flow::{App, in_time, whole};
use crate::ledger::recover::bulletin::{Bulletin, Question};
use crate::stock::keys::ShardKey;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a bulletin counts: a little longer than two are apart at an instance that asks in every second round.
const FRESH: Duration = Duration::from_millis(2_500);
/// A task that nothing wakes reads what it follows after so long, if no bulletin is fresh.
const NEWS_MAX: Duration = Duration::from_secs(3);
/// The same while Postgres cannot notify this process either.
const UNHEARD_MAX: Duration = Duration::from_millis(800);
/// A task that nothing wakes reads what it follows after so long, although bulletins report changes.
const REPORTED_MAX: Duration = Duration::from_secs(30);

/// The last bulletin of this process.
#[derive(Default)]
pub struct Bulletins {
    /// Nothing before the first, and after a question that the ledger did not answer.
    last: RwLock<Option<LastBulletin>>,
    /// Whether this process asks in every second round alone.
    are_rare: AtomicBool,
    lost: Notify,
}

/// What is kept of a bulletin.
struct LastBulletin {
    asked: Instant,
    took: Duration,
    sales: String,
    settings: String,
    newest_alert: i64,
    since_beat: Duration,
}

impl Bulletins {
    /// Whether this process learns from bulletins what has changed.
    #[must_use]
    pub fn are_fresh(&self) -> bool {
        self.fresh(|_| ()).is_some()
    }

    /// Whether a bulletin of each round reports what has changed, also if Postgres cannot notify this process.
    pub(in crate::flow) fn are_frequent(&self) -> bool {
        self.are_fresh() && !self.are_rare.load(Ordering::Relaxed)
    }

    /// Notes whether this process asks in every second round alone.
    pub(super) fn note_rare(&self, are_rare: bool) {
        self.are_rare.store(are_rare, Ordering::Relaxed);
    }

    /// How long the ledger took for the last answer, if that is fresh.
    pub fn took(&self) -> Option<Duration> {
        self.fresh(|last| last.took)
    }

    /// The longest time since any worker stored a heartbeat, if that is known.
    pub fn since_beat(&self) -> Option<Duration> {
        self.fresh(|last| last.since_beat.saturating_add(last.asked.elapsed()))
    }

    /// Waits until the ledger does not answer a question, and answered the one before.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }

    fn fresh<T>(&self, read: impl FnOnce(&LastBulletin) -> T) -> Option<T> {
        let last = self.last.read();
        last.as_ref().filter(|last| last.asked.elapsed() < FRESH).map(read)
    }

    /// Keeps a bulletin. Returns the one before, if that was the last question.
    fn keep(&self, bulletin: Option<LastBulletin>) -> Option<LastBulletin> {
        let mut last = self.last.write();
        std::mem::replace(&mut *last, bulletin)
    }
}

/// Asks the ledger for these shards, whose servers have these run ids, and for all that this process follows. Wakes the
/// tasks that have something to read. Fails with `Unavailable` when the ledger does not answer within `patience`.
pub(super) async fn read(
    app: &App,
    shards: &[ShardKey],
    servers: Vec<String>,
    patience: Duration,
) -> Result<Bulletin, Fault> {
    let question = Question {
        shards: shards.iter().map(|it| (it.sale, it.shard)).collect(),
        servers,
        watched_max: whole(COUNTED_MAX),
    };
    let asked = Instant::now();
    let answer = in_time(patience, app.ledger.bulletin(question)).await;
    match &answer {
        Ok(bulletin) => note(app, asked, bulletin),
        Err(_) => {
            if app.bulletins.keep(None).is_some() {
                app.bulletins.lost.notify_one();
            }
        }
    }
    answer
}

/// Waits until a task has to read what it follows: it is `wanted`, or nothing reports a change. `is_read` says
/// whether the last reading succeeded. Returns whether it is wanted.
pub async fn wait_for_news(app: &App, wanted: &Notify, is_read: bool) -> bool {
    let began = Instant::now();
    loop {
        // While it is not notified, it must soon see that bulletins fail too.
        let most = if app.arrivals.hears() { NEWS_MAX } else { UNHEARD_MAX };
        if timeout(most, wanted.notified()).await.is_ok() {
            return true;
        }
        if !is_read || !app.bulletins.are_fresh() || began.elapsed() >= REPORTED_MAX {
            return false;
        }
    }
}

fn note(app: &App, asked: Instant, bulletin: &Bulletin) {
    if app.sales.note_version(&bulletin.sales, asked) {
        app.permits.wanted.notify_one();
    }
    let before = app.bulletins.keep(Some(LastBulletin {
        asked,
        took: asked.elapsed(),
        sales: bulletin.sales.clone(),
        settings: bulletin.settings.clone(),
        newest_alert: bulletin.newest_alert,
        since_beat: bulletin.since_beat,
    }));
    app.pulse.follow(bulletin.watched.iter().copied());
    // Without a bulletin before, anything may have changed. An amended sale may have a stage that has ended.
    let has_changed = |it: &LastBulletin| it.settings != bulletin.settings || it.sales != bulletin.sales;
    if before.as_ref().is_none_or(has_changed) {
        app.settings_changed.notify_one();
    }
    if before.is_none_or(|it| it.newest_alert != bulletin.newest_alert) {
        app.alert_feed.wanted.notify_one();
    }
    if bulletin.has_undelivered {
        app.deliveries_wanted.notify_one();
    }
}
