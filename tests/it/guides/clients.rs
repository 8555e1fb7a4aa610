//! docs/clients: one order for one wish to buy, also when answers are lost; no more requests once it is refused; an end when
//! time is up; and "no order" only if that is certain.

use super::front::{Front, Turn, pauses};
use crate::support::app::{TestApp, sale_with, token};
use flashsale::domain::code::Code;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// The program that runs each client, and its Debian package.
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
        .env("FLASHSALE_ADMISSION", "let-in")
        .env("FLASHSALE_PURCHASE_TOKEN", "for-this-key")
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
async fn every_client_has_one_order_also_when_answers_are_lost() {
    let app = &TestApp::shared().await;
    let trouble = &[
        Turn::Lost,
        Turn::Proxy(502),
        Turn::problem(503, "unavailable", 1),
        Turn::problem(429, "rate_limited", 1),
        Turn::Lost,
        Turn::Proxy(403),
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
        let shown = ["let-in", "for-this-key"].map(|it| Some(it.to_owned()));
        assert!(seen.iter().all(|it| it.shown == shown), "{}: {seen:?}", client.1);
        // The client waited as long as the server asked, and not by far more.
        let pauses = pauses(&seen);
        for pause in &pauses[2..4] {
            assert!(*pause >= Duration::from_secs(1), "{}: {pauses:?}", client.1);
        }
        // The same wish, given by its key, is the same order.
        let again = run(client, &app.url, &sale, 60, Some(&seen[0].key)).await;
        ended(client.1, &again, 0);
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(again["id"], order["id"], "{}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_asks_once_where_the_answer_is_no() {
    let app = TestApp::shared_api_only().await;
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
    let app = &TestApp::shared_api_only().await;
    let each = CLIENTS.map(|client| async move {
        let front = Front::of(app, &[Turn::problem(503, "unavailable", 1)]).await;
        let said = ended(client.1, &run(client, &front.url, "s", 8, Some("my-key")).await, 3);
        assert!(
            said.contains("503") && said.contains("with the key my-key"),
            "{}: {said}",
            client.1
        );
        let seen = front.seen();
        assert!((2..=8).contains(&seen.len()), "{}: {seen:?}", client.1);
        assert!(seen.iter().all(|it| it.key == "my-key"), "{}: {seen:?}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_lets_go_of_a_key_that_may_have_an_order() {
    let app = &TestApp::shared_api_only().await;
    let each = CLIENTS.map(|client| async move {
        let sale = &app.load_sale(&sale_with(&json!({}))).await;
        // The token expires while the first answer is on its way.
        let front = Front::of(app, &[Turn::Lost, Turn::problem(401, "unauthenticated", 0)]).await;
        let said = ended(client.1, &run(client, &front.url, sale, 20, None).await, 3);
        let seen = front.seen();
        assert_eq!(seen.len(), 2, "{}: {seen:?}", client.1);
        let goes_on = said.contains("unauthenticated") && said.contains(&format!("with the key {}", seen[1].key));
        assert!(goes_on, "{}: {said}", client.1);
        // With that key, and a valid token, it is the existing order.
        let orders = app.orders("ada", sale).await.ok(200).body;
        let order = run(client, &app.url, sale, 20, Some(&seen[0].key)).await;
        ended(client.1, &order, 0);
        let order: Value = serde_json::from_slice(&order.stdout).unwrap();
        let listed = orders["data"].as_array().unwrap();
        assert_eq!((listed.len(), &listed[0]["id"]), (1, &order["id"]), "{}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_drops_its_key_if_the_answer_says_that_it_has_no_order() {
    let app = &TestApp::shared_api_only().await;
    let refusals = [
        (409, "sold_out"),
        (429, "cooling_down"),
        (403, "a_code_of_a_later_version"),
    ];
    let each = CLIENTS.into_iter().flat_map(|client| {
        let both = refusals
            .into_iter()
            .flat_map(|refusal| [(refusal, true), (refusal, false)]);
        both.map(move |((status, code), is_certain)| async move {
            let at = format!("{} {code} {is_certain}", client.1);
            let problem = if is_certain {
                Turn::without_order(status, code, 0)
            } else {
                Turn::problem(status, code, 0)
            };
            // The first request of a new key has made no order, with any answer.
            let front = Front::of(app, std::slice::from_ref(&problem)).await;
            let said = ended(&at, &run(client, &front.url, "s", 30, None).await, 1);
            assert!(said.contains(code), "{at}: {said}");
            assert_eq!(front.seen().len(), 1, "{at}");
            // After a request with an unknown outcome, only a certain answer ends the purchase; and not while that request may
            // still be under way.
            let front = Front::of(app, &[Turn::Proxy(502), problem]).await;
            let code = if is_certain { 1 } else { 3 };
            let started = Instant::now();
            ended(&at, &run(client, &front.url, "s", 30, None).await, code);
            let seen = front.seen();
            if is_certain {
                // The client waits 2 s from when it sends the first request, which is after its start.
                let took = seen.last().unwrap().at - started;
                assert!(took > Duration::from_secs(2), "{at}: {took:?}");
            } else {
                assert_eq!(seen.len(), 2, "{at}");
            }
        })
    });
    // A few at a time: each is a program.
    futures_util::stream::iter(each)
        .buffer_unordered(8)
        .collect::<Vec<()>>()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_repeats_a_key_that_has_an_order_of_another_item() {
    let app = &TestApp::shared_api_only().await;
    let reused = Turn::problem(422, "idempotency_key_reused", 0);
    let each = CLIENTS.map(|client| {
        let reused = reused.clone();
        async move {
            let front = Front::of(app, &[Turn::Proxy(502), reused]).await;
            let said = ended(client.1, &run(client, &front.url, "s", 30, Some("my-key")).await, 1);
            assert!(
                said.contains("ask for the original one, or use a new key"),
                "{}: {said}",
                client.1
            );
            assert_eq!(front.seen().len(), 2, "{}", client.1);
        }
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_but_too_many_requests_is_answered_nothing_was_bought() {
    let app = &TestApp::shared_api_only().await;
    let each = CLIENTS.map(|client| async move {
        let turns = [Turn::problem(429, "rate_limited", 1)];
        let front = Front::of(app, &turns).await;
        let said = ended(client.1, &run(client, &front.url, "s", 8, None).await, 1);
        assert!(said.contains("nothing was bought"), "{}: {said}", client.1);
        assert!((2..=8).contains(&front.seen().len()), "{}", client.1);
        // An earlier request with the key may have made an order.
        let front = Front::of(app, &turns).await;
        let said = ended(client.1, &run(client, &front.url, "s", 1, Some("an-old-key")).await, 3);
        assert!(said.contains("with the key an-old-key"), "{}: {said}", client.1);
        // Unless the answer is certain that it has none.
        let front = Front::of(app, &[Turn::without_order(429, "rate_limited", 1)]).await;
        let said = ended(client.1, &run(client, &front.url, "s", 1, Some("an-old-key")).await, 1);
        assert!(said.contains("nothing was bought"), "{}: {said}", client.1);
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test]
async fn every_client_says_in_one_line_what_is_wrong_with_its_arguments() {
    for (program, file, _) in CLIENTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients").join(file);
        for (quantity, key, patience, named) in [
            ("two", "k", "1", "QUANTITY"),
            ("0", "k", "1", "QUANTITY"),
            ("1", "k ", "1", "KEY"),
            ("1", "k", "1m", "BUY_PATIENCE"),
        ] {
            let mut command = Command::new(program);
            command.arg(&path).args(["s", "phone", quantity, key]);
            command
                .env("FLASHSALE_TOKEN", "t")
                .env("FLASHSALE_URL", "http://127.0.0.1:1");
            let output = command.env("BUY_PATIENCE", patience).output().await.unwrap();
            let said = ended(file, &output, 2);
            assert!(said.contains(named) && said.lines().count() == 1, "{file}: {said}");
        }
    }
}

/// The codes of the guide's table, each with whether such a refusal is certain that the key has no order.
pub fn guide_of_codes() -> BTreeMap<String, String> {
    let guide = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/api.md")).unwrap();
    let mut known = BTreeMap::new();
    for row in guide.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let [_, codes, _, says @ ("yes" | "no" | "some"), ..] = cells[..] {
            let codes = codes.split(", ").map(|code| code.trim_matches('`').to_owned());
            known.extend(codes.map(|code| (code, says.to_owned())));
        }
    }
    known
}

#[test]
fn the_api_guide_says_of_every_code_what_a_client_does() {
    let guide = guide_of_codes();
    for code in Code::ALL.iter().map(|code| code.as_str()) {
        assert!(guide.contains_key(code), "docs/api.md has no row for {code}");
    }
}
