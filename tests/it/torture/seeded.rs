//! Shows that torture can see: the program is given a bug, one at a time, and a few rounds with the faults that bring it
//! out must break a rule.

use super::checker::check;
use super::history::Violation;
use super::nemesis::{Fault, Strike};
use super::proxy::Mode;
use super::round::{INSTANCES, Plan, play};
use super::world::{Kind, World};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Rounds that a bug may survive before it counts as unseen.
const ROUNDS_MAX: u64 = 5;
/// Worlds at the same time.
const LANES: usize = 3;

/// A bug, and where it comes out.
struct Bug {
    name: &'static str,
    /// The script that is changed: its name, the text that stands there, and what stands there instead; otherwise
    /// `bugs::has` asks for the name.
    script: Option<[&'static str; 3]>,
    kind: Kind,
    durability: &'static str,
    faults: &'static [Fault],
    /// How long each of them lasts, in milliseconds.
    lasts: u64,
}

const fn script(name: &'static str, change: [&'static str; 3], faults: &'static [Fault]) -> Bug {
    Bug {
        name,
        script: Some(change),
        kind: Kind::One,
        durability: "redis",
        faults,
        lasts: 400,
    }
}

const fn code(name: &'static str, faults: &'static [Fault]) -> Bug {
    Bug {
        name,
        script: None,
        kind: Kind::One,
        durability: "redis",
        faults,
        lasts: 400,
    }
}

/// Answers get lost, and what asked is told again.
const MUTE: &[Fault] = &[
    Fault::LinkToRedis(0, Mode::Mute),
    Fault::LinkToRedis(1, Mode::Mute),
    Fault::LinkToRedis(0, Mode::Mute),
];

const BUGS: &[Bug] = &[
    script(
        "a repeated request is a new one",
        ["purchase", "  if at then", "  if false then"],
        &[],
    ),
    script(
        "a key may be used for another quantity",
        ["purchase", "or its_quantity ~= quantity then", "then"],
        &[],
    ),
    script(
        "one unit more is sold than there is",
        ["purchase", "available < quantity", "available < quantity - 1"],
        &[],
    ),
    script(
        "available is not lowered",
        [
            "purchase",
            "pack('>I6I6', available - quantity,",
            "pack('>I6I6', available,",
        ],
        &[],
    ),
    script(
        "a shopper may have one more",
        ["purchase", "> unit_limit", "> unit_limit + 1"],
        &[],
    ),
    script(
        "a window lets one more through",
        ["purchase", "#window >= rate_limit * 12", "#window > rate_limit * 12"],
        &[],
    ),
    script(
        "there is no event",
        [
            "purchase",
            "'NOMKSTREAM', next_id, 'reserved', event)",
            "'NOMKSTREAM', 'MAXLEN', 0, next_id, 'reserved', event)",
        ],
        &[],
    ),
    script(
        "the wait is told too short",
        [
            "purchase",
            "if #window >= rate_limit * 12 then",
            "if #window >= 12 then",
        ],
        &[],
    ),
    script(
        "cancelled units are lost",
        [
            "resolve",
            "available = available + quantity",
            "available = available + 0",
        ],
        &[],
    ),
    script(
        "the limit is not given back",
        ["resolve", "mine = mine - quantity", "mine = mine + 0"],
        &[],
    ),
    script(
        "sold units come back",
        [
            "resolve",
            "if target == 1 then\n  sold = sold + quantity",
            "if target == 1 then\n  available = available + quantity",
        ],
        &[],
    ),
    script(
        "lent units stay where they were",
        [
            "transfer_out",
            "pack('>I6', available - sent)",
            "pack('>I6', available)",
        ],
        &[],
    ),
    script(
        "borrowed units do not arrive",
        [
            "transfer_in",
            "pack('>I6', available + added)",
            "pack('>I6', available)",
        ],
        &[],
    ),
    code(
        "the drain trims before it commits",
        &[
            Fault::KillPostgres,
            Fault::LinkToPostgres(0, Mode::Cut),
            Fault::KillPostgres,
        ],
    ),
    code("orders expire too early", &[]),
    code("nobody is told that orders expired", &[]),
    code("any amount pays an order", &[]),
    Bug {
        // The relay comes once a second.
        lasts: 2_500,
        ..code(
            "a release that failed counts as delivered",
            &[
                Fault::KillRedis,
                Fault::LinkToRedis(0, Mode::Cut),
                Fault::LinkToRedis(1, Mode::Cut),
            ],
        )
    },
    code("an unknown outcome is a refusal", MUTE),
    code("no shard borrows", &[]),
    code("every shard is found whole", &[Fault::OlderData, Fault::OlderData]),
    code("a rebuilding forgets what is held", &[Fault::Flush, Fault::EmptyStart]),
    code(
        "a rebuilding forgets the other shards",
        &[Fault::LoseItem, Fault::LoseItem],
    ),
    Bug {
        name: "a short WAIT is long enough",
        script: None,
        kind: Kind::WithReplica,
        durability: "replica",
        faults: &[Fault::FailOverBehind, Fault::FailOverBehind],
        // Longer than `WAIT` takes to come short.
        lasts: 2_500,
    },
    Bug {
        name: "nobody waits for the ledger",
        script: None,
        kind: Kind::One,
        durability: "postgres",
        faults: &[Fault::Flush, Fault::EmptyStart, Fault::OlderData],
        lasts: 400,
    },
];

impl Bug {
    fn variables(&self) -> Vec<(String, String)> {
        let mut variables = vec![("FLASHSALE_BUG".to_owned(), self.name.to_owned())];
        if let Some(change) = self.script {
            let names = ["FLASHSALE_BUG_SCRIPT", "FLASHSALE_BUG_FROM", "FLASHSALE_BUG_TO"];
            let changes = names.into_iter().zip(change);
            variables.extend(changes.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        variables
    }

    fn plan(&self, round: u64) -> Plan {
        let mut plan = Plan::any(round, self.kind, 0);
        plan.terms.durability = self.durability;
        // Neither so few shards that nothing is borrowed nor so much stock that nothing is short.
        plan.terms.shards = plan.terms.shards.max(3);
        for item in &mut plan.terms.items {
            item.stock = item.stock.min(120);
            item.limit = item.limit.min(5);
        }
        if self.name.contains("window") || self.name.contains("wait") {
            (plan.terms.rate, plan.terms.rate_window) = (3, 1_000);
        }
        plan.shoppers = 40;
        plan.think = 20;
        plan.calm = Duration::from_millis(1_000);
        plan.rests_within = Duration::from_secs(6);
        plan.strikes = self
            .faults
            .iter()
            .map(|fault| Strike {
                fault: *fault,
                millis: self.lasts,
                beside: None,
                after: 500,
            })
            .collect();
        plan
    }

    /// The rules that were broken in the first round in which any was.
    async fn violations(&self) -> Vec<Violation> {
        let mut world = World::start(self.kind, INSTANCES, &self.variables()).await;
        for round in 0..ROUNDS_MAX {
            let history = play(&mut world, &self.plan(round)).await;
            let violations = check(&history);
            if !violations.is_empty() {
                return violations;
            }
        }
        Vec::new()
    }
}

#[test]
fn every_seeded_bug_is_seen() {
    for bug in BUGS {
        if let Some([script, from, _]) = bug.script {
            let path = format!("{}/lua/{script}.lua", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(text.matches(from).count(), 1, "{}: {from}", bug.name);
        }
    }
    if !cfg!(feature = "seeded-bugs") {
        panic!("the program has no bugs to be switched on; run: cargo test --features seeded-bugs");
    }
    let only = std::env::var("TORTURE_BUG").unwrap_or_default();
    let bugs: Vec<&Bug> = BUGS.iter().filter(|bug| bug.name.contains(&only)).collect();
    let (next, unseen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .unwrap();
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let violations = runtime.block_on(bug.violations());
                    let rules: BTreeSet<&str> = violations.iter().map(|it| it.rule).collect();
                    println!("{}: {rules:?}", bug.name);
                    if violations.is_empty() {
                        unseen.lock().unwrap().push(bug.name);
                    }
                }
            });
        }
    });
    let unseen = unseen.lock().unwrap();
    assert!(unseen.is_empty(), "bugs that broke no rule: {unseen:#?}");
}
