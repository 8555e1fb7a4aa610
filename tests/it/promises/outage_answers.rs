//! While a server is away or hangs, every request is answered within two seconds, and the log names the fault once and
//! its end once.

use crate::support::app::{Client, Instance, TestApp, Who, environment, payment_body, sale_with};
use crate::support::poll::{PATIENCE, Stopwatch, within};
use crate::support::servers::{DurableRedis, FreshPostgres, Frozen};
use chrono::Utc;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The longest that a client waits for an answer. Time in which the machine stood still does not count.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The longest with that time.
const ANSWER_MAX_BUSY: Duration = Duration::from_secs(4);
/// How long an outage lasts: longer than permits hold, and than any server is waited for.
const OUTAGE: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, PartialEq)]
enum Away {
    Killed,
    Hangs,
}

/// Both servers, and one that hangs until it is let go.
struct Servers {
    redis: DurableRedis,
    postgres: FreshPostgres,
    frozen: Vec<Frozen>,
}

impl Servers {
    fn begin(&mut self, redis: Option<Away>, postgres: Option<Away>) {
        match redis {
            Some(Away::Killed) => self.redis.kill(),
            Some(Away::Hangs) => self.frozen.push(Frozen::one(self.redis.pid())),
            None => {}
        }
        match postgres {
            Some(Away::Killed) => self.postgres.kill(),
            Some(Away::Hangs) => self.frozen.push(Frozen::postgres(self.postgres.server())),
            None => {}
        }
    }

    fn end(&mut self, redis: Option<Away>) {
        self.frozen.clear();
        if redis == Some(Away::Killed) {
            self.redis.restart();
        }
        self.postgres.restart();
    }
}

/// The requests during an outage: a name, the status without Redis, and the status without Postgres. Without both it is 503.
/// A decision of the ledger stands also while it cannot be delivered to Redis.
const REQUESTS: [(&str, u16, u16); 8] = [
    ("buy", 503, 201),
    ("repeat", 503, 200),
    ("order", 200, 200),
    ("cancel", 200, 503),
    ("pay", 200, 503),
    ("sale", 503, 200),
    ("stats", 503, 503),
    ("ready", 503, 503),
];

async fn ask(client: &Client, what: &str, id: &str, [kept, cancelled, paid]: &[Value; 3], n: usize) -> (u16, Duration) {
    let (asked, watch) = (Instant::now(), Stopwatch::start());
    let id_of = |order: &Value| order["id"].as_str().unwrap().to_owned();
    let answer = match what {
        "buy" => client.buy(&format!("late-{n}"), id, "k", 1).await,
        "repeat" => client.buy("ada", id, "k", 1).await,
        "order" => client.order("ada", &id_of(kept)).await,
        "cancel" => client.cancel("ada", &id_of(cancelled)).await,
        "pay" => {
            let amount = paid["amount_minor"].as_i64().unwrap();
            let body = payment_body(&format!("p{n}"), &id_of(paid), amount, "EUR");
            client.webhook(&format!("msg_{n}"), &body).await
        }
        "sale" => client.get(Who::Nobody, &format!("/v1/sales/{id}")).await,
        "stats" => client.get(Who::Operator, &format!("/v1/admin/sales/{id}/stats")).await,
        _ => client.get(Who::Nobody, "/readyz").await,
    };
    assert!(asked.elapsed() < ANSWER_MAX_BUSY, "{what} after {:?}", asked.elapsed());
    (answer.status, watch.elapsed())
}

/// How often each warning, error and notice was logged, by message and subject.
fn said(log: &str) -> BTreeMap<String, usize> {
    let mut said = BTreeMap::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        if !["INFO", "WARN", "ERROR"].contains(&event["level"].as_str().unwrap()) {
            continue;
        }
        let of: Vec<&str> = ["level", "message", "what", "lane", "shard"]
            .iter()
            .filter_map(|member| event[*member].as_str())
            .collect();
        let shard = event["shard"].as_u64().map(|shard| format!(" shard {shard}"));
        *said
            .entry(of.join(" ") + shard.as_deref().unwrap_or_default())
            .or_default() += 1;
    }
    said
}

async fn answers_and_logs_during(redis: Option<Away>, postgres: Option<Away>) {
    let mut servers = Servers {
        redis: DurableRedis::start(),
        postgres: FreshPostgres::on_disk().await,
        frozen: Vec::new(),
    };
    let app = TestApp {
        environment: environment(&servers.redis.url(), &servers.postgres.url()),
        instance: Instance::start(&environment(&servers.redis.url(), &servers.postgres.url()), "all"),
    };
    let id = app.load_sale(&sale_with(&json!({"stock": 5000}))).await;
    let mut orders = Vec::new();
    for key in ["k", "cancelled", "paid"] {
        let order = app.buy("ada", &id, key, 1).await.ok(201).body;
        app.wait_for_order("ada", order["id"].as_str().unwrap(), "reserved")
            .await;
        orders.push(order);
    }
    let orders: [Value; 3] = orders.try_into().unwrap();
    let before = app.log().len();

    servers.begin(redis, postgres);
    let (began, mut n) = (Instant::now(), 0);
    let mut wrong = Vec::new();
    let is_noticed = || app.log()[before..].contains("has to wait");
    while began.elapsed() < OUTAGE || (!is_noticed() && began.elapsed() < PATIENCE) {
        n += 1;
        let asked = REQUESTS.map(|(what, without_redis, without_postgres)| {
            let (client, id, orders) = ((**app).clone(), id.clone(), orders.clone());
            async move {
                let (status, took) = ask(&client, what, &id, &orders, n).await;
                let expected = match (redis.is_some(), postgres.is_some()) {
                    (true, false) => without_redis,
                    (false, true) => without_postgres,
                    _ => 503,
                };
                (what, status, expected, took)
            }
        });
        for (what, status, expected, took) in futures_util::future::join_all(asked).await {
            if status != expected || took >= ANSWER_MAX {
                wrong.push(format!("{what}: {status}, expected {expected}, after {took:?}"));
            }
        }
    }
    servers.end(redis);
    assert!(wrong.is_empty(), "{wrong:#?}");

    within(PATIENCE, "everything works again", async || {
        app.get(Who::Nobody, "/readyz").await.status == 200
            && app.buy(&format!("again-{}", Utc::now()), &id, "k", 1).await.status == 201
    })
    .await;
    // Each waiting part logs the fault once, and once that it works again.
    let mut log = BTreeMap::new();
    within(PATIENCE, "the log says that it is over", async || {
        log = said(&app.log()[before..]);
        let times = |text: &str| {
            log.iter()
                .filter(|(line, _)| line.contains(text))
                .map(|(_, n)| n)
                .sum::<usize>()
        };
        times("has to wait") == times("works again")
    })
    .await;
    assert!(log.keys().any(|line| line.contains("has to wait")), "{log:#?}");
    let repeated: Vec<_> = log.iter().filter(|(_, times)| **times > 1).collect();
    assert!(repeated.is_empty(), "{repeated:#?} of {log:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_away_is_answered_503_and_logged_once() {
    answers_and_logs_during(Some(Away::Killed), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_is_answered_503_and_logged_once() {
    answers_and_logs_during(Some(Away::Hangs), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_away_is_answered_503_and_logged_once() {
    answers_and_logs_during(None, Some(Away::Killed)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_hangs_is_answered_503_and_logged_once() {
    answers_and_logs_during(None, Some(Away::Hangs)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_that_are_away_are_answered_503_and_logged_once() {
    answers_and_logs_during(Some(Away::Killed), Some(Away::Killed)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_that_hang_are_answered_503_and_logged_once() {
    answers_and_logs_during(Some(Away::Hangs), Some(Away::Hangs)).await;
}
