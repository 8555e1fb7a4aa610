//! Retire: remove a sale's keys from Redis a day after it has ended, when nothing of it is open. From then on only
//! the ledger knows it.
//!
//! A crash on the way leaves the rest of the keys for the next run.

use super::{App, Tally};
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::Sale;
use crate::domain::server::has_taken_over;
use crate::stock::keys::ShardKey;
use chrono::{TimeDelta, Utc};
use std::collections::BTreeMap;

/// How long after its end a sale's keys are kept: so long is a key's first answer given again. An hour more, for
/// clocks that differ.
const KEPT: TimeDelta = TimeDelta::hours(25);
/// Half of that hour: so much earlier is a sale left alone.
const CLOCKS: TimeDelta = TimeDelta::minutes(30);
/// Shoppers whose keys are removed in one step, and steps in one run for each sale.
const PAGE_MAX: i64 = 1000;
const PAGES_MAX: usize = 100_000;

/// Whether a sale's keys are about to be removed, by whoever's clock: nothing is sold, lent or rebuilt any more.
#[must_use]
pub fn is_leaving(sale: &Sale) -> bool {
    sale.ends_at < Utc::now() - KEPT + CLOCKS
}

/// Removes what is due; returns how many sales that were.
///
/// # Errors
/// A fault leaves the rest for the next run.
pub async fn retire_ended(app: &App) -> Result<usize, Fault> {
    let mut tally = Tally::default();
    tally.note(app.ledger.forget_alerts().await.map(|()| 0));
    tally.note(app.ledger.forget_actions().await.map(|()| 0));
    tally.note(app.ledger.forget_sessions().await.map(|()| 0));
    tally.note(app.ledger.forget_outages().await.map(|()| 0));
    tally.note(forget_refused(app).await.map(|()| 0));
    for id in app.ledger.retirable(Utc::now() - KEPT).await? {
        tally.note(retire(app, id).await);
    }
    tally.finish()
}

/// Messages that the stock has refused, and that no operator has seen to for a day, keep no sale in Redis.
async fn forget_refused(app: &App) -> Result<(), Fault> {
    for (sale, messages) in app.ledger.forget_refused(Utc::now() - KEPT).await? {
        tracing::error!(%sale, messages, "a sale leaves Redis with decisions of the ledger that it had refused");
    }
    Ok(())
}

async fn retire(app: &App, id: SaleId) -> Result<usize, Fault> {
    let Some(sale) = app.sales.fresh(id).await? else {
        return Ok(0);
    };
    let shards: Vec<ShardKey> = (0..sale.shards).map(|shard| ShardKey { sale: id, shard }).collect();
    let standings = app.ledger.standings(&[id]).await?;
    for (key, server) in shards.iter().zip(app.stock.run_ids(&shards).await) {
        let noted = standings.get(&(id, key.shard)).and_then(|it| it.run_id.clone());
        if has_taken_over(&noted.unwrap_or_default(), &server?) {
            // Another server has the keys.
            return Ok(0);
        }
    }
    for (key, events) in shards.iter().zip(app.stock.undrained(&shards).await?) {
        let known = standings.get(&(id, key.shard)).map_or(0, |it| it.epoch);
        if events > 0 && app.stock.last_event(*key).await?.epoch >= known {
            return Ok(0);
        }
        if events > 0 {
            // As the drain leaves them: their units have been given to others.
            tracing::error!(sale = %id, shard = key.shard, events, "orders of a life that is over leave Redis; they are lost");
            app.stock.forget_buyers(&[(*key, None)]).await?;
        }
    }
    // Those whose orders the ledger could not store are not among its shoppers.
    let spoilt = app.ledger.shards_with_dead_letters(id).await?;
    let spoilt: Vec<(ShardKey, Option<i64>)> = spoilt
        .into_iter()
        .map(|shard| (ShardKey { sale: id, shard }, None))
        .collect();
    app.stock.forget_buyers(&spoilt).await?;
    let mut last = None;
    for _ in 0..PAGES_MAX {
        let page = app.ledger.shoppers(id, last.as_ref(), PAGE_MAX).await?;
        let Some((_, user)) = page.last() else {
            for shard in 0..sale.shards {
                app.stock.retire_shard(&sale, shard).await?;
            }
            app.ledger.retire(id).await?;
            tracing::info!(sale = %id, "a sale that ended a day ago has left Redis");
            return Ok(1);
        };
        last = Some(user.clone());
        let mut by_shard: BTreeMap<u16, Vec<UserId>> = BTreeMap::new();
        for (shard, user) in page {
            by_shard.entry(shard).or_default().push(user);
        }
        for (shard, users) in by_shard {
            app.stock.retire_buyers(ShardKey { sale: id, shard }, &users).await?;
        }
    }
    Ok(0)
}
