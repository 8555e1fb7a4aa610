//! Attend: check the shards that do not sell, reconcile those that need it, and give them permits. A shard sells only on
//! the Redis server on which it was last reconciled with the ledger.
//!
//! After a restart, a failover or a flush no process renews. A new server does not even have the script that sells.
//! Its shards are reconciled first ([`crate::flow::recover::reconcile`]). A crash anywhere leaves shards without permits.

mod admit;
mod let_sell;

use self::admit::admit;
use self::let_sell::let_sell;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::report::Rebuilt;
use crate::domain::sale::{Sale, SaleState};
use crate::domain::time::Millis;
use crate::flow::recover::permits::superseded;
use crate::flow::recover::rebuild::make_ready_and_rebuild;
use crate::flow::recover::reconcile::{Reconciled, reconcile, resume};
use crate::flow::settle::release::release_of;
use crate::flow::{App, RunTotals};
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::ShardReading;
use crate::stock::record::ShardRecord;
use chrono::Utc;
use futures_util::StreamExt;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts at a rebuild that an operator asked for, and the time between them. Workers may hold the same shards.
const REBUILD_TRIES_MAX: u32 = 20;
const REBUILD_AGAIN: Duration = Duration::from_millis(100);
const SALES_AT_ONCE: usize = 4;
/// Attempts at a sale while another process reconciles it, and the time between them.
const ATTEND_TRIES_MAX: u32 = 20;
const ATTEND_AGAIN: Duration = Duration::from_millis(50);

/// Checks every shard that this process does not let sell, reconciles it if need be, and gives it a permit. Returns
/// how many sell again.
pub async fn reconcile_all(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    let now = Utc::now().timestamp_millis();
    let due = due(&sales, |sale| app.permits.is_resting(sale), now);
    let mut totals = RunTotals::default();
    let mut attended = futures_util::stream::iter(due)
        .map(|sale| async move { attend_on(app, &sale).await })
        .buffer_unordered(SALES_AT_ONCE);
    while let Some(outcome) = attended.next().await {
        totals.note(outcome);
    }
    drop(attended);
    // A rebuild may have taken long. Sales that were loaded since may hold permits by now.
    let sales = app.sales.live().await?;
    let sales: Vec<&Arc<Sale>> = sales.iter().filter(|sale| has_keys(sale)).collect();
    rest_when_quiet(app, &sales, &mut totals).await;
    let live: HashSet<SaleId> = sales.iter().map(|sale| sale.id).collect();
    let mut resting = app.permits.resting.write();
    resting.retain(|sale| live.contains(sale));
    let awake = sales.iter().filter(|sale| !resting.contains(&sale.id));
    let awake: HashMap<SaleId, u16> = awake.map(|sale| (sale.id, sale.shards)).collect();
    drop(resting);
    app.permits.state().keep(&live, &awake);
    totals.finish()
}

/// Whether Redis holds the sale's keys and keeps them. The keys of a sale that is leaving Redis are being removed.
const fn has_keys(sale: &Sale) -> bool {
    sale.is_in_stock() && !sale.leaving
}

/// The sales to attend to: first those that sell, so that no shopper waits for a sale that nobody can buy from.
fn due(sales: &[Arc<Sale>], is_resting: impl Fn(SaleId) -> bool, now: Millis) -> Vec<Arc<Sale>> {
    let is_due = |sale: &&Arc<Sale>| has_keys(sale) && !is_resting(sale.id);
    let mut due: Vec<Arc<Sale>> = sales.iter().filter(is_due).cloned().collect();
    due.sort_by_key(|sale| urgency(sale.state_at(now)));
    due
}

/// The order in which sales are attended to, lowest first.
const fn urgency(state: SaleState) -> u8 {
    match state {
        SaleState::Open => 0,
        SaleState::Scheduled | SaleState::Paused => 1,
        SaleState::Draft | SaleState::Closed => 2,
    }
}

/// Lets sales rest that are over and quiet, once none of their shards:
/// - can write another event,
/// - has an event that the ledger lacks,
/// - has a transfer to finish.
///
/// A sale with a silent shard waits; its fault goes into the totals.
async fn rest_when_quiet(app: &App, sales: &[&Arc<Sale>], totals: &mut RunTotals) {
    let now = Utc::now().timestamp_millis();
    let is_over = |sale: &Sale| sale.state_at(now) == SaleState::Closed && !app.permits.is_resting(sale.id);
    let is_quiet = |sale: &Sale| app.permits.state().is_quiet(sale);
    for sale in sales.iter().filter(|sale| is_over(sale) && is_quiet(sale)) {
        // Each shard's own clock decides whether the sale is over there.
        let readings = match app.stock.read_shards(sale).await {
            Ok(readings) => readings,
            Err(fault) => {
                totals.note(Err(fault));
                continue;
            }
        };
        let is_done = |it: &ShardReading| {
            let ShardRecord {
                lifecycle,
                starts_at,
                ends_at,
                ..
            } = it.record;
            let is_over = lifecycle.seen_at(it.now, starts_at, ends_at) == SaleState::Closed;
            is_over && it.undrained == 0 && it.transfers.is_empty()
        };
        if readings.iter().all(is_done) {
            app.permits.rest(sale);
        }
    }
}

/// Lets a sale sell at once after it was loaded or has rested. A fault leaves the sale to the next reconcile round.
pub async fn attend(app: &App, sale: &Arc<Sale>) -> Result<(), Fault> {
    if !sale.is_in_stock() {
        return Ok(());
    }
    app.permits.need(sale.id);
    let mut tries = 1..=ATTEND_TRIES_MAX;
    let attending = app.permits.attending(sale.id);
    let _alone = attending.lock().await;
    loop {
        match attend_alone(app, sale).await {
            // Another process is reconciling the sale. The next attempt takes over its result.
            Err(Fault::Unavailable(_)) if tries.next().is_some() => tokio::time::sleep(ATTEND_AGAIN).await,
            outcome => return outcome.map(|_| ()),
        }
    }
}

/// Rebuilds all shards of a sale for an operator, whether they have lost anything or not; the sale may be open. `None`
/// when there is no such sale, or Redis does not hold it. A fault leaves shards that do not sell until a reconcile
/// round has rebuilt them.
pub async fn rebuild_sale(app: &App, id: SaleId) -> Result<Option<Rebuilt>, Fault> {
    let Some(sale) = app.sales.fresh(id).await?.filter(|sale| has_keys(sale)) else {
        return Ok(None);
    };
    let shards: Vec<u16> = (0..sale.shards).collect();
    let mut tries = 1..=REBUILD_TRIES_MAX;
    let outcome = loop {
        match make_ready_and_rebuild(app, &sale, &shards).await {
            // A worker holds one of the shards at this moment.
            Err(Fault::Unavailable(reason)) if tries.next().is_some() => {
                tracing::debug!(%reason, "a rebuild has to try again");
                tokio::time::sleep(REBUILD_AGAIN).await;
            }
            outcome => break outcome,
        }
    };
    resume(app, id, &shards).await;
    let rebuilt = outcome?;
    for shard in &shards {
        app.permits.recheck(ShardKey::new(id, *shard));
    }
    match attend(app, &sale).await {
        // The shards are rebuilt. The next reconcile round lets them sell.
        Err(fault) if fault.is_passing() => tracing::warn!(sale = %id, %fault, "a rebuilt sale does not sell yet"),
        outcome => outcome?,
    }
    Ok(Some(rebuilt))
}

/// Attends to a sale, unless another task of this process does.
async fn attend_on(app: &App, sale: &Arc<Sale>) -> Result<usize, Fault> {
    let attending = app.permits.attending(sale.id);
    let Ok(_alone) = attending.try_lock() else {
        return Ok(0);
    };
    attend_alone(app, sale).await
}

async fn attend_alone(app: &App, sale: &Arc<Sale>) -> Result<usize, Fault> {
    let keys = ShardKey::all(sale);
    let missing: Vec<ShardKey> = keys.filter(|key| !app.permits.holds(*key)).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    let mut totals = RunTotals::default();
    let mut servers: BTreeMap<Server, Vec<ShardKey>> = BTreeMap::new();
    for (key, server) in missing.iter().zip(app.stock.servers(&missing).await) {
        match server {
            Ok(server) => servers.entry(server).or_default().push(*key),
            Err(fault) => totals.note(Err(fault)),
        }
    }
    // Let the known shards sell first. The reconcile of the others needs them to sell, and a rebuild may take long.
    let mut left = Vec::new();
    for (server, shards) in servers {
        match let_known_sell(app, sale, &server, &shards, &mut totals).await {
            Ok(unknown) => left.push((server, unknown)),
            Err(fault) => totals.note(Err(fault)),
        }
    }
    let mut is_fresh = true;
    for (server, mut unknown) in left.into_iter().filter(|(_, unknown)| !unknown.is_empty()) {
        // The reconcile on the server before may have taken long. Another process may have made some of these shards
        // sell since; those must not be halted.
        if !std::mem::take(&mut is_fresh) {
            match let_known_sell(app, sale, &server, &unknown, &mut totals).await {
                Ok(still_unknown) => unknown = still_unknown,
                Err(fault) => {
                    totals.note(Err(fault));
                    continue;
                }
            }
        }
        totals.note(Box::pin(reconcile_on_server(app, sale, &server, &unknown)).await);
    }
    totals.finish()
}

/// Lets the shards of a server sell that the ledger lists as reconciled there, and notes the outcome in the totals.
/// Returns the other shards. On success the server has the scripts that sell.
async fn let_known_sell(
    app: &App,
    sale: &Arc<Sale>,
    server: &Server,
    shards: &[ShardKey],
    totals: &mut RunTotals,
) -> Result<Vec<ShardKey>, Fault> {
    let checked = Instant::now();
    let Some(via) = shards.first() else {
        return Ok(Vec::new());
    };
    let standings = app.ledger.standings(&[sale.id]).await?;
    let noted = |key: &ShardKey| standings.get(&(key.sale, key.shard))?.noted.server();
    // A server's name shows only for a while from which server it took over. The ledger keeps them all.
    let was_superseded = app.ledger.superseded_servers().await?.contains(server.run_id());
    let is_taken = |noted: Server| {
        noted.has_taken_over_from(server) || (was_superseded && noted != *server && !server.has_taken_over_from(&noted))
    };
    let taken: Vec<&ShardKey> = shards.iter().filter(|key| noted(key).is_some_and(is_taken)).collect();
    if !taken.is_empty() {
        taken.into_iter().for_each(|key| app.permits.supersede(*key));
        return Err(superseded());
    }
    admit(app, *via, server).await?;
    let marks = app.permits.state().marks.clone();
    let standings = app.ledger.standings(&[sale.id]).await?;
    let is_known = |key: &ShardKey| {
        // Another process, or this one earlier, has reconciled the shard on this very server.
        let standing = standings.get(&(key.sale, key.shard));
        standing.is_some_and(|it| {
            it.noted.is_reconciled_on(server) && marks.get(key).is_none_or(|marked| it.epoch > marked.epoch)
        })
    };
    let (known, unknown): (Vec<ShardKey>, Vec<ShardKey>) = shards.iter().copied().partition(is_known);
    totals.note(let_sell(app, sale, server, &known, &standings, checked).await);
    Ok(unknown)
}

async fn reconcile_on_server(
    app: &App,
    sale: &Arc<Sale>,
    server: &Server,
    unknown: &[ShardKey],
) -> Result<usize, Fault> {
    if unknown.is_empty() {
        return Ok(0);
    }
    let numbers: Vec<u16> = unknown.iter().map(|key| key.shard).collect();
    let reconciled = reconcile(app, sale, &numbers).await;
    let fault = match &reconciled {
        Ok(reconciled) => reconciled.left.as_ref(),
        Err(fault) => Some(fault),
    };
    if let Some(Fault::Incomplete(_) | Fault::Bug(_)) = fault {
        // Shards that this check did not read have lost something as well.
        let standings = app.ledger.standings(&[sale.id]).await?;
        for (key, standing) in &standings {
            let (sale, shard) = *key;
            app.permits.state().mark(ShardKey::new(sale, shard), standing.epoch);
        }
    }
    let Reconciled { checked, done, left } = reconciled?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let able = unknown.iter().copied().filter(|key| done.contains(&key.shard));
    let able: Vec<ShardKey> = able.collect();
    let sells = let_sell(app, sale, server, &able, &standings, checked).await;
    if let Some(left) = left {
        return sells.and(Err(left));
    }
    // The job `release` has skipped these shards meanwhile. It delivers what fails here.
    if let Err(fault) = release_of(app, sale.id).await {
        tracing::debug!(%fault, sale = %sale.id, "the job `release` delivers the rest");
    }
    sells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::Lifecycle;
    use crate::domain::time::from_millis;
    use crate::flow::recover::permits::tests::sale;
    use uuid::Uuid;

    #[test]
    fn a_sale_that_sells_is_attended_to_before_those_that_will_and_those_that_did() {
        let (number, now) = (
            |number: u32| SaleId(Uuid::from_u128(number.into())),
            Utc::now().timestamp_millis(),
        );
        let like = |id, lifecycle, starts, retired, leaving| {
            let at = |millis: i64| from_millis(now + millis);
            let (starts_at, ends_at) = (at(starts), at(starts + 1_000));
            Arc::new(Sale {
                id: number(id),
                lifecycle,
                starts_at,
                ends_at,
                retired,
                leaving,
                ..sale()
            })
        };
        let sales = [
            like(1, Lifecycle::Closed, -500, false, false),
            like(2, Lifecycle::Paused, -500, false, false),
            like(3, Lifecycle::Active, -5_000, false, false),
            like(4, Lifecycle::Active, 500, false, false),
            like(5, Lifecycle::Active, -500, false, false),
            like(6, Lifecycle::Active, -500, false, false),
            like(7, Lifecycle::Active, -500, true, false),
            like(8, Lifecycle::Active, -500, false, true),
            like(9, Lifecycle::Draft, -500, false, false),
        ];
        let due = due(&sales, |sale| sale == number(6), now);
        let due: Vec<SaleId> = due.iter().map(|sale| sale.id).collect();
        assert_eq!(due, [5, 2, 4, 1, 3].map(number));
    }
}
