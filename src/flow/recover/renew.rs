//! Renew: let the shards that this process has reconciled sell on, a few seconds at a time. A crash leaves permits that
//! run out.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::flow::recover::gap;
use crate::flow::recover::permits::{Finding, HOLDS, Held, mark_unverified};
use crate::flow::{App, RunTotals};
use crate::stock::Stock;
use crate::stock::keys::ShardKey;
use crate::stock::permit::{Permit, Permitted};
use futures_util::StreamExt;
use std::collections::HashSet;
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
/// Shards asked at once. So many that the shards of a server that hangs do not hold up the others.
pub(super) const AT_ONCE: usize = 512;

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
    app.metrics.permit_round_duration.observe(began.elapsed());
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
