//! Durability: what an order must have reached before its shopper is answered, by the sale's choice.
//!
//! A crash while a shopper waits leaves an order that its key finds again; the answer to that waits in the same way.
//! This flow decides nothing, so nothing has to be finished.

use crate::bugs;
use crate::domain::deployment::server::ReplicationId;
use crate::domain::fault::Fault;
use crate::domain::ids::OrderId;
use crate::domain::order::event::Position;
use crate::domain::order::{Accepted, Order, OrderState};
use crate::domain::sale::{Durability, Sale};
use crate::flow::App;
use crate::ledger::news::Notification;
use crate::stock::keys::ShardKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// How long a purchase waits for its order. The API answers within two seconds, and the script has taken its part.
const WAIT_MAX: Duration = Duration::from_millis(1500);
/// Without a notification for this long, awaited orders are read all the same: notifications can be lost.
const NEWS_MAX: Duration = Duration::from_millis(500);
/// How long one reading may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Orders whose shoppers wait until the ledger has them, and the notifications of commits.
pub struct Arrivals {
    waiting: Mutex<HashMap<OrderId, Vec<oneshot::Sender<Accepted>>>>,
    /// Wakes the reading: another process may have committed some of them.
    wanted: Notify,
    /// Wakes the notification of other processes: this one has committed.
    has_committed: Notify,
    /// The name of this process in notifications.
    process: Uuid,
    /// Whether it receives those of other processes.
    hears: AtomicBool,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            wanted: Notify::default(),
            has_committed: Notify::default(),
            process: Uuid::new_v4(),
            hears: AtomicBool::default(),
        }
    }
}

/// An order that the ledger may get. A caller that anticipates it before it is accepted misses no commit.
pub(in crate::flow) struct Expected {
    arrivals: Arc<Arrivals>,
    id: OrderId,
    arrival: oneshot::Receiver<Accepted>,
}

impl Expected {
    /// Waits until the ledger has the order.
    async fn arrived(mut self) -> Result<Accepted, Fault> {
        match timeout(WAIT_MAX, &mut self.arrival).await {
            Ok(Ok(accepted)) => Ok(accepted),
            _ => Err(Fault::Unavailable(
                "the order is not in the ledger yet; repeat with the same key".to_owned(),
            )),
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.arrival.close();
        let mut waiting = self.arrivals.waiting();
        if let Some(shoppers) = waiting.get_mut(&self.id) {
            shoppers.retain(|shopper| !shopper.is_closed());
            if shoppers.is_empty() {
                waiting.remove(&self.id);
            }
        }
    }
}

impl Arrivals {
    /// Notes that this process has committed so many events, which brought these orders.
    pub(in crate::flow) fn committed(&self, events: usize, orders: &[Accepted]) {
        orders.iter().for_each(|accepted| self.arrived(accepted));
        if orders.len() < events {
            // The other orders were there before, or were refused.
            self.wanted.notify_one();
        }
        self.has_committed.notify_one();
    }

    /// Whether this process has a connection on which Postgres notifies it. A notification may still be lost.
    #[must_use]
    pub fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    /// Whether a shopper waits for an order.
    #[must_use]
    pub fn are_awaited(&self) -> bool {
        !self.waiting().is_empty()
    }

    pub(in crate::flow) fn anticipate(self: &Arc<Self>, id: OrderId) -> Expected {
        let (found, arrival) = oneshot::channel();
        self.waiting().entry(id).or_default().push(found);
        Expected {
            arrivals: Arc::clone(self),
            id,
            arrival,
        }
    }

    fn wanted(&self) -> Vec<OrderId> {
        self.waiting().keys().copied().collect()
    }

    fn arrived(&self, accepted: &Accepted) {
        for shopper in self.waiting().remove(&accepted.order.id).into_iter().flatten() {
            // The shopper may have given up.
            let _gone = shopper.send(accepted.clone());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<OrderId, Vec<oneshot::Sender<Accepted>>>> {
        // No step under this lock can leave the map half changed.
        self.waiting.lock()
    }
}

/// How a shard has accepted an order.
pub(in crate::flow) struct Acceptance {
    pub(in crate::flow) event: Option<Position>,
    pub(in crate::flow) by: Option<ReplicationId>,
}

/// Waits until an accepted order is as durable as its sale promises. `expected` was made before the order was
/// accepted, if that was just now.
///
/// Returns the order that counts, and whether it is the one that was `accepted` just now. A copy may have got the key's
/// order on another Redis, even in the same millisecond and with the same event. `None` says that the ledger refused
/// the order, so its shopper has none. Fails with `Unavailable` when that takes too long: the order exists, and its key
/// finds the outcome later.
pub(in crate::flow) async fn kept(
    app: &App,
    sale: &Sale,
    home: ShardKey,
    order: Order,
    accepted: Option<Acceptance>,
    expected: Option<Expected>,
) -> Result<Option<(Order, bool)>, Fault> {
    match sale.durability {
        Durability::Redis => Ok(Some((order, true))),
        Durability::Postgres if bugs::has("nobody waits for the ledger") => Ok(Some((order, true))),
        Durability::Replica => {
            let (buyer, server) = app.stock.replicated_buyer(home, &order.user).await?;
            let mut orders = buyer.orders.into_iter();
            let Some((id, record)) = orders.find(|(id, _)| *id == order.id) else {
                // Another Redis answers now than the one that accepted the order.
                return Err(Fault::Unavailable("Redis no longer has the order".to_owned()));
            };
            let found = (record.event, server.replication_id());
            if accepted.is_some_and(|it| (it.event, it.by) == found) {
                return Ok(Some((order, true)));
            }
            Ok(Some((record.into_order(id, sale, order.user, false)?, false)))
        }
        // The ledger could not store the order, and its shard has that decision.
        Durability::Postgres if order.state == OrderState::Revoked => Ok(None),
        Durability::Postgres => {
            let expected = expected.unwrap_or_else(|| {
                let expected = app.arrivals.anticipate(order.id);
                // The ledger may have it by now.
                app.arrivals.wanted.notify_one();
                expected
            });
            let found = expected.arrived().await?;
            let is_this = accepted.is_some_and(|it| {
                (it.event, it.by) == (Some(found.event), found.by) && found.order.created_at == order.created_at
            });
            Ok(upheld(sale, found.order).map(|order| (order, is_this)))
        }
    }
}

/// An order of the ledger as an answer to its purchase. Where the answer waits for the ledger, a revoked order was
/// never acknowledged: its units had been sold before.
pub(in crate::flow) fn upheld(sale: &Sale, order: Order) -> Option<Order> {
    let refused = sale.durability == Durability::Postgres && order.state == OrderState::Revoked;
    (!refused).then_some(order)
}

/// Answers shoppers who wait once the ledger has their orders, for as long as the process runs.
pub async fn watch(app: &App) {
    tokio::join!(hear(app), poll(app));
}

/// Listens to the notifications of other processes, and wakes the tasks that they concern.
async fn hear(app: &App) {
    let wake = |notification| {
        if matches!(notification, Notification::Committed | Notification::Anything) {
            app.arrivals.wanted.notify_one();
        }
        if matches!(notification, Notification::Changed | Notification::Anything) {
            app.settings_changed.notify_one();
        }
        if matches!(notification, Notification::Raised | Notification::Anything) {
            app.alert_feed.wanted.notify_one();
        }
    };
    // Otherwise the bulletin of each round reports what has changed.
    let depends = || app.arrivals.are_awaited() || !app.bulletins.are_frequent();
    loop {
        if let Ok(mut news) = app.ledger.news().await {
            app.arrivals.hears.store(true, Ordering::Relaxed);
            // Notifications from before this connection were missed.
            wake(Notification::Anything);
            while let Ok(notification) = news.next(app.arrivals.process, depends).await {
                wake(notification);
            }
            app.arrivals.hears.store(false, Ordering::Relaxed);
        }
        sleep(NEWS_MAX).await;
    }
}

/// Notifies other processes of this one's commits, for as long as it runs. Commits that follow each other closely
/// share a notification.
pub async fn notify(app: &App) {
    loop {
        app.arrivals.has_committed.notified().await;
        // A process that misses it reads after a moment.
        let _missed = timeout(ANSWER_MAX, app.ledger.notify_committed(app.arrivals.process)).await;
    }
}

/// Reads all awaited orders in one query, whenever the ledger may have some of them.
async fn poll(app: &App) {
    loop {
        // Without a notification, read now and then all the same.
        let _no_news = timeout(NEWS_MAX, app.arrivals.wanted.notified()).await;
        let wanted = app.arrivals.wanted();
        if wanted.is_empty() {
            continue;
        }
        // Without an answer the shoppers go on waiting, each up to the limit.
        if let Ok(Ok(orders)) = timeout(ANSWER_MAX, app.ledger.accepted(&wanted)).await {
            orders.iter().for_each(|accepted| app.arrivals.arrived(accepted));
        }
    }
}
