//! The report of a whole sale: complete for everybody, whether or not an operator watched.

use super::export;
use crate::support::app::{Answer, Client, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use std::time::Duration;

/// The answers of a report, as soon as there are so many.
async fn reported(app: &TestApp, path: &str, answers: u64) -> Answer {
    poll::answer("all purchases are in the report", || async {
        let report = app.get(Who::Operator, path).await.ok(200);
        let counts = report.body["answers"].as_object().unwrap().values();
        (counts.filter_map(Value::as_u64).sum::<u64>() == answers).then_some(report)
    })
    .await
}

#[tokio::test]
async fn units_that_an_operator_adds_or_takes_back_change_no_moment_at_which_an_item_sold_out() {
    let app = TestApp::start().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 4, "per_user_limit": 10})))
        .await;
    let path = format!("/v1/admin/sales/{id}/report");
    let sold_out = async |orders: u64| {
        let is_stored = |report: &Answer| report.body["orders"]["reserved"] == orders;
        let report = poll::answer("the orders are in the ledger", || async {
            Some(app.get(Who::Operator, &path).await.ok(200)).filter(is_stored)
        });
        report.await.body["items"][0]["sold_out_after_seconds"].as_f64()
    };
    app.buy("ada", &id, "k", 2).await.ok(201);
    assert_eq!(sold_out(1).await, None);
    app.buy("bob", &id, "k", 1).await.ok(201);
    // One of four was left.
    app.restock(&id, "back", "phone", -1).await.ok(200);
    let then = sold_out(2).await.expect("the withdrawal left none");
    let added = app.restock(&id, "more", "phone", 5).await.ok(200);
    assert_eq!(sold_out(2).await, Some(then), "{added:?}");
    app.restock(&id, "back again", "phone", -3).await.ok(200);
    app.buy("cyd", &id, "k", 2).await.ok(201);
    assert_eq!(sold_out(3).await, Some(then), "the first time");
}

#[tokio::test]
async fn a_report_has_all_that_two_instances_answered_though_nobody_watched() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let sale = json!({"stock": 3, "per_user_limit": 1, "shards": 1});
    let id = app.load_sale(&sale_with(&sale)).await;
    let path = format!("/v1/admin/sales/{id}/report");
    let empty = app.get(Who::Operator, &path).await.ok(200);
    assert_eq!(empty.body["course"], json!([]));
    // Postgres has no such time.
    let long_ago = format!("{path}?from=-9999-01-01T00:00:00Z&to=-9998-01-01T00:00:00Z");
    app.get(Who::Operator, &long_ago).await.ok(200);
    assert_eq!(
        (&empty.body["unpaid_share"], &empty.body["latency_ms"]["p50"]),
        (&Value::Null, &Value::Null)
    );

    let paid = app.buy("ada", &id, "k", 1).await.ok(201);
    let cancelled = other.buy("bob", &id, "k", 1).await.ok(201);
    other.buy("bob", &id, "k", 1).await.ok(200);
    app.buy("cyd", &id, "k", 1).await.ok(201);
    app.buy("dan", &id, "k", 1).await.no(409, "sold_out");
    other.buy("eve", &id, "k", 1).await.no(409, "sold_out");
    other.cancel("bob", &cancelled.id()).await.ok(200);
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");

    let report = reported(&app, &path, 6).await;
    assert_eq!(
        report.body["answers"],
        json!({"reserved": 3, "replayed": 1, "sold_out": 2})
    );
    let item = &report.body["items"][0];
    let expected = json!({"sku": "phone", "name": "A phone", "total": 3, "sold": 1, "held": 1, "money_minor": 49_900,
        "currency": "EUR", "sold_out_after_seconds": item["sold_out_after_seconds"], "unpaid_share": 0.5});
    assert_eq!(*item, expected);
    // The sale began an hour before.
    assert!(item["sold_out_after_seconds"].as_f64().unwrap() >= 3600.0, "{item}");
    let orders = json!({"reserved": 1, "paid": 1, "cancelled": 1, "expired": 0, "revoked": 0});
    assert_eq!(
        (&report.body["orders"], &report.body["unpaid_share"]),
        (&orders, &json!(0.5))
    );
    let latency = &report.body["latency_ms"];
    assert!(
        latency["p50"].as_f64().unwrap() <= latency["p99"].as_f64().unwrap(),
        "{latency}"
    );
    let course = report.body["course"].as_array().unwrap();
    let sold: u64 = course
        .iter()
        .filter_map(|step| step["answers"]["reserved"].as_u64())
        .sum();
    assert_eq!(sold, 3, "{course:?}");

    let table = export(&app, &path).await;
    assert_eq!(table.headers()["content-type"], "text/csv; charset=utf-8");
    let table = table.text().await.unwrap();
    let mut lines = table.split_terminator("\r\n");
    assert_eq!(
        lines.next(),
        Some("at,seconds,replayed,reserved,sold_out,p50_ms,p95_ms,p99_ms")
    );
    assert_eq!(lines.count(), course.len());
    let items = export(&app, &format!("{path}?table=items")).await;
    assert_eq!(
        items.headers()["content-disposition"],
        format!("attachment; filename=\"sale-{id}-items.csv\"")
    );
    let items = items.text().await.unwrap();
    assert_eq!(
        items,
        format!(
            "sku,name,total,sold,held,money_minor,currency,sold_out_after_seconds,unpaid_share\r\n\
             phone,A phone,3,1,1,49900,EUR,{},0.5\r\n",
            item["sold_out_after_seconds"]
        )
    );
    let totals = export(&app, &format!("{path}?table=totals"))
        .await
        .text()
        .await
        .unwrap();
    for row in ["orders.paid,1", "unpaid_share,0.5", "answers.sold_out,2"] {
        assert!(totals.contains(&format!("\r\n{row}\r\n")), "{row}: {totals}");
    }
    let command = ["sale", "report", &id, "--csv", "items"];
    assert_eq!(app.run(&command).ended(0).stdout, items);
    app.run(&[command.as_slice(), &["--json"]].concat()).ended(2);
    app.get(Who::Operator, &format!("{path}?table=shards"))
        .await
        .no(400, "invalid_request");

    let later = format!("{path}?from=2999-01-01T00:00:00Z");
    assert_eq!(app.get(Who::Operator, &later).await.ok(200).body["course"], json!([]));
    app.get(Who::Operator, &format!("{path}?from=soon"))
        .await
        .no(400, "invalid_request");
    let none = format!("/v1/admin/sales/{}/report", uuid::Uuid::nil());
    app.get(Who::Operator, &none).await.no(404, "not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_closed_early_has_its_real_and_its_planned_end_and_any_other_has_one() {
    let app = TestApp::shared_api_only().await;
    let soon = sale_with(&json!({"ends_at": rfc3339(Utc::now() + TimeDelta::seconds(4))}));
    let (ended, id) = (app.load_sale(&soon).await, app.load_sale(&sale()).await);
    let planned = app.admin(&id, "").await.ok(200).body["ends_at"].clone();
    let before = Utc::now();
    app.operate(&id, "close").await.ok(200);
    let closed = app.admin(&id, "").await.ok(200).body;
    let at: DateTime<Utc> = closed["closed_at"].as_str().unwrap().parse().unwrap();
    assert!(
        before.timestamp_millis() <= at.timestamp_millis() && at <= Utc::now(),
        "{closed}"
    );
    let report = app.admin(&id, "/report").await.ok(200).body;
    for shown in [&closed, &report] {
        assert_eq!(
            (&shown["ends_at"], &shown["closed_at"]),
            (&planned, &closed["closed_at"])
        );
    }
    let printed = app.run(&["sale", "report", &id]).ended(0).stdout;
    assert!(printed.contains("(planned end: "), "{printed}");

    // To close a sale that is over changes nothing.
    poll::within(poll::PATIENCE, "the other has ended by its time", async || {
        app.admin(&ended, "").await.ok(200).body["state"] == "closed"
    })
    .await;
    app.operate(&ended, "close").await.ok(200);
    for part in ["", "/report"] {
        let shown = app.admin(&ended, part).await.ok(200).body;
        assert!(shown.get("closed_at").is_none(), "{shown}");
    }
}

/// A purchase as the proxy of this client would send it.
async fn buy_from(address: &str, client: &Client, user: &str, sale: &str, key: &str, quantity: i64) -> Answer {
    let request = client.buying(user, sale, key).header("X-Forwarded-For", address);
    client
        .send(request.json(&json!({"sku": "phone", "quantity": quantity})))
        .await
}

fn sum(counts: &Value) -> i64 {
    counts.as_object().unwrap().values().filter_map(Value::as_i64).sum()
}

#[tokio::test]
async fn a_report_says_who_got_the_units_though_accounts_ask_two_instances() {
    let app = TestApp::with("all", &[("FLASHSALE_TRUSTED_PROXIES", "127.0.0.1")]).await;
    let other = app.another("api");
    let id = app.load_sale(&sale_with(&json!({"per_user_limit": 2}))).await;
    let path = format!("/v1/admin/sales/{id}/report");
    let empty = app.get(Who::Operator, &path).await.ok(200);
    let none = json!({"units": 0, "largest": null, "largest_ten": null});
    assert_eq!(empty.body["fairness"]["clients"], none);
    assert_eq!(sum(&empty.body["fairness"]["attempts"]), 0);

    // Ada asks both instances before her order, and twice after it.
    let ada = "192.0.2.1";
    for (client, key) in [(&*app.instance, "a"), (&*other, "b"), (&*other, "c")] {
        buy_from(ada, client, "ada", &id, key, 3)
            .await
            .no(409, "purchase_limit_reached");
    }
    buy_from(ada, &app, "ada", &id, "d", 2).await.ok(201);
    buy_from(ada, &app, "ada", &id, "d", 2).await.ok(200);
    buy_from(ada, &app, "ada", &id, "e", 1)
        .await
        .no(409, "purchase_limit_reached");
    // Bob did not view the sale, and has a neighbour of Ada's address.
    buy_from("192.0.2.2", &other, "bob", &id, "k", 1).await.ok(201);
    // Cyd viewed the sale at the other instance alone.
    let page = format!("/v1/sales/{id}");
    other.get(Who::Shopper("cyd"), &page).await.ok(200);
    buy_from("2001:db8:1:2::3", &app, "cyd", &id, "k", 1).await.ok(201);
    // Dan viewed it more than a second before.
    other.get(Who::Shopper("dan"), &page).await.ok(200);
    poll::pass(Duration::from_millis(1100)).await;
    buy_from("203.0.113.4", &app, "dan", &id, "k", 1).await.ok(201);

    let fairness = poll::answer("all buyers are counted", || async {
        let report = app.get(Who::Operator, &path).await.ok(200).body;
        (sum(&report["fairness"]["attempts"]) == 5).then(|| report["fairness"].clone())
    })
    .await;
    let attempts = json!({"one": 3, "two": 0, "three_to_five": 2, "six_to_ten": 0, "eleven_to_fifty": 0, "more": 0});
    assert_eq!(fairness["attempts"], attempts);
    assert_eq!(
        (&fairness["first_seen"]["none"], sum(&fairness["first_seen"])),
        (&json!(1), 5),
        "{fairness}"
    );
    // Dan at least; on a slow machine, others as well.
    let later = ["under_ten_seconds", "under_one_minute", "under_ten_minutes"];
    let later = later.map(|bucket| fairness["first_seen"][bucket].as_i64().unwrap());
    assert!(later.iter().sum::<i64>() >= 1, "{fairness}");
    for (group, least) in [("clients", 0.4), ("networks", 0.6)] {
        let shares = &fairness[group];
        assert_eq!((&shares["units"], &shares["largest_ten"]), (&json!(5), &json!(1.0)));
        // By chance, addresses may share a bucket.
        assert!(shares["largest"].as_f64().unwrap() >= least, "{fairness}");
    }
    let mut database = app.database().await;
    let left = sqlx::query_scalar::<_, i64>("select count(*) from recent_buyers");
    assert_eq!(left.fetch_one(&mut database).await.unwrap(), 0, "no account is kept");
}
