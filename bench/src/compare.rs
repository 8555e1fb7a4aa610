//! `bench compare` puts one load on four ways to sell. The first part has a unit for every shopper, and measures speed.
//! The second part is a scarce sale. It kills the application and Redis in the middle, and then checks the stock.

use super::load::{self, Percentiles, Window, real};
use super::numbers::{NOT_MEASURED, cell, median, ratio};
use super::plot::{Plot, Series};
use super::report::{Goal, Report, Side, Table};
use super::rivals::{self, Way};
use super::rush::{Crowd, Rush, SOLD_OUT, Told, rush};
use super::shoppers::{Purchase, Question, Shoppers, sku};
use super::sql::{self, Booked};
use super::world::{Micros, OwnRedis, Plan, Terms, World, drained, in_words, middle};
use super::{Bench, Options};
use crate::program::Program;
use anyhow::{Context as _, Result, anyhow};
use flashsale::domain::sale::Sale;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Connections while every shopper can buy; the next constant is for the rush.
const CLIENTS: usize = 64;
const RUSH_CLIENTS: usize = 128;
/// The most purchases a second on two cores; an upper bound for the number of shoppers.
const RATE_MAX: f64 = 30_000.0;
/// Shoppers for each unit in the rush; the next constant is the number of units for each late shopper.
const DEMAND: usize = 3;
const LATE_SHARE: usize = 5;
/// The percentage of units sold at which the application is killed; the next constant is for Redis.
const KILL_PROGRAM_AT: usize = 30;
const KILL_REDIS_AT: usize = 60;
/// The time limit of a rush.
const RUSH_MAX: Duration = Duration::from_secs(300);
/// The interval at which the killer reads the number of sold units.
const WATCH: Duration = Duration::from_millis(1);
/// The length of one point of the timeline.
const STRETCH: Duration = Duration::from_millis(100);

/// Our program, or a rival.
#[derive(Clone, Copy)]
enum Kind {
    Rival(Way),
    Ours(&'static str),
}

/// The ways to sell, in the order of the table.
const WAYS: [(&str, &str, Kind); 4] = [
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

/// The state of the stock after a rush with kills.
#[derive(Clone, Debug, Default, Serialize)]
struct Scarce {
    stock: usize,
    shoppers: usize,
    /// Orders in replies to shoppers; the next field counts the units that the ledger has as sold.
    acknowledged: usize,
    booked: usize,
    oversold: usize,
    /// `None` if every late shopper could buy, so that the remaining stock is unknown.
    leaked: Option<usize>,
    duplicates: usize,
    lost: usize,
    /// Units sold to late shoppers after a shopper got `sold_out`.
    sold_after_sold_out: usize,
    /// Orders of the rush made after a shopper got `sold_out`, although no unit comes back in a rush. For rivals, only
    /// orders whose request was sent after that reply count.
    false_sold_out: usize,
    /// Shoppers who have an order and whose last reply was a refusal.
    denied: usize,
    /// Refusals with another code than `sold_out`, by code.
    refused_otherwise: BTreeMap<String, usize>,
    /// Shoppers who got no reply.
    unanswered: usize,
    /// From the kill of Redis to the reply with the next new order whose request was sent after the kill.
    recovery_seconds: Option<f64>,
    /// The same for the application.
    program_recovery_seconds: Option<f64>,
    seconds: f64,
    answers: String,
    timeline: Vec<(f64, f64)>,
    marks: Vec<(f64, String)>,
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
                let way = match way {
                    Way::DatabaseOnly => "database-only",
                    Way::BasicScript => "basic-script",
                };
                world.plan("rival", &["rival", way], &url, &database)?
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
            Some(sale) => drained(bench, self.redis, sale),
            None => Ok(()),
        }
    }
}

/// Runs the measurement; it does not write the report. The second value lists the promises that ours broke.
pub fn run(options: Options) -> Result<(Report, Vec<String>)> {
    let rounds = options.rounds(3);
    let window = options.window(5.0);
    let clients = options.clients.unwrap_or(CLIENTS);
    let bench = Bench::new(options, 1 + WAYS.len() * rounds * 2)?;
    let options = &bench.options;
    let mut report = Report::begin("compare", "Four ways to sell", options.quick, options.seed);
    bench.step("starting Redis and Postgres")?;
    let world = World::start(&options.data)?;
    world.describe(&bench, &mut report)?;
    let stock = options.size(500, 10_000);
    let wanted = options.shoppers(window, RATE_MAX).max(stock * (DEMAND + 1));
    let shoppers = Shoppers::of(wanted, &world.secrets.jwt)?;

    // A later contender finds servers that have done more work, so the contenders rotate their places.
    let in_turn = |round: usize| (0..WAYS.len()).map(move |at| (at + round) % WAYS.len());
    let mut steady: Vec<Vec<Steady>> = vec![Vec::new(); WAYS.len()];
    let contenders: Vec<Contender<'_>> = WAYS
        .iter()
        .map(|(_, database, kind)| Contender::new(&bench, &world, &world.redis, database, *kind))
        .collect::<Result<_>>()?;
    for round in 1..=rounds {
        for at in in_turn(round) {
            let (Some((name, _, _)), Some(contender), Some(measured)) =
                (WAYS.get(at), contenders.get(at), steady.get_mut(at))
            else {
                continue;
            };
            bench.step(&format!("round {round}: {name}"))?;
            let it = plenty(&bench, &world, contender, &shoppers, clients, window)?;
            bench.say(&format!("{name}: {} a second", cell(it.a_second, 0)));
            measured.push(it);
        }
    }
    let mut scarce: Vec<Vec<Scarce>> = vec![Vec::new(); WAYS.len()];
    for round in 1..=rounds {
        for at in in_turn(round) {
            let (Some((name, database, kind)), Some(counted)) = (WAYS.get(at), scarce.get_mut(at)) else {
                continue;
            };
            bench.step(&format!("round {round}, a rush with kills: {name}"))?;
            // Each contender has its own Redis, so none reloads the data of another.
            let redis = world.another_redis(&format!("redis-of-{database}-{round}"), true, &[])?;
            let database = format!("{database}_scarce_{round}");
            let contender = Contender::new(&bench, &world, &redis, &database, *kind)?;
            let it = scarcity(&bench, &world, &contender, &shoppers, stock)?;
            bench.say(&format!(
                "{name}: {} oversold, {} leaked, {} duplicate, {} lost",
                it.oversold,
                it.leaked.map_or_else(|| "?".to_owned(), |it| it.to_string()),
                it.duplicates,
                it.lost
            ));
            counted.push(it);
        }
    }
    let rushes: Vec<Rushes<'_>> = scarce.iter().map(|rounds| Rushes(rounds)).collect();
    let broken = tell(&mut report, (clients, window), &steady, &rushes);
    report.end();
    Ok((report, broken))
}

/// Measures the highest rate of purchases, with units for all shoppers.
fn plenty(
    bench: &Bench,
    world: &World,
    contender: &Contender<'_>,
    shoppers: &Shoppers,
    clients: usize,
    window: Window,
) -> Result<Steady> {
    let program = contender.plan.start()?;
    let sale = contender.sell(bench, world, 100_000_000)?;
    let server = contender.plan.address;
    let question = Question::purchases(server, &sale.id.to_string(), shoppers, bench.options.first_salt());
    world.calm(bench, &contender.database)?;
    let redis = [contender.redis.pid()?];
    let before = world.used(&redis, program.pid());
    let tally = bench.wait_for(load::closed(server, &question, clients, window, &bench.stop))?;
    bench.go_on()?;
    contender.settle(bench, &sale)?;
    let after = world.used(&redis, program.pid());
    // The instance must not keep this sale selling while the next contender is measured.
    if let Some(ours) = sale.ours {
        world.close(bench, server, &[ours])?;
    }
    program.stop();
    Ok(Steady {
        a_second: tally.rate(201, ""),
        latency: tally.percentiles(201, ""),
        micros: after.micros_since(&before, tally.of_all_asked(201, "")),
        remarks: tally.remarks(201, "", "purchases").collect(),
    })
}

#[derive(Default)]
struct Killed {
    program: Option<Instant>,
    redis: Option<Instant>,
}

/// Runs a rush in which the application and Redis are killed once each. Late shoppers follow, and then the count.
fn scarcity(
    bench: &Bench,
    world: &World,
    contender: &Contender<'_>,
    shoppers: &Shoppers,
    stock: usize,
) -> Result<Scarce> {
    let program = contender.plan.start()?;
    let sale = contender.sell(bench, world, i64::try_from(stock)?)?;
    let crowd = |who| Crowd {
        server: contender.plan.address,
        purchase: Purchase::of(contender.plan.address, &sale.id.to_string(), 0),
        shoppers,
        who,
        salt: bench.options.first_salt() + 1,
        connections: bench.options.clients.unwrap_or(RUSH_CLIENTS),
        limit: RUSH_MAX,
    };
    let (sold, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (first, disturbed) = thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(contender, program, stock, &sold, &is_over));
        let first = bench.wait_for(rush(&crowd(0..stock * DEMAND), &sold, &bench.stop));
        is_over.store(true, Ordering::Relaxed);
        (first, disturbing.join())
    });
    let (program, killed) = disturbed.map_err(|_panic| anyhow!("who kills panicked"))??;
    let first = first?;
    bench.go_on()?;
    contender.settle(bench, &sale)?;
    // Units that come back late must be on sale before the late shoppers ask.
    thread::sleep(Duration::from_millis(if bench.options.quick { 500 } else { 5000 }));
    let from = stock * DEMAND;
    let late = crowd(from..from + (stock / LATE_SHARE).max(20));
    let late = bench.wait_for(rush(&late, &sold, &bench.stop))?;
    bench.go_on()?;
    contender.settle(bench, &sale)?;
    program.stop();
    let is_ours = sale.ours.is_some();
    let booked = bench.wait_for(sql::booked(&contender.database, sale.id, is_ours))?;
    Ok(count((stock, is_ours), &first, &late, &booked, &killed))
}

/// Kills the application and later Redis, each at its share of sold units, and restarts each at once.
fn disturb(
    contender: &Contender<'_>,
    mut program: Program,
    stock: usize,
    sold: &AtomicUsize,
    is_over: &AtomicBool,
) -> Result<(Program, Killed)> {
    let mut killed = Killed::default();
    let reached = |percent: usize| {
        while !is_over.load(Ordering::Relaxed) {
            if sold.load(Ordering::Relaxed) * 100 >= stock * percent {
                return true;
            }
            thread::sleep(WATCH);
        }
        false
    };
    if reached(KILL_PROGRAM_AT) {
        killed.program = Some(Instant::now());
        program.kill();
        program = contender.plan.restart().context("after it was killed")?;
    }
    if reached(KILL_REDIS_AT) {
        killed.redis = Some(Instant::now());
        contender.redis.kill()?;
        contender.redis.restart()?;
    }
    Ok((program, killed))
}

/// Compares the replies to shoppers with the ledger.
fn count((stock, is_ours): (usize, bool), first: &Rush, late: &Rush, booked: &[Booked], killed: &Killed) -> Scarce {
    let acknowledged: HashSet<&str> = first.orders().chain(late.orders()).collect();
    let ids: HashSet<&str> = booked.iter().map(|it| it.id.as_str()).collect();
    let units: i64 = booked.iter().map(|it| it.units).sum();
    let units = usize::try_from(units).unwrap_or_default();
    // Each shopper wants one unit, so a second order of one shopper is a duplicate, whatever its key.
    let mut orders: HashMap<&str, usize> = HashMap::new();
    for it in booked {
        *orders.entry(it.user.as_str()).or_default() += 1;
    }
    let keys: HashSet<(&str, &str)> = booked.iter().map(|it| (it.user.as_str(), it.key.as_str())).collect();
    let duplicates = booked.len() - orders.len().min(keys.len());
    let [firsts, lates]: [HashMap<String, &Told>; 2] = [first, late].map(|rush| rush.shoppers().collect());
    // Shoppers without a reply have a count of their own. An order of an unknown user counts as denied.
    let is_denied = |user: &&str| {
        let told = firsts.get(*user).or_else(|| lates.get(*user));
        !matches!(told, Some(Told::Order(_) | Told::Nothing))
    };
    let mut refused_otherwise: BTreeMap<String, usize> = BTreeMap::new();
    for told in first.told.iter().chain(&late.told) {
        if let Told::Refused(code) = told
            && code != SOLD_OUT
        {
            let code = if code.is_empty() { "no code" } else { code };
            *refused_otherwise.entry(code.to_owned()).or_default() += 1;
        }
    }
    // Redis stamps our orders with this machine's clock, in whole milliseconds. A rival stamps its orders before
    // Postgres decides, or after Redis decided.
    let made_later = first.sold_out_by_clock.filter(|_| is_ours).map_or(0, |told| {
        let is_later = |it: &&Booked| it.created_at.timestamp_millis() > told.timestamp_millis();
        let of_the_rush = booked.iter().filter(|it| firsts.contains_key(&it.user));
        of_the_rush.filter(is_later).count()
    });
    let ((_, nothing), (late_refused, late_nothing)) = (first.others(), late.others());
    let since = |moment: Instant| moment.saturating_duration_since(first.began).as_secs_f64();
    let mark = |moment: Option<Instant>, what: &str| moment.map(|moment| (since(moment), what.to_owned()));
    Scarce {
        stock,
        shoppers: first.told.len() + late.told.len(),
        acknowledged: acknowledged.len(),
        booked: units,
        oversold: units.max(acknowledged.len()).saturating_sub(stock),
        leaked: (late_refused > 0).then(|| stock.saturating_sub(units)),
        duplicates,
        lost: acknowledged.difference(&ids).count(),
        sold_after_sold_out: first.sold_out.map_or(0, |_| late.orders().count()),
        false_sold_out: first.false_sold_out().max(made_later),
        denied: orders.keys().filter(|user| is_denied(user)).count(),
        refused_otherwise,
        unanswered: nothing + late_nothing,
        recovery_seconds: killed.redis.and_then(|moment| first.next_after(moment)),
        program_recovery_seconds: killed.program.and_then(|moment| first.next_after(moment)),
        seconds: first.tally.seconds,
        answers: first.tally.others(201, "").unwrap_or_default(),
        timeline: first.timeline(STRETCH),
        marks: [
            mark(killed.program, "application killed"),
            mark(killed.redis, "Redis killed"),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// All rushes of one way to sell.
struct Rushes<'a>(&'a [Scarce]);

impl Rushes<'_> {
    /// The sum over the rushes, so that one broken promise stays visible beside clean rushes.
    fn sum(&self, of: impl Fn(&Scarce) -> usize) -> usize {
        self.0.iter().map(of).sum()
    }

    /// Leaked units of the rushes where the leak is known; `None` if it is known in no rush.
    fn leaked(&self) -> Option<usize> {
        self.0.iter().filter_map(|it| it.leaked).reduce(|all, it| all + it)
    }

    /// The refusals other than `sold_out`, counted by code, in words; empty if there were none.
    fn refused_otherwise(&self) -> String {
        let mut all: BTreeMap<&str, usize> = BTreeMap::new();
        for (code, count) in self.0.iter().flat_map(|it| &it.refused_otherwise) {
            *all.entry(code).or_default() += count;
        }
        let each: Vec<String> = all.iter().map(|(code, count)| format!("{count} × {code}")).collect();
        each.join(", ")
    }

    fn middle(&self, of: impl Fn(&Scarce) -> Option<f64>) -> Option<f64> {
        median(&self.0.iter().filter_map(of).collect::<Vec<_>>())
    }
}

/// The rates of a way to sell, by round.
fn rates(steady: &[Steady]) -> Vec<Option<f64>> {
    steady.iter().map(|it| it.a_second).collect()
}

/// The promises that ours broke, in words.
fn breaches(name: &str, rushes: &Rushes<'_>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut note = |count: usize, what: &str| {
        if count > 0 {
            breaches.push(format!("{name}: {count} {what}"));
        }
    };
    for it in promises(rushes) {
        note(it.broken.unwrap_or_default(), it.what);
    }
    breaches
}

/// A promise that ours must keep.
struct Promise {
    what: &'static str,
    /// How many times ours broke it in all rushes; `None` where that is unknown.
    broken: Option<usize>,
    remark: String,
}

/// The promises that ours must keep, and how many times it broke each. A program that never recovers oversells nothing.
/// Recovery after a kill is therefore a promise too.
fn promises(rushes: &Rushes<'_>) -> Vec<Promise> {
    let is_down = |it: &Scarce| it.recovery_seconds.is_none() || it.program_recovery_seconds.is_none();
    let promise = |what, broken| Promise {
        what,
        broken,
        remark: String::new(),
    };
    let sum = |what, of: fn(&Scarce) -> usize| promise(what, Some(rushes.sum(of)));
    vec![
        sum("units oversold", |it| it.oversold),
        promise("units leaked", rushes.leaked()),
        sum("duplicate orders", |it| it.duplicates),
        sum("acknowledged orders lost", |it| it.lost),
        sum("orders whose shopper was refused", |it| it.denied),
        Promise {
            remark: rushes.refused_otherwise(),
            ..sum("refusals other than sold_out", |it| it.refused_otherwise.values().sum())
        },
        sum("units sold to late shoppers after \"sold out\"", |it| {
            it.sold_after_sold_out
        }),
        Promise {
            remark:
                "orders of the rush that Redis made, by its clock in whole milliseconds, after somebody had been told"
                    .to_owned(),
            ..sum("false \"sold out\" while a unit was free", |it| it.false_sold_out)
        },
        sum("shoppers told nothing", |it| it.unanswered),
        promise(
            "rushes without a new order after each kill",
            Some(rushes.sum(|it| usize::from(is_down(it)))),
        ),
    ]
}

fn tell(
    report: &mut Report,
    (clients, window): (usize, Window),
    steady: &[Vec<Steady>],
    scarce: &[Rushes<'_>],
) -> Vec<String> {
    let first = scarce.first().and_then(|it| it.0.first()).cloned().unwrap_or_default();
    report.intro = vec![
        format!(
            "The same HTTP server, checks of tokens and bodies, answers, Redis (append-only file, fsync always) and Postgres \
             for all. Speed: {clients} clients as fast as they are answered, for {:.1} s in each of {} rounds, in which the \
             ways take turns, another one first in each; every purchase is of a shopper who has not bought before. No Redis \
             writes its file anew meanwhile, and Postgres is vacuumed and has everything in place before each window.",
            window.measured.as_secs_f64(),
            steady.first().map_or(0, Vec::len),
        ),
        format!(
            "Correctness, {} rushes of each way: {} shoppers want {} units. They wait 2 s for an answer and ask again under the same key. When {} % \
             of the units are sold, the application is killed (kill -9) and started again; at {} %, Redis. When all have been \
             told, late shoppers come. Orders are counted in Postgres and compared with what shoppers were told.",
            scarce.first().map_or(0, |it| it.0.len()),
            first.shoppers,
            first.stock,
            KILL_PROGRAM_AT,
            KILL_REDIS_AT,
        ),
    ];
    let mut table = Table::new(
        "Four ways to sell",
        "Latencies in milliseconds; medians of the rounds, as is recovery: seconds from the kill of Redis to the next \
         new order; the database alone does not use it. What went wrong is the sum of all rushes.",
        &[
            "way",
            "purchases a second",
            "p50",
            "p99",
            "p99.9",
            "oversold",
            "leaked",
            "duplicate orders",
            "acknowledged orders lost",
            "sold after \"sold out\"",
            "false \"sold out\"",
            "told nothing",
            "recovery",
        ],
    );
    let mut details = Table::new(
        "The rush",
        "Of all rounds together, counted in Postgres and by what shoppers were told; seconds are medians. Refused with an \
         order: shoppers who have one and were refused in the end. Refused otherwise: not with sold_out.",
        &[
            "way",
            "seconds",
            "acknowledged",
            "in Postgres",
            "recovery of the application",
            "refused with an order",
            "refused otherwise",
            "other answers than 201",
        ],
    );
    for ((name, _, _), (rounds, it)) in WAYS.iter().zip(steady.iter().zip(scarce)) {
        let middle = |of: fn(&Percentiles) -> Option<f64>| {
            let figures: Vec<f64> = rounds.iter().filter_map(|round| of(&round.latency)).collect();
            cell(median(&figures), 2)
        };
        let share = |count: usize| match count {
            0 => "0".to_owned(),
            count => format!(
                "{count} ({:.2} %)",
                100.0 * real(count) / real(it.sum(|it| it.stock).max(1))
            ),
        };
        let flat: Vec<f64> = rates(rounds).into_iter().flatten().collect();
        table.row([
            (*name).to_owned(),
            cell(median(&flat), 0),
            middle(|it| it.p50_ms),
            middle(|it| it.p99_ms),
            middle(|it| it.p999_ms),
            share(it.sum(|it| it.oversold)),
            it.leaked().map_or_else(|| cell(None, 0), share),
            share(it.sum(|it| it.duplicates)),
            share(it.sum(|it| it.lost)),
            share(it.sum(|it| it.sold_after_sold_out)),
            share(it.sum(|it| it.false_sold_out)),
            it.sum(|it| it.unanswered).to_string(),
            cell(it.middle(|it| it.recovery_seconds), 2),
        ]);
        let answers = it.0.iter().map(|it| it.answers.as_str()).filter(|it| !it.is_empty());
        details.row([
            (*name).to_owned(),
            cell(it.middle(|it| Some(it.seconds)), 1),
            it.sum(|it| it.acknowledged).to_string(),
            it.sum(|it| it.booked).to_string(),
            cell(it.middle(|it| it.program_recovery_seconds), 2),
            it.sum(|it| it.denied).to_string(),
            Some(it.refused_otherwise())
                .filter(|codes| !codes.is_empty())
                .unwrap_or_else(|| "0".to_owned()),
            answers.collect::<Vec<_>>().join("; "),
        ]);
        for (number, round) in rounds.iter().enumerate() {
            for remark in &round.remarks {
                report.notes.push(format!("{name}, round {}: {remark}", number + 1));
            }
        }
    }
    report.tables = vec![table, details];
    let mut broken = Vec::new();
    report.goals = goals(steady);
    for ((name, _, kind), it) in WAYS.iter().zip(scarce) {
        if matches!(kind, Kind::Ours(_)) {
            for promise in promises(it) {
                let counted: Vec<f64> = promise.broken.map(real).into_iter().collect();
                let goal = Goal::of(&format!("{name}: {}", promise.what), Side::AtMost, 0.0, &counted);
                report.goals.push(goal.with_remark(promise.remark));
            }
            broken.extend(breaches(name, it));
        }
    }
    report.plots.push(Plot {
        title: "Purchases a second in the first rush".to_owned(),
        x: "s".to_owned(),
        y: "purchases a second".to_owned(),
        is_stacked: true,
        series: WAYS
            .iter()
            .zip(scarce)
            .map(|((name, _, _), it)| Series {
                name: (*name).to_owned(),
                points: it.0.first().map(|it| it.timeline.clone()).unwrap_or_default(),
                marks: it.0.first().map(|it| it.marks.clone()).unwrap_or_default(),
            })
            .collect(),
        ..Plot::default()
    });
    report.notes.push(
        "Durability of the orders differs where they are acknowledged: the database and the basic script answer after the \
         commit of the order, as does \"full, durability postgres\"; \"full\" answers when Redis has the order on disk."
            .to_owned(),
    );
    let ways: Vec<_> = WAYS
        .iter()
        .zip(steady.iter().zip(scarce))
        .map(|((name, _, _), (steady, scarce))| json!({"way": name, "steady": steady, "scarce": scarce.0}))
        .collect();
    report.figures = json!({"clients": clients, "window_seconds": window.measured.as_secs_f64(), "ways": ways});
    broken
}

fn goals(steady: &[Vec<Steady>]) -> Vec<Goal> {
    let [database, basic, full, _] = steady else {
        return Vec::new();
    };
    let shares = |by: &[Steady]| -> Vec<f64> {
        let pairs = rates(full).into_iter().zip(rates(by));
        pairs.filter_map(|(rate, by)| ratio(rate, by)).collect()
    };
    let words = |steady: &[Steady]| {
        let cost = middle(&steady.iter().map(|it| it.micros).collect::<Vec<_>>());
        in_words(&cost).unwrap_or_else(|| NOT_MEASURED.to_owned())
    };
    let way = |other: &[Steady], name: &str| {
        format!(
            "a purchase takes {} with full, {} with {name}",
            words(full),
            words(other)
        )
    };
    vec![
        Goal::of(
            "full ÷ database only, purchases a second",
            Side::AtLeast,
            20.0,
            &shares(database),
        )
        .in_its_way(way(database, "database only")),
        Goal::of(
            "full ÷ basic script, purchases a second",
            Side::AtLeast,
            0.8,
            &shares(basic),
        )
        .in_its_way(way(basic, "basic script")),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::load::Tally;
    use super::super::rush::Accepted;
    use super::super::shoppers::name;
    use super::*;
    use chrono::DateTime;

    /// When the first shopper gets `sold_out`, in milliseconds since 1970.
    const TOLD_MS: i64 = 1_000_000;
    /// The number of the first late shopper.
    const LATE: usize = 100;

    fn a_rush(told: Vec<Told>) -> Rush {
        Rush {
            from: 0,
            sold_out: told.contains(&refused()).then(Instant::now),
            sold_out_by_clock: DateTime::from_timestamp_millis(TOLD_MS).filter(|_| told.contains(&refused())),
            told,
            accepted: Vec::new(),
            tally: Tally::new().unwrap(),
            began: Instant::now(),
        }
    }

    fn lates(told: Vec<Told>) -> Rush {
        Rush {
            from: LATE,
            ..a_rush(told)
        }
    }

    /// The same, with a new order whose request was sent after both kills.
    fn recovered(told: Vec<Told>) -> (Rush, Killed) {
        let mut rush = a_rush(told);
        let later = rush.began + Duration::from_millis(1);
        rush.accepted.push(Accepted {
            asked: later,
            answered: later,
            is_new: true,
        });
        let killed = Killed {
            program: Some(rush.began),
            redis: Some(rush.began),
        };
        rush.sold_out = rush.sold_out.map(|_| later);
        (rush, killed)
    }

    fn has(id: &str) -> Told {
        Told::Order(id.to_owned())
    }

    fn refused() -> Told {
        Told::Refused("sold_out".to_owned())
    }

    /// An order of this shopper, made at the moment of the first `sold_out`.
    fn booked(id: &str, shopper: usize) -> Booked {
        Booked {
            id: id.to_owned(),
            user: name(shopper),
            key: "k".to_owned(),
            units: 1,
            created_at: DateTime::from_timestamp_millis(TOLD_MS).unwrap(),
        }
    }

    #[test]
    fn a_clean_sale_has_nothing_to_tell() {
        let ((first, killed), late) = (recovered(vec![has("a"), has("b"), refused()]), lates(vec![refused()]));
        let books = [booked("a", 0), booked("b", 1)];
        let it = count((2, true), &first, &late, &books, &killed);
        assert_eq!((it.oversold, it.leaked, it.duplicates, it.lost), (0, Some(0), 0, 0));
        assert_eq!(it.recovery_seconds, Some(0.001));
        assert_eq!(breaches("x", &Rushes(&[it])), [""; 0]);
    }

    #[test]
    fn who_stays_silent_after_a_kill_has_broken_a_promise() {
        let ((first, killed), late) = (
            recovered(vec![has("a"), refused(), Told::Nothing]),
            lates(vec![refused()]),
        );
        let books = [booked("a", 0)];
        let it = count((1, true), &first, &late, &books, &killed);
        assert_eq!(breaches("x", &Rushes(&[it])), ["x: 1 shoppers told nothing"]);
        // A kill without a later new order counts as no recovery, even where only one server was killed.
        let (mut first, killed) = recovered(vec![has("a"), refused()]);
        let half = Killed {
            redis: None,
            ..recovered(vec![]).1
        };
        let it = count((1, true), &first, &late, &books, &half);
        let silent = "x: 1 rushes without a new order after each kill";
        assert_eq!(breaches("x", &Rushes(&[it])), [silent]);
        first.accepted[0].is_new = false;
        let it = count((1, true), &first, &late, &books, &killed);
        assert_eq!(breaches("x", &Rushes(&[it])), [silent], "an old order is no sale");
    }

    #[test]
    fn what_goes_wrong_is_counted_by_the_books_and_by_what_shoppers_know() {
        let (first, late) = (
            a_rush(vec![has("a"), has("b"), has("c"), refused(), Told::Nothing]),
            lates(vec![has("d"), refused()]),
        );
        // One shopper has two orders, and one acknowledged order is missing.
        let books = [booked("a", 0), booked("x", 0), booked("b", 1), booked("c", 2)];
        let it = count((3, true), &first, &late, &books, &Killed::default());
        assert_eq!((it.oversold, it.duplicates, it.lost, it.unanswered), (1, 1, 1, 1));
        assert_eq!(it.sold_after_sold_out, 1);
        let it = count((7, true), &first, &late, &books, &Killed::default());
        assert_eq!((it.oversold, it.leaked), (0, Some(3)));
        // A clean rush does not cancel the breaches of another.
        let clean = Scarce {
            leaked: Some(0),
            ..Scarce::default()
        };
        let all = [clean.clone(), it, clean];
        // A leak, a duplicate, a lost order, a sale after `sold_out`, a shopper without a reply, and no recovery.
        assert_eq!(breaches("x", &Rushes(&all)).len(), 6);
        assert_eq!(Rushes(&all).leaked(), Some(3));
        // If every late shopper could buy, the remaining stock is unknown.
        let it = count((7, true), &first, &lates(vec![has("d")]), &books, &Killed::default());
        assert_eq!(it.leaked, None);
    }

    #[test]
    fn an_order_whose_shopper_was_refused_is_counted_once_by_shopper() {
        let (first, killed) = recovered(vec![has("a"), refused(), Told::Nothing]);
        let late = lates(vec![refused()]);
        // The second shopper has an order, but a retry got `sold_out`. So did the late shopper's request. The third
        // shopper got no reply, and counts as unanswered only.
        let books = [booked("a", 0), booked("x", 1), booked("y", 2), booked("z", LATE)];
        let it = count((4, true), &first, &late, &books, &killed);
        assert_eq!((it.denied, it.unanswered, it.lost, it.duplicates), (2, 1, 0, 0));
        let said = ["x: 2 orders whose shopper was refused", "x: 1 shoppers told nothing"];
        assert_eq!(breaches("x", &Rushes(&[it])), said);
    }

    #[test]
    fn a_refusal_for_another_reason_than_stock_is_counted_by_its_code() {
        let limit = || Told::Refused("purchase_limit_reached".to_owned());
        let (first, killed) = recovered(vec![has("a"), limit(), limit(), refused()]);
        let late = lates(vec![refused(), Told::Refused(String::new())]);
        let it = count((1, true), &first, &late, &[booked("a", 0)], &killed);
        let rushes = [it.clone(), it];
        assert_eq!(
            Rushes(&rushes).refused_otherwise(),
            "2 × no code, 4 × purchase_limit_reached"
        );
        assert_eq!(breaches("x", &Rushes(&rushes)), ["x: 6 refusals other than sold_out"]);
    }

    #[test]
    fn sold_out_was_false_if_redis_made_an_order_later() {
        let made_at = |id, shopper, ms| Booked {
            created_at: DateTime::from_timestamp_millis(ms).unwrap(),
            ..booked(id, shopper)
        };
        let (first, killed) = recovered(vec![has("a"), has("b"), refused()]);
        // The request was under way before the third shopper got `sold_out`, so a check by request time misses it.
        assert_eq!(first.false_sold_out(), 0);
        let late = lates(vec![refused()]);
        let books = |ms| [made_at("a", 0, TOLD_MS - 5), made_at("b", 1, ms)];
        let of = |is_ours, ms| count((2, is_ours), &first, &late, &books(ms), &killed);
        assert_eq!(
            of(true, TOLD_MS).false_sold_out,
            0,
            "it may have been before in that millisecond"
        );
        let it = of(true, TOLD_MS + 1);
        assert_eq!(it.false_sold_out, 1);
        assert_eq!(
            breaches("x", &Rushes(&[it])),
            ["x: 1 false \"sold out\" while a unit was free"]
        );
        assert_eq!(of(false, TOLD_MS + 1).false_sold_out, 0, "others write it down later");
        // Orders of late shoppers have a count of their own.
        let (late, books) = (lates(vec![has("z")]), [made_at("z", LATE, TOLD_MS + 9)]);
        let it = count((1, true), &a_rush(vec![refused()]), &late, &books, &killed);
        assert_eq!((it.false_sold_out, it.sold_after_sold_out), (0, 1));
    }
}
