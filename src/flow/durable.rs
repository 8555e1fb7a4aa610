//! Durable: what an order must have reached before its shopper hears of it, by the sale's choice.
//!
//! A crash while somebody waits leaves an order that its key finds again; the answer to that waits in the same way.
//! Nothing here is a decision, so nothing has to be finished by anybody.

use super::App;
use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId};
use crate::domain::order::{Order, OrderState};
use crate::domain::sale::{Durability, Lifecycle, Sale};
use crate::stock::keys::ShardKey;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

/// How long an order is waited for. The API answers within two seconds, and the script has taken its part.
const WAIT_MAX: Duration = Duration::from_millis(1500);
/// After so long without news, orders that are waited for are looked for all the same: news can be lost.
const NEWS_MAX: Duration = Duration::from_millis(500);
/// How long one look may take.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Orders whose shoppers wait until the ledger has them, and the news of its commits.
#[derive(Default)]
pub struct Arrivals {
    waiting: Mutex<HashMap<OrderId, Vec<oneshot::Sender<Order>>>>,
    commits: AtomicU64,
    look: Notify,
}

impl Arrivals {
    /// How many commits this process has heard of: what it has not heard of by now, it will.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// A drain has committed orders that somebody may wait for.
    pub(super) fn committed(&self) {
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.look.notify_one();
    }

    /// Waits for the ledger to have an order that may have been committed after `heard` commits; `None`: at any time.
    async fn arrival(&self, id: OrderId, heard: Option<u64>) -> Result<Order, Fault> {
        let (found, arrival) = oneshot::channel();
        self.waiting().entry(id).or_default().push(found);
        if heard != Some(self.commits()) {
            self.look.notify_one();
        }
        match timeout(WAIT_MAX, arrival).await {
            Ok(Ok(order)) => Ok(order),
            _ => Err(Fault::Unavailable(
                "the order is not in the ledger yet; the same key tells later".to_owned(),
            )),
        }
    }

    /// The orders that are still waited for.
    fn wanted(&self) -> Vec<OrderId> {
        let mut waiting = self.waiting();
        waiting.retain(|_, shoppers| {
            shoppers.retain(|shopper| !shopper.is_closed());
            !shoppers.is_empty()
        });
        waiting.keys().copied().collect()
    }

    fn arrived(&self, order: &Order) {
        for shopper in self.waiting().remove(&order.id).into_iter().flatten() {
            // It may have given up.
            let _gone = shopper.send(order.clone());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<OrderId, Vec<oneshot::Sender<Order>>>> {
        // No step under this lock can leave the map half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until an accepted order is as durable as its sale promises; `heard` is what [`Arrivals::commits`] said
/// before it was accepted, if it was just now. `None`: the ledger refused the order, so its shopper has none.
///
/// # Errors
/// `Unavailable` when that takes too long: the order is there, and its key tells later what has become of it.
pub(super) async fn kept(
    app: &App,
    sale: &Sale,
    home: ShardKey,
    order: Order,
    heard: Option<u64>,
) -> Result<Option<Order>, Fault> {
    match sale.durability {
        Durability::Redis => Ok(Some(order)),
        Durability::Postgres if bugs::has("nobody waits for the ledger") => Ok(Some(order)),
        Durability::Replica => {
            let buyer = app.stock.replicated_buyer(home, &order.user).await?;
            if buyer.orders.iter().any(|(id, _)| *id == order.id) {
                Ok(Some(order))
            } else {
                // Another Redis answers now than the one that accepted it.
                Err(Fault::Unavailable("Redis no longer has the order".to_owned()))
            }
        }
        // The ledger could not store it, and has told the shard.
        Durability::Postgres if order.state == OrderState::Revoked => Ok(None),
        Durability::Postgres => Ok(upheld(sale, app.arrivals.arrival(order.id, heard).await?)),
    }
}

/// An order of the ledger as an answer to its purchase. Where the answer waits for the ledger, a revoked order was
/// never acknowledged: its units had been sold before.
pub(super) fn upheld(sale: &Sale, order: Order) -> Option<Order> {
    let refused = sale.durability == Durability::Postgres && order.state == OrderState::Revoked;
    (!refused).then_some(order)
}

/// What these servers lack for a durability, and what to do about it.
///
/// # Errors
/// `Unavailable` when Redis does not answer.
pub async fn lacking(app: &App, durability: Durability) -> Result<Option<String>, Fault> {
    if durability != Durability::Replica || app.stock.replicas().await? > 0 {
        return Ok(None);
    }
    Ok(Some(
        "durability \"replica\" needs a replica of Redis, on a cluster one of each primary that has slots, and INFO \
         replication shows none online; connect one with REPLICAOF or CLUSTER REPLICATE, or choose \"redis\" or \
         \"postgres\""
            .to_owned(),
    ))
}

/// What these servers lack for a sale that is to be loaded.
///
/// # Errors
/// `Unavailable` when a server does not answer.
pub async fn lacking_for(app: &App, id: SaleId) -> Result<Option<String>, Fault> {
    match app.ledger.sale(id).await? {
        Some(sale) if sale.lifecycle == Lifecycle::Draft => lacking(app, sale.durability).await,
        _ => Ok(None),
    }
}

/// Tells shoppers who wait that the ledger has their orders, for as long as the process runs.
pub async fn watch(app: &App) {
    tokio::join!(hear(app), look(app));
}

/// Hears of the commits of all processes.
async fn hear(app: &App) {
    loop {
        if let Ok(mut news) = app.ledger.news().await {
            // What was committed before could not be heard.
            app.arrivals.committed();
            while news.next().await.is_ok() {
                app.arrivals.committed();
            }
        }
        sleep(NEWS_MAX).await;
    }
}

/// Looks for all orders that are waited for, in one query, after each commit.
async fn look(app: &App) {
    loop {
        // Without news, now and then all the same.
        let _no_news = timeout(NEWS_MAX, app.arrivals.look.notified()).await;
        let wanted = app.arrivals.wanted();
        if wanted.is_empty() {
            continue;
        }
        // Without an answer the shoppers go on waiting, each as long as it may.
        if let Ok(Ok(orders)) = timeout(LOOK_MAX, app.ledger.orders(&wanted)).await {
            orders.iter().for_each(|order| app.arrivals.arrived(order));
        }
    }
}
