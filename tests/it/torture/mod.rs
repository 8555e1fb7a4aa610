//! Torture: real servers and instances, a crowd, faults, and a checker that accounts for every answer.
//!
//! A short run is part of the tests. `./dev torture --minutes N --seed S` runs for any time.

mod bad_histories;
mod checker;
mod ending;
mod history;
mod nemesis;
mod proxy;
mod report;
mod round;
mod run;
pub mod seeded;
mod shoppers;
mod world;

use crate::support::app::sparing;
use run::Settings;
use std::sync::Mutex;
use world::Kind;

/// One test of many worlds at a time: the checker has limits for how soon a world sells again.
static MANY_WORLDS: Mutex<()> = Mutex::new(());

/// Two rounds on each kind of world. The seed is new in each run, and printed with the command that repeats a round.
pub fn a_short_run() {
    let _turn = MANY_WORLDS.lock();
    let played = run::run(&Settings {
        // The last two of one world, the first two of the next, and the first two of the world after that.
        rounds: vec![2..6, 8..10],
        // Other tests keep the machine busy.
        repeats_late_rounds: true,
        variables: sparing(),
        ..Settings::from_environment()
    });
    assert_eq!(played, [Kind::One, Kind::WithReplica, Kind::Cluster].into());
}

/// `./dev torture`, with its arguments in the environment.
#[test]
#[ignore = "it runs for minutes: ./dev torture --minutes N --seed S"]
fn a_long_run_breaks_nothing() {
    run::run(&Settings::from_environment());
}
