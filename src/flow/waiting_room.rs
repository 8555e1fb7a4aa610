//! Waiting room: a shopper takes a place in line, or hears how he stands.
//!
//! Whoever asks also moves the line on, so nobody else has to. A crash changes nothing: asking again finds the place. If Redis
//! loses the line, everybody's ticket takes him back to his place when he asks the next time.

use super::App;
use super::stats::{glance_anew, last_glance};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::{Sale, SaleState};
use crate::domain::shard::home_shard;
use crate::domain::time::Millis;
use crate::domain::waiting_room::{Member, Place, ROOM_MAX, RoomCount, Turn};
use crate::stock::keys::ShardKey;
use crate::stock::room::{RoomAnswer, Waiting};
use futures_util::future::try_join_all;

/// So long after the start, how many have been let in lately tells how fast it goes.
const SPEED_KNOWN_AFTER: Millis = 10_000;

/// What came of asking for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    Turn(Turn),
    /// As many wait as may.
    Full,
    Banned,
    /// There is nothing to wait for.
    NotOpen(SaleState),
    /// The sale lets everybody in.
    NoRoom,
    /// There is no such sale.
    SaleNotFound,
}

/// Takes a place for a shopper, or tells how he stands; `ticket` is the place that he was told before, which counts if the
/// line has been lost since.
///
/// # Errors
/// `Unavailable` or `Incomplete` when it cannot be told now; asking again finds the same place.
pub async fn wait(app: &App, id: SaleId, user: &UserId, ticket: Option<Place>) -> Result<WaitOutcome, Fault> {
    let Some(sale) = app.sales.fixed(id).await? else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    if !sale.guards.waiting_room {
        return Ok(WaitOutcome::NoRoom);
    }
    let mut glance = last_glance(app, id).await?;
    // The last unit may have been sold since: who asks after that is not let in.
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

/// Notes that a shopper has bought, so that the next one may come in. Whoever is not noted counts as admitted until his time
/// is over.
pub async fn leave(app: &App, sale: &Sale, user: &UserId) {
    let member = Member::of(&sale.secret, user);
    if let Err(fault) = app.stock.leave_room(home(sale, user), &member).await {
        tracing::debug!(%fault, sale = %sale.id, "a shopper who has bought is not noted in the waiting room");
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
