//! The crowd: one seed gives the same people and bots in every round.

use super::plan::{Round, Size};
use anyhow::Result;
use chrono::Utc;
use flashsale::domain::shopper::token;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::time::Duration;

/// The percentage of people who share an address with others.
const SHARED_PERCENT: u32 = 5;
/// The most people on one address, as in a household or behind a carrier's gateway.
const SHARED_MAX: usize = 20;
/// The percentage of people who click twice.
const TWICE_PERCENT: u32 = 30;

pub struct Person {
    pub jwt: String,
    pub address: String,
    /// The arrival, counted from the start of a sale without a waiting room.
    pub comes: Duration,
    /// The arrival at a sale with a waiting room, counted from the room's opening. `None` for people who come late and
    /// arrive as at any other sale.
    pub comes_early: Option<Duration>,
    /// The time between the first click and the second, if there is a second.
    pub again: Option<Duration>,
}

/// The account of a bot.
pub struct Account {
    pub jwt: String,
    /// The position in [`Crowd::bot_addresses`].
    pub address: usize,
}

/// All people and bots.
pub struct Crowd {
    pub people: Vec<Person>,
    pub accounts: Vec<Account>,
    /// Each is an IPv4 address, or the prefix of a /64.
    pub bot_addresses: Vec<String>,
}

/// The time before the start at which a waiting room opens.
pub const EARLY: Duration = Duration::from_secs(10);

impl Crowd {
    pub fn of(seed: u64, size: &Size, secret: &str) -> Result<Self> {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Utc::now().timestamp();
        let sign = |name: String| token::issue(secret, &name, now, now + 7200);
        let mut people = Vec::with_capacity(size.people);
        let (mut shared, mut left) = (0, 0_usize);
        for number in 0..size.people {
            let address = if random.random_range(0..100) < SHARED_PERCENT {
                if left == 0 {
                    shared += 1;
                    left = random.random_range(2..=SHARED_MAX);
                }
                left -= 1;
                format!("172.16.{}.{}", shared / 250, 1 + shared % 250)
            } else {
                format!("10.{}.{}.{}", number / 62_500, number / 250 % 250, 1 + number % 250)
            };
            people.push(Person::new(sign(format!("person-{number}"))?, address, &mut random));
        }
        let bot_addresses = (0..size.bot_addresses)
            .map(|number| match number % 5 {
                4 => format!("2001:db8:{number:x}:7:"),
                _ => format!("198.18.{}.{}", number / 250, 1 + number % 250),
            })
            .collect();
        let accounts = (0..size.accounts).map(|number| {
            Ok(Account {
                jwt: sign(format!("bot-{number}"))?,
                address: number % size.bot_addresses,
            })
        });
        Ok(Self {
            people,
            accounts: accounts.collect::<Result<_>>()?,
            bot_addresses,
        })
    }

    /// An address of a bot. For a /64, each request gets another address in it.
    pub fn bot_address(&self, at: usize, random: &mut StdRng) -> String {
        let address = &self.bot_addresses[at];
        if address.ends_with(':') {
            return format!(
                "{address}{:x}:{:x}:0:1",
                random.random_range(1..65_535),
                random.random_range(1..65_535)
            );
        }
        address.clone()
    }
}

impl Person {
    fn new(jwt: String, address: String, random: &mut StdRng) -> Self {
        let is_early = |random: &mut StdRng| random.random_range(0..10) < 9;
        let within = |random: &mut StdRng, from, to| Duration::from_millis(random.random_range(from..to));
        let (from, to) = if is_early(random) { (0, 5000) } else { (5000, 10_000) };
        let comes = within(random, from, to);
        let early = within(random, 0, 10_000);
        let comes_early = is_early(random).then_some(early);
        let again = within(random, 80, 800);
        let is_twice = random.random_range(0..100) < TWICE_PERCENT;
        Self {
            jwt,
            address,
            comes,
            comes_early,
            again: is_twice.then_some(again),
        }
    }

    /// The arrival, counted from [`EARLY`] before the start of the sale.
    pub fn comes(&self, round: &Round) -> Duration {
        match self.comes_early.filter(|_| round.waiting_room) {
            Some(early) => early,
            None => EARLY + self.comes,
        }
    }
}
