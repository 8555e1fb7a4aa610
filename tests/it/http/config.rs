//! The environment: a missing or wrong value is named in one line with exit code 2, and no secret is ever shown.

use crate::support::app::{Client, Instance, Ran, TestApp, Who, environment, program};
use crate::support::authority::Authority;
use crate::support::poll::within;
use crate::support::servers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, PipeWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A complete environment with servers that are never asked.
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
    // Long enough in the environment: the file's value is not read, and the next thing fails.
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

#[test]
fn a_file_with_secrets_that_every_user_can_read_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let is_warned_of = |name: &str, text: &str, mode: u32, environment: &BTreeMap<String, String>| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = program(environment, &["serve"]);
        let ran = Ran::of(command.current_dir(folder.path()).output().unwrap()).ended(1);
        let warned = ran
            .stderr
            .lines()
            .find(|line| line.contains("can read a file with secrets"));
        warned.is_some_and(|line| line.contains(&format!("\"file\":\"{name}\"")))
    };
    let mut environment = complete();
    environment.remove("FLASHSALE_ADMIN_KEY");
    let secret = "admin_key = \"0123456789abcdef-in-a-file\"\n";
    assert!(is_warned_of("flashsale.toml", secret, 0o644, &environment));
    // A group may read it: that of the server, for one.
    assert!(!is_warned_of("flashsale.toml", secret, 0o640, &environment));
    assert!(!is_warned_of("flashsale.toml", secret, 0o600, &environment));
    assert!(!is_warned_of(
        "flashsale.toml",
        "gateway_rate = 7\n",
        0o644,
        &complete()
    ));

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    let mut environment = complete();
    for (name, file) in [("FLASHSALE_TLS_CERT", "cert.pem"), ("FLASHSALE_TLS_KEY", "key.pem")] {
        environment.insert(name.to_owned(), file.to_owned());
    }
    let key = made.signing_key.serialize_pem();
    assert!(is_warned_of("key.pem", &key, 0o644, &environment));
    assert!(!is_warned_of("key.pem", &key, 0o600, &environment));
    for (name, value) in [
        ("FLASHSALE_REDIS_URL", "rediss://127.0.0.1:1"),
        ("FLASHSALE_REDIS_CERT", "cert.pem"),
        ("FLASHSALE_REDIS_KEY", "redis-key.pem"),
    ] {
        environment.insert(name.to_owned(), value.to_owned());
    }
    assert!(is_warned_of("redis-key.pem", &key, 0o644, &environment));
    assert!(!is_warned_of("redis-key.pem", &key, 0o600, &environment));
}

/// Variables with other values.
type Changes<'a> = &'a [(&'a str, String)];

#[test]
fn certificates_for_redis_that_cannot_be_are_named_in_one_line_before_anything_is_started() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (url, cacert) = ("FLASHSALE_REDIS_URL", "FLASHSALE_REDIS_CACERT");
    let (cert, key) = ("FLASHSALE_REDIS_CERT", "FLASHSALE_REDIS_KEY");
    let plain = "redis://127.0.0.1:1".to_owned();
    let none = String::new;
    let missing = || "/no/such/file".to_owned();
    let cases: [(Changes, &str, &str); 11] = [
        (&[(url, plain.clone())], cacert, "write rediss://HOST:PORT"),
        (
            &[(url, "unix:///run/x".to_owned()), (cacert, none())],
            cert,
            "write rediss://HOST:PORT",
        ),
        (
            &[(url, plain), (cacert, none()), (cert, none())],
            key,
            "write rediss://HOST:PORT",
        ),
        (&[(cert, none())], key, "set both for a client certificate"),
        (&[(key, none())], cert, "set both for a client certificate"),
        (
            &[(cacert, missing())],
            cacert,
            "names /no/such/file, which cannot be read",
        ),
        (
            &[(cacert, authority.path("client-key.pem"))],
            cacert,
            "in which there is none",
        ),
        (&[(cert, missing())], cert, "names /no/such/file, which cannot be read"),
        (&[(key, missing())], key, "names /no/such/file, which cannot be read"),
        (&[(key, authority.path("client.pem"))], key, "in which there is none"),
        (
            &[(key, other.path("client-key.pem"))],
            key,
            "not the key of the first certificate",
        ),
    ];
    for (changes, named, expected) in cases {
        let mut environment = complete();
        environment.insert(url.to_owned(), "rediss+cluster://127.0.0.1:1".to_owned());
        environment.extend(authority.of_client());
        environment.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let id = uuid::Uuid::new_v4().to_string();
        for command in [&["serve"][..], &["config", "check"], &["inspect", &id]] {
            let ran = Ran::of(program(&environment, command).output().unwrap()).ended(2);
            let line = line(&ran);
            assert!(
                line.contains(&format!("{named} ")) && line.contains(expected),
                "{ran:?}"
            );
        }
    }
    let ran = serve(url, Some("redis+tls://127.0.0.1:1")).ended(2);
    assert!(line(&ran).contains("rediss+cluster://HOST:PORT,HOST:PORT"), "{ran:?}");
}

#[test]
fn stores_on_another_machine_that_are_reached_without_checked_tls_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let check = |redis: &str, database: &str| {
        let changes = [("FLASHSALE_REDIS_URL", redis), ("FLASHSALE_DATABASE_URL", database)];
        config(folder.path(), &["check"], &changes).ended(0).stderr
    };
    let (redis, postgres) = (
        "redis+cluster://:hunter2@redis-1:6379",
        "postgres://user:hunter2@postgres/x",
    );
    let warned = check(redis, postgres);
    let lines: Vec<&str> = warned.lines().collect();
    assert_eq!(lines.len(), 2, "{warned}");
    assert!(
        lines[0].contains("FLASHSALE_REDIS_URL") && lines[0].contains("write rediss://"),
        "{warned}"
    );
    assert!(
        lines[1].contains("FLASHSALE_DATABASE_URL") && lines[1].contains("sslmode=verify-full&sslrootcert=FILE"),
        "{warned}"
    );
    assert!(!warned.contains("hunter2"), "{warned}");
    let verified = format!("{postgres}?sslmode=verify-full&sslrootcert=ca.pem");
    assert_eq!(check("rediss+cluster://redis-1:6379", &verified), "");

    // And where it is seen by operators who start without a check.
    let ran = serve("FLASHSALE_REDIS_URL", Some("redis://redis.invalid:6379")).ended(1);
    let warning = ran.stderr.lines().find(|line| line.contains("\"WARN\"")).unwrap();
    assert!(
        warning.contains("FLASHSALE_REDIS_URL leads to another machine"),
        "{ran:?}"
    );
}

/// `config VERB` in this folder, with a complete environment changed by these.
fn config(folder: &Path, verb: &[&str], changes: &[(&str, &str)]) -> Ran {
    let mut environment = complete();
    environment.extend(
        changes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let mut command = program(&environment, &[&["config"], verb].concat());
    Ran::of(command.current_dir(folder).output().unwrap())
}

#[test]
fn config_check_names_what_is_missing_wrong_or_misspelt_as_serve_does() {
    let folder = tempfile::tempdir().unwrap();
    let check = |changes: &[(&str, &str)]| config(folder.path(), &["check"], changes);
    let ran = check(&[]).ended(0);
    assert!(ran.stdout.contains("valid") && ran.stderr.is_empty(), "{ran:?}");
    let ran = config(folder.path(), &["check", "--json"], &[]).ended(0);
    assert_eq!(ran.json()["valid"], true, "{ran:?}");

    for (changes, expected) in [
        (("FLASHSALE_REDIS_URL", ""), "FLASHSALE_REDIS_URL"),
        (("FLASHSALE_LISTEN", "nonsense"), "FLASHSALE_LISTEN"),
        (
            ("FLASHSALE_DATABASE_URL", "postgres://u@h:port/db"),
            "FLASHSALE_DATABASE_URL",
        ),
        (
            ("FLASHSALE_DATABASE_URL", "postgres://h/db?sslmode=bogus"),
            "FLASHSALE_DATABASE_URL",
        ),
        (
            ("FLASHSALE_ADRESS_RATE", "5"),
            "FLASHSALE_ADRESS_RATE is no variable of Flashsale; did you mean FLASHSALE_ADDRESS_RATE?",
        ),
    ] {
        let ran = check(&[changes]).ended(2);
        assert!(line(&ran).contains(expected), "{ran:?}");
        let ran = config(folder.path(), &["check", "--json"], &[changes]).ended(2);
        let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(said["valid"], false, "{ran:?}");
        assert!(said["problem"].as_str().unwrap().contains(expected), "{ran:?}");
    }
    fs::write(
        folder.path().join("flashsale.toml"),
        "log = \"info\"\ngateway_rate = \"many\"\n",
    )
    .unwrap();
    let ran = check(&[]).ended(2);
    assert!(line(&ran).contains("flashsale.toml:2: `gateway_rate`"), "{ran:?}");
}

#[test]
fn config_show_says_where_each_value_comes_from_and_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("flashsale.toml"), "\nshared_rate = 7\n").unwrap();
    let changes = [
        ("FLASHSALE_REDIS_URL", "rediss://user:hunter2@redis.example:6380"),
        ("FLASHSALE_ALERT_WEBHOOK_URL", "https://hooks.example/hunter2"),
        ("FLASHSALE_TOKEN_KEYS", "hunter2"),
        ("FLASHSALE_LOGS", "hunter2"),
    ];
    let ran = config(folder.path(), &["show"], &changes).ended(0);
    let row = |name: &str| {
        let row = ran.stdout.lines().find(|line| line.starts_with(name)).unwrap();
        row.split_whitespace().skip(1).collect::<Vec<_>>()
    };
    assert_eq!(
        row("FLASHSALE_REDIS_URL "),
        ["rediss://[hidden]@redis.example:6380", "environment"]
    );
    assert_eq!(row("FLASHSALE_ADMIN_KEY "), ["[hidden]", "environment"]);
    assert_eq!(row("FLASHSALE_SHARED_RATE "), ["7", "flashsale.toml:2"]);
    assert_eq!(row("FLASHSALE_CONNECTIONS "), ["30000", "default"]);
    assert_eq!(row("FLASHSALE_PAY_URL "), ["-", "-"]);
    assert!(
        ran.stderr
            .contains("FLASHSALE_LOGS is no variable of Flashsale; did you mean FLASHSALE_LOG?"),
        "{ran:?}"
    );
    let json = config(folder.path(), &["show", "--json"], &changes).ended(0);
    let said = json.json();
    assert_eq!(said["unknown"][0]["meant"], "FLASHSALE_LOG", "{json:?}");
    let variables = said["variables"].as_array().unwrap();
    let shared = variables
        .iter()
        .find(|it| it["name"] == "FLASHSALE_SHARED_RATE")
        .unwrap();
    assert_eq!(
        (&shared["value"], &shared["from"]),
        (&"7".into(), &"flashsale.toml:2".into())
    );
    for ran in [&ran, &json] {
        assert!(
            !ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"),
            "{ran:?}"
        );
        assert!(!ran.stdout.contains("canary-"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_misspelt_variable_is_named_at_the_start_and_where_another_is_missing() {
    let app = TestApp::with("all", &[("FLASHSALE_ADRESS_RATE", "5")]).await;
    let warning = app.logged("FLASHSALE_ADRESS_RATE is no variable of Flashsale").await;
    assert!(
        warning.contains("WARN") && warning.contains("FLASHSALE_ADDRESS_RATE?"),
        "{warning}"
    );
    let mut environment = complete();
    let key = environment.remove("FLASHSALE_ADMIN_KEY").unwrap();
    environment.insert("FLASHSALE_ADMIN_KYE".to_owned(), key);
    let ran = Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(2);
    assert!(line(&ran).contains("not set: FLASHSALE_ADMIN_KEY;"), "{ran:?}");
    assert!(line(&ran).contains("FLASHSALE_ADMIN_KYE is no variable"), "{ran:?}");
}

#[test]
fn secrets_that_are_easy_to_guess_are_refused_with_how_to_make_one() {
    for (name, value) in [
        ("FLASHSALE_ADMIN_KEY", "aaaaaaaaaaaaaaaa"),
        ("FLASHSALE_ADMIN_KEY", "changeme-changeme"),
        ("FLASHSALE_ADMIN_KEY", "flashsale-admin1"),
        ("FLASHSALE_JWT_SECRET", "changemechangemechangemechangeme"),
        ("FLASHSALE_WEBHOOK_SECRET", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ] {
        let ran = serve(name, Some(value)).ended(2);
        assert!(
            line(&ran).starts_with(&format!("flashsale: {name} is easy to guess")),
            "{ran:?}"
        );
        assert!(
            ran.stderr.contains("openssl rand") && !ran.stderr.contains(value),
            "{ran:?}"
        );
    }
}

#[tokio::test]
async fn a_shared_secret_that_is_easy_to_guess_is_warned_of() {
    let key = "0123456789abcdef0123456789abcdef";
    let app = TestApp::with("api", &[("FLASHSALE_JWT_SECRET", key)]).await;
    let log = app.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("easy to guess")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("FLASHSALE_JWT_SECRET"));
    assert!(!log.contains(key));
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
    // The canaries are searched when the instance ends; a shopper's token is a secret as well.
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

/// On a full disk, or because its reader has ended.
#[tokio::test]
async fn a_log_that_cannot_be_written_delays_neither_answers_nor_shutdown() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    for log in [Stdio::from(full), Stdio::from(unread)] {
        serves_and_ends(log).await;
    }
}

#[tokio::test]
async fn a_log_whose_reader_stalls_loses_lines_and_says_so_once_it_is_read() {
    let (reader, mut log) = std::io::pipe().unwrap();
    let takes_more = |log: &PipeWriter| {
        let mut asked = [PollFd::new(log, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    while takes_more(&log) {
        log.write_all(&[b'\n'; 4096]).unwrap();
    }
    let up = Up::start(Stdio::from(log)).await;
    up.refuse_three().await;
    let (report, reported) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if line.contains("lines of the log were dropped since the start") {
                let _heard = report.send(line);
            }
        }
    });
    let line = reported
        .recv_timeout(Duration::from_secs(60))
        .expect("it never says so");
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(record["lines"].as_u64().unwrap() > 3, "{record}");
    up.end().await;
}

async fn serves_and_ends(log: Stdio) {
    let up = Up::start(log).await;
    up.refuse_three().await;
    up.end().await;
}

/// `flashsale up`, which writes its log there.
struct Up {
    running: Running,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Up {
    async fn start(log: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The user of Postgres may enter it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        let data = data.to_str().unwrap();
        let args = ["up", "--json", "--data", data, "--listen", "127.0.0.1:0"];
        let mut up = program(&BTreeMap::new(), &args);
        let mut running = Running(up.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
        drop(up);
        let printed = BufReader::new(running.0.stdout.take().unwrap());
        let (report, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || report.send(printed.lines().next()));
        let ready = ready.recv_timeout(Duration::from_secs(60)).expect("it never serves");
        let ready: serde_json::Value = serde_json::from_str(&ready.unwrap().unwrap()).unwrap();
        Self {
            running,
            client: Client::at(ready["http"].as_str().unwrap()),
            _folder: folder,
        }
    }

    /// The log names the client with the wrong key.
    async fn refuse_three(&self) {
        for _ in 0..3 {
            let answer = self.client.get(Who::Bearer("wrong"), "/v1/admin/sales").await;
            answer.no(401, "unauthenticated");
        }
    }

    async fn end(mut self) {
        servers::signal("TERM", &[self.running.0.id()]);
        let mut ended = None;
        within(Duration::from_secs(60), "it has ended, and its servers", async || {
            ended = self.running.0.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        assert!(ended.unwrap().success(), "{ended:?}");
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    let taken = app.url.trim_start_matches("http://").to_owned();
    environment.insert("FLASHSALE_LISTEN".to_owned(), taken.clone());
    let ran = Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(1);
    assert!(ran.stderr.contains(&taken), "{ran:?}");
    // Also before `up` makes databases that nobody uses.
    let folder = tempfile::tempdir().unwrap();
    let (made, own) = (folder.path().join("made"), folder.path().join("own"));
    fs::create_dir(&own).unwrap();
    for (listen, code) in [(taken.as_str(), 1), ("nonsense", 2)] {
        for data in [made.join("data"), own.clone()] {
            let up = ["up", "--data", data.to_str().unwrap(), "--listen", listen];
            let ran = Ran::of(program(&BTreeMap::new(), &up).output().unwrap()).ended(code);
            assert!(
                line(&ran).contains(listen) && line(&ran).contains("--listen"),
                "{ran:?}"
            );
            assert!(!line(&ran).contains("os error"), "{ran:?}");
        }
        // It leaves nothing that it has made.
        assert!(!made.exists() && fs::read_dir(&own).unwrap().next().is_none());
    }
    // A worker does not listen.
    drop(Instance::start(&environment, "worker"));
}
