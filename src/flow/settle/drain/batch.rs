//! One batch of a shard: read from its stream, stored in the ledger, trimmed.

use super::{BATCH_MAX, DrainOutcome};
use crate::domain::fault::Fault;
use crate::domain::order::event::{Event, Position};
use crate::domain::sale::{Durability, Sale};
use crate::flow::App;
use crate::flow::recover::permits::check_server;
use crate::flow::recover::sequence;
use crate::ledger::settle::drain::{DrainClaim, Drained};
use crate::stock::keys::ShardKey;
use crate::stock::settle::events::EventBatch;
use crate::telemetry::{self, BatchSpan};
use crate::{bugs, crash};
use std::time::Duration;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

/// Traced purchases of a batch that get a span in their own trace.
const TRACED_MAX: usize = 32;

/// Drains the next batch of a shard that no other task of this process drains.
pub(super) async fn drain_claimed(
    app: &App,
    sale: &Sale,
    shard: u16,
    complete: &mut Option<Instant>,
) -> Result<DrainOutcome, Fault> {
    let batch = BatchSpan::of(tracing::debug_span!(
        parent: telemetry::parent(),
        "drain",
        sale = %sale.id,
        shard,
        epoch = Empty,
        first = Empty,
        last = Empty,
        events = Empty,
        orders = Empty,
        fault = Empty,
        otel.kind = "consumer",
        otel.status_code = Empty
    ));
    let shard = ShardDrain {
        app,
        sale,
        key: ShardKey::new(sale.id, shard),
        span: &batch,
    };
    let outcome = shard.drain(complete).await;
    match &outcome {
        Ok(DrainOutcome::Busy | DrainOutcome::Empty) => batch.forget(),
        Ok(DrainOutcome::Drained { drained, .. }) => {
            batch.span().record("orders", drained.inserted);
        }
        Err(fault) => batch.fail(fault),
    }
    outcome
}

/// The drain of one batch of a shard.
struct ShardDrain<'a> {
    app: &'a App,
    sale: &'a Sale,
    key: ShardKey,
    span: &'a BatchSpan,
}

impl ShardDrain<'_> {
    async fn drain(&self, complete: &mut Option<Instant>) -> Result<DrainOutcome, Fault> {
        let Self { app, sale, key, span } = *self;
        let began = Instant::now();
        let Some(claim) = app.ledger.claim_shard(sale.id, key.shard).await? else {
            return Ok(DrainOutcome::Busy);
        };
        span.mark("claimed");
        let EventBatch { mut events, server } = read_batch(app, sale, key).await?;
        span.mark("read");
        let has_newer = leave_newer(sale, key.shard, &claim, &mut events)?;
        if events.last().is_none_or(|last| is_superseded(last, &claim)) {
            *complete = Some(began);
            return Ok(DrainOutcome::Empty);
        }
        check_server(app, &claim, &server)?;
        let has_gap = self.leave_gap(&claim, &mut events).await?;
        if bugs::has("the drain trims before it commits")
            && let Some(last) = events.last()
        {
            app.stock.trim_events(key, last).await?;
        }
        let drained = apply(claim, sale, &events, span).await?;
        crash::point("drain.after_commit");
        let is_whole = !has_newer && !has_gap && drained.events == events.len();
        events.truncate(drained.events);
        if sale.durability == Durability::Postgres {
            app.arrivals.committed(events.len(), &drained.orders);
        }
        let more = !is_whole || events.len() == BATCH_MAX;
        if !more {
            *complete = Some(began);
        }
        if let Some(last) = events.last() {
            let trimmed = app.stock.trim_events(key, last);
            trimmed.instrument(span.span().clone()).await?;
        }
        count(app, &events, &drained, began);
        Ok(DrainOutcome::Drained { drained, more })
    }

    /// Leaves out the events behind a gap: none of them is drained before a recovery has brought the gap's orders back
    /// into the ledger. Returns whether there is a gap. Fails with `Unavailable` when no event is left.
    async fn leave_gap(&self, claim: &DrainClaim, events: &mut Vec<Event>) -> Result<bool, Fault> {
        let Self { app, sale, key, .. } = *self;
        let follow = sequence::follow(app, sale, key, (claim.position, claim.epoch), events).await?;
        let has_gap = follow < events.len();
        events.truncate(follow);
        if events.is_empty() {
            return Err(Fault::Unavailable(
                "the ledger has lost events of this shard".to_owned(),
            ));
        }
        Ok(has_gap)
    }
}

/// Whether the server that wrote the stream's events did not know of the shard's epoch: a superseded primary, or one
/// with data of an earlier day. `last` is the last of these events. A shard gets a new epoch only once the ledger has
/// all events of the old one. The units of these events have gone to others since. The events stay until the shard is
/// rebuilt, and no waiting shopper is confirmed.
const fn is_superseded(last: &Event, claim: &DrainClaim) -> bool {
    last.position.epoch < claim.epoch
}

/// The first events of a shard's stream. Read from the start of the stream, not from the position: the drain trims only
/// what it has read. The ledger knows events that a crash left untrimmed by their orders. A Redis that lost its last
/// events may have reused their numbers for new orders. Those are not in the ledger, and must not vanish.
async fn read_batch(app: &App, sale: &Sale, key: ShardKey) -> Result<EventBatch, Fault> {
    match sale.durability {
        // The ledger must not run ahead of a replica that may be promoted.
        Durability::Replica => app.stock.replicated_batch(key, BATCH_MAX).await,
        Durability::Redis | Durability::Postgres => app.stock.batch(key, BATCH_MAX).await,
    }
}

/// Leaves out an event of a newer version, and all events after it: they wait for a worker of that version. Returns
/// whether there is one. Fails with `Newer` when no event is left.
fn leave_newer(sale: &Sale, shard: u16, claim: &DrainClaim, events: &mut Vec<Event>) -> Result<bool, Fault> {
    // A newer worker has taken these events in, and has not trimmed them yet.
    events.retain(|event| event.newer().is_none() || event.position > claim.position);
    let newer = sequence::first_newer(claim.position, claim.epoch, events);
    if let Some(first) = newer.and_then(|at| events.drain(at..).next())
        && events.is_empty()
    {
        return Err(Fault::Newer(format!(
            "event {} of shard {shard} of sale {} waits: {}",
            first.position.seq,
            sale.id,
            first.newer().unwrap_or_default()
        )));
    }
    Ok(newer.is_some())
}

/// Applies events to the ledger, inside the traces of their purchases.
async fn apply(claim: DrainClaim, sale: &Sale, events: &[Event], batch: &BatchSpan) -> Result<Drained, Fault> {
    let orders = link_traces(batch, events);
    crash::point("drain.before_commit");
    let drained = claim
        .apply(sale, events, chrono::Utc::now().timestamp_millis())
        .instrument(batch.span().clone())
        .await;
    if drained.is_err() {
        orders.iter().for_each(telemetry::failed);
    }
    drained
}

/// Links a batch to its traced purchases, up to `TRACED_MAX`, and adds a span to each of their traces. The spans last
/// as long as the transaction.
fn link_traces(batch: &BatchSpan, events: &[Event]) -> Vec<Span> {
    batch.span().record("events", events.len());
    // With these positions, a reader finds every other order as well.
    if let (Some(first), Some(last)) = (events.first(), events.last()) {
        let (first, last) = (first.position, last.position);
        batch.span().record("epoch", last.epoch);
        batch.span().record("first", first.seq).record("last", last.seq);
    }
    let traced = events.iter().filter_map(|event| Some((event, event.origin?)));
    let traced: Vec<_> = traced.take(TRACED_MAX).collect();
    // Link all purchases first: the links decide whether the batch is traced, and the first report starts it.
    for (_, origin) in &traced {
        batch.link(*origin);
    }
    let spans = traced.into_iter().map(|(event, origin)| {
        let Position { epoch, seq } = event.position;
        let order = event.reserved.as_ref().ok().map(|it| it.order.0.to_string());
        let span = tracing::debug_span!(
            parent: None,
            "drained",
            order,
            epoch,
            seq,
            otel.kind = "consumer",
            otel.status_code = Empty
        );
        batch.report(span, origin)
    });
    spans.collect()
}

/// Counts a batch that was drained, and logs its orders.
fn count(app: &App, events: &[Event], drained: &Drained, began: Instant) {
    let metrics = &app.metrics;
    metrics.drain_batch_duration.observe(began.elapsed());
    metrics.events_drained.inc_by(events.len() as u64);
    metrics.orders_drained.inc_by(drained.inserted as u64);
    let mut orders = events.iter().filter_map(|event| event.reserved.as_ref().ok());
    if let Some(oldest) = orders.next() {
        let waited = chrono::Utc::now().timestamp_millis() - oldest.created_at;
        // The clocks of two hosts may differ by more than the drain takes.
        let waited = Duration::from_millis(u64::try_from(waited).unwrap_or_default());
        metrics.drain_delay.observe(waited);
    }
    for event in events {
        if let Ok(reserved) = &event.reserved {
            let (epoch, seq) = (event.position.epoch, event.position.seq);
            tracing::debug!(order = %reserved.order, epoch, seq, "an order is in the ledger");
        }
    }
}
