//! All scripts together against a model of what they promise: random steps, and after every one of them the answer
//! and the whole state are compared, and the units are counted.

mod reference;
mod steps;
mod subject;

use crate::support::servers;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeSet;
pub use steps::Step;
pub use subject::{Scripts, Subject};

/// How many steps a case has at most.
const STEPS_MAX: usize = 120;

/// Runs the steps on the model and on Redis; says at which step and in what they differ, or which answers there were.
pub fn compare(subject: &Subject, steps: &[Step]) -> Result<BTreeSet<String>, String> {
    let mut run = subject.begin();
    for (n, step) in steps.iter().enumerate() {
        run.take(step).map_err(|wrong| format!("step {n}, {step:?}: {wrong}"))?;
    }
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
fn whatever_happens_in_whatever_order_the_scripts_do_as_the_model_does() {
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

/// A comparison that never comes to the interesting answers would prove nothing.
#[test]
fn the_random_steps_come_to_every_answer() {
    let subject = Subject::new(&servers::redis(), Scripts::real());
    let mut seen = BTreeSet::new();
    for number in 0..60 {
        seen.extend(compare(&subject, &fixed_case(number)).unwrap());
    }
    let expected = [
        "purchase RESERVED",
        "purchase REPLAYED",
        "purchase KEY_REUSED",
        "purchase LOOK",
        "purchase STOPPED",
        "purchase OVERLOADED",
        "purchase RATE_LIMITED",
        "purchase NOT_OPEN scheduled",
        "purchase NOT_OPEN paused",
        "purchase NOT_OPEN closed",
        "purchase LIMIT_REACHED",
        "purchase SHORT",
        "resolve RESOLVED",
        "resolve ALREADY",
        "resolve CONFLICT",
        "resolve UNKNOWN",
        "transfer_out OUT",
        "transfer_out NONE",
        "transfer_out DONE",
        "transfer_out STOPPED",
        "transfer_in IN",
        "transfer_in ALREADY",
        "transfer_in FENCED",
        "transfer_in STOPPED",
        "transfer_done DONE",
        "withdraw_done DONE",
        "restock ADDED",
        "restock ALREADY",
        "set_state SET",
        "set_state STALE",
        "permit PERMITTED",
        "permit STALE",
        "permit MOVED",
        "permit HALTED",
        "stop STOPPED",
        "fence FENCED",
        "preload ALREADY",
        "preload ERR MISSING keys",
        "withdraw_done ERR INVARIANT withdraw_done",
    ];
    for answer in expected {
        assert!(seen.contains(answer), "never {answer}; only {seen:?}");
    }
}
