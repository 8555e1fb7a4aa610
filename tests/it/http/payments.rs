//! Payments: every outcome, every order of arrival, and signatures that leave no trace.

use super::{export, pay};
use crate::support::app::{Answer, Client, TestApp, Who, payment_body, sale, sale_with, webhook_key};
use crate::support::poll;
use chrono::{DateTime, Utc};
use flashsale::domain::order::webhook::sign;
use futures_util::future::join_all;
use reqwest::Method;
use reqwest::header::ACCEPT;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

/// Payments that operators see with this outcome.
async fn recorded(app: &TestApp, outcome: &str) -> Vec<Value> {
    let listed = app
        .get(Who::Operator, &format!("/v1/admin/payments?outcome={outcome}"))
        .await
        .ok(200);
    listed.body["data"].as_array().unwrap().clone()
}

/// A listed payment as other answers have it, without its order.
fn without_order(mut listed: Value) -> Value {
    listed.as_object_mut().unwrap().remove("order").unwrap();
    listed
}

#[tokio::test]
async fn a_payment_is_applied_once_and_known_again() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 2).await.ok(201);
    let before = Utc::now().timestamp_millis();
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    let paid = app.order("ada", &order.id()).await.ok(200);
    assert_eq!((paid.text("state"), &paid.body["confirmed"]), ("paid", &json!(true)));
    let paid_at: DateTime<Utc> = paid.text("paid_at").parse().unwrap();
    assert!((before..=Utc::now().timestamp_millis()).contains(&paid_at.timestamp_millis()));
    // The same delivery, and the same payment in another one.
    assert_eq!(app.pay("pay_1", &order.body).await, "duplicate");
    let (order_id, amount) = (order.id(), 99_800);
    let again = app
        .webhook("msg_other", &payment_body("pay_1", &order_id, amount, "EUR"))
        .await;
    assert_eq!(again.ok(200).text("outcome"), "duplicate");
    assert_eq!(app.payments_recorded().await, 1);
    // A second payment is money to give back, with any id of its webhook.
    let same_message = app
        .webhook("msg_pay_1", &payment_body("pay_2", &order_id, amount, "EUR"))
        .await;
    assert_eq!(same_message.ok(200).text("outcome"), "refund_due");
    assert_eq!(app.pay("pay_3", &order.body).await, "refund_due");
    assert_eq!(app.pay("pay_3", &order.body).await, "duplicate");
    assert_eq!(recorded(&app, "applied").await.len(), 1);
    let refunds = recorded(&app, "refund_due").await;
    let refunds: Vec<&Value> = refunds.iter().map(|it| &it["payment_id"]).collect();
    assert_eq!(refunds, [&json!("pay_3"), &json!("pay_2")]);
    assert_eq!(app.stats(&id).await["alerts"]["refunds_due"], 2);
    app.wait_for_units(&id, [8, 0, 2]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_payment_that_comes_again_for_another_order_or_amount_is_reported_to_operators() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let first = app.buy("ada", &id, "k", 1).await.ok(201);
    let second = app.buy("bob", &id, "k", 1).await.ok(201);
    let conflicts = async || {
        let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
        let lines = metrics.lines();
        let mut counts = lines.filter_map(|line| line.strip_prefix("flashsale_payment_conflicts_total "));
        counts.next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(app.pay("pay_1", &first.body).await, "applied");
    assert_eq!(app.pay("pay_1", &first.body).await, "duplicate");
    assert_eq!(conflicts().await, 0, "the same payment again");
    assert_eq!(app.pay("pay_1", &second.body).await, "duplicate");
    assert_eq!(conflicts().await, 1, "another order");
    let line = app.logged("a payment came again with another order").await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (
            &line["level"],
            &line["payment"],
            &line["order"],
            &line["recorded_order"]
        ),
        (&json!("WARN"), &json!("pay_1"), &json!(second.id()), &json!(first.id()))
    );
    assert_eq!(app.pay_with("pay_1", &first.id(), 1, "EUR").await, "duplicate");
    assert_eq!(app.pay_with("pay_1", &first.id(), 49_900, "USD").await, "duplicate");
    assert_eq!(conflicts().await, 3, "another amount, another currency");
    // One whose order the ledger does not know.
    assert_eq!(app.pay_with("pay_2", "none", 1, "EUR").await, "unmatched");
    assert_eq!(app.pay_with("pay_2", "other", 1, "EUR").await, "duplicate");
    assert_eq!(conflicts().await, 4);
    assert_eq!(app.payments_recorded().await, 2);
    assert_eq!(app.order("bob", &second.id()).await.text("state"), "reserved");
}

#[tokio::test]
async fn every_payment_can_be_reached_page_by_page() {
    let app = TestApp::start_api_only().await;
    // Many of the same moment, too.
    sqlx::query(
        "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at, received_at) \
         select 'pay &' || n, 'msg_' || n, 'none', 1, 'EUR', 'unmatched', now(), now() - n / 40 * interval '1 second' \
         from generate_series(1, 250) n",
    )
    .execute(&mut app.database().await)
    .await
    .unwrap();
    let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("/v1/admin/payments?outcome=unmatched&limit=60{after}");
        let page = app.get(Who::Operator, &path).await.ok(200).body;
        seen.extend(page["data"].as_array().unwrap().clone());
        pages += 1;
        let last = seen.last().unwrap()["payment_id"].as_str().unwrap().replace(' ', "%20");
        after = format!("&starting_after={}", last.replace('&', "%26"));
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!((pages, seen.len()), (5, 250));
    let ids: std::collections::BTreeSet<_> = seen.iter().map(|it| it["payment_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 250, "each once");
    let times: Vec<_> = seen.iter().map(|it| it["received_at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "newest first");
    for wrong in ["", "%00", &"x".repeat(256)] {
        let path = format!("/v1/admin/payments?starting_after={wrong}");
        app.get(Who::Operator, &path).await.no(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_exports_have_the_payments_of_a_sale_or_account_newest_first_between_two_times() {
    let app = TestApp::start().await;
    let (one, two) = (app.load_sale(&sale()).await, app.load_sale(&sale()).await);
    for (user, sale) in [("ada", &one), ("ada", &two), ("bob&co", &two)] {
        let order = app.buy(user, sale, "k", 1).await.ok(201).id();
        app.wait_for_order(user, &order, "reserved").await;
    }
    let mut database = app.database().await;
    // Four a second, for each of the orders in turn. Languages sort such ids otherwise than bytes are sorted.
    let matched = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, reason, \
         matched_order_id, settled_at, received_at) \
         select (array['a &', 'B', 'Ä', 'b'])[1 + n % 4] || n, 'w', order_id::text, n, 'EUR', 'refund_due', 'x', order_id, \
         now(), timestamptz '2026-11-20 09:00:00Z' + n / 4 * interval '1 second' from generate_series(0, 59) n \
         join (select order_id, row_number() over (order by user_id, sale_id) - 1 as turn from orders) o on turn = n % 3";
    let unmatched = "insert into payments (payment_id, webhook_id, order_id, amount_minor, currency, outcome, settled_at) \
         values ('pay_none', 'w', 'none', 1, 'EUR', 'unmatched', now())";
    for statement in [matched, unmatched] {
        sqlx::query(statement).execute(&mut database).await.unwrap();
    }
    let mut expected = async |condition: &str| -> Vec<String> {
        let select = format!(
            "select p.payment_id from payments p join orders o on o.order_id = p.matched_order_id where {condition} \
             order by p.received_at desc, p.payment_id collate \"C\" desc"
        );
        let ids = sqlx::query_scalar(AssertSqlSafe(select)).fetch_all(&mut database);
        ids.await.unwrap()
    };
    let listed = async |query: &str| -> Vec<String> {
        let mut listed: Vec<String> = Vec::new();
        loop {
            let after = listed.last().map_or_else(String::new, |id| {
                let id: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
                format!("&starting_after={id}")
            });
            let path = format!("/v1/admin/payments?limit=7{query}{after}");
            let page = app.get(Who::Operator, &path).await.ok(200).body;
            let payments = page["data"].as_array().unwrap().iter();
            listed.extend(payments.map(|it| it["payment_id"].as_str().unwrap().to_owned()));
            if page["has_more"] == false {
                return listed;
            }
        }
    };
    let of_two = format!("&sale_id={two}");
    for (query, condition) in [
        (String::new(), "true".to_owned()),
        (format!("&sale_id={one}"), format!("o.sale_id = '{one}'")),
        (of_two.clone(), format!("o.sale_id = '{two}'")),
        ("&user=ada".to_owned(), "o.user_id = 'ada'".to_owned()),
        (
            format!("{of_two}&user=bob%26co"),
            format!("o.sale_id = '{two}' and o.user_id = 'bob&co'"),
        ),
        (format!("&sale_id={one}&user=bob%26co"), "false".to_owned()),
        (
            "&from=2026-11-20T09:00:03Z&to=2026-11-20T09:00:09Z".to_owned(),
            "p.amount_minor between 12 and 35".to_owned(),
        ),
        (
            format!("{of_two}&settled=false&from=2026-11-20T10:00:03%2B01:00"),
            format!("o.sale_id = '{two}' and p.amount_minor >= 12"),
        ),
        (format!("{of_two}&settled=true"), "false".to_owned()),
        ("&to=2026-11-20T09:00:00Z".to_owned(), "false".to_owned()),
        (
            "&user=ada&from=0001-01-01T00:00:00Z".to_owned(),
            "o.user_id = 'ada'".to_owned(),
        ),
    ] {
        let expected = expected(&condition).await;
        assert_eq!(listed(&query).await, expected, "{query}");
        let table = export(&app, &format!("/v1/admin/payments?limit=7{query}")).await;
        let table = table.text().await.unwrap();
        let rows = table.split_terminator("\r\n").skip(1);
        let exported: Vec<&str> = rows.map(|row| row.split(',').next().unwrap()).collect();
        assert_eq!(exported, expected, "{query}");
    }
    // A payment of another account is a place in time, and an unknown payment is the end.
    let last = "/v1/admin/payments?user=ada&to=2026-11-20T09:00:02Z&limit=100&starting_after=";
    for (after, count) in [("b11", 6), ("B5", 3), ("B1", 0), ("unknown", 0)] {
        let page = app.get(Who::Operator, &format!("{last}{after}")).await.ok(200).body;
        assert_eq!(page["data"].as_array().unwrap().len(), count, "{after}: {page}");
    }
    // Money without an order is of no sale and of no account.
    for (query, count) in [("", 1), (&of_two, 0), ("&user=ada", 0)] {
        assert_eq!(
            listed(&format!("&outcome=unmatched{query}")).await.len(),
            count,
            "{query}"
        );
    }
    for wrong in [
        "user=",
        "sale_id=7",
        "from=yesterday",
        "from=2026-11-20T09:00:09Z&to=2026-11-20T09:00:03Z",
    ] {
        let path = format!("/v1/admin/payments?{wrong}");
        app.get(Who::Operator, &path).await.no(400, "invalid_request");
    }
    let path = format!("/v1/admin/payments?sale_id={}", uuid::Uuid::new_v4());
    app.get(Who::Operator, &path).await.no(404, "not_found");
    assert_eq!(export(&app, &path).await.status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_of_payments_names_sales_and_accounts_and_is_in_the_audit_log() {
    const VIEWS: &str = "9b74c9897bac770ffc029102a200c5de";
    let keys = format!("cy:view:{VIEWS}");
    let app = TestApp::with("all", &[("FLASHSALE_OPERATOR_KEYS", &keys)]).await;
    let id = app.load_sale(&sale()).await;
    let shopper = "=1,\"x\"";
    let order = app.buy(shopper, &id, "k", 2).await.ok(201);
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    assert_eq!(app.pay_with("pay,2", "none", 5, "EUR").await, "unmatched");
    let reads = async || -> Vec<Value> {
        let actions = app.get(Who::Operator, "/v1/admin/actions?limit=100").await.ok(200).body;
        let actions = actions["data"].as_array().unwrap().iter();
        let reads = actions.filter(|it| it["action"] == "payments.read");
        reads
            .map(|it| json!([it["operator"], it["outcome"], it["detail"]]))
            .collect()
    };
    // A page shows no account.
    let received = async |outcome: &str| {
        recorded(&app, outcome).await[0]["received_at"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (applied_at, unmatched_at) = (received("applied").await, received("unmatched").await);
    assert!(reads().await.is_empty());

    let applied = "/v1/admin/payments?outcome=applied";
    let by_view = app.request(Method::GET, Who::Bearer(VIEWS), applied);
    let answer = by_view.header(ACCEPT, "text/csv").send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
    assert_eq!(
        answer.headers()["content-disposition"],
        "attachment; filename=\"payments.csv\""
    );
    let heads = "payment_id,order_id,amount_minor,currency,outcome,reason,received_at,settled_at,settled_reference,\
         order_state,sale_id,user\r\n";
    assert_eq!(
        answer.text().await.unwrap(),
        format!(
            "{heads}pay_1,{},99800,EUR,applied,,{applied_at},,,paid,{id},\"'=1,\"\"x\"\"\"\r\n",
            order.id()
        )
    );
    let unmatched = export(&app, "/v1/admin/payments?outcome=unmatched").await;
    assert_eq!(
        unmatched.text().await.unwrap(),
        format!("{heads}\"pay,2\",none,5,EUR,unmatched,,{unmatched_at},,,,,\r\n")
    );
    assert_eq!(listed(&app, "applied&user=ada").await, [""; 0]);
    let of_account = json!({"outcome": "applied", "user": "ada"});
    let expected = [
        json!([null, "done", of_account]),
        json!([null, "done", {"outcome": "unmatched", "accept": "text/csv"}]),
        json!(["cy", "done", {"outcome": "applied", "accept": "text/csv"}]),
    ];
    assert_eq!(reads().await, expected);

    for who in [Who::Nobody, Who::Shopper("ada")] {
        let request = app.request(Method::GET, who, applied).header(ACCEPT, "text/csv");
        app.send(request).await.no(401, "unauthenticated");
    }
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn money_that_does_not_fit_its_order_is_owed_back_and_the_order_stays_payable() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    for (payment, amount, currency) in [
        ("too_little", 49_899, "EUR"),
        ("too_much", 49_901, "EUR"),
        ("nothing", 0, "EUR"),
        ("a_lot", i64::MAX, "EUR"),
        ("dollars", 49_900, "USD"),
    ] {
        assert_eq!(app.pay_with(payment, &order.id(), amount, currency).await, "refund_due");
    }
    assert_eq!(app.order("ada", &order.id()).await.text("state"), "reserved");
    let owed = recorded(&app, "refund_due").await;
    let names_price = |it: &Value| it["reason"] == "the order costs 499.00 EUR";
    assert!(owed.len() == 5 && owed.iter().all(names_price), "{owed:?}");
    assert_eq!(app.pay("right", &order.body).await, "applied");
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_currency_in_lower_case_pays_its_order() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.pay_with("pay_1", &order, 49_900, "eur").await, "applied");
    assert_eq!(recorded(&app, "applied").await[0]["currency"], "EUR");
}

#[tokio::test]
async fn money_for_a_cancelled_or_expired_order_is_owed_back_and_its_units_stay_free() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 5}))).await;
    let cancelled = app.buy("ada", &id, "k1", 1).await.ok(201);
    app.cancel("ada", &cancelled.id()).await.ok(200);
    let expired = app.buy("ada", &id, "k2", 1).await.ok(201);
    app.wait_for_order("ada", &expired.id(), "expired").await;
    for (payment, order, state) in [("pay_1", &cancelled, "cancelled"), ("pay_2", &expired, "expired")] {
        assert_eq!(app.pay(payment, &order.body).await, "refund_due");
        assert_eq!(app.pay(payment, &order.body).await, "duplicate");
        assert_eq!(app.order("ada", &order.id()).await.text("state"), state);
    }
    let refunds = recorded(&app, "refund_due").await;
    assert!(
        refunds[0]["reason"].as_str().unwrap().contains("expired"),
        "{refunds:?}"
    );
    // Each has its order as it is now, for those who read another language than the reason's.
    let orders: Vec<_> = refunds
        .iter()
        .map(|it| (&it["order"]["id"], &it["order"]["state"]))
        .collect();
    assert_eq!(
        json!(orders),
        json!([(expired.id(), "expired"), (cancelled.id(), "cancelled")])
    );
    app.wait_for_units(&id, [10, 0, 0]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn money_for_no_order_is_recorded_as_unmatched() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let known = app.buy("ada", &id, "k", 1).await.ok(201).id();
    // An id that carries this sale's number, and one that carries no sale's.
    let nearby = format!("{}{}", &known[..34], if known.ends_with("00") { "01" } else { "00" });
    for (payment, order) in [("pay_1", nearby), ("pay_2", uuid::Uuid::new_v4().to_string())] {
        assert_eq!(app.pay_with(payment, &order, 49_900, "EUR").await, "unmatched");
        assert_eq!(app.pay_with(payment, &order, 49_900, "EUR").await, "duplicate");
    }
    let unmatched = recorded(&app, "unmatched").await;
    assert_eq!(unmatched.len(), 2);
    assert!(unmatched.iter().all(|it| it["order"].is_null()), "{unmatched:?}");
    app.assert_balanced(&id).await;
}

async fn settle(client: &Client, payment: &str, reference: &str) -> Answer {
    let request = client.request(Method::POST, Who::Operator, "/v1/admin/payments/settle");
    let body = json!({"payment_id": payment, "reference": reference});
    client.send(request.json(&body)).await
}

/// Ids of the payments that are listed so.
async fn listed(app: &TestApp, query: &str) -> Vec<String> {
    let all = recorded(app, query).await;
    let ids = all.iter().map(|it| it["payment_id"].as_str().unwrap().to_owned());
    ids.collect()
}

#[tokio::test]
async fn money_that_was_paid_back_is_said_so_once_and_is_owed_no_more() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    assert_eq!(app.pay_with("pay_odd", &order.id(), 1, "EUR").await, "refund_due");
    assert_eq!(app.pay_with("pay_even", &order.id(), 2, "EUR").await, "refund_due");
    // The provider's ids are arbitrary, and so is its name of a refund.
    let strange = "../a%2Fb?c=d&e #ü";
    let paid = app
        .webhook("msg_strange", &payment_body(strange, "none", 5, "EUR"))
        .await;
    assert_eq!(paid.ok(200).text("outcome"), "unmatched");
    let owed = async || {
        let alerts = app.stats(&id).await["alerts"].clone();
        [alerts["refunds_due"].clone(), alerts["unmatched_payments"].clone()]
    };
    assert_eq!(owed().await, [2, 1]);
    for payment in recorded(&app, "refund_due").await {
        assert_eq!(
            (&payment["settled_at"], &payment["settled_reference"]),
            (&Value::Null, &Value::Null)
        );
    }

    let before = Utc::now() - chrono::TimeDelta::seconds(1);
    let settled = settle(&app, "pay_odd", " re_1 <b>退款</b> ").await.ok(200);
    assert_eq!(
        (
            settled.text("payment_id"),
            settled.text("outcome"),
            settled.text("settled_reference")
        ),
        ("pay_odd", "refund_due", "re_1 <b>退款</b>")
    );
    let at: DateTime<Utc> = settled.text("settled_at").parse().unwrap();
    assert!(before < at && at < Utc::now() + chrono::TimeDelta::seconds(1), "{at}");
    assert_eq!(settle(&app, strange, "re_2").await.ok(200).text("outcome"), "unmatched");
    assert_eq!(owed().await, [1, 0]);
    // A repetition is answered the same, by every instance; another refund of the same money is refused.
    assert_eq!(
        settle(&other, "pay_odd", "re_1 <b>退款</b>").await.ok(200).body,
        settled.body
    );
    let refused = settle(&other, "pay_odd", "re_3").await.no(409, "invalid_transition");
    assert!(refused.text("detail").contains("as re_1 <b>退款</b>"), "{refused:?}");
    assert_eq!(owed().await, [1, 0]);
    // Settled payments stay readable, unchanged.
    assert_eq!(listed(&app, "refund_due").await, ["pay_even", "pay_odd"]);
    assert_eq!(listed(&app, "refund_due&settled=false").await, ["pay_even"]);
    assert_eq!(listed(&app, "unmatched&settled=false").await, [""; 0]);
    assert_eq!(listed(&app, "unmatched&settled=true").await, [strange]);
    let listed_settled = recorded(&app, "refund_due&settled=true").await.into_iter();
    assert_eq!(listed_settled.map(without_order).collect::<Vec<_>>(), [settled.body]);
    // And the provider may send it again.
    assert_eq!(app.pay_with("pay_odd", &order.id(), 1, "EUR").await, "duplicate");
    assert_eq!(owed().await, [1, 0]);
    let actions = app.get(Who::Operator, "/v1/admin/actions?limit=1").await.ok(200);
    let last = &actions.body["data"][0];
    assert_eq!(
        (&last["action"], &last["outcome"]),
        (&json!("payments.settle"), &json!("invalid_transition"))
    );
    assert_eq!(last["detail"], json!({"payment_id": "pay_odd", "reference": "re_3"}));
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn only_money_that_is_owed_back_can_be_paid_back() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    let waiting = app.buy("ada", &id, "k2", 1).await.ok(201);
    let mut database = app.database().await;
    let mut held = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("select 1 from shards where sale_id::text = $1 for update")
        .bind(&id)
        .execute(&mut *held)
        .await
        .unwrap();
    assert_eq!(app.pay("pay_2", &waiting.body).await, "pending");
    for (payment, outcome) in [("pay_1", "applied"), ("pay_2", "pending")] {
        let refused = settle(&app, payment, "re_1").await.no(409, "invalid_transition");
        assert!(refused.text("detail").contains(outcome), "{refused:?}");
    }
    held.rollback().await.unwrap();
    settle(&app, "pay_3", "re_1").await.no(404, "not_found");
    for outcome in ["applied&settled=true", "pending&settled=true"] {
        assert_eq!(recorded(&app, outcome).await.len(), 0);
    }
    assert_eq!(app.pay_with("pay_4", "none", 1, "EUR").await, "unmatched");
    let long = "x".repeat(201);
    for body in [
        json!({}),
        json!({"payment_id": "pay_4"}),
        json!({"reference": "re_1"}),
        json!({"payment_id": "pay_4", "reference": ""}),
        json!({"payment_id": "pay_4", "reference": " \u{3000}"}),
        json!({"payment_id": "pay_4", "reference": "a\nb"}),
        json!({"payment_id": "pay_4", "reference": "a\u{0}"}),
        json!({"payment_id": "pay_4", "reference": "a\u{202e}b"}),
        json!({"payment_id": "pay_4", "reference": long}),
        json!({"payment_id": "", "reference": "re_1"}),
        json!({"payment_id": "a\u{0}", "reference": "re_1"}),
        json!({"payment_id": "x".repeat(256), "reference": "re_1"}),
        json!({"payment_id": "pay_4", "reference": 1}),
        json!({"payment_id": "pay_4", "reference": "re_1", "amount": 1}),
    ] {
        let request = app.request(Method::POST, Who::Operator, "/v1/admin/payments/settle");
        app.send(request.json(&body)).await.no(400, "invalid_request");
    }
    for wrong in ["settled=no", "settled=", "settled=1"] {
        let path = format!("/v1/admin/payments?{wrong}");
        let refused = app.get(Who::Operator, &path).await.no(400, "invalid_request");
        assert!(refused.text("detail").contains("true or false"), "{refused:?}");
    }
    for who in [Who::Nobody, Who::Shopper("ada")] {
        let request = app.request(Method::POST, who, "/v1/admin/payments/settle");
        let body = json!({"payment_id": "pay_4", "reference": "re_1"});
        app.send(request.json(&body)).await.no(401, "unauthenticated");
    }
    assert_eq!(listed(&app, "unmatched&settled=false").await, ["pay_4"]);
    settle(&app, "pay_4", &"x".repeat(200)).await.ok(200);
}

#[tokio::test]
async fn of_two_simultaneous_refunds_of_one_payment_one_is_recorded() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    for round in 0..5 {
        let payment = format!("pay_{round}");
        assert_eq!(app.pay_with(&payment, "none", 1, "EUR").await, "unmatched");
        let sent = (0..8).map(|number| {
            let client = if number % 2 == 0 { &*app.instance } else { &*other }.clone();
            let payment = payment.clone();
            tokio::spawn(async move { settle(&client, &payment, &format!("re_{}", number / 4)).await })
        });
        let mut answers = Vec::new();
        for answer in sent.collect::<Vec<_>>() {
            answers.push(answer.await.unwrap());
        }
        let noted = without_order(recorded(&app, "unmatched&settled=true").await.remove(0));
        assert_eq!(noted["payment_id"], *payment);
        for (number, answer) in answers.into_iter().enumerate() {
            if noted["settled_reference"] == format!("re_{}", number / 4) {
                assert_eq!(answer.ok(200).body, noted);
            } else {
                answer.no(409, "invalid_transition");
            }
        }
    }
}

#[tokio::test]
async fn a_payment_that_overtakes_its_order_is_applied_all_the_same() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 3).await.ok(201);
    assert_eq!(app.order("ada", &order.id()).await.body["confirmed"], false);
    let outcome = app.pay("pay_1", &order.body).await;
    if outcome == "pending" {
        let _worker = app.another("worker");
        app.wait_for_order("ada", &order.id(), "paid").await;
    } else {
        assert_eq!(outcome, "applied");
        assert_eq!(app.order("ada", &order.id()).await.text("state"), "paid");
    }
    app.wait_for_units(&id, [7, 0, 3]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_payment_waits_for_an_order_that_another_process_drains_and_a_pending_one_settles_by_itself() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"shards": 1}))).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    // A drain locks the shard's row: held here, the order stays undrained.
    let mut database = app.database().await;
    let mut held = sqlx::Connection::begin(&mut database).await.unwrap();
    sqlx::query("select 1 from shards where sale_id::text = $1 for update")
        .bind(&id)
        .execute(&mut *held)
        .await
        .unwrap();
    let began = std::time::Instant::now();
    assert_eq!(app.pay("pay_1", &order.body).await, "pending");
    assert!(began.elapsed().as_millis() < 8_000, "waited {:?}", began.elapsed());
    assert_eq!(recorded(&app, "pending").await.len(), 1);
    assert_eq!(app.pay("pay_1", &order.body).await, "duplicate");
    held.rollback().await.unwrap();
    let _worker = app.another("worker");
    app.wait_for_order("ada", &order.id(), "paid").await;
    assert_eq!(recorded(&app, "pending").await.len(), 0);
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn an_order_past_its_deadline_that_was_not_expired_may_still_be_paid() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 1}))).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    let deadline: DateTime<Utc> = order.text("expires_at").parse().unwrap();
    poll::until_shortly_before(deadline.timestamp_millis(), -100).await;
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    let _worker = app.another("worker");
    app.wait_for_units(&id, [9, 0, 1]).await;
    assert_eq!(app.order("ada", &order.id()).await.text("state"), "paid");
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_same_payment_sent_many_times_at_once_is_applied_once() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    let calls = (0..12).map(|number| {
        let client = if number % 2 == 0 { &*app.instance } else { &*other };
        // Half of them are another payment for the same order.
        let (payment, order) = (format!("pay_{}", number / 6), &order.body);
        async move { pay(client, &payment, order).await }
    });
    let mut outcomes = join_all(calls).await;
    outcomes.retain(|outcome| outcome != "duplicate");
    // One whose order is locked is pending at first; one whose answer was lost is a duplicate.
    let known = ["applied", "refund_due", "pending"];
    assert!(
        outcomes.len() <= 2 && outcomes.iter().all(|it| known.contains(&it.as_str())),
        "{outcomes:?}"
    );
    poll::answer("both are decided", || async {
        let (applied, owed) = (recorded(&app, "applied").await, recorded(&app, "refund_due").await);
        (applied.len() == 1 && owed.len() == 1).then_some(())
    })
    .await;
    assert_eq!(app.payments_recorded().await, 2);
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_webhook_that_is_not_signed_as_it_should_be_leaves_no_trace() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    let body = payment_body("pay_1", &order.id(), 49_900, "EUR");
    let (key, now) = (webhook_key(), Utc::now().timestamp());
    let good = sign(&key, "msg_1", now, body.as_bytes());
    let at = |seconds: i64| {
        let signature = sign(&key, "msg_1", seconds, body.as_bytes());
        ("msg_1", seconds.to_string(), signature, body.clone())
    };
    let cases = [
        ("msg_2", now.to_string(), good.clone(), body.clone()),
        ("msg_1", (now + 1).to_string(), good.clone(), body.clone()),
        ("msg_1", now.to_string(), good.clone(), format!("{body} ")),
        ("msg_1", now.to_string(), good.replace("v1,", "v2,"), body.clone()),
        ("msg_1", now.to_string(), good.replace("v1,", ""), body.clone()),
        ("msg_1", now.to_string(), good.to_lowercase(), body.clone()),
        ("msg_1", now.to_string(), String::new(), body.clone()),
        ("msg_1", String::new(), good.clone(), body.clone()),
        ("", now.to_string(), good.clone(), body.clone()),
        ("msg_1", format!("+{now}"), good.clone(), body.clone()),
        ("msg_1", format!("{now}.0"), good.clone(), body.clone()),
        (
            "msg_1",
            now.to_string(),
            sign(&[1; 32], "msg_1", now, body.as_bytes()),
            body.clone(),
        ),
        at(now - 310),
        at(now + 310),
        at(0),
        at(i64::MAX),
    ];
    for (id, timestamp, signature, body) in cases {
        app.signed(id, &timestamp, &signature, &body)
            .await
            .no(401, "unauthenticated");
    }
    for missing in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut request = app.request(reqwest::Method::POST, Who::Nobody, "/v1/webhooks/payments");
        for (name, value) in [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", &now.to_string()),
            ("webhook-signature", &good),
        ] {
            if name != missing {
                request = request.header(name, value);
            }
        }
        let refused = app.send(request.body(body.clone())).await.no(401, "unauthenticated");
        assert_eq!(refused.text("detail"), format!("{missing} is missing"));
    }
    assert_eq!(app.payments_recorded().await, 0);
    assert_eq!(app.order("ada", &order.id()).await.text("state"), "reserved");
    // One of several signatures is enough, and nearly five minutes are no reason to refuse.
    let several = format!("v1a,xyz v1,AAAA {good} v2,BBBB");
    let applied = app.signed("msg_1", &now.to_string(), &several, &body).await;
    assert_eq!(applied.ok(200).text("outcome"), "applied");
    for seconds in [now - 280, now + 280] {
        let (id, timestamp, signature, body) = at(seconds);
        let answer = app.signed(id, &timestamp, &signature, &body).await;
        assert_eq!(answer.ok(200).text("outcome"), "duplicate");
    }
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_closed_sale_still_takes_the_money_for_its_orders() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201);
    app.operate(&id, "close").await.ok(200);
    assert_eq!(app.pay("pay_1", &order.body).await, "applied");
    app.wait_for_units(&id, [9, 0, 1]).await;
    app.assert_balanced(&id).await;
}
