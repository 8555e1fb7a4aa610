//! The environment: what is missing or wrong is named in one line with exit code 2, and no secret is ever shown.

use crate::support::app::{Client, Instance, Ran, TestApp, Who, environment, program};
use crate::support::{poll, servers};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A complete environment of servers that nobody asks.
fn complete() -> BTreeMap<String, String> {
    environment("redis://127.0.0.1:1", "postgres://user:canary-pg@127.0.0.1:1/x")
}

/// `serve` with one variable changed, or taken away.
fn serve(name: &str, value: Option<&str>) -> Ran {
    let mut environment = complete();
    match value {
        Some(value) => environment.insert(name.to_owned(), value.to_owned()),
        None => environment.remove(name),
    };
    Ran::of(program(&environment, &["serve"]).output().unwrap())
}

/// The one line that was printed.
#[track_caller]
fn line(ran: &Ran) -> &str {
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    ran.stderr.trim_end()
}

#[test]
fn each_variable_that_serve_needs_is_named_when_it_is_missing_or_empty() {
    for name in [
        "FLASHSALE_REDIS_URL",
        "FLASHSALE_DATABASE_URL",
        "FLASHSALE_ADMIN_KEY",
        "FLASHSALE_JWT_SECRET",
        "FLASHSALE_WEBHOOK_SECRET",
    ] {
        for value in [None, Some("")] {
            let ran = serve(name, value).ended(2);
            assert!(line(&ran).contains(name), "{ran:?}");
        }
    }
}

#[test]
fn each_variable_that_is_wrong_is_named_and_its_value_is_not_shown() {
    let wrong = [
        ("FLASHSALE_LISTEN", "nonsense"),
        ("FLASHSALE_LISTEN", "127.0.0.1:99999"),
        ("FLASHSALE_REDIS_URL", "hunter2://hunter2"),
        ("FLASHSALE_REDIS_URL", "hunter2"),
        ("FLASHSALE_DATABASE_URL", "mysql://hunter2"),
        ("FLASHSALE_ADMIN_KEY", "hunter2-15bytes"),
        ("FLASHSALE_JWT_SECRET", "hunter2-is-31-bytes-long-1234567"[1..].as_ref()),
        ("FLASHSALE_WEBHOOK_SECRET", "hunter2"),
        ("FLASHSALE_WEBHOOK_SECRET", "whsec_hunter2!"),
        ("FLASHSALE_WEBHOOK_SECRET", "whsec_aHVudGVyMg=="),
        ("FLASHSALE_GATEWAY_RATE", "-1"),
        ("FLASHSALE_GATEWAY_RATE", "1.5"),
        ("FLASHSALE_GATEWAY_RATE", "many"),
        ("FLASHSALE_LOG", "a=b=c"),
        ("FLASHSALE_LOG", ":::"),
        ("FLASHSALE_LOG", "hunter2=info,:::"),
    ];
    for (name, value) in wrong {
        let ran = serve(name, Some(value)).ended(2);
        assert!(line(&ran).contains(name), "{ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
}

#[test]
fn servers_that_cannot_be_reached_are_a_fault_that_shows_no_password() {
    for (redis, database) in [
        (
            "redis://:canary-redis@127.0.0.1:1",
            "postgres://user:canary-pg@127.0.0.1:1/x",
        ),
        (
            "redis://:canary-redis@no.such.host.invalid",
            "postgres://user:canary-pg@no.such.host.invalid/x",
        ),
    ] {
        let ran = Ran::of(program(&environment(redis, database), &["serve"]).output().unwrap()).ended(1);
        assert!(!ran.stderr.contains("canary-"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_redis_that_cannot_be_reached_is_a_fault_that_shows_no_password() {
    let environment = environment("redis://:canary-redis@127.0.0.1:1", &servers::database().await);
    let ran = Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(1);
    assert!(
        ran.stderr.contains("Redis") && !ran.stderr.contains("canary-"),
        "{ran:?}"
    );
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        &["serve", "--role", "emperor"][..],
        &["serve", "--unknown"],
        &["nothing"],
        &["sale", "show", "no-uuid"],
        &["audit", "no-uuid"],
        &["rebuild", "no-uuid"],
        &["inspect", "no-uuid"],
        &["token"],
        &["token", "--user", ""],
        &["token", "--user", "ada", "--ttl", "soon"],
        &["pay", "no-uuid"],
        &["audit"],
        &[],
    ] {
        let ran = Ran::of(program(&complete(), args).output().unwrap()).ended(2);
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn commands_name_the_variable_that_they_miss() {
    let id = uuid::Uuid::new_v4().to_string();
    for (name, args) in [
        ("FLASHSALE_ADMIN_KEY", &["sale", "list"][..]),
        ("FLASHSALE_ADMIN_KEY", &["audit", &id]),
        ("FLASHSALE_JWT_SECRET", &["token", "--user", "ada"]),
        ("FLASHSALE_WEBHOOK_SECRET", &["pay", &id]),
        ("FLASHSALE_DATABASE_URL", &["migrate"]),
    ] {
        let mut environment = complete();
        environment.remove(name);
        let ran = Ran::of(program(&environment, args).output().unwrap()).ended(2);
        assert!(line(&ran).contains(name), "{ran:?}");
    }
}

#[tokio::test]
async fn a_file_holds_the_same_keys_and_the_environment_wins() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| std::fs::write(folder.path().join("flashsale.toml"), text).unwrap();
    let run = |environment: &BTreeMap<String, String>| {
        let mut command = program(environment, &["serve"]);
        Ran::of(command.current_dir(folder.path()).output().unwrap())
    };
    file("listen = \"127.0.0.1:0\"\n\nadmin_key = \"hunter2\"\n");
    // Too short in the file: its line is named.
    let mut environment = complete();
    environment.remove("FLASHSALE_ADMIN_KEY");
    let ran = run(&environment).ended(2);
    assert!(line(&ran).contains("flashsale.toml:3"), "{ran:?}");
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    // Long enough in the environment: the file's is not looked at, and the next thing fails.
    run(&complete()).ended(1);
    file("unknown = 1\n");
    let ran = run(&complete()).ended(2);
    assert!(line(&ran).contains("flashsale.toml:1"), "{ran:?}");
    file("admin_key = \"hunter2");
    let ran = run(&complete()).ended(2);
    assert!(
        line(&ran).contains("flashsale.toml:1") && !ran.stderr.contains("hunter2"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn no_secret_is_logged_at_the_most_talkative_level() {
    let app = TestApp::with("all", &[("FLASHSALE_LOG", "trace")]).await;
    let id = app.load_sale(&crate::support::app::sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    app.get(Who::Bearer("wrong"), "/v1/admin/sales")
        .await
        .no(401, "unauthenticated");
    app.webhook("msg", "{}").await.no(400, "invalid_request");
    let token = crate::support::app::token("ada");
    let log = app.log();
    assert!(log.lines().count() > 20, "{log}");
    // The canaries are looked for when the instance ends; a shopper's token is a secret as well.
    assert!(!log.contains(&token[..token.len() / 2]), "a token is in the log");
}

#[tokio::test]
async fn logs_are_json_lines_and_the_filter_holds() {
    let app = TestApp::with("all", &[("FLASHSALE_LOG", "info")]).await;
    for line in app.log().lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(event["timestamp"].is_string() && event["level"].is_string(), "{line}");
        assert_ne!(event["level"], "DEBUG", "{line}");
    }
}

/// It ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// On a disk that is full, or because whoever read it has ended.
#[tokio::test]
async fn a_log_that_cannot_be_written_keeps_nobody_from_an_answer_nor_the_servers_from_ending() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    for log in [Stdio::from(full), Stdio::from(unread)] {
        serves_and_ends(log).await;
    }
}

async fn serves_and_ends(log: Stdio) {
    let folder = tempfile::tempdir().unwrap();
    // The user of Postgres may enter it.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = folder.path().join("data");
    let args = [
        "up",
        "--json",
        "--data",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ];
    let mut up = program(&BTreeMap::new(), &args);
    let mut up = Running(up.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
    let printed = BufReader::new(up.0.stdout.take().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(printed.lines().next()));
    let told = told.recv_timeout(Duration::from_secs(60)).expect("it never serves");
    let told: serde_json::Value = serde_json::from_str(&told.unwrap().unwrap()).unwrap();
    let client = Client::at(told["http"].as_str().unwrap());
    // It is logged who has the wrong key.
    for _ in 0..3 {
        let answer = client.get(Who::Bearer("wrong"), "/v1/admin/sales").await;
        answer.no(401, "unauthenticated");
    }
    servers::signal("TERM", &[up.0.id()]);
    let mut ended = None;
    poll::within(Duration::from_secs(60), "it has ended, and its servers", async || {
        ended = up.0.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert!(ended.unwrap().success(), "{ended:?}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    let taken = app.url.trim_start_matches("http://").to_owned();
    environment.insert("FLASHSALE_LISTEN".to_owned(), taken.clone());
    let ran = Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(1);
    assert!(ran.stderr.contains(&taken), "{ran:?}");
    // Also before `up` makes databases for nobody.
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let up = ["up", "--data", data.to_str().unwrap(), "--listen", &taken];
    let ran = Ran::of(program(&BTreeMap::new(), &up).output().unwrap()).ended(1);
    assert!(
        line(&ran).contains(&taken) && line(&ran).contains("--listen"),
        "{ran:?}"
    );
    assert!(!data.join("redis").exists() && !data.join("postgres").exists());
    // A worker does not listen.
    drop(Instance::start(&environment, "worker"));
}
