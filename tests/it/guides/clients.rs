//! docs/clients: one order for one wish to buy, whatever becomes of the answers; no more questions once it is refused; an
//! end when time is up.

use super::front::{Front, Turn, pauses};
use crate::support::app::{TestApp, sale_with, token};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::time::Duration;
use tokio::process::Command;

/// What runs each client, and the Debian package that has it.
const CLIENTS: [(&str, &str, &str); 3] = [
    ("sh", "buy.sh", "curl"),
    ("python3", "buy.py", "python3"),
    ("node", "buy.mjs", "nodejs"),
];

/// Lets a client buy one phone for Ada.
async fn run(client: (&str, &str, &str), url: &str, sale: &str, patience: u32, key: Option<&str>) -> Output {
    let (program, file, package) = client;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(file);
    let mut command = Command::new(program);
    command
        .arg(path)
        .args([sale, "phone", "1"])
        .args(key)
        .env("FLASHSALE_URL", url)
        .env("FLASHSALE_TOKEN", token("ada"))
        .env("BUY_PATIENCE", patience.to_string())
        // Not by a proxy that the environment may name.
        .env("no_proxy", "127.0.0.1")
        .kill_on_drop(true);
    let output = command.output().await;
    let output =
        output.unwrap_or_else(|error| panic!("{program}: {error}; apt-get install --no-install-recommends {package}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !said.contains("not found"),
        "{said}; apt-get install --no-install-recommends {package}"
    );
    output
}

#[track_caller]
fn ended(client: &str, output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{client}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_has_one_order_whatever_becomes_of_the_answers() {
    let app = &TestApp::start().await;
    let trouble = &[
        Turn::Lost,
        Turn::BadGateway,
        Turn::Problem(503, 1),
        Turn::Problem(429, 1),
        Turn::Lost,
        Turn::Through,
    ];
    let each = CLIENTS.map(|client| async move {
        let sale = app.load_sale(&sale_with(&json!({}))).await;
        let front = Front::of(app, trouble).await;
        let output = run(client, &front.url, &sale, 60, None).await;
        let said = ended(client.1, &output, 0);
        let order: Value = serde_json::from_slice(&output.stdout).unwrap();
        let orders = app.orders("ada", &sale).await.ok(200).body;
        let orders = orders["data"].as_array().unwrap();
        assert_eq!(
            (orders.len(), &orders[0]["id"]),
            (1, &order["id"]),
            "{}: {orders:?}",
            client.1
        );

        let seen = front.seen();
        assert_eq!(seen.len(), trouble.len(), "{}: {seen:?}", client.1);
        assert!(
            seen.iter().all(|it| it.key == seen[0].key && it.key.len() == 36),
            "{seen:?}"
        );
        assert!(said.contains(&seen[0].key), "{}: {said}", client.1);
        // What the server asked to wait was waited, and not by far more.
        let pauses = pauses(&seen);
        for pause in &pauses[2..4] {
            assert!(*pause >= Duration::from_secs(1), "{}: {pauses:?}", client.1);
        }
        // The same wish, told by its key, is the same order.
        let again = run(client, &app.url, &sale, 60, Some(&seen[0].key)).await;
        ended(client.1, &again, 0);
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(again["id"], order["id"], "{}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_asks_once_where_the_answer_is_no() {
    let app = TestApp::start_api_only().await;
    let sale = app.load_sale(&sale_with(&json!({"stock": 0}))).await;
    for client in CLIENTS {
        let front = Front::of(&app, &[Turn::Through]).await;
        let said = ended(client.1, &run(client, &front.url, &sale, 60, None).await, 1);
        assert!(said.contains("sold_out"), "{}: {said}", client.1);
        assert_eq!(front.seen().len(), 1, "{}", client.1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_ends_when_its_time_is_up_and_says_with_which_key_to_go_on() {
    let app = &TestApp::start_api_only().await;
    let each = CLIENTS.map(|client| async move {
        let front = Front::of(app, &[Turn::Problem(503, 1)]).await;
        let said = ended(client.1, &run(client, &front.url, "s", 3, Some("my-key")).await, 3);
        assert!(
            said.contains("503") && said.contains("with the key my-key"),
            "{}: {said}",
            client.1
        );
        let seen = front.seen();
        assert!((2..=3).contains(&seen.len()), "{}: {seen:?}", client.1);
        assert!(seen.iter().all(|it| it.key == "my-key"), "{}: {seen:?}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[test]
fn the_api_guide_says_of_every_code_what_a_client_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(root.join("src/http/problem.rs")).unwrap();
    let guide = std::fs::read_to_string(root.join("docs/api.md")).unwrap();
    let rows = table.lines().skip_while(|line| *line != "codes! {").skip(1);
    let codes: Vec<&str> = rows
        .take_while(|line| *line != "}")
        .filter_map(|row| row.split('"').nth(1))
        .collect();
    assert!(codes.len() > 15, "{codes:?}");
    for code in codes {
        assert!(
            guide
                .lines()
                .any(|line| line.starts_with('|') && line.contains(&format!("`{code}`"))),
            "docs/api.md has no row for {code}"
        );
    }
}
