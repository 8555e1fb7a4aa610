//! Operators find orders: by number, by account, and the revoked ones of a sale. They find payments, too.

use crate::support::app::{TestApp, Who, sale, sale_with};
use crate::support::window::{Appearance, Window};
use serde_json::json;
use thirtyfour::Key;

const ORDERS: &str = "[aria-labelledby=table-orders] tbody";
const MONEY: &str = "[aria-labelledby=table-money] tbody";

/// An order's number as tables show it.
fn short(order: &str) -> String {
    format!("…{}", &order[order.len() - 8..])
}

/// The parts of a table whose text takes more than one line.
const BROKEN: &str = "return [...document.querySelectorAll('td time, td .pill, td .whole')]
    .filter((it) => it.getClientRects().length > 1 || it.offsetHeight > 40).map((it) => it.textContent)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_listed_by_name_and_newest_first_and_nothing_is_broken_over_lines() {
    let app = TestApp::start().await;
    let older = app.load_sale(&sale_with(&json!({"name": "Autumn launch"}))).await;
    let newer = app.load_sale(&sale_with(&json!({"name": "Winter launch"}))).await;
    // The sale that was created later has the earlier order.
    let first = app.buy("ada", &newer, "k", 1).await.ok(201).id();
    app.wait_for_order("ada", &first, "reserved").await;
    let second = app.buy("ada", &older, "k", 2).await.ok(201).id();
    app.wait_for_order("ada", &second, "reserved").await;
    let telephone = Appearance {
        width: 360,
        ..Appearance::default()
    };
    let window = Window::with(&app, telephone).await;
    window.open_console("/console/orders?user=ada").await;
    let row = |number: usize| format!("{ORDERS} tr:nth-child({number})");
    for (number, texts) in [
        (1, [&*short(&second), "Autumn launch", "2 × A phone"]),
        (2, [&*short(&first), "Winter launch", "1 × A phone"]),
    ] {
        for text in texts {
            window.sees(&row(number), text).await;
        }
    }
    window.sees(&row(1), "Pay by ").await;
    let whole = format!("{ORDERS} a[href='/console/orders?order={first}'][title='{first}']");
    window.sees(&whole, &short(&first)).await;
    assert_eq!(window.run(BROKEN, &[]).await, json!([]));
    window.goto("/console/audit-log").await;
    window
        .sees("[aria-labelledby=table-audit-log] tbody", "Winter launch")
        .await;
    assert_eq!(window.run(BROKEN, &[]).await, json!([]));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_are_found_by_time_and_saved_as_a_table() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    app.wait_for_order("ada", &order, "reserved").await;
    let window = Window::open(&app).await;
    window.open_console("/console/orders?user=ada").await;
    window.sees(ORDERS, &short(&order)).await;
    window.types("find-to", "2020-01-01T00:00:00").await;
    window.click("#view form button").await;
    window.sees("#view .list", "There are none").await;
    window.types("find-to", "").await;
    window.types("find-from", "2020-01-01T00:00:00").await;
    window.click("#view form button").await;
    window.sees(ORDERS, &short(&order)).await;
    // The address has the search.
    window.driver().refresh().await.unwrap();
    window.sees(ORDERS, &short(&order)).await;
    let from = window.value("find-from").await;
    assert!(from.starts_with("2020-01-01T00:00"), "{from}");
    let table = window.saves("#download", "orders.csv").await;
    assert!(table.contains(&order) && table.contains("ada"), "{table}");
    // One order is no table.
    window.types("find-order", &order).await;
    window.click("#view form button").await;
    window.sees(ORDERS, &short(&order)).await;
    window.misses("#download").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_are_found_by_account_time_and_sale_and_saved_as_a_table() {
    let app = TestApp::start().await;
    let (one, two) = (app.load_sale(&sale()).await, app.load_sale(&sale()).await);
    for (user, sale, payment) in [("ada", &one, "pay_one"), ("bob", &two, "pay_two")] {
        let order = app.buy(user, sale, "k", 1).await.ok(201).id();
        assert_eq!(app.pay_with(payment, &order, 1, "EUR").await, "refund_due");
    }
    assert_eq!(app.pay_with("pay_none", "none", 1, "EUR").await, "unmatched");
    let window = Window::open(&app).await;
    window.open_console("/console/money").await;
    for payment in ["pay_one", "pay_two"] {
        window.sees(MONEY, payment).await;
    }
    let rows = format!("return document.querySelectorAll('{MONEY} tr').length");
    let find = "#view form button";
    window.types("find-user", "ada").await;
    window.click(find).await;
    window.sees(MONEY, "pay_one").await;
    assert_eq!(window.run(&rows, &[]).await, 1);
    window.types("find-to", "2020-01-01T00:00:00").await;
    window.click(find).await;
    window.sees("#view .list", "There are none").await;
    window.types("find-to", "").await;
    window.types("find-from", "2020-01-01T00:00:00").await;
    window.click(find).await;
    window.sees(MONEY, "pay_one").await;
    let table = window.saves("#download", "payments.csv").await;
    for (text, is_there) in [("pay_one", true), ("ada", true), ("pay_two", false)] {
        assert_eq!(table.contains(text), is_there, "{text}: {table}");
    }
    // The address has the search.
    window.driver().refresh().await.unwrap();
    window.sees(MONEY, "pay_one").await;
    assert_eq!(window.run(&rows, &[]).await, 1);
    window.holds("find-user", "ada").await;
    window.goto(&format!("/console/money?sale_id={two}")).await;
    window.sees(MONEY, "pay_two").await;
    assert_eq!(window.run(&rows, &[]).await, 1);
    window.holds("find-sale", &two).await;
    // Money without an order is of no sale and of no account.
    window.fill("#outcome", "for no order").await;
    window.sees(MONEY, "pay_none").await;
    for field in ["#find-user", "#find-sale"] {
        window.misses(field).await;
    }
    window.goto("/console/audit-log").await;
    let read = [
        "Export payments",
        "Payments that are: owed back",
        "Of these, those that are: not paid back yet",
        "Account: ada",
    ];
    for text in read {
        window.sees("#view tbody", text).await;
    }
    window.change_language("zh-CN").await;
    window.sees("#view tbody", "导出付款").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_a_revoked_order_from_its_sale_and_a_paid_one_by_its_account() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let hostile = "<img src=x onerror='window.hurt = 1'>";
    let paid = app.buy(hostile, &id, "k", 1).await.ok(201);
    let revoked = app.buy("bob", &id, "k", 1).await.ok(201).id();
    app.wait_for_order("bob", &revoked, "reserved").await;
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");
    let mut database = app.database().await;
    let revoke = "update orders set state = 'revoked', resolved_at = now() where user_id = 'bob'";
    sqlx::query(revoke).execute(&mut database).await.unwrap();
    assert_eq!(app.pay_with("pay_2", &revoked, 49900, "EUR").await, "refund_due");

    let window = Window::open(&app).await.expect(&["404"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    // The red number links to the orders that it counts.
    window.sees(".tile.is-bad a[href*='state=revoked']", "1").await;
    window.click(".tile.is-bad a[href*='state=revoked']").await;
    window.sees("#view h1", "Orders").await;
    window.sees(ORDERS, &short(&revoked)).await;
    window.sees(ORDERS, "pay_2 owed back").await;
    assert_eq!(
        [window.value("find-sale").await, window.value("find-state").await],
        [id.clone(), "revoked".to_owned()]
    );
    let rows = format!("return document.querySelectorAll('{ORDERS} tr').length");
    assert_eq!(window.run(&rows, &[]).await, 1);
    // From money that is owed back to its order.
    window.goto("/console/money").await;
    for text in ["pay_2", "A sale", "the order is revoked"] {
        window.sees(MONEY, text).await;
    }
    window.change_language("zh-CN").await;
    window.sees(MONEY, "订单已撤回").await;
    window.misses(&format!("{MONEY} [lang=en]")).await;
    window.change_language("en").await;
    window.sees(MONEY, "the order is revoked").await;
    window.sees(&format!("{MONEY} td:nth-child(3) button"), "Copy").await;
    window.click(&format!("{MONEY} td:nth-child(3) a")).await;
    window.sees(ORDERS, "bob").await;
    window.holds("find-order", &revoked).await;
    // A shopper who claims to have paid.
    window.goto("/console/orders").await;
    window.sees("#view h1", "Orders").await;
    window.click("#view form button").await;
    window.sees("#find-wrong", "Type an order number or an account").await;
    window.fill("#find-order", &short(&paid.id())).await;
    window.press(Key::Enter).await;
    window.sees("#find-wrong", "An order number looks like").await;
    window.sees("#find-wrong", "“Copy” beside it copies all of it").await;
    window.fill("#find-order", "").await;
    window.types("find-user", hostile).await;
    window.click("#view form button").await;
    window.sees(ORDERS, hostile).await;
    window.sees(ORDERS, &short(&paid.id())).await;
    window.sees(ORDERS, "pay_1 applied").await;
    window.driver().refresh().await.unwrap();
    window.sees(ORDERS, &short(&paid.id())).await;
    let hurt = "return window.hurt ?? document.querySelectorAll('main img').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));
    window.fill("#find-order", &uuid::Uuid::new_v4().to_string()).await;
    window.press(Key::Enter).await;
    window.sees("#view .list .warning", "no such order").await;
    // The browser's Back leads to the search before.
    window.driver().back().await.unwrap();
    window.sees(ORDERS, &short(&paid.id())).await;
    window.holds("find-user", hostile).await;
    window.holds("find-order", "").await;
    let still = app
        .get(Who::Operator, &format!("/v1/admin/orders/{revoked}"))
        .await
        .ok(200);
    assert_eq!(still.body["state"], "revoked");
    window.close().await;
}
