//! Measures who gets the units of a sale that people and bots want, with several combinations of guards. `./dev bots`
//! starts a server and runs this; `loadtest/README.md` explains the figures.

mod crowd;
mod gang;
mod measure;
mod page;
mod people;
mod plan;
mod probe;
mod scene;

use crate::machine::processor_seconds;
use crate::operator::Operator;
use anyhow::{Context as _, Result, bail};
use chrono::{TimeDelta, Utc};
use crowd::{Crowd, EARLY};
use flashsale::cli::Failure;
use flashsale::cli::shared::output::print;
use flashsale::domain::time;
use flashsale::stderr;
use measure::{Measured, Report};
use plan::{ROUND_MAX, Round, Size};
use scene::{Scene, lock};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep};

/// The time from preloading a sale until it starts, or until its waiting room opens.
const LEAD: Duration = Duration::from_secs(3);
/// The pause between two rounds.
const REST: Duration = Duration::from_secs(2);

/// Options of the bots. The server is that of `BASE_URL`, with its `ADMIN_KEY` and `JWT_SECRET`.
#[derive(clap::Args)]
pub struct Args {
    /// Seed of the people, the bots and their addresses.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run with a tenth of the people, the bots and the units.
    #[arg(long)]
    small: bool,
    /// Only these rounds.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    rounds: Vec<String>,
    /// The folder of the report.
    #[arg(long, value_name = "DIR", default_value = "loadtest/results")]
    out: PathBuf,
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set; run ./dev bots"))
}

/// Runs all rounds. Fails when a sale does not balance or was oversold.
pub fn run(args: Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    if runtime.block_on(Box::pin(play_all(args)))? {
        return Ok(());
    }
    Err(Failure::No("a sale does not balance, or was oversold".to_owned()))
}

/// Runs all rounds; `true` if every sale balances and none was oversold.
async fn play_all(options: Args) -> Result<bool> {
    let url = variable("BASE_URL")?;
    let server = url.trim_start_matches("http://").trim_end_matches('/');
    let server: SocketAddr = server.parse().context("BASE_URL is not http://ADDRESS:PORT")?;
    if !server.ip().is_loopback() {
        bail!("bots are sent to servers of this machine only");
    }
    let size = if options.small { Size::small() } else { Size::full() };
    let crowd = Arc::new(Crowd::of(options.seed, &size, &variable("JWT_SECRET")?)?);
    let mut operator = Operator::of(server, variable("ADMIN_KEY")?);
    let mut report = Report::new(options.seed, options.small, size.clone());
    report.probe = Some(probe::run(server, &mut operator, &crowd).await?);
    let mut loot = gang::Loot::default();
    let mut before = None;
    let mut failure = None;
    for round in plan::rounds() {
        if !options.rounds.is_empty() && !options.rounds.iter().any(|name| name == round.name) {
            continue;
        }
        stderr::line(format_args!("{:>2}  {}", round.name, round.title));
        let bots = (before.take(), &mut loot, options.seed);
        let (measured, sale) = match play(server, &mut operator, &crowd, &round, &size, bots).await {
            Ok(played) => played,
            // The report still shows the rounds before.
            Err(error) => {
                failure = Some(error.context(format!("round {}", round.name)));
                break;
            }
        };
        stderr::line(format_args!("    {}", measured.line()));
        before = Some(sale);
        report.rounds.push(measured);
        sleep(REST).await;
    }
    report.finish();
    let name = if options.small { "bots-small" } else { "bots" };
    std::fs::create_dir_all(&options.out)?;
    let json = serde_json::to_string_pretty(&report)? + "\n";
    std::fs::write(options.out.join(format!("{name}.json")), json)?;
    std::fs::write(options.out.join(format!("{name}.html")), page::page(&report))?;
    print(&format!(
        "{}\n{}\n",
        report.text(),
        options.out.join(format!("{name}.html")).display()
    ))?;
    failure.map_or_else(|| Ok(report.is_sound()), Err)
}

/// Runs one round, and gives its figures and the sale's id.
async fn play(
    server: SocketAddr,
    operator: &mut Operator,
    crowd: &Arc<Crowd>,
    round: &Round,
    size: &Size,
    (before, loot, seed): (Option<String>, &mut gang::Loot, u64),
) -> Result<(Measured, String)> {
    operator.limit_addresses(round.address_rate).await?;
    let early = if round.waiting_room { EARLY } else { Duration::ZERO };
    let starts_at = Utc::now() + TimeDelta::from_std(LEAD + early)?;
    let start = Instant::now() + (starts_at - Utc::now()).to_std()?;
    let ends_at = starts_at + TimeDelta::hours(1);
    let sale = round.sale(size, &time::format(&starts_at), &time::format(&ends_at));
    let sale = operator.load(sale).await?;
    let scene = Arc::new(Scene::new(
        server,
        (sale.clone(), before.unwrap_or_else(|| sale.clone())),
        (round.clone(), size.clone()),
        Arc::clone(crowd),
        start,
    ));
    let processor = processor_seconds();
    let gang = Arc::new(gang::Gang::new(Arc::clone(&scene), loot.clone()));
    let robbers = round.has_bots.then(|| tokio::spawn(Arc::clone(&gang).come(seed)));
    sell(&scene).await?;
    let ended = Instant::now();
    scene.is_over.store(true, Ordering::Relaxed);
    if let Some(robbers) = robbers {
        robbers.await?;
    }
    *loot = lock(&gang.new).clone();
    let processor = processor_seconds() - processor;
    let (stats, audit) = operator.count(&sale).await?;
    operator.operate(&sale, "close").await?;
    Ok((Measured::of(&scene, ended, processor, &stats, &audit), sale))
}

/// Runs the people, until all have finished and all units are sold, or until the time limit.
async fn sell(scene: &Arc<Scene>) -> Result<()> {
    let mut people = tokio::spawn(people::come(Arc::clone(scene)));
    let mut every = interval(Duration::from_secs(1));
    let mut is_answered = false;
    let mut asked = (0, Instant::now());
    loop {
        tokio::select! {
            ended = &mut people, if !is_answered => {
                ended?;
                is_answered = true;
            }
            _ = every.tick() => asked = progress(scene, asked),
        }
        let units = lock(&scene.people).sold.len() + lock(&scene.bots).sold.len();
        if is_answered && (units >= scene.size.stock || Instant::now() > scene.start + ROUND_MAX) {
            return Ok(());
        }
    }
}

/// Prints the progress, and gives the number of replies and the time.
fn progress(scene: &Scene, (before, at): (u64, Instant)) -> (u64, Instant) {
    let (people, bots) = (lock(&scene.people), lock(&scene.bots));
    let answers = people.answers.values().sum::<u64>() + bots.answers.values().sum::<u64>();
    let now = Instant::now();
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let rate = (answers - before) as f64 / (now - at).as_secs_f64().max(0.001);
    let since = match now.checked_duration_since(scene.start) {
        Some(since) => since.as_secs_f64(),
        None => -(scene.start - now).as_secs_f64(),
    };
    stderr::line(format_args!(
        "    {since:+5.1} s: {} units to people, {} to bots; {} people answered; {rate:.0} answers a second",
        people.sold.len(),
        bots.sold.len(),
        scene.answered.load(Ordering::Relaxed),
    ));
    (answers, now)
}
