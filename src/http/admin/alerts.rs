//! The feed of guard warnings as server-sent events.

use crate::domain::alert::{Alert, ListedAlert};
use crate::domain::code::Code;
use crate::flow;
use crate::flow::watch::alert_feed::{FOLLOWERS_MAX, Follower};
use crate::http::admin::session::{SESSION_CHECK_EVERY, has_ended};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::Query;
use crate::http::extract::{LastEvent, OpenSession, Operator};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, event_stream};
use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use futures_util::stream::{StreamExt as _, once, unfold};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/alerts", handler!(list_alerts), |it| {
        let mut listed = example();
        listed["delivered_at"] = "2026-11-22T09:00:10.400Z".into();
        listed["given_up_at"] = Value::Null;
        it.of_operators("listAlerts", "List guard warnings")
            .says("Newest first.")
            .query::<AlertsQuery>(&[("limit", 10.into())])
            .answers_page::<ListedAlert>("A page of guard warnings.", listed)
    }),
    Endpoint::stream("/v1/admin/alerts/stream", handler!(stream), |it| {
        it.of_operators("followAlerts", "Follow guard warnings")
            .says(
                "Endless server-sent events: each guard warning after the one that `Last-Event-ID` names, else only \
                 new ones. A comment every 15 seconds shows that the stream is open.",
            )
            .with_last_event()
            .answers_events::<Alert>("The stream.", "alert", &example())
            .refuses(&[Code::Overloaded])
    }),
];

/// After so long without a warning, a comment shows that the stream is open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits after it lost its stream before it connects again, in milliseconds.
const RETRY_MS: u32 = 2000;

/// A client that follows the feed.
struct AlertReader {
    api: Arc<Api>,
    follower: Follower,
    /// The client's session; none for a client that sends the operators' key.
    session: Option<OpenSession>,
    check_at: Instant,
}

/// The warnings after the one that `Last-Event-ID` names, else only new ones
async fn stream(api: Data<Api>, operator: Operator, LastEvent(after): LastEvent) -> Result<HttpResponse, Problem> {
    let follower = api
        .for_operator(move |app| async move { flow::watch::alert_feed::follow(&app, after).await })
        .await?;
    let follower = follower.ok_or_else(|| {
        Problem::new(
            Code::Overloaded,
            format!("this instance serves {FOLLOWERS_MAX} streams already"),
        )
    })?;
    // Browsers keep the id of an event without data. So a client that disconnects before the first warning misses none.
    let first = format!("retry: {RETRY_MS}\nid: {}\n\n", follower.last());
    let first = once(ready(Ok::<_, Infallible>(Bytes::from(first))));
    let reader = AlertReader {
        api: api.into_inner(),
        follower,
        session: operator.session,
        check_at: Instant::now() + SESSION_CHECK_EVERY,
    };
    Ok(event_stream().streaming(first.chain(unfold(reader, next))))
}

/// The next piece of the stream. None ends it: the session or the instance has ended.
async fn next(mut reader: AlertReader) -> Option<(Result<Bytes, Infallible>, AlertReader)> {
    let alive = Bytes::from_static(b":\n\n");
    let sent = tokio::select! {
        // The session's check comes first: a busy stream must not outlast its session.
        biased;
        () = sleep_until(reader.check_at), if reader.session.is_some() => {
            reader.check_at = Instant::now() + SESSION_CHECK_EVERY;
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
    // JSON escapes line breaks, so the data is one line.
    let data = serde_json::to_string(alert).unwrap_or_default();
    format!("id: {}\nevent: alert\ndata: {data}\n\n", alert.id).into()
}

/// Which guard warnings to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertsQuery {
    /// At most so many guard warnings; 100 by default.
    #[serde(default)]
    limit: PageSize,
    /// Lists only the guard warnings older than the one with this id.
    #[schemars(range(min = i64::MIN, max = i64::MAX))]
    starting_after: Option<i64>,
}

async fn list_alerts(api: Data<Api>, _: Operator, Query(query): Query<AlertsQuery>) -> Result<HttpResponse, Problem> {
    let limit = query.limit.get();
    let before = query.starting_after;
    let alerts = api
        .for_operator(move |app| async move { flow::operate::guards::warnings(&app, before, limit + 1).await })
        .await?;
    Ok(HttpResponse::Ok().json(Page::of(alerts, limit)))
}

fn example() -> Value {
    json!({"id": 7, "raised_at": "2026-11-22T09:00:10.000Z", "kind": "browsing", "user": "ada",
            "detail": "more than 10 page views within a minute"})
}
