//! Expire: orders whose deadline has passed by Redis's clock, which set it, leave `reserved`. The job `release` gives
//! their units back at once. Each outage since the order's creation moves the deadline: the shopper could not pay then.
//!
//! A crash after the decision leaves its messages in the outbox.

use super::rest_after;
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::time::Millis;
use crate::flow::recover::instances::Rank;
use crate::flow::{App, RunTotals, rotate_start, whole};
use crate::ledger::settle::order::DueShard;
use crate::telemetry;
use chrono::{DateTime, Utc};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;
use tracing::field::Empty;

/// So few that purchases soon have the processor back. The job `release` delivers a full batch at once, while this job
/// rests.
const BATCH_MAX: i64 = 50;
/// A run starts no new batch after this. The next run, a moment later, begins at a random shard and takes what is due
/// by then.
const RUN_MAX: Duration = Duration::from_secs(5);
/// A round ends after this with its next full batch, so that one large sale does not delay the others.
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long a run waits for deadlines, in milliseconds. The next run follows within a second of this one's start.
const WATCH_MAX: Millis = 900;
/// The shortest time between two rounds of a run.
const ROUND_EVERY: Duration = Duration::from_millis(150);
/// How old the last heartbeat of any worker is when the first worker for them stores another, the second, the third, and
/// all others. They check it each second, and a gap of five seconds counts as an outage.
const BEATS_AFTER: [Duration; 4] = [
    Duration::from_millis(1_500),
    Duration::from_millis(2_000),
    Duration::from_millis(2_500),
    Duration::from_millis(3_000),
];

/// What a round leaves to the next one.
struct ExpiryRound {
    /// Redis's clock when the round began.
    now: Millis,
    /// When the next round has something to do, at the earliest.
    next: Instant,
}

/// Notes that a worker reaches the ledger, unless one has done so a moment ago. This is a job of its own, too: a worker
/// that has much to expire is not away.
pub async fn beat_if_due(app: &App) -> Result<usize, Fault> {
    let [first, second, third, others] = BEATS_AFTER;
    let after = match app.instances.rank_of_job("beat") {
        Rank::First => first,
        Rank::Second => second,
        Rank::Third => third,
        Rank::Other => others,
    };
    match app.bulletins.since_beat() {
        Some(since) if since < after => Ok(0),
        _ => beat(app).await,
    }
}

/// Notes that a worker reaches the ledger.
pub async fn beat(app: &App) -> Result<usize, Fault> {
    if let Some(outage) = app.ledger.beat().await? {
        tracing::warn!(
            seconds = outage.num_seconds(),
            "no worker had reached Postgres for a while; unpaid orders are held that much longer"
        );
    }
    Ok(0)
}

/// Expires the orders that are due, and others at their deadlines, for a moment; returns how many. One worker at a time
/// waits for deadlines, so that more workers do not make more rounds. The others see with each run whether it still does.
pub async fn expire_on_time(app: &App) -> Result<usize, Fault> {
    let until = Instant::now() + Duration::from_millis(WATCH_MAX.unsigned_abs());
    let mut totals = RunTotals::default();
    let (mut first_clock, mut turn) = (None, None);
    loop {
        let begun = Instant::now();
        let Some(round) = expire_round(app, &mut totals).await? else {
            break;
        };
        let next = round.next.max(begun + ROUND_EVERY);
        // A clock that is further ahead is another server's, and the next run begins by it.
        let passed = round.now - *first_clock.get_or_insert(round.now);
        if next > until || passed > WATCH_MAX {
            break;
        }
        if turn.is_none() {
            turn = app.ledger.turn_to_await_deadlines().await?;
        }
        if turn.is_none() {
            break;
        }
        sleep_until(next).await;
    }
    if let Some(turn) = turn {
        totals.note(turn.end().await.map(|()| 0));
    }
    totals.finish()
}

/// Expires what is due; returns how many orders that were.
pub async fn expire_due(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    expire_round(app, &mut totals).await?;
    totals.finish()
}

/// Expires what is due, and notes it in the totals. `None` if no deadline is near.
async fn expire_round(app: &App, totals: &mut RunTotals) -> Result<Option<ExpiryRound>, Fault> {
    // Read before the heartbeat: an outage that begins after it must not make anything due.
    let now = app.stock.slowest_clock().await;
    let read_at = Instant::now();
    beat(app).await?;
    let outages = app.ledger.outages().await?;
    let mut shards = app.ledger.shards_with_due_orders(now.as_ref().ok().copied()).await?;
    if shards.is_empty() {
        return Ok(None);
    }
    let now = now?;
    let early = if bugs::has("orders expire too early") { 700 } else { 0 };
    let due_of = |shard: &DueShard| outages.due(now + early, shard.window);
    let waits = shards.iter().map(|shard| shard.first - due_of(shard));
    // Redis's clock is read in whole milliseconds.
    let wait = waits.filter(|wait| *wait > 0).min();
    let mut next = wait.map(|wait| read_at + Duration::from_millis(wait.unsigned_abs() + 1));
    shards.retain(|shard| shard.first <= due_of(shard));
    let began = Instant::now();
    // One batch per shard and turn, so that a shard with much to expire keeps no other from its turn. The random start
    // does the same where a round has no time for all shards.
    rotate_start(&mut shards);
    shards = in_turns(shards);
    'round: while !shards.is_empty() {
        let mut unfinished = Vec::new();
        for shard in shards {
            if began.elapsed() >= RUN_MAX {
                break 'round;
            }
            let begun = Instant::now();
            let batch = expire_batch(app, &shard, due_of(&shard), now).await;
            let took = begun.elapsed();
            let expired = batch.as_ref().map_or(0, |expired| whole(*expired));
            if expired > 0 {
                app.releases_wanted.notify_one();
                // Behind a deadline that has passed, the shard may have one that is near.
                next = Some(read_at);
            }
            totals.note(batch);
            if expired == BATCH_MAX {
                unfinished.push(shard);
                tokio::time::sleep(rest_after(took)).await;
                if began.elapsed() >= AGAIN_MAX {
                    break 'round;
                }
            }
        }
        shards = unfinished;
    }
    Ok(next.map(|next| ExpiryRound { now, next }))
}

/// Orders shards so that each sale has a turn before any sale has another.
fn in_turns(shards: Vec<DueShard>) -> Vec<DueShard> {
    let mut turns: HashMap<SaleId, usize> = HashMap::new();
    let numbered = shards.into_iter().map(|shard| {
        let turn = turns.entry(shard.sale).or_default();
        *turn += 1;
        (*turn, shard)
    });
    let mut numbered: Vec<(usize, DueShard)> = numbered.collect();
    numbered.sort_by_key(|(turn, _)| *turn);
    numbered.into_iter().map(|(_, shard)| shard).collect()
}

async fn expire_batch(app: &App, shard: &DueShard, due: Millis, now: Millis) -> Result<usize, Fault> {
    // A batch that finds nothing due has a span, too: only running it shows that.
    let span = tracing::debug_span!(
        "expire",
        sale = %shard.sale,
        shard = shard.shard,
        orders = Empty,
        otel.status_code = Empty
    );
    let expire = app.ledger.expire_due(shard, due, now, BATCH_MAX);
    let batch = expire.instrument(span.clone()).await;
    match &batch {
        Ok(orders) => {
            span.record("orders", orders);
        }
        Err(_) => telemetry::failed(&span),
    }
    batch
}

/// How long ago the oldest hold ended that has not expired, of one sale or of all. `now` is Redis's clock, which set
/// the deadlines; Postgres's may differ.
pub async fn lag(app: &App, sale: Option<SaleId>, now: DateTime<Utc>) -> Result<Duration, Fault> {
    let oldest = app.ledger.oldest_hold(sale).await?;
    // A hold that has not ended yet is not late.
    let lag = oldest.and_then(|ends_at| (now - ends_at).to_std().ok());
    Ok(lag.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn each_sale_has_a_turn_before_any_has_another() {
        let due = |sale, shard| DueShard {
            sale: SaleId(Uuid::from_u128(sale)),
            shard,
            window: 0,
            first: 0,
        };
        let shards = vec![due(1, 0), due(1, 1), due(1, 2), due(2, 0), due(2, 1), due(3, 5)];
        let turns = in_turns(shards).into_iter().map(|it| (it.sale.0.as_u128(), it.shard));
        let expected = [(1, 0), (2, 0), (3, 5), (1, 1), (2, 1), (1, 2)];
        assert_eq!(turns.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn purchases_have_most_of_the_time_and_200_000_holds_wait_for_160_seconds_at_most() {
        let took = Duration::from_millis(10);
        assert_eq!(rest_after(took), took * 3);
        let batches = 200_000 / u32::try_from(BATCH_MAX).unwrap();
        assert!(rest_after(Duration::MAX) * batches <= Duration::from_secs(160));
    }
}
