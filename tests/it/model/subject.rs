//! The subject: the scripts in a Redis, run side by side with the reference.

use super::reference::{Asked, EPOCH, RATE_LIMIT, ROW_MAX, Shard, Shopper, UNIT_LIMITS, WINDOW_MS};
use super::steps::{KEYS, SHARDS, Step, TRANSFERS, USERS};
use crate::support::lua;
use crate::support::raw::{Raw, arg};
use crate::support::trim;
use flashsale::domain::deployment::server::Server;
use flashsale::domain::ids::{IdempotencyKey, OrderId, SaleId, Sku, UserId};
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState;
use flashsale::domain::order::event::Position;
use flashsale::domain::sale::shard::part;
use flashsale::domain::sale::{Item, Lifecycle, NewSale, PurchaseRate, Sale, SaleSecret};
use flashsale::domain::time::{Millis, from_millis};
use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::operate::read_shard::ShardReading;
use flashsale::stock::record::ShardRecord;
use flashsale::stock::sell::transfer::Destination;
use redis::Script;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use uuid::Uuid;

const START: Millis = 1_900_000_000_000;
const STOCK: [i64; 2] = [16, 7];
const SKUS: [&str; 2] = ["A", "B.-_"];
const SECRET: [u8; 32] = [5; 32];

/// The text of every script that writes, by name.
#[derive(Clone)]
pub struct Scripts(pub BTreeMap<&'static str, String>);

impl Scripts {
    /// The scripts as they are, but for the length of a shopper's row, and how long one without orders is kept.
    pub fn real() -> Self {
        Self::of("lua")
    }

    /// The same of a version whose scripts are kept in this folder.
    pub fn of(folder: &str) -> Self {
        const NAMES: [&str; 12] = [
            "fence",
            "permit",
            "preload",
            "purchase",
            "resolve",
            "restock",
            "set_state",
            "stop",
            "transfer_done",
            "transfer_in",
            "transfer_out",
            "withdraw_done",
        ];
        let files = lua::files(folder);
        let text = |name: &str| fs::read_to_string(&files[name]).unwrap();
        let mut texts = BTreeMap::from(NAMES.map(|name| (name, text(name))));
        let changes = [
            (
                "resolve",
                "local ROW_MAX = 4096\n",
                format!("local ROW_MAX = {ROW_MAX}\n"),
            ),
            // The model's clock is not Redis's, which must not drop a row during a slow case.
            ("purchase", "window_ms + 1000", "window_ms + 600000".to_owned()),
        ];
        for (name, usual, other) in changes {
            let text = texts.get_mut(name).unwrap();
            assert_eq!(text.matches(usual).count(), 1, "{usual:?} stands in {name}.lua once");
            *text = text.replace(usual, &other);
        }
        Self(texts)
    }
}

/// A Redis with scripts.
pub struct Subject {
    raw: Raw,
    stock: Stock,
    runtime: tokio::runtime::Runtime,
    /// Of each version that runs.
    versions: Vec<BTreeMap<&'static str, Script>>,
    server: Server,
}

impl Subject {
    pub fn new(url: &str, scripts: Scripts) -> Self {
        Self::side_by_side(url, vec![scripts])
    }

    /// Instances of several versions, which call their own scripts.
    pub fn side_by_side(url: &str, versions: Vec<Scripts>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let stock = runtime.block_on(Stock::connect(url)).unwrap();
        Self {
            raw: Raw::connect(url),
            // One server has all shards, of any sale.
            server: runtime
                .block_on(stock.server(ShardKey {
                    sale: SaleId(Uuid::nil()),
                    shard: 0,
                }))
                .unwrap(),
            stock,
            runtime,
            versions: versions
                .into_iter()
                .map(|scripts| {
                    scripts
                        .0
                        .into_iter()
                        .map(|(name, text)| (name, Script::new(&text)))
                        .collect()
                })
                .collect(),
        }
    }

    /// A new sale on it; its keys go with the result.
    pub fn begin(&self) -> Run<'_> {
        let run = Run {
            subject: self,
            sale: sale(),
            now: START,
            shards: Vec::new(),
            sent: vec![(0, 0); TRANSFERS],
            answers: RefCell::default(),
            calls: Cell::default(),
            touched: RefCell::default(),
            readings: BTreeMap::new(),
        };
        run.set_up()
    }
}

/// One sale on both sides.
pub struct Run<'a> {
    subject: &'a Subject,
    sale: Sale,
    now: Millis,
    shards: Vec<Shard>,
    /// How many units the lender sent, and in which epoch, for each transfer; these are the arguments of the borrower's
    /// script.
    sent: Vec<(i64, i64)>,
    /// The answers of each script.
    answers: RefCell<BTreeSet<String>>,
    /// How many calls there were.
    calls: Cell<u64>,
    /// The shards whose keys were named since the last comparison: no other shard can have changed.
    touched: RefCell<BTreeSet<u16>>,
    /// Each shard as the last comparison found it.
    readings: BTreeMap<u16, ShardReading>,
}

/// The part of a sale that reading a shard needs.
fn sale() -> Sale {
    let item = |item| Item::plain(sku(item), STOCK[item], UNIT_LIMITS[item]);
    let start = from_millis(START);
    Sale {
        id: SaleId(Uuid::new_v4()),
        shards: SHARDS,
        payment_window_seconds: 1,
        purchase_rate: PurchaseRate {
            limit: 1,
            window_ms: WINDOW_MS,
        },
        secret: SaleSecret(SECRET),
        ..NewSale::plain((0..SKUS.len()).map(item).collect(), start, start).unstored()
    }
}

/// The keys that a shard has from its first moment.
fn preloaded(key: ShardKey) -> Vec<String> {
    let items = (0..SKUS.len()).map(|item| key.item(&sku(item)));
    [key.shard(), key.events()].into_iter().chain(items).collect()
}

/// Lender, borrower (none: the ledger) and item of a transfer.
fn route(transfer: usize) -> (u16, Option<u16>, usize) {
    let from = u16::try_from(transfer).unwrap() % SHARDS;
    let to = (transfer % 5 < 3).then_some((from + 1) % SHARDS);
    (from, to, transfer % 2)
}

fn transfer_id(transfer: usize) -> Uuid {
    Uuid::from_u128(0x7000_8000_0000_0000_0000 + u128::try_from(transfer).unwrap())
}

fn restock_id(restock: usize) -> Uuid {
    Uuid::from_u128(0x4000_8000_0000_0000_0000 + u128::try_from(restock).unwrap())
}

fn sku(item: usize) -> Sku {
    SKUS[item].parse().unwrap()
}

fn user(number: usize) -> UserId {
    USERS[number].parse().unwrap()
}

fn key(number: usize) -> IdempotencyKey {
    format!("key {number} ~").parse().unwrap()
}

fn home(user: usize) -> usize {
    user % usize::from(SHARDS)
}

/// The order's id. Its end, which the window keeps, is made so that some resemble the end of another followed by the time
/// of the next entry: the first bytes of that are always the same here.
fn order_id(user_number: usize, key_number: usize) -> OrderId {
    let derived = OrderId::derive(1, &SECRET, &user(user_number), &key(key_number));
    let mut bytes = *derived.0.as_bytes();
    let own = u8::try_from(key_number).unwrap();
    let [_, _, t0, t1, t2, ..] = START.to_be_bytes();
    bytes[10..].copy_from_slice(&match own {
        0 => [b'c', b'd', b'e', t0, t1, t2],
        1 => [b'b', b'c', b'd', b'e', t0, t1],
        _ => [own, b'a', b'b', b'c', b'd', b'e'],
    });
    OrderId(Uuid::from_bytes(bytes))
}

fn same<T: PartialEq + Debug>(what: &str, redis: &T, model: &T) -> Result<(), String> {
    if redis == model {
        return Ok(());
    }
    Err(format!("{what}: Redis has {redis:?}, the model {model:?}"))
}

impl Run<'_> {
    /// The answers of each script, without numbers.
    pub fn answers(&self) -> BTreeSet<String> {
        self.answers.borrow().clone()
    }

    fn script(&self, name: &str, keys: &[String], args: &[Vec<u8>]) -> String {
        let call = self.calls.get();
        self.calls.set(call + 1);
        // Any version makes the next call, in each run of the same steps the same one.
        let version = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let versions = &self.subject.versions;
        let scripts = &versions[usize::try_from(version).unwrap() % versions.len()];
        let answer = self.subject.raw.script(&scripts[name], keys, args);
        // The kept version has other names for these two.
        let answer = match answer.strip_prefix("LOOK ") {
            Some(number) => format!("ASK_LEDGER {number}"),
            None if answer == "STOPPED" => "HALTED".to_owned(),
            None => answer,
        };
        // A broken script breaks a promise; one that cannot run tests nothing.
        assert!(!answer.contains("user_script"), "{name}.lua does not run: {answer}");
        let words = answer
            .split(' ')
            .take_while(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()));
        let words: Vec<&str> = [name].into_iter().chain(words).collect();
        self.answers.borrow_mut().insert(words.join(" "));
        answer
    }

    fn set_up(mut self) -> Self {
        for shard in 0..SHARDS {
            let units = STOCK.map(|units| part(units, SHARDS, shard));
            let mut model = Shard::new(units, START, START + 60_000);
            model.version = 1;
            model.state.0 = 1;
            self.shards.push(model);
            // A script that cannot even set up a sale is found by the first comparison.
            let _answer = self.preload(shard);
            let _answer = self.set_state(shard, 1, (1, START, START + 60_000));
            let asked = Asked {
                epoch: EPOCH,
                for_ms: 60_000,
                memory_max: 1000,
                age_max: 60_000,
                is_here: true,
                renewal: false,
            };
            let _answer = self.permit(shard, asked);
            let _answer = self.shards[usize::from(shard)].permit(asked, START);
        }
        self
    }

    fn key(&self, shard: u16) -> ShardKey {
        self.touched.borrow_mut().insert(shard);
        ShardKey {
            sale: self.sale.id,
            shard,
        }
    }

    fn preload(&self, shard: u16) -> String {
        let key = self.key(shard);
        let mut args = [EPOCH, START, START + 60_000].map(arg).to_vec();
        args.extend([arg(RATE_LIMIT), arg(WINDOW_MS)]);
        for item in 0..SKUS.len() {
            args.extend([arg(part(STOCK[item], SHARDS, shard)), arg(UNIT_LIMITS[item])]);
        }
        self.script("preload", &preloaded(key), &args)
    }

    /// Preloads a shard while one of its keys is lost.
    fn preload_part(&self, shard: u16, lost: usize) -> String {
        let keys = preloaded(self.key(shard));
        let lost = &keys[lost % keys.len()];
        let away = format!("{lost} away");
        let rename = |from: &str, to: &str| {
            let () = self.subject.raw.call(redis::cmd("RENAME").arg(from).arg(to));
        };
        rename(lost, &away);
        let answer = self.preload(shard);
        let there: i64 = self.subject.raw.call(redis::cmd("EXISTS").arg(lost));
        rename(&away, lost);
        format!("{answer}, {there} written")
    }

    fn set_state(&self, shard: u16, version: i64, (state, starts_at, ends_at): (u8, Millis, Millis)) -> String {
        let args = [arg(version), arg(state), arg(starts_at), arg(ends_at)];
        self.script("set_state", &[self.key(shard).shard()], &args)
    }

    fn permit(&self, shard: u16, asked: Asked) -> String {
        let run_id = self.subject.server.as_str();
        let run_id = if asked.is_here { run_id } else { &run_id[1..] };
        let args = [
            arg(asked.epoch),
            arg(asked.for_ms),
            arg(asked.memory_max),
            arg(asked.age_max),
            arg(run_id),
            arg(u8::from(asked.renewal)),
            arg(self.now),
        ];
        let mut keys = preloaded(self.key(shard));
        keys.insert(2, self.key(shard).halt());
        self.script("permit", &keys, &args)
    }

    fn stop(&self, shard: u16, halt: bool) -> String {
        let key = self.key(shard);
        // A halt that no case outlives.
        let args = [arg(if halt { 60_000 } else { 0 })];
        self.script("stop", &[key.shard(), key.halt()], &args)
    }

    /// Every order: its shopper, its key's number, its item and quantity.
    fn orders(&self) -> Vec<(usize, usize, usize, u32)> {
        let mut orders = Vec::new();
        for user in 0..USERS.len() {
            let Some(shopper) = self.shards[home(user)].shoppers.get(&user) else {
                continue;
            };
            for key in 0..KEYS {
                if let Some(order) = shopper.orders.get(&order_id(user, key)) {
                    orders.push((user, key, order.item, order.quantity));
                }
            }
        }
        orders
    }

    /// Takes one step on both sides and compares the answers, the state of the shards that it touched, and the sums.
    pub fn take(&mut self, step: &Step) -> Result<(), String> {
        if let Some((redis, model)) = self.both(step) {
            same("the answer", &redis, &model)?;
        }
        let touched = self.touched.take();
        self.compare(touched)
    }

    /// Compares the state of all shards.
    pub fn end(&mut self) -> Result<(), String> {
        self.compare((0..SHARDS).collect())
    }

    fn compare(&mut self, shards: BTreeSet<u16>) -> Result<(), String> {
        for shard in &shards {
            let reading = self.read(*shard)?;
            self.readings.insert(*shard, reading);
        }
        for item in SKUS {
            count(&item.parse().unwrap(), self.readings.values())?;
        }
        for shard in shards {
            self.compare_shard(shard, self.readings[&shard].clone())
                .map_err(|wrong| format!("shard {shard}: {wrong}"))?;
        }
        // Those that this comparison has only read.
        self.touched.take();
        Ok(())
    }

    /// The answers of Redis and of the model; nothing if the step has no call.
    fn both(&mut self, step: &Step) -> Option<(String, String)> {
        let now = self.now;
        Some(match *step {
            Step::Wait(ms) => {
                self.now += ms;
                return None;
            }
            Step::Purchase {
                user,
                key,
                item,
                quantity,
            } => self.purchase(user, key, item, quantity),
            Step::Repeat { nth } => {
                let orders = self.orders();
                let (user, key, item, quantity) = *orders.get(nth % orders.len().max(1))?;
                self.purchase(user, key, item, quantity)
            }
            Step::Resolve { nth, state } => {
                let orders = self.orders();
                let (user, key, item, _) = *orders.get(nth % orders.len().max(1))?;
                self.resolve(user, order_id(user, key), item, OrderState::from_code(state)?)
            }
            Step::ResolveUnknown { user, key } => self.resolve(
                user,
                OrderId::derive(2, &SECRET, &super::subject::user(user), &super::subject::key(key)),
                0,
                OrderState::Paid,
            ),
            Step::Out { transfer, wanted } => {
                let (from, to, item) = route(transfer);
                let (key, id) = (self.key(from), transfer_id(transfer));
                let destination = to.map_or_else(|| "ledger".to_owned(), |shard| shard.to_string());
                let keys = [key.item(&sku(item)), key.shard(), key.transfers(), key.applied()];
                let args = [
                    arg(id.to_string()),
                    arg(SKUS[item]),
                    arg(destination),
                    arg(wanted),
                    arg(now),
                    arg(now),
                ];
                let redis = self.script("transfer_out", &keys, &args);
                if let Some(units) = redis.strip_prefix("OUT ") {
                    let (units, epoch) = units.split_once(' ')?;
                    self.sent[transfer] = (units.parse().ok()?, epoch.parse().ok()?);
                }
                (
                    redis,
                    self.shards[usize::from(from)].transfer_out(id, to, item, wanted, now),
                )
            }
            Step::In { transfer } => {
                let (_, to, _) = route(transfer);
                self.come_in(transfer, to?)?
            }
            Step::GiveBack { transfer } => {
                let (from, to, _) = route(transfer);
                if to.is_some() {
                    return None;
                }
                self.come_in(transfer, from)?
            }
            Step::Done { transfer } => {
                let (from, ..) = route(transfer);
                let (key, id) = (self.key(from), transfer_id(transfer));
                let keys = [key.transfers(), key.applied()];
                let redis = self.script("transfer_done", &keys, &[arg(id.to_string())]);
                (redis, self.shards[usize::from(from)].transfer_done(id))
            }
            Step::WithdrawDone { transfer, astray } => {
                let (from, _, item) = route(transfer);
                let item = if astray { 1 - item } else { item };
                let (key, id) = (self.key(from), transfer_id(transfer));
                let keys = [key.item(&sku(item)), key.transfers(), key.applied()];
                let redis = self.script("withdraw_done", &keys, &[arg(id.to_string()), arg(SKUS[item])]);
                (redis, self.shards[usize::from(from)].withdraw_done(id, item))
            }
            Step::Restock { restock, units } => {
                let shard = u16::try_from(restock).ok()? % SHARDS;
                let (key, id, item) = (self.key(shard), restock_id(restock), restock / 3 % 2);
                let args = [arg(id.to_string()), arg(units), arg(EPOCH)];
                let keys = [key.item(&sku(item)), key.shard(), key.applied()];
                let redis = self.script("restock", &keys, &args);
                (redis, self.shards[usize::from(shard)].restock(id, item, units))
            }
            Step::SetState {
                shard,
                version,
                state,
                starts_in,
                ends_in,
            } => {
                let version = self.shards[usize::from(shard)].version + version;
                let state = (state, now + starts_in, now + ends_in);
                let redis = self.set_state(shard, version, state);
                (redis, self.shards[usize::from(shard)].set_state(version, state))
            }
            Step::Permit {
                shard,
                epoch,
                for_ms,
                memory_max,
                age_max,
                is_here,
                renewal,
            } => {
                // The instances of the kept version bound the number of events in this place.
                let memory_max = if self.subject.versions.len() > 1 {
                    1000
                } else {
                    memory_max
                };
                let asked = Asked {
                    epoch: EPOCH + epoch,
                    for_ms,
                    memory_max,
                    age_max,
                    is_here,
                    renewal,
                };
                let redis = self.permit(shard, asked);
                (redis, self.shards[usize::from(shard)].permit(asked, now))
            }
            Step::Stop { shard, ends: true, .. } => {
                let _there: i64 = self.subject.raw.call(redis::cmd("DEL").arg(self.key(shard).halt()));
                self.shards[usize::from(shard)].halted = false;
                return None;
            }
            Step::Stop { shard, halt, .. } => (self.stop(shard, halt), self.shards[usize::from(shard)].stop(halt)),
            Step::Fence { shard, ref lenders } => {
                let lenders: Vec<(u16, i64)> = lenders.iter().map(|(of, epoch)| (*of, EPOCH + epoch)).collect();
                let args: Vec<Vec<u8>> = lenders.iter().flat_map(|(of, epoch)| [arg(*of), arg(*epoch)]).collect();
                let redis = self.script("fence", &[self.key(shard).fences()], &args);
                (redis, self.shards[usize::from(shard)].fence(&lenders))
            }
            Step::Preload { shard } => (self.preload(shard), "ALREADY".to_owned()),
            Step::PreloadPart { shard, lost } => {
                (self.preload_part(shard, lost), "ERR MISSING keys, 0 written".to_owned())
            }
            Step::Drain { shard, events } => {
                let (key, model) = (self.key(shard), &mut self.shards[usize::from(shard)]);
                model.drained = model.seq.min(model.drained + events);
                let trimmed = trim(&self.subject.stock, key, model.drained);
                self.subject.runtime.block_on(trimmed);
                return None;
            }
        })
    }

    fn purchase(&mut self, user_number: usize, key_number: usize, item: usize, quantity: u32) -> (String, String) {
        let shard = self.key(u16::try_from(home(user_number)).unwrap());
        let (user, key, order) = (user(user_number), key(key_number), order_id(user_number, key_number));
        let identity = format!("{}\n{}", key.as_str(), user.as_str());
        let keys = [
            shard.shard(),
            shard.item(&sku(item)),
            shard.buyer(&user),
            shard.events(),
        ];
        let is_left = self.shards[home(user_number)].is_left(user_number, order);
        let (mut redis, mut modelled) = (Vec::new(), Vec::new());
        let mut ask = |probed: Option<u8>| {
            let number = probed.map(|number| number.to_string()).unwrap_or_default();
            let args = [
                arg(order.0.as_bytes()),
                arg(quantity),
                arg(&identity),
                arg(number),
                arg(self.now),
            ];
            redis.push(self.script("purchase", &keys, &args));
            let model = &mut self.shards[home(user_number)];
            modelled.push(model.purchase(user_number, order, (item, quantity), probed, self.now));
            let number = modelled.last()?.strip_prefix("ASK_LEDGER ")?;
            number.parse::<u8>().ok()
        };
        // After an `ASK_LEDGER`, the replay probe is made; an older one does not count.
        if let Some(number) = ask(None) {
            ask(Some(number.wrapping_sub(1)));
            if !is_left {
                ask(Some(number));
            }
        }
        (redis.join(", "), modelled.join(", "))
    }

    fn resolve(&mut self, user_number: usize, order: OrderId, item: usize, state: OrderState) -> (String, String) {
        let shard = self.key(u16::try_from(home(user_number)).unwrap());
        let args = [arg(order.0.as_bytes()), arg(state.code()), arg(self.now)];
        let keys = [shard.item(&sku(item)), shard.buyer(&user(user_number))];
        let redis = self.script("resolve", &keys, &args);
        (
            redis,
            self.shards[home(user_number)].resolve(user_number, order, state, self.now),
        )
    }

    fn come_in(&mut self, transfer: usize, to: u16) -> Option<(String, String)> {
        let (from, _, item) = route(transfer);
        let (key, id, (units, epoch)) = (self.key(to), transfer_id(transfer), self.sent[transfer]);
        if units == 0 {
            return None;
        }
        let args = [
            arg(id.to_string()),
            arg(units),
            arg(from),
            arg(epoch),
            arg(EPOCH),
            arg(""),
            arg(self.now),
        ];
        let keys = [key.item(&sku(item)), key.shard(), key.fences(), key.applied()];
        let redis = self.script("transfer_in", &keys, &args);
        let model = &mut self.shards[usize::from(to)];
        Some((redis, model.transfer_in(id, (item, units), (from, epoch), self.now)))
    }

    fn read(&self, shard: u16) -> Result<ShardReading, String> {
        let reading = self.subject.stock.read_shard(&self.sale, shard, 1000);
        self.subject
            .runtime
            .block_on(reading)
            .map_err(|fault| format!("{fault:?}"))
    }

    fn compare_shard(&self, shard: u16, reading: ShardReading) -> Result<(), String> {
        let model = &self.shards[usize::from(shard)];
        model.check()?;
        for (item, sku) in SKUS.iter().enumerate() {
            let sku: Sku = sku.parse().unwrap();
            let counters = reading.counters(&sku);
            same(&format!("the units of {sku}"), &counters, &model.items[item])?;
        }
        let (state, starts_at, ends_at) = model.state;
        let record = ShardRecord {
            lifecycle: Lifecycle::from_code(state).unwrap(),
            brake: model.brake,
            permit_until: model.permit_until,
            starts_at,
            ends_at,
            state_version: model.version,
            epoch: EPOCH,
        };
        same("the shard", &reading.record, &record)?;

        let mut sent: Vec<_> = reading
            .transfers
            .into_iter()
            .map(|sent| {
                let to = match sent.to {
                    Destination::Shard(shard) => Some(shard),
                    Destination::Ledger => None,
                };
                (sent.id, to, sent.sku.to_string(), sent.units, sent.sent_at, sent.epoch)
            })
            .collect();
        sent.sort();
        let expected = model.transfers.iter();
        let expected: Vec<_> = expected
            .map(|(id, sent)| (*id, sent.to, SKUS[sent.item].to_owned(), sent.units, sent.at, EPOCH))
            .collect();
        same("transfers on their way", &sent, &expected)?;
        let mut applied: Vec<String> = self
            .subject
            .raw
            .call(redis::cmd("SMEMBERS").arg(self.key(shard).applied()));
        applied.sort();
        let expected: Vec<String> = model.applied.iter().map(Uuid::to_string).collect();
        same("finished ids", &applied, &expected)?;

        let fences: BTreeMap<u16, i64> = self
            .subject
            .raw
            .call(redis::cmd("HGETALL").arg(self.key(shard).fences()));
        same("fences", &fences, &model.fences)?;

        // One event for each reserved order, numbered from 1 without a gap, and gone only when it was drained.
        let first = usize::try_from(model.drained).unwrap();
        let mut expected = Vec::new();
        for ((user_number, order), seq) in model.events.iter().zip(1..).skip(first) {
            let record = &model.shoppers[user_number].orders[order];
            let at = Position { epoch: EPOCH, seq };
            let item = u16::try_from(record.item).unwrap();
            expected.push((at, *order, user(*user_number), item, record.quantity, record.created_at));
        }
        let mut events = Vec::new();
        for event in reading.events {
            let reserved = event.reserved.map_err(|error| error.to_string())?;
            let (item, quantity) = (reserved.item, reserved.quantity);
            let key = reserved.key.clone();
            let made = (0..USERS.len()).flat_map(|user| (0..KEYS).map(move |key| (user, key)));
            let mut of_this = made.filter(|(user, key)| order_id(*user, *key) == reserved.order);
            let made = of_this.next().map(|(made, by)| (user(made), self::key(by)));
            same("an event's order", &made, &Some((reserved.user.clone(), key)))?;
            events.push((
                event.position,
                reserved.order,
                reserved.user,
                item,
                quantity,
                reserved.created_at,
            ));
        }
        same("events", &events, &expected)?;
        same("how many there are", &reading.undrained, &(model.seq - model.drained))?;

        let nobody = Shopper::default();
        for user in (0..USERS.len()).filter(|user| home(*user) == usize::from(shard)) {
            let shopper = model.shoppers.get(&user).unwrap_or(&nobody);
            self.compare_shopper(shard, user, shopper)
                .map_err(|wrong| format!("shopper {user}: {wrong}"))?;
        }
        Ok(())
    }

    /// Compares a shopper byte for byte with the layout in `src/stock/record.rs`.
    fn compare_shopper(&self, shard: u16, user_number: usize, shopper: &Shopper) -> Result<(), String> {
        let packed = |number: usize, width: usize| number.to_be_bytes()[8 - width..].to_vec();
        let time = |at: Millis| packed(usize::try_from(at).unwrap(), 6);
        let orders = shopper.here();
        let mut expected = Vec::new();
        if !shopper.window.is_empty() || !orders.is_empty() {
            expected.extend(time(0));
            expected.push(shopper.number());
            expected.extend(packed(shopper.items.len(), 2));
            expected.extend(packed(shopper.window.len(), 3));
        }
        for item in &shopper.items {
            expected.extend(packed(*item, 2));
            expected.extend(shopper.units(*item).to_be_bytes());
        }
        for (at, order) in &shopper.window {
            expected.extend(time(*at));
            expected.extend(&order.0.as_bytes()[10..]);
        }
        for (id, order) in &orders {
            expected.extend(id.0.as_bytes());
            expected.push(order.state.code());
            expected.extend(packed(order.item, 2));
            expected.extend(order.quantity.to_be_bytes());
            expected.extend(time(order.created_at));
            expected.extend(time(order.resolved_at));
            let event = format!("{EPOCH}-{}", order.seq);
            expected.extend(packed(event.len(), 1));
            expected.extend(event.into_bytes());
        }
        let key = self.key(shard).buyer(&user(user_number));
        let row: Option<Vec<u8>> = self.subject.raw.call(redis::cmd("GET").arg(&key));
        same("the row", &row.unwrap_or_default(), &expected)?;
        let expires: bool = self.subject.raw.call::<i64>(redis::cmd("PTTL").arg(&key)) >= 0;
        same(
            "whether it expires",
            &expires,
            &(shopper.orders.is_empty() && !shopper.window.is_empty()),
        )
    }
}

/// No unit of an item is lost between the shards, and none appears.
fn count<'a>(sku: &Sku, readings: impl Iterator<Item = &'a ShardReading>) -> Result<(), String> {
    let mut sum = Counters::default();
    for reading in readings {
        let counters = reading.counters(sku);
        if !counters.balance() {
            return Err(format!(
                "{sku} on shard {} does not balance: {counters:?}",
                reading.shard
            ));
        }
        sum = sum.plus(&counters);
    }
    let accounted = sum.available + sum.held + sum.sold + sum.revoked + sum.in_transit() + sum.withdrawn;
    same(&format!("all units of {sku}"), &accounted, &sum.granted)?;
    if sum.in_transit() < 0 {
        return Err(format!("more units of {sku} have arrived than were sent: {sum:?}"));
    }
    Ok(())
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        for shard in 0..SHARDS {
            let key = self.key(shard);
            let mut unlink = redis::cmd("UNLINK");
            unlink
                .arg(preloaded(key))
                .arg(&[key.transfers(), key.applied(), key.fences()]);
            for user_number in 0..USERS.len() {
                unlink.arg(key.buyer(&user(user_number)));
            }
            let _removed: i64 = self.subject.raw.call(&mut unlink);
        }
    }
}
