//! Renew: let the shards that this process has reconciled sell on, a few seconds at a time. A crash leaves permits that
//! run out.
//!
//! One instance renews the shards of a sale ([`crate::flow::recover::instances`]). Two in reserve read in each round what
//! is left of the permits, and renew them before they run out. All others do so once the notes show no more that somebody
//! renews them. So the death of one or two instances interrupts no sale.
//!
//! Without the ledger, no instance could let a shard sell again. So while the ledger or a server of Redis is silent, the
//! two in reserve renew as well, and all others read in each round what is left of the permits. The end of all three
//! interrupts no sale then, and the renewals still do not grow with the instances. A renewal by any instance is as safe
//! as one by another: the script checks it.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::event::Position;
use crate::flow::recover::instances::Rank;
use crate::flow::recover::permits::{Finding, HOLDS, Held, mark_unverified};
use crate::flow::recover::{bulletin, gap};
use crate::flow::{App, RunTotals};
use crate::ledger::recover::standing::ShardStandings;
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::recover::permit::{Permit, Permitted};
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// The share of Redis's memory, in thousandths, from which the brake holds early: events may then wait for a 300th of
/// `AGE_MAX`. The last quarter takes the purchases until the brake holds on every shard: less than three seconds of
/// them.
const MEMORY_MAX: u16 = 750;
/// How long an event may wait for the ledger. After that the brake holds: no more shoppers should join one whose order
/// is still unconfirmed.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How long a renewal round waits for the ledger, which may be away.
const LET_GO_MAX: Duration = Duration::from_millis(400);
/// How long one renewal may take. The shards of a silent server must not make the other permits run out.
const RENEW_MAX: Duration = Duration::from_millis(700);
/// How long a round waits for the permits that others renew.
const READ_MAX: Duration = Duration::from_millis(400);
/// If less than this is left of a permit, the second instance renews it, the third, any other. Rounds are 0.8 seconds
/// apart, and the script extends a permit of which less than 2.4 seconds are left. So the first leaves 1.6 at the least,
/// and the second and the third come in time.
const LEAST_OF_SECOND: Duration = Duration::from_millis(1_500);
const LEAST_OF_THIRD: Duration = Duration::from_millis(1_000);
const LEAST_OF_OTHERS: Duration = Duration::from_millis(800);
/// The same for any other while a server is silent: the next round would still be in time.
const LEAST_WHILE_SILENT: Duration = Duration::from_millis(1_400);
/// Of so many rounds, an instance asks the ledger in one for all shards that others renew. Until then it may take a shard
/// to be on the server from before a restart. Then no note shows it the permit, and it reads that by itself. Before it
/// renews one of them, it asks in any case.
const ASK_EVERY: u64 = 24;
/// Of so many rounds, an instance that renews nothing reads the bulletin in one, if Postgres notifies it of changes.
const READ_EVERY: u64 = 2;
/// Up to so many shards, the ledger is asked for each of them. All shards of their sales cost it less than more of them.
const SEARCHED_MAX: usize = 64;
/// The age of a heartbeat from which each round asks for a newer one. Else all workers would store one of their own
/// after three seconds.
const BEAT_AGE_MAX: Duration = Duration::from_millis(2_200);
/// How long an instance goes on with a shard that was not its to renew. By then a dead instance is off the list. It is
/// also longer than a sale that is over must be unused before it rests. Else the last instance that does not rest would
/// let permits lapse, and need the sale again, time after time.
const STANDS_IN: Duration = Duration::from_secs(15);
/// Shards asked at once. So many that the shards of a server that hangs do not hold up the others.
pub(super) const AT_ONCE: usize = 512;

/// The shards whose permits this process sees to in a round.
#[derive(Default)]
struct RenewalRound {
    /// It renews these.
    own: Vec<ShardKey>,
    /// Another instance renews these. This process does if less than this is left of the permit.
    watched: Vec<(ShardKey, Duration)>,
    /// Another instance renews these.
    others: Vec<ShardKey>,
    /// Whether this process reads the bulletin.
    reads: bool,
    /// Whether this process asks the ledger for the others, even if no server was superseded.
    asks: bool,
    /// Whether the ledger or a server of Redis was silent in the last round.
    is_silent: bool,
}

/// Divides the shards that this process knows as reconciled by its rank for their sales. A shard that it has just let
/// sell, or with which the others fell behind, is its own for a while. After a round with a silent server, so are those
/// for which it is in reserve: rounds take longer then, and it might come too late.
fn begin_round(app: &App) -> RenewalRound {
    let mut state = app.permits.state();
    state.rounds = state.rounds.wrapping_add(1);
    let is_silent = state.is_ledger_silent || state.is_stock_silent;
    let ranks = app.instances.ranks_of(state.held.keys(), state.holds_all());
    let mut round = RenewalRound {
        asks: state.rounds.is_multiple_of(ASK_EVERY),
        is_silent,
        ..RenewalRound::default()
    };
    for ((shard, held), rank) in state.held.iter().zip(ranks) {
        if rank == Rank::First || is_silent && rank != Rank::Other || held.stands_in.elapsed() < STANDS_IN {
            round.own.push(*shard);
            continue;
        }
        round.others.push(*shard);
        match rank {
            Rank::Second => round.watched.push((*shard, LEAST_OF_SECOND)),
            Rank::Third => round.watched.push((*shard, LEAST_OF_THIRD)),
            Rank::Other if is_silent => round.watched.push((*shard, LEAST_WHILE_SILENT)),
            Rank::Other if held.left() < LEAST_OF_OTHERS => round.watched.push((*shard, LEAST_OF_OTHERS)),
            Rank::First | Rank::Other => {}
        }
    }
    let are_rare = round.own.is_empty() && may_skip_bulletin(app);
    app.bulletins.note_rare(are_rare);
    round.reads = !are_rare || state.rounds.is_multiple_of(READ_EVERY);
    round
}

/// Whether this process misses nothing if it reads no bulletin in a round. The first workers for heartbeats go by the
/// last one that a bulletin names, and so do all other workers once it is old.
fn may_skip_bulletin(app: &App) -> bool {
    let is_recent = || app.bulletins.since_beat().is_some_and(|since| since < BEAT_AGE_MAX);
    let rests = app.instances.rests_from_job("beat") && (!app.instances.works() || is_recent());
    app.arrivals.hears() && app.bulletins.are_fresh() && rests
}

/// Those of the shards that this process still knows as reconciled.
fn held_of(app: &App, shards: &[ShardKey]) -> Vec<(ShardKey, Held)> {
    let state = app.permits.state();
    let held = shards
        .iter()
        .filter_map(|shard| Some((*shard, state.held.get(shard)?.clone())));
    held.collect()
}

/// Shards with what this process knew of them before it asked the ledger.
struct KnownShards {
    held: Vec<(ShardKey, Held)>,
    trimmed: HashMap<ShardKey, Position>,
}

impl KnownShards {
    fn of(app: &App, shards: &[ShardKey]) -> Self {
        let held = held_of(app, shards);
        let state = app.permits.state();
        let trimmed = shards
            .iter()
            .filter_map(|shard| Some((*shard, *state.trimmed.get(shard)?)));
        let trimmed = trimmed.collect();
        Self { held, trimmed }
    }

    /// Stops renewing those of the shards that the ledger lists on another server or in another epoch: another process
    /// has reconciled or rebuilt them.
    fn let_go(self, app: &App, standings: &ShardStandings) {
        for (shard, held) in self.held {
            let Some(standing) = standings.get(&(shard.sale, shard.shard)) else {
                continue;
            };
            let noted = standing.noted.server();
            if noted.is_some_and(|noted| noted.has_taken_over_from(&held.server)) {
                app.permits.supersede(shard);
            } else if !standing.noted.is_reconciled_on(&held.server) || standing.epoch != held.epoch {
                app.permits.recheck(shard);
            }
        }
        gap::notice(app, &self.trimmed, standings);
    }
}

/// [`KnownShards::let_go`] after a question for these shards alone. Returns whether the ledger answered in time.
async fn let_go(app: &App, shards: &[ShardKey]) -> bool {
    let known = KnownShards::of(app, shards);
    let asking = async {
        if known.held.len() > SEARCHED_MAX {
            let sales: HashSet<SaleId> = known.held.iter().map(|(shard, _)| shard.sale).collect();
            app.ledger.standings(&sales.into_iter().collect::<Vec<_>>()).await
        } else {
            let shards = known.held.iter().map(|(shard, _)| (shard.sale, shard.shard));
            app.ledger.standings_of(&shards.collect::<Vec<_>>()).await
        }
    };
    let Ok(Ok(standings)) = timeout(LET_GO_MAX, asking).await else {
        return false;
    };
    known.let_go(app, &standings);
    true
}

/// Reads the bulletin of this round, if there is one, and lets go of its own shards that the ledger has elsewhere. Returns
/// the servers of this process from which others have taken over, by run id. `None` if the ledger did not answer in time.
async fn ask(app: &App, round: &RenewalRound) -> Option<HashSet<String>> {
    if !round.reads {
        return Some(HashSet::new());
    }
    let own = &round.own;
    let (asked, known) = (Instant::now(), KnownShards::of(app, own));
    if let Ok(bulletin) = bulletin::read(app, own, run_ids(app), LET_GO_MAX).await {
        known.let_go(app, &bulletin.standings);
        return Some(bulletin.superseded);
    }
    if asked.elapsed() > LET_GO_MAX / 2 {
        return None;
    }
    // Another transaction may have locked a table that only the bulletin needs. The permits must not depend on that.
    let superseded = timeout(LET_GO_MAX, app.ledger.superseded_servers());
    let (answered, superseded) = tokio::join!(let_go(app, own), superseded);
    superseded.ok()?.ok().filter(|_| answered)
}

/// The Redis processes on which this process knows shards as reconciled.
fn run_ids(app: &App) -> Vec<String> {
    let state = app.permits.state();
    let run_ids: HashSet<&str> = state.held.values().map(|held| held.server.run_id()).collect();
    run_ids.into_iter().map(str::to_owned).collect()
}

/// Asks the ledger for shards that others renew. It asks now and then for all, and after each bulletin for those on a
/// server from which another has taken over. So all instances of a superseded server notice at about the same time.
/// Without the superseded servers, the ledger has not answered in this round.
async fn ask_for_others(app: &App, round: &RenewalRound, superseded: Option<HashSet<String>>) {
    let answered = match superseded {
        Some(superseded) => {
            let asked = if round.asks {
                round.others.clone()
            } else {
                on_servers(app, &round.others, &superseded)
            };
            asked.is_empty() || let_go(app, &asked).await
        }
        None => false,
    };
    app.permits.state().is_ledger_silent = !answered;
}

/// Those of the shards that this process knows as reconciled on one of these servers.
fn on_servers(app: &App, shards: &[ShardKey], run_ids: &HashSet<String>) -> Vec<ShardKey> {
    let state = app.permits.state();
    let is_there = |shard: &ShardKey| {
        let held = state.held.get(shard);
        held.is_some_and(|held| run_ids.contains(held.server.run_id()))
    };
    shards.iter().copied().filter(is_there).collect()
}

/// Renews the permits of the shards that this process knows as reconciled and that are its to renew; returns how many.
/// Selling goes on while Postgres is away. While Postgres answers, no process renews on a server from which another has
/// taken over. Fails with `Unavailable` when Redis does not answer: then nothing is sold.
pub async fn renew(app: &App) -> Result<usize, Fault> {
    let began = Instant::now();
    let mut round = begin_round(app);
    let watched = std::mem::take(&mut round.watched);
    // Side by side: a silent server of watched shards must not delay the others.
    let (own, short) = tokio::join!(
        Box::pin(renew_own(app, &round)),
        Box::pin(renew_short(app, watched, round.is_silent))
    );
    app.metrics.permit_round_duration.observe(began.elapsed());
    let mut totals = RunTotals::default();
    totals.note(own);
    totals.note(short);
    let renewed = totals.finish();
    app.permits.state().is_stock_silent = renewed.is_err();
    renewed
}

/// Reads what is left of the permits of watched shards, and renews those with less than they need. So a permit that
/// lapsed, a shard that is damaged or in another epoch, and a silent server are noticed as in a renewal.
///
/// While a server is silent, a shard that cannot be read is left to the three that renew it. The ledger is asked beside
/// the renewal then, as in [`renew_own`].
async fn renew_short(app: &App, watched: Vec<(ShardKey, Duration)>, is_silent: bool) -> Result<usize, Fault> {
    if watched.is_empty() {
        return Ok(0);
    }
    let (asked, shards): (_, Vec<ShardKey>) = (Instant::now(), watched.iter().map(|(shard, _)| *shard).collect());
    let left = app.stock.permits_left(&shards, READ_MAX).await;
    let watched = watched
        .into_iter()
        .zip(left)
        .filter(|(_, left)| !is_silent || left.is_some());
    let short = watched.filter(|((shard, least), left)| !app.permits.note_left(*shard, asked, *left, *least));
    let short: Vec<ShardKey> = short.map(|((shard, _), _)| shard).collect();
    if short.is_empty() {
        return Ok(0);
    }
    if is_silent {
        let renewing = Box::pin(renew_all(app, &short));
        return tokio::join!(let_go(app, &short), renewing).1;
    }
    app.permits.stand_in(&short);
    // Another process may have reconciled them elsewhere, which is why those whose turn it was did not renew them.
    let _silent = let_go(app, &short).await;
    Box::pin(renew_all(app, &short)).await
}

/// Asks the ledger for this round, and renews the permits of its own shards, except those that the ledger has elsewhere.
async fn renew_own(app: &App, round: &RenewalRound) -> Result<usize, Fault> {
    // If the ledger did not answer last time, this round asks it while it renews: permits must not run out over the
    // wait. So once the ledger is back, a superseded server gets at most one more renewal.
    let was_silent = app.permits.state().is_ledger_silent;
    if was_silent {
        let asking = async {
            let superseded = ask(app, round).await;
            ask_for_others(app, round, superseded).await;
        };
        return tokio::join!(Box::pin(asking), Box::pin(renew_all(app, &round.own))).1;
    }
    let superseded = Box::pin(ask(app, round)).await;
    let asking = ask_for_others(app, round, superseded);
    tokio::join!(Box::pin(asking), Box::pin(renew_all(app, &round.own))).1
}

async fn renew_all(app: &App, shards: &[ShardKey]) -> Result<usize, Fault> {
    let held = held_of(app, shards);
    let renewed = &app.metrics.permit_renewals;
    let mut totals = RunTotals::default();
    let mut renewals = futures_util::stream::iter(held)
        .map(|(shard, held)| async move {
            let asked = Instant::now();
            let (epoch, renewing) = (held.epoch, permit(&app.stock, shard, &held, true));
            let silent = |_elapsed| Err(Fault::Unavailable("Redis did not renew in time".to_owned()));
            let permitted = timeout(RENEW_MAX, renewing).await.unwrap_or_else(silent);
            (shard, asked, epoch, permitted)
        })
        .buffer_unordered(AT_ONCE);
    while let Some((shard, asked, epoch, permitted)) = renewals.next().await {
        match permitted {
            Ok(Permitted::Yes { last, .. }) if !last.is_of(epoch) => {
                renewed.of(["damaged"]).inc();
                mark_unverified(app, shard, epoch, Finding::ForeignEntry);
            }
            Ok(Permitted::Yes { waiting, last, brake }) => {
                app.permits.note(shard, asked, last, brake, waiting);
                renewed.of(["renewed"]).inc();
                totals.note(Ok(1));
            }
            // Another process is about to reconcile or rebuild the shard. Afterwards it has a new epoch, or is as it
            // was.
            Ok(Permitted::Halted) => _ = renewed.of(["halted"]).inc(),
            // The shard has another epoch or server, or its permit has lapsed. It must first get what it missed.
            Ok(Permitted::Not | Permitted::Lapsed) => {
                renewed.of(["refused"]).inc();
                app.permits.recheck(shard);
            }
            Err(Fault::Incomplete(_) | Fault::Bug(_)) => {
                renewed.of(["damaged"]).inc();
                tracing::warn!(sale = %shard.sale, shard = shard.shard, "a shard is damaged; reconciling it");
                app.permits.mark_unverified(shard);
            }
            Err(fault) => {
                renewed.of(["failed"]).inc();
                totals.note(Err(fault));
            }
        }
    }
    totals.finish()
}

pub(super) async fn permit(stock: &Stock, shard: ShardKey, held: &Held, renewal: bool) -> Result<Permitted, Fault> {
    let permit = Permit {
        epoch: held.epoch,
        server: &held.server,
        holds: HOLDS,
        memory_max: MEMORY_MAX,
        age_max: AGE_MAX,
        renewal,
    };
    stock.permit(&held.sale, shard.shard, &permit, None).await
}
