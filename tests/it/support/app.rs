//! The program as the outside sees it: instances started as processes, and a client that speaks the API.

use super::{document, poll, servers};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::order::webhook;
use flashsale::domain::time;
use futures_util::future::join_all;
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use jsonwebtoken::{Algorithm, Header};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use sha2::{Sha256, Sha384, Sha512};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Secrets that no output may ever show.
pub const ADMIN_KEY: &str = "canary-admin-key-7c1f";
pub const JWT_SECRET: &str = "canary-jwt-secret-5d0e-0123456789abcdef";
/// `canary-webhook-secret-24` and eight more bytes, in base64.
pub const WEBHOOK_SECRET: &str = "whsec_Y2FuYXJ5LXdlYmhvb2stc2VjcmV0LTI0MDEyMzQ1Njc=";
/// `canary-alert-webhook-32` and eight more bytes, in base64; and where alerts are sent to.
pub const ALERT_WEBHOOK_SECRET: &str = "whsec_Y2FuYXJ5LWFsZXJ0LXdlYmhvb2stMzIwMTIzNDU2Nw==";
pub const ALERT_WEBHOOK_PATH: &str = "/canary-alert-path";
/// A secret was leaked if one of these is in an output.
pub const CANARIES: [&str; 6] = [
    ADMIN_KEY,
    JWT_SECRET,
    WEBHOOK_SECRET,
    "Y2FuYXJ5LXdlYmhvb2s",
    "Y2FuYXJ5LWFsZXJ0",
    ALERT_WEBHOOK_PATH,
];

/// Settings of instances that run for a second or two, and many at a time. Postgres starts a process for each connection.
/// With huge pages, each start would zero tens of megabytes.
pub const SPARING: [(&str, &str); 2] = [
    (
        "FLASHSALE_DATABASE_POOLS",
        r#"{"shoppers": 4, "operators": 4, "payments": 2, "jobs": 7, "reports": 2, "upkeep": 2}"#,
    ),
    ("MIMALLOC_ALLOW_THP", "0"),
];

/// These settings, to add to other variables.
pub fn sparing() -> Vec<(String, String)> {
    SPARING.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The variables of an instance on these servers.
pub fn environment(redis: &str, database: &str) -> BTreeMap<String, String> {
    let own = [
        ("FLASHSALE_LISTEN", "127.0.0.1:0"),
        ("FLASHSALE_REDIS_URL", redis),
        ("FLASHSALE_DATABASE_URL", database),
        ("FLASHSALE_ADMIN_KEY", ADMIN_KEY),
        ("FLASHSALE_JWT_SECRET", JWT_SECRET),
        ("FLASHSALE_WEBHOOK_SECRET", WEBHOOK_SECRET),
        ("FLASHSALE_LOG", "debug"),
        // All requests of a test come from one address, and often from one account.
        ("FLASHSALE_ADDRESS_RATE", "0"),
        ("FLASHSALE_ACCOUNT_RATE", "0"),
        ("FLASHSALE_ADDRESS_CONNECTIONS", "0"),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    own.into_iter().chain(sparing()).collect()
}

/// Where the program is: the one that was built with the tests, unless `FLASHSALE_TEST_PROGRAM` names another, like a
/// release build.
pub fn program_path() -> String {
    std::env::var("FLASHSALE_TEST_PROGRAM").unwrap_or_else(|_| {
        // Tests are in a folder of the folder of the programs.
        let test = std::env::current_exe().unwrap();
        let program = test.parent().unwrap().with_file_name("flashsale");
        assert!(program.exists(), "{program:?} is missing; run cargo build");
        program.to_str().unwrap().to_owned()
    })
}

/// The program, with these variables and no others, in a folder without `flashsale.toml`.
pub fn program(environment: &BTreeMap<String, String>, args: &[&str]) -> Command {
    command(&program_path(), environment, args)
}

/// A program, with these variables and no others, in a folder without `flashsale.toml`.
pub fn command(program: &str, environment: &BTreeMap<String, String>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(environment)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

/// How often an instance is started before a test fails.
const STARTS: usize = 3;

/// A serving process. It ends when this is dropped, and must not have leaked a secret or panicked.
pub struct Instance {
    child: Child,
    reader: Option<JoinHandle<()>>,
    log: Arc<Mutex<String>>,
    client: Client,
    may_log_errors: bool,
}

impl Instance {
    /// Starts `serve --role ROLE` and waits until it serves. Starts it again, as a supervisor does, where a busy machine
    /// leaves its servers without an answer.
    pub fn start(environment: &BTreeMap<String, String>, role: &str) -> Self {
        for _ in 1..STARTS {
            match Self::try_start(environment, role) {
                Err(log) if log.contains("no answer in time") => {}
                started => return started.unwrap_or_else(|log| panic!("the instance does not serve:\n{log}")),
            }
        }
        Self::try_start(environment, role).unwrap_or_else(|log| panic!("no start of the instance serves:\n{log}"))
    }

    /// Starts it once; returns its log if it does not serve.
    fn try_start(environment: &BTreeMap<String, String>, role: &str) -> Result<Self, String> {
        let mut child = program(environment, &["serve", "--role", role])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let (ready, is_ready) = mpsc::channel();
        let written = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in stderr.lines() {
                let line = line.unwrap_or_else(|error| error.to_string());
                written.lock().unwrap().push_str(&format!("{line}\n"));
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                match event["message"].as_str() {
                    // A test that no longer listens has its address.
                    Some("serving") => _ = ready.send(event["address"].as_str().unwrap().to_owned()),
                    Some("working") => _ = ready.send(String::new()),
                    _ => {}
                }
            }
        });
        let mut instance = Self {
            child,
            reader: Some(reader),
            log,
            client: Client::at(""),
            may_log_errors: false,
        };
        let address = is_ready.recv_timeout(poll::PATIENCE).map_err(|_| instance.log())?;
        instance.client = Client::at(&format!("http://{address}"));
        Ok(instance)
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The first log line with this text: an answer may arrive before an earlier line.
    pub async fn logged(&self, text: &str) -> String {
        super::poll::answer(&format!("a line of the log says {text:?}"), || async {
            self.log().lines().find(|line| line.contains(text)).map(str::to_owned)
        })
        .await
    }

    /// This test makes the instance log errors.
    pub fn may_log_errors(mut self) -> Self {
        self.may_log_errors = true;
        self
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as `kill` does, and waits for that. Returns how long it took.
    pub fn terminate(&mut self) -> Duration {
        let asked = Instant::now();
        servers::signal("TERM", &[self.pid()]);
        let mut ended = None;
        poll::eventually("the instance has ended", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success(), "{ended:?}");
        asked.elapsed()
    }

    /// Ends it without warning, as `kill -9` does.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _status = self.child.wait();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

impl Deref for Instance {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
        let log = self.log();
        if std::thread::panicking() {
            println!("an instance of this test has logged:\n{log}");
            return;
        }
        let error = if self.may_log_errors {
            None
        } else {
            Some("\"level\":\"ERROR\"")
        };
        for forbidden in CANARIES.into_iter().chain(["panicked at"]).chain(error) {
            assert!(!log.contains(forbidden), "{forbidden} in the log:\n{log}");
        }
    }
}

/// One instance, and its environment to start another beside it.
pub struct TestApp {
    pub instance: Instance,
    pub environment: BTreeMap<String, String>,
}

impl TestApp {
    /// An instance that does everything, on the shared Redis and a database of its own. Its role owns nothing there.
    pub async fn start() -> Self {
        Self::with("all", &[]).await
    }

    /// An instance that only answers HTTP: nothing is drained, expired or released behind the test's back.
    pub async fn start_api_only() -> Self {
        Self::with("api", &[]).await
    }

    /// One that does everything, for a test that is alone with its own sales.
    pub async fn shared() -> Shared {
        SHARED.app().await
    }

    /// The same, of the role `api`.
    pub async fn shared_api_only() -> Shared {
        SHARED_API.app().await
    }

    /// An instance with this role and these variables on top.
    pub async fn with(role: &str, variables: &[(&str, &str)]) -> Self {
        let mut environment = environment(&servers::redis(), &servers::as_app(&servers::database().await));
        environment.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        Self {
            instance: Instance::start(&environment, role),
            environment,
        }
    }

    /// Another instance on the same servers.
    pub fn another(&self, role: &str) -> Instance {
        Instance::start(&self.environment, role)
    }

    /// Runs a command of the operator's against this instance.
    pub fn run(&self, args: &[&str]) -> Ran {
        let mut environment = self.environment.clone();
        environment.insert("FLASHSALE_URL".to_owned(), self.url.clone());
        Ran::of(program(&environment, args).output().unwrap())
    }

    /// A connection of the superuser to the test's database.
    pub async fn database(&self) -> sqlx::PgConnection {
        let url = servers::as_role(&self.environment["FLASHSALE_DATABASE_URL"], "flashsale");
        <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap()
    }

    /// How many payments are recorded.
    pub async fn payments_recorded(&self) -> i64 {
        sqlx::query_scalar("select count(*) from payments")
            .fetch_one(&mut self.database().await)
            .await
            .unwrap()
    }
}

impl Deref for TestApp {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.instance
    }
}

/// How many tests one instance serves. Each leaves a sale there, whose permits it renews.
const TESTS_EACH: u32 = 10;

/// An instance and a database that some tests share: their sales, accounts and sessions do not meet. Payments need ids of
/// their own. It ends with the last of these tests. Its start takes as much processor time as many a test.
pub struct Shared {
    app: Arc<TestApp>,
    /// Of this test: connections of a client end with the runtime that has opened them.
    client: Client,
}

/// Instances of a kind, which serve some tests each.
pub struct Sharing {
    role: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// The present one, and how many tests have got it.
    present: tokio::sync::Mutex<(Weak<TestApp>, u32)>,
}

static SHARED: Sharing = Sharing::of("all", &[]);
static SHARED_API: Sharing = Sharing::of("api", &[]);

impl Sharing {
    pub const fn of(role: &'static str, variables: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            role,
            variables,
            present: tokio::sync::Mutex::const_new((Weak::new(), 0)),
        }
    }

    /// The present instance, or a fresh one.
    pub async fn app(&self) -> Shared {
        let mut present = self.present.lock().await;
        let (app, tests) = match present.0.upgrade() {
            Some(app) if present.1 < TESTS_EACH => (app, present.1),
            // Boxed, since it is large.
            _ => (Arc::new(Box::pin(TestApp::with(self.role, self.variables)).await), 0),
        };
        *present = (Arc::downgrade(&app), tests + 1);
        Shared {
            client: Client::at(&app.url),
            app,
        }
    }
}

impl Shared {
    /// Runs a command of the operator's against this instance.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.app.run(args)
    }
}

impl Deref for Shared {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "the instance of this test and of others has logged:\n{}",
                self.app.log()
            );
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        let ran = Self {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        for canary in CANARIES {
            assert!(
                !ran.stdout.contains(canary) && !ran.stderr.contains(canary),
                "{canary}: {ran:?}"
            );
        }
        ran
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The output, as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// An answer that keeps the rules of every answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Answer {
    async fn of(request: RequestBuilder) -> Self {
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let (method, url) = (request.method().clone(), request.url().clone());
        let sent = request.body().and_then(|body| body.as_bytes()).map(<[u8]>::to_vec);
        let response = client.execute(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let answer = Self {
            status: status.as_u16(),
            headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        };
        answer.keeps_the_rules(status);
        let said = (answer.status, &answer.headers, answer.text.as_str());
        document::check(method.as_str(), &url, sent.as_deref(), said);
        answer
    }

    fn keeps_the_rules(&self, status: StatusCode) {
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "{self:?}");
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(
                self.header("content-type"),
                Some("application/problem+json"),
                "{self:?}"
            );
            assert_eq!(self.body["status"], self.status, "{self:?}");
            assert_eq!(self.body["type"], format!("/problems/{}", self.code()), "{self:?}");
            for member in ["type", "title", "detail", "code"] {
                assert!(
                    self.body[member].as_str().is_some_and(|text| !text.is_empty()),
                    "{self:?}"
                );
            }
        }
        assert_eq!(
            self.header("retry-after").is_some(),
            [429, 503].contains(&self.status),
            "{self:?}"
        );
        if self.header("retry-after").is_some() {
            assert!(self.retry_after() >= 1, "{self:?}");
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The whole seconds of `Retry-After`.
    pub fn retry_after(&self) -> u64 {
        self.header("retry-after").unwrap().parse().unwrap()
    }

    /// Checks the status of a success.
    #[track_caller]
    pub fn ok(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Checks status and code of a refusal.
    #[track_caller]
    pub fn no(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code()), (status, code), "{self:?}");
        self
    }

    /// The code of a problem.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// The text of a member.
    #[track_caller]
    pub fn text(&self, member: &str) -> &str {
        self.body[member]
            .as_str()
            .unwrap_or_else(|| panic!("no {member} in {self:?}"))
    }

    /// The member `id`.
    #[track_caller]
    pub fn id(&self) -> String {
        self.text("id").to_owned()
    }
}

/// How long a request is sent again.
const READ_MAX: Duration = Duration::from_secs(10);

/// Who sends a request.
#[derive(Clone, Copy)]
pub enum Who<'a> {
    Nobody,
    Operator,
    Shopper(&'a str),
    Bearer(&'a str),
}

/// A client of one instance.
#[derive(Clone)]
pub struct Client {
    pub url: String,
    http: reqwest::Client,
}

/// The answer to a request that is sent again while it is 503, as a busy machine makes clients do.
pub async fn while_unavailable<F: Future<Output = Answer>>(send: impl Fn() -> F) -> Answer {
    let patience = poll::Patience::of(READ_MAX);
    loop {
        let answer = send().await;
        if answer.status != 503 || patience.is_over() {
            return answer;
        }
        poll::wait_out(answer.retry_after()).await;
    }
}

impl Client {
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    /// A request to be changed before it is sent.
    pub fn request(&self, method: Method, who: Who<'_>, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match who {
            Who::Nobody => request,
            Who::Operator => request.bearer_auth(ADMIN_KEY),
            Who::Shopper(user) => request.bearer_auth(token(user)),
            Who::Bearer(token) => request.bearer_auth(token),
        }
    }

    /// Sends a request, once more if a busy machine let the time for its head pass: then the server has read nothing of it.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let again = request.try_clone();
        match (Answer::of(request).await, again) {
            (answer, Some(again)) if answer.status == 408 => Answer::of(again).await,
            (answer, _) => answer,
        }
    }

    pub async fn get(&self, who: Who<'_>, path: &str) -> Answer {
        self.send(self.request(Method::GET, who, path)).await
    }

    pub async fn post(&self, who: Who<'_>, path: &str) -> Answer {
        self.send(self.request(Method::POST, who, path)).await
    }

    /// Creates a sale and returns its id.
    pub async fn create_sale(&self, sale: &Value) -> String {
        self.try_create_sale(sale).await.ok(201).id()
    }

    pub async fn try_create_sale(&self, sale: &Value) -> Answer {
        let request = self.request(Method::POST, Who::Operator, "/v1/admin/sales");
        self.send(request.json(sale)).await
    }

    /// Creates and preloads a sale and returns its id: with the times of [`sale`] it sells.
    pub async fn load_sale(&self, sale: &Value) -> String {
        let id = self.create_sale(sale).await;
        self.preload(&id).await.ok(200);
        id
    }

    /// Preloads a sale, as often as a busy machine keeps its lock from the request.
    pub async fn preload(&self, sale: &str) -> Answer {
        while_unavailable(|| self.operate(sale, "preload")).await
    }

    /// `preload`, `open`, `pause`, `resume` or `close`.
    pub async fn operate(&self, sale: &str, verb: &str) -> Answer {
        self.post(Who::Operator, &format!("/v1/admin/sales/{sale}/{verb}"))
            .await
    }

    pub async fn restock(&self, sale: &str, key: &str, sku: &str, quantity: i64) -> Answer {
        let request = self.request(Method::POST, Who::Operator, &format!("/v1/admin/sales/{sale}/restock"));
        let request = request.header("Idempotency-Key", key);
        self.send(request.json(&json!({"sku": sku, "quantity": quantity})))
            .await
    }

    /// The operators' view of a sale: `show` or a part of it. Tests of outages use [`Self::get`].
    pub async fn admin(&self, sale: &str, part: &str) -> Answer {
        let path = format!("/v1/admin/sales/{sale}{part}");
        while_unavailable(|| self.get(Who::Operator, &path)).await
    }

    pub async fn stats(&self, sale: &str) -> Value {
        self.admin(sale, "/stats").await.ok(200).body
    }

    /// Available, held and sold units of the first item, those on their way counted as available.
    pub async fn units(&self, sale: &str) -> [i64; 3] {
        let stats = self.stats(sale).await;
        let count = |name: &str| stats["items"][0][name].as_i64().unwrap();
        [count("available") + count("in_transit"), count("held"), count("sold")]
    }

    /// Waits until the units of the first item are these.
    pub async fn wait_for_units(&self, sale: &str, expected: [i64; 3]) {
        poll::answer(&format!("units {expected:?}"), || async {
            (self.units(sale).await == expected).then_some(())
        })
        .await;
    }

    /// Every unit of the sale is accounted for, in Redis, in Postgres and between them.
    pub async fn assert_balanced(&self, sale: &str) {
        let audit = self.admin(sale, "/audit").await.ok(200);
        assert_eq!(
            (&audit.body["balanced"], &audit.body["differences"]),
            (&json!(true), &json!([])),
            "{audit:?}"
        );
        let stats = self.stats(sale).await;
        if stats["state"] == "draft" {
            return;
        }
        for item in stats["items"].as_array().unwrap() {
            let count = |name: &str| item[name].as_i64().unwrap();
            let sum = count("available") + count("held") + count("sold") + count("in_transit");
            assert_eq!(sum, count("total"), "{stats}");
        }
    }

    /// A purchase to be changed before it is sent.
    pub fn buying(&self, user: &str, sale: &str, key: &str) -> RequestBuilder {
        self.request(Method::POST, Who::Shopper(user), &format!("/v1/sales/{sale}/orders"))
            .header("Idempotency-Key", key)
    }

    pub async fn buy(&self, user: &str, sale: &str, key: &str, quantity: i64) -> Answer {
        self.buy_sku(user, sale, key, "phone", quantity).await
    }

    pub async fn buy_sku(&self, user: &str, sale: &str, key: &str, sku: &str, quantity: i64) -> Answer {
        let request = self.buying(user, sale, key);
        self.send(request.json(&json!({"sku": sku, "quantity": quantity})))
            .await
    }

    /// So many shoppers with this name and a number buy one unit each, at once.
    pub async fn buy_at_once(&self, sale: &str, name: &str, shoppers: usize) -> Vec<(String, Answer)> {
        let purchases = (0..shoppers).map(|n| async move {
            let user = format!("{name}-{n}");
            let answer = self.buy(&user, sale, "k", 1).await;
            (user, answer)
        });
        join_all(purchases).await
    }

    pub async fn order(&self, user: &str, order: &str) -> Answer {
        self.get(Who::Shopper(user), &format!("/v1/orders/{order}")).await
    }

    pub async fn orders(&self, user: &str, sale: &str) -> Answer {
        self.get(Who::Shopper(user), &format!("/v1/orders?sale_id={sale}"))
            .await
    }

    pub async fn cancel(&self, user: &str, order: &str) -> Answer {
        self.post(Who::Shopper(user), &format!("/v1/orders/{order}/cancel"))
            .await
    }

    /// Waits until the order is in this state and confirmed.
    pub async fn wait_for_order(&self, user: &str, order: &str, state: &str) -> Answer {
        poll::answer(&format!("order {state}"), || async {
            let answer = self.order(user, order).await;
            if answer.status == 503 {
                return None;
            }
            let answer = answer.ok(200);
            (answer.body["state"] == state && answer.body["confirmed"] == true).then_some(answer)
        })
        .await
    }

    /// Sends a webhook with a correct signature.
    pub async fn webhook(&self, id: &str, body: &str) -> Answer {
        let now = Utc::now().timestamp();
        let signature = webhook::sign(&webhook_key(), id, now, body.as_bytes());
        self.signed(id, &now.to_string(), &signature, body).await
    }

    /// Sends a webhook with any signature.
    pub async fn signed(&self, id: &str, timestamp: &str, signature: &str, body: &str) -> Answer {
        let request = self
            .request(Method::POST, Who::Nobody, "/v1/webhooks/payments")
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature);
        self.send(request.body(body.to_owned())).await
    }

    /// Pays an order in full and returns the outcome; the payment's id is also the message's.
    pub async fn pay(&self, payment: &str, order: &Value) -> String {
        let amount = order["amount_minor"].as_i64().unwrap();
        self.pay_with(payment, order["id"].as_str().unwrap(), amount, "EUR")
            .await
    }

    pub async fn pay_with(&self, payment: &str, order: &str, amount: i64, currency: &str) -> String {
        let answer = self
            .webhook(
                &format!("msg_{payment}"),
                &payment_body(payment, order, amount, currency),
            )
            .await;
        answer.ok(200).text("outcome").to_owned()
    }
}

/// A webhook's body.
pub fn payment_body(payment: &str, order: &str, amount: i64, currency: &str) -> String {
    let data = json!({"payment_id": payment, "order_id": order, "amount_minor": amount, "currency": currency});
    json!({"type": "payment.succeeded", "timestamp": rfc3339(Utc::now()), "data": data}).to_string()
}

/// The key of the webhook secret.
pub fn webhook_key() -> Vec<u8> {
    webhook::decode_secret(WEBHOOK_SECRET).unwrap()
}

/// A shopper's token, good for an hour.
pub fn token(user: &str) -> String {
    token_of(
        &Header::new(Algorithm::HS256),
        JWT_SECRET,
        &json!({"sub": user, "exp": Utc::now().timestamp() + 3600}),
    )
}

/// Any token, also one of an algorithm that the server refuses.
pub fn token_of(header: &Header, secret: &str, claims: &Value) -> String {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let head = encode(&serde_json::to_vec(header).unwrap());
    let message = format!("{head}.{}", encode(claims.to_string().as_bytes()));
    fn mac<M: KeyInit + Mac>(secret: &str, message: &str) -> Vec<u8> {
        let mac = <M as KeyInit>::new_from_slice(secret.as_bytes()).unwrap();
        mac.chain_update(message).finalize().into_bytes().to_vec()
    }
    let signature = match header.alg {
        Algorithm::HS256 => mac::<Hmac<Sha256>>(secret, &message),
        Algorithm::HS384 => mac::<Hmac<Sha384>>(secret, &message),
        Algorithm::HS512 => mac::<Hmac<Sha512>>(secret, &message),
        other => panic!("{other:?} takes no secret"),
    };
    format!("{message}.{}", encode(&signature))
}

/// A sale that sells from an hour ago for two hours: ten phones, five a shopper, 499.00 each.
pub fn sale() -> Value {
    let now = Utc::now();
    json!({
        "name": "A sale",
        "starts_at": rfc3339(now - TimeDelta::hours(1)),
        "ends_at": rfc3339(now + TimeDelta::hours(1)),
        "shards": 2,
        "purchase_rate": {"limit": 1000, "window_ms": 60_000},
        "items": [{
            "sku": "phone", "name": "A phone", "price_minor": 49_900, "currency": "EUR", "stock": 10,
            "per_user_limit": 5,
        }],
    })
}

/// A sale with some changes: the members of `changes` instead of its own.
pub fn sale_with(changes: &Value) -> Value {
    let mut sale = sale();
    for (name, value) in changes.as_object().unwrap() {
        match sale["items"][0].get(name) {
            Some(_) if name != "name" => sale["items"][0][name] = value.clone(),
            _ => sale[name] = value.clone(),
        }
    }
    sale
}

/// As the API writes times.
pub fn rfc3339(at: DateTime<Utc>) -> String {
    time::format(&at)
}
