//! Waiting room: a shopper takes a place in line, or asks how the place stands.
//!
//! Every such request also moves the line on, so no job has to. A crash changes nothing: asking again finds the place.
//! If Redis loses the line, each shopper's ticket restores the place at the next request.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::{Sale, SaleState};
use crate::domain::time::Millis;
use crate::domain::waiting_room::{Member, Place, ROOM_MAX, RoomCount, Turn};
use crate::flow::App;
use crate::flow::sell::glance::{Glance, fresh_glance, last_glance};
use crate::stock::keys::ShardKey;
use crate::stock::room::{RoomAnswer, Waiting};
use futures_util::future::try_join_all;
use std::sync::Arc;

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
    if !sale.shown_guards().waiting_room {
        return Ok(WaitOutcome::NoRoom);
    }
    let Some(glance) = recent_glance(app, id).await? else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    let state = glance.sale.state_at(glance.now());
    if matches!(state, SaleState::Draft | SaleState::Closed) {
        return Ok(WaitOutcome::NotOpen(state));
    }
    let shards = f64::from(sale.shards);
    let free = free_units(&glance);
    let waiting = Waiting {
        member: Member::of(&sale.secret, user),
        rate: f64::from(sale.guards.admissions_per_second) / shards,
        stay_ms: i64::from(sale.guards.admission_seconds) * 1000,
        free: free / shards,
        room_max: ROOM_MAX / u32::from(sale.shards),
        place: ticket,
        now: None,
    };
    let answer = app.stock.wait(ShardKey::home(&sale, user), user, &waiting).await?;
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
            let rate = rate_milli.max(expected_rate_milli(to_start, waiting.rate));
            let shards = i64::from(sale.shards);
            WaitOutcome::Turn(Turn::Waiting {
                place,
                ahead: ahead * shards,
                waiting: here * shards,
                wait_ms: wait_ms(to_start, ahead, rate).filter(|_| free > 0.0),
                sold_out: free <= 0.0,
            })
        }
    })
}

/// A glance at a sale that is not older than its last unit. The last unit may have been sold since the last glance. A
/// shopper who asks after that is not admitted.
async fn recent_glance(app: &App, id: SaleId) -> Result<Option<Arc<Glance>>, Fault> {
    let glance = last_glance(app, id).await?;
    if glance.as_ref().is_some_and(|glance| !glance.is_sold_out()) {
        return fresh_glance(app, id).await;
    }
    Ok(glance)
}

/// The free units of all items.
fn free_units(glance: &Glance) -> f64 {
    let free: i64 = glance.free.values().copied().filter(|units| *units > 0).sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sale has fewer units than a double is exact for"
    )]
    let free = free as f64;
    free
}

/// The line's speed, in thousandths of a shopper a second, while the recent admissions do not show it yet: the
/// configured `rate`. Afterwards 0.
fn expected_rate_milli(to_start: Millis, rate: f64) -> i64 {
    if to_start < -SPEED_KNOWN_AFTER {
        return 0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most a thousand million")]
    let milli = (rate * 1000.0).ceil() as i64;
    milli
}

/// How long a shopper waits behind so many others on the shard, at this speed; `None` while the line stands still.
fn wait_ms(to_start: Millis, ahead: i64, rate_milli: i64) -> Option<Millis> {
    let behind = (ahead + 1).saturating_mul(1_000_000);
    (rate_milli > 0).then(|| behind / rate_milli + to_start.max(0))
}

/// Notes that a shopper has bought, so that the next one may come in. If that fails, the shopper counts as admitted
/// until the admission ends.
pub async fn leave(app: &App, sale: &Sale, user: &UserId) {
    let member = Member::of(&sale.secret, user);
    if let Err(fault) = app.stock.leave_room(ShardKey::home(sale, user), &member).await {
        tracing::debug!(%fault, sale = %sale.id, "could not note in the waiting room that a shopper has bought");
    }
}

/// Counts who is in a sale's waiting room.
pub async fn count(app: &App, sale: &Sale) -> Result<RoomCount, Fault> {
    let shards = ShardKey::all(sale).map(|shard| app.stock.count_room(shard));
    let counts = try_join_all(shards).await?;
    Ok(counts.iter().fold(RoomCount::default(), |sum, it| RoomCount {
        waiting: sum.waiting + it.waiting,
        admitted: sum.admitted + it.admitted,
    }))
}
