//! Reconcile: find out whether shards still hold all that the ledger knows of them, and rebuild those that do not.
//!
//! What Redis loses, it loses from the end: after a restart or a failover its data are as they were a moment earlier.
//! So a shard that still has the last event that was taken in, and whose units are where the ledger expects them
//! once the rest is drained, but for decisions that it was not told yet, has lost nothing that matters. A crash on the way
//! changes nothing.

use super::audit::shard_differences;
use super::balance::{fits_without, is_even};
use super::rebuild::{drain, make_ready_and_rebuild};
use super::{App, bans, gap};
use crate::bugs;
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::order::OrderState;
use crate::domain::sale::{Lifecycle, Sale};
use crate::ledger::audit::ShardBooks;
use crate::ledger::outbox::Message;
use crate::ledger::rebuild::{CLAIMED, Found, Moved, Standing};
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::{EVENTS_MAX, ShardReading};
use crate::stock::record::BuyerRecord;
use futures_util::future::{join_all, try_join_all};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How often shards that others are still changing are looked at before they count as damaged.
const LOOKS_MAX: u32 = 6;
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
    let recovered = Box::pin(gap::recover(app, sale, shards)).await?;
    let before = |shard: u16, run_id: &str| {
        let claimed = moved.iter().any(|it| it.shard == shard) || recovered.contains(&shard);
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
        try_join_all(servers.keys().map(|shard| app.stock.set_state(&now, *shard))).await?;
        // Also those that another process has claimed, which may not have come so far.
        let is_claimed = |(shard, run_id): &(&u16, &String)| before(**shard, run_id).as_ref() != Some(*run_id);
        let claimed: Vec<u16> = servers.iter().filter(is_claimed).map(|(shard, _)| *shard).collect();
        if !claimed.is_empty() {
            Box::pin(bans::tell_recent(app, &now, &claimed)).await?;
        }
        let mut found = Vec::new();
        for (shard, run_id) in servers {
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
    let looked = Instant::now();
    let mut open: BTreeSet<u16> = whole.iter().copied().collect();
    let mut differ = BTreeSet::new();
    for look in 1..=LOOKS_MAX {
        let readings = read(app, sale, &whole, EVENTS_MAX).await?;
        if readings.iter().any(|it| it.record.permit_until > it.now) {
            return Err(Fault::Unavailable("another process lets these shards sell".to_owned()));
        }
        let mut books = app.ledger.shard_books(sale.id, sale.shards).await?;
        for shard in &open {
            if let Some(books) = books.get_mut(usize::from(*shard)) {
                leave_out_delivered(app, sale, *shard, books).await?;
            }
        }
        // Nothing was delivered between two readings that agree.
        let after = read(app, sale, &whole, 0).await?;
        differ.clear();
        for (reading, after) in readings.iter().zip(&after) {
            let stood_still = reading.items == after.items && reading.record.epoch == after.record.epoch;
            let books = books.get(usize::from(reading.shard));
            if stood_still && books.is_some_and(|books| shard_differences(sale, books, reading).is_empty()) {
                open.remove(&reading.shard);
            } else if stood_still && open.contains(&reading.shard) {
                differ.insert(reading.shard);
            }
        }
        if open.is_empty() || look == LOOKS_MAX {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20) * look).await;
    }
    if open != differ {
        return Err(Fault::Unavailable(
            "decisions reach these shards all the while".to_owned(),
        ));
    }
    damaged.extend(differ);
    // What moved between shards, or was granted, shows only in all of them together; what is rebuilt comes right by it.
    if damaged.is_empty() {
        let sighted = sight(app, sale, &others(sale, shards)).await?;
        if !sighted.damaged.is_empty() {
            return Err(Fault::Unavailable(
                "other shards of this sale are not whole yet".to_owned(),
            ));
        }
        let is_even = if sighted.silent.is_empty() {
            is_even(app, sale).await?
        } else {
            set_aside(app, sale, &sighted.silent).await?;
            fits_without(app, sale, &sighted.silent).await?
        };
        if !is_even {
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

/// Leaves out of a shard's waiting messages the decisions that the shard knows, because their relay has not struck them yet:
/// otherwise a decision that Redis has lost could pass for one that is still to be delivered.
async fn leave_out_delivered(app: &App, sale: &Sale, shard: u16, books: &mut ShardBooks) -> Result<(), Fault> {
    let mut orders = Vec::new();
    for message in &books.waiting {
        if let Message::Resolve { order, user, .. } = message {
            let user: UserId = user.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            orders.push((*order, user));
        }
    }
    let users: Vec<&UserId> = orders.iter().map(|(_, user)| user).collect();
    let buyers = app.stock.read_buyers(ShardKey { sale: sale.id, shard }, &users).await?;
    let knows = |order: Uuid, buyer: &BuyerRecord| {
        let found = buyer.orders.iter().find(|(id, _)| id.0 == order);
        found.map_or(buyer.elsewhere, |(_, order)| order.state != OrderState::Reserved)
    };
    let delivered = orders
        .iter()
        .zip(&buyers)
        .filter(|((order, _), buyer)| knows(*order, buyer));
    let delivered: HashSet<Uuid> = delivered.map(|((order, _), _)| *order).collect();
    let is_waiting =
        |message: &Message| !matches!(message, Message::Resolve { order, .. } if delivered.contains(order));
    books.waiting.retain(is_waiting);
    Ok(())
}

/// Whether a stream has all that the ledger took in, and a shard can go on writing into it.
fn is_whole(last: Position, standing: &Standing) -> bool {
    last.is_of(standing.epoch) && last >= standing.position
}

/// What shards look like from outside.
#[derive(Default)]
struct Sighted {
    /// Those that are not all there, or do not have the last event that the ledger took in.
    damaged: BTreeSet<u16>,
    /// Those whose servers do not answer.
    silent: BTreeSet<u16>,
}

/// Sees to it that shards whose servers do not answer are reconciled before they sell again: others are judged without them.
///
/// # Errors
/// `Unavailable` until the permits are over that other processes may have given them.
async fn set_aside(app: &App, sale: &Sale, silent: &BTreeSet<u16>) -> Result<(), Fault> {
    let shards: Vec<u16> = silent.iter().copied().collect();
    let unmarked = app.ledger.mark_unverified(sale.id, &shards).await?;
    if app.permits.are_set_aside(sale.id, &shards, &unmarked) {
        return Ok(());
    }
    Err(Fault::Unavailable(format!(
        "shards {shards:?} of sale {} do not answer; the others sell once the permits of these are over",
        sale.id
    )))
}

/// Those of the shards that are damaged at sight; a fault if one of them does not answer.
async fn damaged_at_sight(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeSet<u16>, Fault> {
    let sighted = sight(app, sale, shards).await?;
    if sighted.silent.is_empty() {
        return Ok(sighted.damaged);
    }
    Err(Fault::Unavailable(format!(
        "shards {:?} of sale {} do not answer",
        sighted.silent, sale.id
    )))
}

async fn sight(app: &App, sale: &Sale, shards: &[u16]) -> Result<Sighted, Fault> {
    let mut sighted = Sighted::default();
    if shards.is_empty() {
        return Ok(sighted);
    }
    // A drain may have read events that Redis has lost since; once it is over, the ledger knows them.
    app.ledger.wait_for_drains(sale.id, shards).await?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let seen = shards.iter().map(|shard| async move {
        let (sale_id, shard) = (sale.id, *shard);
        let reading = app.stock.read_shard(sale, shard, 0).await?;
        let last = app.stock.last_event(ShardKey { sale: sale_id, shard }).await?;
        Ok::<_, Fault>((reading.record, last))
    });
    for (shard, seen) in shards.iter().zip(join_all(seen).await) {
        let standing = standings
            .get(&(sale.id, *shard))
            .ok_or_else(|| Fault::Bug(format!("the ledger has no shard {shard} of sale {}", sale.id)))?;
        match seen {
            Ok((record, last)) => {
                let is_loaded = record.epoch == standing.epoch && record.lifecycle != Lifecycle::Loading;
                if !is_loaded || !is_whole(last, standing) {
                    sighted.damaged.insert(*shard);
                }
            }
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => _ = sighted.damaged.insert(*shard),
            Err(Fault::Unavailable(_)) => _ = sighted.silent.insert(*shard),
            Err(fault) => return Err(fault),
        }
    }
    Ok(sighted)
}
