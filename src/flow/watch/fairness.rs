//! Fairness: count who gets a sale's units, and add the counts up in the ledger. The report of a sale comes from there.
//!
//! Each instance remembers in memory when it first saw an account in a sale, and how many purchases the account sent.
//! For the accounts that buy, and only for them, instances join their knowledge in the ledger for some seconds. Only
//! the units by bucket stay.
//!
//! - Exact, if each account stays at one instance and that answers at most [`EXACT_ORDERS`] orders of the sale.
//! - Later orders are counted by a sample of them. The sample grows with the logarithm of the orders.
//! - Other instances also count purchases of the first seconds after the order.
//! - An instance that remembers too many accounts forgets those that it has not met for the longest time.
//!
//! A crash loses what the process remembers and the counts of the last second. While Postgres is away, some counts are
//! kept. An order whose first answer is lost is not counted.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::sale::fairness::{ATTEMPTS, AccountHash, Address, AddressGroup, KNOWN_FOR_MS, address_bucket};
use crate::flow::recover::instances::Rank;
use crate::flow::{ADD_MAX, App, in_time};
use crate::ledger::watch::fairness::{AddressUnits, Buyer};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Parts of the memory. Requests of accounts in different parts do not wait for each other.
const PARTS: usize = 64;
/// Accounts that a part remembers before it forgets older ones; a process remembers a quarter of a million, about 8 MB,
/// and up to twice that.
const RECENT_MAX: usize = 4096;
/// Orders of a sale that an instance counts one by one. Then it counts every second order, and half as many after each
/// doubling.
const EXACT_ORDERS: u64 = 2048;
/// Sales whose orders are numbered at once. With one more, all begin again at the first order.
const SALES_MAX: usize = 1000;
/// Buyers are counted after about so long.
const COUNTED_AFTER: Duration = Duration::from_secs(6);
/// Of so many rounds, an instance in reserve counts the buyers in one.
const RESERVE_EVERY: u32 = 5;
/// A buyer may show so much later than it says: its transaction began before.
const LATE: Duration = Duration::from_secs(2);
/// Buyers between two rounds. Further ones are not counted.
const BUYERS_MAX: usize = 2000;
/// Buckets of addresses between two rounds. Further ones are not counted.
const BUCKETS_MAX: usize = 50_000;

/// What an instance knows of an account in a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contact {
    /// The first page view or purchase, in milliseconds since the process began.
    first_ms: i64,
    /// Purchases.
    attempts: u32,
}

/// A part of the memory. When `recent` is full, it becomes `older`, and what was older is forgotten.
#[derive(Default)]
struct Accounts {
    recent: HashMap<AccountHash, Contact>,
    older: HashMap<AccountHash, Contact>,
}

/// Units that an account got at this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gain {
    units: i64,
    /// Purchases up to the order.
    attempts: u32,
    /// For how long this instance had known the account before the order; none if it had not.
    known_for_ms: Option<i64>,
    /// When it bought, in milliseconds since the process began.
    bought_ms: i64,
}

/// Orders since the last round.
#[derive(Default)]
struct Gains {
    /// How many orders each sale has had at this instance. This lasts longer than a round.
    orders: HashMap<SaleId, u64>,
    buyers: BTreeMap<(SaleId, AccountHash), Gain>,
    units: BTreeMap<(SaleId, AddressGroup, i32), i64>,
}

pub struct Fairness {
    instance: Uuid,
    began: Instant,
    parts: [Mutex<Accounts>; PARTS],
    gains: Mutex<Gains>,
    /// When this process last asked for the buyers of others.
    asked: Mutex<Option<Instant>>,
    /// Rounds of adding up so far.
    rounds: AtomicU32,
}

impl Default for Fairness {
    fn default() -> Self {
        Self {
            instance: Uuid::new_v4(),
            began: Instant::now(),
            parts: std::array::from_fn(|_| Mutex::default()),
            gains: Mutex::default(),
            asked: Mutex::default(),
            rounds: AtomicU32::default(),
        }
    }
}

impl Fairness {
    /// Notes a page view.
    pub fn viewed(&self, account: AccountHash) {
        self.note(account, 0);
    }

    /// Notes a purchase that made no order.
    pub fn attempted(&self, account: AccountHash) {
        self.note(account, 1);
    }

    /// Counts an order. `addresses` has the client and its network.
    pub fn bought(&self, sale: SaleId, account: AccountHash, units: u32, addresses: Option<[Address; 2]>) {
        let before = self.note(account, 1);
        let bought_ms = self.now_ms();
        let gain = Gain {
            units: i64::from(units),
            attempts: before.map_or(1, |it| it.attempts.saturating_add(1)),
            known_for_ms: before.map(|it| bought_ms - it.first_ms),
            bought_ms,
        };
        self.gains().count(sale, account, gain, addresses);
    }

    /// Notes this number of purchases; 0 is a page view. Returns what was known before.
    fn note(&self, account: AccountHash, attempts: u32) -> Option<Contact> {
        let now = self.now_ms();
        let mut part = self.part(account);
        let Accounts { recent, older } = &mut *part;
        if let Some(contact) = recent.get_mut(&account) {
            let before = *contact;
            contact.attempts = before.attempts.saturating_add(attempts);
            return Some(before);
        }
        let before = older.remove(&account);
        if recent.len() >= RECENT_MAX {
            *older = std::mem::take(recent);
        }
        let contact = before.unwrap_or(Contact {
            first_ms: now,
            attempts: 0,
        });
        let attempts = contact.attempts.saturating_add(attempts);
        recent.insert(account, Contact { attempts, ..contact });
        before
    }

    fn known(&self, account: AccountHash) -> Option<Contact> {
        let part = self.part(account);
        part.recent.get(&account).or_else(|| part.older.get(&account)).copied()
    }

    /// Whether this process has met no account: then it has nothing to add.
    fn is_unused(&self) -> bool {
        let is_empty = |part: &Mutex<Accounts>| lock(part).recent.is_empty();
        self.parts.iter().all(is_empty)
    }

    fn part(&self, account: AccountHash) -> MutexGuard<'_, Accounts> {
        let [.., last] = account.0.to_be_bytes();
        lock(&self.parts[usize::from(last) % PARTS])
    }

    fn gains(&self) -> MutexGuard<'_, Gains> {
        lock(&self.gains)
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// What another instance wants to know of an account that bought so many milliseconds ago.
    fn answer(&self, sale: SaleId, account: AccountHash, bought_ago_ms: i64) -> Option<Buyer> {
        let contact = self.known(account)?;
        let known_for_ms = self.now_ms() - contact.first_ms - bought_ago_ms;
        (known_for_ms >= 0).then_some(Buyer {
            sale,
            account,
            units: 0,
            attempts: contact.attempts.into(),
            known_for_ms: Some(known_for_ms),
            bought_ago_ms,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Gain {
    fn add(&mut self, other: Self) {
        self.units += other.units;
        self.attempts = self.attempts.max(other.attempts);
        // The time before the first order counts.
        if other.bought_ms < self.bought_ms {
            (self.known_for_ms, self.bought_ms) = (other.known_for_ms, other.bought_ms);
        }
    }
}

impl Gains {
    fn count(&mut self, sale: SaleId, account: AccountHash, gain: Gain, addresses: Option<[Address; 2]>) {
        if self.orders.len() >= SALES_MAX && !self.orders.contains_key(&sale) {
            self.orders.clear();
        }
        let orders = self.orders.entry(sale).or_default();
        let weight = weight_of(*orders);
        let is_in_sample = orders.is_multiple_of(weight);
        *orders += 1;
        if is_in_sample {
            let units = gain.units.saturating_mul(i64::try_from(weight).unwrap_or(i64::MAX));
            self.add_buyer(sale, account, Gain { units, ..gain });
        }
        for (group, address) in [AddressGroup::Client, AddressGroup::Network]
            .into_iter()
            .zip(addresses.into_iter().flatten())
        {
            self.add_units((sale, group, address_bucket(sale, address)), gain.units);
        }
    }

    fn add_buyer(&mut self, sale: SaleId, account: AccountHash, gain: Gain) {
        let key = (sale, account);
        if let Some(known) = self.buyers.get_mut(&key) {
            known.add(gain);
        } else if self.buyers.len() < BUYERS_MAX {
            self.buyers.insert(key, gain);
        }
    }

    fn add_units(&mut self, bucket: (SaleId, AddressGroup, i32), units: i64) {
        if self.units.len() < BUCKETS_MAX || self.units.contains_key(&bucket) {
            *self.units.entry(bucket).or_default() += units;
        }
    }
}

/// For how many orders one of the sample counts, after so many orders of its sale.
fn weight_of(orders: u64) -> u64 {
    (orders / EXACT_ORDERS + 1).next_power_of_two()
}

/// Notes in the ledger what this process knows of recent buyers, its own and those of other instances. One instance
/// counts the buyers that all have had time to note, and two in reserve now and then: the first may hang. Fails with
/// `Unavailable` when Postgres does not answer: the counts are kept for the next time.
pub async fn add_up(app: &App) -> Result<(), Fault> {
    if !app.fairness.is_unused() {
        add_units(app).await?;
        add_buyers(app).await?;
        answer_others(app).await?;
    }
    let rounds = app.fairness.rounds.fetch_add(1, Ordering::Relaxed);
    let counts = match app.instances.rank_to_serve("counting of buyers") {
        Rank::First => true,
        Rank::Second | Rank::Third => rounds.is_multiple_of(RESERVE_EVERY),
        Rank::Other => false,
    };
    if counts {
        in_time(ADD_MAX, app.ledger.count_buyers(&ATTEMPTS, &KNOWN_FOR_MS)).await?;
    }
    Ok(())
}

/// Notes what this process knows of the buyers that other instances have noted since it last asked.
async fn answer_others(app: &App) -> Result<(), Fault> {
    let fairness = &app.fairness;
    let (asked, last) = (Instant::now(), *lock(&fairness.asked));
    let since = last.map_or(COUNTED_AFTER, |last| last.elapsed() + LATE);
    let recent = app.ledger.recent_buyers(fairness.instance, since.min(COUNTED_AFTER));
    let recent = in_time(ADD_MAX, recent).await?.into_iter();
    let answers: Vec<Buyer> = recent
        .filter_map(|it| fairness.answer(it.sale, it.account, it.bought_ago_ms))
        .collect();
    if !answers.is_empty() {
        in_time(ADD_MAX, app.ledger.add_buyers(fairness.instance, &answers)).await?;
    }
    *lock(&fairness.asked) = Some(asked);
    Ok(())
}

async fn add_units(app: &App) -> Result<(), Fault> {
    let units = std::mem::take(&mut app.fairness.gains().units);
    if units.is_empty() {
        return Ok(());
    }
    let rows: Vec<AddressUnits> = units
        .iter()
        .map(|(&(sale, group, bucket), &units)| AddressUnits {
            sale,
            group,
            bucket,
            units,
        })
        .collect();
    let added = in_time(ADD_MAX, app.ledger.add_address_units(&rows)).await;
    if added.is_err() {
        let mut gains = app.fairness.gains();
        for (bucket, units) in units {
            gains.add_units(bucket, units);
        }
    }
    added
}

async fn add_buyers(app: &App) -> Result<(), Fault> {
    let fairness = &app.fairness;
    let buyers = std::mem::take(&mut fairness.gains().buyers);
    if buyers.is_empty() {
        return Ok(());
    }
    let now = fairness.now_ms();
    let rows: Vec<Buyer> = buyers
        .iter()
        .map(|(&(sale, account), gain)| Buyer {
            sale,
            account,
            units: gain.units,
            attempts: gain.attempts.into(),
            known_for_ms: gain.known_for_ms,
            bought_ago_ms: now - gain.bought_ms,
        })
        .collect();
    let added = in_time(ADD_MAX, app.ledger.add_buyers(fairness.instance, &rows)).await;
    if added.is_err() {
        let mut gains = fairness.gains();
        for ((sale, account), gain) in buyers {
            gains.add_buyer(sale, account, gain);
        }
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sale(number: u128) -> SaleId {
        SaleId(Uuid::from_u128(number))
    }

    fn contact(fairness: &Fairness, account: i64) -> Option<u32> {
        fairness.known(AccountHash(account)).map(|it| it.attempts)
    }

    #[test]
    fn an_order_knows_the_purchases_and_the_page_view_before_it() {
        let fairness = Fairness::default();
        let (ada, bob) = (AccountHash(1), AccountHash(2));
        fairness.viewed(ada);
        fairness.attempted(ada);
        fairness.attempted(ada);
        fairness.bought(sale(1), ada, 2, None);
        fairness.bought(sale(1), bob, 1, None);
        let gains = fairness.gains();
        let of_ada = gains.buyers[&(sale(1), ada)];
        assert_eq!((of_ada.units, of_ada.attempts), (2, 3));
        assert!(of_ada.known_for_ms.is_some());
        let of_bob = gains.buyers[&(sale(1), bob)];
        assert_eq!((of_bob.units, of_bob.attempts, of_bob.known_for_ms), (1, 1, None));
        assert!(gains.units.is_empty(), "no address is known");
    }

    #[test]
    fn an_instance_answers_for_accounts_that_it_met_before_their_orders() {
        let fairness = Fairness::default();
        let ada = AccountHash(1);
        assert_eq!(fairness.answer(sale(1), ada, 0), None);
        fairness.attempted(ada);
        let answer = fairness.answer(sale(1), ada, 0).unwrap();
        assert_eq!((answer.units, answer.attempts), (0, 1));
        assert!(answer.known_for_ms.is_some());
        assert_eq!(fairness.answer(sale(1), ada, 60_000), None, "it came after the order");
    }

    #[test]
    fn accounts_that_were_not_met_for_long_are_forgotten() {
        let fairness = Fairness::default();
        let number = |it: usize| i64::try_from(it * 256).unwrap();
        // All of these are in one part.
        fairness.attempted(AccountHash(number(0)));
        fairness.attempted(AccountHash(number(1)));
        for it in 2..=RECENT_MAX {
            fairness.viewed(AccountHash(number(it)));
        }
        fairness.attempted(AccountHash(number(0)));
        assert_eq!((contact(&fairness, 0), contact(&fairness, 256)), (Some(2), Some(1)));
        for it in RECENT_MAX + 1..RECENT_MAX * 2 {
            fairness.viewed(AccountHash(number(it)));
        }
        assert_eq!((contact(&fairness, 0), contact(&fairness, 256)), (Some(2), None));
        let part = fairness.part(AccountHash(0));
        assert!(part.recent.len() + part.older.len() <= 2 * RECENT_MAX);
    }

    #[test]
    fn a_sample_of_many_orders_counts_for_all_of_them() {
        const ORDERS: u64 = 100_000;
        let mut gains = Gains::default();
        let (mut noted, mut units) = (0, 0);
        for order in 0..ORDERS {
            let gain = Gain {
                units: 1,
                attempts: 1,
                known_for_ms: None,
                bought_ms: 0,
            };
            let account = AccountHash(i64::try_from(order).unwrap());
            gains.count(sale(1), account, gain, Some([[1; 16], [2; 16]]));
            let buyers = std::mem::take(&mut gains.buyers);
            noted += buyers.len();
            units += buyers.values().map(|it| it.units).sum::<i64>();
            if order < EXACT_ORDERS {
                assert_eq!(
                    units,
                    i64::try_from(order).unwrap() + 1,
                    "each of the first orders counts"
                );
            }
        }
        assert!((99_000..101_000).contains(&units), "{units}");
        assert!(noted < 9000, "{noted}");
        assert_eq!(gains.units.values().copied().collect::<Vec<_>>(), [100_000, 100_000]);
    }
}
