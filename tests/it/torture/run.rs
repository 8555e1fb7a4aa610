//! Rounds one after the other, on a few worlds at the same time, and their results.

use super::checker::{check, is_only_late, losses};
use super::history::{History, Violation};
use super::nemesis::Campaign;
use super::report::Report;
use super::round::{INSTANCES, Plan, play};
use super::world::{Kind, World};
use crate::support::poll::Stopwatch;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::iter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Rounds on one world before it gives way to one of the next kind.
const ROUNDS_A_WORLD: u64 = 4;

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    /// The rounds to play. A round's number decides its kind of world.
    pub rounds: Vec<Range<u64>>,
    /// Faults a round.
    pub faults: usize,
    pub campaign: Campaign,
    pub limit: Duration,
    /// Worlds at the same time.
    pub lanes: usize,
    /// Further variables of the instances.
    pub variables: Vec<(String, String)>,
    /// Whether a round is played once more if it only sells again too late, on a machine that stood still.
    pub repeats_late_rounds: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            rounds: iter::once(0..u64::MAX).collect(),
            faults: 5,
            campaign: Campaign::Everything,
            limit: Duration::from_secs(86_400),
            lanes: 2,
            variables: Vec::new(),
            repeats_late_rounds: false,
        }
    }
}

impl Settings {
    /// From `TORTURE_MINUTES`, `TORTURE_SEED`, `TORTURE_ROUND`, `TORTURE_CAMPAIGN` and `TORTURE_WORLDS`.
    pub fn from_environment() -> Self {
        let number = |name: &str| {
            std::env::var(name).ok().map(|text| {
                let parsed: Result<u64, _> = text.parse();
                parsed.unwrap_or_else(|error| panic!("{name}={text}: {error}"))
            })
        };
        let mut settings = Self {
            seed: number("TORTURE_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000)),
            ..Self::default()
        };
        if let Some(minutes) = number("TORTURE_MINUTES") {
            settings.limit = Duration::from_secs(minutes * 60);
        }
        if let Some(round) = number("TORTURE_ROUND") {
            settings.rounds = iter::once(round..round + 1).collect();
        }
        if let Ok(name) = std::env::var("TORTURE_CAMPAIGN") {
            settings.campaign = Campaign::named(&name)
                .unwrap_or_else(|| panic!("there is no campaign {name}: everything, kills, failovers, total-losses"));
        }
        if let Some(lanes) = number("TORTURE_WORLDS") {
            settings.lanes = usize::try_from(lanes).unwrap();
        }
        settings
    }
}

/// What several lanes share.
struct Run {
    settings: Settings,
    next: AtomicU64,
    until: Instant,
    report: Mutex<Report>,
    failures: Mutex<Vec<String>>,
    kinds: Mutex<BTreeSet<Kind>>,
}

/// Plays rounds until the time or the rounds are over, and fails if any rule was broken. Returns the kinds of worlds on
/// which it played.
pub fn run(settings: &Settings) -> BTreeSet<Kind> {
    println!("torture with seed {}", settings.seed);
    let run = Arc::new(Run {
        next: AtomicU64::default(),
        until: Instant::now() + settings.limit,
        settings: settings.clone(),
        report: Mutex::default(),
        failures: Mutex::default(),
        kinds: Mutex::default(),
    });
    let lanes = (0..settings.lanes).map(|_| {
        let run = Arc::clone(&run);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(lane(&run));
        })
    });
    let lanes: Vec<_> = lanes.collect();
    for lane in lanes {
        lane.join().unwrap();
    }
    println!("{}", run.report.lock().unwrap());
    let failures = run.failures.lock().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    std::mem::take(&mut *run.kinds.lock().unwrap())
}

impl Run {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until || !self.failures.lock().unwrap().is_empty()
    }
}

/// Plays blocks of rounds, each on a world of its own, until there are no more.
async fn lane(run: &Run) {
    let asked = &run.settings.rounds;
    loop {
        let block = run.next.fetch_add(1, Ordering::Relaxed);
        let first = block * ROUNDS_A_WORLD;
        if run.is_over() || asked.iter().all(|asked| asked.end <= first) {
            return;
        }
        let rounds = first..first + ROUNDS_A_WORLD;
        let mut rounds = rounds
            .filter(|round| asked.iter().any(|asked| asked.contains(round)))
            .peekable();
        if rounds.peek().is_none() {
            continue;
        }
        let narrow = run.settings.campaign.narrow();
        let kinds = [
            Kind::One,
            Kind::WithReplica,
            Kind::Cluster,
            Kind::WithReplica,
            Kind::One,
        ];
        let next = kinds[usize::try_from(block).unwrap() % kinds.len()];
        let kind = narrow.map_or(next, |(kind, ..)| kind);
        let mut world = World::start(kind, INSTANCES, &run.settings.variables).await;
        for round in rounds {
            if run.is_over() {
                return;
            }
            // Neighbouring seeds share no round.
            let seed = (run.settings.seed << 24) ^ round;
            let mut plan = Plan::any(seed, kind, run.settings.faults);
            if let Some((_, durability, campaign)) = narrow {
                plan.terms.durability = durability;
                for (planned, fault) in plan.faults.iter_mut().zip(campaign.into_iter().cycle()) {
                    (planned.fault, planned.beside) = (fault, None);
                }
            }
            let (started, watch) = (Instant::now(), Stopwatch::start());
            let mut history = play(&mut world, &plan).await;
            if run.settings.repeats_late_rounds && is_only_late(&check(&history), watch) {
                println!("the machine stood still in round {round}; once more, on a new world");
                drop(world);
                world = World::start(kind, INSTANCES, &run.settings.variables).await;
                history = play(&mut world, &plan).await;
            }
            conclude(run, round, &world, &plan, &history, started.elapsed());
        }
    }
}

fn conclude(run: &Run, round: u64, world: &World, plan: &Plan, history: &History, took: Duration) {
    let violations = check(history);
    run.kinds.lock().unwrap().insert(world.kind);
    let mut report = run.report.lock().unwrap();
    report.note(history, losses(history), violations.len());
    println!(
        "round {round}, {:?}, {}: {} requests, {} orders, {} faults in {:.1} s; in all {} faults, {} purchases, {} \
         violations",
        world.kind,
        plan.terms.durability,
        history.ops.len(),
        history.end.orders.len(),
        history.injections.len(),
        took.as_secs_f32(),
        report.injections(),
        report.purchases(),
        report.violations(),
    );
    drop(report);
    if !violations.is_empty() {
        let report = report_failure(run, round, world, plan, history, &violations);
        run.failures.lock().unwrap().push(report);
    }
}

/// The report of a round that broke a rule; the details go into files.
fn report_failure(
    run: &Run,
    round: u64,
    world: &World,
    plan: &Plan,
    history: &History,
    violations: &[Violation],
) -> String {
    let folder = keep(run, round, world, plan, history);
    let seed = run.settings.seed;
    let mut report = format!(
        "round {round} of seed {seed} broke {} rules; repeat it with: ./dev torture --seed {seed} --round {round} \
         --campaign {}{}\n",
        violations.len(),
        run.settings.campaign.name(),
        std::env::var("TORTURE_OLDER").map_or_else(|_| String::new(), |older| format!(" --older {older}"))
    );
    let first = history.ops.first().map_or(0, |op| op.invoked);
    for violation in violations {
        let _infallible = writeln!(report, "  {}: {}", violation.rule, violation.what);
    }
    for injection in &history.injections {
        let (from, until) = (injection.from - first, injection.until - first);
        let _infallible = writeln!(report, "  fault {}: {from} to {until} us", injection.what);
    }
    let _infallible = writeln!(
        report,
        "  the history and the instances' logs are in {}",
        folder.display()
    );
    report
}

fn keep(run: &Run, round: u64, world: &World, plan: &Plan, history: &History) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torture-{}-{round}", run.settings.seed));
    fs::create_dir_all(&folder).unwrap();
    let mut text = format!("{plan:#?}\n");
    for op in &history.ops {
        let _infallible = writeln!(text, "{op:?}");
    }
    let _infallible = writeln!(text, "{:#?}\n{:#?}", history.injections, history.end);
    fs::write(folder.join("history.txt"), text).unwrap();
    for (number, instance) in world.instances.iter().enumerate() {
        fs::write(folder.join(format!("instance-{number}.log")), instance.log()).unwrap();
    }
    folder
}
