//! `bench scale` measures the cost of a purchase as sales grow, and computes from it the needs of many more purchases.

mod cluster;
mod expiry;
mod model;

use super::ceiling::drain;
use super::load::{self, Percentiles, Tally, Window, real};
use super::numbers::{NOT_MEASURED, cell, grouped, median, ratio};
use super::plot::{Plot, Series};
use super::report::{Goal, Report, Side, Table};
use super::shoppers::{Purchase, Question, Shoppers};
use super::sql;
use super::world::{Micros, Plan, Secrets, Terms, World, backlog, in_words, middle};
use super::{Bench, Options};
use crate::program::Program;
use anyhow::Result;
use cluster::{Cluster, OnCluster, reads};
use expiry::Expiry;
use flashsale::domain::sale::Sale;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde::Serialize;
use serde_json::json;
use std::cell::RefCell;
use std::time::Instant;

const CLIENTS: usize = 64;
/// The most purchases a second on two cores; an upper bound for the number of shoppers.
const RATE_MAX: f64 = 30_000.0;
/// The sizes in ascending order. Goals compare the first and the last size of items and of holds.
const ITEMS: [usize; 4] = [1, 10, 100, 1000];
const SHARDS: [usize; 5] = [1, 4, 16, 64, 256];
const SALES: [usize; 3] = [1, 10, 100];
const HOLDS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const FEW_HOLDS: [usize; 2] = [100, 1_000];
/// The turns of the two sizes of a goal, and the length of their windows. In fewer or shorter windows, the noise of a
/// single size exceeds the goals' tolerance.
const TURNS: usize = 5;
const TURN_SECONDS: f64 = 4.0;
/// The number of the first shopper who fills a sale; these shoppers have no tokens.
const FILLERS: usize = 100_000_000;

/// The figures of one size in one round.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    round: usize,
    what: &'static str,
    size: usize,
    a_second: Option<f64>,
    /// For each purchase, its drain included.
    micros: Micros,
    #[serde(flatten)]
    latency: Percentiles,
}

/// The figures of a million holds and of their drain.
#[derive(Clone, Debug, Default, Serialize)]
struct Many {
    holds: usize,
    bytes_a_purchase: Option<f64>,
    /// Bytes of Redis for each order that waits for the ledger, beside the bytes of its purchase.
    bytes_an_event: Option<f64>,
    fill_a_second: Option<f64>,
    drain_a_second: Option<f64>,
}

/// A world, an application in it, and the load on it.
struct Stage<'a> {
    bench: &'a Bench,
    world: World,
    database: String,
    all: Plan,
    shoppers: &'a Shoppers,
    clients: usize,
    window: Window,
    salt: u32,
    /// The next shopper of a sale that sells in more than one window.
    next: usize,
    remarks: &'a RefCell<Vec<String>>,
}

impl<'a> Stage<'a> {
    /// A stage on new servers.
    fn new(of: &Common<'a>) -> Result<Self> {
        let mut world = World::start(&of.bench.options.data)?;
        // All worlds share one JWT secret, so that the tokens are valid in each.
        world.secrets = of.secrets.clone();
        Self::start(of, world)
    }

    fn start(of: &Common<'a>, world: World) -> Result<Self> {
        let bench = of.bench;
        let database = world.database(bench, "scale", true)?;
        let all = world.plan("all", &["serve", "--role", "all"], &world.redis.url()?, &database)?;
        Ok(Self {
            bench,
            database,
            all,
            shoppers: of.shoppers,
            clients: of.clients(),
            window: of.window,
            salt: bench.options.first_salt(),
            next: 0,
            remarks: of.remarks,
            world,
        })
    }

    fn sale(&self, terms: &Terms) -> Result<Sale> {
        self.world.sale(self.bench, self.all.address, &self.database, terms)
    }

    fn calm(&self) -> Result<()> {
        self.world.calm(self.bench, &self.database)
    }

    fn remark(&self, remark: String) {
        self.bench.say(&remark);
        self.remarks.borrow_mut().push(remark);
    }

    fn note(&self, tally: &Tally, what: &str) {
        for remark in tally.remarks(201, "", what) {
            self.remark(remark);
        }
    }

    /// Purchases of these items of these sales in rotation, by shoppers without a purchase there. Gives the cost of
    /// each purchase, its drain included.
    fn purchases(
        &mut self,
        program: &Program,
        what: &str,
        (sales, items): (&[Sale], usize),
        from: usize,
        window: Window,
    ) -> Result<(Tally, Cost)> {
        self.calm()?;
        self.salt += 1;
        let of = sales
            .iter()
            .flat_map(|sale| (0..items).map(|item| Purchase::of(self.all.address, &sale.id.to_string(), item)));
        let question = Question::Purchases {
            of: of.collect(),
            shoppers: self.shoppers,
            from,
            salt: self.salt,
        };
        let redis = [self.world.redis.pid()?];
        let mut server = [self.world.redis.connect()?];
        let (before, reads_before) = (self.world.used(&redis, program.pid()), reads(&mut server)?);
        let asking = load::closed(self.all.address, &question, self.clients, window, &self.bench.stop);
        let tally = self.bench.wait_for(asking)?;
        self.bench.go_on()?;
        let all_reads = reads(&mut server)? - reads_before;
        for sale in sales {
            self.world.drained(self.bench, sale)?;
        }
        let after = self.world.used(&redis, program.pid());
        self.note(&tally, what);
        let purchases = tally.of_all_asked(201, "");
        let cost = Cost {
            a_second: tally.rate(201, ""),
            micros: after.micros_since(&before, purchases),
            reads: ratio(Some(all_reads), Some(purchases)),
        };
        Ok((tally, cost))
    }

    /// Stops a program whose servers are not used again.
    fn end(&self, program: Program) -> Result<()> {
        program.stop();
        self.look_for_outages()
    }

    /// Adds a remark if a worker found an outage. The worker then extends the holds, and that work is no cost of the
    /// purchases.
    fn look_for_outages(&self) -> Result<()> {
        if self.bench.wait_for(sql::outages(&self.database))? > 0 {
            self.remark(
                "no worker came for more than five seconds, which was made up for by extending holds".to_owned(),
            );
        }
        Ok(())
    }

    /// Creates the sales of one size, runs one window on them, and closes them.
    fn size(&mut self, program: &Program, of: Size, round: usize, window: Window) -> Result<(Tally, Cost)> {
        let Size { what, size } = of;
        let terms = of.terms()?;
        let count = if what == "sales" { size } else { 1 };
        let sales = self
            .world
            .sales(self.bench, self.all.address, &self.database, &terms, count)?;
        let name = format!("{what}, {size}, round {round}");
        let came_to = self.purchases(program, &name, (&sales, terms.items), 0, window)?;
        self.world.close(self.bench, self.all.address, &sales)?;
        Ok(came_to)
    }

    /// Runs a window on a sale that already has holds.
    fn again(&mut self, program: &Program, sale: &Sale, size: usize, round: usize, window: Window) -> Result<Measured> {
        let name = format!("live holds, {size}, round {round}");
        let sales = std::slice::from_ref(sale);
        let (tally, cost) = self.purchases(program, &name, (sales, 1), self.next, window)?;
        self.next += tally.asked;
        let what = "live holds";
        Ok(Measured::of(Size { what, size }, round, &tally, &cost))
    }
}

/// Measures one size on its own servers, because earlier sales would add cost. A worker maintains a closed sale for a
/// day, and Redis rebuilds its key table whenever the keys double.
fn alone(common: &Common<'_>, of: Size, round: usize, window: Window) -> Result<Measured> {
    let mut stage = Stage::new(common)?;
    let program = stage.all.start()?;
    let (tally, cost) = stage.size(&program, of, round, window)?;
    stage.end(program)?;
    Ok(Measured::of(of, round, &tally, &cost))
}

/// The values that all worlds of a run share.
#[derive(Clone, Copy)]
struct Common<'a> {
    bench: &'a Bench,
    secrets: &'a Secrets,
    shoppers: &'a Shoppers,
    window: Window,
    remarks: &'a RefCell<Vec<String>>,
}

impl Common<'_> {
    fn clients(&self) -> usize {
        self.bench.options.clients.unwrap_or(CLIENTS)
    }
}

#[derive(Clone, Copy)]
struct Size {
    what: &'static str,
    size: usize,
}

impl Size {
    fn terms(self) -> Result<Terms> {
        let terms = Terms::default();
        Ok(match self.what {
            "items" => Terms {
                items: self.size,
                ..terms
            },
            "shards" => Terms {
                shards: u16::try_from(self.size)?,
                ..terms
            },
            _ => terms,
        })
    }
}

impl Measured {
    fn of(size: Size, round: usize, tally: &Tally, cost: &Cost) -> Self {
        Self {
            round,
            what: size.what,
            size: size.size,
            a_second: cost.a_second,
            micros: cost.micros,
            latency: tally.percentiles(201, ""),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
struct Cost {
    a_second: Option<f64>,
    /// For each purchase: Redis, application, Postgres and generator.
    micros: Micros,
    /// Redis's reads from connections for each purchase, counted before the last orders were drained.
    reads: Option<f64>,
}

/// The rate and cost of purchases of one sale, the drain included.
fn cost(stage: &mut Stage<'_>, round: usize) -> Result<Cost> {
    let program = stage.all.start()?;
    let size = Size {
        what: "shards",
        size: usize::from(cluster::SHARDS),
    };
    let (_, cost) = stage.size(&program, size, round, stage.window)?;
    program.stop();
    Ok(cost)
}

/// The idle cost of each shard of an open sale with one instance, in microseconds a second. The parts are Redis, the
/// application and Postgres; the fourth is unused.
fn upkeep(stage: &Stage<'_>) -> Result<Micros> {
    let program = stage.all.start()?;
    let redis = [stage.world.redis.pid()?];
    let shards = SHARDS.last().copied().unwrap_or(1);
    let length = stage.window.measured * 2;
    let idle = || -> Result<_> {
        stage.calm()?;
        let before = stage.world.used(&redis, program.pid());
        let began = Instant::now();
        stage.bench.wait_for(async { tokio::time::sleep(length).await });
        stage.bench.go_on()?;
        let after = stage.world.used(&redis, program.pid());
        Ok(after.micros_since(&before, began.elapsed().as_secs_f64() * real(shards)))
    };
    let without = idle()?;
    let size = Size {
        what: "shards",
        size: shards,
    };
    let sale = stage.sale(&size.terms()?)?;
    let with = idle()?;
    stage.world.close(stage.bench, stage.all.address, &[sale])?;
    program.stop();
    let mut more = [None; 4];
    for (more, (with, without)) in more.iter_mut().zip(with.iter().zip(without)).take(3) {
        *more = with.zip(without).map(|(with, without)| (with - without).max(0.0));
    }
    Ok(more)
}

/// The number of turns of two sizes that have a goal.
fn turns(options: &Options) -> usize {
    options.rounds(TURNS)
}

const fn holds(is_quick: bool) -> &'static [usize] {
    if is_quick { &FEW_HOLDS } else { &HOLDS }
}

/// Runs the measurement; it does not write the report.
pub fn run(options: Options) -> Result<Report> {
    let rounds = options.rounds(3);
    let (window, long) = (options.window(3.0), options.window(TURN_SECONDS));
    let sizes = SHARDS.len() + SALES.len() + ITEMS.len() - 2;
    let turns = turns(&options);
    // The terms, in order: the start; costs here and on the cluster; idle shards; expiries and sizes; turns of two item
    // sizes; holds, their turns, and the drain.
    let steps = 1 + 2 * rounds + 1 + rounds * (sizes + 1) + 2 * turns + holds(options.quick).len() + turns + 1;
    let bench = Bench::new(options, steps)?;
    let options = &bench.options;
    let mut report = Report::begin(
        "scale",
        "What a purchase costs as sales grow",
        options.quick,
        options.seed,
    );
    bench.step("starting Redis and Postgres")?;
    let world = World::start(&options.data)?;
    world.describe(&bench, &mut report)?;
    // Each window of a sale that sells repeatedly needs new shoppers.
    let wanted = options.shoppers(window, RATE_MAX) * HOLDS.len() + options.shoppers(long, RATE_MAX) * turns;
    let secrets = world.secrets.clone();
    let shoppers = Shoppers::of(wanted, &secrets.jwt)?;
    let remarks = RefCell::default();
    let common = Common {
        bench: &bench,
        secrets: &secrets,
        shoppers: &shoppers,
        window,
        remarks: &remarks,
    };
    let mut stage = Stage::start(&common, world)?;
    let (costs, on_cluster) = measure_costs(&mut stage, rounds)?;
    bench.step("what shards cost while nobody buys")?;
    let upkeep = upkeep(&stage)?;
    stage.look_for_outages()?;
    // The idle program would use processor time during the next measurement.
    drop(stage);
    let peak = median(&costs.iter().filter_map(|it| it.a_second).collect::<Vec<_>>());
    let mut expired = Vec::new();
    for round in 1..=rounds {
        bench.step(&format!("round {round}: many holds that expire at once"))?;
        let mut stage = Stage::new(&common)?;
        let program = stage.all.start()?;
        expired.push(expiry::expire(&mut stage, &program, peak)?);
        stage.end(program)?;
    }
    let mut measured = Vec::new();
    for round in 1..=rounds {
        measure_sizes(&common, round, &mut measured)?;
    }
    for turn in 1..=turns {
        for size in pair(&ITEMS, turn) {
            bench.step(&format!("turn {turn}: {size} items"))?;
            let what = "items";
            measured.push(alone(&common, Size { what, size }, turn, long)?);
        }
    }
    let many = measure_holds(&common, (turns, long), &mut measured)?;
    tell(
        &mut report,
        &common,
        (&measured, &costs, &upkeep),
        (&many, &expired),
        on_cluster.as_ref(),
    );
    report.end();
    Ok(report)
}

/// The cost of a purchase on one Redis and on a cluster, in turns; one Redis only, if no cluster starts.
fn measure_costs(stage: &mut Stage<'_>, rounds: usize) -> Result<(Vec<Cost>, Option<OnCluster>)> {
    let bench = stage.bench;
    let mut cluster = Cluster::start(stage);
    let (mut costs, mut there) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.step(&format!("round {round}: what a purchase costs"))?;
        costs.push(cost(stage, round)?);
        bench.step(&format!("round {round}: the same on a cluster of three primaries"))?;
        let measured = match &cluster {
            Ok(cluster) => cluster.measure(stage),
            Err(_) => continue,
        };
        match measured {
            Ok(measured) => there.push(measured),
            Err(error) => cluster = Err(error),
        }
        bench.go_on()?;
    }
    if let Err(error) = cluster {
        bench.go_on()?;
        stage.remark(format!("The cluster was not measured: {error:#}"));
    }
    Ok((costs, OnCluster::middle(&there)))
}

/// The first and the last size; each turn reverses the order.
fn pair(sizes: &[usize], turn: usize) -> Vec<usize> {
    let mut pair: Vec<usize> = [sizes.first(), sizes.last()].into_iter().flatten().copied().collect();
    if turn.is_multiple_of(2) {
        pair.reverse();
    }
    pair
}

/// Measures every size without turns of its own, in an order that changes with each round.
fn measure_sizes(common: &Common<'_>, round: usize, measured: &mut Vec<Measured>) -> Result<()> {
    let between = ITEMS.get(1..ITEMS.len() - 1).unwrap_or_default();
    let all = [("items", between), ("shards", &SHARDS[..]), ("sales", &SALES[..])];
    let mut all: Vec<Size> = all
        .into_iter()
        .flat_map(|(what, sizes)| sizes.iter().map(move |size| Size { what, size: *size }))
        .collect();
    let seed = u64::from(common.bench.options.first_salt()) + round as u64;
    all.shuffle(&mut StdRng::seed_from_u64(seed));
    for size in all {
        common
            .bench
            .step(&format!("round {round}: {} {}", size.size, size.what))?;
        measured.push(alone(common, size, round, common.window)?);
    }
    Ok(())
}

/// Fills a sale to each size, in its own world. Then it alternates the most holds, in that world, and the fewest, each
/// time in a new world.
fn measure_holds(common: &Common<'_>, (turns, long): (usize, Window), measured: &mut Vec<Measured>) -> Result<Many> {
    let bench = common.bench;
    let sizes = holds(bench.options.quick);
    let (fewest, most) = (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1));
    let mut many = Stage::new(common)?;
    let mut came_to = Many {
        holds: most,
        ..Many::default()
    };
    let program = many.all.start()?;
    let sale = many.sale(&Terms::default())?;
    let mut redis = many.world.redis.connect()?;
    let empty = redis.memory()?;
    let mut filled = 0;
    for size in sizes {
        bench.step(&format!("{} holds", grouped(real(*size))))?;
        let began = Instant::now();
        let count = size - filled;
        many.world.fill(bench, &sale, FILLERS + filled..FILLERS + size, 0)?;
        came_to.fill_a_second = ratio(Some(real(count)), Some(began.elapsed().as_secs_f64()));
        filled = *size;
        many.world.drained(bench, &sale)?;
        if *size == most {
            // The holds of the windows use memory too.
            let holds = real(filled + many.next);
            came_to.bytes_a_purchase = ratio(Some(redis.memory()? - empty), Some(holds));
        } else if *size != fewest {
            // These sizes share one world, so they are for the plot and not for a goal.
            measured.push(many.again(&program, &sale, *size, 0, many.window)?);
        }
    }
    program.stop();
    for turn in 1..=turns {
        bench.step(&format!("turn {turn}: fewest and most holds"))?;
        for size in pair(sizes, turn) {
            if size == most {
                let program = many.all.start()?;
                measured.push(many.again(&program, &sale, most, turn, long)?);
                program.stop();
            } else {
                let mut few = Stage::new(common)?;
                let program = few.all.start()?;
                let small = few.sale(&Terms::default())?;
                few.world.fill(bench, &small, FILLERS..FILLERS + fewest, 0)?;
                few.world.drained(bench, &small)?;
                measured.push(few.again(&program, &small, fewest, turn, long)?);
                program.stop();
            }
        }
    }
    bench.step("the drain beside many orders")?;
    let url = many.world.redis.url()?;
    let api = many
        .world
        .plan("api", &["serve", "--role", "api"], &url, &many.database)?;
    let worker = many
        .world
        .plan("worker", &["serve", "--role", "worker"], &url, &many.database)?;
    let program = api.start()?;
    let more = bench.options.size(4_000, 100_000);
    many.world
        .fill(bench, &sale, FILLERS + filled..FILLERS + filled + more, 0)?;
    program.stop();
    many.calm()?;
    // No shopper buys now, so the freed memory is that of the events.
    let (waiting, full) = (usize::try_from(backlog(&mut redis, &sale)?)?, redis.memory()?);
    came_to.drain_a_second = drain(bench, &many.world, &sale, &worker)?;
    came_to.bytes_an_event = ratio(Some(full - redis.memory()?), Some(real(waiting)));
    if bench.wait_for(sql::outages(&many.database))? > 0 {
        many.remark("many holds: no worker came for more than five seconds, so that they were extended".to_owned());
    }
    Ok(came_to)
}

/// The figures of one size with their rounds; rounds start at 1.
fn of(measured: &[Measured], what: &str, size: usize) -> Vec<(usize, Option<f64>)> {
    let found = measured.iter().filter(|it| it.what == what && it.size == size);
    found.map(|it| (it.round, it.a_second)).collect()
}

/// The share of one size in another, by round.
fn shares(measured: &[Measured], what: &str, size: usize, by: usize) -> Vec<f64> {
    shares_of(measured, (what, size), (what, by))
}

/// The size that a share compares with: the smallest, in a window of the same length and in the same round. One item
/// has turns with longer windows. In the rounds, one sale stands in for it, because it has one item too.
fn smallest(what: &'static str, size: usize, sizes: &[usize]) -> (&'static str, usize) {
    if what == "items" && ITEMS.get(1..ITEMS.len() - 1).is_some_and(|it| it.contains(&size)) {
        return ("sales", 1);
    }
    (what, sizes.first().copied().unwrap_or_default())
}

fn shares_of(measured: &[Measured], (what, size): (&str, usize), (by_what, by): (&str, usize)) -> Vec<f64> {
    let others = of(measured, by_what, by);
    let share = |(round, rate): (usize, Option<f64>)| {
        let (_, other) = others.iter().find(|(its, _)| *its == round && round > 0)?;
        ratio(rate, *other)
    };
    of(measured, what, size).into_iter().filter_map(share).collect()
}

/// The spread of the smaller size's windows, to read beside a share; empty with one window.
fn spread(measured: &[Measured], what: &str, size: usize) -> String {
    let rates: Vec<f64> = of(measured, what, size)
        .into_iter()
        .filter_map(|(round, rate)| rate.filter(|_| round > 0))
        .collect();
    if rates.len() < 2 {
        return String::new();
    }
    let middle = median(&rates);
    let [low, high] = [f64::min, f64::max].map(|pick: fn(f64, f64) -> f64| {
        let found = rates.iter().copied().reduce(pick);
        cell(ratio(found, middle), 2)
    });
    format!(
        "{} windows of {} by themselves are from {low} to {high} of their median",
        rates.len(),
        grouped(real(size))
    )
}

/// The cost of a purchase at both sizes, in words.
fn costs_of(measured: &[Measured], what: &str, [large, small]: [usize; 2]) -> String {
    let [large, small] = [large, small].map(|size| {
        let found = measured
            .iter()
            .filter(|it| it.what == what && it.size == size && it.round > 0);
        let cost = middle(&found.map(|it| it.micros).collect::<Vec<_>>());
        in_words(&cost).unwrap_or_else(|| NOT_MEASURED.to_owned())
    });
    format!("a purchase takes {large}, against {small}")
}

fn goals(measured: &[Measured], many: &Many, expired: &[Expiry], is_quick: bool) -> Vec<Goal> {
    let sizes = holds(is_quick);
    let (fewest, most) = (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1));
    let p99: Vec<f64> = expired
        .iter()
        .filter_map(|it| ratio(it.meanwhile.p99_ms, it.before.p99_ms))
        .collect();
    let expiring = expired.first().map_or(0, |it| it.holds);
    let bytes: Vec<f64> = many.bytes_a_purchase.into_iter().collect();
    vec![
        Goal::of(
            &format!(
                "throughput with {} live holds ÷ with {}",
                grouped(real(most)),
                grouped(real(fewest))
            ),
            Side::AtLeast,
            0.9,
            &shares(measured, "live holds", most, fewest),
        )
        .with_remark(spread(measured, "live holds", fewest))
        .in_its_way(costs_of(measured, "live holds", [most, fewest])),
        Goal::of(
            "throughput with 1,000 items ÷ with 1",
            Side::AtLeast,
            0.9,
            &shares(measured, "items", 1000, 1),
        )
        .with_remark(spread(measured, "items", 1))
        .in_its_way(format!(
            "each batch of the drain updates one row of the ledger for each item in it, which is one row or most of a \
             thousand, on the processors that also sell: {}",
            costs_of(measured, "items", [1000, 1])
        )),
        Goal::of("Redis bytes a purchase after the drain", Side::AtMost, 350.0, &bytes).with_remark(format!(
            "{} orders, drained by the application",
            grouped(real(many.holds))
        )),
        Goal::of(
            &format!(
                "{} holds expiring at once: p99 of purchases meanwhile ÷ before",
                grouped(real(expiring))
            ),
            Side::AtMost,
            2.0,
            &p99,
        )
        .in_its_way(Expiry::in_its_way(expired)),
    ]
}

fn tell(
    report: &mut Report,
    common: &Common<'_>,
    (measured, costs, upkeep): (&[Measured], &[Cost], &Micros),
    (many, expired): (&Many, &[Expiry]),
    on_cluster: Option<&OnCluster>,
) {
    report.intro = vec![format!(
        "Accepted purchases over HTTP of {} clients, with the drain at work beside them, in windows of {:.1} s; each round \
         measures all sizes once, in another order; the two sizes of a goal take turns {} times in windows of {:.1} s, another \
         one first each time. Every window of them has servers of its own, which have had nothing else; only a million holds stay \
         where they are. Redis has everything on disk before it answers; so has Postgres. No Redis writes its file anew \
         while anything is measured, and Postgres is vacuumed and has everything in place before each window.",
        common.clients(),
        common.window.measured.as_secs_f64(),
        turns(&common.bench.options),
        common.bench.options.window(TURN_SECONDS).measured.as_secs_f64(),
    )];
    report.goals = goals(measured, many, expired, report.is_quick);
    report.notes = common.remarks.borrow().clone();
    let mut table = Table::new(
        "By size",
        "The share is of the smallest size in the same round or turn, whose windows are as long. That of 10 and of 100 items is \
         of one sale in the same round, because it has one item; 1 item in the table is that of the turns with 1,000. Of holds, \
         only the fewest and the most took turns, each time on as many holds and those of the windows before.",
        &[
            "what",
            "how many",
            "purchases a second",
            "p99 in ms",
            "share of the smallest",
        ],
    );
    let mut plots: Vec<Series> = Vec::new();
    for what in ["items", "shards", "sales", "live holds"] {
        let mut sizes: Vec<usize> = measured.iter().filter(|it| it.what == what).map(|it| it.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut series = Series {
            name: what.to_owned(),
            ..Series::default()
        };
        for size in &sizes {
            let rates: Vec<f64> = of(measured, what, *size)
                .into_iter()
                .filter_map(|(_, rate)| rate)
                .collect();
            let found = measured.iter().filter(|it| it.what == what && it.size == *size);
            let p99: Vec<f64> = found.filter_map(|it| it.latency.p99_ms).collect();
            let share = shares_of(measured, (what, *size), smallest(what, *size, &sizes));
            table.row([
                what.to_owned(),
                grouped(real(*size)),
                cell(median(&rates), 0),
                cell(median(&p99), 2),
                cell(median(&share), 2),
            ]);
            if let Some(rate) = median(&rates) {
                series.points.push((real(*size), rate));
            }
        }
        plots.push(series);
    }
    report.tables.push(table);
    report.plots.push(Plot {
        title: "Purchases a second by size".to_owned(),
        x: "of them".to_owned(),
        y: "purchases a second".to_owned(),
        is_logarithmic: true,
        series: plots,
        ..Plot::default()
    });
    report.tables.push(others(many, expired));
    let mut time = Table::new(
        "What one purchase costs",
        "Processor time in microseconds, the drain included; a sale of twelve shards on one Redis, or on three primaries. All \
         share the same processors. Reads: how often Redis read from a connection, where it finds one command or many.",
        &[
            "where",
            "purchases a second",
            "Redis",
            "application",
            "Postgres",
            "generator",
            "reads",
        ],
    );
    let one = typical(costs);
    for (name, cost) in [
        ("one Redis", Some(&one)),
        ("three primaries", on_cluster.map(|it| &it.cost)),
    ] {
        let micros = |part: usize| cell(cost.and_then(|it| it.micros.get(part).copied().flatten()), 1);
        let rate = cell(cost.and_then(|it| it.a_second), 0);
        let reads = cell(cost.and_then(|it| it.reads), 2);
        time.row([name.to_owned(), rate, micros(0), micros(1), micros(2), micros(3), reads]);
    }
    report.tables.push(time);
    let (table, notes) = model::grow(&one, many, on_cluster, upkeep);
    report.tables.push(table);
    report.notes.extend(notes);
    report.figures = json!({
        "clients": common.clients(),
        "window_seconds": common.window.measured.as_secs_f64(),
        "sizes": measured,
        "costs": costs,
        "many": many,
        "expiry": expired,
        "upkeep_micros_a_shard_and_second": upkeep,
        "cluster": on_cluster,
    });
}

fn others(many: &Many, expired: &[Expiry]) -> Table {
    let mut table = Table::new(
        "Many at once",
        "Expiry: medians of the rounds; purchases came at half the peak for up to 20 s, those of a millisecond together; latency \
         counts from when they were due.",
        &["what", "figure"],
    );
    let holds = grouped(real(many.holds));
    let mut row = |what: String, figure: Option<f64>, digits: usize| table.row([what, cell(figure, digits)]);
    row(
        format!("Redis bytes a purchase, {holds} holds"),
        many.bytes_a_purchase,
        0,
    );
    row(
        "Redis bytes more while its event waits for the ledger".to_owned(),
        many.bytes_an_event,
        0,
    );
    row(
        format!("purchases a second by the script, up to {holds}, with the drain beside it"),
        many.fill_a_second,
        0,
    );
    row(
        format!("orders drained a second beside {holds} others"),
        many.drain_a_second,
        0,
    );
    let expiring = grouped(real(expired.first().map_or(0, |it| it.holds)));
    let middle = |of: fn(&Expiry) -> Option<f64>| median(&expired.iter().filter_map(of).collect::<Vec<_>>());
    row(
        format!("seconds until {expiring} expired holds were free again"),
        middle(|it| it.seconds),
        1,
    );
    row(
        "holds expired a second".to_owned(),
        middle(|it| ratio(Some(real(it.holds)), it.seconds)),
        0,
    );
    row("purchases a second meanwhile".to_owned(), middle(|it| it.rate), 0);
    row(
        "p50 of purchases before, ms".to_owned(),
        middle(|it| it.before.p50_ms),
        2,
    );
    row(
        "p99 of purchases before, ms".to_owned(),
        middle(|it| it.before.p99_ms),
        2,
    );
    row(
        "p50 of purchases meanwhile, ms".to_owned(),
        middle(|it| it.meanwhile.p50_ms),
        2,
    );
    row(
        "p99 of purchases meanwhile, ms".to_owned(),
        middle(|it| it.meanwhile.p99_ms),
        2,
    );
    table
}

/// The medians of the costs.
fn typical(costs: &[Cost]) -> Cost {
    let rates: Vec<f64> = costs.iter().filter_map(|it| it.a_second).collect();
    Cost {
        a_second: median(&rates),
        micros: middle(&costs.iter().map(|it| it.micros).collect::<Vec<_>>()),
        reads: median(&costs.iter().filter_map(|it| it.reads).collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(round: usize, size: usize, rate: f64) -> Measured {
        Measured {
            round,
            what: "items",
            size,
            a_second: Some(rate),
            micros: [Some(rate), None, None, None],
            latency: Percentiles::default(),
        }
    }

    #[test]
    fn sizes_are_compared_within_a_round() {
        let all = [
            measured(0, 1000, 1.0),
            measured(1, 1, 100.0),
            measured(1, 1000, 90.0),
            measured(2, 1, 200.0),
            measured(2, 1000, 160.0),
        ];
        assert_eq!(shares(&all, "items", 1000, 1), [0.9, 0.8]);
        assert!(shares(&all, "shards", 4, 1).is_empty());
        let goals = goals(&all, &Many::default(), &[], false);
        assert_eq!(goals[0].measured, None, "there were no holds");
        assert!((goals[1].measured.unwrap() - 0.85).abs() < 1e-9);
        assert_eq!((goals[2].measured, goals[3].measured), (None, None));
        // The goal is missed, so its remark gives the spread.
        let remark = &goals[1].remark;
        assert!(
            remark.contains("2 windows of 1 by themselves are from 0.67 to 1.33"),
            "{remark}"
        );
        assert!(remark.contains("Redis 125") && remark.contains("Redis 150"), "{remark}");
        assert_eq!((pair(&ITEMS, 1), pair(&ITEMS, 2)), (vec![1, 1000], vec![1000, 1]));
    }

    #[test]
    fn a_size_of_the_rounds_is_compared_with_no_longer_windows() {
        assert_eq!(smallest("items", 10, &ITEMS), ("sales", 1));
        assert_eq!(smallest("items", 100, &ITEMS), ("sales", 1));
        assert_eq!(smallest("items", 1000, &ITEMS), ("items", 1));
        assert_eq!(smallest("shards", 16, &SHARDS), ("shards", 1));
        // Both are one sale of one item.
        let terms = |what| Size { what, size: 1 }.terms().unwrap();
        assert_eq!(terms("sales").json()["items"], terms("items").json()["items"]);
        assert_eq!(terms("sales").shards, terms("items").shards);
        let one_sale = Measured {
            what: "sales",
            ..measured(1, 1, 50.0)
        };
        let all = [measured(1, 1, 100.0), measured(1, 10, 45.0), one_sale];
        assert_eq!(shares_of(&all, ("items", 10), smallest("items", 10, &ITEMS)), [0.9]);
    }
}
