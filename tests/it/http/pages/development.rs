//! Development mode.

use crate::support::app::{Answer, Client, JWT_SECRET, TestApp, Who, program, sale};
use crate::support::poll;
use crate::support::window::{development, development_key};
use reqwest::Method;
use serde_json::json;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

/// Where a request shows the key of development mode.
const KEY: &str = "X-Development-Key";

async fn sign_in(client: &Client, user: &str) -> Answer {
    let request = client.request(Method::POST, Who::Nobody, "/dev/token");
    let request = request.header(KEY, development_key());
    client.send(request.json(&json!({"user": user}))).await
}

async fn pay(client: &Client, who: Who<'_>, order: &str) -> Answer {
    let request = client.request(Method::POST, who, "/dev/pay");
    let request = request.header(KEY, development_key());
    client.send(request.json(&json!({"order_id": order}))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn development_mode_signs_in_and_pays_through_the_providers_door() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let token = sign_in(&app, "ada").await.ok(201);
    let ada = Who::Bearer(token.text("token"));
    assert!(
        app.get(Who::Nobody, "/")
            .await
            .ok(200)
            .text
            .contains("data-development=\"yes\"")
    );
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    pay(&app, Who::Nobody, &order).await.no(401, "unauthenticated");
    pay(&app, Who::Shopper("bob"), &order).await.no(404, "not_found");
    pay(&app, ada, "nonsense").await.no(404, "not_found");
    assert_eq!(app.payments_recorded().await, 0);
    assert_eq!(pay(&app, ada, &order).await.ok(200).text("outcome"), "applied");
    assert_eq!(pay(&app, ada, &order).await.ok(200).text("outcome"), "duplicate");
    assert_eq!(app.payments_recorded().await, 1);
    app.wait_for_order("ada", &order, "paid").await;
    for wrong in ["", &"x".repeat(129)] {
        sign_in(&app, wrong).await.no(400, "invalid_request");
    }
    for (method, path, status) in [(Method::GET, "/dev/token", 405), (Method::POST, "/dev/nothing", 404)] {
        let request = app.request(method, Who::Nobody, path).header(KEY, development_key());
        assert_eq!(app.send(request).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn development_mode_is_for_those_who_have_its_key() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let key = development_key();
    for wrong in [None, Some(""), Some(&key[1..]), Some(JWT_SECRET), Some("x")] {
        for (path, body) in [
            ("/dev/token", json!({"user": "ada"})),
            ("/dev/pay", json!({"order_id": order})),
            ("/dev/nothing", json!({})),
        ] {
            let request = app.request(Method::POST, Who::Shopper("ada"), path).json(&body);
            let request = match wrong {
                Some(wrong) => request.header(KEY, wrong),
                None => request,
            };
            app.send(request).await.no(404, "not_found");
        }
    }
    assert_eq!(app.payments_recorded().await, 0);
    assert!(!app.log().contains(&key), "the log is for others");
}

#[tokio::test]
async fn development_mode_prints_its_link_and_that_it_is_on() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_DEVELOPMENT".to_owned(), "true".to_owned());
    let mut serving = program(&environment, &["serve"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut printed = BufReader::new(serving.stdout.take().unwrap());
    let read = printed.read_line(&mut line);
    serving.kill().unwrap();
    serving.wait().unwrap();
    read.unwrap();
    assert!(line.starts_with("Development mode: http://127.0.0.1:"), "{line}");
    assert!(
        line.ends_with(&format!("/#development={}\n", development_key())),
        "{line}"
    );
}

/// A file stands in for the journal: the program knows it by its device and number.
#[tokio::test]
async fn the_link_of_development_mode_is_not_written_to_the_journal() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    let journal = tempfile::NamedTempFile::new().unwrap();
    let file = journal.as_file().metadata().unwrap();
    environment.insert("FLASHSALE_DEVELOPMENT".to_owned(), "true".to_owned());
    environment.insert("JOURNAL_STREAM".to_owned(), format!("{}:{}", file.dev(), file.ino()));
    let mut serving = program(&environment, &["serve"])
        .stdout(journal.reopen().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let line = poll::answer("something is printed", || async {
        let printed = std::fs::read_to_string(journal.path()).unwrap();
        printed.ends_with('\n').then_some(printed)
    })
    .await;
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert!(line.starts_with("Development mode: its link is not written"), "{line}");
    assert!(!line.contains(&development_key()), "{line}");
}

#[tokio::test]
async fn without_development_mode_none_of_it_exists() {
    for variables in [&[][..], &[("FLASHSALE_DEVELOPMENT", "false")]] {
        let app = TestApp::with("api", variables).await;
        let id = app.load_sale(&sale()).await;
        let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
        sign_in(&app, "ada").await.no(404, "not_found");
        pay(&app, Who::Shopper("ada"), &order).await.no(404, "not_found");
        app.get(Who::Nobody, "/dev/token").await.no(404, "not_found");
        assert!(
            !app.get(Who::Nobody, "/")
                .await
                .text
                .contains("data-development=\"yes\"")
        );
    }
}

#[tokio::test]
async fn development_mode_is_refused_where_others_can_ask() {
    let app = TestApp::start_api_only().await;
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_DEVELOPMENT".to_owned(), "true".to_owned());
    environment.insert("FLASHSALE_LISTEN".to_owned(), "0.0.0.0:0".to_owned());
    let refused = program(&environment, &["serve"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("FLASHSALE_DEVELOPMENT is true") && said.contains("0.0.0.0:0"),
        "{said}"
    );
    assert!(!said.contains(JWT_SECRET) && said.trim().lines().count() == 1, "{said}");
}
