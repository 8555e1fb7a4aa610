//! Gaps: events that a stream had, and the ledger does not have.
//!
//! An event is trimmed only after its commit. So a gap before a stream's first event shows that Postgres has lost
//! commits: an asynchronous standby was promoted, or a backup was restored. The shoppers' rows have the orders and the
//! decisions about them, and a recovery brings both back into the ledger. A crash leaves the gap, or a shard that is
//! reconciled.

use crate::bugs;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId};
use crate::domain::order::OrderState;
use crate::domain::order::event::{Event, Position, Reserved};
use crate::domain::sale::{Lifecycle, Sale};
use crate::flow::App;
use crate::flow::recover::permits::{Finding, check_server, mark_unverified};
use crate::flow::recover::sequence::{UNSEEN, is_ours};
use crate::ledger::recover::standing::ShardStanding;
use crate::ledger::settle::drain::{DrainClaim, RowOrder};
use crate::stock::keys::ShardKey;
use crate::stock::record::ShardRecord;
use crate::stock::recover::restore::{Buyer, Stream};
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Attempts at claiming a shard that another drain has claimed, and the time between them.
const CLAIMS_MAX: u32 = 50;
const CLAIM_AGAIN: Duration = Duration::from_millis(20);

/// The last event before a stream's first one. It was trimmed, so the ledger had it. `None` where the stream does not
/// show it.
fn trimmed(stream: &Stream, epoch: i64) -> Option<Position> {
    match &stream.first {
        Some(first) if first.reserved.is_err() || !first.position.is_of(epoch) => None,
        Some(Event { position, .. }) => Some(Position {
            epoch,
            seq: position.seq - 1,
        }),
        None => Some(stream.last).filter(|last| last.is_of(epoch)),
    }
}

/// Events of a shard that the ledger lacks.
#[derive(Debug, Clone, Copy)]
struct Gap {
    /// The ledger's position before the gap.
    position: Position,
    /// The last position in the gap.
    until: Position,
    /// Whether the stream alone proves the loss. The empty stream of a newer epoch does not: its rebuild may have
    /// broken off before the commit. Then only the shoppers' rows show whether the ledger lacks orders.
    is_proven: bool,
    /// Whether a rebuild of the shard is under way, or has broken off before its end.
    is_loading: bool,
}

/// Up to where the ledger has lost events of a shard in this epoch, if it has. A rebuild begins an epoch at number 0,
/// and the shoppers' rows keep the positions of earlier epochs.
fn gap(stream: &Stream, epoch: i64, standing: &ShardStanding) -> Option<Position> {
    let until = trimmed(stream, epoch)?;
    let is_ahead = epoch > standing.epoch && until > standing.position;
    let is_beyond = epoch == standing.epoch && until.seq > standing.position.drained_of(epoch);
    (is_ahead || is_beyond).then_some(until)
}

/// Whether the ledger has lost events of these shards. Then it may lack orders that no stream announces. Their shards
/// are marked unverified, so that the orders come back even where no shopper buys. A loading shard is rebuilt anyway.
/// Fails with `Unavailable` when a shard or the ledger cannot be read.
pub(in crate::flow) async fn is_any(app: &App, sale: &Sale, shards: &[u16]) -> Result<bool, Fault> {
    let mut gaps = find(app, sale, shards).await?;
    if !gaps.values().all(|gap| gap.is_proven) {
        let lost = read_sale(app, sale, &gaps).await?;
        let lost = lost.iter().filter(|it| it.until.is_some()).map(|it| it.key.shard);
        let lost: BTreeSet<u16> = lost.collect();
        gaps.retain(|shard, _| lost.contains(shard));
    }
    for (shard, gap) in gaps.iter().filter(|(_, gap)| !gap.is_loading) {
        let key = ShardKey::new(sale.id, *shard);
        mark_unverified(app, key, gap.until.epoch, Finding::LostCommits);
    }
    Ok(!gaps.is_empty())
}

/// The gaps that the streams of shards may show.
async fn find(app: &App, sale: &Sale, shards: &[u16]) -> Result<BTreeMap<u16, Gap>, Fault> {
    let mut gaps = BTreeMap::new();
    if bugs::has(UNSEEN) {
        return Ok(gaps);
    }
    let streams = try_join_all(shards.iter().map(|shard| stream(app, sale, *shard))).await?;
    // Read after the streams: an event that was trimmed by then is committed by now.
    let standings = app.ledger.standings(&[sale.id]).await?;
    for (shard, record, stream) in streams.iter().flatten() {
        let key = ShardKey::new(sale.id, *shard);
        let Some(standing) = standings.get(&(sale.id, *shard)) else {
            continue;
        };
        let Some(until) = gap(stream, record.epoch, standing) else {
            continue;
        };
        if let Some(first) = &stream.first
            && !is_ours(app, sale, key, first).await?
        {
            mark_unverified(app, key, record.epoch, Finding::ForeignEntry);
            continue;
        }
        let gap = Gap {
            position: standing.position,
            until,
            is_proven: until.seq > 0 || stream.first.is_some(),
            is_loading: record.lifecycle == Lifecycle::Loading,
        };
        gaps.insert(*shard, gap);
    }
    Ok(gaps)
}

/// The orders and decisions in one shard's rows that the ledger lacks.
struct FromRows {
    key: ShardKey,
    server: Server,
    /// The ledger's position when the rows were read.
    position: Position,
    /// Up to where the ledger has lost events, if it has.
    until: Option<Position>,
    orders: Vec<RowOrder>,
}

/// Brings the orders of gaps back into the ledger; returns the shards that had a gap, which are unverified now. Units
/// that one shard got back may have been sold again on another. So the orders that ended go first, over the whole sale.
/// Shards that cannot be read are left out of that first step. A fault leaves some of the gaps.
pub(in crate::flow) async fn recover(app: &App, sale: &Sale, shards: &[u16]) -> Result<Vec<u16>, Fault> {
    let gaps = find(app, sale, shards).await?;
    if gaps.is_empty() {
        return Ok(Vec::new());
    }
    let found = read_sale(app, sale, &gaps).await?;
    let lost: Vec<(ShardKey, Position)> = found.iter().filter_map(|it| Some((it.key, it.until?))).collect();
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    for (key, until) in &lost {
        mark_unverified(app, *key, until.epoch, Finding::LostCommits);
    }
    for it in found.iter().filter(|it| it.orders.iter().any(|order| !order.is_kept())) {
        let claim = claim(app, it).await?;
        claim.recover_ended(sale, &it.orders).await?;
    }
    for it in &found {
        let Some(until) = it.until else { continue };
        let claim = claim(app, it).await?;
        // The rows were read at this position.
        if claim.position != it.position {
            return Err(Fault::Unavailable(
                "another drain has stored this shard's events".to_owned(),
            ));
        }
        let now = chrono::Utc::now().timestamp_millis();
        let recovered = claim.recover(sale, &it.orders, until, now).await?;
        tracing::error!(
            sale = %sale.id, shard = it.key.shard, orders = recovered.orders, decisions = recovered.decisions,
            lost = recovered.lost, "Postgres had lost commits; orders came back from the shoppers' rows"
        );
        app.metrics.recovered_orders.inc_by(recovered.orders as u64);
    }
    Ok(lost.into_iter().map(|(key, _)| key.shard).collect())
}

/// Claims a shard that no other process drains, on the server on which its rows were read.
async fn claim(app: &App, shard: &FromRows) -> Result<DrainClaim, Fault> {
    for _ in 0..CLAIMS_MAX {
        if let Some(claim) = app.ledger.claim_shard(shard.key.sale, shard.key.shard).await? {
            check_server(app, &claim, &shard.server)?;
            return Ok(claim);
        }
        tokio::time::sleep(CLAIM_AGAIN).await;
    }
    Err(Fault::Unavailable("another drain has claimed this shard".to_owned()))
}

/// Reads the rows of a sale's shards, with a gap or without. Of those without a gap, it leaves out shards that cannot
/// be read and shards on a server that the ledger does not list.
async fn read_sale(app: &App, sale: &Sale, gaps: &BTreeMap<u16, Gap>) -> Result<Vec<FromRows>, Fault> {
    let standings = app.ledger.standings(&[sale.id]).await?;
    let keys: Vec<ShardKey> = ShardKey::all(sale).collect();
    let mut servers: BTreeMap<Server, BTreeMap<u16, (Position, Position)>> = BTreeMap::new();
    for (key, server) in keys.iter().zip(app.stock.servers(&keys).await) {
        if let Some(gap) = gaps.get(&key.shard) {
            let reach = (gap.until, gap.position);
            servers.entry(server?).or_default().insert(key.shard, reach);
        } else if let (Ok(server), Some(standing)) = (server, standings.get(&(sale.id, key.shard)))
            && standing.noted.server().as_ref() == Some(&server)
        {
            // At its position and before, the ledger can lack only decisions.
            let reach = (standing.position, standing.position);
            servers.entry(server).or_default().insert(key.shard, reach);
        }
    }
    let mut found = Vec::new();
    for (server, reaches) in servers {
        let has_gap = reaches.keys().any(|shard| gaps.contains_key(shard));
        let mut orders = match read_orders(app, sale.id, &reaches).await {
            // A server that is away may stay away. A newer row is different: a newer instance reads it.
            Err(fault) if !has_gap && !matches!(fault, Fault::Newer(_)) => {
                tracing::warn!(%fault, sale = %sale.id, "a recovery leaves out decisions of this server's shards");
                continue;
            }
            orders => orders?,
        };
        found.extend(reaches.into_iter().map(|(shard, (_, position))| {
            let orders = orders.remove(&shard).unwrap_or_default();
            let gap = gaps.get(&shard).filter(|gap| gap.is_proven || !orders.is_empty());
            FromRows {
                key: ShardKey::new(sale.id, shard),
                server: server.clone(),
                position,
                until: gap.map(|gap| gap.until),
                orders,
            }
        }));
    }
    Ok(found)
}

/// A shard's record and its stream; `None` for a shard that is incomplete: a rebuild restores it. A rebuild that broke
/// off leaves the shoppers' rows as they were, or as the ledger had them. So they show lost commits all the same.
async fn stream(app: &App, sale: &Sale, shard: u16) -> Result<Option<(u16, ShardRecord, Stream)>, Fault> {
    let key = ShardKey::new(sale.id, shard);
    let record = app.stock.read_shard(sale, shard, 0).await.map(|reading| reading.record);
    let seen = match record {
        Ok(record) => app.stock.stream(key).await.map(|stream| (shard, record, stream)),
        Err(fault) => Err(fault),
    };
    match seen {
        Err(Fault::Incomplete(_) | Fault::Bug(_)) => Ok(None),
        seen => seen.map(Some),
    }
}

/// The orders and decisions that the rows of one server's shards have and the ledger lacks.
async fn read_orders(
    app: &App,
    sale: SaleId,
    reaches: &BTreeMap<u16, (Position, Position)>,
) -> Result<HashMap<u16, Vec<RowOrder>>, Fault> {
    let shards: Vec<ShardKey> = reaches.keys().map(|shard| ShardKey::new(sale, *shard)).collect();
    let mut found: HashMap<u16, Vec<RowOrder>> = HashMap::new();
    let mut at = 0;
    loop {
        let (next, buyers) = app.stock.buyers(&shards, at).await?;
        let (mut new, mut decided) = (Vec::new(), Vec::new());
        for buyer in buyers {
            let Some((until, position)) = reaches.get(&buyer.shard.shard) else {
                continue;
            };
            for order in orders_of(&buyer) {
                let is_behind = order.event.position <= *position;
                if !is_behind && order.event.position <= *until {
                    new.push((buyer.shard.shard, order));
                } else if is_behind && order.state != OrderState::Reserved {
                    decided.push((buyer.shard.shard, order));
                }
            }
        }
        let id = |(_, it): &(u16, RowOrder)| it.event.reserved.as_ref().ok().map(|it| it.order.0);
        let ids: Vec<_> = decided.iter().filter_map(id).collect();
        let reserved = app.ledger.reserved_among(&ids).await?;
        decided.retain(|it| id(it).is_some_and(|id| reserved.contains(&id)));
        for (shard, order) in new.into_iter().chain(decided) {
            found.entry(shard).or_default().push(order);
        }
        at = next;
        if at == 0 {
            return Ok(found);
        }
    }
}

/// The orders of a shopper's row, each as its event had announced it. The row does not have the idempotency key. The
/// order's id, which is derived from the key, finds the order all the same.
fn orders_of(buyer: &Buyer) -> impl Iterator<Item = RowOrder> + '_ {
    buyer.row.orders.iter().filter_map(|(id, record)| {
        let reserved = Reserved {
            order: *id,
            user: buyer.user.clone(),
            key: IdempotencyKey::forgotten(*id),
            item: record.item,
            quantity: record.quantity,
            created_at: record.created_at,
        };
        Some(RowOrder {
            event: Event::untraced(record.event?, Vec::new(), Ok(reserved)),
            state: record.state,
            resolved_at: record.resolved_at,
        })
    })
}

/// Marks shards unverified whose numbers are ahead of the ledger. The reconcile finds out whether the ledger has lost
/// events or a foreign entry took the numbers. `trimmed` is what each shard reported before the ledger was read.
pub(in crate::flow) fn notice(
    app: &App,
    trimmed: &HashMap<ShardKey, Position>,
    standings: &BTreeMap<(SaleId, u16), ShardStanding>,
) {
    for (shard, until) in trimmed {
        if let Some(standing) = standings.get(&(shard.sale, shard.shard))
            && standing.epoch == until.epoch
            && until.seq > standing.position.drained_of(until.epoch)
            && !bugs::has(UNSEEN)
        {
            app.permits.mark_unverified(*shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::recover::sequence::tests::{at, event};
    use crate::ledger::recover::standing::NotedServer;

    #[test]
    fn a_gap_is_what_was_trimmed_and_is_not_in_the_ledger() {
        let standing = |epoch, position| ShardStanding {
            epoch,
            noted: NotedServer::default(),
            position,
        };
        let stream = |first: Option<Event>, last| Stream { last, first };
        let ours = |seq| Some(event(at(2, seq), true));
        for (stream, epoch, standing, expected) in [
            (stream(None, at(2, 7)), 2, standing(2, at(2, 7)), None),
            (stream(None, at(2, 7)), 2, standing(2, at(2, 4)), Some(at(2, 7))),
            (stream(ours(6), at(2, 7)), 2, standing(2, at(2, 5)), None),
            (stream(ours(6), at(2, 7)), 2, standing(2, at(2, 6)), None),
            (stream(ours(6), at(2, 7)), 2, standing(2, at(2, 4)), Some(at(2, 5))),
            // A shard that was loaded a moment ago, and one whose last rebuild the ledger has lost.
            (stream(None, at(1, 0)), 1, standing(1, at(0, 0)), None),
            (stream(ours(3), at(2, 7)), 2, standing(1, at(1, 9)), Some(at(2, 2))),
            (stream(None, at(2, 0)), 2, standing(1, at(1, 5)), Some(at(2, 0))),
            (stream(ours(1), at(2, 1)), 2, standing(1, at(1, 5)), Some(at(2, 0))),
            // The same, once a recovery has moved the ledger's position.
            (stream(None, at(2, 0)), 2, standing(1, at(2, 0)), None),
            (stream(ours(3), at(2, 7)), 2, standing(1, at(2, 2)), None),
            // An epoch that is over, and entries that no script wrote.
            (stream(None, at(2, 7)), 2, standing(3, at(3, 0)), None),
            (stream(None, at(99, 1)), 2, standing(2, at(2, 7)), None),
            (
                stream(Some(event(at(2, 900), false)), at(2, 900)),
                2,
                standing(2, at(2, 7)),
                None,
            ),
        ] {
            assert_eq!(
                gap(&stream, epoch, &standing),
                expected,
                "{stream:?}, {epoch}, {standing:?}"
            );
        }
    }
}
