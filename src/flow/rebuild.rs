//! Rebuild: write shards anew from the ledger, when Redis has lost what it knew of them or an operator asks for it.
//!
//! The ledger's rows of the shards are locked throughout, and the shards have no permit: nobody sells from them, lends
//! to them, drains them or decides about their orders. A shard that is being written is marked as loading and is of
//! an epoch that the ledger does not know, so a crash on the way leaves one that is rebuilt again.
//!
//! What is free on a rebuilt shard is what the sale owns and no other shard accounts for: units in the hands of a
//! transfer to it have arrived, units that it had lent before it was lost are its own again, and a fence on every
//! other shard keeps them from arriving there after all.

pub mod preview;
mod shoppers;
mod units;

use self::shoppers::restore_buyers;
use self::units::{Others, divide, look_at_others};
use super::drain::drain_to_now;
use super::permit::superseded;
use super::{App, bans, gap};
use crate::crash;
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::OrderState;
use crate::domain::report::Rebuilt;
use crate::domain::sale::Sale;
use crate::domain::server::has_taken_over;
use crate::ledger::outbox::Message;
use crate::ledger::rebuild::{RebuildClaim, Standing};
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::EVENTS_MAX;
use crate::stock::record::BuyerRecord;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Shards drained at once; each has a connection.
const DRAINS_AT_ONCE: usize = 4;
/// How long the drain of what is left may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Stops shards and writes them anew, once it is their sale's turn: with many sales to rebuild, each would have one of the
/// connections of which all need another.
pub(super) async fn make_ready_and_rebuild(app: &App, sale: &Sale, shards: &[u16]) -> Result<Rebuilt, Fault> {
    let _turn = app.permits.turn_to_rebuild().await?;
    let seen = make_ready(app, sale, shards).await?;
    rebuild(app, sale, &seen).await
}

/// Stops shards and takes in what they have left, so that they may be written anew. Returns their epochs by the ledger,
/// as they were before.
///
/// # Errors
/// A fault leaves events to be drained.
pub async fn make_ready(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeMap<u16, i64>, Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    let seen = standings.into_iter().map(|((_, shard), it)| (shard, it.epoch));
    let seen: BTreeMap<u16, i64> = seen.filter(|(shard, _)| shards.contains(shard)).collect();
    // All of them at once, so that the first still stands still when the last has been drained.
    let keys = shards.iter().map(|shard| ShardKey {
        sale: sale.id,
        shard: *shard,
    });
    try_join_all(keys.map(|key| app.stock.halt(key))).await?;
    Box::pin(gap::recover(app, sale, shards)).await?;
    let drains = futures_util::stream::iter(shards.to_vec())
        .map(|shard| drain_what_is_left(app, sale, shard, seen.get(&shard).copied().unwrap_or_default()));
    drains.buffer_unordered(DRAINS_AT_ONCE).try_collect::<()>().await?;
    Ok(seen)
}

async fn drain_what_is_left(app: &App, sale: &Sale, shard: u16, known: i64) -> Result<(), Fault> {
    let key = ShardKey { sale: sale.id, shard };
    if (1..known).contains(&app.stock.epoch(key).await.unwrap_or_default()) {
        // What it wrote in a life that is over is never taken in.
        return Ok(());
    }
    match drain(app, sale, &[shard]).await {
        // There is nothing that could be read.
        Err(Fault::Incomplete(_) | Fault::Bug(_)) => Ok(()),
        outcome => outcome,
    }
}

/// Takes in all that shards have written by now.
///
/// # Errors
/// A fault leaves events to be drained.
pub(super) async fn drain(app: &App, sale: &Sale, shards: &[u16]) -> Result<(), Fault> {
    if drain_to_now(app, sale, shards, Instant::now() + DRAIN_MAX).await? {
        Ok(())
    } else {
        Err(Fault::Unavailable(
            "the shards' events could not be taken in in time".to_owned(),
        ))
    }
}

/// Writes shards of a sale anew, if they are still as they were `seen`: their epochs in the ledger.
///
/// # Errors
/// A fault leaves shards that do not sell and are rebuilt again.
pub async fn rebuild(app: &App, sale: &Sale, seen: &BTreeMap<u16, i64>) -> Result<Rebuilt, Fault> {
    let (began, shards): (_, Vec<u16>) = (Instant::now(), seen.keys().copied().collect());
    let Some(mut claim) = app.ledger.claim_rebuild(sale.id, &shards).await? else {
        return Err(Fault::Unavailable(
            "somebody drains or rebuilds shards of this sale, or takes units out of them".to_owned(),
        ));
    };
    let outcome = write_anew(app, sale, seen, &mut claim).await;
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
                let key = ShardKey {
                    sale: sale.id,
                    shard: *shard,
                };
                app.permits.begin_life(key, *epoch);
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
            // Others hold more than is theirs: they have forgotten something, too.
            let all: Vec<u16> = claim.standings.keys().copied().collect();
            claim.release().await?;
            tracing::warn!(sale = %sale.id, "the other shards account for too many units; all are rebuilt");
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
    /// The shards are whole, in these epochs and on these servers.
    Whole {
        epochs: BTreeMap<u16, i64>,
        servers: BTreeMap<u16, String>,
        orders: usize,
        /// Orders that each of them had accepted in an earlier life, and that nobody took in.
        left_out: BTreeMap<u16, i64>,
    },
    /// The shards that were not to be written account for too much.
    TooMuchElsewhere,
}

async fn write_anew(
    app: &App,
    sale: &Sale,
    seen: &BTreeMap<u16, i64>,
    claim: &mut RebuildClaim,
) -> Result<Written, Fault> {
    let is_as_seen = |shard: &u16, epoch: &i64| claim.standings.get(shard).is_some_and(|it| it.epoch == *epoch);
    if !seen.iter().all(|(shard, epoch)| is_as_seen(shard, epoch)) {
        return Err(Fault::Unavailable(
            "somebody has rebuilt these shards meanwhile".to_owned(),
        ));
    }
    let (mut lives, mut servers) = (BTreeMap::new(), BTreeMap::new());
    for (shard, standing) in seen {
        let key = ShardKey {
            sale: sale.id,
            shard: *shard,
        };
        let server = app.stock.run_id(key).await?;
        let noted = claim.standings.get(shard).and_then(|it| it.run_id.as_ref());
        // Nobody can note another one while the claim stands.
        if noted.is_some_and(|noted| has_taken_over(noted, &server)) {
            return Err(superseded());
        }
        servers.insert(*shard, server);
        app.stock.halt(key).await?;
        let epoch = app.stock.epoch(key).await?;
        lives.insert(*shard, (epoch, epoch.max(*standing) + 1));
    }
    let epochs: BTreeMap<u16, i64> = lives.iter().map(|(shard, (_, next))| (*shard, *next)).collect();
    let fences: Vec<(u16, i64)> = claim
        .standings
        .iter()
        .map(|(shard, standing)| (*shard, epochs.get(shard).copied().unwrap_or(standing.epoch)))
        .collect();
    let (mut without_events, mut left_out) = (Vec::new(), BTreeMap::new());
    // Before the others are told: what a shard sends in the life that is ending must not be fenced off.
    for (shard, life) in &lives {
        let known = seen.get(shard).copied().unwrap_or_default();
        let unknown = unknown_events(
            app,
            claim,
            ShardKey {
                sale: sale.id,
                shard: *shard,
            },
            known,
        )
        .await?;
        if unknown > 0 {
            left_out.insert(*shard, unknown);
        }
        // One that has no stream has lost its events, which is noticed in a moment.
        let wrote = app
            .stock
            .last_event(ShardKey {
                sale: sale.id,
                shard: *shard,
            })
            .await
            .ok();
        let is_ahead = wrote
            .zip(claim.standings.get(shard))
            .is_some_and(|(wrote, it)| is_ahead(wrote, it));
        let begun = app.stock.begin_restore(sale, *shard, *life, known, &fences).await?;
        if begun.lost_events || is_ahead {
            let key = ShardKey {
                sale: sale.id,
                shard: *shard,
            };
            without_events.push((key, Some(life.1)));
        }
    }
    crash::point("rebuild.after_begin");
    // The ledger never heard of some of their orders, and never will: their events are gone, or it is a copy of an
    // earlier day.
    app.stock.forget_buyers(&without_events).await?;
    forget_revoked(app, sale, claim, &epochs).await?;
    let others = look_at_others(app, sale, claim, &epochs).await?;
    let live = restore_buyers(app, sale, claim, &epochs).await?;
    Box::pin(bans::tell_all(app, sale, &epochs, Some(claim))).await?;
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
        servers,
        orders: live.orders,
        left_out,
    })
}

/// How many orders that are still in a shard's stream, of a life before the one that the ledger knows, it does not know;
/// at least so many.
async fn unknown_events(app: &App, claim: &mut RebuildClaim, key: ShardKey, known: i64) -> Result<i64, Fault> {
    let Ok(events) = app.stock.events(key, EVENTS_MAX).await else {
        // There is nothing that could be read.
        return Ok(0);
    };
    let stale = events.iter().filter(|event| event.position.epoch < known);
    let orders: Vec<Uuid> = stale
        .filter_map(|event| Some(event.reserved.as_ref().ok()?.order.0))
        .collect();
    claim.unknown_orders(&orders).await
}

/// Whether a shard has written events, or had a life, of which the ledger knows nothing.
fn is_ahead(wrote: Position, standing: &Standing) -> bool {
    wrote.epoch > standing.epoch || (wrote.seq > 0 && wrote > standing.position)
}

/// Has shoppers begin anew who were not told yet that their order was revoked: one that could not be stored is not
/// among the orders from which they are written.
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
            let key = ShardKey {
                sale: sale.id,
                shard: *shard,
            };
            let user = user.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            let begins = [(user, BuyerRecord::default())];
            app.stock.restore_buyers(key, *epoch, &begins).await?;
        }
    }
    Ok(())
}

/// How many orders each shard had accepted that nobody knows any more, as far as this process has seen.
fn lost(
    app: &App,
    sale: SaleId,
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
    left_out: BTreeMap<u16, i64>,
) -> BTreeMap<u16, i64> {
    let known = epochs.keys().filter_map(|shard| {
        let seen = app.permits.last_seen(ShardKey { sale, shard: *shard })?;
        let drained = claim.standings.get(shard)?.position;
        // Nothing is drained in an epoch whose first events are on their way.
        let drained = if drained.epoch == seen.epoch { drained.seq } else { 0 };
        let in_this_life = claim.standings.get(shard)?.epoch == seen.epoch;
        let lost = seen.seq - drained;
        (in_this_life && lost > 0).then_some((*shard, lost))
    });
    let mut known: BTreeMap<u16, i64> = known.collect();
    for (shard, orders) in left_out {
        *known.entry(shard).or_default() += orders;
    }
    if !known.is_empty() {
        tracing::error!(%sale, shards = ?known, "orders that Redis had accepted are lost; at least so many");
    }
    known
}

/// Ids of what must not come into a rebuilt shard, because its units are counted as its own already.
fn applied(shard: u16, others: &Others, claim: &RebuildClaim) -> Vec<Uuid> {
    let mut applied = others.on_their_way.get(&shard).cloned().unwrap_or_default();
    applied.extend(claim.waiting.iter().filter_map(|(of, message)| match message {
        Message::GiveBack { transfer, .. } if *of == shard => Some(*transfer),
        Message::Restock { id, .. } if *of == shard => Some(*id),
        _ => None,
    }));
    applied
}
