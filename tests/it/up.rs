//! `flashsale up`: the user of its servers, what it prints, and the processes and files that a kill leaves.

use crate::support::app::{Client, Ran, Who, command as a_program, program, program_path};
use crate::support::crowd::spawn;
use crate::support::{poll, servers};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Every server of `up` may take an hour; one that hangs is reported long before.
const START_MAX: Duration = Duration::from_secs(120);
const ADMIN_KEY: &str = "an-operators-key-of-the-environment-5f1c";

/// A folder of an instance. Other users may not enter the one above it, as it is with root's own.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir_in(&servers::FOLDER.0).unwrap())
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn start(&self) -> Up {
        let data = self.data();
        let environment = [("FLASHSALE_ADMIN_KEY", ADMIN_KEY), ("FLASHSALE_ACCOUNT_RATE", "0")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let args = [
            "up",
            "--json",
            "--data",
            data.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ];
        let mut command = program(&BTreeMap::from(environment), &args);
        let log = self.0.path().join("log");
        let child = spawn({
            command.stdout(File::create(self.0.path().join("said")).unwrap());
            command.stderr(File::create(&log).unwrap());
            command
        });
        Up {
            child,
            said: self.0.path().join("said"),
            log,
            run: data.join("run.json"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for server in ["redis", "postgres"] {
            // Where root's servers may not enter the folder, their files are elsewhere.
            if let Ok(away) = fs::read_link(self.data().join(server)) {
                let _gone = fs::remove_dir_all(away);
            }
        }
    }
}

/// `up`; it ends with its servers when this is dropped.
struct Up {
    child: Child,
    said: PathBuf,
    log: PathBuf,
    run: PathBuf,
}

impl Up {
    /// Its output once everything is ready, and the content of `run.json`.
    async fn ready(&mut self) -> (Value, Value) {
        let mut ready = None;
        poll::within(START_MAX, "up is ready", async || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&self.log).unwrap());
            let read = |path: &Path| serde_json::from_str(&fs::read_to_string(path).ok()?).ok();
            ready = read(&self.said).zip(read(&self.run));
            ready.is_some()
        })
        .await;
        ready.unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            servers::signal("INT", &[self.child.id()]);
            let _status = self.child.wait();
        }
    }
}

fn command(said: &Value, args: &[&str]) -> Ran {
    let environment = [
        ("FLASHSALE_URL", said["http"].as_str().unwrap()),
        ("FLASHSALE_ADMIN_KEY", ADMIN_KEY),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ran::of(
        program(&BTreeMap::from(environment), args)
            .stderr(Stdio::piped())
            .output()
            .unwrap(),
    )
}

#[tokio::test]
async fn none_of_the_servers_runs_as_root_or_with_a_superusers_role() {
    let place = Place::new();
    let mut up = place.start();
    let (said, run) = up.ready().await;
    let us = fs::metadata("/proc/self").unwrap().uid();
    let user_of = |pid: &Value| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
        let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "root can be had again: {ids:?}");
        ids[0]
    };
    let users: Vec<u32> = ["pid", "redis_pid", "postgres_pid"]
        .map(|pid| user_of(&run[pid]))
        .to_vec();
    assert!(users.iter().all(|user| *user == users[0]), "{users:?}");
    assert_eq!(users[0] == us, us != 0, "{users:?}");
    // The process's own role is no superuser either: it starts no program and reads no file.
    let mut database = PgConnection::connect(run["database_url"].as_str().unwrap())
        .await
        .unwrap();
    for statement in [
        "copy (select 1) to program 'true'",
        "select pg_read_file('/etc/passwd')",
    ] {
        let refused = sqlx::raw_sql(statement).execute(&mut database).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code()).unwrap();
        assert_eq!(code, "42501", "{statement}: {refused}");
    }
    database.close().await.unwrap();
    let client = Client::at(said["http"].as_str().unwrap());
    assert_eq!(client.get(Who::Nobody, "/readyz").await.status, 200);
    servers::signal("INT", &[up.child.id()]);
    assert!(
        up.child.wait().unwrap().success(),
        "{}",
        fs::read_to_string(&up.log).unwrap()
    );
    assert!(!up.run.exists(), "who reads it takes the instance for running");
}

#[tokio::test]
async fn an_instance_that_is_killed_twice_goes_on_where_it_was() {
    let place = Place::new();
    let mut orders: Vec<(String, Value)> = Vec::new();
    for kill in 0..3 {
        let mut up = place.start();
        let (said, run) = up.ready().await;
        let (sale, sku) = (said["sale_id"].as_str().unwrap(), said["sku"].as_str().unwrap());
        let client = Client::at(said["http"].as_str().unwrap());
        // A new shopper for each key: one alone may not have that many.
        let buy = async |key: &str| {
            let path = format!("/v1/sales/{sale}/orders");
            let request = client.request(Method::POST, Who::Nobody, &path);
            let request = request.bearer_auth(token(&place, key)).header("Idempotency-Key", key);
            client.send(request.json(&json!({"sku": sku, "quantity": 1}))).await
        };
        // Every key that was answered before has its order, and none has two.
        for (key, order) in &orders {
            let again: Value = buy(key).await.body;
            assert_eq!(&again["id"], order, "{key} after {kill} kills: {again}");
        }
        let key = format!("key-{kill}");
        let answer = buy(&key).await.ok(201);
        orders.push((key, answer.body["id"].clone()));
        let audit = command(&said, &["audit", sale, "--json"]).ended(0);
        let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
        assert_eq!(audit["balanced"], true, "{audit}");
        if kill < 2 {
            up.kill();
            // Its servers end with it, and its files still say that it runs.
            for server in ["redis_pid", "postgres_pid"] {
                let process = format!("/proc/{}", run[server]);
                poll::within(START_MAX, "its servers end", async || !Path::new(&process).exists()).await;
            }
            assert!(up.run.exists());
        }
    }
}

#[tokio::test]
async fn on_a_terminal_it_prints_where_it_is_the_demo_sale_and_the_next_steps() {
    let place = Place::new();
    let (data, said) = (place.data(), place.0.path().join("said"));
    let up = format!(
        "exec '{}' up --data '{}' --listen 127.0.0.1:0",
        program_path(),
        data.display()
    );
    let environment = BTreeMap::from([("TERM".to_owned(), "xterm".to_owned())]);
    // Debian's util-linux has it on every machine.
    let mut command = a_program(
        "script",
        &environment,
        &["--quiet", "--return", "--command", &up, "/dev/null"],
    );
    command.stdin(Stdio::piped()).stdout(File::create(&said).unwrap());
    let mut terminal = Up {
        child: spawn(command),
        said: said.clone(),
        log: said.clone(),
        run: data.join("run.json"),
    };
    let read = || fs::read_to_string(&said).unwrap();
    poll::within(START_MAX, "up is ready", async || {
        assert!(terminal.child.try_wait().unwrap().is_none(), "{}", read());
        read().contains(" sale watch ")
    })
    .await;
    let said = read();
    for part in [
        "Flashsale is ready at http://127.0.0.1:",
        "#development=",
        "DEVELOPMENT MODE",
        "Console  http://127.0.0.1:",
        " buy ",
        " pay $ORDER",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("INFO") && said.lines().count() < 30, "{said}");
    let run: Value = serde_json::from_str(&fs::read_to_string(&terminal.run).unwrap()).unwrap();
    servers::signal("INT", &[u32::try_from(run["pid"].as_u64().unwrap()).unwrap()]);
    assert!(terminal.child.wait().unwrap().success(), "{}", read());
}

#[test]
fn a_file_is_no_folder_for_the_data() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let refused = Ran::of(program(&BTreeMap::new(), &["up", "--data", path]).output().unwrap()).ended(2);
    assert_eq!(
        refused.stderr,
        format!("flashsale: --data names {path}, which is a file: name a folder\n")
    );
}

/// A shopper's token, signed with the secret that `up` made.
fn token(place: &Place, user: &str) -> String {
    let secrets = fs::read_to_string(place.data().join("secrets.env")).unwrap();
    let secret = secrets
        .lines()
        .find_map(|line| line.strip_prefix("FLASHSALE_JWT_SECRET="))
        .unwrap();
    let environment = [("FLASHSALE_JWT_SECRET".to_owned(), secret.to_owned())];
    let args = ["token", "--user", user];
    let ran = Ran::of(program(&BTreeMap::from(environment), &args).output().unwrap()).ended(0);
    ran.stdout.trim().to_owned()
}
