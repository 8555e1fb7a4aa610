//! `docs/failures.md` names the test that shows each row, or why there is none.

use crate::support::root;
use std::fs;
use std::path::PathBuf;

/// The file of a module of the tests or of the program, and the name within it; none if it is no module.
pub fn file_of(name: &str) -> Option<(PathBuf, Option<&str>)> {
    let (module, inside) = name
        .split_once("::")
        .map_or((name, None), |(it, inside)| (it, Some(inside)));
    let inside = inside.filter(|it| *it != "*");
    for folder in ["tests/it", "bench/tests/it", "src"] {
        let folder = root().join(folder);
        if let Some(inside) = inside {
            let file = folder.join(module).join(inside).with_extension("rs");
            if file.exists() {
                return Some((file, None));
            }
        }
        let files = [
            folder.join(module).with_extension("rs"),
            folder.join(module).join("mod.rs"),
        ];
        if let Some(file) = files.into_iter().find(|file| file.exists()) {
            return Some((file, inside));
        }
    }
    None
}

#[test]
fn every_failure_names_the_test_that_shows_it_or_why_there_is_none() {
    let page = fs::read_to_string(root().join("docs/failures.md")).unwrap();
    let (mut rows, mut is_of_failures, mut wrong) = (0, false, Vec::new());
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, failure, _, shown_by, _] = cells[..] else {
            is_of_failures = false;
            continue;
        };
        if shown_by == "shown by" || shown_by == "---" {
            is_of_failures = true;
            continue;
        }
        assert!(is_of_failures, "{line}");
        rows += 1;
        let names = shown_by.split('`').skip(1).step_by(2);
        let modules: Vec<_> = names.filter_map(|name| Some((name, file_of(name)?))).collect();
        let reason = ["not covered: ", "no test: "]
            .iter()
            .find_map(|it| shown_by.split(it).nth(1));
        if modules.is_empty() && reason.is_none()
            || shown_by.contains("not covered") && reason.is_none_or(str::is_empty)
        {
            wrong.push(format!("{failure}: neither a test nor a reason"));
        }
        for (name, (file, inside)) in modules {
            if inside.is_some_and(|inside| !fs::read_to_string(&file).unwrap().contains(inside)) {
                wrong.push(format!("{failure}: there is no {name}"));
            }
        }
        for name in shown_by
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains("::"))
        {
            if file_of(name).is_none() {
                wrong.push(format!("{failure}: there is no {name}"));
            }
        }
    }
    assert!(rows > 60 && wrong.is_empty(), "{rows} rows\n{}", wrong.join("\n"));
}
