//! Preload: give each shard its part of the stock, to the last unit.
//!
//! The ledger's books change first, then the shards, and no shard may sell before all of them are complete. So a shard
//! is never created twice once it could have sold. A crash on the way leaves a sale that does not sell yet. Preloading
//! again, or the scheduler, finishes it.

use crate::crash;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::{Lifecycle, Sale};
use crate::flow::App;
use crate::flow::operate::bans;
use crate::flow::operate::drafts::{Lacking, lacking_for};
use crate::flow::recover::attend::attend;
use crate::ledger::operate::sale::Loading;
use crate::stock::operate::read_shard::ShardReading;
use futures_util::future::join_all;
use std::sync::Arc;

const FIRST_EPOCH: i64 = 1;

/// A loaded sale, and its shards as they are now.
pub type Preloaded = (Arc<Sale>, Vec<ShardReading>);

/// Loads a sale, or finds it loaded, if the servers have what its durability needs; `None` when there is no such sale.
/// A fault leaves a sale that does not sell yet; preloading again goes on.
pub async fn preload(app: &App, id: SaleId) -> Result<Result<Option<Preloaded>, Lacking>, Fault> {
    match lacking_for(app, id).await? {
        Some(lacking) => Ok(Err(lacking)),
        None => Ok(Ok(load(app, id).await?)),
    }
}

/// Loads a sale whatever its durability needs. Fails as [`preload`].
pub async fn load(app: &App, id: SaleId) -> Result<Option<Preloaded>, Fault> {
    let sale = match app.ledger.begin_loading(id).await? {
        Loading::NotFound => return Ok(None),
        Loading::Finished(sale) => sale,
        Loading::Begun(sale) => {
            for shard in 0..sale.shards {
                app.stock.preload(&sale, shard, FIRST_EPOCH).await?;
                crash::point("preload.after_shard");
            }
            let epochs = (0..sale.shards).map(|shard| (shard, FIRST_EPOCH)).collect();
            Box::pin(bans::deliver_all(app, &sale, &epochs, None)).await?;
            crash::point("preload.before_finish");
            let Some(sale) = app.ledger.finish_loading(id).await? else {
                return Ok(None);
            };
            crash::point("preload.after_finish");
            sale
        }
    };
    let sale = Arc::new(sale);
    deliver_state(app, &sale).await?;
    app.sales.changed(&sale);
    Box::pin(attend(app, &sale)).await?;
    let readings = if sale.retired {
        Vec::new()
    } else {
        app.stock.read_shards(&sale).await?
    };
    Ok(Some((sale, readings)))
}

/// Delivers the sale's state to all shards at once. A shard that does not answer keeps no other from it. A fault leaves
/// some to the job `release`, which has a message for each.
pub(in crate::flow) async fn deliver_state(app: &App, sale: &Sale) -> Result<(), Fault> {
    let shards = if sale.is_in_stock() { sale.shards } else { 0 };
    let delivered = join_all((0..shards).map(|shard| app.stock.set_state(sale, shard))).await;
    let stops = sale.lifecycle != Lifecycle::Active;
    delivered.into_iter().try_for_each(|outcome| match outcome {
        // The shard is being rebuilt, or has to be. It does not sell, and gets the state before it does.
        Err(Fault::Incomplete(_)) if stops => Ok(()),
        outcome => outcome,
    })
}
