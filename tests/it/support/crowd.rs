//! A world of its own for each test: a database, instances inside this process and as processes, shoppers, and the
//! checks that must hold once everything is at rest.

use super::app::{SPARING, program_path};
use super::poll::{PATIENCE, Patience, answer, within};
use super::servers;
use chrono::{TimeDelta, Utc};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::domain::fault::Fault;
use flashsale::domain::ids::{OrderId, SaleId, UserId};
use flashsale::domain::operator::report::{Audit, ItemAudit};
use flashsale::domain::order::payment::Payment;
use flashsale::domain::order::purchase::{PurchaseOutcome, PurchaseRequest, Refusal};
use flashsale::domain::order::webhook;
use flashsale::domain::order::{CancelOutcome, Order};
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::sale::{Durability, Item, NewSale, PurchaseRate, Sale};
use flashsale::domain::shopper::ban::{BanEnd, BannedBy, NewBan};
use flashsale::domain::shopper::token;
use flashsale::flow::settle::drain::{Lane, drain_lane};
use flashsale::flow::{self, App};
use flashsale::ledger::Ledger;
use flashsale::scheduler::Keeper;
use flashsale::stock::Stock;
use serde_json::{Value, json};
use sqlx::PgPool;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use uuid::Uuid;

pub const ADMIN_KEY: &str = "an operator's key of the tests";
pub const JWT_SECRET: &str = "a secret for the tokens of the tests";
pub const WEBHOOK_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
/// The one item of most sales, and its price.
pub const SKU: &str = "mug";
pub const PRICE: i64 = 1_299;

/// One test's servers, its database and an instance without jobs in this process.
pub struct World {
    pub redis: String,
    /// The superuser's, as the pool is.
    pub database: String,
    pub pool: PgPool,
    pub app: Arc<App>,
    /// That of the instances.
    database_of_app: String,
    _kept: Kept,
}

/// Keeps the permits of the shards, as every process does, and drops them with itself.
struct Kept(Option<Keeper>);

impl Drop for Kept {
    fn drop(&mut self) {
        // Without a runtime, its tasks have ended too.
        if let (Some(keeper), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(keeper.end());
        }
    }
}

/// What differs between the sales of the tests.
pub struct Terms {
    pub stock: i64,
    pub shards: u16,
    pub window_seconds: u32,
    pub limit: u32,
    pub rate: PurchaseRate,
    pub durability: Durability,
}

impl Terms {
    pub const fn of(stock: i64, shards: u16) -> Self {
        Self {
            stock,
            shards,
            window_seconds: 900,
            limit: 100,
            rate: PurchaseRate {
                limit: 100_000,
                window_ms: 1_000,
            },
            durability: Durability::Redis,
        }
    }
}

impl World {
    /// A world on the Redis that all tests share. The role of its instances owns nothing in the database.
    pub async fn new() -> Self {
        Self::on(servers::redis()).await
    }

    pub async fn on(redis: String) -> Self {
        let database = servers::database().await;
        Self::of(redis, servers::as_app(&database), database).await
    }

    /// A world on these two.
    pub async fn with(redis: String, database: String) -> Self {
        Self::of(redis, database.clone(), database).await
    }

    async fn of(redis: String, database_of_app: String, database: String) -> Self {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(4)
            .connect(&database)
            .await
            .unwrap();
        let app = connect(&redis, &database_of_app).await;
        Self {
            redis,
            database,
            database_of_app,
            pool,
            _kept: Kept(Some(Keeper::start(&app))),
            app,
        }
    }

    /// Another instance in this process: nothing is shared but the servers.
    pub async fn another(&self) -> Arc<App> {
        connect(&self.redis, &self.database_of_app).await
    }

    /// Drops the permits; no background task asks the servers from now on.
    pub async fn end_keeper(&mut self) {
        if let Some(keeper) = self._kept.0.take() {
            keeper.end().await;
        }
    }

    /// A sale that is not loaded.
    pub async fn draft(&self, terms: &Terms) -> SaleId {
        let now = Utc::now();
        let items = vec![Item {
            price_minor: PRICE,
            ..Item::plain(SKU.parse().unwrap(), terms.stock, terms.limit)
        }];
        let new = NewSale {
            shards: terms.shards,
            payment_window_seconds: terms.window_seconds,
            purchase_rate: terms.rate,
            durability: terms.durability,
            ..NewSale::plain(items, now - TimeDelta::minutes(1), now + TimeDelta::hours(1))
        };
        let create = || flow::operate::drafts::create(&self.app, &new);
        answered("a sale is drafted", create).await.id
    }

    /// A sale that sells.
    pub async fn sale(&self, terms: &Terms) -> Arc<Sale> {
        let id = self.draft(terms).await;
        let load = || flow::operate::preload::load(&self.app, id);
        answered("the sale is loaded", load).await.unwrap().0
    }

    /// A number from the ledger; `$1` is the sale.
    pub async fn number(&self, sql: &'static str, sale: SaleId) -> i64 {
        let number: Option<i64> = sqlx::query_scalar(sql)
            .bind(sale.0)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        number.unwrap_or(0)
    }

    /// Runs a statement; `$1` is the sale.
    pub async fn execute(&self, sql: &'static str, sale: SaleId) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(sql).bind(sale.0).execute(&self.pool).await?;
        Ok(done.rows_affected())
    }

    /// Pending work, in words; empty when everything is at rest.
    pub async fn pending_work(&self, sale: &Sale) -> String {
        // In the order in which one becomes the other: pending work leaves a message when it is decided.
        let pending = self
            .number(
                "select (select count(*) from restocks where sale_id = $1 and state = 'pending') \
                 + (select count(*) from payments where outcome = 'pending')",
                sale.id,
            )
            .await;
        let waiting = self
            .number("select count(*) from outbox where sale_id = $1", sale.id)
            .await;
        let transfers = || self.app.stock.transfers(sale.id, sale.shards);
        let transfers = answered("the transfers are read", transfers).await.len();
        let readings = answered("the shards are read", || self.app.stock.read_shards(sale)).await;
        let undrained: i64 = readings.iter().map(|reading| reading.undrained).sum();
        let delivered = |state_version: i64| readings.iter().all(|it| it.record.state_version == state_version);
        let version = self
            .number("select state_version from sales where sale_id = $1", sale.id)
            .await;
        if (waiting, pending, transfers, undrained) == (0, 0, 0, 0) && delivered(version) {
            return String::new();
        }
        format!(
            "{waiting} messages, {pending} payments or restocks, {transfers} transfers, {undrained} events, \
             every shard has the state: {}",
            delivered(version)
        )
    }

    /// Does the work of all jobs, once, in this process. What a passing fault leaves is still pending work.
    pub async fn jobs(&self, app: &App, sale: &Sale) {
        done(drain_all(app).await);
        done(flow::recover::upkeep::settle(app).await);
        done(flow::sell::borrow::finish_left(app, sale, 0).await);
        done(flow::settle::release::release_waiting(app).await);
    }

    /// Comes to rest by this process's own work, then checks everything.
    pub async fn settled(&self, sale: &Sale) -> ItemAudit {
        within(PATIENCE, "everything comes to rest", async || {
            self.jobs(&self.app, sale).await;
            self.pending_work(sale).await.is_empty()
        })
        .await;
        self.check(sale).await
    }

    /// Waits until the jobs of other processes have brought everything to rest, then checks everything.
    pub async fn rested(&self, sale: &Sale) -> ItemAudit {
        within(PATIENCE, "the jobs bring everything to rest", async || {
            self.pending_work(sale).await.is_empty()
        })
        .await;
        self.check(sale).await
    }

    async fn audit(&self, sale: &Sale) -> Audit {
        let audit = || flow::watch::audit::audit(&self.app, sale.id);
        answered("the units are counted", audit).await.unwrap()
    }

    /// The checks of a sale at rest, after anything that happened to it.
    pub async fn check(&self, sale: &Sale) -> ItemAudit {
        let patience = Patience::of(PATIENCE);
        let item = loop {
            let audit = self.audit(sale).await;
            assert!(audit.balanced, "{:#?}", audit.differences);
            let item = audit.items.into_iter().next().unwrap();
            // A running instance moves units between shards.
            if item.stock.in_transit == 0 {
                break item;
            }
            patience.pause("no unit is in transit").await;
        };
        assert_eq!(
            (item.stock.available, item.stock.held, item.stock.sold),
            (item.ledger.free, item.ledger.held, item.ledger.sold),
            "{item:?}"
        );
        for (what, wrong) in [
            (
                "orders that hold or own more than the stock",
                "select greatest(0, sum(quantity) filter (where o.state in ('reserved', 'paid')) - max(i.stock)) \
                 ::int8 from orders o join items i using (sale_id, sku) where sale_id = $1",
            ),
            (
                "shoppers above their limit",
                "select count(*) from (select from orders o join items i using (sale_id, sku) where sale_id = $1 \
                 and o.state in ('reserved', 'paid') group by o.user_id, o.sku, i.per_user_limit \
                 having sum(quantity) > i.per_user_limit) above",
            ),
            (
                "orders that expired before their deadline",
                "select count(*) from orders where sale_id = $1 and state = 'expired' and resolved_at < expires_at",
            ),
            (
                "paid orders without exactly one applied payment of their amount",
                "select count(*) from orders o where sale_id = $1 and state = 'paid' and 1 <> (select count(*) \
                 from payments p where p.matched_order_id = o.order_id and p.outcome = 'applied' \
                 and p.amount_minor = o.amount_minor)",
            ),
            (
                "payments applied to orders that are not paid",
                "select count(*) from payments p join orders o on o.order_id = p.matched_order_id \
                 where o.sale_id = $1 and p.outcome = 'applied' and o.state <> 'paid'",
            ),
            ("dead letters", "select count(*) from dead_letters where sale_id = $1"),
        ] {
            assert_eq!(self.number(wrong, sale.id).await, 0, "{what}");
        }
        let deadlocks = sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()");
        let deadlocks: i64 = deadlocks.fetch_one(&self.pool).await.unwrap();
        assert_eq!(deadlocks, 0, "transactions waited for each other");
        item
    }

    /// Sells every free unit to new shoppers, one each, and shows that the next one is refused.
    pub async fn sells_out(&self, sale: &Sale) {
        let stock = self.audit(sale).await.items[0].stock;
        // Instances rebalance the shards meanwhile.
        let free = stock.available + stock.in_transit;
        let round = Uuid::new_v4().simple();
        for n in 0..free {
            let outcome = buy(&self.app, sale, &format!("last-{round}-{n}"), "key", 1).await;
            assert!(
                matches!(outcome, PurchaseOutcome::Reserved(_)),
                "{n} of {free}: {outcome:?}"
            );
        }
        let outcome = buy(&self.app, sale, &format!("late-{round}"), "key", 1).await;
        assert_eq!(outcome, PurchaseOutcome::Refused(Refusal::SoldOut));
        let item = self.settled(sale).await;
        assert_eq!(item.stock.held + item.stock.sold, item.total, "{item:?}");
    }

    /// Starts an instance as a process and waits until it serves.
    pub async fn start(&self, role: &str) -> Instance {
        self.start_to_crash(role, "").await
    }

    /// Starts an instance that ends itself at a crash point.
    pub async fn start_to_crash(&self, role: &str, point: &str) -> Instance {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", &program_path()])
            .args(["serve", "--role", role])
            .env("FLASHSALE_REDIS_URL", &self.redis)
            .env("FLASHSALE_DATABASE_URL", &self.database_of_app)
            .env("FLASHSALE_ADMIN_KEY", ADMIN_KEY)
            .env("FLASHSALE_JWT_SECRET", JWT_SECRET)
            .env("FLASHSALE_WEBHOOK_SECRET", WEBHOOK_SECRET)
            .env("FLASHSALE_LISTEN", "127.0.0.1:0")
            .env("FLASHSALE_ADDRESS_RATE", "0")
            .env("FLASHSALE_ACCOUNT_RATE", "0")
            .env("FLASHSALE_ADDRESS_CONNECTIONS", "0")
            .envs(SPARING)
            .env("FLASHSALE_CRASH_AT", point)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn(command);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (said, mut heard) = unbounded_channel();
        let stderr = child.stderr.take().unwrap();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || read_log(stderr, &kept, said));
        let address = match tokio::time::timeout(PATIENCE, heard.recv()).await {
            Ok(Some(address)) => address,
            // It has reached its crash point already.
            Ok(None) if !point.is_empty() => String::new(),
            _ => panic!("an instance did not start: {:#?}", log.lock().unwrap()),
        };
        Instance { child, address, log }
    }
}

async fn connect(redis: &str, database: &str) -> Arc<App> {
    let stock = Stock::connect(redis).await.unwrap();
    // A server that was just started may take longer than one connection may.
    let ledger = answer("the ledger is connected", || async {
        Ledger::connect(database, ConnectionPools::default()).await.ok()
    })
    .await;
    Arc::new(App::new(stock, ledger))
}

/// The death signal comes when the spawning thread ends, so one thread that never does spawns all.
pub fn spawn(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<Child>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                answer.send(command.spawn().unwrap()).unwrap();
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = mpsc::channel();
    SPAWNER.lock().unwrap().send((command, answer)).unwrap();
    child.recv().unwrap()
}

/// Keeps an instance's output, and sends its address, or nothing for one without HTTP, once it works.
fn read_log(stderr: ChildStderr, kept: &Mutex<Vec<String>>, said: UnboundedSender<String>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        kept.lock().unwrap().push(line);
        match event["message"].as_str() {
            // The test may have stopped listening.
            Some("serving") => drop(said.send(event["address"].as_str().unwrap_or_default().to_owned())),
            Some("working") => drop(said.send(String::new())),
            _ => {}
        }
    }
}

/// One instance as a process; it is killed when it is dropped.
pub struct Instance {
    child: Child,
    pub address: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Instance {
    /// SIGKILL, by its id.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; waits until it has ended, as it should.
    pub async fn terminate(&mut self) {
        servers::signal("TERM", &[self.pid()]);
        self.ended().await;
    }

    /// Waits until it has ended, as it should after SIGTERM.
    pub async fn ended(&mut self) {
        within(PATIENCE, "the instance ends", async || {
            self.child.try_wait().unwrap().is_some()
        })
        .await;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {:#?}", self.log.lock().unwrap());
    }

    /// Waits until it has ended itself at its crash point.
    pub async fn crashed(&mut self) {
        within(PATIENCE, "the instance ends itself", async || {
            self.child.try_wait().unwrap().is_some()
        })
        .await;
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(6), "{status}: {:#?}", self.log.lock().unwrap());
    }

    /// Errors that it has logged.
    pub fn errors(&self) -> Vec<String> {
        let log = self.log.lock().unwrap();
        log.iter()
            .filter(|line| line.contains("\"level\":\"ERROR\""))
            .cloned()
            .collect()
    }

    pub fn client(&self) -> Client {
        Client::to(&self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub replayed: bool,
    pub body: Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    pub fn order(&self) -> OrderId {
        self.body["id"].as_str().unwrap_or_default().parse().unwrap()
    }
}

/// An HTTP client of one instance. `None` stands for a missing answer.
#[derive(Clone)]
pub struct Client {
    address: String,
    http: reqwest::Client,
}

impl Client {
    pub fn to(address: &str) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(8))
            .build()
            .unwrap();
        Self {
            address: address.to_owned(),
            http,
        }
    }

    async fn send(request: reqwest::RequestBuilder) -> Option<Answer> {
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let replayed = response.headers().contains_key("idempotency-replayed");
        Some(Answer {
            status,
            replayed,
            body: response.json().await.ok()?,
        })
    }

    fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.post(format!("http://{}{path}", self.address))
    }

    pub async fn buy(&self, sale: SaleId, user: &str, key: &str, quantity: u32) -> Option<Answer> {
        let body = json!({"sku": SKU, "quantity": quantity});
        let request = self
            .post(&format!("/v1/sales/{sale}/orders"))
            .bearer_auth(token(user))
            .header("Idempotency-Key", key)
            .json(&body);
        Self::send(request).await
    }

    pub async fn order(&self, user: &str, order: OrderId) -> Option<Answer> {
        let url = format!("http://{}/v1/orders/{order}", self.address);
        Self::send(self.http.get(url).bearer_auth(token(user))).await
    }

    pub async fn cancel(&self, user: &str, order: OrderId) -> Option<Answer> {
        let path = format!("/v1/orders/{order}/cancel");
        Self::send(self.post(&path).bearer_auth(token(user))).await
    }

    /// Sends a payment, as the provider would.
    pub async fn pay(&self, payment: &Payment) -> Option<Answer> {
        let body = serde_json::to_vec(&json!({
            "type": "payment.succeeded",
            "timestamp": Utc::now().to_rfc3339(),
            "data": {
                "payment_id": payment.payment_id,
                "order_id": payment.order_id,
                "amount_minor": payment.amount_minor,
                "currency": payment.currency,
            },
        }))
        .unwrap();
        let at = Utc::now().timestamp();
        let secret = webhook::decode_secret(WEBHOOK_SECRET).unwrap();
        let request = self
            .post("/v1/webhooks/payments")
            .header("webhook-id", &payment.webhook_id)
            .header("webhook-timestamp", at.to_string())
            .header(
                "webhook-signature",
                webhook::sign(&secret, &payment.webhook_id, at, &body),
            )
            .body(body);
        Self::send(request).await
    }

    /// Its metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> Option<String> {
        let request = self.http.get(format!("http://{}/metrics", self.address));
        request.send().await.ok()?.text().await.ok()
    }

    /// An operator's request about a sale.
    pub async fn operate(&self, sale: SaleId, verb: &str, key: &str, body: &Value) -> Option<Answer> {
        let request = self
            .post(&format!("/v1/admin/sales/{sale}/{verb}"))
            .bearer_auth(ADMIN_KEY)
            .header("Idempotency-Key", key)
            .json(body);
        Self::send(request).await
    }
}

pub fn token(user: &str) -> String {
    let now = Utc::now().timestamp();
    token::issue(JWT_SECRET, user, now, now + 3_600).unwrap()
}

/// Drains every shard of every sale that has events. Returns how many orders came in.
pub async fn drain_all(app: &App) -> Result<usize, Fault> {
    let mut orders = 0;
    for lane in Lane::ALL {
        orders += drain_lane(app, lane).await?;
    }
    Ok(orders)
}

/// Asks again while the fault passes: a slow machine makes a server seem silent for a moment.
pub async fn answered<T, F: Future<Output = Result<T, Fault>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let patience = Patience::of(PATIENCE);
    loop {
        // Boxed, since some questions are large.
        match Box::pin(ask()).await {
            Ok(result) => return result,
            Err(fault) => assert!(fault.is_passing(), "{what}: {fault}"),
        }
        patience.pause(what).await;
    }
}

/// How much a run did that is repeated anyway; a fault must pass.
pub fn done(run: Result<usize, Fault>) -> usize {
    run.unwrap_or_else(|fault| {
        assert!(fault.is_passing(), "{fault}");
        0
    })
}

/// Buys through an instance in this process.
pub async fn try_buy(app: &App, sale: &Sale, user: &str, key: &str, quantity: u32) -> Result<PurchaseOutcome, Fault> {
    let (user, key, sku) = (user.parse().unwrap(), key.parse().unwrap(), SKU.parse().unwrap());
    let request = PurchaseRequest::new(user, key, sku, quantity);
    flow::sell::purchase::purchase(app, sale.id, &request, |_| None).await
}

/// The same; while the answer is 503, the shopper repeats the request.
pub async fn buy(app: &App, sale: &Sale, user: &str, key: &str, quantity: u32) -> PurchaseOutcome {
    let try_buy = || try_buy(app, sale, user, key, quantity);
    answered("a purchase has an outcome", try_buy).await
}

/// Cancels, and asks again while the answer is 503.
pub async fn cancel(app: &App, order: OrderId, user: &str) -> CancelOutcome {
    let user = user.parse().unwrap();
    let cancel = || flow::settle::cancel::cancel(app, order, &user);
    answered("a cancellation has an outcome", cancel).await
}

/// Buys, or fails the test. After a lost answer, the repeat finds the order of the first try.
pub async fn bought(app: &App, sale: &Sale, user: &str, key: &str, quantity: u32) -> Order {
    let mut tries = 0;
    let try_buy = || {
        tries += 1;
        try_buy(app, sale, user, key, quantity)
    };
    match answered("a purchase has an outcome", try_buy).await {
        PurchaseOutcome::Reserved(order) => order,
        PurchaseOutcome::Replayed(order) if tries > 1 => order,
        other => panic!("{user} did not get {quantity}: {other:?}"),
    }
}

/// A ban without an end, by an operator.
pub fn ban(user: &str) -> NewBan {
    NewBan {
        user: user.parse().unwrap(),
        reason: "a test".to_owned(),
        banned_by: BannedBy::Operator,
        operator: None,
        end: BanEnd::Never,
        end_sessions: false,
    }
}

/// A payment of the right amount for one order; the same name is the same payment.
pub fn payment(name: &str, order: OrderId, quantity: u32) -> Payment {
    Payment {
        payment_id: format!("pay-{name}"),
        webhook_id: format!("msg-{name}"),
        order_id: order.to_string(),
        amount_minor: PRICE * i64::from(quantity),
        currency: "EUR".to_owned(),
    }
}

/// A shopper whose home is this shard.
pub fn shopper_at(sale: &Sale, shard: u16) -> String {
    let mut names = (0..).map(|n| format!("at-{shard}-{n}"));
    let home = |name: &String| home_shard(&sale.secret.0, &name.parse::<UserId>().unwrap(), sale.shards);
    names.find(|name| home(name) == shard).unwrap()
}
