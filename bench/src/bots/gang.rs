//! The bots. Each connection belongs to some accounts and sends their requests without a pause.
//!
//! The bots of three fifths of the addresses are careful. They take only the steps that a sale requires. They stay just
//! below the limit of an address, so that it refuses no step. The other bots are reckless and try everything.

use super::crowd::EARLY;
use super::people::solve;
use super::scene::{Scene, are_too_many, lock, path, purchase};
use crate::wire::{Answer, Request, Said, Wire};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

/// The most tokens, admissions or tickets that the bots share.
const LOOT_MAX: usize = 200;
/// Bots fetch tokens this long before the start.
const PREPARES: Duration = Duration::from_secs(2);
/// The most times of one account that the check after the round uses.
const TIMES_MAX: usize = 100;
/// The most challenges of an account in a minute.
const CHALLENGES_MAX: u32 = 5;
/// The pause of a bot after a request without a reply.
const LOST: Duration = Duration::from_millis(100);
/// The share of an address's limit that careful bots use.
const CARE: f64 = 0.9;
/// The window of every round.
const WINDOW: Duration = Duration::from_secs(60);

/// Tokens, admissions and tickets that the bots share, from this sale or the one before.
#[derive(Default, Clone)]
pub struct Loot {
    pub tokens: Vec<String>,
    pub admissions: Vec<String>,
    pub tickets: Vec<String>,
}

/// The requests that the limit of one address let through.
struct Passed {
    first: Instant,
    last: Instant,
    count: u32,
}

/// The shared state of all bots of a round.
pub struct Gang {
    scene: Arc<Scene>,
    old: Loot,
    pub new: Mutex<Loot>,
    passed: Mutex<HashMap<usize, Passed>>,
    /// The next time that a careful bot may send a request from an address.
    next: Mutex<HashMap<usize, Instant>>,
}

/// Whether the bots of an address are careful.
pub fn is_careful(address: usize) -> bool {
    address.is_multiple_of(5) || address % 5 == 2 || address % 5 == 4
}

#[derive(Default)]
struct Bot {
    account: usize,
    address: usize,
    units: u32,
    keys: u32,
    key: String,
    last_key: Option<String>,
    token: Option<String>,
    admission: Option<String>,
    ticket: Option<String>,
    challenges: u32,
    /// A solved challenge that is still unused.
    challenge: Option<serde_json::Value>,
    /// The account's window is full until this time.
    full_until: Option<Instant>,
    /// The send and reply times of requests that count in the account's window, each key once.
    counted: Vec<(Instant, Instant)>,
}

impl Bot {
    fn new(account: usize, address: usize) -> Self {
        let mut bot = Self {
            account,
            address,
            ..Self::default()
        };
        bot.next_key();
        bot
    }

    fn next_key(&mut self) {
        self.keys += 1;
        self.key = format!("bot-{}-{}", self.account, self.keys);
        self.token = None;
    }
}

impl Gang {
    pub fn new(scene: Arc<Scene>, old: Loot) -> Self {
        Self {
            scene,
            old,
            new: Mutex::default(),
            passed: Mutex::default(),
            next: Mutex::default(),
        }
    }

    /// Whether a careful bot may send a request from this address now. If it may, this also reserves the time.
    fn may_ask(&self, address: usize) -> bool {
        let rate = self.scene.round.address_rate;
        if rate == 0 {
            return true;
        }
        let now = Instant::now();
        let mut next = lock(&self.next);
        let next = next.entry(address).or_insert(now);
        let may = *next <= now;
        if may {
            *next = now + Duration::from_secs_f64(1.0 / (f64::from(rate) * CARE));
        }
        may
    }

    /// Runs all bots until the round is over.
    pub async fn come(self: Arc<Self>, seed: u64) {
        let connections = self.scene.size.bot_connections;
        let mut bots = JoinSet::new();
        for number in 0..connections {
            let accounts = (number..self.scene.crowd.accounts.len()).step_by(connections);
            let worker = Worker {
                gang: Arc::clone(&self),
                wire: Wire::to(self.scene.server),
                random: StdRng::seed_from_u64(seed ^ (0xb07 + number as u64)),
            };
            bots.spawn(worker.work(accounts.collect()));
        }
        while bots.join_next().await.is_some() {}
        self.check_addresses();
    }

    /// Checks that no address had more requests than its rate and the bucket's size allow.
    fn check_addresses(&self) {
        let rate = self.scene.round.address_rate;
        if rate == 0 {
            return;
        }
        for (address, passed) in lock(&self.passed).iter() {
            let most = f64::from(rate) * ((passed.last - passed.first).as_secs_f64() + 1.0) + 1.0;
            if f64::from(passed.count) > most {
                let address = &self.scene.crowd.bot_addresses[*address];
                let count = passed.count;
                self.scene
                    .breach(format!("{address} came through {count} times, {most:.0} at most"));
            }
        }
    }
}

struct Worker {
    gang: Arc<Gang>,
    wire: Wire,
    random: StdRng,
}

impl Worker {
    async fn work(mut self, accounts: Vec<usize>) {
        let scene = Arc::clone(&self.gang.scene);
        let before = match (scene.round.waiting_room, scene.round.purchase_token) {
            (true, _) => EARLY,
            (false, true) => PREPARES,
            (false, false) => Duration::ZERO,
        };
        sleep_until(scene.start - before).await;
        let bots = accounts.into_iter();
        let mut bots: Vec<Bot> = bots
            .map(|account| Bot::new(account, scene.crowd.accounts[account].address))
            .collect();
        while !scene.is_over() {
            let mut has_asked = false;
            for bot in &mut bots {
                if scene.is_over() {
                    break;
                }
                has_asked |= self.turn(bot).await;
            }
            // The bots also pause when they have no request to send, as before the start.
            if has_asked {
                tokio::task::yield_now().await;
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
        let limit = scene.round.window as usize;
        for bot in bots.iter().filter(|bot| are_too_many(&bot.counted, limit, WINDOW)) {
            scene.breach(format!(
                "bot-{} had more than {limit} requests in its window",
                bot.account
            ));
        }
    }

    /// One turn of a bot; `false` if it sent no request.
    async fn turn(&mut self, bot: &mut Bot) -> bool {
        let is_careful = is_careful(bot.address);
        let is_done = bot.units >= self.gang.scene.round.per_user_limit;
        if is_careful && (is_done || !self.gang.may_ask(bot.address)) {
            return false;
        }
        let has_asked = self.want(bot).await;
        if !is_careful && self.random.random_range(0..2) == 0 {
            self.try_on(bot).await;
            return true;
        }
        has_asked
    }

    async fn ask(&mut self, bot: &Bot, request: Request<'_>) -> (Answer, String) {
        let gang = Arc::clone(&self.gang);
        let account = &gang.scene.crowd.accounts[bot.account];
        let address = gang.scene.crowd.bot_address(account.address, &mut self.random);
        let request = Request {
            bearer: &account.jwt,
            address: &address,
            ..request
        };
        let asked = Instant::now();
        let answer = self.wire.ask(&request).await;
        let name = answer.name();
        if answer.status == 0 {
            // Without a pause, bots would flood a server that is down.
            sleep(LOST).await;
        }
        if name != "429 rate_limited (address)" && answer.status != 0 {
            let answered = Instant::now();
            let mut passed = lock(&gang.passed);
            let passed = passed.entry(account.address).or_insert(Passed {
                first: asked,
                last: answered,
                count: 0,
            });
            passed.first = passed.first.min(asked);
            passed.last = passed.last.max(answered);
            passed.count += 1;
        }
        let mut counts = lock(&gang.scene.bots);
        *counts.answers.entry(name.clone()).or_default() += 1;
        drop(counts);
        (answer, name)
    }

    async fn get(&mut self, bot: &Bot, path: String) -> Answer {
        let request = Request {
            path,
            ..Request::default()
        };
        self.ask(bot, request).await.0
    }

    async fn post(&mut self, bot: &Bot, path: String, body: String) -> (Answer, String) {
        let request = Request {
            is_post: true,
            path,
            body,
            ..Request::default()
        };
        self.ask(bot, request).await
    }

    /// Takes the next step towards a unit, as the sale requires; `false` if there was none.
    async fn want(&mut self, bot: &mut Bot) -> bool {
        let scene = Arc::clone(&self.gang.scene);
        if bot.units >= scene.round.per_user_limit || bot.full_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        if scene.round.waiting_room && bot.admission.is_none() {
            let ticket = bot.ticket.clone();
            self.poll(bot, ticket.as_deref()).await;
        } else if scene.round.purchase_token && bot.token.is_none() {
            return self.fetch_token(bot).await;
        } else if Instant::now() >= scene.start {
            let (key, token, admission) = (bot.key.clone(), bot.token.clone(), bot.admission.clone());
            let name = self
                .order(bot, "thing", &key, token.as_deref(), admission.as_deref())
                .await;
            match name.as_str() {
                "201" | "409 sold_out" | "409 purchase_limit_reached" => {
                    bot.last_key = Some(key);
                    bot.next_key();
                }
                // It may have expired, so the bot asks for a new one.
                "403 admission_required" => bot.admission = None,
                "403 purchase_token_required" => bot.token = None,
                _ => {}
            }
        } else {
            return false;
        }
        true
    }

    async fn poll(&mut self, bot: &mut Bot, ticket: Option<&str>) {
        let path = path(&self.gang.scene.sale, "waiting-room");
        let body = ticket.map_or_else(|| json!({}), |ticket| json!({"ticket": ticket}));
        let (answer, _) = self.post(bot, path, body.to_string()).await;
        let said = answer.said();
        let mut loot = lock(&self.gang.new);
        if let Some(ticket) = said.ticket {
            keep(&mut loot.tickets, &ticket);
            if Instant::now() < self.gang.scene.start {
                lock(&self.gang.scene.bots_at_start).insert(bot.account);
            }
            bot.ticket = Some(ticket);
        }
        if let Some(admission) = said.admission {
            keep(&mut loot.admissions, &admission);
            bot.admission = Some(admission);
        }
    }

    async fn fetch_token(&mut self, bot: &mut Bot) -> bool {
        let sale = self.gang.scene.sale.clone();
        if self.gang.scene.round.proof_of_work && bot.challenge.is_none() {
            if bot.challenges >= CHALLENGES_MAX {
                // The bot still asks now and then.
                let asks = self.random.random_range(0..100) == 0;
                if asks {
                    self.challenge(bot, &sale).await;
                }
                return asks;
            }
            bot.challenge = solve(self.challenge(bot, &sale).await);
            if bot.challenge.is_none() {
                return true;
            }
        }
        let body = json!({"idempotency_key": bot.key, "challenge": bot.challenge}).to_string();
        let (answer, name) = self.post(bot, path(&sale, "tokens"), body).await;
        bot.token = answer.said().token;
        if bot.token.is_some() || name.starts_with("403") {
            bot.challenge = None;
        }
        if let Some(token) = &bot.token {
            keep(&mut lock(&self.gang.new).tokens, token);
        }
        true
    }

    async fn challenge(&mut self, bot: &mut Bot, sale: &str) -> Said {
        let body = json!({"sale_id": sale}).to_string();
        let (answer, _) = self.post(bot, "/v1/challenges".to_owned(), body).await;
        bot.challenges += u32::from(answer.status == 201);
        answer.said()
    }

    async fn order(
        &mut self,
        bot: &mut Bot,
        sku: &str,
        key: &str,
        token: Option<&str>,
        admission: Option<&str>,
    ) -> String {
        let asked = Instant::now();
        let request = Request {
            is_post: true,
            path: path(&self.gang.scene.sale, "orders"),
            body: purchase(sku),
            key: Some(key),
            token,
            admission,
            ..Request::default()
        };
        let (answer, name) = self.ask(bot, request).await;
        match name.as_str() {
            "201" => {
                bot.units += 1;
                let mut counts = lock(&self.gang.scene.bots);
                counts.sold.push(Instant::now());
                counts.sold_carefully += usize::from(is_careful(bot.address));
            }
            "429 rate_limited (window)" => {
                let wait = Duration::from_secs(answer.retry_after.unwrap_or(1));
                bot.full_until = Some(Instant::now() + wait);
            }
            _ => {}
        }
        let is_counted = matches!(
            name.as_str(),
            "201" | "409 sold_out" | "409 purchase_limit_reached" | "409 sale_not_open"
        );
        // A repeated key counts once.
        if is_counted && bot.last_key.as_deref() != Some(key) && bot.counted.len() < TIMES_MAX {
            bot.counted.push((asked, Instant::now()));
        }
        name
    }

    /// Tries a request that may get past a guard.
    async fn try_on(&mut self, bot: &mut Bot) {
        let scene = Arc::clone(&self.gang.scene);
        let is_spent = bot.units >= scene.round.per_user_limit || bot.full_until.is_some();
        let needs_admission = scene.round.waiting_room;
        // A bot risks a request that counts in its window only when it has nothing to lose.
        let is_free = is_spent || scene.round.purchase_token || needs_admission;
        match self.random.random_range(0..9) {
            0..=2 if is_free => self.try_foreign_proofs(bot).await,
            3 | 4 => {
                if let Some(key) = bot.last_key.clone() {
                    self.order(bot, "thing", &key, None, None).await;
                }
            }
            5 => {
                let sale = Uuid::from_u128(self.random.random());
                let request = Request {
                    is_post: true,
                    path: path(&sale.to_string(), "orders"),
                    body: purchase("thing"),
                    key: Some("guessed"),
                    ..Request::default()
                };
                self.ask(bot, request).await;
            }
            6 => {
                let order = Uuid::from_u128(self.random.random());
                if self.get(bot, format!("/v1/orders/{order}")).await.status == 200 {
                    scene.breach(format!("bot-{} has read order {order}", bot.account));
                }
            }
            7 if is_free => {
                let sku = format!("thing-{}", self.random.random_range(0..100));
                let (token, admission) = (bot.token.clone(), bot.admission.clone());
                self.order(bot, &sku, "guessed", token.as_deref(), admission.as_deref())
                    .await;
            }
            8 if needs_admission => {
                let ticket = any(&lock(&self.gang.new).tickets, &mut self.random);
                self.poll(bot, ticket.as_deref()).await;
            }
            _ => {
                self.get(bot, format!("/v1/sales/{}", scene.sale_before)).await;
            }
        }
    }

    /// Tries an order with the tokens and admissions of other bots, or of the sale before.
    async fn try_foreign_proofs(&mut self, bot: &mut Bot) {
        let gang = Arc::clone(&self.gang);
        let (old, random) = (&gang.old, &mut self.random);
        let (token, admission) = match random.random_range(0..4) {
            0 => (None, None),
            1 => (any(&lock(&gang.new).tokens, random), bot.admission.clone()),
            2 => (any(&old.tokens, random), any(&old.admissions, random)),
            _ => (bot.token.clone(), any(&lock(&gang.new).admissions, random)),
        };
        let is_own = token == bot.token && admission == bot.admission;
        bot.keys += 1;
        // The bot's own token is for another key, so no token here is valid for this key.
        let key = format!("bot-{}-{}", bot.account, bot.keys);
        let name = self
            .order(bot, "thing", &key, token.as_deref(), admission.as_deref())
            .await;
        if name != "201" {
            return;
        }
        let round = &gang.scene.round;
        if round.purchase_token || round.waiting_room && !is_own {
            let account = bot.account;
            gang.scene
                .breach(format!("bot-{account} bought with what is not good for {key}"));
        }
        bot.last_key = Some(key);
    }
}

fn any(some: &[String], random: &mut StdRng) -> Option<String> {
    (!some.is_empty()).then(|| some[random.random_range(0..some.len())].clone())
}

fn keep(some: &mut Vec<String>, one: &str) {
    if some.len() < LOOT_MAX {
        some.push(one.to_owned());
    }
}
