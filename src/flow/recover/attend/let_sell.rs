//! Let sell: give permits to shards that were found intact, once they have what they missed.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::sale::Sale;
use crate::domain::shopper::ban::Ban;
use crate::flow::App;
use crate::flow::operate::bans;
use crate::flow::recover::permits::{Finding, Held, MARKED, mark_unverified};
use crate::flow::recover::renew::permit;
use crate::ledger::recover::standing::ShardStandings;
use crate::stock::keys::ShardKey;
use crate::stock::recover::permit::Permitted;
use std::sync::Arc;
use std::time::Instant;

/// Delivers the bans and the state that they missed to intact shards of this server, and gives the shards permits.
/// Their other messages become due at once. The check that found them intact began at `checked`. Returns how many they
/// were. A fault leaves some of them without a permit.
pub(super) async fn let_sell(
    app: &App,
    sale: &Arc<Sale>,
    server: &Server,
    shards: &[ShardKey],
    standings: &ShardStandings,
    checked: Instant,
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
        let Some(standing) = standing.filter(|it| it.noted.is_reconciled_on(server)) else {
            again = Some("a shard is on another server by now");
            continue;
        };
        let held = Held::begin(sale, standing.epoch, server);
        match let_shard_sell(app, &now, *key, held, &waiting, checked).await {
            Ok(why) => again = why.or(again),
            Err(fault) => {
                failed = Some(fault);
                break;
            }
        }
    }
    // The job `release` has postponed all other messages to these shards, each time for longer.
    if let Err(fault) = app.ledger.make_due(sale.id, &numbers).await {
        shards.iter().for_each(|key| app.permits.recheck(*key));
        return Err(fault);
    }
    if let Some(fault) = failed {
        return Err(fault);
    }
    again.map_or(Ok(shards.len()), |why| Err(Fault::Unavailable(why.to_owned())))
}

/// [`let_sell`] for one shard. `now` is the sale as the ledger has it, and `waiting` are the bans that shards missed.
/// Returns why the shard does not sell, if it has to be checked again.
async fn let_shard_sell(
    app: &App,
    now: &Sale,
    key: ShardKey,
    held: Held,
    waiting: &[Ban],
    checked: Instant,
) -> Result<Option<&'static str>, Fault> {
    // The process that rebuilt the shard may have known the sale as it was before an operator changed it.
    let mut delivered = Box::pin(bans::deliver_waiting(app, now, key.shard, waiting)).await;
    if delivered.is_ok() {
        delivered = app.stock.set_state(now, key.shard).await;
    }
    if app.permits.state().is_marked_since(checked, key, held.epoch) {
        return Ok(Some(MARKED));
    }
    let permitted = match delivered {
        Ok(()) => permit(&app.stock, key, &held, false).await,
        Err(fault) => Err(fault),
    };
    match permitted {
        Ok(Permitted::Yes { last, .. }) if !last.is_of(held.epoch) => {
            mark_unverified(app, key, held.epoch, Finding::ForeignEntry);
            Ok(Some("a shard's stream has a foreign entry"))
        }
        Ok(Permitted::Yes { last, .. }) => {
            if app.permits.grant(key, held, last, checked) {
                return Ok(None);
            }
            // The shard was marked unverified during the permit call.
            app.stock.stop(key).await?;
            Ok(Some(MARKED))
        }
        Ok(Permitted::Halted) => Ok(Some("others reconcile or rebuild these shards")),
        not @ (Ok(Permitted::Not | Permitted::Lapsed) | Err(Fault::Incomplete(_) | Fault::Bug(_))) => {
            app.permits.state().mark(key, held.epoch);
            app.permits.wanted.notify_one();
            if let Err(fault) = not {
                tracing::warn!(sale = %key.sale, shard = key.shard, %fault, "a shard is damaged; reconciling it");
            }
            Ok(Some("a shard differs from the ledger"))
        }
        Err(fault) => Err(fault),
    }
}
