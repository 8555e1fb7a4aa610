//! Guard warnings for operators: by webhook, as a stream, and by command.

use crate::support::app::{
    ALERT_WEBHOOK_PATH, ALERT_WEBHOOK_SECRET, Client, Instance, TestApp, Who, environment, program, sale,
};
use crate::support::poll;
use crate::support::servers::{self, FreshPostgres};
use chrono::Utc;
use flashsale::domain::order::webhook;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

/// The second page view within a minute is one too many.
const WATCHFUL: (&str, &str) = ("FLASHSALE_BROWSING_ALERT_ABOVE", "1");

/// A request that a receiver got.
#[derive(Debug, Clone)]
struct Received {
    head: String,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(given, _)| given.eq_ignore_ascii_case(name)).unwrap().1
    }

    fn id(&self) -> &str {
        self.header("webhook-id")
    }

    /// The account that it is about, of a body whose signature fits.
    fn user(&self) -> String {
        let key = webhook::decode_secret(ALERT_WEBHOOK_SECRET).unwrap();
        let (at, signature) = (self.header("webhook-timestamp"), self.header("webhook-signature"));
        let now = Utc::now().timestamp();
        webhook::verify(&key, self.id(), at, signature, self.body.as_bytes(), now).unwrap();
        let body: Value = serde_json::from_str(&self.body).unwrap();
        body["data"]["user"].as_str().unwrap().to_owned()
    }
}

/// How a receiver answers.
#[derive(Debug, Clone)]
enum Reply {
    Status(u16),
    RedirectTo(String),
    /// Accepts it, with a body that is too long.
    Endless,
    /// Never.
    Silence,
}

/// A small HTTP server that records its requests.
struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Answers with these, one after the other, and with 204 after them.
    async fn replying(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{ALERT_WEBHOOK_PATH}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let replies = Arc::new(Mutex::new(VecDeque::from(replies.to_vec())));
        let seen = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (seen, replies) = (Arc::clone(&seen), Arc::clone(&replies));
                tokio::spawn(async move { serve(connection, &seen, &replies).await });
            }
        });
        Self { url, received }
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    async fn has_received(&self, count: usize) -> Vec<Received> {
        poll::within(Duration::from_secs(30), &format!("{count} deliveries"), async || {
            self.received().len() >= count
        })
        .await;
        self.received()
    }

    /// The variables of an instance that sends alerts here.
    fn variables(&self) -> [(&str, &str); 3] {
        [
            WATCHFUL,
            ("FLASHSALE_ALERT_WEBHOOK_URL", &self.url),
            ("FLASHSALE_ALERT_WEBHOOK_SECRET", ALERT_WEBHOOK_SECRET),
        ]
    }
}

async fn serve(mut connection: TcpStream, seen: &Mutex<Vec<Received>>, replies: &Mutex<VecDeque<Reply>>) {
    let mut bytes = Vec::new();
    let request = loop {
        let mut chunk = [0; 4096];
        let read = connection.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let (head, body) = (head.to_owned(), body.to_owned());
        let request = Received { head, body };
        if request.body.len() == request.header("content-length").parse::<usize>().unwrap() {
            break request;
        }
    };
    let reply = replies.lock().unwrap().pop_front();
    seen.lock().unwrap().push(request);
    let answer = match reply.unwrap_or(Reply::Status(204)) {
        Reply::Status(status) => format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        Reply::RedirectTo(url) => {
            format!("HTTP/1.1 307 X\r\nlocation: {url}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        }
        Reply::Endless => {
            let mut answer = "HTTP/1.1 200 X\r\nconnection: close\r\n\r\n".to_owned();
            while connection.write_all(answer.as_bytes()).await.is_ok() {
                answer = "x".repeat(65_536);
            }
            return;
        }
        Reply::Silence => {
            let _gone = connection.read(&mut [0]).await;
            return;
        }
    };
    let _gone = connection.write_all(answer.as_bytes()).await;
}

/// Raises a warning about a new account; returns which.
async fn view_too_often(client: &Client, sale: &str) -> String {
    let user = format!("bot-{}", Uuid::new_v4());
    for _ in 0..2 {
        client
            .get(Who::Shopper(&user), &format!("/v1/sales/{sale}"))
            .await
            .ok(200);
    }
    user
}

/// The same, and waits until the warning is raised: no page view waits for that.
async fn raise(client: &Client, sale: &str) -> String {
    let user = view_too_often(client, sale).await;
    is_listed(client, &user).await;
    user
}

async fn alerts(client: &Client) -> Vec<Value> {
    let listed = client.get(Who::Operator, "/v1/admin/alerts").await.ok(200).body;
    listed["data"].as_array().unwrap().clone()
}

/// Waits until the newest alert is about this account.
async fn is_listed(client: &Client, user: &str) -> Value {
    poll::answer("the alert is in the list", || async {
        let newest = alerts(client).await.into_iter().next()?;
        (newest["user"] == user).then_some(newest)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_is_sent_to_the_webhook_and_shown_as_delivered() {
    let receiver = Receiver::replying(&[]).await;
    let app = TestApp::with("all", &receiver.variables()).await;
    let id = app.load_sale(&sale()).await;
    let begun = poll::Stopwatch::start();
    let first = raise(&app, &id).await;
    let received = receiver.has_received(1).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let listed = poll::answer("it is delivered", || async {
        let newest = is_listed(&app, &first).await;
        newest["delivered_at"].is_string().then_some(newest)
    })
    .await;
    assert_eq!(received[0].user(), first);
    assert_eq!(received[0].header("content-type"), "application/json");
    assert!(
        received[0]
            .head
            .starts_with(&format!("POST {ALERT_WEBHOOK_PATH} HTTP/1.1"))
    );
    // The alert as in the list, without the delivery's outcome.
    let mut shown = listed.clone();
    for state in ["delivered_at", "given_up_at"] {
        shown.as_object_mut().unwrap().remove(state).unwrap();
    }
    let body: Value = serde_json::from_str(&received[0].body).unwrap();
    let expected = json!({"type": "alert.browsing", "timestamp": listed["raised_at"], "data": shown});
    assert_eq!(body, expected);
    let mut users = vec![first];
    for _ in 0..5 {
        users.push(raise(&app, &id).await);
    }
    let received = receiver.has_received(6).await;
    let sent: Vec<String> = received.iter().map(Received::user).collect();
    assert_eq!(sent, users, "in their order");
    let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
    assert!(
        metrics.contains("flashsale_alert_deliveries_total{outcome=\"delivered\"}"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recent_alerts_are_counted_without_a_recorded_read_of_their_accounts() {
    let app = TestApp::with("all", &[WATCHFUL]).await;
    let id = app.load_sale(&sale()).await;
    let health = async || app.get(Who::Operator, "/v1/admin/health").await.ok(200).body;
    assert_eq!(health().await["recent_warnings"], 0);
    let user = view_too_often(&app, &id).await;
    poll::within(poll::PATIENCE, "the alert is counted", async || {
        health().await["recent_warnings"] == 1
    })
    .await;
    assert!(!health().await.to_string().contains(&user));
    let insert = "insert into guard_alerts (raised_at, kind, user_id, detail) \
         select now() - $1 * interval '1 minute', 'browsing', 'bot', 'a test' from generate_series(1, $2)";
    let mut database = app.database().await;
    for (minutes_ago, more, counted) in [(16, 5, 1), (14, 97, 98), (1, 500, 100)] {
        let insert = sqlx::query(insert).bind(minutes_ago).bind(more);
        insert.execute(&mut database).await.unwrap();
        poll::within(poll::PATIENCE, &format!("{counted} are counted"), async || {
            health().await["recent_warnings"] == counted
        })
        .await;
    }
    let actions = app.get(Who::Operator, "/v1/admin/actions").await.ok(200).body;
    let mut actions = actions["data"].as_array().unwrap().iter();
    assert!(actions.all(|it| it["action"] != "alerts.read"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_webhook_is_sent_again_with_the_same_id_until_it_is_accepted() {
    let receiver = Receiver::replying(&[Reply::Status(500), Reply::Status(500), Reply::Endless]).await;
    let app = TestApp::with("all", &receiver.variables()).await;
    let id = app.load_sale(&sale()).await;
    let user = raise(&app, &id).await;
    let received = receiver.has_received(3).await;
    assert!(
        received
            .iter()
            .all(|it| it.id() == received[0].id() && it.user() == user)
    );
    assert!(received.iter().all(|it| it.body == received[0].body));
    poll::answer("it is delivered", || async {
        is_listed(&app, &user).await["delivered_at"].is_string().then_some(())
    })
    .await;
    // The next one has another id. A fourth attempt of the first would be due now, and come before it.
    sqlx::query("update guard_alerts set not_before = now() - interval '1 hour'")
        .execute(&mut app.database().await)
        .await
        .unwrap();
    let next = raise(&app, &id).await;
    let received = receiver.has_received(4).await;
    assert_eq!(received[3].user(), next);
    assert_ne!(received[3].id(), received[0].id());
    poll::answer("both are delivered", || async {
        is_listed(&app, &next).await["delivered_at"].is_string().then_some(())
    })
    .await;
    assert_eq!(receiver.received().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_send_each_alert_once_and_in_order() {
    let receiver = Receiver::replying(&[]).await;
    let app = TestApp::with("all", &receiver.variables()).await;
    let others = [app.another("worker"), app.another("all")];
    let id = app.load_sale(&sale()).await;
    for number in 0..20 {
        let client = if number % 2 == 0 { &*app.instance } else { &*others[1] };
        view_too_often(client, &id).await;
    }
    poll::within(Duration::from_secs(30), "all are delivered", async || {
        let alerts = alerts(&app).await;
        alerts.len() == 20 && alerts.iter().all(|alert| alert["delivered_at"].is_string())
    })
    .await;
    let sent: Vec<String> = receiver.received().iter().map(Received::user).collect();
    let listed = alerts(&app).await;
    let raised: Vec<&str> = listed
        .iter()
        .rev()
        .map(|alert| alert["user"].as_str().unwrap())
        .collect();
    assert_eq!(sent, raised);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_address_nothing_is_sent_and_what_is_a_day_old_never_will_be() {
    let receiver = Receiver::replying(&[]).await;
    let app = TestApp::with("all", &[WATCHFUL]).await;
    let id = app.load_sale(&sale()).await;
    let old = raise(&app, &id).await;
    let young = raise(&app, &id).await;
    let mut database = app.database().await;
    // A sender polls for alerts once a second, like this job.
    let rounds = async || {
        let metrics = app.get(Who::Nobody, "/metrics").await.ok(200).text;
        let runs = "flashsale_job_runs_total{task=\"settle\",result=\"done\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(runs));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let before = rounds().await;
    poll::within(Duration::from_secs(20), "two rounds of the jobs", async || {
        rounds().await >= before + 2
    })
    .await;
    let touched: i64 = sqlx::query_scalar(
        "select count(*) from guard_alerts where attempts > 0 or claimed_until is not null or delivered_at is not null \
         or given_up_at is not null",
    )
    .fetch_one(&mut database)
    .await
    .unwrap();
    assert_eq!(touched, 0);
    sqlx::query("update guard_alerts set raised_at = raised_at - interval '1 day' where user_id = $1")
        .bind(&old)
        .execute(&mut database)
        .await
        .unwrap();
    let mut environment = app.environment.clone();
    let variables = receiver
        .variables()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    environment.extend(variables);
    let worker = Instance::start(&environment, "worker");
    assert_eq!(receiver.has_received(1).await[0].user(), young);
    let given_up = poll::answer("the old one is given up", || async {
        let listed = alerts(&app).await;
        listed[1]["given_up_at"].is_string().then(|| listed[1].clone())
    })
    .await;
    assert_eq!(
        (&given_up["user"], &given_up["delivered_at"]),
        (&json!(old), &Value::Null)
    );
    poll::answer("the log says so", || async {
        worker.log().contains("given up").then_some(())
    })
    .await;
    assert_eq!(receiver.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::replying(&[]).await;
    let receiver = Receiver::replying(&[Reply::RedirectTo(elsewhere.url.clone())]).await;
    let app = TestApp::with("all", &receiver.variables()).await;
    let id = app.load_sale(&sale()).await;
    let user = raise(&app, &id).await;
    let received = receiver.has_received(2).await;
    assert_eq!((received[0].id(), received[1].user()), (received[1].id(), user));
    assert!(elsewhere.received().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_of_a_killed_process_is_sent_by_another_with_the_same_id() {
    let receiver = Receiver::replying(&[Reply::Silence]).await;
    let mut app = TestApp::with("all", &receiver.variables()).await;
    let id = app.load_sale(&sale()).await;
    let user = raise(&app, &id).await;
    receiver.has_received(1).await;
    app.instance.kill();
    let other = app.another("all");
    let received = receiver.has_received(2).await;
    assert_eq!((received[0].id(), received[1].user()), (received[1].id(), user.clone()));
    poll::answer("it is delivered", || async {
        is_listed(&other, &user).await["delivered_at"].is_string().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_does_not_answer_does_not_delay_the_end_of_an_instance() {
    let receiver = Receiver::replying(&[Reply::Silence]).await;
    let mut app = TestApp::with("all", &receiver.variables()).await;
    let id = app.load_sale(&sale()).await;
    raise(&app, &id).await;
    receiver.has_received(1).await;
    let took = app.instance.terminate();
    // Less than the ten seconds that jobs and open requests get.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// A stream of alerts with a reader.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    async fn open(client: &Client, after: Option<i64>) -> Self {
        let mut request = client.request(Method::GET, Who::Operator, "/v1/admin/alerts/stream");
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self {
            response,
            text: String::new(),
        };
        let first = stream.block().await.unwrap();
        assert!(first.starts_with("retry: 2000\n"), "{first}");
        stream
    }

    /// The lines up to the next empty one; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk = tokio::time::timeout(Duration::from_secs(30), self.response.chunk());
            let chunk = chunk.await.expect("there is a comment every 15 seconds").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next alert: its number, and whom it is about.
    async fn alert(&mut self) -> (i64, String) {
        let block = loop {
            let block = self.block().await.expect("the stream goes on");
            if !block.starts_with(':') {
                break block;
            }
        };
        let lines: Vec<&str> = block.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, "event: alert"), "{block}");
        let alert: Value = serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
        let id = alert["id"].as_i64().unwrap();
        assert_eq!(lines[0], format!("id: {id}"));
        (id, alert["user"].as_str().unwrap().to_owned())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_is_in_every_stream_at_once_and_a_stream_goes_on_where_the_last_one_ended() {
    let app = TestApp::with("api", &[WATCHFUL]).await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let before = raise(&app, &id).await;
    let first_id = is_listed(&app, &before).await["id"].as_i64().unwrap();
    let mut streams = [Stream::open(&app, None).await, Stream::open(&other, None).await];
    let begun = poll::Stopwatch::start();
    let user = raise(&app, &id).await;
    for stream in &mut streams {
        assert_eq!(stream.alert().await.1, user);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // Nobody reads while more come than are sent or kept at once.
    drop(streams);
    let mut database = app.database().await;
    let many = "insert into guard_alerts (kind, user_id, detail) select 'browsing', 'n' || n, '' \
                from generate_series(1, 300) n";
    sqlx::query(many).execute(&mut database).await.unwrap();
    let mut stream = Stream::open(&other, Some(first_id)).await;
    let mut seen = vec![stream.alert().await];
    assert_eq!(seen[0].1, user);
    for number in 1..=300 {
        seen.push(stream.alert().await);
        assert_eq!(seen.last().unwrap().1, format!("n{number}"));
    }
    let last = raise(&app, &id).await;
    assert_eq!(stream.alert().await.1, last);
    assert!(seen.iter().zip(&seen[1..]).all(|(one, next)| one.0 < next.0));
    // A number that was never given, as after a restore: the stream begins with new alerts.
    let mut stream = Stream::open(&app, Some(i64::MAX)).await;
    let last = raise(&app, &id).await;
    assert_eq!(stream.alert().await.1, last);
    let mut stream = Stream::open(&app, Some(0)).await;
    assert_eq!(stream.alert().await.1, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_for_a_while_loses_nothing() {
    let app = TestApp::with("api", &[WATCHFUL]).await;
    let mut stream = Stream::open(&app, None).await;
    let mut database = app.database().await;
    // More than its instance keeps for it, and more than the connection's buffers hold.
    for _ in 0..40 {
        let many = "insert into guard_alerts (kind, user_id, detail) select 'browsing', 'n', repeat('x', 1000) \
                    from generate_series(1, 250)";
        sqlx::query(many).execute(&mut database).await.unwrap();
    }
    // All of it has been sent, to a reader.
    let mut reader = Stream::open(&app, Some(0)).await;
    while reader.alert().await.0 < 10_000 {}
    let mut last = 0;
    for _ in 0..10_000 {
        let (id, _) = stream.alert().await;
        assert_eq!(id, last + 1);
        last = id;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_for_operators_says_what_it_does_not_take_and_is_alive() {
    let app = TestApp::start_api_only().await;
    let path = "/v1/admin/alerts/stream";
    for who in [Who::Nobody, Who::Shopper("ada"), Who::Bearer("wrong")] {
        app.get(who, path).await.no(401, "unauthenticated");
    }
    for id in ["x", "-1", "1.5", "99999999999999999999"] {
        let request = app
            .request(Method::GET, Who::Operator, path)
            .header("Last-Event-ID", id);
        app.send(request).await.no(400, "invalid_request");
    }
    app.post(Who::Operator, path).await.no(405, "method_not_allowed");
    let head = app.request(Method::HEAD, Who::Operator, path).send().await.unwrap();
    assert_eq!(head.status(), 405);
    let mut stream = Stream::open(&app, None).await;
    let begun = std::time::Instant::now();
    assert_eq!(stream.block().await.as_deref(), Some(":"));
    assert!((10..=25).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_limits_its_streams_and_ends_all_of_them_on_shutdown() {
    let mut app = TestApp::with("all", &[WATCHFUL]).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(Stream::open(&app, None).await);
    }
    app.get(Who::Operator, "/v1/admin/alerts/stream")
        .await
        .no(503, "overloaded");
    let id = app.load_sale(&sale()).await;
    let user = raise(&app, &id).await;
    for stream in &mut streams {
        assert_eq!(stream.alert().await.1, user);
    }
    // One that leaves makes room.
    drop(streams.pop());
    let client = (**app).clone();
    poll::within(Duration::from_secs(40), "there is room again", async || {
        let request = client.request(Method::GET, Who::Operator, "/v1/admin/alerts/stream");
        request.send().await.unwrap().status() == 200
    })
    .await;
    let took = app.instance.terminate();
    // Less than the ten seconds that jobs and open requests get.
    assert!(took < Duration::from_secs(8), "{took:?}");
    for stream in &mut streams {
        while let Some(block) = stream.block().await {
            assert_eq!(block, ":");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_outlives_postgres_and_loses_no_alert() {
    let mut postgres = FreshPostgres::start().await;
    let mut variables = environment(&servers::redis(), &postgres.url());
    variables.insert(WATCHFUL.0.to_owned(), WATCHFUL.1.to_owned());
    let instance = Instance::start(&variables, "api");
    let id = instance.load_sale(&sale()).await;
    let mut stream = Stream::open(&instance, None).await;
    let user = raise(&instance, &id).await;
    assert_eq!(stream.alert().await.1, user);
    postgres.stop();
    poll::answer("the instance notices", || async {
        let answer = instance.get(Who::Operator, "/v1/admin/alerts").await;
        (answer.status == 503).then_some(())
    })
    .await;
    postgres.restart();
    // From another process, and before this instance has a connection again.
    let mut database = <sqlx::PgConnection as sqlx::Connection>::connect(&postgres.url())
        .await
        .unwrap();
    sqlx::query("insert into guard_alerts (kind, user_id, detail) values ('browsing', 'unheard', '')")
        .execute(&mut database)
        .await
        .unwrap();
    assert_eq!(stream.alert().await.1, "unheard");
    let user = raise(&instance, &id).await;
    assert_eq!(stream.alert().await.1, user);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_lists_alerts_and_follows_them_across_a_restart() {
    let mut app = TestApp::with("all", &[WATCHFUL]).await;
    let id = app.load_sale(&sale()).await;
    let first = raise(&app, &id).await;
    let listed = app.run(&["alerts", "list", "--json"]).ended(0).json();
    assert_eq!(
        (&listed[0]["user"], &listed[0]["delivered_at"]),
        (&json!(first), &Value::Null)
    );
    let shown = app.run(&["alerts", "list"]).ended(0).stdout;
    assert!(shown.contains(&first) && shown.contains("browsing"), "{shown}");

    // At an address that stays the same.
    let address = format!("127.0.0.1:{}", servers::free_port());
    app.environment.insert("FLASHSALE_LISTEN".to_owned(), address.clone());
    let mut followed = app.another("api");
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_URL".to_owned(), format!("http://{address}"));
    let mut following = program(&environment, &["alerts", "follow", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (read, stdout) = (Arc::clone(&lines), BufReader::new(following.stdout.take().unwrap()));
    let reader = std::thread::spawn(move || {
        for line in stdout.lines() {
            let alert: Value = serde_json::from_str(&line.unwrap()).unwrap();
            read.lock().unwrap().push(alert["user"].as_str().unwrap().to_owned());
        }
    });
    // Which of them it sees first depends on when it has begun.
    let mut raised = Vec::new();
    poll::within(Duration::from_secs(20), "the first line", async || {
        raised.push(raise(&app, &id).await);
        !lines.lock().unwrap().is_empty()
    })
    .await;
    followed.terminate();
    for _ in 0..2 {
        raised.push(raise(&app, &id).await);
    }
    let _again = app.another("api");
    raised.push(raise(&app, &id).await);
    poll::within(Duration::from_secs(20), "the last line", async || {
        lines.lock().unwrap().last() == raised.last()
    })
    .await;
    let seen = lines.lock().unwrap().clone();
    assert!(raised.ends_with(&seen), "{raised:?} {seen:?}");
    // Not INT, which a process in the background ignores.
    servers::signal("TERM", &[following.id()]);
    following.wait().unwrap();
    reader.join().unwrap();
}
