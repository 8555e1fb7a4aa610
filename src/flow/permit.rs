//! Permit: let shards sell, a few seconds at a time, as long as the Redis behind them is the one on which they were
//! last reconciled with the ledger.
//!
//! After a restart, a failover or a flush nobody renews: a server that is not known does not even have the script
//! that sells. It is reconciled first ([`super::reconcile`]). A crash anywhere leaves shards that stop by themselves.

use super::rebuild::make_ready_and_rebuild;
use super::reconcile::{reconcile, resume};
use super::release::release_of;
use super::{App, Tally, bans, gap};
use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::report::Rebuilt;
use crate::domain::sale::{Sale, SaleState};
use crate::domain::server::{has_taken_over, process_of};
use crate::ledger::rebuild::{CLAIMED, Standings};
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::permit::{Permit, Permitted};
use crate::stock::read_shard::ShardReading;
use crate::stock::record::ShardRecord;
use chrono::Utc;
use futures_util::StreamExt;
use moka::future::Cache;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OnceCell, Semaphore, SemaphorePermit};

/// How long a permit holds: longer than a few renewals may fail, shorter than any failover takes.
const HOLDS: Duration = Duration::from_secs(3);
/// Thousandths of the memory of a Redis up to which events wait as long as they may. The last quarter takes what is bought
/// until the brake holds on every shard: less than three seconds of purchases, on however many shards.
const MEMORY_MAX: u16 = 750;
/// So much later than the ledger says that a shard is not known, nobody has a permit for it that holds: whoever renews asks the
/// ledger once in a round.
const SET_ASIDE: Duration = Duration::from_millis(4_500);
/// For so long an event may wait: a shopper whose order is not confirmed by then should not be joined by more.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How long a renewal waits for the ledger, which may be away.
const LET_GO_MAX: Duration = Duration::from_millis(400);
/// How long one shard may take to be renewed: those of a server that is silent must not make the others' permits run out.
const RENEW_MAX: Duration = Duration::from_millis(700);
/// How often a rebuilding that an operator asked for is tried, and how far apart: workers may be at the same shards.
const REBUILD_TRIES_MAX: u32 = 20;
const REBUILD_AGAIN: Duration = Duration::from_millis(100);
/// Processes of Redis that are remembered.
const ADMITTED_MAX: usize = 1000;
/// How long nobody must have needed a sale that is over before it rests.
const QUIET: Duration = Duration::from_secs(10);
const SALES_AT_ONCE: usize = 4;
/// How often a sale that was just loaded is looked at while another process reconciles it, and how far apart.
const ATTEND_TRIES_MAX: u32 = 20;
const ATTEND_AGAIN: Duration = Duration::from_millis(50);
/// Sales rebuilt at once: each has a connection to the ledger all the while, and those that wait for events to be taken in
/// and the other jobs need some, too.
const REBUILDINGS_MAX: usize = 4;
/// Shards asked at once: so many that those whose server hangs do not hold up the others.
const AT_ONCE: usize = 512;

/// What this process knows of the shards that sell.
#[derive(Default)]
pub struct Permits {
    state: Mutex<State>,
    /// Sales that are over and that nobody has needed for a while: this process renews, reconciles and drains none of their shards
    /// until somebody needs one.
    resting: RwLock<HashSet<SaleId>>,
    /// Wakes the reconciling of this process: a shard does not sell.
    pub wanted: Notify,
    /// Wakes those who wait for a shard to sell again.
    granted: Notify,
    /// One at a time reconciles a sale in this process.
    attending: Attending,
    /// A few at a time are rebuilt by this process.
    rebuilding: Rebuilding,
}

struct Rebuilding(Semaphore);

impl Default for Rebuilding {
    fn default() -> Self {
        Self(Semaphore::new(REBUILDINGS_MAX))
    }
}

struct Attending(Cache<SaleId, Arc<tokio::sync::Mutex<()>>>);

impl Default for Attending {
    fn default() -> Self {
        Self(Cache::new(10_000))
    }
}

impl Attending {
    async fn of(&self, sale: SaleId) -> Arc<tokio::sync::Mutex<()>> {
        self.0.get_with(sale, async { Arc::default() }).await
    }
}

/// Why a shard is unverified although its server is the one on which it was reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The ledger has lost events of the shard that it had committed.
    LostCommits,
    /// The shard's stream has an entry that no script wrote.
    ForeignEntry,
}

impl Finding {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LostCommits => "lost_commits",
            Self::ForeignEntry => "foreign_entry",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LostCommits => "Postgres has lost commits (docs/alerts.md#flashsalelostcommits)",
            Self::ForeignEntry => "its stream has a foreign entry (docs/alerts.md#flashsaleforeignentry)",
        })
    }
}

/// Why a shard that was looked at does not sell yet.
const SUSPECTED: &str = "a shard was suspected while it was looked at";

/// That a shard did not answer as it should.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    /// The life that is doubted: one that the ledger has given another since was repaired by somebody else.
    epoch: i64,
    /// Whoever began to look at the shard before does not know of it.
    since: Instant,
}

#[derive(Default)]
struct State {
    /// Servers that have been admitted, by the run ids of their processes.
    admitted: HashSet<String>,
    /// The shards that were reconciled, with what a permit for them says.
    held: HashMap<ShardKey, Held>,
    /// Shards that were reconciled, and then did not answer as they should.
    suspects: HashMap<ShardKey, Suspicion>,
    /// Why shards are unverified, until they sell again.
    findings: HashMap<ShardKey, Finding>,
    /// Up to where the drain had trimmed each shard's stream, when it was renewed last.
    trimmed: HashMap<ShardKey, Position>,
    /// Since when shards that do not answer have had no standing in the ledger.
    set_aside: HashMap<ShardKey, Instant>,
    /// Whether the ledger said nothing when it was asked last whether somebody else has the shards.
    is_ledger_silent: bool,
    /// The last event that each shard was seen to have written.
    seen: HashMap<ShardKey, Position>,
    /// Shards of which too much waits for the ledger.
    braked: HashSet<ShardKey>,
    /// Shards that a promoted replica has taken over from the server that this process asks.
    superseded: HashSet<ShardKey>,
    /// When somebody last needed each of the sales that are over and do not rest.
    needed: HashMap<SaleId, Instant>,
    /// How many shards there are in all, but for those of sales that rest.
    live: usize,
}

impl State {
    fn distrust(&mut self, shard: ShardKey, epoch: i64) {
        self.held.remove(&shard);
        let before = self.suspects.get(&shard).map_or(epoch, |it| it.epoch);
        let suspicion = Suspicion {
            epoch: epoch.max(before),
            since: Instant::now(),
        };
        self.suspects.insert(shard, suspicion);
    }

    fn is_quiet(&mut self, sale: &Sale) -> bool {
        let needed = *self.needed.entry(sale.id).or_insert_with(Instant::now);
        let mut shards = (0..sale.shards).map(|shard| ShardKey { sale: sale.id, shard });
        needed.elapsed() >= QUIET && shards.all(|key| self.held.contains_key(&key))
    }

    fn is_suspected_since(&self, looked: Instant, shard: ShardKey, epoch: i64) -> bool {
        let is_newer = |it: &Suspicion| it.since >= looked && it.epoch >= epoch;
        self.suspects.get(&shard).is_some_and(is_newer)
    }
}

/// How many shards there are of each kind, as one process knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// They sell: they were reconciled, and their permits hold.
    pub selling: usize,
    /// They would, but too much of them waits for the ledger.
    pub braked: usize,
    /// They are not known to be whole, or their server has not let anybody renew their permits for so long that they are
    /// over.
    pub stopped: usize,
    /// A promoted replica has them.
    pub superseded: usize,
    /// The highest epoch of those that sell.
    pub epoch_max: i64,
}

/// A shard that was reconciled.
#[derive(Clone)]
struct Held {
    sale: Arc<Sale>,
    epoch: i64,
    /// The process on which that was done.
    run_id: String,
    /// When the permit that it was given last was asked for.
    permitted: Instant,
}

impl Held {
    fn has_permit(&self) -> bool {
        self.permitted.elapsed() < HOLDS
    }
}

impl Permits {
    fn state(&self) -> MutexGuard<'_, State> {
        // What it guards is whole at every moment, also after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a sale rests: what its shards have is as it was left, unless their server is another one by now.
    pub(super) fn is_resting(&self, sale: SaleId) -> bool {
        let resting = self.resting.read().unwrap_or_else(PoisonError::into_inner);
        resting.contains(&sale)
    }

    /// Notes that somebody needs a sale: one that rests is reconciled if its server has changed, and given permits again.
    pub(super) fn need(&self, sale: SaleId) {
        let rested = self.is_resting(sale) && {
            let mut resting = self.resting.write().unwrap_or_else(PoisonError::into_inner);
            resting.remove(&sale)
        };
        if let Some(needed) = self.state().needed.get_mut(&sale) {
            *needed = Instant::now();
        }
        if rested {
            self.wanted.notify_one();
        }
    }

    /// Whether a sale that is over has not been needed for a while, and this process has found all of its shards whole.
    fn is_quiet(&self, sale: &Sale) -> bool {
        self.state().is_quiet(sale)
    }

    /// Has a sale rest until somebody needs it, if it is still quiet.
    fn rest(&self, sale: &Sale) {
        let mut state = self.state();
        if state.is_quiet(sale) {
            let mut resting = self.resting.write().unwrap_or_else(PoisonError::into_inner);
            resting.insert(sale.id);
            state.needed.remove(&sale.id);
        }
    }

    /// Notes that a shard does not answer as it should: it is looked at before it is given another permit.
    pub fn doubt(&self, shard: ShardKey) {
        self.need(shard.sale);
        self.state().held.remove(&shard);
        self.wanted.notify_one();
    }

    /// Notes that a shard does not know what it should know: it is reconciled, whatever the ledger says of it.
    pub fn suspect(&self, shard: ShardKey) {
        self.need(shard.sale);
        let mut state = self.state();
        // It may be in doubt already, which is less, or have begun another life since it was found whole: then it is known in which
        // it was seen last. One that was never seen may be of any life.
        let held = state.held.get(&shard).map(|held| held.epoch);
        let seen = state.seen.get(&shard).map(|last| last.epoch);
        let epoch = held.max(seen).unwrap_or(i64::MAX);
        state.distrust(shard, epoch);
        drop(state);
        self.wanted.notify_one();
    }

    /// Has a shard reconciled that is in this epoch, whatever the ledger says of it; `false` if it was found so before.
    pub(super) fn mark_unverified(&self, shard: ShardKey, epoch: i64, finding: Finding) -> bool {
        self.need(shard.sale);
        let mut state = self.state();
        state.distrust(shard, epoch);
        let is_new = state.findings.insert(shard, finding).is_none();
        drop(state);
        self.wanted.notify_one();
        is_new
    }

    /// The shards that are unverified because of something that was found, in words.
    #[must_use]
    pub fn unverified(&self) -> Vec<String> {
        let state = self.state();
        let named = state.findings.iter();
        named
            .map(|(shard, finding)| format!("shard {} of sale {} is unverified: {finding}", shard.shard, shard.sale))
            .collect()
    }

    /// Whether no process lets these shards sell any more; `fresh` are those that had a standing in the ledger until now.
    pub(super) fn are_set_aside(&self, sale: SaleId, shards: &[u16], fresh: &[u16]) -> bool {
        let mut state = self.state();
        let now = Instant::now();
        let since = shards.iter().map(|shard| {
            let key = ShardKey { sale, shard: *shard };
            if fresh.contains(shard) {
                state.set_aside.remove(&key);
            }
            *state.set_aside.entry(key).or_insert(now)
        });
        since.max().is_none_or(|since| now.duration_since(since) >= SET_ASIDE)
    }

    /// Has a shard looked at in this life, whatever the ledger says of it.
    fn distrust(&self, shard: ShardKey, epoch: i64) {
        self.state().distrust(shard, epoch);
    }

    /// Whether a shard of this life has been suspected since it was `looked` at.
    fn is_suspected_since(&self, looked: Instant, shard: ShardKey, epoch: i64) -> bool {
        self.state().is_suspected_since(looked, shard, epoch)
    }

    /// Notes that a shard begins another life: what is found of it from now on is found of that one.
    pub(super) fn begin_life(&self, shard: ShardKey, epoch: i64) {
        self.state().seen.insert(shard, Position { epoch, seq: 0 });
    }

    /// How many shards sell, and how many do not.
    #[must_use]
    pub fn count_shards(&self) -> ShardCounts {
        let state = self.state();
        let permitted = || state.held.iter().filter(|(_, held)| held.has_permit());
        let braked = permitted().filter(|(shard, _)| state.braked.contains(shard)).count();
        let (permitted, known) = (permitted().count(), state.held.len() + state.superseded.len());
        ShardCounts {
            selling: permitted - braked,
            braked,
            // A sale that was loaded a moment ago is not counted yet.
            stopped: state.live.saturating_sub(known) + (state.held.len() - permitted),
            superseded: state.superseded.len(),
            epoch_max: state.held.values().map(|held| held.epoch).max().unwrap_or_default(),
        }
    }

    /// Notes that a shard sells, by what was found when it was `looked` at; not if it has been suspected since.
    fn grant(&self, shard: ShardKey, held: Held, last: Position, looked: Instant) -> bool {
        let mut state = self.state();
        if state.is_suspected_since(looked, shard, held.epoch) {
            return false;
        }
        state.held.insert(shard, held);
        state.seen.insert(shard, last);
        state.suspects.remove(&shard);
        state.findings.remove(&shard);
        state.trimmed.remove(&shard);
        state.set_aside.remove(&shard);
        state.superseded.remove(&shard);
        drop(state);
        self.granted.notify_waiters();
        true
    }

    /// Waits for a turn at rebuilding a sale.
    ///
    /// # Errors
    /// None: nobody ends the turns.
    pub(super) async fn turn_to_rebuild(&self) -> Result<SemaphorePermit<'_>, Fault> {
        let turn = self.rebuilding.0.acquire().await;
        turn.map_err(|closed| Fault::Bug(closed.to_string()))
    }

    /// Waits until a shard that does not sell is let sell again by this process; `false` when that takes too long.
    pub async fn sells_again(&self, shard: ShardKey, patience: Duration) -> bool {
        self.doubt(shard);
        let wait = async {
            loop {
                let granted = self.granted.notified();
                if self.holds(shard) {
                    return;
                }
                granted.await;
            }
        };
        tokio::time::timeout(patience, wait).await.is_ok()
    }

    /// Notes what a shard says of its backlog, and tells once when its brake begins to hold and once when it lets go.
    fn note(&self, shard: ShardKey, asked: Instant, last: Position, brake: bool, waiting: i64) {
        let mut state = self.state();
        // A late answer may be of a life that is over.
        if state.seen.get(&shard).is_none_or(|seen| seen.epoch <= last.epoch) {
            state.seen.insert(shard, last);
        }
        if let Some(held) = state.held.get_mut(&shard) {
            held.permitted = asked;
            let seq = last.seq - waiting;
            state.trimmed.insert(shard, Position { seq, ..last });
        }
        let (sale, number) = (shard.sale, shard.shard);
        if brake && state.braked.insert(shard) {
            tracing::warn!(%sale, shard = number, waiting, "orders wait for the ledger for too long, or Redis is short of memory; nothing is sold");
        } else if !brake && state.braked.remove(&shard) {
            tracing::info!(%sale, shard = number, "the ledger has caught up; the shard sells again");
        }
    }

    /// How many events, of those that a shard was seen to have written, come after the last one that it has now.
    pub(super) fn lost_since(&self, shard: ShardKey, last: Position) -> i64 {
        let before = self.state().seen.insert(shard, last);
        before.map_or(0, |before| {
            let same_life = before.epoch == last.epoch;
            if same_life { (before.seq - last.seq).max(0) } else { 0 }
        })
    }

    /// The epoch of each shard that this process has found whole.
    pub(super) fn epochs(&self) -> HashMap<ShardKey, i64> {
        let state = self.state();
        state.held.iter().map(|(shard, held)| (*shard, held.epoch)).collect()
    }

    /// The last event that a shard was seen to have written.
    pub(super) fn last_seen(&self, shard: ShardKey) -> Option<Position> {
        self.state().seen.get(&shard).copied()
    }

    /// The shards that another server has taken over from the one that this process asks.
    pub(super) fn superseded(&self) -> Vec<ShardKey> {
        self.state().superseded.iter().copied().collect()
    }

    /// Whether one of them is this sale's: then what this process sees of it may not be all.
    pub(super) fn is_superseded(&self, sale: SaleId) -> bool {
        self.state().superseded.iter().any(|shard| shard.sale == sale)
    }

    /// Notes that a shard is another server's by now.
    fn supersede(&self, shard: ShardKey) {
        let mut state = self.state();
        state.held.remove(&shard);
        if state.superseded.insert(shard) {
            let (sale, number) = (shard.sale, shard.shard);
            tracing::error!(
                %sale, shard = number,
                "a promoted replica has this shard; this process still asks the Redis from which it took over"
            );
        }
    }

    /// Whether another server has taken this shard over from the one that this process asks.
    pub(super) fn has_lost(&self, shard: ShardKey) -> bool {
        self.state().superseded.contains(&shard)
    }

    /// Whether this process has let a shard sell so lately that it is still whole.
    pub(super) fn lets_sell(&self, shard: ShardKey) -> bool {
        self.state().held.get(&shard).is_some_and(Held::has_permit)
    }

    /// Whether this process knows a shard to be whole, and lets it sell.
    pub(super) fn holds(&self, shard: ShardKey) -> bool {
        self.state().held.contains_key(&shard)
    }
}

/// What is answered by a process whose Redis has been taken over from.
pub(super) fn superseded() -> Fault {
    Fault::Unavailable(
        "a promoted replica has taken over from this Redis; connect to that one, or if it is gone restart this one"
            .to_owned(),
    )
}

/// Lets go of shards that the ledger knows on another server or in another life, as far as it says so in time: somebody
/// has found them whole there, or written them anew. Says whether it did.
async fn let_go(app: &App) -> bool {
    let (held, trimmed) = {
        let state = app.permits.state();
        (state.held.clone(), state.trimmed.clone())
    };
    let sales: HashSet<SaleId> = held.keys().map(|shard| shard.sale).collect();
    let sales: Vec<SaleId> = sales.into_iter().collect();
    let Ok(Ok(standings)) = tokio::time::timeout(LET_GO_MAX, app.ledger.standings(&sales)).await else {
        return false;
    };
    for (shard, held) in held {
        let Some(standing) = standings.get(&(shard.sale, shard.shard)) else {
            continue;
        };
        match &standing.run_id {
            Some(noted) if has_taken_over(noted, &held.run_id) => app.permits.supersede(shard),
            noted if noted.as_ref() != Some(&held.run_id) || standing.epoch != held.epoch => {
                app.permits.doubt(shard);
            }
            _ => {}
        }
    }
    gap::notice(app, &trimmed, &standings);
    true
}

/// Renews the permits of all shards that this process knows to be reconciled; returns how many. Selling goes on while
/// Postgres is away; while it is there, nobody renews on a server from which another has taken over.
///
/// # Errors
/// `Unavailable` when Redis does not answer: then nobody sells.
pub async fn renew(app: &App) -> Result<usize, Fault> {
    // A ledger that said nothing last time is asked beside: permits must not run out over waiting for it. So when it is back, a
    // server from which another has taken over is renewed on once more at the most.
    let was_silent = app.permits.state().is_ledger_silent;
    let asking = async {
        let answered = let_go(app).await;
        app.permits.state().is_ledger_silent = !answered;
    };
    if was_silent {
        return tokio::join!(asking, Box::pin(renew_all(app))).1;
    }
    asking.await;
    Box::pin(renew_all(app)).await
}

async fn renew_all(app: &App) -> Result<usize, Fault> {
    let held = app.permits.state().held.clone();
    let (began, renewed) = (Instant::now(), &app.metrics.permit_renewals);
    let mut tally = Tally::default();
    let mut renewals = futures_util::stream::iter(held)
        .map(|(shard, held)| async move {
            let asked = Instant::now();
            // A call that is dropped counts as one without an answer; this one goes on by itself, for as long as a call may.
            let (stock, epoch) = (app.stock.clone(), held.epoch);
            let renewing = tokio::spawn(async move { permit(&stock, shard, &held, true).await });
            let permitted = match tokio::time::timeout(RENEW_MAX, renewing).await {
                Ok(permitted) => permitted.unwrap_or_else(|error| Err(Fault::Bug(error.to_string()))),
                Err(_) => Err(Fault::Unavailable("Redis did not renew in time".to_owned())),
            };
            (shard, asked, epoch, permitted)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((shard, asked, epoch, permitted)) = renewals.next().await {
        match permitted {
            Ok(Permitted::Yes { last, .. }) if !last.is_of(epoch) => {
                renewed.of(["damaged"]).inc();
                gap::mark_unverified(app, shard, epoch, Finding::ForeignEntry);
            }
            Ok(Permitted::Yes { waiting, last, brake }) => {
                app.permits.note(shard, asked, last, brake, waiting);
                renewed.of(["renewed"]).inc();
                tally.note(Ok(1));
            }
            // Somebody is about to write it anew; once that is done it is of another epoch, or else as it was.
            Ok(Permitted::Halted) => _ = renewed.of(["halted"]).inc(),
            // After a while in which nobody could renew it, it is told first what was decided meanwhile.
            Ok(Permitted::Not | Permitted::Lapsed) => {
                renewed.of(["refused"]).inc();
                app.permits.doubt(shard);
            }
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {
                renewed.of(["damaged"]).inc();
                tracing::warn!(sale = %shard.sale, shard = shard.shard, "a shard is not what it was; it is reconciled");
                app.permits.suspect(shard);
            }
            Err(fault) => {
                renewed.of(["failed"]).inc();
                tally.note(Err(fault));
            }
        }
    }
    app.metrics.permit_round_duration.observe(began.elapsed());
    tally.finish()
}

async fn permit(stock: &Stock, shard: ShardKey, held: &Held, renewal: bool) -> Result<Permitted, Fault> {
    let permit = Permit {
        epoch: held.epoch,
        run_id: &held.run_id,
        holds: HOLDS,
        memory_max: MEMORY_MAX,
        age_max: AGE_MAX,
        renewal,
    };
    stock.permit(&held.sale, shard.shard, &permit, None).await
}

/// Reconciles every shard that does not sell because this process does not know it to be whole; returns how many.
pub async fn reconcile_all(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    // The keys of a sale that ended long ago are being removed.
    let sells = |sale: &&Arc<Sale>| sale.is_in_stock() && !sale.leaving;
    let mut due: Vec<Arc<Sale>> = sales.iter().filter(sells).cloned().collect();
    due.retain(|sale| !app.permits.is_resting(sale.id));
    let now = Utc::now().timestamp_millis();
    due.sort_by_key(|sale| urgency(sale.state_at(now)));
    let mut tally = Tally::default();
    let mut attended = futures_util::stream::iter(due)
        .map(|sale| async move { attend_on(app, &sale).await })
        .buffer_unordered(SALES_AT_ONCE);
    while let Some(outcome) = attended.next().await {
        tally.note(outcome);
    }
    drop(attended);
    // A rebuilding may have taken long: sales that others have loaded since are held by now.
    let sales = app.sales.live().await?;
    let sales: Vec<&Arc<Sale>> = sales.iter().filter(sells).collect();
    tally.note(rest_when_quiet(app, &sales).await.map(|()| 0));
    let live: HashSet<SaleId> = sales.iter().map(|sale| sale.id).collect();
    let mut resting = app.permits.resting.write().unwrap_or_else(PoisonError::into_inner);
    resting.retain(|sale| live.contains(sale));
    let awake = sales.iter().filter(|sale| !resting.contains(&sale.id));
    let awake: HashMap<SaleId, u16> = awake.map(|sale| (sale.id, sale.shards)).collect();
    drop(resting);
    let mut state = app.permits.state();
    state.live = awake.values().map(|shards| usize::from(*shards)).sum();
    // Another round may have found shards whole of a sale that rests by now.
    state.held.retain(|shard, _| awake.contains_key(&shard.sale));
    state.braked.retain(|shard| awake.contains_key(&shard.sale));
    state.suspects.retain(|shard, _| live.contains(&shard.sale));
    state.seen.retain(|shard, _| live.contains(&shard.sale));
    state.findings.retain(|shard, _| live.contains(&shard.sale));
    state.trimmed.retain(|shard, _| live.contains(&shard.sale));
    state.set_aside.retain(|shard, _| live.contains(&shard.sale));
    state.superseded.retain(|shard| live.contains(&shard.sale));
    state.needed.retain(|sale, _| live.contains(sale));
    drop(state);
    tally.finish()
}

/// In which order sales are attended on, the lowest first.
const fn urgency(state: SaleState) -> u8 {
    match state {
        SaleState::Open => 0,
        SaleState::Scheduled | SaleState::Paused => 1,
        SaleState::Draft | SaleState::Closed => 2,
    }
}

/// Has those of these sales rest that are over and quiet, and of which no shard can write an event any more or has anything left
/// to take in or to finish.
async fn rest_when_quiet(app: &App, sales: &[&Arc<Sale>]) -> Result<(), Fault> {
    let now = Utc::now().timestamp_millis();
    let is_over = |sale: &Sale| sale.state_at(now) == SaleState::Closed && !app.permits.is_resting(sale.id);
    for sale in sales.iter().filter(|sale| is_over(sale) && app.permits.is_quiet(sale)) {
        // Each shard says by its own clock whether it is over.
        let readings = app.stock.read_shards(sale).await?;
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
    Ok(())
}

/// Sees to it that a sale that has just been loaded may sell at once.
///
/// # Errors
/// A fault leaves it to the workers.
pub async fn attend(app: &App, sale: &Arc<Sale>) -> Result<(), Fault> {
    if !sale.is_in_stock() {
        return Ok(());
    }
    app.permits.need(sale.id);
    let mut tries = 1..=ATTEND_TRIES_MAX;
    let attending = app.permits.attending.of(sale.id).await;
    let _alone = attending.lock().await;
    loop {
        match attend_alone(app, sale).await {
            // Another process is at it; what it finds, the next look takes over.
            Err(Fault::Unavailable(_)) if tries.next().is_some() => tokio::time::sleep(ATTEND_AGAIN).await,
            outcome => return outcome.map(|_| ()),
        }
    }
}

/// Rebuilds all shards of a sale, whether they have lost anything or not, while it sells; `None` when there is no such
/// sale, or Redis does not hold it.
///
/// # Errors
/// A fault leaves shards that do not sell until the workers have rebuilt them.
pub async fn rebuild_sale(app: &App, id: SaleId) -> Result<Option<Rebuilt>, Fault> {
    let in_redis = |sale: &Arc<Sale>| sale.is_in_stock() && !sale.leaving;
    let Some(sale) = app.sales.fresh(id).await?.filter(in_redis) else {
        return Ok(None);
    };
    let shards: Vec<u16> = (0..sale.shards).collect();
    let mut tries = 1..=REBUILD_TRIES_MAX;
    let outcome = loop {
        match make_ready_and_rebuild(app, &sale, &shards).await {
            // Workers decide or drain at this moment.
            Err(Fault::Unavailable(reason)) if tries.next().is_some() => {
                tracing::debug!(%reason, "a rebuilding has to try again");
                tokio::time::sleep(REBUILD_AGAIN).await;
            }
            outcome => break outcome,
        }
    };
    resume(app, id, &shards).await;
    let rebuilt = outcome?;
    for shard in &shards {
        app.permits.doubt(ShardKey {
            sale: id,
            shard: *shard,
        });
    }
    match attend(app, &sale).await {
        // They are written anew: the workers see to it that they sell.
        Err(fault) if fault.is_passing() => tracing::warn!(sale = %id, %fault, "a rebuilt sale does not sell yet"),
        outcome => outcome?,
    }
    Ok(Some(rebuilt))
}

/// Makes sure that the server of this shard has the scripts that sell, after it was made sure that no shard sells on
/// it that has not been reconciled there.
async fn admit(app: &App, via: ShardKey, run_id: &str) -> Result<(), Fault> {
    if !app.permits.state().admitted.contains(run_id) {
        // Whatever the caller knew: a sale that somebody has loaded since may have a permit there from before the server's start.
        let standings = app.ledger.standings_in_stock().await?;
        let unknown = standings.iter().filter(|(_, it)| it.run_id.as_deref() != Some(run_id));
        let unknown: Vec<ShardKey> = unknown
            .map(|((sale, shard), _)| ShardKey {
                sale: *sale,
                shard: *shard,
            })
            .collect();
        let here = &OnceCell::new();
        let mut stopped = futures_util::stream::iter(unknown)
            .map(|shard| async move {
                match app.stock.run_id(shard).await {
                    Ok(of) if of == run_id => app.stock.stop(shard).await,
                    Ok(_) => Ok(()),
                    // It may be on this server, which was slow to answer.
                    Err(fault) => {
                        let here = here.get_or_try_init(|| app.stock.beside(via)).await?;
                        if here.has(shard) { Err(fault) } else { Ok(()) }
                    }
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(outcome) = stopped.next().await {
            outcome?;
        }
        let mut state = app.permits.state();
        if state.admitted.len() >= ADMITTED_MAX {
            state.admitted.clear();
        }
        // Sales that are attended at the same time all come here; it is told once.
        if state.admitted.insert(run_id.to_owned()) {
            tracing::info!(%run_id, "a Redis server is admitted; its shards are reconciled one by one");
        }
    }
    // Also after a flush of the scripts, which takes nothing else away.
    app.stock.admit(via).await?;
    if app.stock.run_id(via).await? == run_id {
        return Ok(());
    }
    // Another server has taken over in between, and nobody has looked at its shards.
    app.stock.dismiss(via).await?;
    Err(Fault::Unavailable(
        "Redis has become another process once more".to_owned(),
    ))
}

/// Attends on a sale, unless this process is at it already.
async fn attend_on(app: &App, sale: &Arc<Sale>) -> Result<usize, Fault> {
    let attending = app.permits.attending.of(sale.id).await;
    let Ok(_alone) = attending.try_lock() else {
        return Ok(0);
    };
    attend_alone(app, sale).await
}

async fn attend_alone(app: &App, sale: &Arc<Sale>) -> Result<usize, Fault> {
    let keys = (0..sale.shards).map(|shard| ShardKey { sale: sale.id, shard });
    let missing: Vec<ShardKey> = keys.filter(|key| !app.permits.holds(*key)).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    let mut tally = Tally::default();
    let mut servers: BTreeMap<String, Vec<ShardKey>> = BTreeMap::new();
    for (key, run_id) in missing.iter().zip(app.stock.run_ids(&missing).await) {
        match run_id {
            Ok(run_id) => servers.entry(run_id).or_default().push(*key),
            Err(fault) => tally.note(Err(fault)),
        }
    }
    // Those that are known on any server first: whoever reconciles the others waits until these sell, and a rebuilding may
    // take long.
    let mut left = Vec::new();
    for (run_id, shards) in servers {
        let looked = Instant::now();
        match look_at_server(app, sale, &run_id, &shards).await {
            Ok((known, unknown, standings)) => {
                tally.note(let_sell(app, sale, &run_id, &known, &standings, looked).await);
                left.push((run_id, unknown));
            }
            Err(fault) => tally.note(Err(fault)),
        }
    }
    let mut is_fresh = true;
    for (run_id, mut unknown) in left.into_iter().filter(|(_, unknown)| !unknown.is_empty()) {
        // After those of another server it may be long since, and another process has made some of them sell: those are not to
        // be halted.
        if !std::mem::take(&mut is_fresh) {
            let looked = Instant::now();
            match look_at_server(app, sale, &run_id, &unknown).await {
                Ok((known, still_unknown, standings)) => {
                    tally.note(let_sell(app, sale, &run_id, &known, &standings, looked).await);
                    unknown = still_unknown;
                }
                Err(fault) => {
                    tally.note(Err(fault));
                    continue;
                }
            }
        }
        tally.note(Box::pin(reconcile_on_server(app, sale, &run_id, &unknown)).await);
    }
    tally.finish()
}

/// Which of a server's shards the ledger knows to be whole there, and which not; the server has the scripts that sell.
async fn look_at_server(
    app: &App,
    sale: &Arc<Sale>,
    run_id: &str,
    shards: &[ShardKey],
) -> Result<(Vec<ShardKey>, Vec<ShardKey>, Standings), Fault> {
    let Some(via) = shards.first() else {
        return Ok((Vec::new(), Vec::new(), Standings::new()));
    };
    let standings = app.ledger.standings(&[sale.id]).await?;
    let noted = |key: &ShardKey| standings.get(&(key.sale, key.shard))?.run_id.as_deref();
    // What a server tells of itself forgets after a while that another has taken over from it.
    let was_superseded = app.ledger.superseded_servers().await?.contains(process_of(run_id));
    let is_taken = |noted: &str| {
        let noted = noted.trim_start_matches(CLAIMED);
        has_taken_over(noted, run_id) || (was_superseded && noted != run_id && !has_taken_over(run_id, noted))
    };
    let taken: Vec<&ShardKey> = shards.iter().filter(|key| noted(key).is_some_and(is_taken)).collect();
    if !taken.is_empty() {
        taken.into_iter().for_each(|key| app.permits.supersede(*key));
        return Err(superseded());
    }
    admit(app, *via, run_id).await?;
    let suspects = app.permits.state().suspects.clone();
    let standings = app.ledger.standings(&[sale.id]).await?;
    let is_known = |key: &ShardKey| {
        // Another process, or this one before, has reconciled it on this very server.
        let standing = standings.get(&(key.sale, key.shard));
        standing.is_some_and(|it| {
            it.run_id.as_deref() == Some(run_id) && suspects.get(key).is_none_or(|doubted| it.epoch > doubted.epoch)
        })
    };
    let (known, unknown) = shards.iter().copied().partition(is_known);
    Ok((known, unknown, standings))
}

async fn reconcile_on_server(app: &App, sale: &Arc<Sale>, run_id: &str, unknown: &[ShardKey]) -> Result<usize, Fault> {
    if unknown.is_empty() {
        return Ok(0);
    }
    let numbers: Vec<u16> = unknown.iter().map(|key| key.shard).collect();
    let reconciled = reconcile(app, sale, &numbers).await;
    if let Err(Fault::Incomplete(_) | Fault::Bug(_)) = &reconciled {
        // Other shards, which nobody has looked at, have lost something as well.
        let standings = app.ledger.standings(&[sale.id]).await?;
        for (key, standing) in &standings {
            let (sale, shard) = *key;
            app.permits.distrust(ShardKey { sale, shard }, standing.epoch);
        }
    }
    let looked = reconciled?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let sells = let_sell(app, sale, run_id, unknown, &standings, looked).await;
    // The relay has left them alone meanwhile, and delivers what fails here.
    if let Err(fault) = release_of(app, sale.id).await {
        tracing::debug!(%fault, sale = %sale.id, "left to the relay");
    }
    sells
}

/// Tells shards that were found whole on this server, when they were `looked` at, what was decided while they could not be
/// told, and gives them permits; returns how many they were.
///
/// # Errors
/// A fault leaves some of them without.
async fn let_sell(
    app: &App,
    sale: &Arc<Sale>,
    run_id: &str,
    shards: &[ShardKey],
    standings: &Standings,
    looked: Instant,
) -> Result<usize, Fault> {
    if shards.is_empty() {
        return Ok(0);
    }
    let (now, mut again, mut failed) = (app.ledger.sale(sale.id).await?, None, None);
    let now = now.ok_or_else(|| Fault::Bug(format!("sale {} has gone from the ledger", sale.id)))?;
    let numbers: Vec<u16> = shards.iter().map(|key| key.shard).collect();
    // They may have been silent for long, and must not sell before they know of these.
    let waiting = app.ledger.waiting_bans(sale.id, &numbers).await?;
    for key in shards {
        let standing = standings.get(&(key.sale, key.shard));
        // On another server by now: the next look finds it there.
        let Some((standing, of)) = standing.and_then(|it| Some((it, it.run_id.clone().filter(|of| of == run_id)?)))
        else {
            again = Some("a shard is on another server by now");
            continue;
        };
        let held = Held {
            sale: Arc::clone(sale),
            epoch: standing.epoch,
            run_id: of,
            permitted: Instant::now(),
        };
        // Whoever wrote the shard anew may have known the sale as it was before an operator changed it.
        let mut told = Box::pin(bans::tell_waiting(app, &now, key.shard, &waiting)).await;
        if told.is_ok() {
            told = app.stock.set_state(&now, key.shard).await;
        }
        if app.permits.is_suspected_since(looked, *key, held.epoch) {
            again = Some(SUSPECTED);
            continue;
        }
        let permitted = match told {
            Ok(()) => permit(&app.stock, *key, &held, false).await,
            Err(fault) => Err(fault),
        };
        match permitted {
            Ok(Permitted::Yes { last, .. }) if !last.is_of(held.epoch) => {
                gap::mark_unverified(app, *key, held.epoch, Finding::ForeignEntry);
                again = Some("a shard's stream has a foreign entry");
            }
            Ok(Permitted::Yes { last, .. }) => {
                if !app.permits.grant(*key, held, last, looked) {
                    // In the moment of the permit.
                    again = Some(SUSPECTED);
                    if let Err(fault) = app.stock.stop(*key).await {
                        failed = Some(fault);
                        break;
                    }
                }
            }
            Ok(Permitted::Halted) => again = Some("others look at these shards, or rebuild them"),
            not @ (Ok(Permitted::Not | Permitted::Lapsed) | Err(Fault::Incomplete(_) | Fault::Bug(_))) => {
                app.permits.distrust(*key, standing.epoch);
                app.permits.wanted.notify_one();
                again = Some("a shard was not what the ledger says it is");
                if let Err(fault) = not {
                    tracing::warn!(sale = %key.sale, shard = key.shard, %fault, "a shard is not whole; it is reconciled");
                }
            }
            Err(fault) => {
                failed = Some(fault);
                break;
            }
        }
    }
    // Everything else that they could not be told was put off for longer each time.
    if let Err(fault) = app.ledger.make_due(sale.id, &numbers).await {
        shards.iter().for_each(|key| app.permits.doubt(*key));
        return Err(fault);
    }
    if let Some(fault) = failed {
        return Err(fault);
    }
    again.map_or(Ok(shards.len()), |why| Err(Fault::Unavailable(why.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::sale::{Durability, Lifecycle, PurchaseRate, SaleSecret};
    use crate::domain::sale_guards::SaleGuards;
    use uuid::Uuid;

    fn sale() -> Sale {
        let now = Utc::now();
        Sale {
            id: SaleId(Uuid::from_u128(1)),
            number: 1,
            name: "A sale".to_owned(),
            lifecycle: Lifecycle::Active,
            state_version: 1,
            starts_at: now,
            ends_at: now,
            shards: 4,
            payment_window_seconds: 900,
            purchase_rate: PurchaseRate { limit: 1, window_ms: 1 },
            durability: Durability::Redis,
            guards: SaleGuards::default(),
            items: Vec::new(),
            secret: SaleSecret([7; 32]),
            created_at: now,
            retired: false,
            leaving: false,
        }
    }

    #[test]
    fn a_sale_that_sells_is_reconciled_before_those_that_will_and_those_that_did() {
        let mut states = [
            SaleState::Closed,
            SaleState::Paused,
            SaleState::Scheduled,
            SaleState::Open,
        ];
        states.sort_by_key(|state| urgency(*state));
        assert_eq!((states[0], states[3]), (SaleState::Open, SaleState::Closed));
    }

    #[test]
    fn a_shard_whose_server_lets_nobody_renew_is_stopped_when_its_permit_is_over() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let held = |since: Duration| Held {
            sale: Arc::clone(&sale),
            epoch: 3,
            run_id: "a".to_owned(),
            permitted: Instant::now().checked_sub(since).unwrap(),
        };
        let shard = |shard| ShardKey { sale: sale.id, shard };
        let (looked, first) = (Instant::now(), Position { epoch: 1, seq: 0 });
        permits.grant(shard(0), held(Duration::ZERO), first, looked);
        permits.grant(shard(1), held(HOLDS + Duration::from_millis(1)), first, looked);
        permits.grant(shard(2), held(HOLDS * 20), first, looked);
        let last = Position { epoch: 3, seq: 1 };
        permits.state().live = 4;
        let count = |selling, braked, stopped| ShardCounts {
            selling,
            braked,
            stopped,
            superseded: 0,
            epoch_max: 3,
        };
        assert_eq!(permits.count_shards(), count(1, 0, 3));
        permits.note(shard(2), Instant::now(), last, true, 7);
        assert_eq!(
            permits.count_shards(),
            count(1, 1, 2),
            "it answers again, and is braked"
        );
        permits.note(shard(2), Instant::now(), last, false, 0);
        assert_eq!(permits.count_shards(), count(2, 0, 2));
    }

    #[test]
    fn whoever_looked_at_a_shard_before_it_was_suspected_does_not_let_it_sell() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let held = |epoch| Held {
            sale: Arc::clone(&sale),
            epoch,
            run_id: "a".to_owned(),
            permitted: Instant::now(),
        };
        let (shard, last) = (
            ShardKey {
                sale: sale.id,
                shard: 0,
            },
            Position { epoch: 3, seq: 0 },
        );
        assert!(permits.grant(shard, held(3), last, Instant::now()));
        let looked = Instant::now();
        permits.suspect(shard);
        assert!(!permits.grant(shard, held(3), last, looked));
        assert!(!permits.holds(shard), "it is looked at once more");
        // In another life it was written anew since, and by the next look it was found whole.
        assert!(permits.grant(shard, held(4), last, looked));
        permits.suspect(shard);
        assert!(permits.grant(shard, held(4), last, Instant::now()));
        assert!(permits.holds(shard));
        // What is found of it once it was written anew is found of its new life, whoever still holds it in the one before.
        let looked = Instant::now();
        permits.begin_life(shard, 5);
        permits.suspect(shard);
        assert!(!permits.grant(shard, held(5), last, looked));
        assert!(permits.grant(shard, held(5), last, Instant::now()));
    }

    #[test]
    fn a_shard_that_was_never_seen_is_suspected_in_whatever_life_it_is() {
        let permits = Permits::default();
        let sale = Arc::new(sale());
        let shard = ShardKey {
            sale: sale.id,
            shard: 0,
        };
        let held = || Held {
            sale: Arc::clone(&sale),
            epoch: 7,
            run_id: "a".to_owned(),
            permitted: Instant::now(),
        };
        let (looked, last) = (Instant::now(), Position { epoch: 7, seq: 0 });
        permits.suspect(shard);
        assert!(!permits.grant(shard, held(), last, looked));
        // That it is suspected in an earlier life as well takes nothing away.
        permits.distrust(shard, 6);
        assert!(!permits.grant(shard, held(), last, looked));
        assert!(permits.grant(shard, held(), last, Instant::now()));
    }
}
