//! Shows that torture can see. The program gets one bug at a time, and one of a few rounds must break the bug's rule.
//! The control is the same round without a bug: it must break no rule. Controls share worlds, since they leave them whole.

use super::checker::{check, is_only_late, rule};
use super::nemesis::{Fault, PlannedFault};
use super::proxy::Mode;
use super::round::{INSTANCES, Plan, play};
use super::world::{Kind, World};
use crate::support::app::sparing;
use crate::support::lua;
use crate::support::poll::Stopwatch;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Rounds that a bug may survive before it counts as unseen.
const ROUNDS_MAX: u64 = 10;
/// Worlds at the same time: they mostly wait.
const LANES: usize = 4;
/// How long a round waits for outcomes, and until nothing moves. With some bugs something always moves, and some outcomes
/// are never known. The control has the same time, so a machine that needs longer fails the control too. Then the bugs of
/// that control are played again with the next time.
const PATIENCE: [Duration; 3] = [Duration::from_secs(8), Duration::from_secs(20), Duration::from_secs(60)];
/// The longest payment window. Its holds end well within the first `PATIENCE`.
const WINDOW_SECONDS_MAX: u32 = 2;

/// A bug, the rule that must catch it, and the rounds in which it shows.
struct Bug {
    name: &'static str,
    rule: &'static str,
    /// The script that is changed: its name, the present text, and its replacement; otherwise `bugs::has` asks for the
    /// name.
    script: Option<[&'static str; 3]>,
    place: Place,
}

/// The kind of round in which a bug shows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    kind: Kind,
    durability: &'static str,
    /// Whether shoppers come to the limit of their window.
    is_narrow: bool,
    faults: &'static [Fault],
    /// How long each of them lasts, in milliseconds.
    lasts: u64,
}

const CALM: Place = Place {
    kind: Kind::One,
    durability: "redis",
    is_narrow: false,
    faults: &[],
    lasts: 400,
};
const NARROW: Place = Place {
    is_narrow: true,
    ..CALM
};

const fn with(faults: &'static [Fault]) -> Place {
    Place { faults, ..CALM }
}

const fn script(name: &'static str, rule: &'static str, change: [&'static str; 3], place: Place) -> Bug {
    Bug {
        name,
        rule,
        script: Some(change),
        place,
    }
}

const fn code(name: &'static str, rule: &'static str, place: Place) -> Bug {
    Bug {
        name,
        rule,
        script: None,
        place,
    }
}

/// Answers get lost, and requests are repeated.
const MUTE: &[Fault] = &[
    Fault::LinkToRedis(0, Mode::Mute),
    Fault::LinkToRedis(1, Mode::Mute),
    Fault::LinkToRedis(0, Mode::Mute),
];

const BUGS: &[Bug] = &[
    script(
        "a repeated request is a new one",
        rule::KEY,
        ["purchase", "  if at then", "  if false then"],
        CALM,
    ),
    script(
        "a key may be used for another quantity",
        rule::KEY,
        ["purchase", "or its_quantity ~= quantity then", "then"],
        CALM,
    ),
    script(
        "one unit more is sold than there is",
        rule::LEFT,
        ["purchase", "available < quantity", "available < quantity - 1"],
        CALM,
    ),
    script(
        "available is not lowered",
        rule::BALANCE,
        [
            "purchase",
            "pack('>I6I6', available - quantity,",
            "pack('>I6I6', available,",
        ],
        CALM,
    ),
    script(
        "a shopper may have one more",
        rule::LIMIT,
        ["purchase", "> unit_limit", "> unit_limit + 1"],
        CALM,
    ),
    script(
        "a window lets one more through",
        rule::RATE,
        ["purchase", "#window >= rate_limit * 12", "#window > rate_limit * 12"],
        NARROW,
    ),
    script(
        "there is no event",
        rule::KEPT,
        [
            "purchase",
            "'NOMKSTREAM', next_id, 'reserved', event)",
            "'NOMKSTREAM', 'MAXLEN', 0, next_id, 'reserved', event)",
        ],
        CALM,
    ),
    script(
        "the wait is told too short",
        rule::RATE_TRUE,
        [
            "purchase",
            "if #window >= rate_limit * 12 then",
            "if #window >= 12 then",
        ],
        NARROW,
    ),
    script(
        "cancelled units are lost",
        rule::LEAK,
        [
            "resolve",
            "available = available + quantity",
            "available = available + 0",
        ],
        CALM,
    ),
    script(
        "the limit is not given back",
        rule::BUYER,
        ["resolve", "mine = mine - quantity", "mine = mine + 0"],
        CALM,
    ),
    script(
        "sold units come back",
        rule::BALANCE,
        [
            "resolve",
            "if target == 1 then\n  sold = sold + quantity",
            "if target == 1 then\n  available = available + quantity",
        ],
        CALM,
    ),
    script(
        "lent units stay where they were",
        rule::BALANCE,
        [
            "transfer_out",
            "pack('>I6', available - sent)",
            "pack('>I6', available)",
        ],
        CALM,
    ),
    script(
        "borrowed units do not arrive",
        rule::BALANCE,
        [
            "transfer_in",
            "pack('>I6', available + added)",
            "pack('>I6', available)",
        ],
        CALM,
    ),
    code(
        "the drain trims before it commits",
        rule::KEPT,
        with(&[
            Fault::KillPostgres,
            Fault::LinkToPostgres(0, Mode::Cut),
            Fault::KillPostgres,
        ]),
    ),
    code("orders expire too early", rule::HOLD, CALM),
    code("expiry sends no message to the stock", rule::LEAK, CALM),
    code("any amount pays an order", rule::MONEY, CALM),
    code("no shard borrows", rule::SOLD_OUT, CALM),
    code("an unknown outcome is a refusal", rule::KEY, with(MUTE)),
    code(
        "a release that failed counts as delivered",
        rule::LEAK,
        Place {
            // The job `release` runs once a second.
            lasts: 2_500,
            ..with(&[
                Fault::KillRedis,
                Fault::LinkToRedis(0, Mode::Cut),
                Fault::LinkToRedis(1, Mode::Cut),
            ])
        },
    ),
    code(
        "every shard is found whole",
        rule::AGREE,
        with(&[Fault::OlderData, Fault::OlderData]),
    ),
    code(
        "a rebuilding forgets what is held",
        rule::OVERSOLD,
        with(&[Fault::Flush, Fault::EmptyStart]),
    ),
    code(
        "a rebuilding forgets the other shards",
        rule::OVERSOLD,
        with(&[Fault::LoseItem, Fault::LoseItem]),
    ),
    code(
        "a short WAIT is long enough",
        rule::KEPT,
        Place {
            kind: Kind::WithReplica,
            durability: "replica",
            // Longer than `WAIT` takes to come short.
            lasts: 2_500,
            ..with(&[Fault::FailOverBehind, Fault::FailOverBehind])
        },
    ),
    code(
        "nobody waits for the ledger",
        rule::KEPT,
        Place {
            durability: "postgres",
            is_narrow: true,
            ..with(&[Fault::Flush, Fault::EmptyStart, Fault::OlderData])
        },
    ),
];

impl Place {
    fn plan(&self, round: u64, patience: Duration) -> Plan {
        let mut plan = Plan::any(round, self.kind, 0);
        plan.terms.durability = self.durability;
        (plan.known_within, plan.rests_within) = (patience, patience);
        plan.terms.window_seconds = plan.terms.window_seconds.min(WINDOW_SECONDS_MAX);
        // Neither so few shards that nothing is borrowed nor so much stock that nothing is short.
        plan.terms.shards = plan.terms.shards.max(3);
        for item in &mut plan.terms.items {
            item.stock = item.stock.min(120);
            item.limit = item.limit.min(5);
        }
        if self.is_narrow {
            (plan.terms.rate, plan.terms.rate_window) = (3, 1_000);
        }
        plan.shoppers = 40;
        plan.think = 20;
        plan.calm = Duration::from_millis(1_000);
        plan.faults = self
            .faults
            .iter()
            .map(|fault| PlannedFault {
                fault: *fault,
                millis: self.lasts,
                beside: None,
                after: 500,
            })
            .collect();
        plan
    }
}

/// A round without a bug, after the same round has shown one.
#[derive(Debug, PartialEq)]
struct Control {
    place: Place,
    round: u64,
}

impl Control {
    /// The rules that the round breaks, each with the reason. It may leave another world.
    async fn failures(&self, world: &mut World, patience: Duration) -> Vec<String> {
        let plan = self.place.plan(self.round, patience);
        let watch = Stopwatch::start();
        let mut violations = check(&Box::pin(play(world, &plan)).await);
        if is_only_late(&violations, watch) {
            *world = Box::pin(World::start(self.place.kind, INSTANCES, &sparing())).await;
            violations = check(&Box::pin(play(world, &plan)).await);
        }
        let failures = violations.into_iter();
        let failures = failures.map(|it| format!("without a bug, {self:?}: {}: {}", it.rule, it.what));
        failures.collect()
    }
}

impl Bug {
    fn variables(&self) -> Vec<(String, String)> {
        let mut variables = sparing();
        variables.push(("FLASHSALE_BUG".to_owned(), self.name.to_owned()));
        if let Some(change) = self.script {
            let names = ["FLASHSALE_BUG_SCRIPT", "FLASHSALE_BUG_FROM", "FLASHSALE_BUG_TO"];
            let changes = names.into_iter().zip(change);
            variables.extend(changes.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        variables
    }

    /// Plays rounds until one breaks the bug's rule. Returns that round's control, or the violations instead.
    async fn control(&self, patience: Duration) -> Result<Control, String> {
        let mut world = World::start(self.place.kind, INSTANCES, &self.variables()).await;
        let mut broken = BTreeSet::new();
        for round in 0..ROUNDS_MAX {
            let mut plan = self.place.plan(round, patience);
            // With some bugs, the newcomers of the other rules would wait in vain.
            plan.sells_out = self.rule == rule::LEFT;
            let history = play(&mut world, &plan).await;
            broken.extend(check(&history).iter().map(|it| it.rule));
            if broken.contains(self.rule) {
                println!("{}: round {round}: {broken:?}", self.name);
                let place = self.place;
                return Ok(Control { place, round });
            }
        }
        Err(format!("broke {broken:?}, and not {}", self.rule))
    }
}

/// Runs jobs, a few at a time. Returns their results in any order.
fn in_lanes<J: Sync, R: Send>(jobs: &[J], run: impl AsyncFn(&J) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = runtime.block_on(run(job));
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

/// The bugs that are not seen, and those whose control breaks a rule, with the reason.
fn failures<'a>(bugs: &[&'a Bug], patience: Duration) -> Vec<(&'a Bug, String)> {
    let mut controls: Vec<(Control, Vec<&Bug>)> = Vec::new();
    let mut failures = Vec::new();
    for (bug, seen) in in_lanes(bugs, async |bug| (*bug, Box::pin(bug.control(patience)).await)) {
        match seen {
            // Bugs that the same round has shown share its control.
            Ok(control) => match controls.iter_mut().find(|(other, _)| *other == control) {
                Some((_, others)) => others.push(bug),
                None => controls.push((control, vec![bug])),
            },
            Err(unseen) => failures.push((bug, unseen)),
        }
    }
    // Each in a world of its own: the same round has the same payments, which another world may have recorded.
    let broken = in_lanes(&controls, async |(control, bugs)| {
        let mut world = Box::pin(World::start(control.place.kind, INSTANCES, &sparing())).await;
        let failures = Box::pin(control.failures(&mut world, patience)).await.into_iter();
        let broken = failures.flat_map(|failure| bugs.iter().map(move |bug| (*bug, failure.clone())));
        broken.collect::<Vec<_>>()
    });
    failures.extend(broken.concat());
    failures
}

/// Fails unless every bug is seen by its rule, and nothing is seen without it.
pub fn every_bug_is_seen() {
    for bug in BUGS {
        if let Some([script, from, _]) = bug.script {
            let text = std::fs::read_to_string(&lua::files("lua")[script]).unwrap();
            assert_eq!(text.matches(from).count(), 1, "{}: {from}", bug.name);
        }
    }
    if !cfg!(feature = "seeded-bugs") {
        panic!("the program has no bugs to be switched on; run: cargo test --features flashsale/seeded-bugs");
    }
    let only = std::env::var("TORTURE_BUG").unwrap_or_default();
    let mut bugs: Vec<&Bug> = BUGS.iter().filter(|bug| bug.name.contains(&only)).collect();
    let _turn = super::MANY_WORLDS.lock();
    let mut failed = Vec::new();
    for patience in PATIENCE {
        failed = failures(&bugs, patience);
        println!("{} failures within {patience:?}", failed.len());
        bugs.retain(|bug| failed.iter().any(|(other, _)| other.name == bug.name));
    }
    let failed: Vec<String> = failed.iter().map(|(bug, why)| format!("{}: {why}", bug.name)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
