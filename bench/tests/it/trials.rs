//! `flashsale-bench`, as trials of a few seconds: what it writes, that it measures everything, and that it leaves
//! nothing behind. Its figures are not checked.

use crate::support::app;
use crate::support::poll::eventually;
use crate::support::servers::{FOLDER, database, signal};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::ledger::Ledger;
use flashsale_bench::{rivals, sql};
use futures_util::future::join_all;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uuid::Uuid;

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
        let mut args = vec![command, "--json", "--out", out.to_str().unwrap(), "--data"];
        args.push(data.to_str().unwrap());
        args.extend_from_slice(more);
        let command = app::command(env!("CARGO_BIN_EXE_flashsale-bench"), &BTreeMap::new(), &args);
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
    assert_eq!(goals.len(), 9);
    for goal in goals {
        let measured = goal["measured"].as_f64();
        // A backlog as small as a trial's may be gone before the first poll.
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
    for name in ["micros", "at_share_micros", "sold_out_micros", "endpoint_micros"] {
        assert_eq!(round[name].as_array().unwrap().len(), 4, "{name}: {round}");
    }
    // A worker that starts does not make up for the time in which only something else was measured.
    let notes = report["notes"].to_string();
    assert!(!notes.contains("holds were extended"), "{notes}");
    // A purchase leaves a row, and no more than that.
    let bytes = report["figures"]["memory"]["bytes_a_purchase"].as_f64().unwrap();
    assert!((150.0..350.0).contains(&bytes), "{bytes}");
    assert_eq!(columns(&report["tables"][0]), ["what", "a second", "lowest", "highest"]);
}

/// A trial of the sizes starts a pair of servers for nearly every window, and a cluster, and takes a minute or two, so it is
/// run with the measurements.
pub fn a_trial_of_the_sizes_measures_every_one() {
    let report = Trial::of("scale", &["--quick"]).run("scale");
    let sizes = report["figures"]["sizes"].as_array().unwrap();
    let of = |what: &str| -> BTreeSet<u64> {
        let found = sizes.iter().filter(|it| it["what"] == what);
        found
            .map(|it| {
                assert!(it["a_second"].as_f64().unwrap() > 0.0, "{it}");
                assert!(it["micros"][1].as_f64().is_some(), "{it}");
                it["size"].as_u64().unwrap()
            })
            .collect()
    };
    assert_eq!(of("items"), [1, 10, 100, 1000].into());
    assert_eq!(of("shards"), [1, 4, 16, 64, 256].into());
    assert_eq!(of("sales"), [1, 10, 100].into());
    assert_eq!(of("live holds"), [100, 1000].into());
    let figures = &report["figures"];
    assert!(
        figures["cluster"]["cost"]["a_second"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    assert!(figures["expiry"][0]["seconds"].as_f64().unwrap() > 0.0, "{report}");
    for goal in report["goals"].as_array().unwrap() {
        assert!(goal["measured"].as_f64().is_some(), "{goal}");
    }
    let notes = report["notes"].to_string();
    assert!(!notes.contains("extend"), "{notes}");
}

#[test]
fn a_trial_of_the_comparison_finds_nothing_wrong_with_ours() {
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
            "false \"sold out\"",
            "no reply",
            "recovery"
        ]
    );
    let ways = report["figures"]["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|it| it["way"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "read, check, write",
            "database only",
            "basic script",
            "full",
            "full, durability postgres"
        ]
    );
    for way in ways {
        let (steady, scarce) = (&way["steady"][0], &way["scarce"][0]);
        assert!(steady["a_second"].as_f64().unwrap() > 0.0, "{way}");
        assert!(steady["p99_ms"].as_f64() >= steady["p50_ms"].as_f64(), "{way}");
        // Something was killed in the middle of each, and all shoppers got a reply in the end.
        let killed = [&scarce["marks"][0][1], &scarce["marks"][1][1]];
        assert_eq!(killed, ["application killed", "Redis killed"], "{way}");
        assert_eq!(scarce["unanswered"], 0, "{way}");
        assert!(scarce["acknowledged"].as_u64().unwrap() > 0, "{way}");
    }
    assert!(ways[0]["scarce"][0]["oversold"].as_u64().unwrap() > 0, "{}", ways[0]);
    for ours in &ways[3..] {
        let scarce = &ours["scarce"][0];
        for name in ["oversold", "leaked", "duplicates", "lost", "false_sold_out", "denied"] {
            assert_eq!(scarce[name], 0, "{name}: {ours}");
        }
        assert_eq!(scarce["refused_otherwise"], serde_json::json!({}), "{ours}");
        assert_eq!(
            (&scarce["booked"], &scarce["acknowledged"]),
            (&scarce["stock"], &scarce["stock"])
        );
        for name in ["recovery_seconds", "program_recovery_seconds"] {
            assert!(scarce[name].as_f64().unwrap() > 0.0, "{name}: {ours}");
        }
    }
}

#[tokio::test]
async fn a_worker_finds_no_outage_where_the_benchmark_only_measured_something_else() {
    let url = database().await;
    let ledger = Ledger::connect(&url, ConnectionPools::default()).await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let stood_still = "update heartbeat set beaten_at = now() - interval '1 hour'";
    sqlx::raw_sql(stood_still).execute(&mut connection).await.unwrap();
    sql::beat(&url).await.unwrap();
    assert_eq!(ledger.beat().await.unwrap(), None);
    assert_eq!(sql::outages(&url).await.unwrap(), 0);
    sqlx::raw_sql(stood_still).execute(&mut connection).await.unwrap();
    assert!(ledger.beat().await.unwrap().is_some());
    assert_eq!(sql::outages(&url).await.unwrap(), 1, "the report would say so");
}

/// Everybody asks twice at the same time under one key.
#[tokio::test]
async fn the_rival_in_the_database_keeps_to_keys_limits_and_stock() {
    let name = format!("rival_{}", Uuid::new_v4().simple());
    let url = sql::create_database(&database().await, &name).await.unwrap();
    rivals::prepare(&url).await.unwrap();
    let sale = Uuid::new_v4();
    rivals::list(&url, sale, "ITEM-0", 5, 1).await.unwrap();
    let connect = || PgConnection::connect(&url);
    let buy = async |user: String, key: &str| -> String {
        let call = "select buy($1, $2, 'ITEM-0', $3, $4, 1, 1, 100, 'EUR', now(), now() + interval '1 day')";
        let asking = sqlx::query_scalar(call)
            .bind(Uuid::new_v4())
            .bind(sale)
            .bind(user)
            .bind(key);
        let answer: Result<String, sqlx::Error> = asking.fetch_one(&mut connect().await.unwrap()).await;
        // What it raises is a code.
        answer.unwrap_or_else(|error| error.as_database_error().unwrap().code().unwrap().into_owned())
    };
    let twice = async |user: usize| {
        let user = format!("user-{user}");
        let (one, other) = tokio::join!(buy(user.clone(), "key"), buy(user.clone(), "key"));
        (user, BTreeSet::from([one, other]))
    };
    let answers = join_all((0..12).map(twice)).await;
    let bought = BTreeSet::from(["known".to_owned(), "new".to_owned()]);
    let (buyers, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, said)| *said == bought);
    assert_eq!(buyers.len(), 5, "{others:?}");
    for (user, said) in others {
        assert!(said.iter().all(|it| it == "out" || it == "S0002"), "{said:?}");
        assert_eq!(buy(user, "key").await, "out");
    }
    for (user, _) in buyers {
        assert_eq!(buy(user.clone(), "key").await, "known");
        assert_eq!(buy(user, "another").await, "limit");
    }
    let mut connection = connect().await.unwrap();
    let left: (i64, i64, i64) = sqlx::query_as(
        "select sum(available)::int8, (select count(*) from orders), (select sum(units) from buyers) from items",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(left, (0, 5, 5));
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
fn where_no_report_can_be_written_nothing_is_measured() {
    let mut trial = Trial::of("ceiling", &["--quick"]);
    fs::write(trial.folder.path().join("out"), "a file").unwrap();
    let ran = trial.command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{said}");
    let out = trial.folder.path().join("out");
    assert!(said.contains(out.to_str().unwrap()) && said.contains("--out"), "{said}");
    assert_eq!(said.lines().count(), 1, "a server was started: {said}");
    trial.is_clean();
}

#[test]
fn bad_usage_of_the_benchmark_is_reported_in_one_line() {
    for wrong in [["--seconds", "0"], ["--rounds", "none"], ["--clients", "0"]] {
        let ran = Trial::of("ceiling", &wrong).command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        assert!(said.contains(wrong[0]), "{said}");
    }
}
