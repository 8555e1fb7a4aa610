//! Rebuild: write shards anew from the ledger, when Redis has lost what it knew of them or an operator asks for it.
//!
//! The ledger's rows of the shards are locked throughout, and the shards have no permit: nobody sells from them, lends
//! to them, drains them or decides about their orders. A shard that is being written is marked as loading and is of
//! an epoch that the ledger does not know, so a crash on the way leaves one that is rebuilt again.
//!
//! What is free on a rebuilt shard is what the sale owns and no other shard accounts for: units in the hands of a
//! transfer to it have arrived, units that it had lent before it was lost are its own again, and a fence on every
//! other shard keeps them from arriving there after all.

use super::App;
use super::borrow::finish;
use super::drain::drain_to_now;
use super::permit::superseded;
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku, UserId};
use crate::domain::order::OrderState;
use crate::domain::report::{Counters, Rebuilt};
use crate::domain::sale::Sale;
use crate::domain::shard::part;
use crate::domain::time::Millis;
use crate::ledger::outbox::Message;
use crate::ledger::rebuild::{RebuildClaim, Restored, Standing};
use crate::stock::keys::ShardKey;
use crate::stock::permit::has_taken_over;
use crate::stock::read_shard::{EVENTS_MAX, ShardReading};
use crate::stock::record::{BuyerRecord, OrderRecord};
use crate::stock::transfer::{Destination, Transfer};
use crate::{bugs, crash};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::Instant;
use uuid::Uuid;

/// How long the drain of what is left may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// Shoppers written in one round trip.
const BUYERS_MAX: usize = 500;
/// Round trips under way at once.
const WRITES_MAX: usize = 8;
/// Round trips' shoppers that are read ahead: some ten megabytes.
const PAGES_MAX: usize = 64;
/// How often the other shards are looked at until nothing moves between them.
const LOOKS_MAX: u32 = 50;
/// How far apart versions of a shard's lives are: more than units can move in one.
const VERSIONS: i64 = 1 << 28;

/// What the other shards of a sale account for.
#[derive(Default)]
struct Others {
    /// Their units, and those on their way to the ledger that it has not taken off its books.
    units: BTreeMap<Sku, i64>,
    /// Units that they have sent to the rebuilt shards, less those that they got from them.
    sent: BTreeMap<Sku, i64>,
    /// Units that are granted to them, and of which they have not been told.
    untold: BTreeMap<Sku, i64>,
    /// Transfers to the rebuilt shards that are written down, by shard.
    on_their_way: HashMap<u16, Vec<Uuid>>,
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
    for shard in shards {
        let key = ShardKey {
            sale: sale.id,
            shard: *shard,
        };
        app.stock.halt(key).await?;
        let known = seen.get(shard).copied().unwrap_or_default();
        if (1..known).contains(&app.stock.epoch(key).await.unwrap_or_default()) {
            // What it wrote in a life that is over is never taken in.
            continue;
        }
        match drain(app, sale, &[*shard]).await {
            // There is nothing that could be read.
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {}
            outcome => outcome?,
        }
    }
    Ok(seen)
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
    let shards: Vec<u16> = seen.keys().copied().collect();
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
            tracing::info!(sale = %sale.id, shards = ?epochs, orders, "shards were rebuilt from the ledger");
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
            without_events.push(ShardKey {
                sale: sale.id,
                shard: *shard,
            });
        }
    }
    crash::point("rebuild.after_begin");
    // The ledger never heard of some of their orders, and never will: their events are gone, or it is a copy of an
    // earlier day.
    app.stock.forget_buyers(&without_events).await?;
    forget_revoked(app, sale, claim, &epochs).await?;
    let others = look_at_others(app, sale, claim, &epochs).await?;
    let live = restore_buyers(app, sale, claim, &epochs).await?;
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

/// Reads the shards that are not rebuilt, at a moment when nothing moves between them.
async fn look_at_others(
    app: &App,
    sale: &Sale,
    claim: &RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
) -> Result<Others, Fault> {
    let others: Vec<u16> = (0..sale.shards).filter(|shard| !epochs.contains_key(shard)).collect();
    if others.is_empty() {
        return Ok(Others::default());
    }
    let fences: Vec<(u16, i64)> = epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    for shard in &others {
        app.stock
            .fence(
                ShardKey {
                    sale: sale.id,
                    shard: *shard,
                },
                &fences,
            )
            .await?;
    }
    let read = || try_join_all(others.iter().map(|shard| app.stock.read_shard(sale, *shard, 0)));
    for look in 1..=LOOKS_MAX {
        let first = read().await?;
        let mut finished = 0;
        for reading in &first {
            for transfer in &reading.transfers {
                let Destination::Shard(to) = transfer.to else {
                    continue;
                };
                if let Some(standing) = claim.standings.get(&to).filter(|_| !epochs.contains_key(&to)) {
                    let transfer = Transfer {
                        to_epoch: standing.epoch,
                        ..transfer.clone()
                    };
                    finish(app, sale, reading.shard, &transfer).await?;
                    finished += 1;
                }
            }
        }
        let second = read().await?;
        let versions = |readings: &[ShardReading]| -> Vec<i64> {
            readings
                .iter()
                .flat_map(|it| it.items.values().map(|counters| counters.version))
                .collect()
        };
        if finished == 0 && versions(&first) == versions(&second) {
            return account(app, sale, &second, claim).await;
        }
        tokio::time::sleep(Duration::from_millis(u64::from(look))).await;
    }
    Err(Fault::Unavailable("units move between the other shards".to_owned()))
}

async fn account(app: &App, sale: &Sale, readings: &[ShardReading], claim: &RebuildClaim) -> Result<Others, Fault> {
    let withdrawn: Vec<Uuid> = claim
        .waiting
        .iter()
        .filter_map(|(_, message)| match message {
            Message::Withdrawn { transfer } => Some(*transfer),
            _ => None,
        })
        .collect();
    let mut others = Others::default();
    for reading in readings {
        let key = ShardKey {
            sale: sale.id,
            shard: reading.shard,
        };
        for (sku, counters) in &reading.items {
            *others.units.entry(sku.clone()).or_default() +=
                counters.available + counters.held + counters.sold + counters.revoked;
            *others.sent.entry(sku.clone()).or_default() += counters.out - counters.r#in - counters.withdrawn;
        }
        let leaving = reading.transfers.iter().filter(|it| it.to == Destination::Ledger);
        // What has come back, and is not struck yet, is among the shard's units.
        let back = app
            .stock
            .applied(key, &leaving.map(|it| it.id).collect::<Vec<_>>())
            .await?;
        for transfer in &reading.transfers {
            match transfer.to {
                Destination::Ledger if back.contains(&transfer.id) => {}
                Destination::Ledger => {
                    *others.sent.entry(transfer.sku.clone()).or_default() -= transfer.units;
                    if !withdrawn.contains(&transfer.id) {
                        *others.units.entry(transfer.sku.clone()).or_default() += transfer.units;
                    }
                }
                Destination::Shard(to) => others.on_their_way.entry(to).or_default().push(transfer.id),
            }
        }
        // Units that are granted to this shard, and of which it has not been told.
        let due = claim.waiting.iter().filter_map(|(of, message)| match message {
            Message::Restock { id, sku, units } if *of == reading.shard => Some((*id, sku, *units)),
            _ => None,
        });
        let due: Vec<(Uuid, &String, i64)> = due.collect();
        let told = app
            .stock
            .applied(key, &due.iter().map(|(id, ..)| *id).collect::<Vec<_>>())
            .await?;
        for (_, sku, units) in due.into_iter().filter(|(id, ..)| !told.contains(id)) {
            let sku = sku.parse().map_err(|error| Fault::Bug(format!("{error}")))?;
            *others.untold.entry(sku).or_default() += units;
        }
    }
    Ok(others)
}

/// What the rebuilt shards' orders keep: held and sold units, by shard and SKU.
#[derive(Default)]
struct Live {
    units: BTreeMap<(u16, Sku), (i64, i64)>,
    orders: usize,
}

/// A shard and some of its shoppers.
type Page = (u16, Vec<(UserId, BuyerRecord)>);

/// Writes every shopper of the claimed shards.
async fn restore_buyers(
    app: &App,
    sale: &Sale,
    claim: &mut RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
) -> Result<Live, Fault> {
    let now = app.stock.now().await?;
    // Postgres sorts the next shard's orders while Redis still writes this one's.
    let (pages, read) = mpsc::channel(PAGES_MAX);
    let shards: Vec<u16> = epochs.keys().copied().collect();
    let (live, ()) = tokio::try_join!(
        read_buyers(sale, claim, &shards, now, pages),
        write_buyers(app, sale.id, epochs, read)
    )?;
    Ok(live)
}

/// Reads the shoppers of these shards, in pages.
async fn read_buyers(
    sale: &Sale,
    claim: &mut RebuildClaim,
    shards: &[u16],
    now: Millis,
    pages: mpsc::Sender<Page>,
) -> Result<Live, Fault> {
    let positions: HashMap<&Sku, u16> = sale.items.iter().map(|item| &item.sku).zip(0..).collect();
    let mut live = Live::default();
    for shard in shards {
        let mut page = Vec::new();
        let mut current: Option<(UserId, Vec<Restored>)> = None;
        let mut orders = std::pin::pin!(claim.orders(*shard));
        loop {
            let order = orders.try_next().await?;
            let same = matches!((&current, &order), (Some((user, _)), Some(order)) if *user == order.user);
            if !same && let Some((user, orders)) = current.take() {
                page.push((user, buyer(sale, &positions, orders, now)?));
            }
            if page.len() == BUYERS_MAX || (order.is_none() && !page.is_empty()) {
                // Whoever writes says himself why he does not any more.
                if pages.send((*shard, std::mem::take(&mut page))).await.is_err() {
                    return Err(Fault::Unavailable("the shoppers are not written any more".to_owned()));
                }
            }
            let Some(order) = order else {
                break;
            };
            live.orders += 1;
            let cell = live.units.entry((*shard, order.sku.clone())).or_default();
            match order.state {
                OrderState::Reserved if bugs::has("a rebuilding forgets what is held") => {}
                OrderState::Reserved => cell.0 += i64::from(order.quantity),
                OrderState::Paid => cell.1 += i64::from(order.quantity),
                _ => {}
            }
            match &mut current {
                Some((_, orders)) => orders.push(order),
                None => current = Some((order.user.clone(), vec![order])),
            }
        }
    }
    Ok(live)
}

/// Writes pages of shoppers until there are no more.
async fn write_buyers(
    app: &App,
    sale: SaleId,
    epochs: &BTreeMap<u16, i64>,
    mut pages: mpsc::Receiver<Page>,
) -> Result<(), Fault> {
    let mut writes = tokio::task::JoinSet::new();
    let written = |outcome: Option<Result<Result<(), Fault>, JoinError>>| match outcome {
        Some(outcome) => outcome.map_err(|error| Fault::Bug(error.to_string()))?,
        None => Ok(()),
    };
    while let Some((shard, page)) = pages.recv().await {
        if writes.len() == WRITES_MAX {
            written(writes.join_next().await)?;
        }
        let (stock, key) = (app.stock.clone(), ShardKey { sale, shard });
        let epoch = epochs.get(&shard).copied().unwrap_or_default();
        writes.spawn(async move { stock.restore_buyers(key, epoch, &page).await });
    }
    while !writes.is_empty() {
        written(writes.join_next().await)?;
    }
    Ok(())
}

/// A shopper as the ledger knows him: requests that were refused are not in his window.
fn buyer(
    sale: &Sale,
    positions: &HashMap<&Sku, u16>,
    mut orders: Vec<Restored>,
    now: Millis,
) -> Result<BuyerRecord, Fault> {
    orders.sort_by_key(|order| order.event);
    let mut buyer = BuyerRecord::default();
    for order in orders {
        let position = positions.get(&order.sku).copied();
        let item = position.ok_or_else(|| Fault::Bug(format!("sale {} has no item {}", sale.id, order.sku)))?;
        let kept = matches!(order.state, OrderState::Reserved | OrderState::Paid);
        let units = if kept { order.quantity } else { 0 };
        match buyer.units.iter_mut().find(|(of, _)| *of == item) {
            Some((_, all)) => *all += units,
            None => buyer.units.push((item, units)),
        }
        if order.created_at > now - sale.purchase_rate.window_ms {
            let mut member = [0; 6];
            member.copy_from_slice(&order.id.0.as_bytes()[10..]);
            buyer.window.push((order.created_at, member));
        }
        let record = OrderRecord {
            state: order.state,
            item,
            quantity: order.quantity,
            created_at: order.created_at,
            resolved_at: order.resolved_at,
            event: Some(order.event),
        };
        buyer.orders.push((order.id, record));
    }
    Ok(buyer)
}

/// Divides what no other shard accounts for among the rebuilt ones; `None` when that is less than their orders keep.
fn divide(
    sale: &Sale,
    claim: &RebuildClaim,
    others: &Others,
    live: &Live,
    epochs: &BTreeMap<u16, i64>,
) -> Option<BTreeMap<u16, BTreeMap<Sku, Counters>>> {
    let mut divided: BTreeMap<u16, BTreeMap<Sku, Counters>> = BTreeMap::new();
    let shards = u16::try_from(epochs.len()).unwrap_or(u16::MAX);
    for item in &sale.items {
        let sum = |of: &BTreeMap<Sku, i64>| of.get(&item.sku).copied().unwrap_or_default();
        let owned = sum(&claim.stock) - sum(&others.untold);
        let kept = |shard: u16| live.units.get(&(shard, item.sku.clone())).copied().unwrap_or_default();
        let kept_in_all: i64 = epochs.keys().map(|shard| kept(*shard).0 + kept(*shard).1).sum();
        let elsewhere = if bugs::has("a rebuilding forgets the other shards") {
            0
        } else {
            sum(&others.units)
        };
        let free = owned - elsewhere - kept_in_all;
        if free < 0 {
            return None;
        }
        let mut came = sum(&others.sent);
        for ((shard, epoch), at) in epochs.iter().zip(0..) {
            let (held, sold) = kept(*shard);
            let available = part(free, shards, at);
            let units = available + held + sold;
            // Books between shards: what came from others, or went to them, is one sum. What came and is no longer
            // here has left the sale.
            let (came_in, out) = match came {
                ..0 => (0, -came),
                _ if at + 1 == shards => (came, (came - units).max(0)),
                _ => (came.min(units), 0),
            };
            came = if came < 0 { 0 } else { came - came_in };
            let counters = Counters {
                available,
                held,
                sold,
                revoked: 0,
                out,
                r#in: came_in,
                granted: units + out - came_in,
                withdrawn: if came_in > 0 { out } else { 0 },
                version: epoch * VERSIONS,
            };
            divided.entry(*shard).or_default().insert(item.sku.clone(), counters);
        }
    }
    Some(divided)
}
