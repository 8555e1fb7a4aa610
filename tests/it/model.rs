//! All scripts together against a model of their promises: random steps, and after each of them the answer and the state
//! are compared, and the units are counted.

mod reference;
mod steps;
mod subject;

use crate::support::{lua, servers};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
pub use steps::Step;
pub use subject::{Scripts, Subject};

/// How many steps a case has at most.
const STEPS_MAX: usize = 120;

/// The scripts that no step calls, and the test that compares each with a reference, or with the writes of others.
const MODELLED_ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "ban",
        "scripts/ban.rs",
        "the_newest_decision_counts_in_any_order_of_arrival",
    ),
    (
        "barrier",
        "scripts/barrier.rs",
        "a_barrier_changes_nothing_else_and_goes_by_itself",
    ),
    ("begin_restore", "scripts/restore.rs", RESTORED),
    ("end_restore", "scripts/restore.rs", RESTORED),
    ("fixed_window", "limits.rs", "a_fixed_window_does_what_its_model_does"),
    (
        "forget_buyers",
        "scripts/restore.rs",
        "shoppers_are_forgotten_only_while_their_shard_is_rebuilt_to_that_epoch",
    ),
    ("leave_room", "scripts/waiting_room.rs", LINE),
    (
        "read_shard",
        "scripts/read_shard.rs",
        "a_reading_has_everything_that_the_shard_knows",
    ),
    ("restore_buyers", "scripts/restore.rs", RESTORED),
    (
        "sliding_window",
        "limits.rs",
        "a_sliding_window_does_what_its_model_does",
    ),
    (
        "solve_challenge",
        "scripts/challenge.rs",
        "of_many_requests_at_once_one_has_it",
    ),
    ("token_bucket", "limits.rs", "a_token_bucket_does_what_its_model_does"),
    (
        "trim",
        "scripts/trim.rs",
        "events_are_trimmed_up_to_the_last_one_that_was_read",
    ),
    ("waiting_room", "scripts/waiting_room.rs", LINE),
];
const RESTORED: &str = "a_restored_shard_is_byte_for_byte_as_the_scripts_had_written_it";
const LINE: &str = "in_any_order_of_calls_the_line_moves_by_the_rules";

/// Results that no fixed case must reach: most are of guards and arguments that no step has.
pub const NOT_EXPECTED: [&str; 9] = [
    "permit LAPSED",
    "preload LOADED",
    "purchase BANNED",
    "purchase COOLING_DOWN",
    "purchase TOO_MANY_HOLDS",
    "restock STALE",
    "set_state LOADING",
    "transfer_in MOVED",
    "transfer_in STALE",
];

/// The results that a script's header lists.
pub fn results(script: &str) -> BTreeSet<&str> {
    let header = script.lines().skip(1).take_while(|line| line.starts_with("--"));
    let results = header.flat_map(|line| line.split("{'").skip(1));
    results.map(|rest| rest.split('\'').next().unwrap()).collect()
}

/// Runs the steps on the model and on Redis. Returns the answers, or the step and the difference.
pub fn compare(subject: &Subject, steps: &[Step]) -> Result<BTreeSet<String>, String> {
    let mut run = subject.begin();
    for (n, step) in steps.iter().enumerate() {
        run.take(step).map_err(|wrong| format!("step {n}, {step:?}: {wrong}"))?;
    }
    run.end().map_err(|wrong| format!("at the end: {wrong}"))?;
    Ok(run.answers())
}

/// The case of this number, always the same.
pub fn fixed_case(number: u8) -> Vec<Step> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number; 32]);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let tree = steps::steps(STEPS_MAX..=STEPS_MAX).new_tree(&mut runner).unwrap();
    tree.current()
}

#[test]
fn in_any_order_of_calls_the_scripts_do_as_the_model_does() {
    let mut config = ProptestConfig {
        max_shrink_time: 60_000,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 100;
    }
    let subject = Subject::new(&servers::redis(), Scripts::real());
    proptest!(config, |(steps in steps::steps(1..=STEPS_MAX))| {
        compare(&subject, &steps).map_err(TestCaseError::fail)?;
    });
}

/// Instances of the kept version and of this one work on the same shards: either makes the next call.
#[test]
fn two_versions_side_by_side_do_as_the_model_does() {
    let kept = Scripts::of("tests/state/2026-11-23/lua");
    let subject = Subject::side_by_side(&servers::redis(), vec![Scripts::real(), kept]);
    for number in 0..60 {
        compare(&subject, &fixed_case(number)).unwrap_or_else(|wrong| panic!("case {number}: {wrong}"));
    }
}

/// A comparison that never reaches the interesting answers would prove nothing.
#[test]
fn the_random_steps_come_to_every_answer() {
    let subject = Subject::new(&servers::redis(), Scripts::real());
    let mut seen = BTreeSet::new();
    for number in 0..60 {
        seen.extend(compare(&subject, &fixed_case(number)).unwrap());
    }
    for (name, script) in Scripts::real().0 {
        for result in results(&script) {
            let result = format!("{name} {result}");
            let with_more = format!("{result} ");
            let is_seen = seen.iter().any(|it| *it == result || it.starts_with(&with_more));
            let is_expected = !NOT_EXPECTED.contains(&result.as_str());
            assert!(is_seen || !is_expected, "never {result}; only {seen:?}");
        }
    }
    for answer in [
        "purchase NOT_OPEN scheduled",
        "purchase NOT_OPEN paused",
        "purchase NOT_OPEN closed",
        "preload ERR MISSING keys",
        "withdraw_done ERR INVARIANT withdraw_done",
    ] {
        assert!(seen.contains(answer), "never {answer}; only {seen:?}");
    }
}

#[test]
fn every_script_is_modelled_here_or_by_a_test_that_is_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: BTreeSet<String> = lua::files("lua").into_keys().collect();
    let modelled = Scripts::real().0.into_keys();
    let elsewhere = MODELLED_ELSEWHERE.iter().map(|(name, ..)| *name);
    let listed: Vec<String> = modelled.chain(elsewhere).map(str::to_owned).collect();
    assert_eq!(listed.len(), files.len(), "a script is listed twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), files);
    for (name, file, test) in MODELLED_ELSEWHERE {
        let text = fs::read_to_string(root.join("tests/it").join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}()")), "{name}: no {test} in {file}");
    }
}
