//! Rebuild: write shards again from the ledger, when Redis has lost their data or an operator asks for it.
//!
//! The ledger's rows of the shards are locked throughout, and the shards have no permit. No process sells from them,
//! lends to them, drains them or decides their orders. A shard that is being rebuilt is marked as loading, in an epoch
//! that the ledger does not know. So a crash on the way leaves a shard that is rebuilt again.
//!
//! The free units of a rebuilt shard are those that the sale owns and no other shard accounts for. Units in a transfer
//! to it have arrived. Units that it had lent before the loss are its own again. A fence on every other shard keeps
//! them from arriving there.

pub mod preview;
mod shoppers;
mod units;

use self::shoppers::restore_buyers;
use self::units::{OtherShards, divide, read_other_shards};
use crate::crash;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::report::Rebuilt;
use crate::domain::order::OrderState;
use crate::domain::order::event::Position;
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::flow::operate::bans;
use crate::flow::recover::gap;
use crate::flow::recover::permits::superseded;
use crate::flow::settle::drain::drain_to_now;
use crate::ledger::outbox::Message;
use crate::ledger::recover::rebuild::RebuildClaim;
use crate::ledger::recover::standing::ShardStanding;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::EVENTS_MAX;
use crate::stock::record::BuyerRecord;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Shards drained at once; each drain has a connection.
const DRAINS_AT_ONCE: usize = 4;
/// How long the drain of the remaining events may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Halts and rebuilds shards, once their sale has a place among the rebuilds. Without that limit, every sale would
/// hold one of the connections of which all need another.
pub(in crate::flow) async fn make_ready_and_rebuild(app: &App, sale: &Sale, shards: &[u16]) -> Result<Rebuilt, Fault> {
    let _turn = app.permits.turn_to_rebuild().await?;
    let seen = make_ready(app, sale, shards).await?;
    rebuild(app, sale, &seen).await
}

/// Halts shards and drains their remaining events, so that they may be rebuilt. Returns the epochs that the ledger
/// listed before. A fault leaves events to be drained.
pub async fn make_ready(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeMap<u16, i64>, Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    let seen = standings.into_iter().map(|((_, shard), it)| (shard, it.epoch));
    let seen: BTreeMap<u16, i64> = seen.filter(|(shard, _)| shards.contains(shard)).collect();
    // Halt all at once, so that the first halt still holds when the last shard has been drained.
    let keys = shards.iter().map(|shard| ShardKey::new(sale.id, *shard));
    try_join_all(keys.map(|key| app.stock.halt(key))).await?;
    Box::pin(gap::recover(app, sale, shards)).await?;
    let drains = futures_util::stream::iter(shards.to_vec())
        .map(|shard| drain_what_is_left(app, sale, shard, seen.get(&shard).copied().unwrap_or_default()));
    drains.buffer_unordered(DRAINS_AT_ONCE).try_collect::<()>().await?;
    Ok(seen)
}

/// Drains what can be read of damaged shards. A fault leaves events to be drained.
pub(super) async fn drain_readable(app: &App, sale: &Sale, shards: &BTreeSet<u16>) -> Result<(), Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    for shard in shards {
        let known = standings.get(&(sale.id, *shard)).map_or(0, |it| it.epoch);
        drain_what_is_left(app, sale, *shard, known).await?;
    }
    Ok(())
}

async fn drain_what_is_left(app: &App, sale: &Sale, shard: u16, known: i64) -> Result<(), Fault> {
    let key = ShardKey::new(sale.id, shard);
    if (1..known).contains(&app.stock.epoch(key).await.unwrap_or_default()) {
        // Events of an earlier generation are never drained.
        return Ok(());
    }
    match drain(app, sale, &[shard]).await {
        // Nothing there can be read.
        Err(Fault::Incomplete(_) | Fault::Bug(_)) => Ok(()),
        outcome => outcome,
    }
}

/// Drains all events that shards have written by now. A fault leaves events to be drained.
pub(in crate::flow) async fn drain(app: &App, sale: &Sale, shards: &[u16]) -> Result<(), Fault> {
    if drain_to_now(app, sale, shards, Instant::now() + DRAIN_MAX).await? {
        Ok(())
    } else {
        Err(Fault::Unavailable(
            "the shards' events were not drained in time".to_owned(),
        ))
    }
}

/// Rebuilds shards of a sale, if the ledger still lists the epochs that were `seen`. A fault leaves shards that do not
/// sell and are rebuilt again.
pub async fn rebuild(app: &App, sale: &Sale, seen: &BTreeMap<u16, i64>) -> Result<Rebuilt, Fault> {
    let (began, shards): (_, Vec<u16>) = (Instant::now(), seen.keys().copied().collect());
    let Some(mut claim) = app.ledger.claim_rebuild(sale.id, &shards).await? else {
        return Err(Fault::Unavailable(
            "another drain, rebuild or withdrawal has claimed shards of this sale".to_owned(),
        ));
    };
    let outcome = rewrite_shards(app, sale, seen, &mut claim).await;
    match outcome {
        Ok(Written::Whole {
            epochs,
            servers,
            orders,
            left_out,
        }) => {
            crash::point("rebuild.before_commit");
            let lost = lost(app, sale.id, &claim, &epochs, left_out);
            claim.finish(&epochs, &servers, &lost).await?;
            crash::point("rebuild.after_commit");
            for (shard, epoch) in &epochs {
                let key = ShardKey::new(sale.id, *shard);
                app.permits.begin_epoch(key, *epoch);
            }
            tracing::info!(sale = %sale.id, shards = ?epochs, orders, "shards were rebuilt from the ledger");
            app.metrics
                .reconciled_shards
                .of(["rebuilt"])
                .inc_by(epochs.len() as u64);
            app.metrics.rebuild_duration.observe(began.elapsed());
            Ok(Rebuilt {
                sale_id: sale.id,
                shards: u16::try_from(epochs.len()).unwrap_or(u16::MAX),
                orders,
                lost_orders: lost.values().sum(),
            })
        }
        Ok(Written::TooMuchElsewhere) => {
            // Other shards account for more units than they can have: they have lost something, too.
            let all: Vec<u16> = claim.standings.keys().copied().collect();
            claim.release().await?;
            // If their rebuild fails, they must not sell on.
            app.ledger.mark_unverified(sale.id, &all).await?;
            tracing::warn!(sale = %sale.id, "the other shards account for too many units; rebuilding all shards");
            let all = make_ready(app, sale, &all).await?;
            Box::pin(rebuild(app, sale, &all)).await
        }
        Err(fault) => {
            claim.release().await?;
            Err(fault)
        }
    }
}

enum Written {
    /// The shards are rebuilt, in these epochs and on these servers.
    Whole {
        epochs: BTreeMap<u16, i64>,
        servers: BTreeMap<u16, Server>,
        orders: usize,
        /// Orders that each shard had accepted in an earlier generation, and that the ledger never took in.
        left_out: BTreeMap<u16, i64>,
    },
    /// The other shards account for too many units.
    TooMuchElsewhere,
}

async fn rewrite_shards(
    app: &App,
    sale: &Sale,
    seen: &BTreeMap<u16, i64>,
    claim: &mut RebuildClaim,
) -> Result<Written, Fault> {
    let halted = halt_as_seen(app, sale, seen, claim).await?;
    let epochs: BTreeMap<u16, i64> = halted.iter().map(|(shard, it)| (*shard, it.next_epoch)).collect();
    let left_out = begin(app, sale, seen, claim, &halted).await?;
    forget_revoked(app, sale, claim, &epochs).await?;
    let others = read_other_shards(app, sale, claim, &epochs).await?;
    let live = restore_buyers(app, sale, claim, &epochs).await?;
    Box::pin(bans::deliver_all(app, sale, &epochs, Some(claim))).await?;
    crash::point("rebuild.after_buyers");
    let Some(units) = divide(sale, claim, &others, &live, &epochs) else {
        return Ok(Written::TooMuchElsewhere);
    };
    for (shard, epoch) in &epochs {
        let units = units.get(shard).cloned().unwrap_or_default();
        let applied = applied(*shard, &others, claim);
        app.stock.end_restore(sale, *shard, *epoch, &units, &applied).await?;
    }
    Ok(Written::Whole {
        epochs,
        servers: halted.into_iter().map(|(shard, it)| (shard, it.server)).collect(),
        orders: live.orders,
        left_out,
    })
}

/// A halted shard that is about to be rebuilt.
struct HaltedShard {
    server: Server,
    epoch: i64,
    next_epoch: i64,
}

/// Halts the shards, if the ledger still lists the epochs that were `seen`.
async fn halt_as_seen(
    app: &App,
    sale: &Sale,
    seen: &BTreeMap<u16, i64>,
    claim: &RebuildClaim,
) -> Result<BTreeMap<u16, HaltedShard>, Fault> {
    let is_as_seen = |shard: &u16, epoch: &i64| claim.standings.get(shard).is_some_and(|it| it.epoch == *epoch);
    if !seen.iter().all(|(shard, epoch)| is_as_seen(shard, epoch)) {
        return Err(Fault::Unavailable(
            "another rebuild of these shards has ended meanwhile".to_owned(),
        ));
    }
    let mut halted = BTreeMap::new();
    for (shard, known) in seen {
        let key = ShardKey::new(sale.id, *shard);
        let server = app.stock.server(key).await?;
        let noted = claim.standings.get(shard).and_then(|it| it.noted.server());
        // No process can list another server while the claim stands.
        if noted.is_some_and(|noted| noted.has_taken_over_from(&server)) {
            return Err(superseded());
        }
        app.stock.halt(key).await?;
        let epoch = app.stock.epoch(key).await?;
        let next_epoch = epoch.max(*known) + 1;
        halted.insert(
            *shard,
            HaltedShard {
                server,
                epoch,
                next_epoch,
            },
        );
    }
    Ok(halted)
}

/// Begins the next generation of each shard. Forgets the shoppers of a shard with orders that the ledger will never
/// have. Returns how many orders of an earlier generation each shard had and the ledger never took in.
async fn begin(
    app: &App,
    sale: &Sale,
    seen: &BTreeMap<u16, i64>,
    claim: &mut RebuildClaim,
    halted: &BTreeMap<u16, HaltedShard>,
) -> Result<BTreeMap<u16, i64>, Fault> {
    let fences: Vec<(u16, i64)> = claim
        .standings
        .iter()
        .map(|(shard, standing)| (*shard, halted.get(shard).map_or(standing.epoch, |it| it.next_epoch)))
        .collect();
    let (mut without_events, mut left_out) = (Vec::new(), BTreeMap::new());
    // Before the other shards get their fences: a fence must not keep out what a shard sends in the epoch that ends
    // here.
    for (shard, it) in halted {
        let key = ShardKey::new(sale.id, *shard);
        let known = seen.get(shard).copied().unwrap_or_default();
        let unknown = unknown_events(app, claim, key, known).await?;
        if unknown > 0 {
            left_out.insert(*shard, unknown);
        }
        // A shard without a stream has lost its events, which `begin_restore` reports below.
        let wrote = app.stock.last_event(key).await.ok();
        let standing = claim.standings.get(shard);
        let is_ahead = wrote.zip(standing).is_some_and(|(wrote, it)| is_ahead(wrote, it));
        let epochs = (it.epoch, it.next_epoch);
        let lost_events = app.stock.begin_restore(sale, *shard, epochs, known, &fences).await?;
        if lost_events || is_ahead {
            without_events.push((key, Some(it.next_epoch)));
        }
    }
    crash::point("rebuild.after_begin");
    // The ledger will never have some of their orders: the events are gone, or the ledger is a copy of an earlier day.
    app.stock.forget_buyers(&without_events).await?;
    Ok(left_out)
}

/// Counts orders in a shard's stream that the ledger does not know, of generations before the one that it lists. There
/// may be more.
async fn unknown_events(app: &App, claim: &mut RebuildClaim, key: ShardKey, known: i64) -> Result<i64, Fault> {
    let Ok(events) = app.stock.events(key, EVENTS_MAX).await else {
        // Nothing there can be read.
        return Ok(0);
    };
    let stale = events.iter().filter(|event| event.position.epoch < known);
    let orders: Vec<Uuid> = stale
        .filter_map(|event| Some(event.reserved.as_ref().ok()?.order.0))
        .collect();
    claim.unknown_orders(&orders).await
}

/// Whether a shard has written events, or had a generation, that the ledger does not know.
fn is_ahead(wrote: Position, standing: &ShardStanding) -> bool {
    wrote.epoch > standing.epoch || (wrote.seq > 0 && wrote > standing.position)
}

/// Empties the rows of shoppers whose revoked orders were not delivered to the shard yet. The ledger may not have
/// stored such an order. Then no order restores the row.
async fn forget_revoked(
    app: &App,
    sale: &Sale,
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
) -> Result<(), Fault> {
    for (shard, message) in &claim.waiting {
        if let (Some(epoch), Message::Resolve { user, state, .. }) = (epochs.get(shard), message)
            && state == OrderState::Revoked.as_str()
        {
            let key = ShardKey::new(sale.id, *shard);
            let user = user.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            let begins = [(user, BuyerRecord::default())];
            app.stock.restore_buyers(key, *epoch, &begins).await?;
        }
    }
    Ok(())
}

/// How many events the ledger lacks up to the one that was `seen`, in the epoch that it lists. It has no position in an
/// epoch before it stores the epoch's first events. A position in a later epoch comes from a recovery, which has
/// brought the earlier orders back.
fn behind(standing: &ShardStanding, seen: Position) -> i64 {
    if standing.epoch == seen.epoch && standing.position.epoch <= seen.epoch {
        (seen.seq - standing.position.drained_of(seen.epoch)).max(0)
    } else {
        0
    }
}

/// How many accepted orders each shard has lost, as far as this process has seen.
fn lost(
    app: &App,
    sale: SaleId,
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
    left_out: BTreeMap<u16, i64>,
) -> BTreeMap<u16, i64> {
    let known = epochs.keys().filter_map(|shard| {
        let seen = app.permits.last_seen(ShardKey::new(sale, *shard))?;
        let lost = behind(claim.standings.get(shard)?, seen);
        (lost > 0).then_some((*shard, lost))
    });
    let mut known: BTreeMap<u16, i64> = known.collect();
    for (shard, orders) in left_out {
        *known.entry(shard).or_default() += orders;
    }
    if !known.is_empty() {
        tracing::error!(
            %sale, shards = ?known,
            "Redis has lost accepted orders; `shards` has the least number of each"
        );
    }
    known
}

/// The ids that a rebuilt shard must not apply, because their units are counted as its own already.
fn applied(shard: u16, others: &OtherShards, claim: &RebuildClaim) -> Vec<Uuid> {
    let mut applied = others.on_their_way.get(&shard).cloned().unwrap_or_default();
    applied.extend(claim.waiting.iter().filter_map(|(of, message)| match message {
        Message::GiveBack { transfer, .. } if *of == shard => Some(*transfer),
        Message::Restock { id, .. } if *of == shard => Some(*id),
        Message::GiveBack { .. }
        | Message::Restock { .. }
        | Message::State
        | Message::Resolve { .. }
        | Message::Ban { .. }
        | Message::Withdrawn { .. } => None,
    }));
    applied
}

#[cfg(test)]
mod tests {
    use super::behind;
    use crate::domain::order::event::Position;
    use crate::ledger::recover::standing::{NotedServer, ShardStanding};

    #[test]
    fn events_that_were_seen_and_are_not_in_the_ledger_are_lost_in_its_own_epoch_only() {
        let at = |(epoch, seq)| Position { epoch, seq };
        for (epoch, position, seen, expected) in [
            (1, (1, 12), (1, 15), 3),
            (1, (0, 0), (1, 4), 4),
            (1, (1, 12), (1, 12), 0),
            (1, (1, 12), (1, 3), 0),
            // The ledger lists another epoch than the process has seen.
            (2, (2, 0), (1, 15), 0),
            (1, (1, 12), (2, 3), 0),
            // A recovery has moved the position into an epoch that the ledger had lost.
            (1, (2, 0), (1, 12), 0),
        ] {
            let standing = ShardStanding {
                epoch,
                noted: NotedServer::default(),
                position: at(position),
            };
            assert_eq!(behind(&standing, at(seen)), expected, "{standing:?} {seen:?}");
        }
    }
}
