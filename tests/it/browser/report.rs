//! The report of a whole sale, and the history that the plots of its live page begin with.

use crate::support::app::{Client, TestApp, rfc3339, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{TELEPHONE, Window};
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};

const ANSWERS: &str = "[aria-labelledby=table-reportAnswers] tbody";

/// A sale of three units that began an hour before: all three are reserved, one of them is paid, and a fourth shopper
/// came too late. Its report has these answers, also without its last two seconds.
async fn sold_out_sale(app: &Client) -> String {
    let few = json!({"stock": 3, "per_user_limit": 1, "shards": 1});
    let id = app.load_sale(&sale_with(&few)).await;
    let paid = app.buy("ada", &id, "k", 1).await.ok(201);
    for user in ["bob", "cyd"] {
        app.buy(user, &id, "k", 1).await.ok(201);
    }
    app.buy("dan", &id, "k", 1).await.no(409, "sold_out");
    assert_eq!(app.pay(&format!("pay_{id}"), &paid.body).await, "applied");
    poll::within(PATIENCE, "all answers are in the report", async || {
        let part = format!("/report?to={}", rfc3339(Utc::now() - TimeDelta::seconds(2)));
        let report = app.admin(&id, &part).await.ok(200);
        let counts = report.body["answers"].as_object().unwrap().values();
        counts.filter_map(Value::as_u64).sum::<u64>() == 4
    })
    .await;
    id
}

/// Chooses a part of the course, in one step: typed letters would choose others on the way.
async fn choose(window: &Window, range: &str) {
    let choose = "const range = document.getElementById('range');
        range.value = arguments[0];
        range.dispatchEvent(new Event('change'))";
    window.run(choose, &[range]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_of_a_sale_that_is_over_has_items_money_answers_and_its_course_by_time() {
    let app = TestApp::shared().await;
    let id = sold_out_sale(&app).await;
    app.operate(&id, "close").await.ok(200);
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let link = format!("a[href='/console/sales/{id}/report']");
    window.sees(&link, "Report").await;
    window.sees(&format!("tr:has({link})"), "planned end: ").await;
    window.click(&link).await;
    window.sees("#view h1", "Report").await;
    window.sees("#of-sale", "A sale").await;
    window.has_title("Report · A sale · Console").await;
    for text in ["Closed · ", " · planned end: "] {
        window.sees("#report-times", text).await;
    }
    // It was sold out an hour after its start.
    for text in ["A phone", "1 (33.3 %)", "€499.00", "1:00:"] {
        window.sees("[aria-labelledby=table-reportItems] tbody", text).await;
    }
    window.sees_tile("Paid orders", |text| text == "1").await;
    window.sees_tile("Reserved orders", |text| text == "2").await;
    window
        .sees_tile("Unpaid share of ended orders", |text| text == "0 %")
        .await;
    window
        .sees_tile("50 % answered within", |text| text.ends_with(" ms"))
        .await;
    for text in ["accepted", "75 %", "sold out", "25 %"] {
        window.sees(ANSWERS, text).await;
    }
    let lines = "return [...document.querySelectorAll('.plot .line')].filter((it) => it.getAttribute('d').includes('L')).length";
    assert!(window.run(lines, &[]).await.as_i64().unwrap() >= 2);
    // Nobody bought in the first minute.
    choose(&window, "minute").await;
    window.sees("#report-course", "There were no purchases").await;
    window.misses(ANSWERS).await;
    choose(&window, "hour").await;
    window.sees(ANSWERS, "75 %").await;
    choose(&window, "chosen").await;
    window.types("range-from", "2037-01-01T00:00:00").await;
    let chosen = "document.getElementById('range-from').dispatchEvent(new Event('change'))";
    window.run(chosen, &[]).await;
    window.sees("#report-course", "There were no purchases").await;
    choose(&window, "whole").await;
    window.sees(ANSWERS, "75 %").await;
    // On a telephone no column of the items is out of sight.
    window.appear(TELEPHONE).await;
    let hidden = "const wide = document.querySelector('[aria-labelledby=table-reportItems]');
        return wide.scrollWidth - wide.clientWidth";
    assert_eq!(window.run(hidden, &[]).await, 0);
    let label = "const cell = document.querySelector('[aria-labelledby=table-reportItems] td:nth-child(6)');
        return getComputedStyle(cell, '::before').content === 'none' ? '' : cell.dataset.label";
    assert_eq!(window.run(label, &[]).await, "Taken");
    window.change_language("zh-CN").await;
    window.sees("#view h1", "报告").await;
    window.sees(ANSWERS, "售罄").await;
    assert_eq!(window.run(label, &[]).await, "已收款");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_shows_who_got_the_units() {
    let app = TestApp::shared().await;
    let id = sold_out_sale(&app).await;
    let fairness = poll::answer("all buyers are counted", || async {
        let fairness = app.admin(&id, "/report").await.ok(200).body["fairness"].clone();
        (fairness["attempts"]["one"] == 3).then_some(fairness)
    })
    .await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}/report")).await;
    window.sees("#fairness", "the first purchase: 3 (100 %)").await;
    // It still sells, so it has one end.
    let times = window.text("#report-times").await.unwrap();
    assert!(times.starts_with("Open · ") && !times.contains("planned"), "{times}");
    window.sees("#fairness", "first seen with the order: 3 (100 %)").await;
    window.sees("#fairness", "the ten networks with the most: 100 %").await;
    let widths = "return [...document.querySelectorAll('#fairness rect')].map((it) => it.getAttribute('width')).join()";
    let widths = window.run(widths, &[]).await;
    assert!(
        widths.as_str().unwrap().starts_with("1,0,0,0,0,0,1,0,"),
        "{widths}: {fairness}"
    );
    window.change_language("zh-CN").await;
    window.sees("#fairness", "第 1 次购买：3 (100 %)").await;
    window.close().await;
    let printed = app.run(&["sale", "report", &id]).ended(0).stdout;
    assert!(printed.contains("units by purchases sent: one 3, two 0"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_report_are_saved_as_tables_and_the_whole_as_json() {
    let app = TestApp::shared().await;
    let id = sold_out_sale(&app).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}/report")).await;
    window.sees(ANSWERS, "75 %").await;
    // The highest value is written above a plot, not over a peak.
    let covered = "const box = (it, part) => it.querySelector(part).getBoundingClientRect();
        return [...document.querySelectorAll('.frame')].filter((it) => box(it, '.axis').bottom > box(it, 'svg').top).length";
    assert_eq!(window.run(covered, &[]).await, 0);
    let table = window.saves("#download-course", &format!("sale-{id}-course.csv")).await;
    assert!(
        table.starts_with("at,seconds,reserved,sold_out,p50_ms,p95_ms,p99_ms\r\n"),
        "{table}"
    );
    window.sees(".result", "The browser saves sale-").await;
    for (table, head, row) in [
        (
            "items",
            "sku,name,total,sold,held,money_minor,",
            "\r\nphone,A phone,3,1,2,49900,EUR,",
        ),
        ("totals", "member,value\r\n", "\r\nanswers.sold_out,1\r\n"),
    ] {
        let button = format!("#download-{table}");
        let saved = window.saves(&button, &format!("sale-{id}-{table}.csv")).await;
        assert!(saved.starts_with(head) && saved.contains(row), "{saved}");
    }
    // Beside the words stand the names of the columns.
    window.sees(ANSWERS, "accepted reserved").await;
    let report = window.saves("#download-json", &format!("sale-{id}.json")).await;
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["sale_id"], &report["answers"]["reserved"]),
        (&json!(id), &json!(3))
    );
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_page_begins_with_what_happened_before_it_was_opened() {
    let app = TestApp::shared().await;
    let id = sold_out_sale(&app).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(".plot:nth-child(2) .legend", "sold out").await;
    window.sees("#verdict", "All units of A phone were taken at ").await;
    window.click("#to-report").await;
    window.sees("#view h1", "Report").await;
    // The plots show the last minutes. Below them, a link leads to the course of the whole sale.
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees(".plot:nth-child(2) .legend", "sold out").await;
    window.click("#to-course").await;
    window.sees(ANSWERS, "75 %").await;
    let course = "const { top } = document.getElementById('report-course').getBoundingClientRect();
        return scrollY > 0 && top < innerHeight / 2";
    poll::within(PATIENCE, "the course is in view", async || {
        window.run(course, &[]).await == true
    })
    .await;
    window.close().await;
}
