//! The servers of a measurement, the load on them, and the figures of a window.

use super::Common;
use crate::Bench;
use crate::cost::{self, Micros};
use crate::load::{self, ACCEPTED, Percentiles, Tally, Window};
use crate::numbers::{median_of, ratio};
use crate::program::Program;
use crate::resp::Resp;
use crate::shoppers::{Purchase, Question, Shoppers};
use crate::world::{OwnRedis, Plan, Terms, World};
use anyhow::Result;
use flashsale::domain::sale::Sale;
use serde::Serialize;
use std::net::SocketAddr;
use std::slice;

/// The figures of one size in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) round: usize,
    pub(super) what: &'static str,
    pub(super) size: usize,
    pub(super) a_second: Option<f64>,
    /// For each purchase, its drain included.
    pub(super) micros: Micros,
    #[serde(flatten)]
    pub(super) latency: Percentiles,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Cost {
    pub(super) a_second: Option<f64>,
    /// For each purchase: Redis, application, Postgres and generator.
    pub(super) micros: Micros,
    /// Redis's reads from connections for each purchase, counted before the last orders were drained.
    pub(super) reads: Option<f64>,
}

impl Cost {
    /// The medians of the rounds.
    pub(super) fn typical(rounds: &[Self]) -> Self {
        Self {
            a_second: median_of(rounds, |it| it.a_second),
            micros: cost::middle(rounds.iter().map(|it| it.micros)),
            reads: median_of(rounds, |it| it.reads),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) what: &'static str,
    pub(super) size: usize,
}

impl Size {
    pub(super) fn terms(self) -> Result<Terms> {
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
    pub(super) fn of(size: Size, round: usize, tally: &Tally, cost: &Cost) -> Self {
        Self {
            round,
            what: size.what,
            size: size.size,
            a_second: cost.a_second,
            micros: cost.micros,
            latency: tally.percentiles(ACCEPTED),
        }
    }
}

/// A world, an application in it, and the load on it.
pub(super) struct Stage<'a> {
    pub(super) bench: &'a Bench,
    pub(super) world: World,
    pub(super) database: String,
    pub(super) all: Plan,
    pub(super) shoppers: &'a Shoppers,
    pub(super) clients: usize,
    pub(super) window: Window,
    pub(super) salt: u32,
    /// The next shopper of a sale that sells in more than one window.
    pub(super) next: usize,
}

impl<'a> Stage<'a> {
    /// A stage on new servers.
    pub(super) fn new(of: &Common<'a>) -> Result<Self> {
        let mut world = World::start(&of.bench.options.data)?;
        // All worlds share one JWT secret, so that the tokens are valid in each.
        world.secrets = of.secrets.clone();
        Self::start(of, world)
    }

    pub(super) fn start(of: &Common<'a>, world: World) -> Result<Self> {
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
            world,
        })
    }

    pub(super) fn sale(&self, terms: &Terms) -> Result<Sale> {
        self.world.sale(self.bench, self.all.address, &self.database, terms)
    }

    pub(super) fn calm(&self) -> Result<()> {
        self.world.calm(self.bench, &self.database)
    }

    pub(super) fn note_outages(&self, what: &str) -> Result<()> {
        self.world.note_outages(self.bench, &self.database, what)
    }

    /// Purchases in rotation, by shoppers without a purchase of them, from this number on.
    pub(super) fn question(&mut self, of: Vec<Purchase>, from: usize) -> Question<'a> {
        self.salt += 1;
        Question::Purchases {
            of,
            shoppers: self.shoppers,
            from,
            salt: self.salt,
        }
    }

    /// Runs a window of purchases from a program on these nodes. `drain` waits until the ledger has the orders. Their
    /// cost includes the drain.
    pub(super) fn purchases(
        &self,
        (nodes, program): (&[OwnRedis], &Program),
        (server, question): (SocketAddr, &Question<'_>),
        window: Window,
        what: &str,
        drain: impl FnOnce(&mut [Resp]) -> Result<()>,
    ) -> Result<(Tally, Cost)> {
        let pids = nodes.iter().map(OwnRedis::pid).collect::<Result<Vec<_>>>()?;
        let mut nodes = nodes.iter().map(OwnRedis::connect).collect::<Result<Vec<_>>>()?;
        let before = reads(&mut nodes)?;
        let mut all_reads = 0.0;
        let load = load::closed(server, question, self.clients, window, &self.bench.stop);
        let settle = || {
            all_reads = reads(&mut nodes)? - before;
            drain(&mut nodes)
        };
        let (tally, micros) = self
            .world
            .measure(self.bench, (&pids, program), ACCEPTED, load, settle)?;
        self.bench.note(&tally, ACCEPTED, what);
        let cost = Cost {
            a_second: tally.rate(ACCEPTED),
            micros,
            reads: ratio(Some(all_reads), Some(tally.of_all_asked(ACCEPTED))),
        };
        Ok((tally, cost))
    }

    /// Runs a window of purchases of so many items of each of these sales.
    fn purchases_of(
        &mut self,
        program: &Program,
        what: &str,
        (sales, items): (&[Sale], usize),
        from: usize,
        window: Window,
    ) -> Result<(Tally, Cost)> {
        self.calm()?;
        let server = self.all.address;
        let of = sales
            .iter()
            .flat_map(|sale| (0..items).map(move |item| Purchase::of(server, &sale.id.to_string(), item)));
        let question = self.question(of.collect(), from);
        let servers = (slice::from_ref(&self.world.redis), program);
        self.purchases(servers, (server, &question), window, what, |_| {
            sales
                .iter()
                .try_for_each(|sale| self.world.redis.drained(self.bench, sale))
        })
    }

    /// Creates the sales of one size, runs one window on them, and closes them.
    pub(super) fn size(&mut self, program: &Program, of: Size, round: usize, window: Window) -> Result<(Tally, Cost)> {
        let Size { what, size } = of;
        let terms = of.terms()?;
        let count = if what == "sales" { size } else { 1 };
        let (bench, address) = (self.bench, self.all.address);
        let sales = self.world.sales(bench, address, &self.database, &terms, count)?;
        let name = format!("{what}, {size}, round {round}");
        let measured = self.purchases_of(program, &name, (&sales, terms.items), 0, window)?;
        self.world.close(bench, address, &sales)?;
        Ok(measured)
    }

    /// Runs a window on a sale that already has so many holds.
    pub(super) fn again(
        &mut self,
        program: &Program,
        sale: &Sale,
        size: usize,
        round: usize,
        window: Window,
    ) -> Result<Measured> {
        let name = format!("live holds, {size}, round {round}");
        let (tally, cost) = self.purchases_of(program, &name, (slice::from_ref(sale), 1), self.next, window)?;
        self.next += tally.asked;
        let what = "live holds";
        Ok(Measured::of(Size { what, size }, round, &tally, &cost))
    }
}

/// Reads from connections so far. In each read, a server runs all commands that have arrived on that connection.
fn reads(nodes: &mut [Resp]) -> Result<f64> {
    let of = |node: &mut Resp| -> Result<f64> { Ok(node.info("stats", "total_reads_processed")?.parse()?) };
    nodes.iter_mut().map(of).sum()
}
