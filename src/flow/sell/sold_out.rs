//! Sold out: answers requests for an item of which nothing is left, without a script and without a write.
//!
//! First comes a proof that too few units were free at a moment after the request came. One proof serves all that wait
//! when its survey begins. Then one reading of all their rows finds the keys that have an order, the bans and the full
//! windows. So a request whose copy got the last unit finds that order. A request that may still get something asks the
//! script.
//!
//! No row counts these requests. This process does, so that an account gains nothing by hammering until units return.
//! A crash forgets the counts, and nothing else.

use crate::domain::ids::{OrderId, Sku, UserId};
use crate::domain::order::purchase::Refusal;
use crate::domain::sale::fairness::AccountHash;
use crate::domain::sale::{PurchaseRate, Sale};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::sell::late_queue::{Found, LateQueue};
use crate::flow::sell::shortage::{ItemSurveys, Turn};
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::AskedPurchase;
use crate::stock::record::BuyerStanding;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a request waits for a turn's answer, or for the turn.
const WAIT_MAX: Duration = Duration::from_millis(400);
/// How long a turn may take. After both, the script still has a second.
const TURN_MAX: Duration = Duration::from_millis(400);
/// Accounts whose requests are counted.
const ACCOUNTS_MAX: usize = 100_000;

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

/// The times of an account's requests by Redis's clock, each with the last bytes of its order's id, oldest first.
type Window = Vec<(Millis, [u8; 6])>;

/// An account's requests that were refused without a script, and when the last one was.
type Refused = (Window, Instant);

/// The late requests that were refused in this process. With too many accounts, those that ask least are forgotten.
pub struct LateRequests {
    accounts: Cache<AccountHash, Arc<Mutex<Refused>>>,
    /// Spares every purchase a look-up until the first refusal.
    is_used: AtomicBool,
}

impl Default for LateRequests {
    fn default() -> Self {
        Self {
            accounts: Cache::new(ACCOUNTS_MAX),
            is_used: AtomicBool::new(false),
        }
    }
}

impl LateRequests {
    /// Counts a request in its account's window, beside those that its row counts. Returns how long the window is full.
    /// A repeated request counts once, and a refused one not at all.
    fn count(&self, request: &LateRequest<'_>, standing: &BuyerStanding) -> Option<Millis> {
        let account = AccountHash::of(request.sale.id, request.user);
        let empty = || Ok::<_, Infallible>(Arc::new(Mutex::new((Window::new(), Instant::now()))));
        let Ok(counted) = self.accounts.get_or_insert_with(&account, empty);
        self.is_used.store(true, Ordering::Relaxed);
        let mut counted = counted.lock();
        counted.1 = Instant::now();
        let member = request.order.window_member();
        count(&mut counted.0, &request.sale.purchase_rate, member, standing)
    }

    /// Whether this process alone has counted as many other requests of the account as its window takes.
    fn is_full(&self, request: &LateRequest<'_>) -> bool {
        if !self.is_used.load(Ordering::Relaxed) {
            return false;
        }
        let Some(counted) = self.accounts.get(&AccountHash::of(request.sale.id, request.user)) else {
            return false;
        };
        let counted = counted.lock();
        let (window, last) = &*counted;
        let (rate, member) = (&request.sale.purchase_rate, request.order.window_member());
        let is_over = Millis::try_from(last.elapsed().as_millis()).is_ok_and(|age| age >= rate.window_ms);
        !is_over && window.len() >= limit(rate) && window.iter().all(|(_, it)| *it != member)
    }
}

fn count(own: &mut Window, rate: &PurchaseRate, member: [u8; 6], standing: &BuyerStanding) -> Option<Millis> {
    let now = standing.now;
    let is_recent = |(at, _): &(Millis, [u8; 6])| *at > now - rate.window_ms;
    own.retain(is_recent);
    let row = standing.window.iter().filter(|it| is_recent(it));
    let row = row.filter(|(_, it)| own.iter().all(|(_, known)| known != it));
    let mut all: Window = own.iter().chain(row).copied().collect();
    if all.iter().any(|(_, it)| *it == member) {
        return None;
    }
    if all.len() >= limit(rate) {
        all.sort_unstable();
        // Then one fewer than the limit is left.
        let (at, _) = all.get(all.len() - limit(rate))?;
        return Some(at + rate.window_ms - now);
    }
    own.push((now, member));
    None
}

fn limit(rate: &PurchaseRate) -> usize {
    usize::try_from(rate.limit).unwrap_or(usize::MAX)
}

/// The refusal of a request for an item that was sold out a moment ago, if it still is. `None` says that the script must
/// decide.
pub(in crate::flow) async fn refuse(app: &App, request: &LateRequest<'_>) -> Option<Refusal> {
    let LateRequest {
        sale, item, quantity, ..
    } = *request;
    let (late, began) = (&app.late_requests, Instant::now());
    let found = match app.shortages.without(sale.id, item, quantity) {
        Some(surveys) => Box::pin(next_found(app, &surveys, request)).await,
        None => Found::Unsure,
    };
    let (standing, otherwise) = match found {
        Found::Nothing(standing) => (standing, Some(Refusal::SoldOut)),
        // Units may be free, and an account that has hammered until now must wait.
        Found::Unsure if late.is_full(request) => {
            let read = app.stock.buyer_standing(request.home, request.user, request.order);
            (timeout(TURN_MAX, read).await.ok()?.ok()?, None)
        }
        Found::Unsure => return None,
    };
    if standing.has_order || standing.left.is_some() || !standing.is_open {
        return None;
    }
    if standing.ban.is_some() {
        return standing.ban;
    }
    if let Some(wait_ms) = late.count(request, &standing) {
        return Some(Refusal::RateLimited { wait_ms });
    }
    if otherwise.is_some() {
        app.metrics.shortages.of(["sold_out"]).inc();
        app.metrics.shortage_duration.observe(began.elapsed());
    }
    otherwise
}

/// What the next turn finds. One of the requests that wait has the turn, for all of them.
async fn next_found(app: &App, surveys: &ItemSurveys, request: &LateRequest<'_>) -> Found {
    let began = Instant::now();
    let asking = AskedPurchase {
        home: request.home,
        user: request.user.clone(),
        order: request.order,
    };
    let Some(mut answered) = surveys.late.join(asking, request.quantity) else {
        return Found::Unsure;
    };
    let turn = tokio::select! {
        biased;
        // A turn that ends early answers nobody.
        found = &mut answered => return found.unwrap_or(Found::Unsure),
        turn = surveys.turn(request.sale.shards) => turn,
        () = sleep_until(began + WAIT_MAX) => return Found::Unsure,
    };
    if let Ok(found) = answered.try_recv() {
        return found;
    }
    // Those who wait ask the script if this takes too long. Boxed, because one request of many has the turn.
    let answering = Box::pin(answer_all(app, &surveys.late, turn, request));
    let _in_time = timeout(TURN_MAX, answering).await;
    answered.try_recv().unwrap_or(Found::Unsure)
}

/// Answers all requests that wait when the survey begins.
async fn answer_all(app: &App, queue: &LateQueue, mut turn: Turn<'_>, one: &LateRequest<'_>) {
    turn.begin().await;
    let mut waiting = queue.take();
    // Some have waited for too long.
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

    /// How long an account must wait with this order at this moment, if its row counts these requests.
    fn wait(own: &mut Window, number: u8, now: Millis, row: &[(Millis, u8)]) -> Option<Millis> {
        let window = row.iter().map(|(at, it)| (*at, order(*it).window_member()));
        let standing = BuyerStanding {
            window: window.collect(),
            now,
            ..BuyerStanding::default()
        };
        count(own, &RATE, order(number).window_member(), &standing)
    }

    #[test]
    fn a_window_takes_its_limit_of_different_requests_wherever_they_are_counted() {
        let own = &mut Window::new();
        assert_eq!(wait(own, 1, 5000, &[]), None);
        assert_eq!(wait(own, 1, 5100, &[]), None, "a repeated request");
        assert_eq!(
            wait(own, 2, 5100, &[(3000, 7), (5050, 3)]),
            Some(900),
            "the row counts one"
        );
        assert_eq!(wait(own, 3, 5100, &[(5050, 3)]), None, "the row counts this one");
        assert_eq!(wait(own, 2, 5100, &[(5050, 1)]), None, "both count the same one");
        assert_eq!(wait(own, 3, 5100, &[]), Some(900), "a refused one counts nowhere");
        let row = [(5150, 4), (5160, 5)];
        assert_eq!(
            wait(own, 3, 5200, &row),
            Some(950),
            "until the last but one is a window old"
        );
        assert_eq!(wait(own, 3, 6000, &[]), None, "the first is a window old");
        assert_eq!(own.len(), 2);
    }
}
