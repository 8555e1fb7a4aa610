//! Expire: orders whose deadline has passed by Redis's clock, which set it, leave `reserved`. The job `release` gives
//! their units back. Each outage since the order's creation moves the deadline: the shopper could not pay then.
//!
//! A crash after the decision leaves its messages in the outbox.

use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::time::Millis;
use crate::flow::sale_book::whole;
use crate::flow::settle::release::release_waiting;
use crate::flow::{App, RunTotals, rotate_start};
use crate::ledger::order::DueShard;
use crate::telemetry;
use chrono::{DateTime, Utc};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;
use tracing::field::Empty;

const BATCH_MAX: i64 = 500;
/// A run starts no new batch after this. The next run, a moment later, begins at a random shard and takes what is due
/// by then.
const RUN_MAX: Duration = Duration::from_secs(5);
/// How long a run waits for deadlines; then the next run begins.
const WATCH_MAX: Duration = Duration::from_millis(900);
/// The shortest time between two rounds of a run.
const ROUND_EVERY: Duration = Duration::from_millis(150);

/// Notes that a worker reaches the ledger. A job of its own does this, too: a worker that has much to expire is not
/// away.
pub async fn beat(app: &App) -> Result<usize, Fault> {
    if let Some(outage) = app.ledger.beat().await? {
        tracing::warn!(
            seconds = outage.num_seconds(),
            "no worker had reached Postgres for a while; unpaid orders are held that much longer"
        );
    }
    Ok(0)
}

/// Expires orders at their deadlines for a moment, and gives their units back at once; returns how many orders that were.
///
/// # Errors
/// A fault leaves what it concerns to the next run, or to the job `release`.
pub async fn expire_on_time(app: &App) -> Result<usize, Fault> {
    let until = Instant::now() + WATCH_MAX;
    let mut totals = RunTotals::default();
    let mut is_first = true;
    loop {
        let (begun, before) = (Instant::now(), totals.done);
        let next = expire_round(app, &mut totals).await?;
        let has_expired = totals.done > before;
        if has_expired && let Err(fault) = release_waiting(app).await {
            tracing::debug!(%fault, "the job `release` gives back what has expired");
        }
        let next = next
            .map(|next| begun + next.max(ROUND_EVERY))
            .filter(|next| *next <= until);
        // Of the workers that wait for one deadline, those that find its orders expired leave the rest to the others.
        let Some(next) = next.filter(|_| has_expired || is_first) else {
            return totals.finish();
        };
        is_first = false;
        sleep_until(next).await;
    }
}

/// Expires what is due; returns how many orders that were.
pub async fn expire_due(app: &App) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    expire_round(app, &mut totals).await?;
    totals.finish()
}

/// Expires what is due, and notes it in the totals. Returns how long it is, at least, until the next deadline, if one is
/// near.
async fn expire_round(app: &App, totals: &mut RunTotals) -> Result<Option<Duration>, Fault> {
    // Read before the heartbeat: an outage that begins after it must not make anything due.
    let now = app.stock.slowest_clock().await;
    beat(app).await?;
    let outages = app.ledger.outages().await?;
    let mut shards = app.ledger.shards_with_due_orders(now.as_ref().ok().copied()).await?;
    if shards.is_empty() {
        return Ok(None);
    }
    let now = now?;
    let early = if bugs::has("orders expire too early") { 700 } else { 0 };
    let due_of = |shard: &DueShard| outages.due(now + early, shard.window);
    // Redis's clock is read in whole milliseconds.
    let wait = |shard: &DueShard| u64::try_from(shard.first - due_of(shard)).ok().filter(|wait| *wait > 0);
    let mut next = shards
        .iter()
        .filter_map(wait)
        .min()
        .map(|wait| Duration::from_millis(wait + 1));
    shards.retain(|shard| shard.first <= due_of(shard));
    let began = Instant::now();
    // One batch per shard and round, so that a shard with much to expire keeps no other from its turn. The random
    // start does the same where a run has no time for all shards.
    rotate_start(&mut shards);
    while !shards.is_empty() {
        let mut unfinished = Vec::new();
        for shard in shards {
            if began.elapsed() >= RUN_MAX {
                return Ok(next);
            }
            let begun = Instant::now();
            let batch = expire_batch(app, &shard, due_of(&shard), now).await;
            let took = begun.elapsed();
            let expired = batch.as_ref().map_or(0, |expired| whole(*expired));
            if expired > 0 {
                // Behind a deadline that has passed, the shard may have one that is near.
                next = Some(Duration::ZERO);
            }
            totals.note(batch);
            if expired == BATCH_MAX {
                unfinished.push(shard);
                // Rest as long as the batch took: purchases matter more than units that are free a moment later.
                tokio::time::sleep(took).await;
            }
        }
        shards = unfinished;
    }
    Ok(next)
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
