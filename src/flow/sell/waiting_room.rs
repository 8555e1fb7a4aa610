//! Waiting room: a shopper takes a place in line, or asks how the place stands.
//!
//! Every such request also moves the line on, so no job has to. A crash changes nothing: asking again finds the place.
//! If Redis loses the line, each shopper's ticket restores the place at the next request.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::{Sale, SaleState};
use crate::domain::shard::home_shard;
use crate::domain::time::Millis;
use crate::domain::waiting_room::{Member, Place, ROOM_MAX, RoomCount, Turn};
use crate::flow::App;
use crate::flow::sell::glance::{glance_anew, last_glance};
use crate::stock::keys::ShardKey;
use crate::stock::room::{RoomAnswer, Waiting};
use futures_util::future::try_join_all;

/// How long after the start the recent admissions show the line's speed.
const SPEED_KNOWN_AFTER: Millis = 10_000;

/// The outcome of asking for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    Turn(Turn),
    /// The waiting room is full.
    Full,
    Banned,
    /// The sale does not sell, so there is no line.
    NotOpen(SaleState),
    /// The sale has no waiting room.
    NoRoom,
    SaleNotFound,
}

/// Takes a place for a shopper, or returns how the place stands. `ticket` is the shopper's earlier place, which counts
/// if the line has been lost since.
///
/// # Errors
/// `Unavailable` or `Incomplete` when the place is not known now; asking again finds the same place.
pub async fn wait(app: &App, id: SaleId, user: &UserId, ticket: Option<Place>) -> Result<WaitOutcome, Fault> {
    let Some(sale) = app.sales.fixed(id).await? else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    if !sale.guards.waiting_room {
        return Ok(WaitOutcome::NoRoom);
    }
    let mut glance = last_glance(app, id).await?;
    // The last unit may have been sold since. A shopper who asks after that is not admitted.
    if glance.as_ref().is_some_and(|glance| !glance.is_sold_out()) {
        glance = glance_anew(app, id).await?;
    }
    let Some(glance) = glance else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    let state = glance.sale.state_at(glance.now());
    if matches!(state, SaleState::Draft | SaleState::Closed) {
        return Ok(WaitOutcome::NotOpen(state));
    }
    let shards = f64::from(sale.shards);
    let free: i64 = glance.free.values().copied().filter(|units| *units > 0).sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sale has fewer units than a double is exact for"
    )]
    let free = free as f64;
    let waiting = Waiting {
        member: Member::of(&sale.secret, user),
        rate: f64::from(sale.guards.admissions_per_second) / shards,
        stay_ms: i64::from(sale.guards.admission_seconds) * 1000,
        free: free / shards,
        room_max: ROOM_MAX / u32::from(sale.shards),
        place: ticket,
        now: None,
    };
    let answer = app.stock.wait(home(&sale, user), user, &waiting).await?;
    Ok(match answer {
        RoomAnswer::Admitted { .. } if free <= 0.0 => WaitOutcome::Turn(Turn::SoldOut),
        RoomAnswer::Admitted { until } => WaitOutcome::Turn(Turn::Admitted { until }),
        RoomAnswer::Full => WaitOutcome::Full,
        RoomAnswer::Banned => WaitOutcome::Banned,
        RoomAnswer::NotOpen(state) => WaitOutcome::NotOpen(state),
        RoomAnswer::Waiting {
            place,
            ahead,
            waiting: here,
            rate_milli,
        } => {
            let to_start = glance.sale.starts_at.timestamp_millis() - glance.now();
            let has_speed = to_start < -SPEED_KNOWN_AFTER;
            let fastest = (waiting.rate * 1000.0).ceil();
            #[expect(clippy::cast_possible_truncation, reason = "at most a thousand million")]
            let rate = if has_speed {
                rate_milli
            } else {
                rate_milli.max(fastest as i64)
            };
            let wait_ms = (rate > 0).then(|| (ahead + 1).saturating_mul(1_000_000) / rate.max(1) + to_start.max(0));
            let shards = i64::from(sale.shards);
            WaitOutcome::Turn(Turn::Waiting {
                place,
                ahead: ahead * shards,
                waiting: here * shards,
                wait_ms: wait_ms.filter(|_| free > 0.0),
                sold_out: free <= 0.0,
            })
        }
    })
}

/// Notes that a shopper has bought, so that the next one may come in. If that fails, the shopper counts as admitted
/// until the admission ends.
pub async fn leave(app: &App, sale: &Sale, user: &UserId) {
    let member = Member::of(&sale.secret, user);
    if let Err(fault) = app.stock.leave_room(home(sale, user), &member).await {
        tracing::debug!(%fault, sale = %sale.id, "could not note in the waiting room that a shopper has bought");
    }
}

/// Counts who is in a sale's waiting room.
pub async fn count(app: &App, sale: &Sale) -> Result<RoomCount, Fault> {
    let shards = (0..sale.shards).map(|shard| app.stock.count_room(ShardKey { sale: sale.id, shard }));
    let counts = try_join_all(shards).await?;
    Ok(counts.iter().fold(RoomCount::default(), |sum, it| RoomCount {
        waiting: sum.waiting + it.waiting,
        admitted: sum.admitted + it.admitted,
    }))
}

fn home(sale: &Sale, user: &UserId) -> ShardKey {
    ShardKey {
        sale: sale.id,
        shard: home_shard(&sale.secret.0, user, sale.shards),
    }
}
