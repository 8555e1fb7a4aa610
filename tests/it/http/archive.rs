//! A sale that is over goes to a file, and comes back.

use crate::support::app::{TestApp, Who, sale};
use crate::support::poll;
use serde_json::json;
use sqlx::postgres::PgListener;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use tokio::time::timeout;

#[tokio::test]
async fn a_sale_that_is_over_goes_to_a_file_and_comes_back_whole() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let paid = app.buy("ada", &id, "k", 2).await.ok(201);
    let cancelled = app.buy("bob", &id, "k", 1).await.ok(201);
    app.wait_for_order("ada", &paid.id(), "reserved").await;
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");
    app.cancel("bob", &cancelled.id()).await.ok(200);
    app.wait_for_order("bob", &cancelled.id(), "cancelled").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("winter.archive");
    let path = file.to_str().unwrap();
    let refused = app.run(&["sale", "archive", &id, path]).ended(1);
    assert!(refused.stderr.contains("is not over") && !file.exists(), "{refused:?}");
    app.operate(&id, "close").await.ok(200);
    let report = format!("/v1/admin/sales/{id}/report");
    poll::answer("the report has both purchases and who bought", || async {
        let report = app.get(Who::Operator, &report).await.ok(200).body;
        (report["answers"]["reserved"] == 2 && report["fairness"]["attempts"]["one"] == 3).then_some(())
    })
    .await;
    let refused = app.run(&["sale", "archive", &id, path]).ended(1);
    assert!(
        refused.stderr.contains("Redis still has it") && !file.exists(),
        "{refused:?}"
    );

    let mut database = app.database().await;
    let rows = async |table: &str| {
        let count = format!("select count(*) from {table} where sale_id = '{id}'");
        let count = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(count));
        count.fetch_one(&mut app.database().await).await.unwrap()
    };
    poll::within(poll::PATIENCE, "Redis has all messages", async || {
        rows("outbox").await == 0
    })
    .await;
    sqlx::query("update sales set retired_at = now() where sale_id = $1::uuid")
        .bind(&id)
        .execute(&mut database)
        .await
        .unwrap();
    let of_sale = async || {
        let mut parts = Vec::new();
        for part in ["", "/report"] {
            let mut body = app.admin(&id, part).await.ok(200).body;
            body.as_object_mut().unwrap().remove("server_time");
            parts.push(body);
        }
        parts.push(
            app.get(Who::Operator, &format!("/v1/admin/orders?sale_id={id}"))
                .await
                .ok(200)
                .body,
        );
        parts
    };
    let before = of_sale().await;
    // As `flashsale up` writes it down.
    let run = json!({"database_url": app.environment["FLASHSALE_DATABASE_URL"]});
    fs::write(folder.path().join("run.json"), run.to_string()).unwrap();
    let data = folder.path().to_str().unwrap();
    app.run(&["sale", "archive", &id, path, "--data", data]).ended(0);
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it names shoppers");
    app.admin(&id, "").await.no(404, "not_found");
    for table in ["orders", "items", "sale_history", "sale_buyers", "grants"] {
        assert_eq!(rows(table).await, 0, "{table}");
    }
    assert_eq!(app.payments_recorded().await, 0);
    assert_eq!(app.pay("pay_1", &paid.body).await, "duplicate");
    assert_eq!(app.payments_recorded().await, 0);
    app.run(&["sale", "archive", &id, path]).ended(2);
    let whole = fs::read(&file).unwrap();
    let foot = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap();
    for (broken, why) in [
        (whole[..=foot].to_vec(), "not whole"),
        (whole[..whole.len() / 2].to_vec(), "not whole"),
        (
            b"{\"some\": \"file\"}\n".to_vec(),
            "not an archive of a sale, or a damaged one\n",
        ),
    ] {
        let file = folder.path().join("broken");
        fs::write(&file, broken).unwrap();
        let refused = app.run(&["sale", "restore", file.to_str().unwrap()]).ended(2);
        assert!(refused.stderr.contains(why), "{refused:?}");
        assert_eq!(rows("sales").await, 0);
    }
    let mut news = PgListener::connect(&app.environment["FLASHSALE_DATABASE_URL"])
        .await
        .unwrap();
    news.listen("flashsale_changed").await.unwrap();
    app.run(&["sale", "restore", path]).ended(0);
    timeout(poll::PATIENCE, news.recv()).await.unwrap().unwrap();
    assert_eq!(of_sale().await, before);
    assert_eq!(app.payments_recorded().await, 1);
    assert_eq!(app.pay("pay_1", &paid.body).await, "duplicate");
    app.run(&["sale", "restore", path]).ended(1);
}
