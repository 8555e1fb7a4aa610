//! The operator's commands, end to end against an instance.

use crate::support::app::{Ran, TestApp, Who, program, sale, sale_with, token as shopper_token};
use crate::support::poll;
use serde_json::json;
use std::io::ErrorKind;
use std::net::TcpListener;

const FILE: &str = r#"
name = "Launch"
starts_at = "now"
ends_at = "+1h"
shards = 3

[[items]]
sku = "phone"
name = "A phone"
price_minor = 49900
currency = "EUR"
stock = 10
per_user_limit = 2
"#;

#[tokio::test]
async fn a_sale_is_created_loaded_sold_paid_and_audited_by_commands() {
    let app = TestApp::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.toml");
    std::fs::write(&file, FILE).unwrap();
    let created = app.run(&["sale", "create", file.to_str().unwrap(), "--json"]).ended(0);
    let created = created.json();
    assert_eq!((&created["state"], &created["shards"]), (&json!("draft"), &json!(3)));
    let id = created["id"].as_str().unwrap();

    let loaded = app.run(&["sale", "preload", id, "--json"]).ended(0).json();
    assert_eq!(loaded["shards"].as_array().unwrap().len(), 3);
    let loaded = app.run(&["sale", "preload", id]).ended(0);
    assert!(
        loaded.stdout.starts_with("already loaded; free now: phone 10\n"),
        "{loaded:?}"
    );

    for (verb, state) in [("pause", "paused"), ("resume", "open")] {
        let turned = app.run(&["sale", verb, id]).ended(0);
        assert_eq!(turned.stdout, format!("sale {id}, Launch, is {state}\n"));
    }
    let token = app.run(&["token", "--user", "ada", "--ttl", "1h"]).ended(0);
    let token = token.stdout.trim();
    let request = app
        .request(
            reqwest::Method::POST,
            Who::Bearer(token),
            &format!("/v1/sales/{id}/orders"),
        )
        .header("Idempotency-Key", "k")
        .json(&json!({"sku": "phone", "quantity": 2}));
    let order = app.send(request).await.ok(201).id();

    // A token is not an argument, which everybody on the machine can read.
    app.run(&["pay", &order, "--token", "t"]).ended(2);
    app.run(&["pay", &order, "--token"]).ended(2);
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_URL".to_owned(), app.url.clone());
    environment.insert("FLASHSALE_TOKEN".to_owned(), shopper_token("eve"));
    let mut pay = program(&environment, &["pay", &order, "--token"]);
    let refused = Ran::of(pay.output().unwrap()).ended(1);
    assert!(refused.stderr.contains("not_found"), "not hers: {refused:?}");
    let paid = app.run(&["pay", &order, "--payment-id", "pay_1", "--json"]).ended(0);
    assert_eq!(paid.json()["outcome"], "applied");
    let paid = app.run(&["pay", &order, "--payment-id", "pay_1", "--json"]).ended(0);
    assert_eq!(paid.json()["outcome"], "duplicate");
    // By its number, as the shop's page shows it.
    let paid = app.run(&["pay", &order[order.len() - 8..]]).ended(1);
    assert!(paid.stdout.contains("refund_due"), "{paid:?}");
    assert!(paid.stderr.contains("has been paid before"), "{paid:?}");
    let paid = app.run(&["pay", "@latest", "--amount", "1"]).ended(1);
    assert!(
        paid.stderr
            .contains("the order costs 998.00 EUR and 0.01 EUR were paid"),
        "{paid:?}"
    );

    let restocked = app
        .run(&["sale", "restock", id, "phone", "5", "--key", "r1", "--json"])
        .ended(0);
    assert_eq!(restocked.json()["items"][0]["stock"], 15);
    app.run(&["sale", "restock", id, "phone", "5", "--key", "r1"]).ended(0);
    app.run(&["sale", "restock", id, "phone", "-3"]).ended(0);
    let refused = app.run(&["sale", "restock", id, "phone", "-300"]).ended(1);
    assert!(
        refused.stderr.contains("insufficient_stock") && refused.stderr.contains("free units: phone "),
        "{refused:?}"
    );
    let refused = app.run(&["sale", "restock", id, "pad", "5"]).ended(1);
    assert!(
        refused.stderr.contains("no such sku") && refused.stderr.contains("free units: phone "),
        "{refused:?}"
    );
    let refused = app.run(&["sale", "restock", id, "phone", "many"]).ended(2);
    assert!(
        refused.stderr.contains("a whole number such as 50 or -20"),
        "{refused:?}"
    );
    let refused = app.run(&["sale", "resume", id]).ended(1);
    assert!(
        refused
            .stderr
            .ends_with("the sale is open; possible now: pause, close\n"),
        "{refused:?}"
    );
    app.wait_for_units(id, [10, 0, 2]).await;

    let audit = app.run(&["audit", id, "--json"]).ended(0).json();
    assert_eq!(audit["balanced"], true);
    let audit = app.run(&["audit", id]).ended(0);
    assert!(audit.stdout.contains("balanced"), "{audit:?}");
    let rebuilt = app.run(&["rebuild", id, "--json"]).ended(0).json();
    assert_eq!((&rebuilt["shards"], &rebuilt["orders"]), (&json!(3), &json!(1)));
    let rebuilt = app.run(&["rebuild", id]).ended(0);
    assert_eq!(
        rebuilt.stdout,
        "rebuilt 3 shards with 1 orders; 0 orders that Redis had accepted are lost\n"
    );
    app.wait_for_units(id, [10, 0, 2]).await;
    let closed = app.run(&["sale", "close", id, "--json"]).ended(0).json();
    assert_eq!(closed["state"], "closed");
    let refused = app.run(&["sale", "open", id]).ended(1);
    assert!(refused.stderr.contains("invalid_transition"), "{refused:?}");
    // A repeated preload may come late; it answers the present state of the sale.
    let loaded = app.run(&["sale", "preload", id]).ended(0);
    assert!(
        loaded
            .stdout
            .ends_with(&format!("sale {id} is closed: it sells no more\n")),
        "{loaded:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_buys_by_a_command_through_the_guards_of_the_sale() {
    let app = TestApp::shared().await;
    let open = app.load_sale(&sale()).await;
    let bought = app
        .run(&["buy", &open, "--user", "ada", "--key", "k", "--json"])
        .ended(0)
        .json();
    let again = app
        .run(&["buy", &open, "--user", "ada", "--key", "k", "--json"])
        .ended(0)
        .json();
    assert_eq!((&bought["id"], &bought["state"]), (&again["id"], &json!("reserved")));
    let order = bought["id"].as_str().unwrap();
    let said = app.run(&["buy", &open, "--user", "bob"]).ended(0);
    assert!(
        said.stdout.contains("is reserved: 1 x ") && said.stdout.contains("next: flashsale pay "),
        "{said:?}"
    );
    assert!(
        said.stderr.starts_with("key ") && said.stderr.lines().count() == 1,
        "{said:?}"
    );
    let refused = app.run(&["buy", &open, "pad", "--user", "bob"]).ended(1);
    assert!(refused.stderr.contains("the sale's items: "), "{refused:?}");
    let refused = app.run(&["buy", &open, "pad", "--user", "bob", "--json"]).ended(1);
    assert_eq!(refused.json()["key_has_order"], false);
    app.run(&["pay", order]).ended(0);

    let guards = json!({"waiting_room": true, "purchase_token": true, "challenge": "proof_of_work", "proof_cost": 10});
    let guarded = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    app.buy("ada", &guarded, "k", 1).await.no(403, "admission_required");
    // The ids of both sales may begin alike, so the beginning is all but the last character.
    let beginning = &guarded[..guarded.len() - 1];
    let bought = app.run(&["buy", beginning, "--user", "ada", "--json"]).ended(0).json();
    assert_eq!(bought["sale_id"], guarded.as_str());

    let captcha = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 0});
    let captcha = app.load_sale(&sale_with(&json!({"guards": captcha}))).await;
    let refused = app.run(&["buy", &captcha, "--user", "ada"]).ended(1);
    assert!(refused.stderr.contains("buy on the sale's page"), "{refused:?}");
    let closed = app.operate(&open, "close").await.ok(200);
    assert_eq!(closed.body["state"], "closed");
    let refused = app.run(&["buy", &open, "--user", "eve"]).ended(1);
    assert!(refused.stderr.contains("sale_not_open"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_sale_to_buy_from_is_the_newest_open_one() {
    let app = TestApp::start().await;
    let open = app.load_sale(&sale()).await;
    let closed = app.load_sale(&sale()).await;
    app.operate(&closed, "close").await.ok(200);
    poll::within(poll::PATIENCE, "shoppers see that it is closed", async || {
        let sales = app.get(Who::Nobody, "/v1/sales").await.ok(200).body;
        sales["data"][0]["state"] == "closed"
    })
    .await;
    let bought = app.run(&["buy", "@latest", "--user", "ada", "--json"]).ended(0);
    assert_eq!(bought.json()["sale_id"], open.as_str());
    assert!(
        bought.stderr.contains(&format!("the sale {open}, A sale, is open")),
        "{bought:?}"
    );
}

#[tokio::test]
async fn a_draft_whose_end_has_passed_is_named_and_not_preloaded() {
    let app = TestApp::shared_api_only().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.toml");
    let past = FILE
        .replace("\"now\"", "2020-01-01T00:00:00Z")
        .replace("\"+1h\"", "2020-01-02T00:00:00Z");
    std::fs::write(&file, past).unwrap();
    let file = file.to_str().unwrap();
    let created = app.run(&["sale", "create", file, "-q"]).ended(0);
    assert!(created.stderr.contains("warning: the end of this draft"), "{created:?}");
    let id = created.stdout.trim();
    let refused = app.run(&["sale", "preload", id]).ended(1);
    assert!(refused.stderr.contains("has passed"), "{refused:?}");
    assert_eq!(app.admin(id, "").await.ok(200).body["state"], "draft");
    std::fs::write(file, FILE).unwrap();
    let changed = app.run(&["sale", "change", id, file]).ended(0);
    assert_eq!(changed.stderr, "");
    app.run(&["sale", "preload", id]).ended(0);
}

#[tokio::test]
async fn what_a_draft_cannot_do_is_said_by_the_name_of_a_command() {
    let app = TestApp::shared_api_only().await;
    let id = app.create_sale(&sale()).await;
    for (line, said) in [
        (&["amend", &id, "--name", "Spring"][..], "`flashsale sale change "),
        (&["close", &id], "the sale is a draft: preload it first"),
        (&["resume", &id], "the sale is a draft: preload it first"),
        (&["restock", &id, "phone", "5"], "the sale is a draft: preload it first"),
    ] {
        let line: Vec<&str> = ["sale"].iter().chain(line).copied().collect();
        let refused = app.run(&line).ended(1);
        assert!(refused.stderr.contains(said), "{line:?}: {refused:?}");
    }
    let refused = app.run(&["buy", &id, "--user", "ada", "--quantity", "-5"]).ended(2);
    assert!(refused.stderr.contains("write a whole number from 1 to"), "{refused:?}");
}

#[tokio::test]
async fn units_that_are_added_to_a_closed_sale_are_warned_of() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let restock = |quantity: &str, said: &str, is_warned: bool| {
        let ran = app.run(&["sale", "restock", &id, "phone", quantity]).ended(0);
        assert_eq!(ran.stdout, format!("phone: {said}\n"));
        assert_eq!(ran.stderr.contains("warning: the sale is closed"), is_warned, "{ran:?}");
    };
    restock("5", "added 5", false);
    app.operate(&id, "close").await.ok(200);
    restock("5", "added 5", true);
    restock("-5", "taken back 5", false);
}

#[tokio::test]
async fn sales_are_listed_and_shown() {
    let app = TestApp::start_api_only().await;
    let empty = app.run(&["sale", "list", "--json"]).ended(0).json();
    assert_eq!(empty, json!([]));
    let id = app.load_sale(&sale()).await;
    let listed = app.run(&["sale", "list", "--json"]).ended(0).json();
    assert_eq!(listed[0]["id"], *id);
    for args in [&["sale", "list"][..], &["sale", "show", &id]] {
        let shown = app.run(args).ended(0);
        assert!(
            shown.stdout.contains(&id) && shown.stdout.contains("A sale"),
            "{shown:?}"
        );
    }
    let shown = app.run(&["sale", "show", &id, "--json"]).ended(0).json();
    assert_eq!(shown["state"], "open");
    let text = app.run(&["sale", "show", &id]).ended(0).stdout;
    let version = text.lines().find_map(|line| line.strip_prefix("version"));
    assert_eq!(shown["version"].as_str(), version.map(str::trim));
    assert!(version.is_some(), "{text}");
    app.run(&["sale", "open", &id, "--json"]).ended(0);
}

#[tokio::test]
async fn money_due_is_listed_until_paid_back_and_the_audit_log_says_by_whom() {
    let mut app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    assert_eq!(app.pay("pay_2", &order.body).await, "refund_due");
    assert_eq!(app.pay_with("-- odd/pay&3", "none", 5, "EUR").await, "unmatched");
    let ids = |app: &TestApp, args: &[&str]| -> Vec<String> {
        let args: Vec<&str> = ["refunds", "list", "--json"].iter().chain(args).copied().collect();
        let listed = app.run(&args).ended(0).json();
        let ids = listed.as_array().unwrap().iter();
        ids.map(|it| it["payment_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&app, &[]), ["-- odd/pay&3", "pay_2"]);
    assert_eq!(ids(&app, &["--settled"]), [""; 0]);
    for of_order in [["--sale", &id], ["--user", "ada"]] {
        assert_eq!(ids(&app, &of_order), ["pay_2"]);
    }
    assert_eq!(ids(&app, &["--from", "2999-01-01T00:00:00Z"]), [""; 0]);
    assert_eq!(ids(&app, &["--to", "2999-01-01T00:00:00Z"]).len(), 2);
    let listed = app.run(&["refunds", "list"]).ended(0).stdout;
    for part in [
        "pay_2",
        "499.00 EUR",
        "the order was paid already",
        "there is no such order",
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    app.environment.insert("USER".to_owned(), "root".to_owned());
    let settled = app.run(&["refunds", "settle", "pay_2", "--reference", "re_1"]).ended(0);
    assert_eq!(settled.stdout, "pay_2 was paid back as re_1\n");
    app.environment
        .insert("FLASHSALE_OPERATOR".to_owned(), "Zoë".to_owned());
    let args = [
        "refunds",
        "settle",
        "--reference",
        "re_2",
        "--json",
        "--",
        "-- odd/pay&3",
    ];
    let settled = app.run(&args).ended(0).json();
    assert_eq!(
        (&settled["settled_reference"], &settled["outcome"]),
        (&json!("re_2"), &json!("unmatched"))
    );
    assert_eq!(app.run(&args).ended(0).json(), settled, "saying it again is no error");
    assert_eq!(ids(&app, &[]), [""; 0]);
    assert_eq!(ids(&app, &["--settled"]), ["-- odd/pay&3", "pay_2"]);
    assert!(
        app.run(&["refunds", "list", "--settled"])
            .ended(0)
            .stdout
            .contains("re_2")
    );
    for (payment, code) in [
        ("pay_1", "invalid_transition"),
        ("pay_2", "invalid_transition"),
        ("pay_9", "not_found"),
    ] {
        let refused = app.run(&["refunds", "settle", payment, "--reference", "re_9"]).ended(1);
        assert!(
            refused.stderr.contains(code) && refused.stderr.lines().count() == 1,
            "{refused:?}"
        );
    }
    let wrong = app.run(&["refunds", "settle", "pay_2", "--reference", " "]).ended(2);
    assert!(wrong.stderr.contains("1 to 200 characters"), "{wrong:?}");
    app.run(&["refunds", "settle", "pay_2"]).ended(2);
    let named = app.run(&["refunds", "settle", "pay_2", "--reference", "re_1", "--as", "Ada"]);
    named.ended(0);
    let actions = app.get(Who::Operator, "/v1/admin/actions?limit=100").await.ok(200);
    let all = actions.body["data"].as_array().unwrap();
    let settles = all.iter().filter(|action| action["action"] == "payments.settle");
    let details: Vec<_> = settles
        .map(|it| (it["operator"].as_str().unwrap(), it["outcome"].as_str().unwrap()))
        .collect();
    let expected = [
        ("Ada", "done"),
        ("Zoë", "not_found"),
        ("Zoë", "invalid_transition"),
        ("Zoë", "invalid_transition"),
        ("Zoë", "done"),
        ("Zoë", "done"),
        ("root", "done"),
    ];
    assert_eq!(details, expected);
    for wrong in [" ", "a\u{1b}[2J", &"x".repeat(65)] {
        app.environment
            .insert("FLASHSALE_OPERATOR".to_owned(), wrong.to_owned());
        let refused = app.run(&["sale", "pause", &id]).ended(2);
        assert!(
            refused.stderr.contains("FLASHSALE_OPERATOR") && refused.stderr.lines().count() == 1,
            "{refused:?}"
        );
    }
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "open");
}

#[tokio::test]
async fn an_operator_without_a_login_name_is_the_user_of_the_process() {
    let mut app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    app.environment.remove("USER");
    // As compose files set it.
    app.environment.insert("FLASHSALE_OPERATOR".to_owned(), String::new());
    app.run(&["sale", "pause", &id]).ended(0);
    app.environment.remove("FLASHSALE_OPERATOR");
    let refused = app.run(&["sale", "resume", &id, "--as", ""]).ended(2);
    assert!(
        refused.stderr.contains("--as or FLASHSALE_OPERATOR must have"),
        "{refused:?}"
    );
    let last = app.get(Who::Operator, "/v1/admin/actions?limit=1").await.ok(200).body;
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap();
    let name = user.map(|user| user.name);
    assert_eq!(last["data"][0]["action"], "sales.pause");
    assert_eq!(last["data"][0]["operator"].as_str(), name.as_deref());
}

#[tokio::test]
async fn something_missing_is_exit_code_1_and_a_wrong_file_is_2() {
    let app = TestApp::start_api_only().await;
    let stranger = uuid::Uuid::new_v4().to_string();
    for args in [
        &["sale", "show", &stranger][..],
        &["sale", "preload", &stranger],
        &["audit", &stranger],
        &["rebuild", &stranger],
        &["pay", &stranger],
    ] {
        let ran = app.run(args).ended(1);
        assert!(ran.stderr.contains("not_found") && ran.stdout.is_empty(), "{ran:?}");
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        assert_eq!(app.run(&args).ended(1).json()["code"], "not_found");
    }
    let shown = app.run(&["sale", "show", &stranger]).ended(1);
    assert!(
        shown
            .stderr
            .ends_with("there is no such sale; see `flashsale sale list`\n"),
        "{shown:?}"
    );
    for args in [
        &["sale", "list", "--search", ""][..],
        &["ban", "add", "ada", "--reason", ""],
    ] {
        let ran = app.run(args).ended(2);
        assert!(ran.stderr.contains("invalid_request"), "{ran:?}");
    }
    let unmatched = app
        .run(&["pay", &stranger, "--amount", "1", "--currency", "EUR"])
        .ended(1);
    assert!(unmatched.stdout.contains("unmatched"), "{unmatched:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sale.toml");
    std::fs::write(&file, FILE.replace("stock = 10", "stok = 10")).unwrap();
    let ran = app.run(&["sale", "create", file.to_str().unwrap()]).ended(2);
    assert!(ran.stderr.contains("sale.toml:12"), "{ran:?}");
    // An error that only the server finds has its line, too.
    let guards = format!("{FILE}\n[guards]\nchallenge = \"captcha\"\nholds_max = ");
    for (text, line, message) in [
        (
            FILE.replace("shards = 3", "shards = 300"),
            5,
            "shards must be 1 to 256, not 300",
        ),
        (
            FILE.replace("stock = 10", "stock = -5"),
            12,
            "items[0].stock must be 0 to",
        ),
        (FILE.replace("\"phone\"", "\"a phone\""), 8, "items[0].sku: "),
        (format!("{guards}-1"), 17, "guards: holds_max must be 0 to"),
        (format!("{guards}100001"), 17, "guards: holds_max must be 0 to"),
        (format!("{guards}1"), 16, "guards: challenge needs purchase_token"),
        (
            format!("{guards}1\ncolour = 1"),
            18,
            "guards: colour is unknown; known are ",
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        let ran = app.run(&["sale", "create", file.to_str().unwrap()]).ended(2);
        let start = format!("flashsale: {}:{line}: {message}", file.display());
        assert!(
            ran.stderr.starts_with(&start) && ran.stderr.lines().count() == 1,
            "{text}: {ran:?}"
        );
    }
    let listed = app.run(&["sale", "list", "--json"]).ended(0).json();
    assert_eq!(listed, json!([]));
}

#[tokio::test]
async fn a_server_that_is_away_and_a_key_that_is_wrong_are_exit_code_1() {
    let mut app = TestApp::start_api_only().await;
    let right = app
        .environment
        .insert("FLASHSALE_ADMIN_KEY".into(), "not-the-right-key-1".into());
    let ran = app.run(&["sale", "list"]).ended(1);
    assert!(
        ran.stderr.contains("unauthenticated") && ran.stderr.contains("FLASHSALE_ADMIN_KEY is not the one"),
        "{ran:?}"
    );
    app.environment.insert("FLASHSALE_ADMIN_KEY".into(), right.unwrap());
    app.run(&["sale", "list"]).ended(0);

    // A provider and a shopper who are refused read which of their own secrets is wrong.
    let order = uuid::Uuid::new_v4().to_string();
    for (name, wrong, args) in [
        (
            "FLASHSALE_WEBHOOK_SECRET",
            "whsec_bm90IHRoZSByaWdodCBzZWNyZXQgb2YgdGhlbQ==",
            &["pay", &order, "--amount", "1", "--currency", "EUR"][..],
        ),
        (
            "FLASHSALE_JWT_SECRET",
            "not-the-right-secret-of-32-bytes-",
            &["pay", &order, "--user", "ada"],
        ),
    ] {
        let right = app.environment.insert(name.into(), wrong.into());
        let ran = app.run(args).ended(1);
        assert!(ran.stderr.contains(&format!("{name} is not the one")), "{ran:?}");
        app.environment.insert(name.into(), right.unwrap());
    }
    app.instance.kill();
    app.run(&["sale", "list"]).ended(1);
}

#[tokio::test]
async fn an_address_that_is_nearly_right_gets_a_hint() {
    let app = TestApp::start_api_only().await;
    for (address, hint) in [
        (format!("{}/console", app.url), "has the path /console: leave it out"),
        (
            app.url.replace("http://", "https://"),
            "does not speak HTTPS: write http://",
        ),
    ] {
        let ran = app.run(&["sale", "list", "--url", &address]).ended(1);
        assert!(ran.stderr.contains(hint) && ran.stderr.lines().count() == 1, "{ran:?}");
    }
}

#[tokio::test]
async fn a_key_that_goes_unencrypted_is_warned_of_and_goes_through_no_proxy() {
    let app = TestApp::start_api_only().await;
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let mut environment = app.environment.clone();
    let by = format!("http://{}", proxy.local_addr().unwrap());
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        environment.insert(name.to_owned(), by.clone());
    }
    let mut list = |url: &str| {
        environment.insert("FLASHSALE_URL".to_owned(), url.to_owned());
        Ran::of(program(&environment, &["sale", "list"]).output().unwrap())
    };
    let listed = list(&app.url).ended(0);
    assert!(!listed.stderr.contains("unencrypted"), "{listed:?}");
    // No such host exists, so nothing is sent.
    let elsewhere = list("http://shop.invalid").ended(1);
    assert!(elsewhere.stderr.contains("unencrypted"), "{elsewhere:?}");
    let asked = proxy.accept().map(|_| ()).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_token_ends_when_it_says() {
    let app = TestApp::start_api_only().await;
    let issued = app
        .run(&["token", "--user", "ada", "--ttl", "1s", "--json"])
        .ended(0)
        .json();
    let token = issued["token"].as_str().unwrap();
    let path = format!("/v1/orders?sale_id={}", app.load_sale(&sale()).await);
    poll::answer("the token has ended", || async {
        let answer = app.get(Who::Bearer(token), &path).await;
        (answer.status == 401).then_some(())
    })
    .await;
}
