//! `bench ceiling` measures the limits of the parts, and the share of each limit that the whole program reaches.

use super::load::{self, Tally, Window, real};
use super::numbers::{NOT_MEASURED, cell, grouped, median, ratio};
use super::plot::{Plot, Series};
use super::report::{Goal, Report, Side, Table};
use super::resp::{self, Commands, Ran, Reply};
use super::shoppers::{Question, Shoppers, script_calls, sku};
use super::world::{Micros, OwnRedis, Plan, Terms, Used, World, backlog, fill, in_words, middle};
use super::{Bench, Options, sql};
use crate::program::Program;
use anyhow::{Result, bail};
use chrono::{TimeDelta, Utc};
use flashsale::domain::ids::SaleId;
use flashsale::domain::sale::{Durability, Item, Lifecycle, PurchaseRate, Sale, SaleSecret};
use flashsale::domain::sale_guards::SaleGuards;
use flashsale::flow::settle::drain::BATCH_MAX;
use flashsale::stock::Stock;
use flashsale::stock::keys::ShardKey;
use flashsale::stock::permit::{Permit, Permitted};
use flashsale::stock::script::PURCHASE;
use serde::Serialize;
use serde_json::json;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Connections of the two crowds.
const CROWDS: [usize; 2] = [64, 128];
/// The share of the peak rate at which latency is measured.
const SHARE_OF_PEAK: f64 = 0.7;
/// The most purchases or refusals a second on two cores; an upper bound for the number of shoppers.
const RATE_MAX: f64 = 60_000.0;
/// The time limit for draining a backlog.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// The Redis commands that the purchase script runs for a shopper's first purchase. The keys and bytes are as many, and
/// the script decides nothing. No script with these four commands can be faster.
const BARE: &str = "#!lua
redis.call('TIME')
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local head = '1234567890123456789'
local id = redis.call('XADD', KEYS[4], 'NOMKSTREAM', '1-*', 'reserved', head .. ARGV[1] .. ARGV[3])
redis.call('MSET', KEYS[2], found[2], KEYS[3], '123456789012123456123456123456' .. ARGV[1] .. head .. id)
return head .. id";
/// A permit that outlasts the measurement of a part.
const PERMIT: Duration = Duration::from_secs(60);

/// The figures of one round; `None` where nothing was measured.
#[derive(Clone, Debug, Default, Serialize)]
struct Round {
    set: Option<f64>,
    script: Option<f64>,
    /// The commands of the purchase script without its decisions.
    bare: Option<f64>,
    set_on_disk: Option<f64>,
    script_on_disk: Option<f64>,
    endpoint: Option<f64>,
    /// One for each of [`CROWDS`].
    accepted: Vec<Option<f64>>,
    accepted_p50_ms: Vec<Option<f64>>,
    accepted_p99_ms: Vec<Option<f64>>,
    sold_out: Option<f64>,
    at_share_rate: Option<f64>,
    at_share_p50_ms: Option<f64>,
    at_share_p99_ms: Option<f64>,
    drain: Option<f64>,
    insert: Option<f64>,
    /// For each accepted purchase of the last crowd.
    micros: Micros,
    /// For each accepted purchase at [`SHARE_OF_PEAK`].
    at_share_micros: Micros,
    /// For each reply of the empty endpoint; the next field is for each refusal.
    endpoint_micros: Micros,
    sold_out_micros: Micros,
}

impl Round {
    fn peak(&self) -> Option<f64> {
        self.accepted.iter().copied().flatten().reduce(f64::max)
    }
}

/// A database, and the plans that start the program on it.
struct Home {
    database: String,
    all: Plan,
    api: Plan,
    worker: Plan,
}

impl Home {
    fn new(bench: &Bench, world: &World, number: usize) -> Result<Self> {
        let database = world.database(bench, &format!("ceiling_{number}"), true)?;
        let redis = world.redis.url()?;
        let plan = |role| world.plan(role, &["serve", "--role", role], &redis, &database);
        Ok(Self {
            all: plan("all")?,
            api: plan("api")?,
            worker: plan("worker")?,
            database,
        })
    }
}

struct Stage<'a> {
    bench: &'a Bench,
    world: &'a World,
    shoppers: &'a Shoppers,
    /// The servers for the parts: one in memory, and one that has each write on disk before it replies.
    parts: [OwnRedis; 2],
    home: Home,
    window: Window,
    salt: std::cell::Cell<u32>,
    remarks: std::cell::RefCell<Vec<String>>,
}

/// Runs the measurement; it does not write the report.
pub fn run(options: Options) -> Result<Report> {
    let rounds = options.rounds(3);
    let window = options.window(5.0);
    let crowds: Vec<usize> = options.clients.map_or_else(|| CROWDS.to_vec(), |it| vec![it]);
    let bench = Bench::new(options, 2 + rounds * (6 + crowds.len()))?;
    let options = &bench.options;
    let mut report = Report::begin(
        "ceiling",
        "What the parts could do, and what the whole does",
        options.quick,
        options.seed,
    );
    bench.step("starting Redis and Postgres")?;
    let world = World::start(&options.data)?;
    world.describe(&bench, &mut report)?;
    let shoppers = Shoppers::of(options.shoppers(window, RATE_MAX), &world.secrets.jwt)?;
    let mut stage = Stage {
        bench: &bench,
        world: &world,
        shoppers: &shoppers,
        parts: [
            world.another_redis("parts-in-memory", false, &[])?,
            // Redis must not rewrite its append-only file during a measurement.
            world.another_redis("parts-on-disk", true, &[("auto-aof-rewrite-percentage", "0")])?,
        ],
        home: Home::new(&bench, &world, 1)?,
        window,
        salt: std::cell::Cell::new(options.first_salt()),
        remarks: std::cell::RefCell::default(),
    };
    let mut measured = Vec::with_capacity(rounds);
    for number in 1..=rounds {
        if number > 1 {
            // Each round has a new database, as the first round has.
            stage.home = Home::new(&bench, &world, number)?;
        }
        let round = stage.round(number, &crowds)?;
        bench.say(&line(number, &round));
        measured.push(round);
    }
    bench.step("memory of many purchases")?;
    let orders = options.size(3_000, 1_000_000);
    let bytes = stage.bytes_a_purchase(orders)?;
    tell(&mut report, &stage, &crowds, &measured, (orders, bytes));
    report.end();
    Ok(report)
}

fn line(number: usize, round: &Round) -> String {
    format!(
        "round {number}: SET {}/s, script {}/s, on disk {}/s; accepted {}/s, sold out {}/s, drain {}/s",
        cell(round.set, 0),
        cell(round.script, 0),
        cell(round.script_on_disk, 0),
        cell(round.peak(), 0),
        cell(round.sold_out, 0),
        cell(round.drain, 0),
    )
}

impl Stage<'_> {
    fn salt(&self) -> u32 {
        self.salt.replace(self.salt.get() + 1)
    }

    fn remark(&self, remark: String) {
        self.bench.say(&remark);
        self.remarks.borrow_mut().push(remark);
    }

    fn round(&self, number: usize, crowds: &[usize]) -> Result<Round> {
        let mut round = Round::default();
        let title = |what: &str| format!("round {number}: {what}");
        for (part, name) in self.parts.iter().zip(["in memory", "on disk"]) {
            self.bench.step(&title(&format!("SET and the script, {name}")))?;
            let (set, script) = (Some(self.set(part)?), Some(self.script(part)?));
            if name == "in memory" {
                (round.set, round.script) = (set, script);
                round.bare = Some(self.bare(part)?);
            } else {
                (round.set_on_disk, round.script_on_disk) = (set, script);
            }
        }
        let program = self.home.all.start()?;
        self.bench.step(&title("the empty endpoint"))?;
        (round.endpoint, round.endpoint_micros) = self.endpoint(&program, crowds)?;
        for clients in crowds {
            self.bench.step(&title(&format!("purchases of {clients} clients")))?;
            let (tally, micros) = self.purchases(&program, *clients)?;
            let it = tally.percentiles(201, "");
            round.accepted.push(tally.rate(201, ""));
            round.accepted_p50_ms.push(it.p50_ms);
            round.accepted_p99_ms.push(it.p99_ms);
            round.micros = micros;
        }
        self.bench.step(&title("refusals of a sold-out sale"))?;
        (round.sold_out, round.sold_out_micros) = self.sold_out(&program, crowds)?;
        self.bench.step(&title("latency below the peak"))?;
        if let Some(peak) = round.peak() {
            let (tally, micros) = self.at_rate(&program, peak * SHARE_OF_PEAK)?;
            round.at_share_micros = micros;
            let it = tally.percentiles(201, "");
            round.at_share_rate = tally.rate(201, "");
            (round.at_share_p50_ms, round.at_share_p99_ms) = (it.p50_ms, it.p99_ms);
        }
        program.stop();
        self.bench.step(&title("the drain, and raw inserts"))?;
        self.drain(&mut round, number)?;
        // After an outage the worker extends the holds. That work is no cost of the purchases.
        if self.bench.wait_for(sql::outages(&self.home.database))? > 0 {
            self.remark(title(
                "no worker came for more than five seconds, which was made up for by extending holds",
            ));
        }
        Ok(round)
    }

    /// The number of script calls in one stretch.
    fn calls(&self) -> usize {
        self.bench.options.size(2_000, 100_000)
    }

    /// Commands a second of a part. It repeats `stretch` until the stretches together last half a window. Each stretch
    /// starts from the same state. The first quarter is a warm-up. Only the time with commands under way counts.
    fn part(&self, mut stretch: impl FnMut() -> Result<Ran>) -> Result<f64> {
        let mut ask_for = |length: Duration| -> Result<f64> {
            let (mut all, mut seconds) = (0, 0.0);
            while seconds < length.as_secs_f64() {
                let ran = stretch()?;
                (all, seconds) = (all + ran.all, seconds + ran.seconds);
            }
            Ok(real(all) / seconds.max(1e-9))
        };
        ask_for(self.window.warm / 2)?;
        ask_for(self.window.measured / 2)
    }

    /// Pipelined `SET`s a second, each with a new key.
    fn set(&self, part: &OwnRedis) -> Result<f64> {
        let mut commands = Commands::default();
        for n in 0..self.calls() * 3 {
            commands.add(&[b"SET", format!("key:{n:012}").as_bytes(), b"value"]);
        }
        let is_ok = |reply: &Reply| matches!(reply, Reply::Status(_));
        self.part(|| {
            let ran = resp::run(&part.socket()?, &commands, is_ok, &self.bench.stop)?;
            part.connect()?.call(&["FLUSHALL", "SYNC"])?;
            if ran.good < ran.all {
                bail!("SET was refused");
            }
            Ok(ran)
        })
    }

    /// Purchases a second of the script alone; each shopper buys for the first time.
    fn script(&self, part: &OwnRedis) -> Result<f64> {
        self.calls_of(PURCHASE.get_hash(), part)
    }

    /// The same for [`BARE`], which runs the same commands and decides nothing.
    fn bare(&self, part: &OwnRedis) -> Result<f64> {
        match part.connect()?.call(&["SCRIPT", "LOAD", BARE])? {
            Reply::Bulk(Some(hash)) => self.calls_of(&String::from_utf8(hash)?, part),
            other => bail!("the bare script was not loaded: {other:?}"),
        }
    }

    fn calls_of(&self, script: &str, part: &OwnRedis) -> Result<f64> {
        let sale = sale();
        let calls = script_calls(script, &sale, 0..self.calls(), self.salt())?;
        let is_order = |reply: &Reply| matches!(reply, Reply::Bulk(Some(_)));
        self.part(|| {
            self.permit(part, &sale)?;
            let ran = resp::run(&part.socket()?, &calls, is_order, &self.bench.stop)?;
            // The next stretch must find no purchases of its shoppers.
            part.connect()?.call(&["FLUSHALL", "SYNC"])?;
            if ran.good < ran.all {
                bail!(
                    "{} of {} purchases by the script were refused",
                    ran.all - ran.good,
                    ran.all
                );
            }
            Ok(ran)
        })
    }

    /// Loads a sale as the application does, and gives its only shard a permit.
    fn permit(&self, part: &OwnRedis, sale: &Sale) -> Result<()> {
        let url = part.url()?;
        self.bench.wait_for(async {
            let stock = Stock::connect(&url).await?;
            let shard = ShardKey {
                sale: sale.id,
                shard: 0,
            };
            stock.preload(sale, 0, 1).await?;
            stock.set_state(sale, 0).await?;
            stock.admit(shard).await?;
            let permit = Permit {
                epoch: 1,
                run_id: &stock.run_id(shard).await?,
                holds: PERMIT,
                memory_max: 1000,
                age_max: PERMIT * 10,
                renewal: false,
            };
            match stock.permit(sale, 0, &permit, None).await? {
                Permitted::Yes { brake: false, .. } => Ok(()),
                other => bail!("the shard was not permitted to sell: {other:?}"),
            }
        })
    }

    /// Bytes of Redis that each purchase leaves after the drain has removed its event.
    fn bytes_a_purchase(&self, orders: usize) -> Result<f64> {
        const AT_ONCE: usize = 100_000;
        let [part, _] = &self.parts;
        let (sale, salt) = (sale(), self.salt());
        self.permit(part, &sale)?;
        let mut redis = part.connect()?;
        let before = redis.memory()?;
        for from in (0..orders).step_by(AT_ONCE) {
            // The permit may have ended, because nothing renews it here.
            self.permit(part, &sale)?;
            let range: Range<usize> = from..orders.min(from + AT_ONCE);
            fill(self.bench, &part.socket()?, &sale, range, salt)?;
        }
        // As the drain does after its commit.
        let events = ShardKey {
            sale: sale.id,
            shard: 0,
        }
        .events();
        redis.number(&["XTRIM", &events, "MAXLEN", "0"])?;
        let bytes = (redis.memory()? - before) / real(orders);
        redis.call(&["FLUSHALL", "SYNC"])?;
        Ok(bytes)
    }

    /// Runs the load, and gives the tally and the processor time for each reply with this status and code. If the load
    /// buys from `sale`, its drain is part of the processor time.
    fn measured(
        &self,
        program: &Program,
        sale: Option<&Sale>,
        (status, code): (u16, &str),
        ask: impl Future<Output = Result<Tally>>,
    ) -> Result<(Tally, Micros)> {
        let redis = [self.world.redis.pid()?];
        let before = self.world.used(&redis, program.pid());
        let tally = self.bench.wait_for(ask)?;
        self.bench.go_on()?;
        // Draining the purchases is part of their cost.
        if let Some(sale) = sale {
            self.world.drained(self.bench, sale)?;
        }
        let after = self.world.used(&redis, program.pid());
        // The requests of the warm-up cost processor time too.
        let micros = after.micros_since(&before, tally.of_all_asked(status, code));
        Ok((tally, micros))
    }

    fn closed(&self, question: &Question<'_>, clients: usize) -> impl Future<Output = Result<Tally>> {
        load::closed(self.home.all.address, question, clients, self.window, &self.bench.stop)
    }

    fn calm(&self) -> Result<()> {
        self.world.calm(self.bench, &self.home.database)
    }

    fn note(&self, tally: &Tally, status: u16, code: &str, what: &str) {
        for remark in tally.remarks(status, code, what) {
            self.remark(remark);
        }
    }

    /// Replies a second of `GET /healthz`, with as many clients as the larger crowd.
    fn endpoint(&self, program: &Program, crowds: &[usize]) -> Result<(Option<f64>, Micros)> {
        self.calm()?;
        let question = Question::get(self.home.all.address, "/healthz");
        let asking = self.closed(&question, most(crowds));
        let (tally, micros) = self.measured(program, None, (200, ""), asking)?;
        self.note(&tally, 200, "", "the empty endpoint");
        Ok((tally.rate(200, ""), micros))
    }

    fn sale(&self, terms: &Terms) -> Result<Sale> {
        self.world
            .sale(self.bench, self.home.all.address, &self.home.database, terms)
    }

    fn close(&self, sale: Sale) -> Result<()> {
        self.world.close(self.bench, self.home.all.address, &[sale])
    }

    /// Creates a sale, and the question that buys from it.
    fn on_sale(&self, terms: &Terms) -> Result<(Sale, Question<'_>)> {
        let sale = self.sale(terms)?;
        self.calm()?;
        let question = Question::purchases(self.home.all.address, &sale.id.to_string(), self.shoppers, self.salt());
        Ok((sale, question))
    }

    fn purchases(&self, program: &Program, clients: usize) -> Result<(Tally, Micros)> {
        let (sale, question) = self.on_sale(&Terms::default())?;
        let asking = self.closed(&question, clients);
        let (tally, micros) = self.measured(program, Some(&sale), (201, ""), asking)?;
        self.note(&tally, 201, "", &format!("purchases of {clients} clients"));
        self.close(sale)?;
        Ok((tally, micros))
    }

    /// Refusals a second of a sale whose only unit is sold.
    fn sold_out(&self, program: &Program, crowds: &[usize]) -> Result<(Option<f64>, Micros)> {
        let terms = Terms {
            stock: 1,
            ..Terms::default()
        };
        let (sale, question) = self.on_sale(&terms)?;
        let asking = self.closed(&question, most(crowds));
        let (tally, micros) = self.measured(program, None, (409, "sold_out"), asking)?;
        self.note(&tally, 409, "sold_out", "a sold-out sale");
        self.close(sale)?;
        Ok((tally.rate(409, "sold_out"), micros))
    }

    fn at_rate(&self, program: &Program, rate: f64) -> Result<(Tally, Micros)> {
        let (sale, question) = self.on_sale(&Terms::default())?;
        let server = self.home.all.address;
        let asking = load::open(server, &question, rate, 256, self.window, &self.bench.stop);
        let (tally, micros) = self.measured(program, Some(&sale), (201, ""), asking)?;
        self.note(&tally, 201, "", &format!("{rate:.0} purchases a second"));
        self.close(sale)?;
        Ok((tally, micros))
    }

    /// Measures a worker that drains a backlog, and plain inserts of the same rows. The rounds alternate which of the
    /// two is first. A round that inserts first uses an equal backlog that was drained before.
    fn drain(&self, round: &mut Round, number: usize) -> Result<()> {
        if number.is_multiple_of(2) {
            let (sale, _) = self.take_in()?;
            round.insert = self.insert(&sale)?;
            round.drain = self.take_in()?.1;
        } else {
            let (sale, rate) = self.take_in()?;
            round.drain = rate;
            round.insert = self.insert(&sale)?;
        }
        if round.drain.is_none() {
            self.remark("the backlog was gone before the drain could be watched".to_owned());
        }
        Ok(())
    }

    fn orders(&self) -> usize {
        self.bench.options.size(8_000, 100_000)
    }

    /// Fills a backlog while no worker drains, then measures a worker. Gives the sale, and the orders a second that the
    /// worker drained.
    fn take_in(&self) -> Result<(Sale, Option<f64>)> {
        let program = self.home.api.start()?;
        let sale = self.world.sale(
            self.bench,
            self.home.api.address,
            &self.home.database,
            &Terms::default(),
        )?;
        self.world.fill(self.bench, &sale, 0..self.orders(), self.salt())?;
        program.stop();
        self.calm()?;
        let rate = drain(self.bench, self.world, &sale, &self.home.worker)?;
        Ok((sale, rate))
    }

    /// Rows a second when the orders of a backlog are inserted once more.
    fn insert(&self, sale: &Sale) -> Result<Option<f64>> {
        self.calm()?;
        let inserting = sql::insert_again(&self.home.database, sale.id.0, BATCH_MAX);
        let (rows, seconds) = self.bench.wait_for(inserting)?;
        let orders = self.orders();
        if rows != orders {
            self.remark(format!("of {orders} orders in the backlog, the ledger has {rows}"));
        }
        Ok(ratio(Some(real(rows)), Some(seconds)))
    }
}

/// Starts a worker and measures how it drains a backlog, in orders a second.
///
/// The clock starts at the first poll that finds the backlog smaller, so the worker's start does not count. Each shard
/// may have one batch nearly done at that time; those batches do not count. `None` if no more orders were left.
pub fn drain(bench: &Bench, world: &World, sale: &Sale, worker: &Plan) -> Result<Option<f64>> {
    let mut redis = world.redis.connect()?;
    let waiting = backlog(&mut redis, sale)?;
    let mut first = None;
    let nearly_done = BATCH_MAX * usize::from(sale.shards);
    let (started, ended) = thread::scope(|scope| {
        let starting = scope.spawn(|| worker.start());
        let ended = bench.poll("the backlog is taken in", DRAIN_MAX, || {
            let left = backlog(&mut redis, sale)?;
            if left < waiting && first.is_none() {
                first = Some((Instant::now(), left));
            }
            Ok((left == 0).then(Instant::now))
        });
        (starting.join(), ended)
    });
    let worker = started.map_err(|_panic| anyhow::anyhow!("the start of a worker panicked"))??;
    worker.stop();
    let (ended, first) = (ended?, first);
    let rate = first.and_then(|(began, left)| {
        let orders = usize::try_from(left).ok()?.checked_sub(nearly_done)?;
        ratio(
            Some(real(orders)).filter(|it| *it > 0.0),
            Some((ended - began).as_secs_f64()),
        )
    });
    Ok(rate)
}

fn most(crowds: &[usize]) -> usize {
    crowds.iter().copied().max().unwrap_or(1)
}

/// A sale of one shard that no ledger has.
fn sale() -> Sale {
    let now = Utc::now();
    // This SKU is always valid.
    let items = sku(0).parse().ok().map(|sku| Item {
        sku,
        name: "An item".to_owned(),
        price_minor: 49_900,
        currency: "EUR".to_owned(),
        stock: 100_000_000,
        per_user_limit: 1,
    });
    Sale {
        id: SaleId(Uuid::new_v4()),
        number: 1,
        name: "Benchmark".to_owned(),
        lifecycle: Lifecycle::Active,
        state_version: 1,
        starts_at: now - TimeDelta::seconds(60),
        ends_at: now + TimeDelta::days(1),
        shards: 1,
        payment_window_seconds: 86_400,
        purchase_rate: PurchaseRate {
            limit: 5,
            window_ms: 60_000,
        },
        durability: Durability::Redis,
        guards: SaleGuards::default(),
        items: items.into_iter().collect(),
        secret: SaleSecret([7; 32]),
        created_at: now,
        retired: false,
        leaving: false,
    }
}

/// The figure of each round that has one.
fn all(rounds: &[Round], of: impl Fn(&Round) -> Option<f64>) -> Vec<f64> {
    rounds.iter().filter_map(of).collect()
}

fn tell(report: &mut Report, stage: &Stage<'_>, crowds: &[usize], rounds: &[Round], (orders, bytes): (usize, f64)) {
    report.intro = vec![format!(
        "Parts by themselves, and the whole of them: {} rounds, in each of which everything is measured once, one after \
         the other, for {:.1} s after a quarter of that which is not counted; SET and the script for half as long, in stretches of {} and {} commands \
         on a Redis that is empty before each, of which only the time counts in which commands were under way. The drain and the \
         raw insert are {} orders, however long they take. Redis has everything on disk before it answers (append-only file, fsync always) unless said \
         otherwise; so has Postgres. No Redis writes its file anew while anything is measured, and Postgres is vacuumed \
         and has everything in place before each window, the drain and the raw insert. Every purchase is of a shopper who has \
         not bought before.",
        rounds.len(),
        stage.window.measured.as_secs_f64(),
        grouped(real(stage.calls() * 3)),
        grouped(real(stage.calls())),
        grouped(real(stage.orders())),
    )];
    report.goals = goals(rounds, (orders, bytes), stage.orders(), report.machine.cores);
    let mut parts = Table::new(
        "A second",
        "The median of the rounds. Pipelined: over 16 connections with 32 commands under way on each. By HTTP: as fast as \
         answers come, with the drain at work beside it.",
        &["what", "a second", "lowest", "highest"],
    );
    let mut row = |what: &str, of: &dyn Fn(&Round) -> Option<f64>| {
        let figures = all(rounds, of);
        parts.row([
            what.to_owned(),
            cell(median(&figures), 0),
            cell(figures.iter().copied().reduce(f64::min), 0),
            cell(figures.iter().copied().reduce(f64::max), 0),
        ]);
    };
    row("SET, pipelined, no append-only file", &|it| it.set);
    row("purchase script, pipelined, no append-only file", &|it| it.script);
    row("its four commands in a script that decides nothing, the same", &|it| {
        it.bare
    });
    row("SET, pipelined", &|it| it.set_on_disk);
    row("purchase script, pipelined", &|it| it.script_on_disk);
    row(&format!("GET /healthz, {} clients", most(crowds)), &|it| it.endpoint);
    for (at, clients) in crowds.iter().enumerate() {
        row(&format!("accepted purchases, {clients} clients"), &|it| {
            it.accepted.get(at).copied().flatten()
        });
    }
    row(&format!("sold-out answers, {} clients", most(crowds)), &|it| {
        it.sold_out
    });
    row("orders drained, one worker, four shards", &|it| it.drain);
    row("such rows inserted raw, four connections", &|it| it.insert);
    report.tables.push(parts);

    let mut latency = Table::new(
        "Latency in milliseconds",
        "At a rate, counted from when a request was due.",
        &["how", "p50", "p99"],
    );
    for (at, clients) in crowds.iter().enumerate() {
        let middle = |of: &dyn Fn(&Round) -> &Vec<Option<f64>>| {
            cell(median(&all(rounds, |it| of(it).get(at).copied().flatten())), 2)
        };
        latency.row([
            format!("{clients} clients as fast as they are answered"),
            middle(&|it| &it.accepted_p50_ms),
            middle(&|it| &it.accepted_p99_ms),
        ]);
    }
    latency.row([
        format!(
            "at {:.0} % of the peak, {} a second",
            SHARE_OF_PEAK * 100.0,
            cell(median(&all(rounds, |it| it.at_share_rate)), 0)
        ),
        cell(median(&all(rounds, |it| it.at_share_p50_ms)), 2),
        cell(median(&all(rounds, |it| it.at_share_p99_ms)), 2),
    ]);
    report.tables.push(latency);

    let mut time = Table::new(
        "Processor time an answer",
        &format!(
            "Microseconds for each accepted purchase, its drain included: of {} clients as fast as they are answered, and at \
             {:.0} % of the peak; for each refusal of a sold-out sale; for each answer of the empty endpoint.",
            crowds.last().copied().unwrap_or_default(),
            SHARE_OF_PEAK * 100.0,
        ),
        &["who", "purchase", "below the peak", "refusal", "empty"],
    );
    let costs: [fn(&Round) -> Micros; 4] = [
        |it| it.micros,
        |it| it.at_share_micros,
        |it| it.sold_out_micros,
        |it| it.endpoint_micros,
    ];
    let costs = costs.map(|of| middle(&rounds.iter().map(of).collect::<Vec<_>>()));
    for (part, who) in Used::WHO.into_iter().enumerate() {
        let [first, second, third, fourth] = costs.map(|it| cell(it.get(part).copied().flatten(), 1));
        time.row([who.to_owned(), first, second, third, fourth]);
    }
    report.tables.push(time);
    report.plots.push(plot(rounds));
    report.notes = stage.remarks.borrow().clone();
    report.notes.push(format!(
        "Memory was measured with {} purchases by the script on one shard, each of another shopper, after their events \
         had been trimmed as the drain does.",
        grouped(real(orders))
    ));
    report.figures = json!({
        "crowds": crowds,
        "window_seconds": stage.window.measured.as_secs_f64(),
        "script_calls": stage.calls(),
        "rounds": rounds,
        "memory": {"orders": orders, "bytes_a_purchase": bytes},
    });
}

fn goals(rounds: &[Round], (orders, bytes): (usize, f64), rows: usize, cores: usize) -> Vec<Goal> {
    let shares = |of: &dyn Fn(&Round) -> Option<f64>| all(rounds, of);
    let words = |of: fn(&Round) -> Micros| {
        let cost = middle(&rounds.iter().map(of).collect::<Vec<_>>());
        in_words(&cost).unwrap_or_else(|| NOT_MEASURED.to_owned())
    };
    let busy = |it: &Round| {
        let micros: f64 = it.at_share_micros.iter().flatten().sum();
        ratio(Some(it.at_share_rate? * micros * 100.0), Some(real(cores) * 1e6))
    };
    let times =
        |of: fn(&Round) -> (Option<f64>, Option<f64>)| cell(median(&shares(&|it| ratio(of(it).0, of(it).1))), 2);
    vec![
        Goal::of(
            "purchase script ÷ pipelined SET, no append-only file",
            Side::AtLeast,
            0.16,
            &shares(&|it| ratio(it.script, it.set)),
        )
        .with_remark("the script's four commands alone, in one that decides nothing, are the row below it")
        .in_its_way(format!(
            "those four commands come to {} of SET, and the script to {} of them",
            times(|it| (it.bare, it.set)),
            times(|it| (it.script, it.bare))
        )),
        Goal::of(
            "accepted purchases over HTTP ÷ the script's own ceiling",
            Side::AtLeast,
            0.65,
            &shares(&|it| ratio(it.peak(), it.script_on_disk)),
        )
        .with_remark("the script alone has both processors and up to 512 calls under way")
        .in_its_way(format!("a purchase over HTTP takes {}", words(|it| it.micros))),
        Goal::of(
            "sold-out answers ÷ an empty endpoint (GET /healthz)",
            Side::AtLeast,
            0.6,
            &shares(&|it| ratio(it.sold_out, it.endpoint)),
        )
        .in_its_way(format!(
            "a refusal takes {}, an empty answer {}",
            words(|it| it.sold_out_micros),
            words(|it| it.endpoint_micros)
        )),
        Goal::of(
            "drain ÷ raw batch insert of the same rows",
            Side::AtLeast,
            0.6,
            &shares(&|it| ratio(it.drain, it.insert)),
        )
        .with_remark(format!(
            "{} rows each, once, without a part that is not counted; each is first in turn",
            grouped(real(rows))
        ))
        .in_its_way("the raw insert has neither foreign keys nor the arbiter's counts nor Redis to read from and to trim"),
        Goal::of(
            "p99 ÷ p50 at 70 % of the peak",
            Side::AtMost,
            5.0,
            &shares(&|it| ratio(it.at_share_p99_ms, it.at_share_p50_ms)),
        )
        .in_its_way(format!(
            "a purchase at that rate takes {}; all together keep the processors {} % busy, so that who comes beside another's \
             work waits for it",
            words(|it| it.at_share_micros),
            cell(median(&shares(&busy)), 0)
        )),
        Goal::of("Redis bytes a purchase after the drain", Side::AtMost, 350.0, &[bytes])
            .with_remark(format!("{} purchases", grouped(real(orders)))),
    ]
}

/// Plots the shares that have goals, by round.
fn plot(rounds: &[Round]) -> Plot {
    let line = |name: &str, of: fn(&Round) -> Option<f64>| Series {
        name: name.to_owned(),
        points: rounds
            .iter()
            .enumerate()
            .filter_map(|(at, it)| Some((real(at + 1), of(it)?)))
            .collect(),
        marks: Vec::new(),
    };
    Plot {
        title: "Shares, round by round".to_owned(),
        x: "rounds".to_owned(),
        y: "share of the ceiling".to_owned(),
        series: vec![
            line("accepted ÷ script", |it| ratio(it.peak(), it.script_on_disk)),
            line("script ÷ SET", |it| ratio(it.script, it.set)),
            line("sold out ÷ empty", |it| ratio(it.sold_out, it.endpoint)),
            line("drain ÷ insert", |it| ratio(it.drain, it.insert)),
        ],
        ..Plot::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_same_round_and_what_is_missing_is_not_measured() {
        let round = |accepted, script_on_disk| Round {
            accepted: vec![None, accepted],
            script_on_disk,
            ..Round::default()
        };
        let rounds = [
            round(Some(70.0), Some(100.0)),
            round(Some(30.0), Some(50.0)),
            round(None, Some(9.0)),
        ];
        let goals = goals(&rounds, (10, 240.0), 10, 2);
        assert_eq!(goals[1].rounds, [0.7, 0.6]);
        assert_eq!(goals[0].measured, None);
        assert_eq!(goals[5].measured, Some(240.0));
    }
}
