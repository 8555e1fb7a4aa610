//! Renew: let the shards that this process has reconciled sell on, a few seconds at a time. A crash leaves permits that
//! run out.
//!
//! One instance renews a shard ([`crate::flow::recover::instances`]). Two in reserve read in each round what is left of the
//! permit, and renew it before it runs out. All others read that now and then. So the death of one or two instances
//! interrupts no sale. While the ledger or a server of Redis is silent, every instance renews every shard: without the
//! ledger, no instance could let a shard sell again. A renewal by any instance is as safe as one by another: the script
//! checks it.

use crate::domain::event::Position;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::flow::recover::gap;
use crate::flow::recover::instances::Rank;
use crate::flow::recover::permits::{Finding, HOLDS, Held, mark_unverified};
use crate::flow::{App, RunTotals};
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::permit::{Permit, Permitted};
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

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
/// Of so many rounds, an instance that is not in reserve reads the permits in one. Its gauges count a permit until then.
const OTHERS_EVERY: u64 = 2;
/// Of so many rounds, an instance asks the ledger in one for all shards that others renew.
const ASK_EVERY: u64 = 6;
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
    /// Whether this process asks the ledger for the others, even if no server was superseded.
    asks: bool,
}

/// Divides the shards that this process knows as reconciled by its rank for each. A shard that it has just let sell, or
/// with which the others fell behind, is its own for a while. After a round with a silent server, all are: rounds take
/// longer then, and those in reserve might come too late.
fn begin_round(app: &App) -> RenewalRound {
    let mut state = app.permits.state();
    // A process that renewed nothing has not asked the ledger.
    state.is_ledger_silent &= !state.held.is_empty();
    state.rounds = state.rounds.wrapping_add(1);
    let all = state.is_ledger_silent || state.is_stock_silent;
    let is_turn_of_others = state.rounds.is_multiple_of(OTHERS_EVERY);
    let ranks = app.instances.ranks_of(state.held.keys());
    let mut round = RenewalRound {
        asks: state.rounds.is_multiple_of(ASK_EVERY),
        ..RenewalRound::default()
    };
    for ((shard, held), rank) in state.held.iter().zip(ranks) {
        if all || rank == Rank::First || held.stands_in.elapsed() < STANDS_IN {
            round.own.push(*shard);
            continue;
        }
        round.others.push(*shard);
        match rank {
            Rank::Second => round.watched.push((*shard, LEAST_OF_SECOND)),
            Rank::Third => round.watched.push((*shard, LEAST_OF_THIRD)),
            Rank::Other if is_turn_of_others => round.watched.push((*shard, LEAST_OF_OTHERS)),
            Rank::First | Rank::Other => {}
        }
    }
    round
}

/// Those of the shards that this process still knows as reconciled.
fn held_of(app: &App, shards: &[ShardKey]) -> Vec<(ShardKey, Held)> {
    let state = app.permits.state();
    let held = shards
        .iter()
        .filter_map(|shard| Some((*shard, state.held.get(shard)?.clone())));
    held.collect()
}

/// Stops renewing those of the shards that the ledger lists on another server or in another epoch: another process has
/// reconciled or rebuilt them. Returns whether the ledger answered in time.
async fn let_go(app: &App, shards: &[ShardKey]) -> bool {
    let held = held_of(app, shards);
    let trimmed: HashMap<ShardKey, Position> = {
        let state = app.permits.state();
        let trimmed = shards
            .iter()
            .filter_map(|shard| Some((*shard, *state.trimmed.get(shard)?)));
        trimmed.collect()
    };
    let asked: Vec<(SaleId, u16)> = held.iter().map(|(shard, _)| (shard.sale, shard.shard)).collect();
    let Ok(Ok(standings)) = tokio::time::timeout(LET_GO_MAX, app.ledger.standings_of(&asked)).await else {
        return false;
    };
    for (shard, held) in held {
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
    gap::notice(app, &trimmed, &standings);
    true
}

/// Asks the ledger for shards that others renew. It asks now and then for all, and in each round for those on a server
/// from which another has taken over. So all instances of a superseded server notice at the same time.
async fn ask_for_others(app: &App, others: &[ShardKey], asks: bool) {
    if others.is_empty() {
        return;
    }
    let answered = if asks {
        let_go(app, others).await
    } else if let Ok(Ok(superseded)) = tokio::time::timeout(LET_GO_MAX, app.ledger.superseded_servers()).await {
        let there = on_servers(app, others, &superseded);
        there.is_empty() || let_go(app, &there).await
    } else {
        false
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
    let RenewalRound {
        own,
        watched,
        others,
        asks,
    } = begin_round(app);
    // Side by side: a silent server of watched shards must not delay the others.
    let (own, short, ()) = tokio::join!(
        Box::pin(renew_known(app, &own)),
        Box::pin(renew_short(app, watched)),
        Box::pin(ask_for_others(app, &others, asks))
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
async fn renew_short(app: &App, watched: Vec<(ShardKey, Duration)>) -> Result<usize, Fault> {
    if watched.is_empty() {
        return Ok(0);
    }
    let (asked, shards): (_, Vec<ShardKey>) = (Instant::now(), watched.iter().map(|(shard, _)| *shard).collect());
    let left = app.stock.permits_left(&shards, READ_MAX).await;
    let watched = watched.into_iter().zip(left);
    let short = watched.filter(|((shard, least), left)| !app.permits.note_left(*shard, asked, *left, *least));
    let short: Vec<ShardKey> = short.map(|((shard, _), _)| shard).collect();
    app.permits.stand_in(&short);
    renew_known(app, &short).await
}

/// Renews the permits of these shards, except those that the ledger has elsewhere.
async fn renew_known(app: &App, shards: &[ShardKey]) -> Result<usize, Fault> {
    if shards.is_empty() {
        return Ok(0);
    }
    // If the ledger did not answer last time, this round asks it while it renews: permits must not run out over the
    // wait. So once the ledger is back, a superseded server gets at most one more renewal.
    let was_silent = app.permits.state().is_ledger_silent;
    let asking = async {
        let answered = let_go(app, shards).await;
        app.permits.state().is_ledger_silent = !answered;
    };
    if was_silent {
        return tokio::join!(asking, Box::pin(renew_all(app, shards))).1;
    }
    asking.await;
    Box::pin(renew_all(app, shards)).await
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
            let permitted = tokio::time::timeout(RENEW_MAX, renewing).await.unwrap_or_else(silent);
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
