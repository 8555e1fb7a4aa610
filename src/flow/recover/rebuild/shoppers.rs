//! The shoppers of rebuilt shards. They are read from the ledger's orders, page by page, while earlier pages are
//! written.

use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::{SaleId, Sku, UserId};
use crate::domain::order::OrderState;
use crate::domain::sale::Sale;
use crate::domain::time::Millis;
use crate::flow::App;
use crate::ledger::recover::rebuild::{RebuildClaim, RestoredOrder};
use crate::stock::keys::ShardKey;
use crate::stock::record::{BuyerRecord, OrderRecord};
use futures_util::TryStreamExt;
use std::collections::{BTreeMap, HashMap};
use tokio::sync::mpsc;
use tokio::task::JoinError;

/// Shoppers written in one round trip.
const BUYERS_MAX: usize = 500;
/// Round trips at once.
const WRITES_MAX: usize = 8;
/// Pages that are read ahead: some ten megabytes.
const PAGES_MAX: usize = 64;

/// The held and sold units of the rebuilt shards' orders, by shard and SKU.
#[derive(Default)]
pub(super) struct LiveUnits {
    pub(super) units: BTreeMap<(u16, Sku), (i64, i64)>,
    /// The number of orders in any state.
    pub(super) orders: usize,
}

type BuyerPage = (u16, Vec<(UserId, BuyerRecord)>);

pub(super) async fn restore_buyers(
    app: &App,
    sale: &Sale,
    claim: &mut RebuildClaim,
    epochs: &BTreeMap<u16, i64>,
) -> Result<LiveUnits, Fault> {
    let now = app.stock.now().await?;
    // Postgres sorts the next shard's orders while Redis still writes this one's.
    let (pages, read) = mpsc::channel(PAGES_MAX);
    let shards: Vec<u16> = epochs.keys().copied().collect();
    let (live, ()) = tokio::try_join!(
        read_buyers(sale, claim, &shards, now, pages),
        write_buyers(app, sale.id, epochs, read)
    )?;
    Ok(live)
}

async fn read_buyers(
    sale: &Sale,
    claim: &mut RebuildClaim,
    shards: &[u16],
    now: Millis,
    pages: mpsc::Sender<BuyerPage>,
) -> Result<LiveUnits, Fault> {
    let positions: HashMap<&Sku, u16> = sale.items.iter().map(|item| &item.sku).zip(0..).collect();
    let mut live = LiveUnits::default();
    for shard in shards {
        let mut page = Vec::new();
        let mut current: Option<(UserId, Vec<RestoredOrder>)> = None;
        let mut orders = std::pin::pin!(claim.orders(*shard));
        loop {
            let order = orders.try_next().await?;
            let same = matches!((&current, &order), (Some((user, _)), Some(order)) if *user == order.user);
            if !same && let Some((user, orders)) = current.take() {
                page.push((user, buyer(sale, &positions, orders, now)?));
            }
            if page.len() == BUYERS_MAX || (order.is_none() && !page.is_empty()) {
                // The writer reports its own fault.
                if pages.send((*shard, std::mem::take(&mut page))).await.is_err() {
                    return Err(Fault::Unavailable("the shoppers are not written any more".to_owned()));
                }
            }
            let Some(order) = order else {
                break;
            };
            live.orders += 1;
            let cell = live.units.entry((*shard, order.sku.clone())).or_default();
            match order.state {
                OrderState::Reserved if bugs::has("a rebuilding forgets what is held") => {}
                OrderState::Reserved => cell.0 += i64::from(order.quantity),
                OrderState::Paid => cell.1 += i64::from(order.quantity),
                OrderState::Cancelled | OrderState::Expired | OrderState::Revoked => {}
            }
            match &mut current {
                Some((_, orders)) => orders.push(order),
                None => current = Some((order.user.clone(), vec![order])),
            }
        }
    }
    Ok(live)
}

async fn write_buyers(
    app: &App,
    sale: SaleId,
    epochs: &BTreeMap<u16, i64>,
    mut pages: mpsc::Receiver<BuyerPage>,
) -> Result<(), Fault> {
    let mut writes = tokio::task::JoinSet::new();
    let written = |outcome: Option<Result<Result<(), Fault>, JoinError>>| match outcome {
        Some(outcome) => outcome.map_err(|error| Fault::Bug(error.to_string()))?,
        None => Ok(()),
    };
    while let Some((shard, page)) = pages.recv().await {
        if writes.len() == WRITES_MAX {
            written(writes.join_next().await)?;
        }
        let (stock, key) = (app.stock.clone(), ShardKey::new(sale, shard));
        let epoch = epochs.get(&shard).copied().unwrap_or_default();
        writes.spawn(async move { stock.restore_buyers(key, epoch, &page).await });
    }
    while !writes.is_empty() {
        written(writes.join_next().await)?;
    }
    Ok(())
}

/// A shopper's row as the ledger knows it. Its window lacks requests that were refused.
fn buyer(
    sale: &Sale,
    positions: &HashMap<&Sku, u16>,
    mut orders: Vec<RestoredOrder>,
    now: Millis,
) -> Result<BuyerRecord, Fault> {
    orders.sort_by_key(|order| order.event);
    let mut buyer = BuyerRecord::default();
    for order in orders {
        let position = positions.get(&order.sku).copied();
        let item = position.ok_or_else(|| Fault::Bug(format!("sale {} has no item {}", sale.id, order.sku)))?;
        let kept = matches!(order.state, OrderState::Reserved | OrderState::Paid);
        let units = if kept { order.quantity } else { 0 };
        match buyer.units.iter_mut().find(|(of, _)| *of == item) {
            Some((_, all)) => *all += units,
            None => buyer.units.push((item, units)),
        }
        if order.created_at > now - sale.purchase_rate.window_ms {
            let mut member = [0; 6];
            member.copy_from_slice(&order.id.0.as_bytes()[10..]);
            buyer.window.push((order.created_at, member));
        }
        let record = OrderRecord {
            state: order.state,
            item,
            quantity: order.quantity,
            created_at: order.created_at,
            resolved_at: order.resolved_at,
            event: Some(order.event),
        };
        buyer.orders.push((order.id, record));
    }
    Ok(buyer)
}
