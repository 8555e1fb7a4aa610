//! The waiting room over HTTP: a shopper asks for a place and its state, or follows it as server-sent events.

use crate::domain::code::Code;
use crate::domain::guard::Layer;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::SaleState;
use crate::domain::shopper::waiting_room::{Ticket, Turn};
use crate::domain::time::{self, Millis, from_millis};
use crate::flow::sell::glance::glance;
use crate::flow::sell::waiting_room::{WaitOutcome, wait};
use crate::http::counts;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Json, Query, SalePath, Session, Shopper};
use crate::http::openapi::Who;
use crate::http::problem::Problem;
use crate::http::{Api, event, event_stream};
use actix_web::HttpResponse;
use actix_web::http::header::{CacheControl, CacheDirective};
use actix_web::web::{Bytes, Data};
use chrono::{DateTime, Utc};
use futures_util::stream::unfold;
use parking_lot::{Mutex, MutexGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

pub const ROUTES: &[Endpoint] = &[
    Endpoint::post("/v1/sales/{id}/waiting-room", handler!(ask), |it| {
        it.of_shoppers(
            Who::Shopper,
            "askWaitingRoom",
            "Take a place in the waiting room, or ask how one stands",
        )
        .says(
            "For sales whose `guards.waiting_room` is true, and after a refusal with `admission_required`. Ask again \
             after `ask_again_seconds`, with the last `ticket`: then `position` never grows. `not_found` means that the \
             shopper of an open sale needs no admission, or no longer: buy without. `sale_not_open` with the \
             `sale_state` `scheduled` or `paused`: ask again once the sale sells.",
        )
        .reads::<RoomRequest>(json!({}))
        .answers::<RoomStanding>(200, "The shopper's place.", example())
        .refuses(&[Code::SaleNotOpen, Code::Banned])
    }),
    Endpoint::get("/v1/sales/{id}/waiting-room/events", handler!(follow), |it| {
        it.of_shoppers(Who::Shopper, "followWaitingRoom", "Follow one's own place")
            .says(
                "The same as server-sent events, one for each change; the event's name is the `state`. The stream \
                 ends with `admitted` or `closed`, when the shopper needs no admission any more, or after five minutes: \
                 then open another.",
            )
            .query::<RoomRequest>(&[])
            .answers_events::<RoomStanding>("The stream.", "waiting", &example())
            .refuses(&[Code::SaleNotOpen, Code::Banned])
    }),
];

/// How long a stream lasts. The client then opens another.
const STREAM_MAX: Duration = Duration::from_secs(300);
/// The answers that end a stream: a ban, or a shopper who needs no admission any more.
const ENDS: [Code; 3] = [Code::Banned, Code::NotFound, Code::SaleNotOpen];
/// How often a stream checks whether the sale has sold out.
const GLANCE_EVERY: Duration = Duration::from_millis(500);
/// A quiet stream sends a comment this often, to show that it is open.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// The least and the most seconds after which a shopper is asked to ask again.
const ASK_AGAIN_MIN: i64 = 2;
const ASK_AGAIN_MAX: i64 = 15;
/// The longest wait that we estimate: a day.
const WAIT_MAX: Millis = 86_400_000;

/// The request for a place.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Asking")]
pub struct RoomRequest {
    /// The latest ticket that the shopper got for this sale. An invalid ticket counts as none.
    ticket: Option<String>,
}

/// A shopper's state in the waiting room.
#[derive(Serialize, JsonSchema, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "State")]
enum RoomState {
    /// The shopper waits.
    #[default]
    Waiting,
    /// Nothing is free now, but held units may come back. The shopper waits, or would be admitted.
    SoldOut,
    /// The shopper may buy.
    Admitted,
    /// The sale is over.
    Closed,
}

impl RoomState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::SoldOut => "sold_out",
            Self::Admitted => "admitted",
            Self::Closed => "closed",
        }
    }
}

/// A shopper's place in the waiting room.
#[derive(Serialize, Clone, Default, PartialEq, JsonSchema)]
#[schemars(rename = "Standing")]
pub struct RoomStanding {
    /// The shopper's state.
    state: RoomState,
    /// The shopper's position over the whole room: 1 is next. Missing before the start, when others may still draw a
    /// better lot. Also missing in a first answer that no count includes yet, and once it is the shopper's turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<i64>,
    /// How many shoppers wait, a second ago at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<i64>,
    /// The estimated wait, at the pace of the last seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_wait_seconds: Option<i64>,
    /// Keeps the shopper's place if the connection breaks: send it with the next request.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// Send this as `X-Admission` with a purchase.
    #[serde(skip_serializing_if = "Option::is_none")]
    admission: Option<String>,
    /// When the admission ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DateTime<Utc>")]
    expires_at: Option<String>,
    /// Ask again after so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ask_again_seconds: Option<i64>,
}

async fn ask(
    api: Data<Api>,
    Shopper(user): Shopper,
    SalePath(sale): SalePath,
    Json(request): Json<RoomRequest>,
) -> Result<HttpResponse, Problem> {
    let ticket = request
        .ticket
        .and_then(|ticket| api.token_keys.open_ticket(&ticket, sale, &user));
    let standing = stand(&api, sale, &user, ticket).await?;
    Ok(HttpResponse::Ok()
        .insert_header(CacheControl(vec![CacheDirective::NoStore]))
        .json(standing))
}

/// The same as server-sent events, one for each change. The stream ends with the shopper's token, or when the account is
/// banned or needs none.
async fn follow(
    api: Data<Api>,
    session: Session,
    SalePath(sale): SalePath,
    Query(request): Query<RoomRequest>,
) -> Result<HttpResponse, Problem> {
    let ticket = request.ticket;
    let ticket = ticket.and_then(|ticket| api.token_keys.open_ticket(&ticket, sale, &session.user));
    let Some(seat) = api.followers.take(sale, &session.user) else {
        return Err(Problem::wait(
            Code::Overloaded,
            "this instance has no free stream for this shopper; ask with POST instead",
            STREAM_MAX,
        ));
    };
    // Before the stream begins, so that an error is still a problem with a status.
    let standing = stand(&api, sale, &session.user, ticket).await?;
    let follower = RoomFollower {
        api: api.into_inner(),
        sale,
        session,
        ticket,
        sent: None,
        next: Some(standing),
        until: Instant::now() + STREAM_MAX,
        _seat: seat,
    };
    let events = unfold(Some(follower), move |follower| async move {
        let mut follower = follower?;
        let Some(standing) = follower.next().await? else {
            return Some((Bytes::from_static(b":\n\n"), Some(follower)));
        };
        let is_last = matches!(standing.state, RoomState::Admitted | RoomState::Closed);
        let event = event(standing.state.as_str(), &standing);
        // If the connection breaks, the shopper keeps the place that was sent last.
        let ticket = standing.ticket.as_deref();
        let token_keys = &follower.api.token_keys;
        let ticket = ticket.and_then(|ticket| token_keys.open_ticket(ticket, sale, &follower.session.user));
        follower.ticket = ticket.or(follower.ticket);
        follower.sent = Some(standing);
        Some((Bytes::from(event), (!is_last).then_some(follower)))
    });
    Ok(event_stream(events))
}

/// Counts the streams by sale and account, to limit them.
#[derive(Default)]
pub struct Followers(Mutex<HashMap<(SaleId, UserId), usize>>);

/// The most accounts that follow their places on one instance. Other shoppers ask with POST.
const FOLLOWERS_MAX: usize = 20_000;
/// The most streams of one account in one sale: two browsers, or one that has not noticed yet that it lost the first.
const STREAMS_MAX: usize = 2;

/// One stream's seat, free again when this is dropped.
struct Seat(Arc<Followers>, (SaleId, UserId));

impl Followers {
    fn seats(&self) -> MutexGuard<'_, HashMap<(SaleId, UserId), usize>> {
        // No step under this lock can leave the map half changed.
        self.0.lock()
    }

    fn take(self: &Arc<Self>, sale: SaleId, user: &UserId) -> Option<Seat> {
        let mut seats = self.seats();
        let who = (sale, user.clone());
        let taken = seats.get(&who).copied().unwrap_or_default();
        // The limit counts accounts; streams may be twice as many.
        if taken >= STREAMS_MAX || (taken == 0 && seats.len() >= FOLLOWERS_MAX) {
            return None;
        }
        seats.insert(who.clone(), taken + 1);
        Some(Seat(Arc::clone(self), who))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.0.seats();
        match seats.get_mut(&self.1) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => _ = seats.remove(&self.1),
        }
    }
}

/// One shopper's stream.
struct RoomFollower {
    api: Arc<Api>,
    sale: SaleId,
    session: Session,
    ticket: Option<Ticket>,
    sent: Option<RoomStanding>,
    next: Option<RoomStanding>,
    until: Instant,
    _seat: Seat,
}

impl RoomFollower {
    /// The next state to send; `Some(None)` if nothing has changed for a while; `None` at the end.
    async fn next(&mut self) -> Option<Option<RoomStanding>> {
        if let Some(standing) = self.next.take() {
            return Some(Some(standing));
        }
        let quiet_until = Instant::now() + QUIET_MAX;
        let sent = self.sent.clone()?;
        let pause = Duration::from_secs(u64::try_from(sent.ask_again_seconds?).ok()?);
        let mut ask_at = Instant::now() + pause;
        loop {
            let has_ended = self.session.has_ended(&self.api.app);
            if has_ended || self.api.ending.is_cancelled() || Instant::now() >= self.until {
                return None;
            }
            if Instant::now() >= quiet_until {
                return Some(None);
            }
            let _ending = timeout(GLANCE_EVERY, self.api.ending.cancelled()).await;
            let is_due = Instant::now() >= ask_at;
            let is_as_sent = |sold_out: bool| (sent.state == RoomState::SoldOut) == sold_out;
            if !is_due && self.is_sold_out().await.is_none_or(is_as_sent) {
                continue;
            }
            match stand(&self.api, self.sale, &self.session.user, self.ticket).await {
                Ok(standing) if standing != sent => return Some(Some(standing)),
                Err(problem) if ENDS.contains(&problem.code()) => return None,
                // Unchanged, or unknown because of a fault: the state that was sent last still holds.
                Ok(_) | Err(_) => ask_at = Instant::now() + pause,
            }
        }
    }

    /// Whether nothing is free; `None` if that is not known now.
    async fn is_sold_out(&self) -> Option<bool> {
        let glance = glance(&self.api.app, self.sale).await.ok()??;
        Some(glance.is_sold_out())
    }
}

async fn stand(api: &Api, sale: SaleId, user: &UserId, ticket: Option<Ticket>) -> Result<RoomStanding, Problem> {
    let asked = user.clone();
    let outcome = api.for_shopper(move |app| async move { wait(&app, sale, &asked, ticket).await });
    let turn = match outcome.await? {
        WaitOutcome::Turn(turn) => turn,
        WaitOutcome::NotOpen(SaleState::Closed) => return Ok(nothing(RoomState::Closed)),
        WaitOutcome::NotOpen(state) => return Err(Problem::sale_not_open(state)),
        WaitOutcome::Full => {
            counts::refused_by_guard(api, Some(sale), Layer::WaitingRoom);
            return Err(Problem::wait(
                Code::Overloaded,
                "the waiting room is full",
                Duration::from_secs(10),
            ));
        }
        WaitOutcome::Banned(refusal) => {
            counts::refused_by_guard(api, Some(sale), Layer::Ban);
            return Err(Problem::from(&refusal).of_key(false));
        }
        WaitOutcome::NoRoom => return Err(Problem::not_found("waiting room for you: buy without an admission")),
        WaitOutcome::SaleNotFound => return Err(Problem::not_found("such sale")),
    };
    Ok(match turn {
        Turn::SoldOut => RoomStanding {
            ask_again_seconds: Some(ASK_AGAIN_MAX),
            ..nothing(RoomState::SoldOut)
        },
        Turn::Admitted { until } => RoomStanding {
            admission: Some(api.token_keys.admit(sale, user, until / 1000)),
            expires_at: Some(time::format(&from_millis(until / 1000 * 1000))),
            ..nothing(RoomState::Admitted)
        },
        Turn::Waiting {
            ticket,
            waiting,
            is_counted_soon,
            wait_ms,
            sold_out,
        } => {
            let wait_seconds = wait_ms.map(|wait_ms| (wait_ms.clamp(0, WAIT_MAX) + 999) / 1000);
            // A shopper with a long wait need not ask often, but soon for the first position.
            let pause = match wait_seconds {
                _ if is_counted_soon && ticket.position.is_none() => ASK_AGAIN_MIN,
                Some(wait) => (wait / 10).clamp(ASK_AGAIN_MIN, ASK_AGAIN_MAX),
                None => ASK_AGAIN_MAX,
            };
            RoomStanding {
                position: ticket.position,
                waiting,
                estimated_wait_seconds: wait_seconds,
                ticket: Some(api.token_keys.seal_ticket(sale, user, ticket)),
                ask_again_seconds: Some(pause),
                ..nothing(if sold_out {
                    RoomState::SoldOut
                } else {
                    RoomState::Waiting
                })
            }
        }
    })
}

fn nothing(state: RoomState) -> RoomStanding {
    RoomStanding {
        state,
        ..RoomStanding::default()
    }
}

fn example() -> Value {
    json!({"state": "waiting", "position": 42, "waiting": 1200, "estimated_wait_seconds": 9,
            "ticket": "w1.MTc2MzcxMjAwMC00Mg.xQ2v", "ask_again_seconds": 2})
}
