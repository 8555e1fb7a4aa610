//! The feed of alerts as server-sent events.

use super::extract::{LastEvent, OpenSession, Operator};
use super::problem::{Code, Problem};
use super::session::{LOOK_EVERY, has_ended};
use super::{Api, event_stream};
use crate::domain::alert::Alert;
use crate::flow;
use crate::flow::alert_feed::{FOLLOWERS_MAX, Follower};
use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use futures_util::stream::{StreamExt as _, once, unfold};
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// After so long without an alert, a comment says that the stream is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client that has lost its stream waits before it asks again, in milliseconds.
const RETRY_MS: u32 = 2000;

/// Somebody who follows.
struct Reader {
    api: Arc<Api>,
    follower: Follower,
    /// Whose session it is; who comes with the key has none.
    session: Option<OpenSession>,
    look_at: Instant,
}

/// `GET /v1/admin/alerts/stream`: each alert after the one that `Last-Event-ID` names, else each new one
pub async fn stream(api: Data<Api>, operator: Operator, LastEvent(after): LastEvent) -> Result<HttpResponse, Problem> {
    let follower = api
        .for_others(move |app| async move { flow::alert_feed::follow(&app, after).await })
        .await?;
    let follower = follower.ok_or_else(|| {
        Problem::new(
            Code::Overloaded,
            format!("this instance serves {FOLLOWERS_MAX} streams already"),
        )
    })?;
    // An event without data is none, but its id is kept: who loses the stream before the first alert misses none.
    let first = format!("retry: {RETRY_MS}\nid: {}\n\n", follower.last());
    let first = once(ready(Ok::<_, Infallible>(Bytes::from(first))));
    let reader = Reader {
        api: api.into_inner(),
        follower,
        session: operator.session,
        look_at: Instant::now() + LOOK_EVERY,
    };
    Ok(event_stream().streaming(first.chain(unfold(reader, next))))
}

/// What is sent next; the end of the stream when the session or the instance ends.
async fn next(mut reader: Reader) -> Option<(Result<Bytes, Infallible>, Reader)> {
    let alive = Bytes::from_static(b":\n\n");
    let sent = tokio::select! {
        // A look comes first: a stream with much to send must not outlive its session.
        biased;
        () = sleep_until(reader.look_at), if reader.session.is_some() => {
            reader.look_at = Instant::now() + LOOK_EVERY;
            if let Some(session) = &reader.session && has_ended(&reader.api, session).await {
                return None;
            }
            alive
        }
        alert = timeout(KEEP_ALIVE, reader.follower.next()) => match alert {
            Ok(alert) => event(&*alert?),
            Err(_) => alive,
        },
    };
    Some((Ok(sent), reader))
}

fn event(alert: &Alert) -> Bytes {
    // JSON escapes line breaks, so it is one line.
    let data = serde_json::to_string(alert).unwrap_or_default();
    format!("id: {}\nevent: alert\ndata: {data}\n\n", alert.id).into()
}
