//! `tests/README.md` leads from each part, invariant and kind of failure to the tests that show it.

use super::failures::file_of;
use crate::support::root;
use std::collections::BTreeSet;
use std::fs;

/// The rows of the table under a heading, as their cells.
fn rows<'p>(page: &'p str, heading: &str) -> Vec<Vec<&'p str>> {
    let (_, below) = page.split_once(heading).expect(heading);
    let rows = below.lines().skip(1).skip_while(|line| !line.starts_with("| "));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

/// What stands in backquotes.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether a file, a folder, a module or a test has this name.
fn is_there(name: &str) -> bool {
    let is_module = || {
        file_of(name).is_some_and(|(file, inside)| {
            inside.is_none_or(|inside| fs::read_to_string(file).unwrap().contains(&format!(" {inside}")))
        })
    };
    !name.contains("::") && root().join("tests/it").join(name).exists() || is_module()
}

#[test]
fn the_map_of_tests_leaves_nothing_out_and_leads_to_tests_that_are_there() {
    let page = fs::read_to_string(root().join("tests/README.md")).unwrap();
    let folders = rows(&page, "# Tests\n");
    let named: BTreeSet<&str> = folders
        .iter()
        .flat_map(|row| names(row[0]))
        .map(|name| name.trim_start_matches("../").trim_end_matches('/'))
        .collect();
    for (folder, unlisted) in [
        ("tests/it", ["main.rs"].as_slice()),
        ("tests", &["it", "README.md", "proptest-regressions"]),
    ] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                named.contains(name.as_str()) || unlisted.contains(&name.as_str()),
                "{folder}/{name}"
            );
        }
    }
    for name in named {
        let is_part = ["tests/it", "tests", ""].map(|folder| root().join(folder).join(name).exists());
        assert!(is_part.contains(&true), "there is no {name}");
    }

    let invariants = rows(&page, "## Invariants of ARCHITECTURE.md");
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, promised) = architecture.split_once("## What must always hold").unwrap();
    let promised = promised.split("\n## ").next().unwrap().lines();
    let numbers: Vec<&str> = promised
        .filter_map(|line| line.split_once(". **").map(|(number, _)| number))
        .collect();
    let mapped: Vec<&str> = invariants.iter().map(|row| row[0].split(' ').next().unwrap()).collect();
    assert_eq!(mapped, numbers);
    let failures = rows(&page, "## Failures of docs/failures.md");
    for row in invariants.iter().chain(&failures) {
        let files: Vec<&str> = names(row[1]).collect();
        assert!(!files.is_empty(), "{row:?}");
        for file in files {
            assert!(is_there(file), "{row:?}: there is no {file}");
        }
    }
    let sections = fs::read_to_string(root().join("docs/failures.md")).unwrap();
    for section in sections.lines().filter_map(|line| line.strip_prefix("## ")) {
        let is_mapped = section
            .split([',', ' '])
            .any(|word| word.len() > 3 && failures.iter().any(|row| row[0].contains(word)));
        assert!(is_mapped, "no row for {section}");
    }
}
