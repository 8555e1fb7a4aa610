//! `bench scale`: what a purchase costs as sales grow, and what that makes of many more of them.

mod cluster;
mod model;

use super::ceiling::drain;
use super::load::{self, Percentiles, Tally, Window, real};
use super::plot::{Plot, Series};
use super::report::{Goal, Report, Side, Table, cell, grouped, median, ratio};
use super::shoppers::{Purchase, Question, Shoppers};
use super::sql;
use super::world::{Plan, Terms, World};
use super::{Bench, Options};
use crate::domain::sale::Sale;
use crate::embedded::Program;
use anyhow::{Result, anyhow};
use cluster::OnCluster;
use serde::Serialize;
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

/// Connections of the crowd.
const CLIENTS: usize = 64;
/// No machine of two cores accepts more a second, a window in and out.
const RATE_MAX: f64 = 15_000.0;
/// The sizes, smallest first.
const ITEMS: [usize; 4] = [1, 10, 100, 1000];
const SHARDS: [u16; 5] = [1, 4, 16, 64, 256];
const SALES: [usize; 3] = [1, 10, 100];
const HOLDS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const FEW_HOLDS: [usize; 2] = [100, 1_000];
/// Shoppers who fill sales have numbers from here on, and no tokens.
const FILLERS: usize = 100_000_000;
/// The share of the peak at which purchases come while holds expire.
const SHARE_WHILE_EXPIRING: f64 = 0.5;
/// How long holds may take to expire.
const EXPIRY_MAX: Duration = Duration::from_secs(180);
/// How long before they do, in milliseconds.
const EXPIRY_LEAD_MS: i64 = 1000;

/// What one size came to in one round.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    round: usize,
    what: &'static str,
    size: usize,
    a_second: Option<f64>,
    #[serde(flatten)]
    latency: Percentiles,
}

/// What a million holds and their end came to.
#[derive(Clone, Debug, Default, Serialize)]
struct Many {
    holds: usize,
    bytes_a_purchase: Option<f64>,
    fill_a_second: Option<f64>,
    drain_a_second: Option<f64>,
}

/// What it came to that many holds expired at once.
#[derive(Clone, Debug, Default, Serialize)]
struct Expiry {
    holds: usize,
    rate: Option<f64>,
    before: Percentiles,
    meanwhile: Percentiles,
    /// From the deadline until every unit was free again.
    seconds: Option<f64>,
}

/// A world with an application and what is asked of it.
struct Stage<'a> {
    bench: &'a Bench,
    world: World,
    database: String,
    all: Plan,
    shoppers: &'a Shoppers,
    clients: usize,
    window: Window,
    salt: u32,
    /// The next shopper of a sale that is sold from more than once.
    next: usize,
}

impl<'a> Stage<'a> {
    fn start(bench: &'a Bench, shoppers: &'a Shoppers, window: Window, world: World) -> Result<Self> {
        let database = world.database(bench, "scale", true)?;
        let all = world.plan("all", &["serve", "--role", "all"], &world.redis.url()?, &database)?;
        Ok(Self {
            bench,
            database,
            all,
            shoppers,
            clients: bench.options.clients.unwrap_or(CLIENTS),
            window,
            salt: bench.options.first_salt(),
            next: 0,
            world,
        })
    }

    fn sale(&self, terms: &Terms) -> Result<Sale> {
        self.world.sale(self.bench, self.all.address, &self.database, terms)
    }

    /// Purchases of these items of these sales in turn, by shoppers who have bought nothing there.
    fn purchases(&mut self, sales: &[Sale], items: usize, from: usize) -> Result<Tally> {
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
        let asking = load::closed(self.all.address, &question, self.clients, self.window, &self.bench.stop);
        let tally = self.bench.wait_for(asking)?;
        self.bench.go_on()?;
        for sale in sales {
            self.world.drained(self.bench, sale)?;
        }
        if let Some(others) = tally.others(201, "") {
            self.bench.say(&format!("also {others}"));
        }
        Ok(tally)
    }

    /// One size: sales of its own, which are closed afterwards so that nobody keeps them selling.
    fn size(&mut self, sales: usize, terms: &Terms) -> Result<Tally> {
        let sales = self
            .world
            .sales(self.bench, self.all.address, &self.database, terms, sales)?;
        self.world.calm(self.bench)?;
        let tally = self.purchases(&sales, terms.items, 0)?;
        self.world.close(self.bench, self.all.address, &sales)?;
        Ok(tally)
    }

    /// A window of a sale that has holds already.
    fn again(&mut self, sale: &Sale) -> Result<Tally> {
        let tally = self.purchases(std::slice::from_ref(sale), 1, self.next)?;
        self.next += tally.asked;
        Ok(tally)
    }
}

/// What one purchase costs.
#[derive(Clone, Debug, Default, Serialize)]
struct Cost {
    a_second: Option<f64>,
    /// Processor time of Redis, application, Postgres and generator.
    micros: [Option<f64>; 4],
}

/// Purchases of one sale, with what they cost, the drain included.
fn cost(stage: &mut Stage<'_>, program: &Program) -> Result<Cost> {
    let redis = [stage.world.redis.pid()?];
    let sale = stage.sale(&Terms::default())?;
    let before = stage.world.used(&redis, program.pid());
    let tally = stage.purchases(std::slice::from_ref(&sale), 1, 0)?;
    let after = stage.world.used(&redis, program.pid());
    stage.world.close(stage.bench, stage.all.address, &[sale])?;
    let purchases = tally.of_all_asked(201, "");
    Ok(Cost {
        a_second: tally.rate(201, ""),
        micros: after.micros_since(&before, purchases),
    })
}

/// Measures; the report is not written yet.
///
/// # Errors
/// When something cannot be started or measured at all, or the run is ended.
pub fn run(options: Options) -> Result<Report> {
    let rounds = options.rounds(3);
    let window = options.window(3.0);
    let sizes = ITEMS.len() + SHARDS.len() + SALES.len();
    let bench = Bench::new(options, 2 + rounds * (sizes + 1) + HOLDS.len() + 5)?;
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
    // A sale that is sold from in every window needs new ones each time.
    let windows = HOLDS.len() + rounds + 1;
    let shoppers = Shoppers::of(options.shoppers(window, RATE_MAX) * windows, &world.secrets.jwt)?;
    let mut stage = Stage::start(&bench, &shoppers, window, world)?;
    let mut measured = Vec::new();
    let program = stage.all.start()?;
    for round in 1..=rounds {
        measure_sizes(&mut stage, round, &mut measured)?;
    }
    bench.step("what a purchase costs")?;
    let costs = (0..rounds)
        .map(|_| cost(&mut stage, &program))
        .collect::<Result<Vec<_>>>()?;
    bench.step("many holds that expire at once")?;
    let peak = median(&costs.iter().filter_map(|it| it.a_second).collect::<Vec<_>>());
    let expiry = expire(&mut stage, peak)?;
    program.stop();
    let many = measure_holds(&stage, rounds, &mut measured)?;
    bench.step("a cluster of three primaries")?;
    let on_cluster = cluster::measure(&mut stage);
    let on_cluster = match on_cluster {
        Ok(measured) => Some(measured),
        Err(error) => {
            bench.go_on()?;
            report.notes.push(format!("The cluster was not measured: {error:#}"));
            None
        }
    };
    tell(
        &mut report,
        &stage,
        (&measured, &costs),
        (&many, &expiry),
        on_cluster.as_ref(),
    );
    report.end();
    Ok(report)
}

fn measure_sizes(stage: &mut Stage<'_>, round: usize, measured: &mut Vec<Measured>) -> Result<()> {
    let mut note = |what, size, tally: &Tally| {
        measured.push(Measured {
            round,
            what,
            size,
            a_second: tally.rate(201, ""),
            latency: tally.latency.percentiles(),
        });
    };
    for items in ITEMS {
        stage.bench.step(&format!("round {round}: {items} items"))?;
        let terms = Terms {
            items,
            ..Terms::default()
        };
        note("items", items, &stage.size(1, &terms)?);
    }
    for shards in SHARDS {
        stage.bench.step(&format!("round {round}: {shards} shards"))?;
        let terms = Terms {
            shards,
            ..Terms::default()
        };
        note("shards", usize::from(shards), &stage.size(1, &terms)?);
    }
    for sales in SALES {
        stage.bench.step(&format!("round {round}: {sales} sales"))?;
        note("sales", sales, &stage.size(sales, &Terms::default())?);
    }
    Ok(())
}

/// Fills a sale to one size after the other, in a world of its own; then takes turns between the most holds, there, and
/// the fewest, each time in a world that has had nothing else.
fn measure_holds<'a>(of: &Stage<'a>, rounds: usize, measured: &mut Vec<Measured>) -> Result<Many> {
    let (bench, shoppers, window): (&'a Bench, &'a Shoppers, Window) = (of.bench, of.shoppers, of.window);
    let sizes: &[usize] = if bench.options.quick { &FEW_HOLDS } else { &HOLDS };
    let (fewest, most) = (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1));
    let another = || -> Result<Stage<'a>> {
        let mut world = World::start(&bench.options.data)?;
        // One secret, so that the same tokens are good in all.
        world.secrets = of.world.secrets.clone();
        Stage::start(bench, shoppers, window, world)
    };
    let mut many = another()?;
    let mut note = |round, size, tally: &Tally| {
        measured.push(Measured {
            round,
            what: "live holds",
            size,
            a_second: tally.rate(201, ""),
            latency: tally.latency.percentiles(),
        });
    };
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
            // Those of the windows are there as well.
            let holds = real(filled + many.next);
            came_to.bytes_a_purchase = ratio(Some(redis.memory()? - empty), Some(holds));
        } else if *size != fewest {
            let tally = many.again(&sale)?;
            // In one world after the other: for the picture, not for the goal.
            note(0, *size, &tally);
        }
    }
    program.stop();
    for round in 1..=rounds {
        bench.step(&format!("round {round}: fewest and most holds"))?;
        let mut few = another()?;
        let program = few.all.start()?;
        let small = few.sale(&Terms::default())?;
        few.world.fill(bench, &small, FILLERS..FILLERS + fewest, 0)?;
        few.world.drained(bench, &small)?;
        few.world.calm(bench)?;
        note(round, fewest, &few.again(&small)?);
        program.stop();
        drop(few);
        many.world.calm(bench)?;
        let program = many.all.start()?;
        note(round, most, &many.again(&sale)?);
        program.stop();
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
    came_to.drain_a_second = drain(bench, &many.world, &sale, &worker)?;
    Ok(came_to)
}

/// Has many holds expire at once while others buy at half the peak.
fn expire(stage: &mut Stage<'_>, peak: Option<f64>) -> Result<Expiry> {
    let bench = stage.bench;
    let holds = bench.options.size(2_000, 200_000);
    let Some(rate) = peak.map(|peak| peak * SHARE_WHILE_EXPIRING) else {
        return Ok(Expiry::default());
    };
    let held = stage.sale(&Terms::default())?;
    stage.world.fill(bench, &held, FILLERS..FILLERS + holds, 0)?;
    stage.world.drained(bench, &held)?;
    stage.world.calm(bench)?;
    let bought = stage.sale(&Terms::default())?;
    let mut ask = |measured: Duration, stop: &tokio_util::sync::CancellationToken, from| {
        stage.salt += 1;
        let question = Question::Purchases {
            of: vec![Purchase::of(stage.all.address, &bought.id.to_string(), 0)],
            shoppers: stage.shoppers,
            from,
            salt: stage.salt,
        };
        let window = Window {
            warm: Duration::from_millis(200),
            measured,
        };
        bench.wait_for(load::open(stage.all.address, &question, rate, 256, window, stop))
    };
    let before = ask(stage.window.measured * 2, &bench.stop, 0)?;
    bench.go_on()?;
    bench.wait_for(sql::expire_in(&stage.database, held.id.0, EXPIRY_LEAD_MS))?;
    let due = Instant::now() + Duration::from_millis(EXPIRY_LEAD_MS.unsigned_abs());
    let is_over = bench.stop.child_token();
    let (meanwhile, ended) = thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let ended = runtime.block_on(sql::wait_expired(&stage.database, held.id.0, EXPIRY_MAX));
            is_over.cancel();
            ended
        });
        thread::sleep(due.saturating_duration_since(Instant::now()));
        (ask(EXPIRY_MAX, &is_over, before.asked), watching.join())
    });
    let ended = ended.map_err(|_panic| anyhow!("who watched the holds panicked"))??;
    let meanwhile = meanwhile?;
    bench.go_on()?;
    Ok(Expiry {
        holds,
        rate: before.rate(201, ""),
        before: before.latency.percentiles(),
        meanwhile: meanwhile.latency.percentiles(),
        seconds: ended.map(|at| at.saturating_duration_since(due).as_secs_f64()),
    })
}

/// The figures of one size, round by round; rounds count from 1.
fn of(measured: &[Measured], what: &str, size: usize) -> Vec<(usize, Option<f64>)> {
    let found = measured.iter().filter(|it| it.what == what && it.size == size);
    found.map(|it| (it.round, it.a_second)).collect()
}

/// One size as a share of another, round by round.
fn shares(measured: &[Measured], what: &str, size: usize, by: usize) -> Vec<f64> {
    let others = of(measured, what, by);
    let share = |(round, rate): (usize, Option<f64>)| {
        let (_, other) = others.iter().find(|(its, _)| *its == round && round > 0)?;
        ratio(rate, *other)
    };
    of(measured, what, size).into_iter().filter_map(share).collect()
}

fn goals(measured: &[Measured], many: &Many, expiry: &Expiry, is_quick: bool) -> Vec<Goal> {
    let sizes: &[usize] = if is_quick { &FEW_HOLDS } else { &HOLDS };
    let (fewest, most) = (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(1));
    let p99: Vec<f64> = ratio(expiry.meanwhile.p99_ms, expiry.before.p99_ms)
        .into_iter()
        .collect();
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
        ),
        Goal::of(
            "throughput with 1,000 items ÷ with 1",
            Side::AtLeast,
            0.9,
            &shares(measured, "items", 1000, 1),
        ),
        Goal::of("Redis bytes a purchase after the drain", Side::AtMost, 350.0, &bytes).with_remark(format!(
            "{} orders, drained by the application",
            grouped(real(many.holds))
        )),
        Goal::of(
            &format!(
                "{} holds expiring at once: p99 of purchases meanwhile ÷ before",
                grouped(real(expiry.holds))
            ),
            Side::AtMost,
            2.0,
            &p99,
        ),
    ]
}

fn tell(
    report: &mut Report,
    stage: &Stage<'_>,
    (measured, costs): (&[Measured], &[Cost]),
    (many, expiry): (&Many, &Expiry),
    on_cluster: Option<&OnCluster>,
) {
    report.intro = vec![format!(
        "Accepted purchases over HTTP of {} clients, with the drain at work beside them, in windows of {:.1} s; sizes take \
         turns, and each round measures all of them. Redis has everything on disk before it answers; so has Postgres.",
        stage.clients,
        stage.window.measured.as_secs_f64(),
    )];
    report.goals = goals(measured, many, expiry, report.is_quick);
    let mut table = Table::new(
        "By size",
        "The share is of the smallest size in the same round; of holds, only the fewest and the most took turns.",
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
            let smallest = sizes.first().copied().unwrap_or_default();
            let share = shares(measured, what, *size, smallest);
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
    report.tables.push(others(many, expiry));
    let mut time = Table::new(
        "What one purchase costs",
        "Processor time in microseconds, the drain included; four shards on one Redis, or twelve on three primaries. All \
         share the same processors.",
        &[
            "where",
            "purchases a second",
            "Redis",
            "application",
            "Postgres",
            "generator",
        ],
    );
    let one = model::typical(costs);
    for (name, cost) in [
        ("one Redis", Some(&one)),
        ("three primaries", on_cluster.map(|it| &it.cost)),
    ] {
        let micros = |part: usize| cell(cost.and_then(|it| it.micros.get(part).copied().flatten()), 1);
        let rate = cell(cost.and_then(|it| it.a_second), 0);
        time.row([name.to_owned(), rate, micros(0), micros(1), micros(2), micros(3)]);
    }
    report.tables.push(time);
    let (table, notes) = model::grow(&one, many, on_cluster);
    report.tables.push(table);
    report.notes.extend(notes);
    report.figures = json!({
        "clients": stage.clients,
        "window_seconds": stage.window.measured.as_secs_f64(),
        "sizes": measured,
        "costs": costs,
        "many": many,
        "expiry": expiry,
        "cluster": on_cluster,
    });
}

fn others(many: &Many, expiry: &Expiry) -> Table {
    let mut table = Table::new(
        "Many at once",
        "Expiry: purchases came at half the peak, evenly; latency counts from when they were due.",
        &["what", "figure"],
    );
    let holds = grouped(real(many.holds));
    let row = |table: &mut Table, what: String, figure: String| table.row([what, figure]);
    row(
        &mut table,
        format!("Redis bytes a purchase, {holds} holds"),
        cell(many.bytes_a_purchase, 0),
    );
    row(
        &mut table,
        format!("purchases a second by the script, up to {holds}, with the drain beside it"),
        cell(many.fill_a_second, 0),
    );
    row(
        &mut table,
        format!("orders drained a second beside {holds} others"),
        cell(many.drain_a_second, 0),
    );
    let expiring = grouped(real(expiry.holds));
    row(
        &mut table,
        format!("seconds until {expiring} expired holds were free again"),
        cell(expiry.seconds, 1),
    );
    row(
        &mut table,
        "holds expired a second".to_owned(),
        cell(ratio(Some(real(expiry.holds)), expiry.seconds), 0),
    );
    row(
        &mut table,
        "purchases a second meanwhile".to_owned(),
        cell(expiry.rate, 0),
    );
    row(
        &mut table,
        "p99 of purchases before, ms".to_owned(),
        cell(expiry.before.p99_ms, 2),
    );
    row(
        &mut table,
        "p99 of purchases meanwhile, ms".to_owned(),
        cell(expiry.meanwhile.p99_ms, 2),
    );
    table
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
        let goals = goals(&all, &Many::default(), &Expiry::default(), false);
        assert_eq!(goals[0].measured, None, "there were no holds");
        assert!((goals[1].measured.unwrap() - 0.85).abs() < 1e-9);
        assert_eq!((goals[2].measured, goals[3].measured), (None, None));
    }
}
