//! A sale in live numbers for operators: a sample about once a second, as server-sent events.
//!
//! All viewers of a sale on this instance get the same samples. So a sale costs the same for one viewer or sixty, and
//! nothing without viewers. Every instance counts the answers to purchases and their durations for sales with a viewer
//! on any instance, and reports them to the others ([`crate::flow::watch::pulse`]).

use crate::domain::code::Code;
use crate::domain::ids::SaleId;
use crate::flow;
use crate::flow::watch::pulse::Watcher;
use crate::http::admin::live_sample::{LivePoint, LiveSample, Sampler, example};
use crate::http::admin::session::{SESSION_CHECK_EVERY, has_ended};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{OpenSession, Operator, SalePath};
use crate::http::openapi::Schemas;
use crate::http::problem::Problem;
use crate::http::{Api, RETRY_MS, event, event_stream, found};
use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use chrono::Utc;
use futures_util::stream::{StreamExt as _, once, unfold};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

pub const ROUTES: &[Endpoint] = &[Endpoint::stream("/v1/admin/sales/{id}/live", handler!(follow), |it| {
    it.of_operators("followSale", "Follow a sale in numbers")
        .says(
            "Endless server-sent events, as the console's live page uses them: first the course of the last minutes, \
             then a sample about once a second. All clients that follow a sale on this instance get the same samples. \
             While Postgres does not answer, `sale` is null and `stock` has the numbers from Redis.",
        )
        .answers_kinds_of_events(
            "The stream.",
            &[
                (
                    "course",
                    "What the plots show of the samples so far.",
                    Schemas::written::<Vec<LivePoint>>,
                ),
                ("sample", "The sale at one moment.", Schemas::written::<LiveSample>),
                (
                    "signed_out",
                    "The session has ended; the stream ends with it.",
                    |_| json!({"const": true}),
                ),
            ],
            ("sample", &example()),
        )
        .refuses(&[Code::Overloaded])
})];

/// A pause follows each sample. It is at least this many times as long as the sample took, so sampling takes at most a
/// quarter of the time. It then lasts until the middle of a second, because instances report their counts at the
/// beginning of one.
const PAUSE_FACTOR: u32 = 3;
/// How long sampling goes on without viewers, so that a page that is loaded again finds its plots.
const LINGER: Duration = Duration::from_secs(15);
/// How many samples back a new viewer gets the course.
const COURSE_MAX: usize = 300;
/// The most viewers at once on one instance, and the most sales that they watch.
const VIEWERS_MAX: usize = 64;
const SALES_MAX: usize = 16;
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The sales that viewers watch on this instance.
pub struct Live {
    feeds: Mutex<HashMap<SaleId, Arc<Feed>>>,
    places: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            feeds: Mutex::default(),
            places: Arc::new(Semaphore::new(VIEWERS_MAX)),
        }
    }
}

/// One watched sale.
struct Feed {
    /// The last sample, as it is sent.
    latest: watch::Sender<Bytes>,
    course: Mutex<VecDeque<LivePoint>>,
}

impl Feed {
    fn remember(&self, point: LivePoint) {
        let mut course = locked(&self.course);
        course.push_back(point);
        if course.len() > COURSE_MAX {
            course.pop_front();
        }
    }
}

/// One viewer's stream.
struct Viewer {
    api: Arc<Api>,
    latest: watch::Receiver<Bytes>,
    /// The viewer's session; none for a client with the operators' key. Its check also shows that the stream is open.
    session: Option<OpenSession>,
    check_at: Instant,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock()
}

async fn follow(api: Data<Api>, operator: Operator, SalePath(id): SalePath) -> Result<HttpResponse, Problem> {
    let sale = api.for_operator(move |app| async move { flow::sale_book::find(&app, id).await });
    found(sale.await?, "such sale")?;
    let (viewer, course) = watch_sale(&api.into_inner(), id, operator.session).ok_or_else(|| {
        Problem::wait(
            Code::Overloaded,
            &format!("this instance shows {SALES_MAX} sales to {VIEWERS_MAX} viewers at the most"),
            LINGER,
        )
    })?;
    // The course so far, so that plots do not start empty with each connection.
    let first = format!("retry: {RETRY_MS}\n\n{}", event("course", &course));
    let first = once(ready(Bytes::from(first)));
    Ok(event_stream(first.chain(unfold(viewer, next))))
}

/// A viewer of a sale, and the course so far. None if the instance has no room for another viewer or sale.
fn watch_sale(api: &Arc<Api>, sale: SaleId, session: Option<OpenSession>) -> Option<(Viewer, Vec<LivePoint>)> {
    let live = &api.live;
    let place = Arc::clone(&live.places).try_acquire_owned().ok()?;
    let mut feeds = locked(&live.feeds);
    let feed = match feeds.get(&sale) {
        Some(feed) => Arc::clone(feed),
        None if feeds.len() >= SALES_MAX => return None,
        None => {
            let feed = Arc::new(Feed {
                latest: watch::Sender::new(Bytes::new()),
                course: Mutex::default(),
            });
            feeds.insert(sale, Arc::clone(&feed));
            // Counting begins now. The first sample only sets the start of the second.
            let watcher = Watcher::begin(&api.app, sale);
            tokio::spawn(sample(Arc::clone(api), sale, watcher, Arc::clone(&feed)));
            feed
        }
    };
    let mut latest = feed.latest.subscribe();
    // The last sample at once, if there is one.
    if !latest.borrow().is_empty() {
        latest.mark_changed();
    }
    let course = locked(&feed.course).iter().cloned().collect();
    let viewer = Viewer {
        api: Arc::clone(api),
        latest,
        session,
        check_at: Instant::now() + SESSION_CHECK_EVERY,
        has_ended: false,
        _place: place,
    };
    Some((viewer, course))
}

/// The next piece of the stream. None ends it: the session or the instance has ended.
async fn next(mut viewer: Viewer) -> Option<(Bytes, Viewer)> {
    if viewer.has_ended {
        return None;
    }
    let ending = viewer.api.ending.clone();
    let sent = tokio::select! {
        biased;
        () = ending.cancelled() => return None,
        () = sleep_until(viewer.check_at) => {
            viewer.check_at = Instant::now() + SESSION_CHECK_EVERY;
            viewer.has_ended = has_ended(&viewer.api, viewer.session.as_ref()).await;
            if viewer.has_ended { Bytes::from(event("signed_out", &true)) } else { Bytes::from_static(b":\n\n") }
        }
        changed = viewer.latest.changed() => {
            changed.ok()?;
            viewer.latest.borrow_and_update().clone()
        }
    };
    Some((sent, viewer))
}

/// Takes samples of a sale for as long as it has viewers.
async fn sample(api: Arc<Api>, sale: SaleId, watcher: Watcher, feed: Arc<Feed>) {
    let mut sampler = Sampler::new(watcher);
    let mut unwatched_since = None;
    loop {
        let began = Instant::now();
        let taken = Box::pin(sampler.take(&api, sale)).await;
        feed.remember(taken.point.clone());
        // `send` would fail without receivers.
        feed.latest.send_replace(Bytes::from(event("sample", &taken)));
        let took = began.elapsed();
        tokio::select! {
            () = api.ending.cancelled() => break,
            () = sleep(until_half(Utc::now().timestamp_subsec_millis(), (took * PAUSE_FACTOR).max(PAUSE_MIN))) => {}
        }
        let mut feeds = locked(&api.live.feeds);
        if feed.latest.receiver_count() > 0 {
            unwatched_since = None;
        } else if unwatched_since.get_or_insert_with(Instant::now).elapsed() >= LINGER {
            feeds.remove(&sale);
            break;
        }
    }
}

/// The time to the middle of a second, at least `least`.
fn until_half(millis: u32, least: Duration) -> Duration {
    let after = u64::from(millis) + u64::try_from(least.as_millis()).unwrap_or(u64::MAX / 2);
    least + Duration::from_millis((1500 - after % 1000) % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_in_the_middle_of_a_second() {
        for (millis, least, wait) in [
            (500, 250, 1000),
            (510, 250, 990),
            (200, 250, 300),
            (300, 250, 1200),
            (800, 900, 1700),
            (1999, 250, 501),
        ] {
            let waits = until_half(millis, Duration::from_millis(least));
            assert_eq!(waits, Duration::from_millis(wait), "{millis} ms, at least {least} ms");
        }
    }
}
