//! Release: deliver the ledger's decisions to the stock.
//!
//! Each message was committed with its decision. A crash before the delivery leaves the message. A crash after it has
//! the message delivered again, which changes nothing.

mod deliver;

use super::rest_after;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::flow::App;
use crate::flow::settle::groups::Groups;
use crate::ledger::outbox::{Delivery, Message, Outgoing, OutgoingBatch};
use crate::ledger::settle::order::Decided;
use crate::stock::keys::ShardKey;
use crate::telemetry::{self, BatchSpan};
use crate::{bugs, crash};
use deliver::deliver;
use futures_util::StreamExt;
use futures_util::future::join_all;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument as _;
use tracing::field::Empty;

/// More than twice a batch of `expire`: a run delivers such a batch, and ends.
const BATCH_MAX: i64 = 500;
/// A run starts no new batch after this.
const RUN_MAX: Duration = Duration::from_secs(45);
const AT_ONCE: usize = 64;
/// How long a shopper or the payment provider waits for one delivery.
const NOW_MAX: Duration = Duration::from_millis(800);
/// How long the deliveries of a batch may take: no other process can have its messages meanwhile.
const DELIVER_MAX: Duration = Duration::from_secs(4);

/// Decisions that are delivered together: those of a sale, on a cluster by shard.
pub type DeliveryGroups = Groups<(SaleId, Option<u16>), Decided, bool>;

/// Delivers waiting messages; returns how many were tried. A fault leaves its messages to the next run; the other
/// messages have been delivered.
pub async fn release_waiting(app: &App) -> Result<usize, Fault> {
    let (mut delivered, mut trouble) = (0, None);
    // A node may be silent, or answer reads and refuse writes. Its messages must not hold up those to other nodes, so
    // the rest of the run leaves its shards out.
    let mut left_out = HashSet::new();
    let run = Instant::now();
    while run.elapsed() < RUN_MAX {
        let began = Instant::now();
        let batch = release_batch(app, None, &left_out).await?;
        let took = began.elapsed();
        delivered += batch.messages;
        trouble = trouble.or(batch.trouble);
        // Fewer than half of a batch were all that were due. The processes that decide deliver most of what comes
        // meanwhile, and another batch would deliver it twice.
        let was_all = i64::try_from(batch.messages * 2).is_ok_and(|twice| twice < BATCH_MAX);
        if was_all || (batch.all_wait && batch.stuck.is_empty()) {
            break;
        }
        left_out.extend(batch.stuck);
        if i64::try_from(batch.messages) == Ok(BATCH_MAX) {
            tokio::time::sleep(rest_after(took)).await;
        }
    }
    trouble.map_or(Ok(delivered), Err)
}

/// Delivers one batch of the messages that wait for one sale. A fault leaves them to the job `release`.
pub async fn release_of(app: &App, sale: SaleId) -> Result<(), Fault> {
    release_batch(app, Some(sale), &HashSet::new()).await?;
    Ok(())
}

/// The outcome of a batch.
#[derive(Default)]
struct Released {
    messages: usize,
    /// No message could be delivered.
    all_wait: bool,
    /// The shards to which messages were sent and none could be delivered.
    stuck: HashSet<ShardKey>,
    /// Why one of the messages has to wait.
    trouble: Option<Fault>,
}

struct Outcome {
    id: i64,
    shard: ShardKey,
    delivery: Delivery,
    /// Whether the batch's time ended before the shard could answer. So the outcome says nothing about the shard.
    is_cut_off: bool,
    trouble: Option<Fault>,
}

async fn release_batch(app: &App, sale: Option<SaleId>, left_out: &HashSet<ShardKey>) -> Result<Released, Fault> {
    let traced = BatchSpan::of(tracing::debug_span!(
        parent: telemetry::parent(),
        "release",
        messages = Empty,
        fault = Empty,
        otel.status_code = Empty
    ));
    let released = release_within(app, sale, left_out, &traced).await;
    match &released {
        Ok(Released { messages: 0, .. }) => traced.forget(),
        Ok(Released { messages, .. }) => {
            traced.span().record("messages", messages);
        }
        Err(fault) => traced.fail(fault),
    }
    released
}

async fn release_within(
    app: &App,
    sale: Option<SaleId>,
    left_out: &HashSet<ShardKey>,
    traced: &BatchSpan,
) -> Result<Released, Fault> {
    // Read before the due messages: a shard that is rebuilt later has another epoch.
    let epochs = app.permits.epochs();
    // Other processes deliver to the servers that have taken over.
    let taken_over = app.permits.superseded();
    let except: Vec<(SaleId, u16)> = taken_over
        .iter()
        .chain(left_out)
        .map(|it| (it.sale, it.shard))
        .collect();
    let batch = app.ledger.take_outgoing(BATCH_MAX, sale, &except).await?;
    traced.mark("taken");
    app.metrics.releases.of(["postponed"]).inc_by(batch.unreadable);
    if batch.messages.is_empty() {
        return Ok(Released::default());
    }
    let shards: HashSet<ShardKey> = batch.messages.iter().map(shard_of).collect();
    let shards: Vec<ShardKey> = shards.into_iter().collect();
    let deliveries = Deliveries {
        app,
        epochs,
        leaving: leaving(app, &batch.messages).await,
        servers: servers(app, &shards).await,
    };
    let mut outcomes = deliveries.deliver_all(&batch.messages).await;
    traced.mark("delivered");
    crash::point("release.before_settle");
    deliveries.confirm_servers(&mut outcomes).await;
    settle(app, batch, outcomes, traced).await
}

/// Stores the outcomes in the ledger.
async fn settle(
    app: &App,
    batch: OutgoingBatch,
    outcomes: Vec<Outcome>,
    traced: &BatchSpan,
) -> Result<Released, Fault> {
    let mut released = Released {
        messages: outcomes.len(),
        all_wait: outcomes.iter().all(|it| matches!(it.delivery, Delivery::Later)),
        stuck: stuck(&outcomes),
        trouble: None,
    };
    let mut settled = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        app.metrics.releases.of([outcome.delivery.result()]).inc();
        settled.push((outcome.id, outcome.delivery));
        released.trouble = released.trouble.or(outcome.trouble);
    }
    let uncounted = batch.settle(settled).instrument(traced.span().clone()).await?;
    // Their shards must be reconciled before any delivery counts.
    uncounted.into_iter().for_each(|sale| app.permits.need(sale));
    Ok(released)
}

/// The deliveries of a batch, and what was known of its shards before the first of them.
struct Deliveries<'a> {
    app: &'a App,
    /// The epochs of the shards that this process lets sell.
    epochs: HashMap<ShardKey, i64>,
    /// The sales that are leaving Redis.
    leaving: HashSet<SaleId>,
    /// The servers of the shards, as far as they answer.
    servers: HashMap<ShardKey, Server>,
}

impl Deliveries<'_> {
    /// Delivers the messages, several at once, until the batch's time ends.
    async fn deliver_all(&self, messages: &[Outgoing]) -> Vec<Outcome> {
        let deadline = Instant::now() + DELIVER_MAX;
        // Outside the batch's span: within it, each message's script would be a span.
        futures_util::stream::iter(messages.to_vec())
            .map(|outgoing| async move { self.deliver_until(deadline, &outgoing).await })
            .buffered(AT_ONCE)
            .collect()
            .await
    }

    /// Delivers a message if its shard's server answers, or if its sale is leaving Redis.
    async fn deliver_until(&self, deadline: Instant, outgoing: &Outgoing) -> Outcome {
        let shard = shard_of(outgoing);
        let is_server_known =
            self.servers.contains_key(&shard) || bugs::has("a release that failed counts as delivered");
        let delivered = if is_server_known || self.leaving.contains(&outgoing.sale) {
            timeout_at(deadline, deliver(self.app, outgoing, &self.epochs)).await
        } else {
            let silent = Fault::Unavailable("the shard's server does not answer".to_owned());
            Ok((Delivery::Later, Some(silent)))
        };
        let is_cut_off = delivered.is_err();
        let (delivery, trouble) = delivered.unwrap_or_else(|_| {
            let late = Fault::Unavailable("the message could not be delivered in time".to_owned());
            (Delivery::Later, Some(late))
        });
        Outcome {
            id: outgoing.id,
            shard,
            delivery,
            is_cut_off,
            trouble,
        }
    }

    /// Adds to each outcome the server that got the message. Without certainty about the server, the message is
    /// delivered again.
    async fn confirm_servers(&self, outcomes: &mut [Outcome]) {
        let asked: Vec<ShardKey> = self.servers.keys().copied().collect();
        let after = servers(self.app, &asked).await;
        for outcome in outcomes {
            let key = outcome.shard;
            // A sale that is leaving Redis is not reconciled, so its servers need not agree.
            if self.leaving.contains(&key.sale) || bugs::has("a release that failed counts as delivered") {
                continue;
            }
            let server = after.get(&key).filter(|server| self.servers.get(&key) == Some(server));
            match (&mut outcome.delivery, server) {
                (Delivery::Applied { by }, Some(server)) => *by = Some(server.clone()),
                (_, Some(_)) => {}
                // The server was just replaced or does not answer, so which server got the message is unknown.
                (delivery, None) => *delivery = Delivery::Later,
            }
        }
    }
}

fn shard_of(outgoing: &Outgoing) -> ShardKey {
    ShardKey::new(outgoing.sale, outgoing.shard)
}

/// The shards of which every message has to wait, at least one of them for a reason of the shard's own.
fn stuck(outcomes: &[Outcome]) -> HashSet<ShardKey> {
    let (waiting, delivered): (Vec<&Outcome>, Vec<&Outcome>) = outcomes
        .iter()
        .partition(|outcome| matches!(outcome.delivery, Delivery::Later));
    let delivered: HashSet<ShardKey> = delivered.into_iter().map(|it| it.shard).collect();
    let at_fault = waiting.into_iter().filter(|it| !it.is_cut_off).map(|it| it.shard);
    at_fault.filter(|shard| !delivered.contains(shard)).collect()
}

/// Those of the messages' sales that are leaving Redis.
async fn leaving(app: &App, messages: &[Outgoing]) -> HashSet<SaleId> {
    let sales: HashSet<SaleId> = messages.iter().map(|message| message.sale).collect();
    let mut leaving = HashSet::new();
    for sale in sales {
        if matches!(app.sales.fixed(sale).await, Ok(Some(sale)) if sale.leaving) {
            leaving.insert(sale);
        }
    }
    leaving
}

/// The servers of these shards, as far as they answer.
async fn servers(app: &App, shards: &[ShardKey]) -> HashMap<ShardKey, Server> {
    let servers = app.stock.servers(shards).await;
    let known = shards.iter().zip(servers);
    known
        .filter_map(|(shard, server)| Some((*shard, server.ok()?)))
        .collect()
}

/// Delivers a decision at once that was just committed, together with others of this moment. If this fails, the job
/// `release` delivers it.
pub async fn release_now(app: &App, decided: &Decided) {
    let shard = ShardKey::new(decided.order.sale_id, decided.shard);
    if app.permits.has_lost(shard) {
        return;
    }
    // A group goes to one server. On a cluster, each shard has groups of its own, so a silent node holds up no other.
    let of_cluster = (!app.stock.reads_one_moment()).then_some(shard.shard);
    let delivering = app
        .delivery_groups
        .join((shard.sale, of_cluster), decided.clone(), |decided| {
            Box::pin(deliver_now(app, decided))
        });
    if !matches!(timeout(NOW_MAX, delivering).await, Ok(Ok(true))) {
        tracing::debug!(message = decided.message, "the job `release` delivers this decision");
    }
}

/// Delivers decisions of one sale to one server. Returns whether each was applied and is marked as delivered.
async fn deliver_now(app: &App, decided: Vec<Decided>) -> Vec<bool> {
    crash::point("release.before_stock");
    let messages: Vec<Outgoing> = decided.into_iter().map(outgoing).collect();
    let Some(first) = messages.first() else {
        return Vec::new();
    };
    let (shard, epochs) = (shard_of(first), HashMap::new());
    // Ask for the server on the same connection before and after. Then it is certain which server got the messages.
    let before = app.stock.server(shard).await.ok();
    let deliveries: Vec<_> = messages.iter().map(|it| deliver(app, it, &epochs)).collect();
    let deliveries = join_all(deliveries).await.into_iter();
    let applied = deliveries.map(|(delivery, _)| matches!(delivery, Delivery::Applied { .. }));
    let applied: Vec<bool> = applied.collect();
    let after = app.stock.server(shard).await.ok();
    let is_certain = before == after && applied.contains(&true);
    let Some(server) = after.filter(|_| is_certain) else {
        return vec![false; messages.len()];
    };
    crash::point("release.after_stock");
    let delivered = messages.iter().zip(&applied).filter(|(_, is_applied)| **is_applied);
    let delivered: Vec<i64> = delivered.map(|(message, _)| message.id).collect();
    app.metrics.releases.of(["applied"]).inc_by(delivered.len() as u64);
    // If this fails, the job `release` delivers the messages again, and the stock knows them.
    match app.ledger.mark_delivered(shard.sale, &delivered, &server).await {
        Ok(()) => applied,
        Err(fault) => {
            tracing::debug!(%fault, "delivered decisions could not be marked");
            vec![false; messages.len()]
        }
    }
}

/// The message about a decision.
fn outgoing(decided: Decided) -> Outgoing {
    let Decided {
        order,
        shard,
        at,
        message,
    } = decided;
    Outgoing {
        id: message,
        sale: order.sale_id,
        shard,
        message: Message::Resolve {
            order: order.id.0,
            user: order.user.as_str().to_owned(),
            sku: order.sku.to_string(),
            quantity: i64::from(order.quantity),
            state: order.state.as_str().to_owned(),
            // The ledger's own time, so that both sides show the same.
            at,
        },
        attempts: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_takes_no_message_is_stuck_unless_only_the_batch_ran_out_of_time() {
        let sale = SaleId(uuid::Uuid::from_u128(1));
        let outcome = |shard, delivery, is_cut_off| Outcome {
            id: 0,
            shard: ShardKey::new(sale, shard),
            delivery,
            is_cut_off,
            trouble: None,
        };
        let applied = || Delivery::Applied { by: None };
        let outcomes = [
            outcome(0, Delivery::Later, false),
            outcome(0, Delivery::Later, true),
            outcome(1, Delivery::Later, false),
            outcome(1, applied(), false),
            outcome(2, Delivery::Later, false),
            outcome(2, Delivery::Failed("a reason".to_owned()), false),
            outcome(3, Delivery::Later, true),
            outcome(4, applied(), false),
        ];
        assert_eq!(stuck(&outcomes), HashSet::from([ShardKey::new(sale, 0)]));
    }
}
