//! Retire: remove a sale's keys from Redis a day after it ended or was closed, when nothing of it is open. From then
//! on only the ledger has the sale. Postgres's clock decides, once the ledger has a note that the sale is also over by
//! the slowest clock of Redis. Without that note, a clock of Postgres that is ahead would take an open sale from Redis.
//!
//! The shards that answer are removed together, once each of them is drained, has no gap and nothing open in the
//! ledger. A gap puts the whole off by half an hour, in which the sale is reconciled. A silent shard is left out: its keys stay until it answers and passes the same checks. The sale is retired
//! with its last shard.
//!
//! The steps are, in this order:
//! - Remove the rows of a page of shoppers, then note the page's last shopper and the shards in the ledger.
//! - After the last page, remove the other keys of these shards, then note these shards as retired.
//!
//! So any worker goes on where the last one stopped, and no two remove the same page. A crash between two steps leaves
//! keys that the next run removes, or removed keys that the next run removes once more.

use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::Sale;
use crate::domain::time::from_millis;
use crate::flow::recover::gap;
use crate::flow::{App, RunTotals, rotate_start};
use crate::ledger::recover::standing::{ShardStanding, ShardStandings};
use crate::stock::keys::ShardKey;
use futures_util::{StreamExt as _, TryStreamExt as _};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Sales that are read in one step.
const SALES_MAX: i64 = 1000;
/// Shoppers whose keys are removed in one step.
const PAGE_MAX: i64 = 1000;
/// Steps for one sale before the next sale has its turn.
const PAGES_MAX: usize = 100;
/// Shards whose shoppers are removed at once.
const SHARDS_AT_ONCE: usize = 8;
/// A run starts no new turn after this.
const RUN_MAX: Duration = Duration::from_secs(45);

enum Retirement {
    Done,
    More,
    /// The sale or its silent shards have to wait, or another worker is removing the sale.
    Later,
}

/// Removes the sales that are due. Returns their number.
pub async fn retire_ended(app: &App) -> Result<usize, Fault> {
    retire_by_pages(app, SALES_MAX).await
}

/// Like [`retire_ended`], reading so many sales in one step. Fails with the first fault, or that of a shard that does
/// not answer. The run goes on with the other sales and shards.
pub async fn retire_by_pages(app: &App, sales_max: i64) -> Result<usize, Fault> {
    let mut totals = RunTotals::default();
    totals.note(forget_refused(app).await.map(|()| 0));
    totals.note(app.ledger.retry_unreadable().await.map(|_| 0));
    totals.note(note_over(app).await.map(|()| 0));
    let run = Instant::now();
    let mut due = Vec::new();
    let mut last = 0;
    loop {
        let page = app.ledger.retirable(last, sales_max).await?;
        let Some((number, _)) = page.last() else { break };
        last = *number;
        due.extend(page.into_iter().map(|(_, sale)| sale));
    }
    // Sales that have to wait cost time, too. They must not keep the same others from every run.
    rotate_start(&mut due);
    let mut due = VecDeque::from(due);
    while let Some(id) = due.pop_front().filter(|_| run.elapsed() < RUN_MAX) {
        match retire(app, id, &mut totals).await {
            Ok(Retirement::Done) => totals.note(Ok(1)),
            Ok(Retirement::More) => due.push_back(id),
            Ok(Retirement::Later) => {}
            Err(fault) => totals.note(Err(fault)),
        }
    }
    totals.finish()
}

async fn note_over(app: &App) -> Result<(), Fault> {
    let now = from_millis(app.stock.slowest_clock().await?);
    app.ledger.note_over(now).await
}

/// Drops messages that the stock has refused and no operator has handled for a day, so that they keep no sale in
/// Redis.
async fn forget_refused(app: &App) -> Result<(), Fault> {
    for (sale, messages) in app.ledger.forget_refused().await? {
        tracing::error!(%sale, messages, "a sale leaves Redis with decisions that its shards refused");
    }
    Ok(())
}

/// Removes the shards of a sale that answer, as far as one turn goes. Notes the fault of a silent shard in the totals.
async fn retire(app: &App, id: SaleId, totals: &mut RunTotals) -> Result<Retirement, Fault> {
    let Some(sale) = app.sales.fresh(id).await? else {
        return Ok(Retirement::Later);
    };
    let left = app.ledger.unretired(id).await?;
    let leaving = LeavingSale {
        app,
        sale: &sale,
        standings: app.ledger.standings(&[id]).await?,
    };
    let Some(answering) = leaving.answering(&left, totals).await? else {
        return Ok(Retirement::Later);
    };
    let shards: Vec<u16> = answering.iter().map(|key| key.shard).collect();
    if Box::pin(gap::is_any(app, &sale, &shards)).await? {
        // Only the shoppers' rows have the orders that the ledger has lost. A reconcile brings them back.
        tracing::warn!(sale = %id, "a sale stays in Redis for another half an hour: the ledger has lost orders of it");
        app.ledger.put_off_retirement(id).await?;
        return Ok(Retirement::Later);
    }
    if !leaving.are_drained(&answering).await? {
        return Ok(Retirement::Later);
    }
    for _ in 0..PAGES_MAX {
        let Some(page) = app.ledger.next_to_retire(id, &shards, PAGE_MAX).await? else {
            return Ok(Retirement::Later);
        };
        if page.shoppers.is_empty() {
            let removed = page.shards()?;
            remove_rest(app, &sale, &removed).await?;
            if page.retired().await? {
                tracing::info!(sale = %id, "a sale that ended a day ago has left Redis");
                return Ok(Retirement::Done);
            }
            tracing::info!(sale = %id, shards = ?removed, "shards of a sale that ended a day ago have left Redis");
            continue;
        }
        leaving.remove_rows(&page.shoppers).await?;
        page.removed().await?;
    }
    Ok(Retirement::More)
}

/// A sale that leaves Redis.
struct LeavingSale<'a> {
    app: &'a App,
    sale: &'a Sale,
    standings: ShardStandings,
}

impl LeavingSale<'_> {
    fn standing(&self, shard: u16) -> Option<&ShardStanding> {
        self.standings.get(&(self.sale.id, shard))
    }

    /// The shards that answer, of those that Redis still has. `left` also says of each whether something of it is open.
    /// Notes the fault of a silent shard in the totals. `None` if the sale has to wait.
    async fn answering(&self, left: &[(u16, bool)], totals: &mut RunTotals) -> Result<Option<Vec<ShardKey>>, Fault> {
        let keys: Vec<ShardKey> = left
            .iter()
            .map(|(shard, _)| ShardKey::new(self.sale.id, *shard))
            .collect();
        let mut answering = Vec::new();
        for ((key, server), (_, is_open)) in keys.iter().zip(self.app.stock.servers(&keys).await).zip(left) {
            let server = match server {
                Err(fault @ Fault::Unavailable(_)) => {
                    totals.note(Err(fault));
                    continue;
                }
                server => server?,
            };
            let noted = self.standing(key.shard).and_then(|it| it.noted.server());
            if *is_open || noted.is_some_and(|noted| noted.has_taken_over_from(&server)) {
                // The shard has to answer for something, or another server has its keys.
                return Ok(None);
            }
            answering.push(*key);
        }
        Ok(Some(answering))
    }

    /// Whether the ledger has all events of these shards that it will store. Removes the rows of a shard whose other
    /// events it never stores.
    async fn are_drained(&self, answering: &[ShardKey]) -> Result<bool, Fault> {
        let (stock, id) = (&self.app.stock, self.sale.id);
        for (key, events) in answering.iter().zip(stock.undrained(answering).await?) {
            let known = self.standing(key.shard).map_or(0, |it| it.epoch);
            if events > 0 && stock.last_event(*key).await?.epoch >= known {
                self.app.permits.need(id);
                return Ok(false);
            }
            if events > 0 {
                // The drain never takes these events in: their units have gone to others.
                tracing::error!(sale = %id, shard = key.shard, events, "orders of an old generation are lost with the sale");
                stock.forget_buyers(&[(*key, None)]).await?;
            }
        }
        Ok(true)
    }

    /// Removes the rows of these shoppers, each with the home shard.
    async fn remove_rows(&self, shoppers: &[(u16, UserId)]) -> Result<(), Fault> {
        let (stock, id) = (&self.app.stock, self.sale.id);
        let mut by_shard: BTreeMap<u16, Vec<UserId>> = BTreeMap::new();
        for (shard, user) in shoppers {
            by_shard.entry(*shard).or_default().push(user.clone());
        }
        futures_util::stream::iter(by_shard)
            .map(|(shard, users)| async move { stock.retire_buyers(ShardKey::new(id, shard), &users).await })
            .buffer_unordered(SHARDS_AT_ONCE)
            .try_collect::<()>()
            .await
    }
}

/// Removes what is left of these shards after their shoppers.
async fn remove_rest(app: &App, sale: &Sale, shards: &[u16]) -> Result<(), Fault> {
    // Shoppers whose orders the ledger could not store are not among the sale's shoppers.
    let spoilt = app.ledger.shards_with_dead_letters(sale.id).await?;
    let spoilt: Vec<(ShardKey, Option<i64>)> = spoilt
        .into_iter()
        .filter(|shard| shards.contains(shard))
        .map(|shard| (ShardKey::new(sale.id, shard), None))
        .collect();
    app.stock.forget_buyers(&spoilt).await?;
    for shard in shards {
        app.stock.retire_shard(sale, *shard).await?;
    }
    Ok(())
}
