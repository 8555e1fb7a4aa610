//! `bench ceiling` measures the limits of the parts, and the share of each limit that the whole program reaches.

pub mod drain;
mod parts;
mod report;
mod whole;

use super::cost::Micros;
use super::load::Window;
use super::numbers::cell;
use super::report::Report;
use super::shoppers::Shoppers;
use super::world::{OwnRedis, Plan, World};
use super::{Bench, Options};
use anyhow::Result;
use serde::Serialize;
use std::cell::Cell;

/// Connections of the two crowds.
const CROWDS: [usize; 2] = [64, 128];
/// The share of the peak rate at which latency is measured.
const SHARE_OF_PEAK: f64 = 0.7;
/// The most purchases or refusals a second on two cores; an upper bound for the number of shoppers.
const RATE_MAX: f64 = 60_000.0;

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
    crowds: Vec<usize>,
    salt: Cell<u32>,
}

/// Runs the measurement; it does not write the report.
pub fn run(options: Options) -> Result<Report> {
    let rounds = options.rounds(3);
    let window = options.window(5.0);
    let crowds: Vec<usize> = options.clients.map_or_else(|| CROWDS.to_vec(), |it| vec![it]);
    let bench = Bench::new(options, 2 + rounds * (6 + crowds.len()))?;
    let options = &bench.options;
    let (world, report) = World::begin(&bench, "ceiling", "What the parts could do, and what the whole does")?;
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
        crowds,
        salt: Cell::new(options.first_salt()),
    };
    let mut measured = Vec::with_capacity(rounds);
    for number in 1..=rounds {
        if number > 1 {
            // Each round has a new database, as the first round has.
            stage.home = Home::new(&bench, &world, number)?;
        }
        let round = stage.round(number)?;
        bench.print(&line(number, &round));
        measured.push(round);
    }
    bench.step("memory of many purchases")?;
    let orders = options.size(3_000, 1_000_000);
    let bytes = stage.bytes_a_purchase(orders)?;
    Ok(report::of(report, &stage, &measured, (orders, bytes)))
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

    fn round(&self, number: usize) -> Result<Round> {
        let mut round = Round::default();
        self.measure_parts(&mut round, number)?;
        self.measure_whole(&mut round, number)?;
        self.step(number, "the drain, and raw inserts")?;
        self.measure_drain(&mut round, number)?;
        let what = format!("round {number}");
        self.world.note_outages(self.bench, &self.home.database, &what)?;
        Ok(round)
    }

    fn step(&self, number: usize, what: &str) -> Result<()> {
        self.bench.step(&format!("round {number}: {what}"))
    }

    fn calm(&self) -> Result<()> {
        self.world.calm(self.bench, &self.home.database)
    }

    /// The clients of the larger crowd.
    fn clients_max(&self) -> usize {
        self.crowds.iter().copied().max().unwrap_or(1)
    }
}
