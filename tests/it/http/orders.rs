//! Orders: who may see them, how operators list and export them, and how they are cancelled, before and after the
//! ledger has them.

use super::{decided, pay};
use crate::support::app::{Answer, TestApp, Who, sale, sale_with};
use crate::support::poll;
use futures_util::future::join_all;
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};
use serde_json::json;
use sqlx::AssertSqlSafe;

#[tokio::test]
async fn shoppers_see_their_own_orders_and_nobody_elses() {
    let app = TestApp::shared().await;
    let (id, other) = (app.load_sale(&sale()).await, app.load_sale(&sale()).await);
    let mut adas = Vec::new();
    for key in ["k1", "k2"] {
        adas.push(app.buy("ada", &id, key, 1).await.ok(201).id());
    }
    app.buy("ada", &other, "k1", 1).await.ok(201);
    let bobs = app.buy("bob", &id, "k1", 1).await.ok(201).id();
    let listed = async |user: &str| {
        let body = app.orders(user, &id).await.ok(200).body;
        let orders = body["data"].as_array().unwrap().clone();
        orders
            .iter()
            .map(|order| order["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // Before the drain and after it.
    for _ in 0..2 {
        assert_eq!(listed("ada").await, adas);
        assert_eq!(listed("bob").await, std::slice::from_ref(&bobs));
        assert!(listed("cyd").await.is_empty());
        app.order("bob", &adas[0]).await.no(404, "not_found");
        app.cancel("bob", &adas[0]).await.no(404, "not_found");
        app.wait_for_order("ada", &adas[0], "reserved").await;
    }
    for path in [format!("/v1/orders/{bobs}"), format!("/v1/orders?sale_id={id}")] {
        app.get(Who::Nobody, &path).await.no(401, "unauthenticated");
        app.get(Who::Operator, &path).await.no(401, "unauthenticated");
    }
    app.get(Who::Shopper("ada"), "/v1/orders")
        .await
        .no(400, "invalid_request");
    let stranger = uuid::Uuid::new_v4().to_string();
    app.order("ada", &stranger).await.no(404, "not_found");
    app.cancel("ada", &stranger).await.no(404, "not_found");
    assert_eq!(app.units(&id).await, [7, 3, 0]);
    for sale in [&id, &other] {
        app.assert_balanced(sale).await;
    }
}

#[tokio::test]
async fn operators_see_anybodys_order_with_its_shopper() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let shown = app
        .get(Who::Operator, &format!("/v1/admin/orders/{order}"))
        .await
        .ok(200);
    assert_eq!((shown.text("user"), shown.id()), ("ada", order));
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn before_the_drain_an_order_is_read_listed_and_cancelled_with_its_stock_back_at_once() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 5}))).await;
    let order = app.buy("ada", &id, "k", 5).await.ok(201).id();
    let read = app.order("ada", &order).await.ok(200);
    assert_eq!(
        (read.text("state"), &read.body["confirmed"]),
        ("reserved", &json!(false))
    );
    let listed = app.orders("ada", &id).await.ok(200).body;
    assert_eq!(listed["data"][0], read.body);
    app.order("bob", &order).await.no(404, "not_found");
    app.cancel("bob", &order).await.no(404, "not_found");

    let cancelled = app.cancel("ada", &order).await.ok(200);
    assert_eq!(cancelled.text("state"), "cancelled");
    // No job runs here: only the cancellation releases units.
    assert_eq!(app.units(&id).await, [5, 0, 0]);
    app.buy("bob", &id, "k", 5).await.ok(201);
    let again = app.cancel("ada", &order).await.ok(200);
    assert_eq!(again.body, cancelled.body);
    assert_eq!(
        app.units(&id).await,
        [0, 5, 0],
        "a second cancellation gives nothing back"
    );
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn an_order_is_confirmed_once_a_worker_has_taken_it_in() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.order("ada", &order).await.ok(200).body["confirmed"], false);
    let _worker = app.another("worker");
    let confirmed = app.wait_for_order("ada", &order, "reserved").await;
    assert_eq!(app.orders("ada", &id).await.body["data"][0], confirmed.body);
    assert_eq!(app.buy("ada", &id, "k", 1).await.ok(200).body, confirmed.body);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_paid_or_expired_order_is_not_cancellable() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 6}))).await;
    let paid = app.buy("ada", &id, "paid", 1).await.ok(201);
    assert_eq!(app.pay("pay_for_good", &paid.body).await, "applied");
    let expired = app.buy("ada", &id, "expired", 1).await.ok(201);
    app.wait_for_order("ada", &expired.id(), "expired").await;
    for (order, state) in [(paid.id(), "paid"), (expired.id(), "expired")] {
        let refused = app.cancel("ada", &order).await.no(409, "order_not_cancellable");
        assert!(refused.text("detail").contains(state), "{refused:?}");
        assert_eq!(app.order("ada", &order).await.text("state"), state);
    }
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn cancelling_many_times_at_once_gives_the_units_back_once() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let order = &app.buy("ada", &id, "k", 4).await.ok(201).id();
    let calls = (0..12).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other };
        decided(move || client.cancel("ada", order))
    });
    for answer in join_all(calls).await {
        assert_eq!(answer.ok(200).text("state"), "cancelled");
    }
    app.wait_for_units(&id, [10, 0, 0]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn of_paying_and_cancelling_at_once_exactly_one_happens() {
    let app = TestApp::start().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 100, "per_user_limit": 100})))
        .await;
    let (mut paid, mut cancelled) = (0, 0);
    for number in 0..10 {
        let order = app.buy("ada", &id, &format!("k{number}"), 1).await.ok(201);
        let (payment, order_id) = (format!("pay_{number}"), order.id());
        let cancelling = decided(|| app.cancel("ada", &order_id));
        let (outcome, answer) = tokio::join!(pay(&app, &payment, &order.body), cancelling);
        // A payment that finds its order locked is pending, and one that was repeated is a duplicate: the lists decide.
        match (outcome.as_str(), answer.status) {
            ("applied" | "pending" | "duplicate", 409) => paid += 1,
            ("refund_due" | "pending" | "duplicate", 200) => cancelled += 1,
            other => panic!("{other:?}"),
        }
    }
    for (outcome, count) in [("applied", paid), ("refund_due", cancelled)] {
        let path = format!("/v1/admin/payments?outcome={outcome}");
        poll::answer("every payment is decided", || async {
            let listed = app.get(Who::Operator, &path).await.ok(200).body;
            (listed["data"].as_array().unwrap().len() == count).then_some(())
        })
        .await;
    }
    let [paid, cancelled] = [paid, cancelled].map(|count| i64::try_from(count).unwrap());
    app.wait_for_units(&id, [100 - paid, 0, paid]).await;
    let orders = app.stats(&id).await["orders"].clone();
    assert_eq!(
        (&orders["paid"], &orders["cancelled"]),
        (&json!(paid), &json!(cancelled))
    );
    app.assert_balanced(&id).await;
}

/// Makes the ledger refuse an order that it has stored, as if Redis had sold the unit twice.
async fn revoke(app: &TestApp, order: &str) {
    let mut database = app.database().await;
    let order = uuid::Uuid::parse_str(order).unwrap();
    for statement in [
        "update grants g set held = g.held - o.quantity from orders o where o.order_id = $1 \
         and (g.sale_id, g.sku, g.shard) = (o.sale_id, o.sku, o.shard)",
        "update orders set state = 'revoked', resolved_at = now() where order_id = $1",
    ] {
        let done = sqlx::query(statement).bind(order).execute(&mut database).await.unwrap();
        assert_eq!(done.rows_affected(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_list_orders_by_sale_account_and_state_each_with_its_payments() {
    let app = TestApp::start().await;
    let (one, two) = (app.load_sale(&sale()).await, app.load_sale(&sale()).await);
    let paid = app.buy("ada", &one, "k1", 1).await.ok(201);
    let revoked = app.buy("ada", &one, "k2", 1).await.ok(201);
    let cancelled = app.buy("bob&co", &one, "k1", 1).await.ok(201);
    let elsewhere = app.buy("ada", &two, "k1", 1).await.ok(201);
    // Orders of one millisecond are sorted by their ids.
    let sorted = |orders: &[&Answer]| -> Vec<String> {
        let mut orders: Vec<(String, String)> = orders
            .iter()
            .map(|it| (it.text("created_at").to_owned(), it.id()))
            .collect();
        orders.sort();
        orders.into_iter().rev().map(|(_, id)| id).collect()
    };
    let of_one = sorted(&[&paid, &revoked, &cancelled]);
    let of_ada = sorted(&[&paid, &revoked, &elsewhere]);
    let [revoked, cancelled, elsewhere] = [revoked, cancelled, elsewhere].map(|order| order.id());
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");
    app.cancel("bob&co", &cancelled).await.ok(200);
    assert_eq!(app.pay_with("pay_2", &cancelled, 49900, "EUR").await, "refund_due");
    for (user, order) in [("ada", &revoked), ("ada", &elsewhere)] {
        app.wait_for_order(user, order, "reserved").await;
    }
    revoke(&app, &revoked).await;
    let list = async |query: &str| app.get(Who::Operator, &format!("/v1/admin/orders?{query}")).await;
    let ids = async |query: &str| -> Vec<String> {
        let listed = list(query).await.ok(200).body;
        let ids = listed["data"].as_array().unwrap().iter();
        ids.map(|order| order["id"].as_str().unwrap().to_owned()).collect()
    };
    let paid = paid.id();
    assert_eq!(ids(&format!("sale_id={one}")).await, of_one);
    assert_eq!(ids(&format!("sale_id={two}")).await, std::slice::from_ref(&elsewhere));
    for (state, order) in [("revoked", &revoked), ("paid", &paid), ("cancelled", &cancelled)] {
        assert_eq!(
            ids(&format!("sale_id={one}&state={state}")).await,
            std::slice::from_ref(order)
        );
    }
    for state in ["reserved", "expired"] {
        assert!(ids(&format!("sale_id={one}&state={state}")).await.is_empty(), "{state}");
    }
    assert_eq!(
        ids(&format!("sale_id={two}&state=reserved")).await,
        std::slice::from_ref(&elsewhere)
    );
    assert_eq!(ids("user=ada").await, of_ada);
    assert_eq!(ids("user=ada&state=reserved").await, std::slice::from_ref(&elsewhere));
    assert_eq!(
        ids(&format!("user=ada&sale_id={one}&state=paid")).await,
        std::slice::from_ref(&paid)
    );
    assert_eq!(ids("user=bob%26co").await, std::slice::from_ref(&cancelled));
    assert!(ids("user=nobody").await.is_empty());
    // Page by page.
    for query in [format!("sale_id={one}&"), "user=ada&".to_owned()] {
        let whole = ids(&query).await;
        let mut read: Vec<String> = Vec::new();
        loop {
            let after = read
                .last()
                .map_or_else(String::new, |id| format!("&starting_after={id}"));
            let page = list(&format!("{query}limit=1{after}")).await.ok(200).body;
            read.push(page["data"][0]["id"].as_str().unwrap().to_owned());
            if page["has_more"] == false {
                break;
            }
        }
        assert_eq!(read, whole, "{query}");
    }
    // Their shopper, and the payments.
    let of_bob = list("user=bob%26co").await.ok(200).body["data"][0].clone();
    assert_eq!((&of_bob["user"], &of_bob["sale_id"]), (&json!("bob&co"), &json!(one)));
    let payments = of_bob["payments"].as_array().unwrap();
    assert_eq!(payments.len(), 1);
    assert_eq!(
        (&payments[0]["payment_id"], &payments[0]["outcome"]),
        (&json!("pay_2"), &json!("refund_due"))
    );
    let shown = app
        .get(Who::Operator, &format!("/v1/admin/orders/{paid}"))
        .await
        .ok(200);
    assert_eq!(shown.body["payments"][0]["payment_id"], "pay_1");
    let none = app
        .get(Who::Operator, &format!("/v1/admin/orders/{elsewhere}"))
        .await
        .ok(200);
    assert_eq!(none.body["payments"], json!([]));

    // Watchers get revoked orders.
    poll::answer("it is counted", || async {
        let metrics = app.get(Who::Operator, "/metrics").await.ok(200).text;
        metrics
            .contains("flashsale_needs_attention{kind=\"revoked_orders\"} 1\n")
            .then_some(())
    })
    .await;

    let wrong = [
        String::new(),
        "state=paid".to_owned(),
        "user=".to_owned(),
        "user=ada&state=lost".to_owned(),
        "user=ada&limit=0".to_owned(),
        "user=ada&starting_after=x".to_owned(),
        "sale_id=7".to_owned(),
        "user=ada&sort=time".to_owned(),
        "user=ada&from=yesterday".to_owned(),
        "user=ada&from=2026-11-20T09:00:09Z&to=2026-11-20T09:00:03Z".to_owned(),
    ];
    for query in wrong {
        list(&query).await.no(400, "invalid_request");
    }
    let stranger = uuid::Uuid::new_v4();
    for query in [format!("sale_id={stranger}"), format!("user=ada&sale_id={stranger}")] {
        list(&query).await.no(404, "not_found");
    }
    for who in [Who::Nobody, Who::Shopper("ada")] {
        app.get(who, "/v1/admin/orders?user=ada")
            .await
            .no(401, "unauthenticated");
    }
}

/// The answer to an operator who asks for the orders of a query as a table.
async fn export(app: &TestApp, query: &str) -> Response {
    super::export(app, &format!("/v1/admin/orders?{query}")).await
}

#[tokio::test]
async fn pages_and_exports_have_the_orders_of_any_state_newest_first_between_two_times() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let sale = uuid::Uuid::parse_str(&id).unwrap();
    let mut database = app.database().await;
    // Four a second, in all states, and of three shoppers. Nothing runs here that would expire them.
    let insert = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
         currency, state, created_at, expires_at, paid_at, resolved_at, epoch, seq) \
         select gen_random_uuid(), $1, n % 2, 'phone', 'u' || n % 3, 'k' || n, 1, n, 'EUR', state, at, \
         at + interval '900 seconds', case when state = 'paid' then at end, \
         case when state <> 'reserved' then at end, 1, n from (select n, \
             (array['reserved', 'paid', 'cancelled', 'expired', 'revoked'])[1 + n % 5] as state, \
             timestamptz '2026-11-20 09:00:00Z' + n / 4 * interval '1 second' as at \
         from generate_series(0, 59) n) made";
    sqlx::query(insert).bind(sale).execute(&mut database).await.unwrap();
    let of_sale = format!("sale_id={id}");
    let asked = [
        (of_sale.clone(), "true"),
        (format!("{of_sale}&state=reserved"), "state = 'reserved'"),
        (format!("{of_sale}&state=paid"), "state = 'paid'"),
        (format!("{of_sale}&state=revoked"), "state = 'revoked'"),
        (format!("{of_sale}&user=u1"), "user_id = 'u1'"),
        (
            "user=u2&state=reserved".to_owned(),
            "user_id = 'u2' and state = 'reserved'",
        ),
        (
            format!("{of_sale}&from=2026-11-20T09:00:03Z&to=2026-11-20T09:00:09Z"),
            "amount_minor between 12 and 35",
        ),
        (
            "user=u1&from=2026-11-20T10:00:03%2B01:00".to_owned(),
            "user_id = 'u1' and amount_minor >= 12",
        ),
        (format!("{of_sale}&to=2026-11-20T09:00:00Z"), "false"),
        (format!("{of_sale}&from=0001-01-01T00:00:00Z"), "true"),
    ];
    for (query, condition) in asked {
        let select = format!(
            "select order_id::text from orders where sale_id = $1 and {condition} \
             order by created_at desc, order_id desc"
        );
        let expected: Vec<String> = sqlx::query_scalar(AssertSqlSafe(select))
            .bind(sale)
            .fetch_all(&mut database)
            .await
            .unwrap();
        let mut listed: Vec<String> = Vec::new();
        loop {
            let after = listed
                .last()
                .map_or_else(String::new, |id| format!("&starting_after={id}"));
            let path = format!("/v1/admin/orders?{query}&limit=7{after}");
            let page = app.get(Who::Operator, &path).await.ok(200).body;
            let orders = page["data"].as_array().unwrap();
            listed.extend(orders.iter().map(|order| order["id"].as_str().unwrap().to_owned()));
            if page["has_more"] == false {
                break;
            }
        }
        assert_eq!(listed, expected, "{query}");
        let table = export(&app, &format!("{query}&limit=7")).await.text().await.unwrap();
        let rows = table.split_terminator("\r\n").skip(1);
        let exported: Vec<&str> = rows.map(|row| row.split(',').next().unwrap()).collect();
        assert_eq!(exported, expected, "{query}");
    }
    // An order of another account is a place in time, and an unknown order is the end.
    let last = "select order_id::text from orders where user_id = 'u0' order by created_at limit 1";
    let last: String = sqlx::query_scalar(last).fetch_one(&mut database).await.unwrap();
    for (after, most) in [(last, 1), (uuid::Uuid::new_v4().to_string(), 0)] {
        let path = format!("/v1/admin/orders?user=u1&to=2026-11-20T09:00:02Z&starting_after={after}");
        let page = app.get(Who::Operator, &path).await.ok(200).body;
        assert!(page["data"].as_array().unwrap().len() <= most, "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_a_table_in_which_no_cell_is_a_formula() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let shopper = "=1,\"x\"";
    let order = app.buy(shopper, &id, "k", 2).await.ok(201);
    let other = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    assert_eq!(app.pay("pay_2", &order.body).await, "refund_due");
    app.wait_for_order("ada", &other, "reserved").await;
    let paid = app.wait_for_order(shopper, &order.id(), "paid").await;
    let of_sale = format!("sale_id={id}");
    let answer = export(&app, &format!("{of_sale}&state=paid")).await;
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(
        answer.headers()["content-disposition"],
        "attachment; filename=\"orders.csv\""
    );
    let times = ["created_at", "expires_at", "paid_at"]
        .map(|time| paid.text(time))
        .join(",");
    assert_eq!(
        answer.text().await.unwrap(),
        format!(
            "id,sale_id,sku,quantity,amount_minor,currency,state,confirmed,user,created_at,expires_at,paid_at,\
             payments\r\n\
             {},{id},phone,2,99800,EUR,paid,true,\"'=1,\"\"x\"\"\",{times},\
             pay_1 applied; pay_2 refund_due\r\n",
            paid.id()
        )
    );
    let table = export(&app, &of_sale).await.text().await.unwrap();
    assert_eq!(table.lines().count(), 3, "{table}");
    // The audit log distinguishes an export from a page.
    let actions = app.get(Who::Operator, "/v1/admin/actions?limit=1").await.ok(200).body;
    assert_eq!(
        actions["data"][0]["detail"],
        json!({"sale_id": id, "accept": "text/csv"})
    );
    let head = app.request(Method::HEAD, Who::Operator, &format!("/v1/admin/orders?{of_sale}"));
    let head = head.header(ACCEPT, "text/csv").send().await.unwrap();
    assert_eq!(head.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(head.text().await.unwrap(), "");
    for (query, status) in [
        (format!("sale_id={}", uuid::Uuid::new_v4()), 404_u16),
        ("state=paid".to_owned(), 400),
    ] {
        assert_eq!(export(&app, &query).await.status(), status, "{query}");
    }

    let printed = app.run(&["orders", "list", "--sale", &id, "--csv"]).ended(0).stdout;
    assert_eq!(printed, table);
    let later = [
        "orders",
        "list",
        "--user",
        "ada",
        "--from",
        "2999-01-01T00:00:00Z",
        "-q",
    ];
    assert_eq!(app.run(&later).ended(0).stdout, "");
    let earlier = ["orders", "list", "--user", "ada", "--to", "2999-01-01T00:00:00Z", "-q"];
    assert_eq!(app.run(&earlier).ended(0).stdout, format!("{other}\n"));
    for wrong in [["--csv", "--json"], ["--from", "today"]] {
        app.run(&[&["orders", "list", "--user", "ada"][..], &wrong].concat())
            .ended(2);
    }
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_export_shows_one_moment_and_no_other_runs_meanwhile() {
    const ORDERS: i64 = 50_000;
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let sale = uuid::Uuid::parse_str(&id).unwrap();
    // More than the buffers of a connection hold, so that the export waits for its reader.
    let insert = async |first: i64, last: i64| {
        let rows = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, state, created_at, expires_at, resolved_at, epoch, seq) \
             select gen_random_uuid(), $1, 0, 'phone', repeat('u', 128), 'k' || n, 1, n, 'EUR', 'cancelled', at, \
             at + interval '1 hour', at, 1, n from (select n, now() - n * interval '1 second' as at \
             from generate_series($2, $3) n) made";
        let rows = sqlx::query(rows).bind(sale).bind(first).bind(last);
        rows.execute(&mut app.database().await).await.unwrap();
    };
    insert(1, ORDERS).await;
    let query = format!("sale_id={id}");
    let mut first = export(&app, &query).await;
    let mut table = Vec::<u8>::new();
    while table.iter().filter(|byte| **byte == b'\n').count() < 2 {
        table.extend_from_slice(&first.chunk().await.unwrap().unwrap());
    }
    // It would be the last row.
    insert(ORDERS + 10_000, ORDERS + 10_000).await;
    let second = export(&app, &query).await;
    assert_eq!(second.status(), 503);
    assert!(second.headers().contains_key("retry-after"));
    assert!(second.text().await.unwrap().contains("\"overloaded\""));
    assert_eq!(super::export(&app, "/v1/admin/payments").await.status(), 503);
    // Pages do not wait for it.
    let path = format!("/v1/admin/orders?{query}&limit=1");
    app.get(Who::Operator, &path).await.ok(200);
    while let Some(chunk) = first.chunk().await.unwrap() {
        table.extend_from_slice(&chunk);
    }
    let rows = |table: &[u8]| table.iter().filter(|byte| **byte == b'\n').count() - 1;
    assert_eq!(rows(&table), usize::try_from(ORDERS).unwrap());
    let table = poll::answer("another export may run", || async {
        let table = export(&app, &query).await;
        if table.status() != 200 {
            return None;
        }
        Some(table.bytes().await.unwrap())
    })
    .await;
    assert_eq!(rows(&table), usize::try_from(ORDERS + 1).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_terminal_lists_orders_and_shows_one_with_its_payments() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let paid = app.buy("ada", &id, "k1", 1).await.ok(201);
    let other = app.buy("bob", &id, "k1", 1).await.ok(201).id();
    app.wait_for_order("bob", &other, "reserved").await;
    assert_eq!(app.pay("pay_1", &paid.body).await, "applied");
    let listed = app.run(&["orders", "list", "--sale", &id, "--json"]).ended(0).json();
    let users: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["user"].as_str().unwrap())
        .collect();
    assert_eq!(users, ["bob", "ada"], "newest first");
    let table = app
        .run(&["orders", "list", "--user", "ada", "--state", "paid"])
        .ended(0)
        .stdout;
    assert!(
        table.contains(&paid.id()) && table.contains("pay_1") && !table.contains("bob"),
        "{table}"
    );
    let shown = app.run(&["orders", "show", &paid.id()]).ended(0).stdout;
    assert!(
        shown.contains("user          ada") && shown.contains("applied"),
        "{shown}"
    );
    assert_eq!(
        app.run(&["orders", "show", &other, "--json"]).ended(0).json()["user"],
        "bob"
    );
    // The orders of a sale have the same first eight characters.
    let ambiguous = app.run(&["orders", "show", &other[..8]]).ended(1).stderr;
    for part in [&paid.id()[28..], &other[28..], "reserved", "last eight"] {
        assert!(ambiguous.contains(part), "{part}: {ambiguous}");
    }
    let newest = app.run(&["orders", "show", "@latest", "-q"]).ended(0).stdout;
    assert_eq!(newest.trim(), other);
    app.run(&["orders", "show", "abc"]).ended(2);
    let completed = app.run(&["complete-words", "--", "pay", &other[28..]]).ended(0).stdout;
    assert!(completed.starts_with(&other[28..]), "{completed}");
    let unasked = app.run(&["orders", "list"]).ended(2);
    assert!(
        unasked.stderr.contains("--sale") && unasked.stderr.contains("--user"),
        "{unasked:?}"
    );
    app.run(&["orders", "list", "--user", "ada", "--state", "lost"])
        .ended(2);
    let stranger = uuid::Uuid::new_v4().to_string();
    app.run(&["orders", "show", &stranger]).ended(1);
}

#[tokio::test]
async fn an_order_that_is_still_on_its_way_is_not_said_to_be_none() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let path = format!("/v1/admin/orders/{order}");
    // As long as another process drains its shard, and does not end.
    let mut lock = app.database().await;
    let shards = "begin; select from shards for no key update";
    sqlx::raw_sql(shards).execute(&mut lock).await.unwrap();
    app.get(Who::Operator, &path).await.no(503, "unavailable");
    sqlx::raw_sql("rollback").execute(&mut lock).await.unwrap();
    assert_eq!(app.get(Who::Operator, &path).await.ok(200).text("id"), order);
    let other = order.replace(&order[..4], if order.starts_with("0000") { "1111" } else { "0000" });
    app.get(Who::Operator, &format!("/v1/admin/orders/{other}"))
        .await
        .no(404, "not_found");
}

#[tokio::test]
async fn of_very_many_orders_a_shopper_sees_the_newest_and_that_there_are_more() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let sale = uuid::Uuid::parse_str(&id).unwrap();
    let insert = async |first: i64, last: i64| {
        let rows = "insert into orders (order_id, sale_id, shard, sku, user_id, idempotency_key, quantity, amount_minor, \
             currency, state, created_at, expires_at, resolved_at, epoch, seq) \
             select gen_random_uuid(), $1, 0, 'phone', 'ada', 'k' || n, 1, n, 'EUR', 'cancelled', now(), \
             now() + interval '1 hour', now(), 1, n from generate_series($2, $3) n";
        let rows = sqlx::query(rows).bind(sale).bind(first).bind(last);
        rows.execute(&mut app.database().await).await.unwrap();
    };
    let listed = async || {
        let page = app.orders("ada", &id).await.ok(200).body;
        let amounts: Vec<i64> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["amount_minor"].as_i64().unwrap())
            .collect();
        (amounts, page["has_more"].as_bool().unwrap())
    };
    // Only Redis has the oldest.
    let oldest = app.buy("ada", &id, "oldest", 1).await.ok(201).body["amount_minor"]
        .as_i64()
        .unwrap();
    insert(1, 999).await;
    assert_eq!(listed().await, ([oldest].into_iter().chain(1..=999).collect(), false));
    insert(1000, 1001).await;
    assert_eq!(listed().await, ((2..=1001).collect(), true));
}
