//! Permit: let shards sell, a few seconds at a time. A shard sells only on the Redis server on which it was last
//! reconciled with the ledger.
//!
//! After a restart, a failover or a flush no process renews. A new server does not even have the script that sells.
//! Its shards are reconciled first ([`crate::flow::recover::reconcile`]). A crash anywhere leaves shards whose permits run out.

use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::report::Rebuilt;
use crate::domain::sale::{Sale, SaleState};
use crate::domain::server::{has_taken_over, process_of};
use crate::flow::operate::bans;
use crate::flow::recover::gap;
use crate::flow::recover::rebuild::make_ready_and_rebuild;
use crate::flow::recover::reconcile::{reconcile, resume};
use crate::flow::settle::release::release_of;
use crate::flow::{App, Tally};
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

/// How long a permit holds: longer than a few failed renewals, shorter than any failover.
const HOLDS: Duration = Duration::from_secs(3);
/// The share of Redis's memory, in thousandths, from which the brake holds early: events may then wait for a 300th of
/// `AGE_MAX`. The last quarter takes the purchases until the brake holds on every shard: less than three seconds of
/// them.
const MEMORY_MAX: u16 = 750;
/// Once the ledger has listed a shard as unverified for this long, no permit for it is left. Every process that renews
/// reads the ledger once a round.
const SET_ASIDE: Duration = Duration::from_millis(4_500);
/// How long an event may wait for the ledger. After that the brake holds: no more shoppers should join one whose order
/// is still unconfirmed.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How long a renewal round waits for the ledger, which may be away.
const LET_GO_MAX: Duration = Duration::from_millis(400);
/// How long one renewal may take. The shards of a silent server must not make the other permits run out.
const RENEW_MAX: Duration = Duration::from_millis(700);
/// Attempts at a rebuild that an operator asked for, and the time between them. Workers may hold the same shards.
const REBUILD_TRIES_MAX: u32 = 20;
const REBUILD_AGAIN: Duration = Duration::from_millis(100);
/// Redis servers that this process remembers as admitted.
const ADMITTED_MAX: usize = 1000;
/// How long a sale that is over must go unneeded before it rests.
const QUIET: Duration = Duration::from_secs(10);
const SALES_AT_ONCE: usize = 4;
/// Attempts at a sale while another process reconciles it, and the time between them.
const ATTEND_TRIES_MAX: u32 = 20;
const ATTEND_AGAIN: Duration = Duration::from_millis(50);
/// Sales rebuilt at once. Each rebuild keeps a connection to the ledger; the drains that it waits for and the jobs
/// need some, too.
const REBUILDINGS_MAX: usize = 4;
/// Shards asked at once. So many that the shards of a server that hangs do not hold up the others.
const AT_ONCE: usize = 512;

/// What this process knows of the shards that sell.
#[derive(Default)]
pub struct Permits {
    state: Mutex<State>,
    /// Sales that are over and unneeded for a while. This process neither renews, reconciles nor drains their shards
    /// until the sale is needed again.
    resting: RwLock<HashSet<SaleId>>,
    /// Wakes the reconciling of this process: a shard does not sell.
    pub wanted: Notify,
    /// Wakes the purchases that wait for a shard to sell again.
    granted: Notify,
    /// One task at a time reconciles a sale in this process.
    attending: Attending,
    /// Limits the rebuilds of this process.
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

/// Why a shard is unverified although it was reconciled on this server.
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

/// Why a checked shard does not sell yet.
const SUSPECTED: &str = "a shard was suspected while it was looked at";

/// A mark: the shard is unverified.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    /// The epoch that is marked. If the ledger has a newer one, another process has rebuilt the shard.
    epoch: i64,
    /// A check that began before this does not clear the mark.
    since: Instant,
}

#[derive(Default)]
struct State {
    /// Servers that this process has admitted, by run id.
    admitted: HashSet<String>,
    /// The shards that were reconciled, with the contents of their permits.
    held: HashMap<ShardKey, Held>,
    /// Shards that are marked unverified.
    suspects: HashMap<ShardKey, Suspicion>,
    /// Why shards are unverified, until they sell again.
    findings: HashMap<ShardKey, Finding>,
    /// Up to where the drain had trimmed each shard's stream, at its last renewal.
    trimmed: HashMap<ShardKey, Position>,
    /// When this process first saw each silent shard as unverified in the ledger.
    set_aside: HashMap<ShardKey, Instant>,
    /// Whether the ledger failed to answer in the last renewal round.
    is_ledger_silent: bool,
    /// The last event that this process saw each shard write.
    seen: HashMap<ShardKey, Position>,
    /// Shards whose brake holds.
    braked: HashSet<ShardKey>,
    /// Shards that a promoted replica has taken over from the server that this process asks.
    superseded: HashSet<ShardKey>,
    /// When each sale that is over, and does not rest, was last needed.
    needed: HashMap<SaleId, Instant>,
    /// The number of shards of all sales that do not rest.
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

/// The number of shards of each kind, as one process knows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Reconciled, with a permit that holds.
    pub selling: usize,
    /// With a permit, but the brake holds.
    pub braked: usize,
    /// Not reconciled, or not renewed before the permit ran out.
    pub stopped: usize,
    /// Taken over by a promoted replica.
    pub superseded: usize,
    /// The highest epoch of the shards that this process knows as reconciled.
    pub epoch_max: i64,
}

/// A shard that was reconciled.
#[derive(Clone)]
struct Held {
    sale: Arc<Sale>,
    epoch: i64,
    /// The server on which it was reconciled, by run id.
    run_id: String,
    /// When this process asked for the shard's current permit.
    permitted: Instant,
}

impl Held {
    fn has_permit(&self) -> bool {
        self.permitted.elapsed() < HOLDS
    }
}

impl Permits {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every moment, also after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a sale rests. Its shards are as the sale left them, unless their server has changed.
    pub(in crate::flow) fn is_resting(&self, sale: SaleId) -> bool {
        let resting = self.resting.read().unwrap_or_else(PoisonError::into_inner);
        resting.contains(&sale)
    }

    /// Notes that a sale is needed. A resting sale is reconciled if its server has changed, and gets permits again.
    pub(in crate::flow) fn need(&self, sale: SaleId) {
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

    /// Whether a sale that is over is unneeded for a while, and this process knows all of its shards as reconciled.
    fn is_quiet(&self, sale: &Sale) -> bool {
        self.state().is_quiet(sale)
    }

    /// Lets a sale rest until it is needed, if it is still quiet.
    fn rest(&self, sale: &Sale) {
        let mut state = self.state();
        if state.is_quiet(sale) {
            let mut resting = self.resting.write().unwrap_or_else(PoisonError::into_inner);
            resting.insert(sale.id);
            state.needed.remove(&sale.id);
        }
    }

    /// Stops renewing a shard, and has it checked before it gets another permit. The check trusts the ledger: a shard
    /// that the ledger lists as reconciled on its server sells again at once.
    pub fn doubt(&self, shard: ShardKey) {
        self.need(shard.sale);
        self.state().held.remove(&shard);
        self.wanted.notify_one();
    }

    /// Marks a shard unverified: it lacks something that it should have. It is reconciled even if the ledger lists it
    /// as reconciled on its server.
    pub fn suspect(&self, shard: ShardKey) {
        self.need(shard.sale);
        let mut state = self.state();
        // The shard may have lost its permit already. Its epoch may be newer than the one we reconciled. Take the last
        // epoch we saw, or any epoch if we never saw one.
        let held = state.held.get(&shard).map(|held| held.epoch);
        let seen = state.seen.get(&shard).map(|last| last.epoch);
        let epoch = held.max(seen).unwrap_or(i64::MAX);
        state.distrust(shard, epoch);
        drop(state);
        self.wanted.notify_one();
    }

    /// Marks a shard in this epoch unverified because of a finding. Returns `false` if the shard has a finding
    /// already.
    pub(in crate::flow) fn mark_unverified(&self, shard: ShardKey, epoch: i64, finding: Finding) -> bool {
        self.need(shard.sale);
        let mut state = self.state();
        state.distrust(shard, epoch);
        let is_new = state.findings.insert(shard, finding).is_none();
        drop(state);
        self.wanted.notify_one();
        is_new
    }

    /// The shards that are unverified because of a finding, in words.
    #[must_use]
    pub fn unverified(&self) -> Vec<String> {
        let state = self.state();
        let named = state.findings.iter();
        named
            .map(|(shard, finding)| format!("shard {} of sale {} is unverified: {finding}", shard.shard, shard.sale))
            .collect()
    }

    /// Whether every permit for these shards has run out: the ledger has listed them as unverified for `SET_ASIDE`.
    /// The `fresh` ones have been listed just now.
    pub(in crate::flow) fn are_set_aside(&self, sale: SaleId, shards: &[u16], fresh: &[u16]) -> bool {
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

    /// Marks a shard in this epoch unverified.
    fn distrust(&self, shard: ShardKey, epoch: i64) {
        self.state().distrust(shard, epoch);
    }

    /// Whether a shard in this epoch was marked unverified after a check that began at `looked`.
    fn is_suspected_since(&self, looked: Instant, shard: ShardKey, epoch: i64) -> bool {
        self.state().is_suspected_since(looked, shard, epoch)
    }

    /// Notes that a rebuild gave a shard this epoch. Later findings concern the new generation.
    pub(in crate::flow) fn begin_life(&self, shard: ShardKey, epoch: i64) {
        self.state().seen.insert(shard, Position { epoch, seq: 0 });
    }

    #[must_use]
    pub fn count_shards(&self) -> ShardCounts {
        let state = self.state();
        let permitted = || state.held.iter().filter(|(_, held)| held.has_permit());
        let braked = permitted().filter(|(shard, _)| state.braked.contains(shard)).count();
        let (permitted, known) = (permitted().count(), state.held.len() + state.superseded.len());
        ShardCounts {
            selling: permitted - braked,
            braked,
            // A sale that was loaded a moment ago is not in `live` yet.
            stopped: state.live.saturating_sub(known) + (state.held.len() - permitted),
            superseded: state.superseded.len(),
            epoch_max: state.held.values().map(|held| held.epoch).max().unwrap_or_default(),
        }
    }

    /// Notes that a shard sells, by a check that began at `looked`. Returns `false` if the shard was marked unverified
    /// since.
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

    /// Waits for a place among the rebuilds of this process.
    ///
    /// # Errors
    /// Never: the semaphore is never closed.
    pub(in crate::flow) async fn turn_to_rebuild(&self) -> Result<SemaphorePermit<'_>, Fault> {
        let turn = self.rebuilding.0.acquire().await;
        turn.map_err(|closed| Fault::Bug(closed.to_string()))
    }

    /// Has a halted shard checked, and waits until this process lets it sell again. Returns `false` if that takes
    /// longer than `patience`.
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

    /// Notes a shard's backlog. Logs once when its brake begins to hold, and once when the brake lets go.
    fn note(&self, shard: ShardKey, asked: Instant, last: Position, brake: bool, waiting: i64) {
        let mut state = self.state();
        // A late reply may be of an earlier epoch.
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
            tracing::warn!(%sale, shard = number, waiting, "orders wait too long for the ledger, or Redis is short of memory; the shard sells nothing");
        } else if !brake && state.braked.remove(&shard) {
            tracing::info!(%sale, shard = number, "the ledger has caught up; the shard sells again");
        }
    }

    /// The number of events that this process saw the shard write and that the shard no longer has. `last` is its last
    /// event now.
    pub(in crate::flow) fn lost_since(&self, shard: ShardKey, last: Position) -> i64 {
        let before = self.state().seen.insert(shard, last);
        before.map_or(0, |before| {
            let same_life = before.epoch == last.epoch;
            if same_life { (before.seq - last.seq).max(0) } else { 0 }
        })
    }

    /// The epoch of each shard that this process knows as reconciled.
    pub(in crate::flow) fn epochs(&self) -> HashMap<ShardKey, i64> {
        let state = self.state();
        state.held.iter().map(|(shard, held)| (*shard, held.epoch)).collect()
    }

    /// The last event that this process saw a shard write.
    pub(in crate::flow) fn last_seen(&self, shard: ShardKey) -> Option<Position> {
        self.state().seen.get(&shard).copied()
    }

    /// The shards that another server has taken over from the one that this process asks.
    pub(in crate::flow) fn superseded(&self) -> Vec<ShardKey> {
        self.state().superseded.iter().copied().collect()
    }

    /// Whether another server has taken over a shard of this sale. Then this process may not see all of the sale.
    pub(in crate::flow) fn is_superseded(&self, sale: SaleId) -> bool {
        self.state().superseded.iter().any(|shard| shard.sale == sale)
    }

    /// Notes that a promoted replica has taken a shard over.
    fn supersede(&self, shard: ShardKey) {
        let mut state = self.state();
        state.held.remove(&shard);
        if state.superseded.insert(shard) {
            let (sale, number) = (shard.sale, shard.shard);
            tracing::error!(
                %sale, shard = number,
                "a promoted replica has taken this shard over; this process still asks the old Redis"
            );
        }
    }

    /// Whether another server has taken this shard over from the one that this process asks.
    pub(in crate::flow) fn has_lost(&self, shard: ShardKey) -> bool {
        self.state().superseded.contains(&shard)
    }

    /// Whether this process has let a shard sell so lately that the permit still holds.
    pub(in crate::flow) fn lets_sell(&self, shard: ShardKey) -> bool {
        self.state().held.get(&shard).is_some_and(Held::has_permit)
    }

    /// Whether this process knows a shard as reconciled, and renews its permit.
    pub(in crate::flow) fn holds(&self, shard: ShardKey) -> bool {
        self.state().held.contains_key(&shard)
    }
}

/// The fault of a process whose Redis server has been superseded.
pub(in crate::flow) fn superseded() -> Fault {
    Fault::Unavailable(
        "a promoted replica has taken over from this Redis; connect to that one, or if it is gone restart this one"
            .to_owned(),
    )
}

/// Stops renewing shards that the ledger lists on another server or in another epoch: another process has reconciled
/// or rebuilt them. Returns whether the ledger answered in time.
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

/// Renews the permits of all shards that this process knows as reconciled; returns how many. Selling goes on while
/// Postgres is away. While Postgres answers, no process renews on a server from which another has taken over.
///
/// # Errors
/// `Unavailable` when Redis does not answer: then nothing is sold.
pub async fn renew(app: &App) -> Result<usize, Fault> {
    // If the ledger did not answer last time, this round asks it while it renews: permits must not run out over the
    // wait. So once the ledger is back, a superseded server gets at most one more renewal.
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
            let (epoch, renewing) = (held.epoch, permit(&app.stock, shard, &held, true));
            let silent = |_elapsed| Err(Fault::Unavailable("Redis did not renew in time".to_owned()));
            let permitted = tokio::time::timeout(RENEW_MAX, renewing).await.unwrap_or_else(silent);
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
            // Another process is about to reconcile or rebuild the shard. Afterwards it has a new epoch, or is as it
            // was.
            Ok(Permitted::Halted) => _ = renewed.of(["halted"]).inc(),
            // The shard has another epoch or server, or its permit has lapsed. It must first get what it missed.
            Ok(Permitted::Not | Permitted::Lapsed) => {
                renewed.of(["refused"]).inc();
                app.permits.doubt(shard);
            }
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {
                renewed.of(["damaged"]).inc();
                tracing::warn!(sale = %shard.sale, shard = shard.shard, "a shard is damaged; reconciling it");
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

/// Checks every shard that this process does not let sell, reconciles it if need be, and gives it a permit. Returns
/// how many sell again.
pub async fn reconcile_all(app: &App) -> Result<usize, Fault> {
    let sales = app.sales.live().await?;
    // The keys of a sale that is leaving Redis are being removed.
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
    // A rebuild may have taken long. Sales that were loaded since may hold permits by now.
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
    // Another round may have reconciled shards of a sale that rests by now.
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
async fn rest_when_quiet(app: &App, sales: &[&Arc<Sale>]) -> Result<(), Fault> {
    let now = Utc::now().timestamp_millis();
    let is_over = |sale: &Sale| sale.state_at(now) == SaleState::Closed && !app.permits.is_resting(sale.id);
    for sale in sales.iter().filter(|sale| is_over(sale) && app.permits.is_quiet(sale)) {
        // Each shard's own clock decides whether the sale is over there.
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

/// Lets a sale sell at once after it was loaded or has rested.
///
/// # Errors
/// A fault leaves the sale to the next reconcile round.
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
            // Another process is reconciling the sale. The next attempt takes over its result.
            Err(Fault::Unavailable(_)) if tries.next().is_some() => tokio::time::sleep(ATTEND_AGAIN).await,
            outcome => return outcome.map(|_| ()),
        }
    }
}

/// Rebuilds all shards of a sale for an operator, whether they have lost anything or not; the sale may be open. `None`
/// when there is no such sale, or Redis does not hold it.
///
/// # Errors
/// A fault leaves shards that do not sell until a reconcile round has rebuilt them.
pub async fn rebuild_sale(app: &App, id: SaleId) -> Result<Option<Rebuilt>, Fault> {
    let in_redis = |sale: &Arc<Sale>| sale.is_in_stock() && !sale.leaving;
    let Some(sale) = app.sales.fresh(id).await?.filter(in_redis) else {
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
        app.permits.doubt(ShardKey {
            sale: id,
            shard: *shard,
        });
    }
    match attend(app, &sale).await {
        // The shards are rebuilt. The next reconcile round lets them sell.
        Err(fault) if fault.is_passing() => tracing::warn!(sale = %id, %fault, "a rebuilt sale does not sell yet"),
        outcome => outcome?,
    }
    Ok(Some(rebuilt))
}

/// Loads the scripts that sell onto the server of this shard. Before that, it takes away the permits of all shards
/// there that were not reconciled on that server.
async fn admit(app: &App, via: ShardKey, run_id: &str) -> Result<(), Fault> {
    if !app.permits.state().admitted.contains(run_id) {
        // The caller's list does not suffice. A sale that was loaded since may have a permit there from before the
        // server's start.
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
                    // The shard may be on this server, which was slow to answer.
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
        // All sales that are attended to at the same time get here; it is logged once.
        if state.admitted.insert(run_id.to_owned()) {
            tracing::info!(%run_id, "admitted a Redis server; reconciling its shards one by one");
        }
    }
    // Also after a `SCRIPT FLUSH`, which removes nothing else.
    app.stock.admit(via).await?;
    if app.stock.run_id(via).await? == run_id {
        return Ok(());
    }
    // Another server has taken over in between, and its shards are unverified.
    app.stock.dismiss(via).await?;
    Err(Fault::Unavailable(
        "Redis has become another process once more".to_owned(),
    ))
}

/// Attends to a sale, unless another task of this process does.
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
    // Let the known shards sell first. The reconcile of the others needs them to sell, and a rebuild may take long.
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
        // The reconcile on the server before may have taken long. Another process may have made some of these shards
        // sell since; those must not be halted.
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

/// Splits a server's shards into those that the ledger lists as reconciled there and the others. On success the server
/// has the scripts that sell.
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
    // A server's name shows only for a while from which server it took over. The ledger keeps them all.
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
        // Another process, or this one earlier, has reconciled the shard on this very server.
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
        // Shards that this check did not read have lost something as well.
        let standings = app.ledger.standings(&[sale.id]).await?;
        for (key, standing) in &standings {
            let (sale, shard) = *key;
            app.permits.distrust(ShardKey { sale, shard }, standing.epoch);
        }
    }
    let looked = reconciled?;
    let standings = app.ledger.standings(&[sale.id]).await?;
    let sells = let_sell(app, sale, run_id, unknown, &standings, looked).await;
    // The relay has skipped these shards meanwhile. It delivers what fails here.
    if let Err(fault) = release_of(app, sale.id).await {
        tracing::debug!(%fault, sale = %sale.id, "the relay delivers the rest");
    }
    sells
}

/// Delivers the bans and the state that they missed to intact shards of this server, and gives the shards permits.
/// Their other messages become due at once. The check that found them intact began at `looked`. Returns how many they
/// were.
///
/// # Errors
/// A fault leaves some of them without a permit.
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
    // The shards may have been silent for long, and must know these bans before they sell.
    let waiting = app.ledger.waiting_bans(sale.id, &numbers).await?;
    for key in shards {
        let standing = standings.get(&(key.sale, key.shard));
        // The shard is on another server by now. The next attempt finds it there.
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
        // The process that rebuilt the shard may have known the sale as it was before an operator changed it.
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
                    // The shard was marked unverified during the permit call.
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
                    tracing::warn!(sale = %key.sale, shard = key.shard, %fault, "a shard is damaged; reconciling it");
                }
            }
            Err(fault) => {
                failed = Some(fault);
                break;
            }
        }
    }
    // The relay has postponed all other messages to these shards, each time for longer.
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
        // The mark concerns an older epoch, so the rebuilt shard may sell.
        assert!(permits.grant(shard, held(4), last, looked));
        permits.suspect(shard);
        assert!(permits.grant(shard, held(4), last, Instant::now()));
        assert!(permits.holds(shard));
        // A mark after the rebuild concerns the new epoch, even while this process still holds the older one.
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
        // A second mark in an earlier epoch takes nothing away from the first.
        permits.distrust(shard, 6);
        assert!(!permits.grant(shard, held(), last, looked));
        assert!(permits.grant(shard, held(), last, Instant::now()));
    }
}
