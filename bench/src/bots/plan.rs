//! The plan of a run: the size of the crowd, and the guards of each round.

use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest time from the start of a sale to the end of its round.
pub const ROUND_MAX: Duration = Duration::from_secs(60);

/// The size of a run.
#[derive(Clone, Serialize)]
pub struct Size {
    pub people: usize,
    pub accounts: usize,
    pub bot_addresses: usize,
    pub stock: usize,
    pub people_connections: usize,
    pub bot_connections: usize,
    pub admissions_per_second: u32,
}

impl Size {
    pub fn full() -> Self {
        Self {
            people: 20_000,
            accounts: 1000,
            bot_addresses: 200,
            stock: 2000,
            people_connections: 256,
            bot_connections: 128,
            admissions_per_second: 200,
        }
    }

    /// A tenth of the full size, for trials.
    pub fn small() -> Self {
        Self {
            people: 2000,
            accounts: 100,
            bot_addresses: 20,
            stock: 200,
            people_connections: 64,
            bot_connections: 32,
            admissions_per_second: 40,
        }
    }

    /// The bots' share of the accounts.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    pub fn bot_share(&self) -> f64 {
        self.accounts as f64 / (self.accounts + self.people) as f64
    }
}

/// A round: one sale with its guards.
#[derive(Clone, Serialize)]
pub struct Round {
    pub name: &'static str,
    pub title: &'static str,
    pub has_bots: bool,
    /// Requests of an account in a minute. Without this guard, the limit is higher than any account reaches.
    pub window: u32,
    pub address_rate: u32,
    pub purchase_token: bool,
    pub proof_of_work: bool,
    pub waiting_room: bool,
    /// The people and bots that the waiting room admits each second; `None` for the rate of the other rounds.
    pub admissions_per_second: Option<u32>,
    pub per_user_limit: u32,
}

const OPEN: Round = Round {
    name: "a",
    title: "people alone, no guards",
    has_bots: false,
    window: 1000,
    address_rate: 0,
    purchase_token: false,
    proof_of_work: false,
    waiting_room: false,
    admissions_per_second: None,
    per_user_limit: 1,
};

/// All rounds; c, d, e, e2 and f each add a guard.
pub fn rounds() -> Vec<Round> {
    let from = |round: &Round, name, title, change: fn(&mut Round)| {
        let mut round = Round {
            name,
            title,
            ..round.clone()
        };
        change(&mut round);
        round
    };
    let two = "the same, two units an account";
    let b = from(&OPEN, "b", "and bots, no guards", |it| it.has_bots = true);
    let b2 = from(&b, "b2", two, |it| it.per_user_limit = 2);
    let c = from(&b, "c", "+ 5 requests a minute an account", |it| it.window = 5);
    let d = from(&c, "d", "+ 20 requests a second an address", |it| it.address_rate = 20);
    let e = from(&d, "e", "+ purchase tokens", |it| it.purchase_token = true);
    let e2 = from(&e, "e2", "+ proof of work for each token", |it| it.proof_of_work = true);
    let f = from(&e2, "f", "+ waiting room: all guards", |it| it.waiting_room = true);
    let f2 = from(&f, "f2", two, |it| it.per_user_limit = 2);
    let g = from(&f, "g", "people alone, all guards", |it| it.has_bots = false);
    // The highest rate that a sale allows, so that only the machine limits the pace.
    let h = from(&f, "h", "with bots, all guards, everybody admitted at once", |it| {
        it.admissions_per_second = Some(1_000_000);
    });
    let i = from(&h, "i", "people alone, the same", |it| it.has_bots = false);
    vec![OPEN, b, b2, c, d, e, e2, f, f2, g, h, i]
}

impl Round {
    /// The request that creates the sale.
    pub fn sale(&self, size: &Size, starts_at: &str, ends_at: &str) -> Value {
        json!({
            "name": format!("bots {}", self.name),
            "starts_at": starts_at,
            "ends_at": ends_at,
            "shards": 4,
            "purchase_rate": {"limit": self.window, "window_ms": 60_000},
            "guards": {
                "purchase_token": self.purchase_token,
                "challenge": if self.proof_of_work { "proof_of_work" } else { "none" },
                "proof_cost": 1,
                "waiting_room": self.waiting_room,
                "admissions_per_second": self.admissions_per_second.unwrap_or(size.admissions_per_second),
                "admission_seconds": 60,
            },
            "items": [{
                "sku": "thing", "name": "The thing", "price_minor": 49_900, "currency": "EUR", "stock": size.stock,
                "per_user_limit": self.per_user_limit,
            }],
        })
    }
}
