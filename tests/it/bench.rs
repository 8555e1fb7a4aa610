//! `flashsale bench`, as trials of a few seconds: what it writes, that it looks at everything, and that it leaves
//! nothing behind. Its figures are not looked at.

use crate::support::app::program;
use crate::support::poll::eventually;
use crate::support::servers::{FOLDER, signal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A trial with its folders: where the report goes, and where the servers keep their data.
struct Trial {
    folder: tempfile::TempDir,
    command: Command,
}

impl Trial {
    fn of(command: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir_in(&FOLDER.0).unwrap();
        // Postgres runs as another user if we are root, and must be able to pass.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (out, data) = (folder.path().join("out"), folder.path().join("data"));
        fs::create_dir(&data).unwrap();
        let mut args = vec!["bench", command, "--json", "--out", out.to_str().unwrap(), "--data"];
        args.push(data.to_str().unwrap());
        args.extend_from_slice(more);
        let command = program(&BTreeMap::new(), &args);
        Self { folder, command }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs it to its end; what it printed and wrote.
    fn run(mut self, name: &str) -> Value {
        let ran = self.command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{said}");
        let printed: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let out = self.folder.path().join("out");
        let written = fs::read(out.join(format!("bench-{name}.json"))).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), printed);
        let page = fs::read_to_string(out.join(format!("bench-{name}.html"))).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{page}");
        assert!(!page.contains("://") && !page.contains("<script"), "it loads something");
        assert!(
            page.contains("its figures say nothing"),
            "a trial must not pass for a measurement"
        );
        self.is_clean();
        printed
    }

    /// Nothing is left of the servers, neither files nor processes.
    fn is_clean(&self) {
        assert_eq!(fs::read_dir(self.data()).unwrap().count(), 0, "files are left");
        assert_eq!(working_in(&self.data()), [0_u32; 0], "processes are left");
    }
}

/// Processes that work in a folder or below it.
fn working_in(folder: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if let Some(pid) = pid.filter(|_| cwd.starts_with(folder)) {
            found.push(pid);
        }
    }
    found
}

/// The heads of a table's columns, each of which every row has.
fn columns(table: &Value) -> Vec<&str> {
    let columns: Vec<&str> = table["columns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(row.as_array().unwrap().len(), columns.len(), "{row}");
    }
    columns
}

#[test]
fn a_trial_of_the_ceiling_measures_every_part() {
    let report = Trial::of("ceiling", &["--quick"]).run("ceiling");
    for name in ["processor", "cores", "memory_gib", "kernel", "load_before"] {
        assert!(!report["machine"][name].is_null(), "{name}: {report}");
    }
    assert_eq!(report["seed"], 1);
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 6);
    for goal in goals {
        let measured = goal["measured"].as_f64();
        // A backlog as small as a trial's may be gone before anybody has looked.
        assert!(
            measured.is_some() || goal["figure"].as_str().unwrap().starts_with("drain"),
            "{goal}"
        );
        assert_eq!(goal["is_reached"].is_null(), measured.is_none(), "{goal}");
    }
    let round = &report["figures"]["rounds"][0];
    for name in [
        "set",
        "script",
        "set_on_disk",
        "script_on_disk",
        "endpoint",
        "sold_out",
        "insert",
    ] {
        assert!(round[name].as_f64().unwrap() > 0.0, "{name}: {round}");
    }
    assert_eq!(round["accepted"].as_array().unwrap().len(), 2);
    // A purchase leaves a row, and no more than that.
    let bytes = report["figures"]["memory"]["bytes_a_purchase"].as_f64().unwrap();
    assert!((150.0..350.0).contains(&bytes), "{bytes}");
    assert_eq!(columns(&report["tables"][0]), ["what", "a second", "lowest", "highest"]);
}

/// A trial of the comparison kills servers beside load for half a minute, so it is run with the measurements.
pub fn a_trial_of_the_comparison_finds_nothing_wrong_with_ours() {
    let report = Trial::of("compare", &["--quick"]).run("compare");
    let table = &report["tables"][0];
    assert_eq!(
        columns(table),
        [
            "way",
            "purchases a second",
            "p50",
            "p99",
            "p99.9",
            "oversold",
            "leaked",
            "duplicate orders",
            "acknowledged orders lost",
            "sold after \"sold out\"",
            "told nothing",
            "recovery"
        ]
    );
    let ways = report["figures"]["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|it| it["way"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["database only", "basic script", "full", "full, durability postgres"]
    );
    for way in ways {
        let (steady, scarce) = (&way["steady"][0], &way["scarce"]);
        assert!(steady["a_second"].as_f64().unwrap() > 0.0, "{way}");
        assert!(steady["p99_ms"].as_f64() >= steady["p50_ms"].as_f64(), "{way}");
        // Something was killed in the middle of each, and everybody was told in the end.
        assert_eq!(scarce["marks"][0][1], "application killed", "{way}");
        assert_eq!(scarce["unanswered"], 0, "{way}");
        assert!(scarce["acknowledged"].as_u64().unwrap() > 0, "{way}");
    }
    for ours in &ways[2..] {
        let scarce = &ours["scarce"];
        for name in ["oversold", "leaked", "duplicates", "lost"] {
            assert_eq!(scarce[name], 0, "{name}: {ours}");
        }
        assert_eq!(
            (&scarce["booked"], &scarce["acknowledged"]),
            (&scarce["stock"], &scarce["stock"])
        );
        assert_eq!(scarce["marks"][1][1], "Redis killed", "{ours}");
    }
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing_behind() {
    let mut trial = Trial::of("ceiling", &["--seconds", "5"]);
    let mut child = trial
        .command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Redis, Postgres, and what else there is by then.
    eventually("its servers run", || working_in(&trial.data()).len() >= 3);
    signal("TERM", &[child.id()]);
    let mut ended = None;
    eventually("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(1));
    trial.is_clean();
    assert!(!trial.folder.path().join("out").exists(), "nothing was measured");
}

#[test]
fn bad_usage_of_the_benchmark_is_told_in_one_line() {
    for wrong in [["--seconds", "0"], ["--rounds", "none"], ["--clients", "0"]] {
        let ran = Trial::of("ceiling", &wrong).command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(wrong[0]), "{said}");
    }
}
