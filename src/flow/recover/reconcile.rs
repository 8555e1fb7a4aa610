//! Reconcile: find out whether shards still hold all that the ledger knows of them, and rebuild those that do not.
//!
//! Redis loses data from the end: after a restart or a failover its data are as they were a moment earlier. So a shard
//! is intact if both hold:
//! - it still has the last event that was drained,
//! - after the drain, its units are where the ledger expects them, except for decisions that it has not got yet.
//!
//! A crash on the way leaves shards without permits, and the next reconcile starts over.

use crate::bugs;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::order::OrderState;
use crate::domain::order::event::Position;
use crate::domain::sale::{Lifecycle, Sale};
use crate::flow::App;
use crate::flow::operate::bans;
use crate::flow::recover::conserved::{fits_without, is_conserved};
use crate::flow::recover::gap;
use crate::flow::recover::rebuild::{drain, drain_readable, make_ready_and_rebuild};
use crate::flow::watch::audit::shard_differences;
use crate::ledger::outbox::Message;
use crate::ledger::recover::standing::{MovedShard, NotedServer, ShardStanding, WholeShard};
use crate::ledger::watch::audit::ShardBooks;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::{EVENTS_MAX, ShardReading};
use crate::stock::record::BuyerRecord;
use futures_util::future::{join_all, try_join_all};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Rounds of comparing shards with the ledger before a difference counts as damage. Others may be changing the shards.
const ROUNDS_MAX: u32 = 6;

#[derive(Debug)]
pub struct Reconciled {
    /// When the check of the intact shards began: marks from before it are settled.
    pub checked: Instant,
    /// The shards that are noted or rebuilt.
    pub done: BTreeSet<u16>,
    /// Why the others do not sell yet.
    pub left: Option<Fault>,
}

/// Reconciles shards of a sale, and notes in the ledger on which server that was done. A fault leaves shards that do
/// not sell; the same call goes on.
pub async fn reconcile(app: &App, sale: &Sale, shards: &[u16]) -> Result<Reconciled, Fault> {
    let reconciled = reconcile_halted(app, sale, shards).await;
    resume(app, sale.id, shards).await;
    reconciled
}

/// Ends the halts of these shards, as far as their servers answer. Each halt also ends by itself.
pub(in crate::flow) async fn resume(app: &App, sale: SaleId, shards: &[u16]) {
    let keys = shards.iter().map(|shard| ShardKey::new(sale, *shard));
    let _ended = join_all(keys.map(|key| app.stock.resume(key))).await;
}

async fn reconcile_halted(app: &App, sale: &Sale, shards: &[u16]) -> Result<Reconciled, Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    let noted = |shard: u16| {
        let standing = standings.get(&(sale.id, shard));
        standing.map(|it| it.noted.clone()).unwrap_or_default()
    };
    let servers = halt_on_servers(app, sale, shards).await?;
    let moved = servers.iter().map(|(shard, server)| MovedShard {
        shard: *shard,
        before: noted(*shard),
        server: server.clone(),
    });
    let is_new = |it: &MovedShard| it.before.server().as_ref() != Some(&it.server);
    let moved: Vec<MovedShard> = moved.filter(is_new).collect();
    for it in &moved {
        // Other servers must not lose their shards to one that takes no writes.
        app.stock.try_write(ShardKey::new(sale.id, it.shard)).await?;
    }
    // Deliveries to earlier servers before this claim count, and are in the ledger. Later deliveries to them do not
    // count.
    app.ledger.claim_for(sale.id, &moved).await?;
    let recovered = Box::pin(gap::recover(app, sale, shards)).await?;
    let (damaged, checked) = damaged(app, sale, shards).await?;
    let whole = servers.into_iter().filter(|(shard, _)| !damaged.contains(shard));
    let whole = whole.map(|(shard, server)| {
        let is_claimed = moved.iter().any(|it| it.shard == shard) || recovered.contains(&shard);
        let before = if is_claimed {
            NotedServer::claimed_for(&server)
        } else {
            noted(shard)
        };
        (shard, server, before)
    });
    let whole: Vec<_> = whole.collect();
    let mut done: BTreeSet<u16> = whole.iter().map(|(shard, ..)| *shard).collect();
    let forgetful = note_whole(app, sale, whole).await?;
    let mut left = None;
    if !forgetful.is_empty() {
        done.retain(|shard| !forgetful.contains(shard));
        left = Some(Fault::Unavailable(format!(
            "shards {forgetful:?} of sale {} have lost events while they were compared",
            sale.id
        )));
    }
    if !damaged.is_empty() {
        match rebuild_damaged(app, sale, shards, &damaged).await {
            Ok(()) => done.extend(damaged),
            Err(fault) => left = Some(fault),
        }
    }
    Ok(Reconciled { checked, done, left })
}

async fn rebuild_damaged(app: &App, sale: &Sale, shards: &[u16], damaged: &BTreeSet<u16>) -> Result<(), Fault> {
    let damaged: Vec<u16> = damaged.iter().copied().collect();
    // If the rebuild fails, no other process may take these shards for reconciled.
    app.ledger.mark_unverified(sale.id, &damaged).await?;
    // A damaged shard gets the units that no other shard accounts for, so no other shard may have lost any.
    let mut all = damaged_at_sight(app, sale, &others(sale, shards)).await?;
    all.extend(damaged);
    tracing::warn!(sale = %sale.id, shards = ?all, "shards lack data that the ledger has; rebuilding them");
    let all: Vec<u16> = all.into_iter().collect();
    make_ready_and_rebuild(app, sale, &all).await.map(|_| ())
}

/// Halts the shards; returns their servers.
async fn halt_on_servers(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeMap<u16, Server>, Fault> {
    let mut servers = BTreeMap::new();
    for shard in shards {
        let key = ShardKey::new(sale.id, *shard);
        // Ask before anything is read: a server that takes over meanwhile has another name.
        servers.insert(*shard, app.stock.server(key).await?);
        app.stock.halt(key).await?;
    }
    Ok(servers)
}

/// Delivers to complete shards the sale's state and the bans that they missed. Then notes their servers in the ledger,
/// each in place of the server noted before. Returns the shards that have lost events since the check.
async fn note_whole(app: &App, sale: &Sale, whole: Vec<(u16, Server, NotedServer)>) -> Result<Vec<u16>, Fault> {
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    // If Redis lost the sale's state, no counter shows it.
    let Some(now) = app.ledger.sale(sale.id).await? else {
        return Err(Fault::Bug(format!("sale {} has gone from the ledger", sale.id)));
    };
    let standings = app.ledger.standings(&[sale.id]).await?;
    try_join_all(whole.iter().map(|(shard, ..)| app.stock.set_state(&now, *shard))).await?;
    // Include shards that another process has claimed: it may not have got this far.
    let claimed = whole
        .iter()
        .filter(|(_, server, before)| !before.is_reconciled_on(server));
    let claimed: Vec<u16> = claimed.map(|(shard, ..)| *shard).collect();
    if !claimed.is_empty() {
        Box::pin(bans::deliver_recent(app, &now, &claimed)).await?;
    }
    let (mut found, mut forgetful) = (Vec::new(), Vec::new());
    for (shard, server, before) in whole {
        let key = ShardKey::new(sale.id, shard);
        let wrote = app.stock.last_event(key).await?;
        // If Redis lost equal numbers of reserves and releases since the check, the counters still agree. Only the
        // stream position shows the loss.
        if standings.get(&(sale.id, shard)).is_none_or(|it| wrote < it.position) {
            forgetful.push(shard);
            continue;
        }
        found.push(WholeShard {
            shard,
            server,
            before,
            wrote,
            lost: app.permits.lost_since(key, wrote),
        });
    }
    app.ledger.note_reconciled(sale.id, &found).await?;
    app.metrics.reconciled_shards.of(["whole"]).inc_by(found.len() as u64);
    Ok(forgetful)
}

/// Those of the shards that have lost something, and when the check of the others began.
async fn damaged(app: &App, sale: &Sale, shards: &[u16]) -> Result<(BTreeSet<u16>, Instant), Fault> {
    if bugs::has("every shard is found whole") {
        return Ok((BTreeSet::new(), Instant::now()));
    }
    let mut damaged = damaged_at_sight(app, sale, shards).await?;
    let whole = shards.iter().copied().filter(|shard| !damaged.contains(shard));
    let whole: Vec<u16> = whole.collect();
    if whole.is_empty() {
        return Ok((damaged, Instant::now()));
    }
    drain(app, sale, &whole).await?;
    let checked = Instant::now();
    damaged.extend(differing(app, sale, &whole).await?);
    if whole.iter().all(|shard| damaged.contains(shard)) {
        return Ok((damaged, checked));
    }
    if !are_conserved(app, sale, shards, &damaged).await? {
        damaged.extend(whole);
    }
    Ok((damaged, checked))
}

/// Those of these shards that differ from the ledger while nothing changes them.
async fn differing(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeSet<u16>, Fault> {
    let mut open: BTreeSet<u16> = shards.iter().copied().collect();
    let mut differ = BTreeSet::new();
    for round in 1..=ROUNDS_MAX {
        differ = compare(app, sale, shards, &mut open).await?;
        if open.is_empty() || round == ROUNDS_MAX {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20) * round).await;
    }
    if open != differ {
        return Err(Fault::Unavailable("decisions kept arriving at these shards".to_owned()));
    }
    Ok(differ)
}

/// Compares shards with the ledger. Removes those that agree from the `open` ones, and returns those of them that
/// differ. A shard that changes meanwhile does neither.
async fn compare(app: &App, sale: &Sale, shards: &[u16], open: &mut BTreeSet<u16>) -> Result<BTreeSet<u16>, Fault> {
    let readings = read(app, sale, shards, EVENTS_MAX).await?;
    if readings.iter().any(|it| it.record.permit_until > it.now) {
        return Err(Fault::Unavailable("another process lets these shards sell".to_owned()));
    }
    let mut books = app.ledger.shard_books(sale.id, sale.shards).await?;
    for shard in &*open {
        if let Some(books) = books.get_mut(usize::from(*shard)) {
            leave_out_delivered(app, sale, *shard, books).await?;
        }
    }
    // If both readings agree, nothing was delivered between them.
    let after = read(app, sale, shards, 0).await?;
    let mut differ = BTreeSet::new();
    for (reading, after) in readings.iter().zip(&after) {
        let stood_still = reading.items == after.items && reading.record.epoch == after.record.epoch;
        let books = books.get(usize::from(reading.shard));
        if stood_still && books.is_some_and(|books| shard_differences(sale, books, reading).is_empty()) {
            open.remove(&reading.shard);
        } else if stood_still && open.contains(&reading.shard) {
            differ.insert(reading.shard);
        }
    }
    Ok(differ)
}

/// Whether all shards together have what the sale owns. Lost transfers and lost grants show only there.
///
/// While a shard is silent, no damaged one is rebuilt, here or elsewhere. Then the whole shards are judged without
/// either.
async fn are_conserved(app: &App, sale: &Sale, shards: &[u16], damaged: &BTreeSet<u16>) -> Result<bool, Fault> {
    let sighted = sight(app, sale, &others(sale, shards)).await?;
    if !sighted.silent.is_empty() {
        let mut damaged = &sighted.damaged | damaged;
        let mut silent = sighted.silent;
        if !damaged.is_empty() {
            // A shard whose answer was only late must not wait for the rebuild of the damaged ones.
            let late: Vec<u16> = silent.into_iter().collect();
            let again = sight(app, sale, &late).await?;
            silent = again.silent;
            damaged.extend(again.damaged);
            if silent.is_empty() {
                return Err(Fault::Unavailable(format!(
                    "shards {late:?} of sale {} answer late",
                    sale.id
                )));
            }
        }
        let missing = &silent | &damaged;
        set_aside(app, sale, &missing).await?;
        // What the ledger lacks of a damaged shard would go uncounted.
        if let Err(fault) = drain_readable(app, sale, &damaged).await {
            tracing::debug!(%fault, sale = %sale.id, "damaged shards are not drained");
        }
        return fits_without(app, sale, &missing).await;
    }
    if !damaged.is_empty() {
        // Their rebuild puts the total right.
        return Ok(true);
    }
    if !sighted.damaged.is_empty() {
        return Err(Fault::Unavailable(
            "other shards of this sale are not whole yet".to_owned(),
        ));
    }
    is_conserved(app, sale).await
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

/// Removes decisions that a shard has applied from its waiting messages: the job `release` has not marked them
/// delivered yet. Otherwise a decision that Redis has lost could pass for one that is still to be delivered.
async fn leave_out_delivered(app: &App, sale: &Sale, shard: u16, books: &mut ShardBooks) -> Result<(), Fault> {
    let mut orders = Vec::new();
    for message in &books.waiting {
        if let Message::Resolve { order, user, .. } = message {
            let user: UserId = user.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            orders.push((*order, user));
        }
    }
    let users: Vec<&UserId> = orders.iter().map(|(_, user)| user).collect();
    let buyers = app.stock.read_buyers(ShardKey::new(sale.id, shard), &users).await?;
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

/// Whether a stream has all events that the ledger took in, and its shard can go on writing.
fn is_whole(last: Position, standing: &ShardStanding) -> bool {
    last.is_of(standing.epoch) && last >= standing.position
}

/// Shards as they appear without comparing units.
#[derive(Default)]
struct Sighted {
    /// Shards that are incomplete, or lack the last event that the ledger took in.
    damaged: BTreeSet<u16>,
    /// Shards whose servers do not answer.
    silent: BTreeSet<u16>,
}

/// Marks silent and damaged shards unverified in the ledger, so that the others are judged without them. Each is then
/// reconciled before it sells again. Fails with `Unavailable` until the permits that other processes may have given
/// them have run out.
async fn set_aside(app: &App, sale: &Sale, missing: &BTreeSet<u16>) -> Result<(), Fault> {
    let shards: Vec<u16> = missing.iter().copied().collect();
    let unmarked = app.ledger.mark_unverified(sale.id, &shards).await?;
    if app.permits.are_set_aside(sale.id, &shards, &unmarked) {
        return Ok(());
    }
    Err(Fault::Unavailable(format!(
        "shards {shards:?} of sale {} do not answer or lack data; the others sell once the permits of these are over",
        sale.id
    )))
}

/// Those of the shards that appear damaged without comparing units; a fault if one of them does not answer.
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
    // A drain may have read events that Redis has lost since. Once the drain is over, the ledger has them.
    app.ledger.wait_for_drains(sale.id, shards).await?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let seen = shards.iter().map(|shard| async move {
        let (sale_id, shard) = (sale.id, *shard);
        let reading = app.stock.read_shard(sale, shard, 0).await?;
        let last = app.stock.last_event(ShardKey::new(sale_id, shard)).await?;
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
