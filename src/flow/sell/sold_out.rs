//! Sold out: answers requests for an item of which nothing is left, without a script and without a write.
//!
//! First comes a proof that too few units were free at a moment after the request came. One proof serves all that wait
//! when its survey begins. Then one reading of all their rows finds the keys that have an order, the bans and the full
//! windows. In this order no copy of a request that got the last unit is missed. Whoever may get something asks the
//! script instead.
//!
//! No row counts these requests. This process does, so that an account gains nothing by hammering until units return.
//! A crash forgets the counts, and nothing else.

use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, Sku, UserId};
use crate::domain::purchase::Refusal;
use crate::domain::sale::{PurchaseRate, Sale};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::sell::shortage::{Desk, Turn};
use crate::stock::keys::ShardKey;
use crate::stock::read_shard::Asking;
use crate::stock::record::BuyerStanding;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// Turns that a request waits for before it asks the script after all. A turn ends early when its client leaves.
const TURNS_MAX: u32 = 8;
/// How long a request waits for the proof and the reading. The script may take a second after that.
const WAIT_MAX: Duration = Duration::from_millis(800);
/// Requests that wait at one item's desk. Further ones ask the script.
const WAITING_MAX: usize = 20_000;
/// Accounts whose requests one item's desk counts. With more, those whose windows are over are forgotten; then all.
const ACCOUNTS_MAX: usize = 50_000;

/// A request for an item that was sold out a moment ago.
#[derive(Debug, Clone, Copy)]
pub(in crate::flow) struct LateRequest<'a> {
    pub(in crate::flow) sale: &'a Sale,
    /// The item's position in the sale.
    pub(in crate::flow) item: u16,
    pub(in crate::flow) sku: &'a Sku,
    pub(in crate::flow) quantity: u32,
    pub(in crate::flow) user: &'a UserId,
    pub(in crate::flow) order: OrderId,
    pub(in crate::flow) home: ShardKey,
}

/// The requests that wait for the next proof, and what their accounts have asked before.
#[derive(Default)]
pub(in crate::flow) struct Queue {
    waiting: Mutex<Vec<Waiting>>,
    counted: Mutex<HashMap<UserId, Window>>,
}

/// The times of an account's requests, each with the last bytes of its order's id, oldest first.
type Window = Vec<(Millis, [u8; 6])>;

struct Waiting {
    asking: Asking,
    quantity: i64,
    answer: oneshot::Sender<Found>,
}

/// What a turn found for a request.
enum Found {
    /// Too few units were free, and then the row said this.
    Nothing(BuyerStanding),
    /// Nothing is certain: the script decides.
    Unsure,
}

impl Queue {
    fn join(&self, request: &LateRequest<'_>) -> oneshot::Receiver<Found> {
        let (answer, answered) = oneshot::channel();
        let asking = Asking {
            home: request.home,
            user: request.user.clone(),
            order: request.order,
        };
        let quantity = i64::from(request.quantity);
        let mut waiting = locked(&self.waiting);
        if waiting.len() >= WAITING_MAX {
            // Clients that leave before the next turn must not fill the memory.
            waiting.retain(|it| !it.answer.is_closed());
        }
        if waiting.len() < WAITING_MAX {
            waiting.push(Waiting {
                asking,
                quantity,
                answer,
            });
        }
        answered
    }

    /// Counts a request in its account's window, beside those that its row counts. Returns how long the window is full.
    /// A repeated request counts once, and a refused one not at all.
    fn count(&self, rate: &PurchaseRate, user: &UserId, order: OrderId, standing: &BuyerStanding) -> Option<Millis> {
        let (now, member) = (standing.now, order.window_member());
        let is_recent = |(at, _): &(Millis, [u8; 6])| *at > now - rate.window_ms;
        let mut counted = locked(&self.counted);
        if counted.len() >= ACCOUNTS_MAX {
            counted.retain(|_, window| window.last().is_some_and(is_recent));
            if counted.len() >= ACCOUNTS_MAX {
                counted.clear();
            }
        }
        let own = counted.entry(user.clone()).or_default();
        own.retain(is_recent);
        let row = standing.window.iter().filter(|it| is_recent(it));
        let row: Window = row
            .filter(|(_, it)| own.iter().all(|(_, known)| known != it))
            .copied()
            .collect();
        let all = || own.iter().chain(&row);
        if all().any(|(_, it)| *it == member) {
            return None;
        }
        if all().count() >= limit(rate) {
            return all().map(|(at, _)| at + rate.window_ms - now).min();
        }
        own.push((now, member));
        None
    }

    /// Whether this process alone has counted as many other requests of the account as its window takes.
    fn is_full(&self, rate: &PurchaseRate, user: &UserId, order: OrderId) -> bool {
        let member = order.window_member();
        let counted = locked(&self.counted);
        let own = counted.get(user).map_or(&[][..], Vec::as_slice);
        own.len() >= limit(rate) && own.iter().all(|(_, it)| *it != member)
    }
}

fn limit(rate: &PurchaseRate) -> usize {
    usize::try_from(rate.limit).unwrap_or(usize::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No step under these locks can leave a value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The refusal of a request for an item that was sold out a moment ago, if it still is. `None` says that the script must
/// decide.
///
/// # Errors
/// `Unavailable` when Redis does not answer soon. No script has seen the request.
pub(in crate::flow) async fn refuse(app: &App, request: &LateRequest<'_>) -> Result<Option<Refusal>, Fault> {
    let LateRequest {
        sale, item, quantity, ..
    } = *request;
    let Some(desk) = app.shortages.without(sale.id, item, quantity).await else {
        return Ok(None);
    };
    let began = Instant::now();
    let refused = timeout(WAIT_MAX, Box::pin(refused(app, &desk, request)));
    let Ok(refused) = refused.await else {
        return Err(Fault::Unavailable("Redis did not answer in time".to_owned()));
    };
    if refused.is_some() {
        app.metrics.shortages.of(["sold_out"]).inc();
        app.metrics.shortage_duration.observe(began.elapsed());
    }
    Ok(refused)
}

async fn refused(app: &App, desk: &Desk, request: &LateRequest<'_>) -> Option<Refusal> {
    let LateRequest { sale, user, order, .. } = *request;
    let (standing, otherwise) = match next_found(app, desk, request).await {
        Found::Nothing(standing) => (standing, Some(Refusal::SoldOut)),
        // Units may be free. Whoever has hammered until now must wait all the same.
        Found::Unsure if desk.queue.is_full(&sale.purchase_rate, user, order) => {
            (app.stock.buyer_standing(request.home, user, order).await.ok()?, None)
        }
        Found::Unsure => return None,
    };
    if standing.has_order || standing.left.is_some() || !standing.is_open {
        return None;
    }
    if standing.is_banned {
        return Some(Refusal::Banned);
    }
    let full = desk.queue.count(&sale.purchase_rate, user, order, &standing);
    full.map_or(otherwise, |wait_ms| Some(Refusal::RateLimited { wait_ms }))
}

/// What the next turn finds. One of the requests that wait has the turn, for all of them.
async fn next_found(app: &App, desk: &Desk, request: &LateRequest<'_>) -> Found {
    for _ in 0..TURNS_MAX {
        let mut answered = desk.queue.join(request);
        let turn = tokio::select! {
            biased;
            found = &mut answered => match found {
                Ok(found) => return found,
                // The turn ended early.
                Err(_) => continue,
            },
            turn = desk.turn() => turn,
        };
        if let Ok(found) = answered.try_recv() {
            return found;
        }
        answer_all(app, desk, turn, request).await;
        if let Ok(found) = answered.try_recv() {
            return found;
        }
    }
    Found::Unsure
}

/// Answers all requests that wait when the survey begins.
async fn answer_all(app: &App, desk: &Desk, mut turn: Turn<'_>, one: &LateRequest<'_>) {
    turn.begin().await;
    let mut waiting = std::mem::take(&mut *locked(&desk.queue.waiting));
    // Some have been answered by their own shard, or their clients have left.
    waiting.retain(|it| !it.answer.is_closed());
    let Some(most) = waiting.iter().map(|it| it.quantity).max() else {
        return;
    };
    let free = turn.prove(app, one.sale, one.sku, most).await;
    let (mut asking, mut answers) = (Vec::new(), Vec::new());
    for it in waiting {
        if free.is_some_and(|free| free < it.quantity) {
            asking.push(it.asking);
            answers.push(it.answer);
        } else {
            // The client may have left.
            let _gone = it.answer.send(Found::Unsure);
        }
    }
    let standings = app.stock.buyer_standings(&asking).await;
    for (answer, standing) in answers.into_iter().zip(standings) {
        let _gone = answer.send(standing.map_or(Found::Unsure, Found::Nothing));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: PurchaseRate = PurchaseRate {
        limit: 2,
        window_ms: 1000,
    };

    fn order(number: u8) -> OrderId {
        OrderId(uuid::Uuid::from_bytes([number; 16]))
    }

    /// How long ada must wait with this order at this moment, if her row counts these requests.
    fn count(queue: &Queue, number: u8, now: Millis, row: &[(Millis, u8)]) -> Option<Millis> {
        let window = row.iter().map(|(at, it)| (*at, order(*it).window_member()));
        let standing = BuyerStanding {
            window: window.collect(),
            now,
            ..BuyerStanding::default()
        };
        queue.count(&RATE, &"ada".parse().unwrap(), order(number), &standing)
    }

    #[test]
    fn a_window_takes_its_limit_of_different_requests_wherever_they_are_counted() {
        let queue = Queue::default();
        assert_eq!(count(&queue, 1, 5000, &[]), None);
        assert_eq!(count(&queue, 1, 5100, &[]), None, "a repeated request");
        assert_eq!(
            count(&queue, 2, 5100, &[(3000, 7), (5050, 3)]),
            Some(900),
            "the row counts one"
        );
        assert_eq!(count(&queue, 3, 5100, &[(5050, 3)]), None, "the row counts this one");
        assert_eq!(count(&queue, 2, 5100, &[(5050, 1)]), None, "both count the same one");
        assert_eq!(count(&queue, 3, 5100, &[]), Some(900), "a refused one counts nowhere");
        assert_eq!(count(&queue, 3, 6000, &[]), None, "the first is a window old");

        let ada = "ada".parse().unwrap();
        assert!(queue.is_full(&RATE, &ada, order(4)) && !queue.is_full(&RATE, &ada, order(3)));
        assert!(!queue.is_full(&RATE, &"bob".parse().unwrap(), order(4)));
    }
}
