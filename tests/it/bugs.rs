//! The longest tests. The runner goes by name, and so begins these early: at the end, they would run alone.

use crate::torture;

#[test]
fn a_short_torture_run_breaks_nothing() {
    torture::a_short_run();
}

#[test]
fn every_seeded_bug_is_seen_by_its_rule_and_without_it_nothing_is() {
    torture::seeded::every_bug_is_seen();
}
