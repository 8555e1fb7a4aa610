//! `bench compare` puts one load on five ways to sell. The first part has a unit for every shopper, and measures speed.
//! The second part is a scarce sale. It kills the application and Redis in the middle, and then checks the stock.

mod promises;
mod report;
mod scarce;

use super::cost::Micros;
use super::load::{self, ACCEPTED, Percentiles, Window};
use super::numbers::cell;
use super::report::Report;
use super::rivals::{self, Way};
use super::shoppers::{Question, Shoppers, sku};
use super::world::{OwnRedis, Plan, Terms, World};
use super::{Bench, Options};
use anyhow::Result;
use flashsale::domain::sale::Sale;
use promises::Rushes;
use serde::Serialize;
use uuid::Uuid;

/// Connections while every shopper can buy.
const CLIENTS: usize = 64;
/// The most purchases a second on two cores; an upper bound for the number of shoppers.
const RATE_MAX: f64 = 30_000.0;
/// Shoppers for each unit in the rush.
const DEMAND: usize = 3;

/// Our program, or a rival.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rival(Way),
    Ours(&'static str),
}

/// The ways to sell, in the order of the table.
const WAYS: [(&str, &str, Kind); 5] = [
    ("read, check, write", "no_lock", Kind::Rival(Way::NoLock)),
    ("database only", "database_only", Kind::Rival(Way::DatabaseOnly)),
    ("basic script", "basic_script", Kind::Rival(Way::BasicScript)),
    ("full", "ours", Kind::Ours("redis")),
    ("full, durability postgres", "ours_postgres", Kind::Ours("postgres")),
];

/// The figures of a way to sell while every shopper can buy.
#[derive(Clone, Debug, Default, Serialize)]
struct Steady {
    a_second: Option<f64>,
    #[serde(flatten)]
    latency: Percentiles,
    /// For each purchase, its drain included.
    micros: Micros,
    remarks: Vec<String>,
}

/// A way to sell on its own servers, ready to start.
struct Contender<'a> {
    kind: Kind,
    plan: Plan,
    redis: &'a OwnRedis,
    database: String,
}

/// A sale of a contender: its id, and for ours the sale in the ledger.
struct OnSale {
    id: Uuid,
    ours: Option<Sale>,
}

impl<'a> Contender<'a> {
    fn new(bench: &Bench, world: &World, redis: &'a OwnRedis, database: &str, kind: Kind) -> Result<Self> {
        let is_ours = matches!(kind, Kind::Ours(_));
        let database = world.database(bench, database, is_ours)?;
        let url = redis.url()?;
        let plan = match kind {
            Kind::Ours(_) => world.plan("ours", &["serve", "--role", "all"], &url, &database)?,
            Kind::Rival(way) => {
                bench.wait_for(rivals::prepare(&database))?;
                let name = match way {
                    Way::NoLock => "no-lock",
                    Way::DatabaseOnly => "database-only",
                    Way::BasicScript => "basic-script",
                };
                world.plan("rival", &["rival", name], &url, &database)?
            }
        };
        Ok(Self {
            kind,
            plan,
            redis,
            database,
        })
    }

    /// Puts units of one item on sale, with a limit of one for each shopper.
    fn sell(&self, bench: &Bench, world: &World, stock: i64) -> Result<OnSale> {
        match self.kind {
            Kind::Ours(durability) => {
                let terms = Terms {
                    stock,
                    durability,
                    ..Terms::default()
                };
                let sale = world.sale(bench, self.plan.address, &self.database, &terms)?;
                Ok(OnSale {
                    id: sale.id.0,
                    ours: Some(sale),
                })
            }
            Kind::Rival(way) => {
                let (id, item) = (Uuid::new_v4(), sku(0));
                bench.wait_for(rivals::list(&self.database, id, &item, stock, 1))?;
                if way == Way::BasicScript {
                    let key = rivals::stock_key(id, &item);
                    self.redis.connect()?.call(&["SET", &key, &stock.to_string()])?;
                }
                Ok(OnSale { id, ours: None })
            }
        }
    }

    /// Waits until the drain has written every order to Postgres.
    fn settle(&self, bench: &Bench, sale: &OnSale) -> Result<()> {
        match &sale.ours {
            Some(sale) => self.redis.drained(bench, sale),
            None => Ok(()),
        }
    }
}

/// A run, its servers and its shoppers.
struct Stage<'a> {
    bench: &'a Bench,
    world: &'a World,
    shoppers: &'a Shoppers,
    window: Window,
    /// Units of a rush.
    stock: usize,
    rounds: usize,
}

/// Runs the measurement; it does not write the report. The second value lists the promises that ours broke.
pub fn run(options: Options) -> Result<(Report, Vec<String>)> {
    let rounds = options.rounds(3);
    let window = options.window(5.0);
    let bench = Bench::new(options, 1 + WAYS.len() * rounds * 2)?;
    let (world, report) = World::begin(&bench, "compare", "Five ways to sell")?;
    let stock = bench.options.size(500, 10_000);
    let wanted = bench.options.shoppers(window, RATE_MAX).max(stock * (DEMAND + 1));
    let stage = Stage {
        bench: &bench,
        world: &world,
        shoppers: &Shoppers::of(wanted, &world.secrets.jwt)?,
        window,
        stock,
        rounds,
    };
    let mut contenders = Vec::with_capacity(WAYS.len());
    for (name, database, kind) in WAYS {
        let contender = Contender::new(&bench, &world, &world.redis, database, kind)?;
        contenders.push((name, contender));
    }
    let steady = in_turn(&contenders, rounds, |round, (name, contender)| {
        bench.step(&format!("round {round}: {name}"))?;
        let it = stage.plenty(contender)?;
        bench.print(&format!("{name}: {} a second", cell(it.a_second, 0)));
        Ok(it)
    })?;
    let scarce = in_turn(&WAYS, rounds, |round, (name, database, kind)| {
        bench.step(&format!("round {round}, a rush with kills: {name}"))?;
        // Each contender has its own Redis, so none reloads the data of another.
        let redis = world.another_redis(&format!("redis-of-{database}-{round}"), true, &[])?;
        let database = format!("{database}_scarce_{round}");
        let contender = Contender::new(&bench, &world, &redis, &database, *kind)?;
        let it = stage.scarcity(&contender)?;
        bench.print(&format!("{name}: {it}"));
        Ok(it)
    })?;
    let rushes: Vec<Rushes<'_>> = scarce.iter().map(|rounds| Rushes(rounds)).collect();
    Ok(report::of(report, &stage, &steady, &rushes))
}

/// Measures each contender once a round. A later contender finds servers that have done more work, so the contenders
/// rotate their places. Gives the figures of each contender by round.
fn in_turn<C, T>(
    contenders: &[C],
    rounds: usize,
    mut measure: impl FnMut(usize, &C) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = contenders.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 1..=rounds {
        let mut places: Vec<_> = contenders.iter().zip(&mut all).collect();
        places.rotate_left(round % contenders.len().max(1));
        for (contender, measured) in places {
            measured.push(measure(round, contender)?);
        }
    }
    Ok(all)
}

impl Stage<'_> {
    fn clients(&self) -> usize {
        self.bench.options.clients.unwrap_or(CLIENTS)
    }

    /// Measures the highest rate of purchases, with units for all shoppers.
    fn plenty(&self, contender: &Contender<'_>) -> Result<Steady> {
        let (bench, world, server) = (self.bench, self.world, contender.plan.address);
        let program = contender.plan.start()?;
        let sale = contender.sell(bench, world, 100_000_000)?;
        let salt = bench.options.first_salt();
        let question = Question::purchases(server, &sale.id.to_string(), self.shoppers, salt);
        world.calm(bench, &contender.database)?;
        let servers = (&[contender.redis.pid()?][..], &program);
        let load = load::closed(server, &question, self.clients(), self.window, &bench.stop);
        let settle = || contender.settle(bench, &sale);
        let (tally, micros) = world.measure(bench, servers, ACCEPTED, load, settle)?;
        // The instance must not keep this sale selling while the next contender is measured.
        if let Some(ours) = sale.ours {
            world.close(bench, server, &[ours])?;
        }
        program.stop();
        Ok(Steady {
            a_second: tally.rate(ACCEPTED),
            latency: tally.percentiles(ACCEPTED),
            micros,
            remarks: tally.remarks(ACCEPTED, "purchases").collect(),
        })
    }
}
