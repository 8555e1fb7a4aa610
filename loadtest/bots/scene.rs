//! One sale and all who come to it, and what is noted of them.

use crate::crowd::Crowd;
use crate::plan::{Round, Size};
use flashsale::bench::wire::{Answer, Request, Wire};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Breaches that are kept to be told.
const BREACHES_MAX: usize = 20;

/// What is noted of one party.
#[derive(Default)]
pub struct Counts {
    pub answers: BTreeMap<String, u64>,
    /// Of people, in microseconds from the wish to ask until the answer; purchases by themselves.
    pub latencies: Vec<u64>,
    pub purchase_latencies: Vec<u64>,
    /// When units were acknowledged.
    pub sold: Vec<Instant>,
    /// How many of them to careful bots.
    pub sold_carefully: usize,
}

/// See the module.
pub struct Scene {
    pub server: SocketAddr,
    pub sale: String,
    /// A sale of a round before, of which bots have tokens.
    pub sale_before: String,
    pub round: Round,
    pub size: Size,
    pub crowd: Arc<Crowd>,
    pub start: Instant,
    pub people: Mutex<Counts>,
    pub bots: Mutex<Counts>,
    /// People who were refused by a guard, who bought, and who have been answered to the end.
    pub refused: Mutex<HashSet<usize>>,
    pub bought: Mutex<HashSet<usize>>,
    pub answered: AtomicU64,
    /// Who was in the waiting room when the sale started: they alone draw lots.
    pub people_at_start: AtomicU64,
    pub bots_at_start: Mutex<HashSet<usize>>,
    pub is_over: AtomicBool,
    /// What no guard should have let through.
    pub breaches: Mutex<Vec<String>>,
    wires: Mutex<Vec<Wire>>,
    places: Semaphore,
}

/// What a lock guards; one who panicked held it for a count.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a guard has refused, as far as one who behaves is concerned.
pub fn is_refusal(name: &str) -> bool {
    name.starts_with("403 ") || name.starts_with("429 ") || name == "503 overloaded"
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

    /// Asks for a person, over whichever connection is free, and notes the answer.
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

/// The path of a sale's part.
pub fn path(sale: &str, part: &str) -> String {
    format!("/v1/sales/{sale}/{part}")
}

/// The body of a purchase.
pub fn purchase(sku: &str) -> String {
    format!("{{\"sku\":\"{sku}\",\"quantity\":1}}")
}
