//! `bench scale` measures the cost of a purchase as sales grow, and computes from it the needs of many more purchases.

mod cluster;
mod expiry;
mod holds;
mod model;
mod report;
mod stage;

use super::cost::Micros;
use super::load::{Window, real};
use super::numbers::median_of;
use super::report::Report;
use super::shoppers::Shoppers;
use super::world::{Secrets, World};
use super::{Bench, Options};
use anyhow::Result;
use cluster::{Cluster, OnCluster};
use expiry::Expiry;
use holds::Many;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use stage::{Cost, Measured, Size, Stage};
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

/// The values that all worlds of a run share.
#[derive(Clone, Copy)]
struct Common<'a> {
    bench: &'a Bench,
    secrets: &'a Secrets,
    shoppers: &'a Shoppers,
    window: Window,
    /// The window of the turns.
    long: Window,
    turns: usize,
}

impl Common<'_> {
    fn clients(&self) -> usize {
        self.bench.options.clients.unwrap_or(CLIENTS)
    }
}

/// The figures of a run.
#[derive(Default)]
struct Results {
    costs: Vec<Cost>,
    on_cluster: Option<OnCluster>,
    upkeep: Micros,
    expired: Vec<Expiry>,
    sizes: Vec<Measured>,
    many: Many,
}

/// Runs the measurement; it does not write the report.
pub fn run(options: Options) -> Result<Report> {
    let rounds = options.rounds(3);
    let (window, long) = (options.window(3.0), options.window(TURN_SECONDS));
    let sizes = SHARDS.len() + SALES.len() + ITEMS.len() - 2;
    let turns = options.rounds(TURNS);
    // The terms, in order: the start; costs here and on the cluster; idle shards; expiries and sizes; turns of two item
    // sizes; holds, their turns, and the drain.
    let steps = 1 + 2 * rounds + 1 + rounds * (sizes + 1) + 2 * turns + holds::sizes(options.quick).len() + turns + 1;
    let bench = Bench::new(options, steps)?;
    let options = &bench.options;
    let (world, report) = World::begin(&bench, "scale", "What a purchase costs as sales grow")?;
    // Each window of a sale that sells repeatedly needs new shoppers.
    let wanted = options.shoppers(window, RATE_MAX) * HOLDS.len() + options.shoppers(long, RATE_MAX) * turns;
    let secrets = world.secrets.clone();
    let shoppers = Shoppers::of(wanted, &secrets.jwt)?;
    let common = Common {
        bench: &bench,
        secrets: &secrets,
        shoppers: &shoppers,
        window,
        long,
        turns,
    };
    let results = measure(&common, world, rounds)?;
    Ok(report::of(report, &common, &results))
}

fn measure(common: &Common<'_>, world: World, rounds: usize) -> Result<Results> {
    let bench = common.bench;
    let mut stage = Stage::start(common, world)?;
    let (costs, on_cluster) = measure_costs(&mut stage, rounds)?;
    bench.step("what shards cost while nobody buys")?;
    let upkeep = measure_upkeep(&stage)?;
    stage.note_outages("costs")?;
    // The idle program would use processor time during the next measurement.
    drop(stage);
    let peak = median_of(&costs, |it| it.a_second);
    let mut expired = Vec::new();
    for round in 1..=rounds {
        bench.step(&format!("round {round}: many holds that expire at once"))?;
        let mut stage = Stage::new(common)?;
        let program = stage.all.start()?;
        expired.push(expiry::expire(&mut stage, &program, peak)?);
        program.stop();
        stage.note_outages("an expiry")?;
    }
    let mut sizes = Vec::new();
    for round in 1..=rounds {
        measure_sizes(common, round, &mut sizes)?;
    }
    for turn in 1..=common.turns {
        for size in pair(&ITEMS, turn) {
            bench.step(&format!("turn {turn}: {size} items"))?;
            let what = "items";
            sizes.push(measure_alone(common, Size { what, size }, turn, common.long)?);
        }
    }
    let many = holds::measure(common, &mut sizes)?;
    Ok(Results {
        costs,
        on_cluster,
        upkeep,
        expired,
        sizes,
        many,
    })
}

/// The cost of a purchase on one Redis and on a cluster, in turns; one Redis only, if no cluster starts.
fn measure_costs(stage: &mut Stage<'_>, rounds: usize) -> Result<(Vec<Cost>, Option<OnCluster>)> {
    let bench = stage.bench;
    let mut cluster = Cluster::start(stage);
    let (mut costs, mut there) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bench.step(&format!("round {round}: what a purchase costs"))?;
        let program = stage.all.start()?;
        let size = Size {
            what: "shards",
            size: usize::from(cluster::SHARDS),
        };
        costs.push(stage.size(&program, size, round, stage.window)?.1);
        program.stop();
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
        bench.remark(format!("The cluster was not measured: {error:#}"));
    }
    Ok((costs, OnCluster::middle(&there)))
}

/// The idle cost of each shard of an open sale with one instance, in microseconds a second. The parts are Redis, the
/// application and Postgres; the fourth is unused.
fn measure_upkeep(stage: &Stage<'_>) -> Result<Micros> {
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
        measured.push(measure_alone(common, size, round, common.window)?);
    }
    Ok(())
}

/// Measures one size on its own servers, because earlier sales would add cost. A worker maintains a closed sale for a
/// day, and Redis rebuilds its key table whenever the keys double.
fn measure_alone(common: &Common<'_>, of: Size, round: usize, window: Window) -> Result<Measured> {
    let mut stage = Stage::new(common)?;
    let program = stage.all.start()?;
    let (tally, cost) = stage.size(&program, of, round, window)?;
    program.stop();
    stage.note_outages(of.what)?;
    Ok(Measured::of(of, round, &tally, &cost))
}
