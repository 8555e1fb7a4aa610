//! Permit: let shards sell, a few seconds at a time, as long as the Redis behind them is the one on which they were
//! last reconciled with the ledger.
//!
//! After a restart, a failover or a flush nobody renews: a server that is not known does not even have the script
//! that sells. It is reconciled first ([`super::reconcile`]). A crash anywhere leaves shards that stop by themselves.

use super::rebuild::{make_ready, rebuild};
use super::reconcile::reconcile;
use super::retire::is_leaving;
use super::{App, Tally};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::report::Rebuilt;
use crate::domain::sale::Sale;
use crate::stock::keys::ShardKey;
use crate::stock::permit::{Permit, Permitted};
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How long a permit holds: longer than a few renewals may fail, shorter than any failover takes.
const HOLDS: Duration = Duration::from_secs(3);
/// Events of one shard that may wait for the ledger. With about 300 bytes each, 60 MB a shard.
const WAITING_MAX: i64 = 200_000;
/// For so long an event may wait: a shopper whose order is not confirmed by then should not be joined by more.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How often a rebuilding that an operator asked for is tried, and how far apart: workers may be at the same shards.
const REBUILD_TRIES_MAX: u32 = 20;
const REBUILD_AGAIN: Duration = Duration::from_millis(100);
/// Shards asked at once.
const AT_ONCE: usize = 64;

/// What this process knows of the shards that sell.
#[derive(Default)]
pub struct Permits {
    state: Mutex<State>,
    /// Wakes the reconciling of this process: a shard does not sell.
    pub wanted: Notify,
}

#[derive(Default)]
struct State {
    /// The server that has been admitted.
    run_id: Option<String>,
    /// The shards that were reconciled on it, with their epochs.
    epochs: HashMap<ShardKey, (Arc<Sale>, i64)>,
    /// Shards that were reconciled, and then did not answer as they should.
    suspects: HashSet<ShardKey>,
    /// The last event that each shard was seen to have written.
    seen: HashMap<ShardKey, Position>,
    /// Shards of which too much waits for the ledger.
    braked: HashSet<ShardKey>,
}

impl Permits {
    fn state(&self) -> MutexGuard<'_, State> {
        // What it guards is whole at every moment, also after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a shard does not answer as it should.
    pub fn suspect(&self, shard: ShardKey) {
        let mut state = self.state();
        if state.epochs.remove(&shard).is_some() {
            state.suspects.insert(shard);
        }
        drop(state);
        self.wanted.notify_one();
    }

    /// Notes that a shard is of another epoch than this process knows.
    fn forget(&self, shard: ShardKey) {
        self.state().epochs.remove(&shard);
        self.wanted.notify_one();
    }

    fn forget_server(&self) {
        let mut state = self.state();
        state.run_id = None;
        state.epochs.clear();
        drop(state);
        self.wanted.notify_one();
    }

    fn grant(&self, sale: &Arc<Sale>, shard: u16, epoch: i64) {
        let key = ShardKey { sale: sale.id, shard };
        let mut state = self.state();
        state.epochs.insert(key, (Arc::clone(sale), epoch));
        state.suspects.remove(&key);
    }

    /// Notes what a shard says of its backlog, and tells once when its brake begins to hold and once when it lets go.
    fn note(&self, shard: ShardKey, last: Position, brake: bool, waiting: i64) {
        let mut state = self.state();
        state.seen.insert(shard, last);
        let (sale, number) = (shard.sale, shard.shard);
        if brake && state.braked.insert(shard) {
            tracing::warn!(%sale, shard = number, waiting, "too many orders wait for the ledger, or for too long; nothing is sold");
        } else if !brake && state.braked.remove(&shard) {
            tracing::info!(%sale, shard = number, "the ledger has caught up; the shard sells again");
        }
    }

    /// The last event that a shard was seen to have written.
    pub(super) fn last_seen(&self, shard: ShardKey) -> Option<Position> {
        self.state().seen.get(&shard).copied()
    }

    fn holds(&self, shard: ShardKey) -> bool {
        self.state().epochs.contains_key(&shard)
    }
}

/// Renews the permits of all shards that this process knows to be reconciled; returns how many. Asks Redis alone, so
/// selling goes on while Postgres is away.
///
/// # Errors
/// `Unavailable` when Redis does not answer: then nobody sells.
pub async fn renew(app: &App) -> Result<usize, Fault> {
    let (admitted, epochs) = {
        let state = app.permits.state();
        (state.run_id.clone(), state.epochs.clone())
    };
    let Some(admitted) = admitted else {
        return Ok(0);
    };
    let run_id = app.stock.run_id().await?;
    if run_id != admitted {
        tracing::warn!(%run_id, before = %admitted, "Redis is another process than before; nothing is sold until its stock is reconciled");
        app.permits.forget_server();
        return Ok(0);
    }
    let mut tally = Tally::default();
    let mut renewals = futures_util::stream::iter(epochs)
        .map(|(key, (sale, epoch))| {
            let run_id = &run_id;
            async move { (key, permit(app, &sale, key.shard, epoch, run_id).await) }
        })
        .buffer_unordered(AT_ONCE);
    while let Some((shard, permitted)) = renewals.next().await {
        match permitted {
            Ok(Permitted::Yes { waiting, last, brake }) => {
                app.permits.note(shard, last, brake, waiting);
                tally.note(Ok(1));
            }
            Ok(Permitted::Not) => app.permits.forget(shard),
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {
                tracing::warn!(sale = %shard.sale, shard = shard.shard, "a shard is not what it was; it is reconciled");
                app.permits.suspect(shard);
            }
            Err(fault) => tally.note(Err(fault)),
        }
    }
    tally.finish()
}

async fn permit(app: &App, sale: &Sale, shard: u16, epoch: i64, run_id: &str) -> Result<Permitted, Fault> {
    let permit = Permit {
        epoch,
        run_id,
        holds: HOLDS,
        events_max: WAITING_MAX,
        age_max: AGE_MAX,
    };
    app.stock.permit(sale, shard, &permit, None).await
}

/// Reconciles every shard that does not sell because this process does not know it to be whole; returns how many.
///
/// # Errors
/// The first fault; the other sales have had their turn.
pub async fn reconcile_all(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    // One that is about to leave Redis is no loss when its keys are gone.
    let stays = |sale: &&Arc<Sale>| sale.is_in_stock() && !is_leaving(sale);
    let sales: Vec<Arc<Sale>> = sales.iter().filter(stays).cloned().collect();
    let run_id = admit(app, &sales).await?;
    let mut tally = Tally::default();
    for sale in &sales {
        tally.note(attend_on(app, sale, &run_id).await);
    }
    let live: HashSet<SaleId> = sales.iter().map(|sale| sale.id).collect();
    let mut state = app.permits.state();
    state.epochs.retain(|shard, _| live.contains(&shard.sale));
    state.suspects.retain(|shard| live.contains(&shard.sale));
    state.seen.retain(|shard, _| live.contains(&shard.sale));
    state.braked.retain(|shard| live.contains(&shard.sale));
    drop(state);
    tally.finish()
}

/// Sees to it that a sale that has just been loaded may sell at once.
///
/// # Errors
/// A fault leaves it to the workers.
pub async fn attend(app: &App, sale: &Arc<Sale>) -> Result<(), Fault> {
    if !sale.is_in_stock() {
        return Ok(());
    }
    let live = app.sales.live().await?;
    let run_id = admit(app, &live).await?;
    attend_on(app, sale, &run_id).await?;
    Ok(())
}

/// Rebuilds all shards of a sale, whether they have lost anything or not, while it sells; `None` when there is no such
/// sale, or Redis does not hold it.
///
/// # Errors
/// A fault leaves shards that do not sell until the workers have rebuilt them.
pub async fn rebuild_sale(app: &App, id: SaleId) -> Result<Option<Rebuilt>, Fault> {
    let Some(sale) = app.sales.fresh(id).await?.filter(|sale| sale.is_in_stock()) else {
        return Ok(None);
    };
    let shards: Vec<u16> = (0..sale.shards).collect();
    let mut tries = 1..=REBUILD_TRIES_MAX;
    loop {
        make_ready(app, &sale, &shards).await?;
        let run_id = app.stock.run_id().await?;
        match rebuild(app, &sale, &shards, &run_id).await {
            // The workers have given a permit again, or decide or drain at this moment.
            Err(Fault::Unavailable(reason)) if tries.next().is_some() => {
                tracing::debug!(%reason, "a rebuilding has to try again");
                tokio::time::sleep(REBUILD_AGAIN).await;
            }
            outcome => {
                let rebuilt = outcome?;
                for shard in &shards {
                    app.permits.forget(ShardKey {
                        sale: id,
                        shard: *shard,
                    });
                }
                attend(app, &sale).await?;
                return Ok(Some(rebuilt));
            }
        }
    }
}

/// Makes sure that the server has the scripts that sell, after it was made sure that no shard sells on it that has
/// not been reconciled there. Returns the server's run id.
async fn admit(app: &App, sales: &[Arc<Sale>]) -> Result<String, Fault> {
    let run_id = app.stock.run_id().await?;
    if app.permits.state().run_id.as_ref() != Some(&run_id) {
        let ids: Vec<SaleId> = sales.iter().map(|sale| sale.id).collect();
        let standings = app.ledger.standings(&ids).await?;
        let unknown = standings
            .iter()
            .filter(|(_, standing)| standing.run_id.as_ref() != Some(&run_id));
        let stops = unknown.map(|((sale, shard), _)| ShardKey {
            sale: *sale,
            shard: *shard,
        });
        let mut stopped = futures_util::stream::iter(stops.collect::<Vec<_>>())
            .map(|shard| app.stock.stop(shard))
            .buffer_unordered(AT_ONCE);
        while let Some(outcome) = stopped.next().await {
            outcome?;
        }
        let mut state = app.permits.state();
        state.run_id = Some(run_id.clone());
        state.epochs.clear();
    }
    // Also after a flush of the scripts, which takes nothing else away.
    app.stock.admit().await?;
    Ok(run_id)
}

async fn attend_on(app: &App, sale: &Arc<Sale>, run_id: &str) -> Result<usize, Fault> {
    let keys = (0..sale.shards).map(|shard| ShardKey { sale: sale.id, shard });
    let missing: Vec<ShardKey> = keys.filter(|key| !app.permits.holds(*key)).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    let suspects = app.permits.state().suspects.clone();
    let standings = app.ledger.standings(&[sale.id]).await?;
    let mut unknown = Vec::new();
    for key in &missing {
        let known = standings.get(&(key.sale, key.shard));
        match known {
            // Another process, or this one before, has reconciled it on this very server.
            Some(standing) if standing.run_id.as_deref() == Some(run_id) && !suspects.contains(key) => {
                app.permits.grant(sale, key.shard, standing.epoch);
            }
            _ => unknown.push(key.shard),
        }
    }
    if !unknown.is_empty() {
        reconcile(app, sale, &unknown, run_id).await?;
        let standings = app.ledger.standings(&[sale.id]).await?;
        for shard in &unknown {
            if let Some(standing) = standings.get(&(sale.id, *shard)) {
                app.permits.grant(sale, *shard, standing.epoch);
            }
        }
    }
    for key in &missing {
        let granted = app.permits.state().epochs.get(key).cloned();
        if let Some((_, epoch)) = granted
            && permit(app, sale, key.shard, epoch, run_id).await? == Permitted::Not
        {
            app.permits.suspect(*key);
        }
    }
    Ok(missing.len())
}
