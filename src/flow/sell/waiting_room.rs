//! Waiting room: a shopper takes a place in line, or asks how the place stands.
//!
//! Every such request also moves the line on, so no job has to. A crash changes nothing: asking again finds the place.
//! If Redis loses the line, each shopper's ticket restores the place at the next request.
//!
//! A shopper's position is over all shards. A process reads the lines once a second at most, for all shoppers. A reading
//! counts for those who had joined before it began: it misses nobody who is ahead of them.

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::order::purchase::Refusal;
use crate::domain::sale::{Sale, SaleState};
use crate::domain::shopper::waiting_room::{Line, Member, ROOM_MAX, RoomCount, Ticket, Turn};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::sell::glance::{Glance, fresh_glance, last_glance};
use crate::stock::door::room::{RoomAnswer, Waiting};
use crate::stock::keys::ShardKey;
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long after the start the recent admissions show the line's speed.
const SPEED_KNOWN_AFTER: Millis = 10_000;

/// How long a reading of all lines serves this process, also if a shard did not answer.
const LINES_FRESH: Duration = Duration::from_secs(1);

/// No shopper waits longer for a silent node of a cluster: the position is then as it was.
const LINES_MAX: Duration = Duration::from_millis(300);

/// Sales whose last reading is kept: up to a hundred kilobytes each.
const SALES_MAX: usize = 1_000;

/// The last reading of each sale's lines. One caller reads for all.
pub struct Lines(Cache<SaleId, LineReading>);

impl Default for Lines {
    fn default() -> Self {
        Self(Cache::fresh_for(LINES_FRESH, SALES_MAX))
    }
}

/// All lines of a sale, in the order of its shards.
#[derive(Clone)]
struct LineReading {
    begun: Instant,
    /// The same by Redis's clock.
    begun_at: Millis,
    /// `None` if a shard did not answer.
    lines: Option<Arc<Vec<Line>>>,
}

impl LineReading {
    fn lines_without(&self, home: ShardKey) -> Option<Vec<&Line>> {
        let lines = self.lines.as_ref()?.iter().zip(0_u16..);
        Some(
            lines
                .filter(|(_, shard)| *shard != home.shard)
                .map(|(line, _)| line)
                .collect(),
        )
    }
}

/// The outcome of asking for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    Turn(Turn),
    /// The waiting room is full.
    Full,
    Banned(Refusal),
    /// The sale does not sell, so there is no line.
    NotOpen(SaleState),
    /// The sale is open, and the shopper needs no admission.
    NoRoom,
    SaleNotFound,
}

/// Takes a place for a shopper, or returns how the place stands. The place of the shopper's earlier `ticket` counts if
/// the line has been lost since, its position bounds the present one. Fails with `Unavailable` or `Incomplete` when the
/// place is not known now; asking again finds the same place.
pub async fn wait(app: &App, id: SaleId, user: &UserId, ticket: Option<Ticket>) -> Result<WaitOutcome, Fault> {
    let Some(sale) = app.sales.fixed(id).await? else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    let Some(glance) = recent_glance(app, id).await? else {
        return Ok(WaitOutcome::SaleNotFound);
    };
    let state = glance.sale.state_at(glance.now());
    let is_needed = sale.waiting_room_for(user).value;
    // Pages do not know whom a stage picks. So its shoppers cannot come before the sale sells, and must not lose to clients
    // that do.
    let is_new_in_a_pause = state == SaleState::Paused && ticket.is_none();
    let is_early = is_new_in_a_pause || glance.now() < glance.sale.starts_at.timestamp_millis();
    let is_too_early = is_early && !sale.guards.of_all(&sale.staged_guards).waiting_room;
    match state {
        SaleState::Draft | SaleState::Closed => return Ok(WaitOutcome::NotOpen(state)),
        SaleState::Open if !is_needed => return Ok(WaitOutcome::NoRoom),
        SaleState::Scheduled | SaleState::Paused if !is_needed || is_too_early => {
            return Ok(WaitOutcome::NotOpen(state));
        }
        SaleState::Open | SaleState::Scheduled | SaleState::Paused => {}
    }
    let shards = f64::from(sale.shards);
    let free = free_units(&glance);
    let waiting = Waiting {
        member: Member::of(&sale.secret, user),
        rate: f64::from(sale.guards.admissions_per_second) / shards,
        stay_ms: i64::from(sale.guards.admission_seconds) * 1000,
        free: free / shards,
        room_max: ROOM_MAX / u32::from(sale.shards),
        place: ticket.map(|ticket| ticket.place),
        now: None,
    };
    let home = ShardKey::home(&sale, user);
    let answer = app.stock.wait(home, user, &waiting).await?;
    let joined_by = Instant::now();
    Ok(match answer {
        RoomAnswer::Admitted { .. } if free <= 0.0 => WaitOutcome::Turn(Turn::SoldOut),
        RoomAnswer::Admitted { until } => WaitOutcome::Turn(Turn::Admitted { until }),
        RoomAnswer::Full => WaitOutcome::Full,
        RoomAnswer::Banned(refusal) => WaitOutcome::Banned(refusal),
        RoomAnswer::NotOpen(state) => WaitOutcome::NotOpen(state),
        RoomAnswer::Waiting {
            place,
            ahead,
            waiting: here,
            rate_milli,
        } => {
            let to_start = glance.sale.starts_at.timestamp_millis() - glance.now();
            let rate = rate_milli.max(expected_rate_milli(to_start, waiting.rate));
            let reading = read_lines(app, &sale, &glance).await;
            let others = reading.lines_without(home);
            // A reading that began earlier may miss shoppers who are ahead of this one.
            let joined_at = glance.sale.starts_at.timestamp_millis() + place.came_after();
            let is_counted = reading.begun >= joined_by || reading.begun_at > joined_at;
            let before = |others: &Vec<&Line>| others.iter().map(|line| line.before(place.place)).sum::<i64>();
            let counted = others.as_ref().filter(|_| is_counted && to_start <= 0);
            let position = counted.map(|others| 1 + ahead + before(others));
            let earlier = ticket.filter(|ticket| ticket.place == place);
            let earlier = earlier.and_then(|ticket| ticket.position);
            WaitOutcome::Turn(Turn::Waiting {
                ticket: Ticket {
                    place,
                    position: position.into_iter().chain(earlier).min(),
                },
                is_counted_soon: others.is_some() && !is_counted && to_start <= 0,
                waiting: others.map(|others| here + others.iter().map(|line| line.waiting).sum::<i64>()),
                wait_ms: wait_ms(to_start, ahead, rate).filter(|_| free > 0.0),
                sold_out: free <= 0.0,
            })
        }
    })
}

/// All lines of a sale, by a reading that ended a second ago at most. A single line needs no reading: its own answer says
/// it all.
async fn read_lines(app: &App, sale: &Sale, glance: &Glance) -> LineReading {
    let reading = |lines| LineReading {
        begun: Instant::now(),
        begun_at: glance.now(),
        lines,
    };
    if sale.shards == 1 {
        return reading(Some(Arc::default()));
    }
    let read = Box::pin(async {
        let begun = reading(None);
        let lines = app.stock.read_lines(sale, LINES_MAX).await;
        LineReading {
            lines: lines.ok().map(Arc::new),
            ..begun
        }
    });
    app.lines.0.get_or_read(&sale.id, read).await
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
