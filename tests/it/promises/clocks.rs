//! Wrong clocks of hosts and of Postgres. Redis's clock decides starts, ends, windows, deadlines and bans, whichever
//! process does the work.

use crate::support::app::{Answer, Client, Instance, TestApp, Who, environment, payment_body, rfc3339, sale_with};
use crate::support::poll::{self, PATIENCE, within};
use crate::support::servers::{self, FreshPostgres, WrongClock};
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const AHEAD: TimeDelta = TimeDelta::minutes(40);
const STOCK: i64 = 30;
/// Shorter than the clocks are wrong, so a wrong clock would see every hold end at once.
const WINDOW: TimeDelta = TimeDelta::minutes(15);

/// A clock that is wrong by this much.
fn wrong_by(off: TimeDelta) -> WrongClock {
    let clock = WrongClock::new();
    clock.set(off.num_milliseconds());
    clock
}

/// A sale that has begun by the right clock and not by one that is behind, and that is over by one that is ahead.
fn sale(window: TimeDelta) -> Value {
    let now = Utc::now();
    sale_with(&json!({
        "starts_at": rfc3339(now - TimeDelta::minutes(20)),
        "ends_at": rfc3339(now + TimeDelta::minutes(20)),
        "payment_window_seconds": window.num_seconds(),
        "stock": STOCK,
    }))
}

fn time(of: &Value) -> DateTime<Utc> {
    of.as_str().unwrap().parse().unwrap()
}

/// How often a job has run to its end on this instance.
async fn runs(client: &Client, task: &str) -> f64 {
    let metrics = client.get(Who::Nobody, "/metrics").await.text;
    let runs = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let is_it = name.starts_with("flashsale_job_runs")
            && name.contains(&format!("task=\"{task}\""))
            && name.contains("result=\"done\"");
        is_it.then(|| value.parse::<f64>().unwrap())
    };
    metrics.lines().find_map(runs).unwrap_or_default()
}

/// Waits until each of these has run a job twice more: the second run began after this was called.
async fn run_twice(clients: &[&Client], task: &str) {
    for client in clients {
        let before = runs(client, task).await;
        within(PATIENCE, "the job runs twice", async || {
            runs(client, task).await >= before + 2.0
        })
        .await;
    }
}

async fn operate(client: &Client, path: &str, body: &Value) -> Answer {
    let request = client.request(Method::POST, Who::Operator, &format!("/v1/admin/{path}"));
    client.send(request.json(body)).await
}

/// Sells and settles through these clients. Jobs run on `workers`, and `right` accepts payments.
async fn keeps_its_promises(clients: &[&Client], workers: &[&Client], right: &Client) {
    let mut sales = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        sales.push(client.load_sale(&sale(WINDOW)).await);
        let short = client.load_sale(&sale(TimeDelta::seconds(1))).await;
        let user = format!("late-{number}");
        let order = client.buy(&user, &short, "k", 2).await.ok(201).id();
        let expired = right.wait_for_order(&user, &order, "expired").await;
        assert!(Utc::now() >= time(&expired.body["expires_at"]), "{expired:?}");
        right.wait_for_units(&short, [STOCK, 0, 0]).await;
        right.assert_balanced(&short).await;
    }
    let mut orders = Vec::new();
    for (seller, client) in clients.iter().enumerate() {
        for (number, sale) in sales.iter().enumerate() {
            let user = format!("ada-{seller}-{number}");
            let bought = client.buy(&user, sale, "k", 1).await.ok(201);
            let (from, until) = (time(&bought.body["created_at"]), time(&bought.body["expires_at"]));
            assert!((Utc::now() - from).abs() < TimeDelta::minutes(1), "{bought:?}");
            assert_eq!(until - from, WINDOW, "{bought:?}");
            for other in clients {
                let again = other.buy(&user, sale, "k", 1).await.ok(200);
                assert_eq!(again.id(), bought.id());
            }
            orders.push((user, sale, bought.body));
        }
    }
    for (user, _, order) in &orders {
        right
            .wait_for_order(user, order["id"].as_str().unwrap(), "reserved")
            .await;
    }
    run_twice(workers, "expire").await;
    for (user, _, order) in &orders {
        right
            .wait_for_order(user, order["id"].as_str().unwrap(), "reserved")
            .await;
    }
    // One unit of each sale is free again, and the others are sold.
    let per_sale = clients.len();
    for (number, (user, _, order)) in orders.iter().enumerate() {
        if number < per_sale {
            let cancelled = clients[number].cancel(user, order["id"].as_str().unwrap()).await;
            assert_eq!(cancelled.ok(200).body["state"], "cancelled");
        } else {
            assert_eq!(right.pay(&format!("p-{number}"), order).await, "applied");
        }
    }
    let sold = i64::try_from(clients.len() - 1).unwrap();
    for sale in &sales {
        right.wait_for_units(sale, [STOCK - sold, 0, sold]).await;
    }

    for (number, client) in clients.iter().enumerate() {
        let user = format!("bot-{number}");
        let ban = json!({"user": user, "reason": "a test"});
        operate(client, "bans", &ban).await.ok(201);
        // On a busy machine, the shard may get the ban, or its end, after the operator's answer.
        let stopped = async |seller: &Client, key: &str, quantity: i64| {
            let answer = seller.buy(&user, &sales[0], key, quantity).await;
            (answer.code() == "banned", answer)
        };
        // More than an account may have: until then, nothing is bought.
        poll::answer("the ban holds", || async {
            stopped(client, "all", 6).await.0.then_some(())
        })
        .await;
        for seller in clients {
            seller.buy(&user, &sales[0], "k", 1).await.no(403, "banned");
        }
        operate(client, "bans/lift", &json!({"user": user})).await.ok(200);
        for (key, seller) in clients.iter().enumerate() {
            let key = format!("k-{key}");
            let bought = poll::answer("the ban is lifted", || async {
                let (is_banned, answer) = stopped(seller, &key, 1).await;
                (!is_banned).then_some(answer)
            });
            bought.await.ok(201);
        }
    }

    for sale in &sales {
        let mut is_sold_out = BTreeSet::new();
        for number in 0.. {
            let at = number % clients.len();
            let answer = clients[at].buy(&format!("last-{number}"), sale, "k", 1).await;
            if answer.status != 201 {
                answer.no(409, "sold_out");
                is_sold_out.insert(at);
            }
            if is_sold_out.len() == clients.len() {
                break;
            }
        }
        right.wait_for_units(sale, [0, STOCK - sold, sold]).await;
        right.assert_balanced(sale).await;
        for client in clients {
            client.buy("late", sale, "k", 1).await.no(409, "sold_out");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_whose_clocks_are_wrong_keep_every_promise_beside_one_whose_clock_is_right() {
    // The jobs run on the wrong clocks alone.
    let right = TestApp::start_api_only().await;
    let clocks = [wrong_by(AHEAD), wrong_by(-AHEAD)];
    let [ahead, behind] = clocks.each_ref().map(|clock| {
        let mut environment = right.environment.clone();
        environment.extend(clock.environment());
        Instance::start(&environment, "all")
    });
    keeps_its_promises(&[&ahead, &behind, &right], &[&ahead, &behind], &right).await;

    // A ban with an end, which is over by the clock that is ahead.
    let sale = right.load_sale(&sale(WINDOW)).await;
    let ban = json!({"user": "bot", "reason": "a test", "until": rfc3339(Utc::now() + AHEAD / 2)});
    operate(&right, "bans", &ban).await.ok(201);
    for seller in [&*ahead, &behind, &right] {
        seller.buy("bot", &sale, "k", 1).await.no(403, "banned");
    }

    // Webhooks need the right time: a refused one leaves nothing, and the provider's next try pays.
    let order = ahead.buy("ada", &sale, "k", 1).await.ok(201).body;
    let payments = right.payments_recorded().await;
    for wrong in [&ahead, &behind] {
        let order = order["id"].as_str().unwrap();
        let body = payment_body("p-late", order, 49_900, "EUR");
        wrong.webhook("msg_p-late", &body).await.no(401, "unauthenticated");
    }
    assert_eq!(right.payments_recorded().await, payments);
    assert_eq!(right.pay("p-late", &order).await, "applied");
}

async fn postgres_is_wrong_by(off: TimeDelta) {
    let clock = wrong_by(off);
    let postgres = FreshPostgres::with_clock(&clock).await;
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&postgres.url())
        .await
        .unwrap();
    let now: DateTime<Utc> = sqlx::query_scalar("select now()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!((now - Utc::now() - off).abs() < TimeDelta::minutes(1), "{now}");
    let environment = environment(&servers::redis(), &postgres.url());
    let (one, other) = (
        Instance::start(&environment, "all"),
        Instance::start(&environment, "all"),
    );
    keeps_its_promises(&[&one, &other], &[&one, &other], &one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_whose_clock_is_ahead_ends_no_hold_early() {
    postgres_is_wrong_by(AHEAD).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_whose_clock_is_behind_ends_every_hold_in_time() {
    postgres_is_wrong_by(-AHEAD).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_clock_is_wrong_bans_until_the_right_time() {
    let right = TestApp::start_api_only().await;
    let id = right.load_sale(&sale(WINDOW)).await;
    for (off, bot) in [(AHEAD, "bot-1"), (-AHEAD, "bot-2")] {
        let clock = wrong_by(off);
        let mut environment = right.environment.clone();
        environment.extend(clock.environment());
        environment.insert("FLASHSALE_BROWSING_BAN_ABOVE".to_owned(), "5".to_owned());
        environment.insert("FLASHSALE_BROWSING_BAN_SECONDS".to_owned(), "1200".to_owned());
        let wrong = Instance::start(&environment, "api");
        within(PATIENCE, "the bot is banned for twenty minutes", async || {
            let _seen = wrong.get(Who::Shopper(bot), &format!("/v1/sales/{id}")).await;
            let bans = format!("/v1/admin/bans?user={bot}");
            let bans = wrong.get(Who::Operator, &bans).await.ok(200).body;
            bans["data"].as_array().unwrap().iter().any(|ban| {
                let left = time(&ban["banned_until"]) - Utc::now();
                (left - TimeDelta::minutes(20)).abs() < TimeDelta::minutes(1)
            })
        })
        .await;
        for (minutes, status) in [(20, 201), (-1, 400)] {
            let until = rfc3339(Utc::now() + TimeDelta::minutes(minutes));
            let ban = json!({"user": "eve", "reason": "a test", "until": until});
            let answer = operate(&wrong, "bans", &ban).await;
            assert_eq!(answer.status, status, "{off}: {answer:?}");
        }
    }
}
