//! The longest test. The runner goes by name, and so begins this one early: at the end, it would run alone.

use crate::torture::seeded;

#[test]
fn every_seeded_bug_is_seen_by_its_rule_and_without_it_nothing_is() {
    seeded::every_bug_is_seen();
}
