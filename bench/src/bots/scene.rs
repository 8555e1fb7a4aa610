//! One sale of a round, its crowd, and the counts of each party.

use super::crowd::Crowd;
use super::plan::{Round, Size};
use crate::wire::{Answer, Request, Wire};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The most breaches that the report lists.
const BREACHES_MAX: usize = 20;

/// The counts of one party.
#[derive(Default)]
pub struct Counts {
    pub answers: BTreeMap<String, u64>,
    /// Only for people: microseconds from the wish to send a request until its reply. It includes the wait for a
    /// connection. The next field has the purchases among them.
    pub latencies: Vec<u64>,
    pub purchase_latencies: Vec<u64>,
    /// The times of the replies that accepted purchases.
    pub sold: Vec<Instant>,
    /// The purchases of careful bots among them.
    pub sold_carefully: usize,
}

/// One sale, its crowd and its counts.
pub struct Scene {
    pub server: SocketAddr,
    pub sale: String,
    /// The sale of an earlier round; bots still have its tokens.
    pub sale_before: String,
    pub round: Round,
    pub size: Size,
    pub crowd: Arc<Crowd>,
    pub start: Instant,
    pub people: Mutex<Counts>,
    pub bots: Mutex<Counts>,
    /// The people whom a guard refused; the next fields have those who bought, and the number who finished.
    pub refused: Mutex<HashSet<usize>>,
    pub bought: Mutex<HashSet<usize>>,
    pub answered: AtomicU64,
    /// The people and bots in the waiting room when the sale starts; only they take part in the lottery.
    pub people_at_start: AtomicU64,
    pub bots_at_start: Mutex<HashSet<usize>>,
    pub is_over: AtomicBool,
    /// Requests that a guard should have refused.
    pub breaches: Mutex<Vec<String>>,
    wires: Mutex<Vec<Wire>>,
    places: Semaphore,
}

/// Locks the mutex, also after a panic of another holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the status and code are a guard's refusal, for a client that follows the rules.
pub fn is_refusal(name: &str) -> bool {
    name.starts_with("403 ") || name.starts_with("429 ") || name == "503 overloaded"
}

/// Whether more requests than the limit lie within one window. The times are those of a request and its reply. Each
/// decision lies between the two, so the result is certain.
pub fn are_too_many(times: &[(Instant, Instant)], limit: usize, window: Duration) -> bool {
    times.windows(limit + 1).any(|some| {
        let first = some.iter().map(|(asked, _)| *asked).min();
        let last = some.iter().map(|(_, answered)| *answered).max();
        matches!((first, last), (Some(first), Some(last)) if last - first < window)
    })
}

impl Scene {
    pub fn new(
        server: SocketAddr,
        (sale, sale_before): (String, String),
        (round, size): (Round, Size),
        crowd: Arc<Crowd>,
        start: Instant,
    ) -> Self {
        let connections = size.people_connections;
        Self {
            server,
            sale,
            sale_before,
            round,
            crowd,
            start,
            people: Mutex::default(),
            bots: Mutex::default(),
            refused: Mutex::default(),
            bought: Mutex::default(),
            answered: AtomicU64::new(0),
            people_at_start: AtomicU64::new(0),
            bots_at_start: Mutex::default(),
            is_over: AtomicBool::new(false),
            breaches: Mutex::default(),
            wires: Mutex::new((0..connections).map(|_| Wire::to(server)).collect()),
            places: Semaphore::new(connections),
            size,
        }
    }

    /// Sends a person's request over the first free connection, and counts the reply.
    pub async fn ask_for(&self, person: usize, request: &Request<'_>, is_purchase: bool) -> (Answer, String) {
        let wished = Instant::now();
        let place = self.places.acquire().await;
        let wire = lock(&self.wires).pop();
        let mut wire = wire.unwrap_or_else(|| Wire::to(self.server));
        let answer = wire.ask(request).await;
        lock(&self.wires).push(wire);
        drop(place);
        let took = u64::try_from(wished.elapsed().as_micros()).unwrap_or(u64::MAX);
        let name = answer.name();
        if is_refusal(&name) {
            lock(&self.refused).insert(person);
        }
        let mut counts = lock(&self.people);
        counts.latencies.push(took);
        if is_purchase {
            counts.purchase_latencies.push(took);
        }
        *counts.answers.entry(name.clone()).or_default() += 1;
        drop(counts);
        (answer, name)
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub fn breach(&self, what: String) {
        let mut breaches = lock(&self.breaches);
        if breaches.len() < BREACHES_MAX {
            breaches.push(what);
        }
    }
}

pub fn path(sale: &str, part: &str) -> String {
    format!("/v1/sales/{sale}/{part}")
}

pub fn purchase(sku: &str) -> String {
    format!("{{\"sku\":\"{sku}\",\"quantity\":1}}")
}
