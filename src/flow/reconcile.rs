//! Reconcile: find out whether shards still hold all that the ledger knows of them, and rebuild those that do not.
//!
//! What Redis loses, it loses from the end: after a restart or a failover its data are as they were a moment earlier.
//! So a shard that still has the last event that was taken in, and whose units are where the ledger expects them
//! once the rest is drained and told, has lost nothing that matters. A crash on the way changes nothing.

use super::audit::shard_differences;
use super::balance::is_even;
use super::rebuild::{drain, make_ready_and_rebuild};
use super::release::release_of;
use super::{App, bans};
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::OrderState;
use crate::domain::sale::{Lifecycle, Sale};
use crate::ledger::audit::ShardBooks;
use crate::ledger::outbox::Message;
use crate::ledger::rebuild::{CLAIMED, Found, Moved};
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::{EVENTS_MAX, ShardReading};
use futures_util::future::{join_all, try_join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often shards that others are still changing are looked at before they count as damaged.
const LOOKS_MAX: u32 = 6;
/// Decisions on their way to a shard that are asked for one by one.
const DECISIONS_MAX: usize = 200;

/// Reconciles shards of a sale, and notes in the ledger on which server that was done. Returns when that began by which those
/// that are whole were judged: what a shard was suspected of before is answered by it.
///
/// # Errors
/// A fault leaves shards that do not sell; the same call goes on.
pub async fn reconcile(app: &App, sale: &Sale, shards: &[u16]) -> Result<Instant, Fault> {
    let reconciled = reconcile_halted(app, sale, shards).await;
    resume(app, sale.id, shards).await;
    reconciled
}

/// Ends the halts of these shards, as far as it can be said; they end by themselves.
pub(super) async fn resume(app: &App, sale: SaleId, shards: &[u16]) {
    let keys = shards.iter().map(|shard| ShardKey { sale, shard: *shard });
    let _ended = join_all(keys.map(|key| app.stock.resume(key))).await;
}

async fn reconcile_halted(app: &App, sale: &Sale, shards: &[u16]) -> Result<Instant, Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    let mut servers = BTreeMap::new();
    for shard in shards {
        let key = ShardKey {
            sale: sale.id,
            shard: *shard,
        };
        // Before anything is looked at: a server that takes over meanwhile has another.
        servers.insert(*shard, app.stock.run_id(key).await?);
        app.stock.halt(key).await?;
    }
    // What other servers were told before this counts, and is in the ledger; what they are told after it does not.
    let noted = |shard: u16| standings.get(&(sale.id, shard)).and_then(|it| it.run_id.clone());
    let moved = servers.iter().map(|(shard, run_id)| Moved {
        shard: *shard,
        before: noted(*shard),
        run_id: run_id.clone(),
    });
    let is_new = |it: &Moved| it.before.as_ref().map(|before| before.trim_start_matches(CLAIMED)) != Some(&it.run_id);
    let moved: Vec<Moved> = moved.filter(is_new).collect();
    for it in &moved {
        // Others are not to lose their shards to a server that takes no writes.
        let (sale, shard) = (sale.id, it.shard);
        app.stock.try_write(ShardKey { sale, shard }).await?;
    }
    app.ledger.claim_for(sale.id, &moved).await?;
    let before = |shard: u16, run_id: &str| {
        let claimed = moved.iter().any(|it| it.shard == shard);
        if claimed {
            Some(format!("{CLAIMED}{run_id}"))
        } else {
            noted(shard)
        }
    };
    let (damaged, looked) = damaged(app, sale, shards).await?;
    servers.retain(|shard, _| !damaged.contains(shard));
    let mut forgetful = Vec::new();
    if !servers.is_empty() {
        // A state that Redis was told and has lost shows in no counter.
        let Some(now) = app.ledger.sale(sale.id).await? else {
            return Err(Fault::Bug(format!("sale {} has gone from the ledger", sale.id)));
        };
        let standings = app.ledger.standings(&[sale.id]).await?;
        let mut found = Vec::new();
        for (shard, run_id) in servers {
            app.stock.set_state(&now, shard).await?;
            // Also one that somebody else has claimed for it, who may not have come so far.
            if before(shard, &run_id).as_deref() != Some(run_id.as_str()) {
                Box::pin(bans::tell_recent(app, &now, &[shard])).await?;
            }
            let key = ShardKey { sale: sale.id, shard };
            let wrote = app.stock.last_event(key).await?;
            // What was lost since it was looked at first shows in no counter where as much was taken as was given back.
            if standings.get(&(sale.id, shard)).is_none_or(|it| wrote < it.position) {
                forgetful.push(shard);
                continue;
            }
            found.push(Found {
                shard,
                before: before(shard, &run_id),
                run_id,
                wrote,
                lost: app.permits.lost_since(key, wrote),
            });
        }
        app.ledger.note_reconciled(sale.id, &found).await?;
        app.metrics.reconciled_shards.of(["whole"]).inc_by(found.len() as u64);
    }
    if !damaged.is_empty() {
        // Those get what no other accounts for, so no other must have forgotten what it has.
        let mut damaged = damaged;
        damaged.extend(damaged_at_sight(app, sale, &others(sale, shards)).await?);
        tracing::warn!(sale = %sale.id, shards = ?damaged, "shards have lost what the ledger knows; they are rebuilt");
        let damaged: Vec<u16> = damaged.into_iter().collect();
        make_ready_and_rebuild(app, sale, &damaged).await?;
    }
    if forgetful.is_empty() {
        Ok(looked)
    } else {
        Err(Fault::Unavailable(format!(
            "shards {forgetful:?} of sale {} have lost events while they were looked at",
            sale.id
        )))
    }
}

/// Those of the shards that have lost something, and when that began by which the others were judged.
async fn damaged(app: &App, sale: &Sale, shards: &[u16]) -> Result<(BTreeSet<u16>, Instant), Fault> {
    if bugs::has("every shard is found whole") {
        return Ok((BTreeSet::new(), Instant::now()));
    }
    let mut damaged = damaged_at_sight(app, sale, shards).await?;
    let whole: Vec<u16> = shards
        .iter()
        .copied()
        .filter(|shard| !damaged.contains(shard))
        .collect();
    if whole.is_empty() {
        return Ok((damaged, Instant::now()));
    }
    drain(app, sale, &whole).await?;
    release_of(app, sale.id).await?;
    // Who was just told of a decision, and did not know its order, is suspected: that is answered by what comes now.
    let looked = Instant::now();
    let mut open: BTreeSet<u16> = whole.iter().copied().collect();
    for look in 1..=LOOKS_MAX {
        let readings = read(app, sale, &whole, EVENTS_MAX).await?;
        if readings.iter().any(|it| it.record.permit_until > it.now) {
            return Err(Fault::Unavailable("another process lets these shards sell".to_owned()));
        }
        let mut books = app.ledger.books(sale.id, sale.shards).await?;
        let mut unclear = BTreeSet::new();
        for shard in &open {
            if let Some(books) = books.shards.get_mut(usize::from(*shard))
                && !leave_out_told(app, sale, *shard, books).await?
            {
                unclear.insert(*shard);
            }
        }
        // Nothing was told between two readings that agree.
        let after = read(app, sale, &whole, 0).await?;
        for (reading, after) in readings.iter().zip(&after) {
            let books = books.shards.get(usize::from(reading.shard));
            let stood_still = reading.items == after.items && reading.record.epoch == after.record.epoch;
            if stood_still
                && !unclear.contains(&reading.shard)
                && books.is_some_and(|books| shard_differences(sale, books, reading).is_empty())
            {
                open.remove(&reading.shard);
            }
        }
        if open.is_empty() || look == LOOKS_MAX {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20) * look).await;
    }
    damaged.extend(open);
    // What moved between shards, or was granted, shows only in all of them together; what is rebuilt comes right by it.
    if damaged.is_empty() {
        if !damaged_at_sight(app, sale, &others(sale, shards)).await?.is_empty() {
            return Err(Fault::Unavailable(
                "other shards of this sale are not whole yet".to_owned(),
            ));
        }
        if !is_even(app, sale).await? {
            damaged.extend(whole);
        }
    }
    Ok((damaged, looked))
}

fn others(sale: &Sale, shards: &[u16]) -> Vec<u16> {
    (0..sale.shards).filter(|shard| !shards.contains(shard)).collect()
}

async fn read(app: &App, sale: &Sale, shards: &[u16], events_max: usize) -> Result<Vec<ShardReading>, Fault> {
    let readings = shards
        .iter()
        .map(|shard| app.stock.read_shard(sale, *shard, events_max));
    try_join_all(readings).await
}

/// Leaves those decisions out of what a shard has to be told that it knows already, because whoever told it has not struck
/// them yet: otherwise one that Redis has lost could pass for one that is still to be told. `false` when there are too many
/// to ask for.
async fn leave_out_told(app: &App, sale: &Sale, shard: u16, books: &mut ShardBooks) -> Result<bool, Fault> {
    let is_decision = |message: &&Message| matches!(message, Message::Resolve { .. });
    if books.waiting.iter().filter(is_decision).count() > DECISIONS_MAX {
        return Ok(false);
    }
    let key = ShardKey { sale: sale.id, shard };
    let mut untold = Vec::with_capacity(books.waiting.len());
    for message in books.waiting.drain(..) {
        if let Message::Resolve { order, user, .. } = &message {
            let user = user.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            let buyer = app.stock.read_buyer(key, &user).await?;
            let found = buyer.orders.iter().find(|(id, _)| id.0 == *order);
            let knows = found.map_or(buyer.elsewhere, |(_, order)| order.state != OrderState::Reserved);
            if knows {
                continue;
            }
        }
        untold.push(message);
    }
    books.waiting = untold;
    Ok(true)
}

/// Those of the shards that are not all there, or do not have the last event that the ledger took in.
async fn damaged_at_sight(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeSet<u16>, Fault> {
    if shards.is_empty() {
        return Ok(BTreeSet::new());
    }
    // A drain may have read events that Redis has lost since; once it is over, the ledger knows them.
    app.ledger.wait_for_drains(sale.id, shards).await?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let mut damaged = BTreeSet::new();
    for shard in shards {
        let key = ShardKey {
            sale: sale.id,
            shard: *shard,
        };
        let standing = standings
            .get(&(sale.id, *shard))
            .ok_or_else(|| Fault::Bug(format!("the ledger has no shard {shard} of sale {}", sale.id)))?;
        let whole = match app.stock.read_shard(sale, *shard, 0).await {
            Ok(reading) => {
                reading.record.epoch == standing.epoch
                    && reading.record.lifecycle != Lifecycle::Loading
                    && app.stock.last_event(key).await? >= standing.position
            }
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => false,
            Err(fault) => return Err(fault),
        };
        if !whole {
            damaged.insert(*shard);
        }
    }
    Ok(damaged)
}
