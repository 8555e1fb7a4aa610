//! The feed of guard warnings as server-sent events.

use crate::domain::code::Code;
use crate::domain::operator::alert::{Alert, ListedAlert};
use crate::flow::operate::guards;
use crate::flow::watch::alert_feed::{self, FOLLOWERS_MAX, Follower};
use crate::http::admin::session::{SESSION_CHECK_EVERY, has_ended};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{LastEvent, OpenSession, Operator, Query};
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{Api, RETRY_MS, event, event_stream};
use actix_web::HttpResponse;
use actix_web::web::{Bytes, Data};
use futures_util::stream::{StreamExt as _, once, unfold};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
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
    let follower = api.for_operator(move |app| async move { alert_feed::follow(&app, after).await });
    let follower = follower.await?.ok_or_else(|| {
        Problem::new(
            Code::Overloaded,
            format!("this instance serves {FOLLOWERS_MAX} streams already"),
        )
    })?;
    // Browsers keep the id of an event without data. So a client that disconnects before the first warning misses none.
    let first = format!("retry: {RETRY_MS}\nid: {}\n\n", follower.last());
    let first = once(ready(Bytes::from(first)));
    let reader = AlertReader {
        api: api.into_inner(),
        follower,
        session: operator.session,
        check_at: Instant::now() + SESSION_CHECK_EVERY,
    };
    Ok(event_stream(first.chain(unfold(reader, next))))
}

/// The next piece of the stream. None ends it: the session or the instance has ended.
async fn next(mut reader: AlertReader) -> Option<(Bytes, AlertReader)> {
    let alive = Bytes::from_static(b":\n\n");
    let sent = tokio::select! {
        // The session's check comes first: a busy stream must not outlast its session.
        biased;
        () = sleep_until(reader.check_at), if reader.session.is_some() => {
            reader.check_at = Instant::now() + SESSION_CHECK_EVERY;
            if has_ended(&reader.api, reader.session.as_ref()).await {
                return None;
            }
            alive
        }
        alert = timeout(KEEP_ALIVE, reader.follower.next()) => match alert {
            Ok(alert) => {
                let alert = alert?;
                Bytes::from(format!("id: {}\n{}", alert.id, event("alert", &*alert)))
            }
            Err(_) => alive,
        },
    };
    Some((sent, reader))
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
    let (limit, before) = (query.limit.get(), query.starting_after);
    let alerts = api.for_operator(move |app| async move { guards::warnings(&app, before, limit + 1).await });
    Ok(HttpResponse::Ok().json(Page::of(alerts.await?, limit)))
}

fn example() -> Value {
    json!({"id": 7, "raised_at": "2026-11-22T09:00:10.000Z", "kind": "browsing", "user": "ada",
            "detail": "more than 10 page views within a minute"})
}
