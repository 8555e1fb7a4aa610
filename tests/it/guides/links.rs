//! Every link within the repository leads to an existing file and heading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The pages, by their paths.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.to_owned(), root.join("docs"), root.join("loadtest")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|it| it == "md"));
    pages
        .map(|path| (path.clone(), prose(&fs::read_to_string(path).unwrap())))
        .collect()
}

/// A page without its code.
fn prose(page: &str) -> String {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line.split('`').step_by(2).collect::<Vec<_>>().concat());
        }
    }
    lines.join("\n")
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|it| it.is_alphanumeric() || "-_ ".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it.to_ascii_lowercase() })
        .collect()
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let pages = pages();
    let mut wrong = Vec::new();
    let mut followed = 0;
    for (path, text) in &pages {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            followed += 1;
            let (file, heading) = link
                .split_once('#')
                .map_or((link, None), |(file, heading)| (file, Some(heading)));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{}: {link} is not there", path.display()));
                continue;
            };
            let Some(heading) = heading else { continue };
            let is_there = pages.get(&target).is_some_and(|page| {
                page.lines()
                    .any(|line| line.starts_with('#') && anchor(line) == heading)
            });
            if !is_there {
                wrong.push(format!("{}: {link} has no such heading", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty() && followed > 20,
        "{followed} links\n{}",
        wrong.join("\n")
    );
}

#[test]
fn each_picture_is_written_by_a_browser_test_and_shown_by_a_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_folder = |folder: &str| {
        fs::read_dir(root.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let mut written = BTreeSet::new();
    let tests = ["tests/it/browser", "tests/it/browser/console"]
        .into_iter()
        .flat_map(in_folder);
    for path in tests.filter(|path| path.is_file()) {
        let text = fs::read_to_string(path).unwrap();
        let calls = [".picture(", ".picture_as("].map(|call| text.split(call).skip(1));
        let names = calls.into_iter().flatten().filter_map(|call| call.split('"').nth(1));
        written.extend(names.map(str::to_owned));
    }
    let mut shown = BTreeSet::new();
    for text in pages().values() {
        let names = text.split("screenshots/").skip(1);
        shown.extend(
            names
                .filter_map(|rest| rest.split(['"', ')']).next())
                .map(str::to_owned),
        );
    }
    let names = in_folder("docs/screenshots").map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
    assert!(written.len() > 3);
    assert_eq!(shown, written, "shown, written");
    assert_eq!(names.collect::<BTreeSet<_>>(), written, "there, written");
}

#[test]
fn a_heading_is_called_as_links_call_it() {
    assert_eq!(anchor("## The shop's pages"), "the-shops-pages");
    assert_eq!(anchor("### What `kill -9` leaves"), "what-kill--9-leaves");
    assert_eq!(prose("a `[x](y)` [b](c)\n```sh\n[d](e)\n```\nf"), "a  [b](c)\nf");
}
