//! The terminal: help with examples, JSON everywhere, completions, manual pages, the live view, progress.

use crate::support::app::{Client, Instance, Ran, TestApp, environment, program, program_path, sale, sale_with};
use crate::support::poll::{self, Patience};
use crate::support::servers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Runs the program without any setting.
fn run(args: &[&str]) -> Ran {
    Ran::of(program(&BTreeMap::new(), args).output().unwrap())
}

/// The commands in the help of `path`, as far as it has any.
fn commands_of(path: &[String]) -> Vec<Vec<String>> {
    let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = run(&args).ended(0).stdout;
    let Some((_, listed)) = help.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    let names = listed
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap().to_owned());
    names
        .filter(|name| name != "help")
        .map(|name| path.iter().cloned().chain([name]).collect())
        .collect()
}

/// Every command in the help, also those within others.
fn commands() -> Vec<Vec<String>> {
    let (mut all, mut left) = (Vec::new(), vec![Vec::new()]);
    while let Some(path) = left.pop() {
        left.extend(commands_of(&path));
        all.push(path);
    }
    assert!(all.len() > 30, "{all:?}");
    all
}

#[test]
fn every_command_has_help_with_an_example_that_names_it() {
    for path in commands() {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = run(&args).ended(0).stdout;
        let (_, examples) = help
            .split_once("\nExample")
            .unwrap_or_else(|| panic!("flashsale {} --help has no example:\n{help}", path.join(" ")));
        let words = format!("flashsale {}", path.join(" "));
        assert!(examples.contains(words.trim_end()), "{words}:\n{examples}");
    }
}

#[test]
fn every_command_that_prints_data_takes_json() {
    let all = commands();
    let has_own = |path: &Vec<String>| {
        all.iter()
            .any(|other| other.len() > path.len() && other.starts_with(path))
    };
    for path in all.iter().filter(|path| !has_own(path)) {
        // These print for shells and for `man`.
        if ["completions", "man"].contains(&path[0].as_str()) {
            continue;
        }
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = run(&args).ended(0).stdout;
        assert!(help.contains("--json"), "flashsale {} takes no --json", path.join(" "));
    }
}

#[test]
fn options_of_every_command_stand_apart_and_are_in_no_usage() {
    let environment = BTreeMap::from([("FLASHSALE_URL".to_owned(), "http://127.0.0.1:9".to_owned())]);
    let ran = |args: &[&str]| Ran::of(program(&environment, args).output().unwrap());
    let help = ran(&["buy", "--help"]).ended(0).stdout;
    let (own, global) = help.split_once("\nGlobal options:\n").unwrap();
    assert!(own.contains("--quantity") && !own.contains("--cacert"), "{help}");
    assert!(global.contains("--url") && global.contains("--json"), "{help}");
    let wrong = ran(&["sale", "show"]).ended(2);
    assert!(
        wrong.stderr.contains("Usage: ") && !wrong.stderr.contains("--url"),
        "{wrong:?}"
    );
}

#[test]
fn a_wrong_value_or_option_is_refused_without_a_misleading_tip() {
    let ban = |option, value| ["ban", "add", "ada", "--reason", "r", option, value];
    for (args, said) in [
        (&ban("--for", "-1h")[..], "\"-1h\" is not a duration"),
        (&ban("--for", "0s"), "at least 1s"),
        (&ban("--until", "1h"), "unexpected argument '--until'"),
        (&["token", "--user", "ada", "--ttl", "-1h"], "\"-1h\" is not a duration"),
        (
            &["orders", "list", "--user", "ada", "--from", "-1h"],
            "must be a time such as",
        ),
        (
            &["sale", "create", "--file", "sale.toml"],
            "unexpected argument '--file'",
        ),
    ] {
        let refused = run(args).ended(2);
        assert!(
            refused.stderr.contains(said) && !refused.stderr.contains("as a value"),
            "{refused:?}"
        );
    }
}

#[test]
fn completions_are_scripts_that_their_shells_can_read() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).ended(0).stdout;
        for word in ["sale", "restock", "watch", "--json"] {
            let word = word.trim_start_matches(if shell == "fish" { "--" } else { "" });
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let script = run(&["completions", "bash"]).ended(0).stdout;
    for (words, offered) in [
        (&["sale", "re"][..], &["resume", "restock"][..]),
        (&["orders", "list", "--state", "re"], &["reserved", "revoked"]),
        (&["complete"], &[]),
        (&["health"], &[]),
    ] {
        let at = words.len();
        let [current, before] = [words[at - 1], if at > 1 { words[at - 2] } else { "flashsale" }];
        let asked = format!(
            "COMP_WORDS=(flashsale {}); COMP_CWORD={at}; _flashsale flashsale {current} {before}; \
             echo \"${{COMPREPLY[@]}}\"",
            words.join(" ")
        );
        let bash = Command::new("bash")
            .arg("-c")
            .arg(format!("{script}\n{asked}"))
            .output()
            .unwrap();
        let bash = Ran::of(bash).ended(0);
        let found: Vec<&str> = bash.stdout.split_whitespace().collect();
        assert!(offered.iter().all(|word| found.contains(word)), "{words:?}: {bash:?}");
        assert!(!offered.is_empty() || found.is_empty(), "{words:?}: {bash:?}");
    }
    let refused = run(&["completions", "cmd.exe"]).ended(2);
    assert!(refused.stderr.contains("bash"), "{refused:?}");
}

#[tokio::test]
async fn a_shell_completes_sale_ids_and_skus() {
    let mut app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let url = app.url.clone();
    app.environment.insert("FLASHSALE_URL".to_owned(), url);
    let script = app.run(&["completions", "bash"]).ended(0).stdout;
    let complete = |environment: &BTreeMap<String, String>, line: &[&str]| {
        let program = program_path();
        let words: Vec<String> = std::iter::once(program.as_str())
            .chain(line.iter().copied())
            .map(|word| format!("'{word}'"))
            .collect();
        let asked = format!(
            "COMP_WORDS=({}); COMP_CWORD={}; _flashsale '{program}' '{}' ''; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            line.len(),
            line.last().unwrap()
        );
        let bash = Command::new("bash")
            .arg("-c")
            .arg(format!("{script}\n{asked}"))
            .env_clear()
            .envs(environment)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .output()
            .unwrap();
        Ran::of(bash).ended(0).stdout.trim().to_owned()
    };
    let shopper = BTreeMap::from([("FLASHSALE_URL".to_owned(), app.url.clone())]);
    for environment in [&app.environment, &shopper] {
        for line in [&["sale", "show", &id[..4]][..], &["orders", "list", "--sale", ""]] {
            assert_eq!(complete(environment, line), id, "{line:?}");
        }
        for line in [&["buy", &id, "ph"][..], &["sale", "restock", &id, ""]] {
            assert_eq!(complete(environment, line), "phone", "{line:?}");
        }
    }
    assert_eq!(complete(&shopper, &["sale", "show", "@", "la"]), "@latest");
    // Nothing of the server's: the generated completion.
    assert_eq!(complete(&shopper, &["sale", "restor"]), "restore");
    let described = app.run(&["complete-words", "--", "buy", ""]).ended(0);
    assert_eq!(described.stdout, format!("{id}\tA sale\n"));
    assert_eq!(
        app.run(&["complete-words", "--", "sale", "create", ""]).ended(0).stdout,
        ""
    );
}

#[test]
fn manual_pages_say_what_help_says_and_are_one_a_command() {
    let page = run(&["man"]).ended(0).stdout;
    assert!(
        page.contains(".TH flashsale 1") && page.contains("Exit codes"),
        "{page}"
    );
    let page = run(&["man", "sale", "restock"]).ended(0).stdout;
    assert!(
        page.contains(".TH flashsale\\-sale\\-restock 1") || page.contains(".TH flashsale-sale-restock 1"),
        "{page}"
    );
    assert!(page.contains("phone"), "{page}");
    let refused = run(&["man", "sale", "borrow"]).ended(2);
    assert!(
        refused.stderr.contains("there is no command sale borrow"),
        "{refused:?}"
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    run(&["man", "--out", out.to_str().unwrap()]).ended(0);
    for path in commands() {
        let name = ["flashsale".to_owned()]
            .into_iter()
            .chain(path)
            .collect::<Vec<_>>()
            .join("-");
        let page = out.join(format!("{name}.1"));
        assert!(page.is_file(), "no {}", page.display());
    }
    assert!(!out.join("flashsale-healthcheck.1").exists());
}

#[tokio::test]
async fn json_is_json_also_where_people_see_a_sentence() {
    let app = TestApp::start_api_only().await;
    // The owner of the tables migrates, and not the role that serves.
    let mut owner = app.environment.clone();
    let url = servers::as_role(&owner["FLASHSALE_DATABASE_URL"], "flashsale_owner");
    owner.insert("FLASHSALE_DATABASE_URL".to_owned(), url);
    let migrate = |args: &[&str]| Ran::of(program(&owner, args).output().unwrap()).ended(0);
    assert_eq!(migrate(&["migrate", "--json"]).json(), json!({"schema": "current"}));
    assert_eq!(migrate(&["migrate"]).stdout, "The schema is current.\n");
    let id = app.load_sale(&sale()).await;
    let draft = app.create_sale(&sale()).await;
    let refused = app.run(&["inspect", &draft]).ended(1);
    assert_eq!(
        refused.stderr,
        "flashsale: the sale is a draft: Redis has nothing of it yet\n"
    );
    let one_line = app.run(&["inspect", &id, "--json"]).ended(0);
    assert_eq!(one_line.stdout.lines().count(), 1, "{one_line:?}");
    // An operator's commands when shards are halted.
    let shard = &app.run(&["inspect", &id]).ended(0).json()["shards"][0];
    assert_eq!((&shard["epoch"], &shard["braked"]), (&json!(1), &json!(false)));
    assert!(
        shard["permitted"].is_boolean() && shard["permitted_until"].is_string(),
        "{shard}"
    );
    for args in [
        &["sale", "list", "--json"][..],
        &["sale", "show", &id, "--json"],
        &["audit", &id, "--json"],
        &["rebuild", &id, "--json"],
        &["dead-letters", "list", &id, "--json"],
        &["guards", "show", "--json"],
        &["alerts", "list", "--json"],
        &["ban", "list", "--json"],
        &["refunds", "list", "--json"],
        &["actions", "--json"],
        &["token", "--user", "ada", "--json"],
    ] {
        let ran = app.run(args).ended(0);
        assert!(ran.json().is_object() || ran.json().is_array(), "{args:?}: {ran:?}");
        // Progress goes to the other stream, if at all.
        assert_eq!(ran.stderr, "", "{args:?}");
    }
}

#[tokio::test]
async fn operators_change_a_draft_and_read_what_was_done_by_command() {
    let app = TestApp::start_api_only().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("sale.example.toml")).unwrap();
        let path = folder.path().join(format!("{name}.toml"));
        let at = text.find("name = ").unwrap();
        let end = at + text[at..].find('\n').unwrap();
        fs::write(&path, format!("{}name = \"{name}\"{}", &text[..at], &text[end..])).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let created = app.run(&["--help"]).ended(0);
    assert!(created.stdout.contains("  actions "), "{created:?}");
    let created = app
        .run(&["sale", "create", &file("First"), "--key", "k", "--json"])
        .ended(0);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    // With its relative times, the file is another sale by now: it is made once at the most.
    let again = app.run(&["sale", "create", &file("First"), "--key", "k"]).ended(1);
    assert!(
        again.stderr.contains("idempotency_key_reused") && again.stderr.contains("use a printed key or absolute times"),
        "{again:?}"
    );

    let shown = app.run(&["sale", "show", &id]).ended(0).stdout;
    let version = shown
        .lines()
        .find_map(|line| line.strip_prefix("version "))
        .unwrap()
        .trim();
    let changed = app
        .run(&["sale", "change", &id, &file("Second"), "--if-version", version])
        .ended(0);
    assert!(
        changed.stdout.contains("Second") && !changed.stdout.contains(version),
        "{changed:?}"
    );
    // A version may begin as an option does.
    for stale in [version, "-AbC"] {
        let stale = app
            .run(&["sale", "change", &id, &file("Third"), "--if-version", stale])
            .ended(1);
        let said = "flashsale: invalid_transition: the draft has changed since version ";
        assert!(
            stale.stderr.starts_with(said) && stale.stderr.contains("show it again"),
            "{stale:?}"
        );
    }
    app.run(&["sale", "change", &id, &file("Fourth")]).ended(0);
    assert_eq!(
        app.run(&["sale", "show", &id, "--json"]).ended(0).json()["name"],
        "Fourth"
    );
    app.run(&["sale", "preload", &id]).ended(0);
    let late = app.run(&["sale", "change", &id, &file("Fifth")]).ended(1);
    assert!(late.stderr.contains("draft"), "{late:?}");

    app.try_create_sale(&sale()).await.ok(201);
    let piped = program(&app.environment, &["sale", "create", "-", "--url", &app.url])
        .stdin(fs::File::open(folder.path().join("First.toml")).unwrap())
        .output();
    Ran::of(piped.unwrap()).ended(0);
    let all = app.run(&["actions", "--json"]).ended(0).json();
    let of = |actions: &Value| -> Vec<(String, String)> {
        let actions = actions.as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        actions.map(|it| (text(&it["action"]), text(&it["outcome"]))).collect()
    };
    let expected = [
        ("sales.create", "done"),
        ("sales.create", "done"),
        ("sales.change", "invalid_transition"),
        ("sales.preload", "done"),
        ("sales.change", "done"),
        ("sales.change", "invalid_transition"),
        ("sales.change", "invalid_transition"),
        ("sales.change", "done"),
        ("sales.create", "idempotency_key_reused"),
        ("sales.create", "done"),
    ];
    assert_eq!(
        of(&all),
        expected.map(|(action, outcome)| (action.to_owned(), outcome.to_owned()))
    );
    let two = app
        .run(&["actions", "--sale", &id, "--limit", "2", "--json"])
        .ended(0)
        .json();
    assert_eq!(two, json!([all[2], all[3]]));
    let table = app.run(&["--as", "Ada", "actions"]);
    assert_eq!(table.code, 2, "an option of a command stands behind it: {table:?}");
    let table = app.run(&["actions", "--sale", &id, "--as", "Ada"]).ended(0).stdout;
    assert_eq!(table.lines().count(), 8, "{table}");
    assert!(table.contains("sales.preload  done"), "{table}");
    app.run(&["actions", "--limit", "0"]).ended(2);
}

/// The program on a terminal of its own, of 100 columns and 30 rows.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    folder: tempfile::TempDir,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Copies what the program writes to the screen, to its end.
    reader: JoinHandle<()>,
}

impl Terminal {
    fn open(app: &TestApp, args: &[&str]) -> Self {
        let mut environment = app.environment.clone();
        environment.insert("FLASHSALE_URL".to_owned(), app.url.clone());
        environment.insert("TERM".to_owned(), "xterm".to_owned());
        let words: Vec<String> = std::iter::once(program_path())
            .chain(args.iter().map(|arg| (*arg).to_owned()))
            .map(|word| format!("'{word}'"))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // Debian's util-linux has it on every machine.
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command"])
            .arg(format!(
                "stty cols 100 rows 30; echo $$ >{}; exec {}",
                pid.display(),
                words.join(" ")
            ))
            .arg("/dev/null")
            .env_clear()
            .envs(&environment)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let size = |length| NonZero::new(length).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(30), size(100), 0)));
        let (mut stdout, seen) = (child.stdout.take().unwrap(), Arc::clone(&screen));
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let length @ 1.. = stdout.read(&mut some).unwrap() {
                seen.lock().unwrap().process(&some[..length]);
            }
        });
        let keys = child.stdin.take().unwrap();
        Self {
            child,
            keys,
            folder,
            screen,
            reader,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Sends the program this signal.
    fn signal(&self, name: &str) {
        let pid = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        let sent = Command::new("kill").args(["-s", name, pid.trim()]).status();
        assert!(sent.unwrap().success());
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows all of these.
    async fn shows(&self, parts: &[&str]) {
        let patience = Patience::of(Duration::from_secs(20));
        while let Some(part) = parts.iter().find(|part| !self.text().contains(**part)) {
            patience
                .pause(&format!("{part:?} on the screen\n{}", self.text()))
                .await;
        }
    }

    /// Waits until the program has ended, with success, and returns what it left on the terminal.
    async fn ended(mut self) -> String {
        let status = poll::answer("the program ends", || {
            std::future::ready(self.child.try_wait().unwrap())
        })
        .await;
        assert!(status.success(), "{}", self.text());
        self.reader.join().unwrap();
        self.screen.lock().unwrap().screen().contents()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_live_view_is_redrawn_on_a_terminal_with_the_last_minute_as_lines() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    for shopper in ["ada", "bob", "cleo"] {
        app.buy(shopper, &id, "k", 2).await.ok(201);
    }
    let terminal = Terminal::open(&app, &["sale", "watch", &id]);
    terminal.shows(&["OPEN", "purchases a second", "item 1 of 1"]).await;
    app.buy("dora", &id, "k", 3).await.ok(201);
    app.buy("eve", &id, "k", 2).await.no(409, "sold_out");
    terminal
        .shows(&[
            "refused meanwhile   sold_out 1",
            "undrained events",
            "free units",
            "now 1, most 4",
            "refusals a second",
            "p99, milliseconds",
            "█",
        ])
        .await;
    let closed = app.operate(&id, "close").await.ok(200);
    assert_eq!(closed.body["state"], "closed");
    let left = terminal.ended().await;
    assert!(left.contains("closed undrained 0"), "{left}");
    let lines = app.run(&["sale", "watch", &id]).ended(0).stdout;
    assert!(
        lines.lines().count() == 1 && lines.contains("closed undrained 0"),
        "{lines}"
    );
    let sample: Value = app.run(&["sale", "watch", &id, "--json"]).ended(0).json();
    assert_eq!(sample["sale"]["state"], "closed");
    assert!(sample["point"]["answers"].is_object(), "{sample}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_scroll_the_live_view_search_its_items_and_leave_it() {
    let app = TestApp::start().await;
    let item = |number: usize| {
        json!({"sku": format!("item-{number:02}"), "name": "A thing", "price_minor": 100, "currency": "EUR", "stock": 5,
            "per_user_limit": 1})
    };
    let items: Vec<Value> = (0..40).map(item).collect();
    let id = app.load_sale(&sale_with(&json!({"items": items}))).await;
    let mut terminal = Terminal::open(&app, &["sale", "watch", &id]);
    terminal.shows(&["item-00", "item 1 of 40"]).await;
    assert!(!terminal.text().contains("item-39"), "{}", terminal.text());
    // The End key.
    terminal.press("\u{1b}[F");
    terminal.shows(&["item-39", "item 40 of 40"]).await;
    terminal.press("/m-2\r");
    terminal.shows(&["item 1 of 10", "item-20", "\"m-2\" among 40"]).await;
    assert!(!terminal.text().contains("item-39"), "{}", terminal.text());
    terminal.press("q");
    let left = terminal.ended().await;
    // The terminal is as before, with the last numbers on it.
    assert!(left.contains("open undrained 0") && !left.contains("search"), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_gives_the_terminal_of_the_live_view_back() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    for name in ["TERM", "HUP"] {
        let terminal = Terminal::open(&app, &["sale", "watch", &id]);
        terminal.shows(&["item 1 of 1"]).await;
        terminal.signal(name);
        let left = terminal.ended().await;
        assert!(
            left.contains("open undrained 0") && !left.contains("search"),
            "{name}: {left}"
        );
    }
}

/// `sale watch` while it goes on.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn begin(client: &Client, environment: &BTreeMap<String, String>, args: &[&str]) -> Self {
        let mut environment = environment.clone();
        environment.insert("FLASHSALE_URL".to_owned(), client.url.clone());
        let args: Vec<&str> = ["sale", "watch"].iter().chain(args).copied().collect();
        let mut child = program(&environment, &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let both: [Box<dyn std::io::Read + Send>; 2] = [Box::new(stdout), Box::new(stderr)];
        for stream in both {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines() {
                    // A test that has ended reads no more.
                    let _unread = sender.send(line.unwrap());
                }
            });
        }
        Self { child, lines }
    }

    /// The next line with all of these in it.
    fn line(&self, parts: &[&str]) -> String {
        let mut seen = Vec::new();
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line with {parts:?} in {seen:#?}")
            };
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            seen.push(line);
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_refusals_by_reason_and_latencies() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 2}))).await;
    let (lines, json) = (
        Watching::begin(&app, &app.environment, &[&id]),
        Watching::begin(&app, &app.environment, &[&id, "--json"]),
    );
    lines.line(&["open undrained 0"]);
    json.line(&["point"]);
    app.buy("ada", &id, "k", 2).await.ok(201);
    app.buy("bob", &id, "k", 1).await.no(409, "sold_out");
    app.operate(&id, "pause").await.ok(200);
    app.buy("cyd", &id, "k", 1).await.no(409, "sale_not_open");
    // They may come in two samples.
    lines.line(&[" refused/s ", " sale_not_open 1", " p50 ", " p99 "]);
    let sample: Value = serde_json::from_str(&json.line(&["\"sale_not_open\":1"])).unwrap();
    assert_eq!(sample["sale"]["state"], "paused", "{sample}");
    assert!(sample["point"]["p99"].is_f64(), "{sample}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_moving_units_while_postgres_is_away_and_reconnects_to_the_server() {
    let mut postgres = servers::FreshPostgres::start().await;
    let mut environment = environment(&servers::redis(), &postgres.url());
    environment.insert(
        "FLASHSALE_LISTEN".to_owned(),
        format!("127.0.0.1:{}", servers::free_port()),
    );
    let mut instance = Instance::start(&environment, "all").may_log_errors();
    let id = instance.load_sale(&sale_with(&json!({"stock": 5}))).await;
    let watching = Watching::begin(&instance, &environment, &[&id]);
    watching.line(&["open undrained 0", "available 5"]);
    postgres.stop();
    for shopper in ["ada", "bob"] {
        instance.buy(shopper, &id, "k", 1).await.ok(201);
    }
    let alone = "TROUBLE the units are from Redis alone";
    watching.line(&[
        "open undrained 2",
        "available 3",
        "TROUBLE Postgres does not answer",
        alone,
    ]);
    postgres.restart();
    let back = watching.line(&["open undrained 0", "available 3", "reserved 2"]);
    assert!(!back.contains(alone), "{back}");
    // The instance goes and another one comes at its address.
    instance.terminate();
    watching.line(&["flashsale: ", "; trying again"]);
    let again = Instance::start(&environment, "all").may_log_errors();
    watching.line(&["the server answers again"]);
    again.operate(&id, "close").await.ok(200);
    watching.line(&["closed undrained 0"]);
}

/// Runs the program until it has printed a line, leaves, and returns its exit code.
fn left_after_a_line(environment: &BTreeMap<String, String>, args: &[&str]) -> Option<i32> {
    let mut child = program(environment, args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.ends_with('\n'), "{args:?}: {line:?}");
    drop(lines);
    let mut ended = None;
    poll::eventually("the program ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap().code()
}

#[tokio::test]
async fn watch_exits_cleanly_when_its_reader_is_gone() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_URL".to_owned(), app.url.clone());
    let watching = left_after_a_line(&environment, &["sale", "watch", &id, "--json"]);
    assert_eq!(watching, Some(0));

    // A stream of alerts without an end.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    environment.insert(
        "FLASHSALE_URL".to_owned(),
        format!("http://{}", listener.local_addr().unwrap()),
    );
    let sending = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes());
        for id in 0.. {
            if sent.is_err() {
                break;
            }
            sent = stream.write_all(format!("id: {id}\ndata: {{}}\n\n").as_bytes());
        }
    });
    let following = left_after_a_line(&environment, &["alerts", "follow"]);
    assert_eq!(following, Some(0));
    sending.join().unwrap();
}

#[test]
fn traces_that_can_go_nowhere_are_refused_in_a_line() {
    let mut environment = environment(&servers::redis(), "postgres://127.0.0.1:1/none");
    for (variable, wrong) in [
        ("FLASHSALE_OTLP_URL", "127.0.0.1:4318"),
        ("FLASHSALE_OTLP_RATIO", "2"),
        ("FLASHSALE_OTLP_RATIO", "all"),
    ] {
        environment.insert("FLASHSALE_OTLP_URL".to_owned(), "http://127.0.0.1:4318".to_owned());
        environment.insert(variable.to_owned(), wrong.to_owned());
        let refused = Ran::of(program(&environment, &["serve"]).output().unwrap()).ended(2);
        assert!(
            refused.stderr.contains(variable) && refused.stderr.lines().count() == 1,
            "{refused:?}"
        );
        environment.remove("FLASHSALE_OTLP_RATIO");
    }
}
