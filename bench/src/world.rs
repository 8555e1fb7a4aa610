//! The world of a run: its own servers, and this program as a child process that uses them.

use super::cost::{Micros, Used};
use super::load::{Outcome, Tally};
use super::machine::{family_seconds, processor_seconds, processor_seconds_of, sync_micros};
use super::operator::Operator;
use super::program::{self, Program};
use super::report::Report;
use super::resp::Resp;
use super::shoppers::{script_calls, sku};
use super::{Bench, Options};
use super::{resp, sql};
use anyhow::{Context as _, Result};
use chrono::{TimeDelta, Utc};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::domain::sale::guards::SaleGuards;
use flashsale::domain::sale::{Sale, SaleRequest};
use flashsale::domain::time;
use flashsale::embedded::{self, PostgresOptions, PostgresServer, RedisOptions, RedisServer, secrets};
use flashsale::ledger::{self, Ledger};
use flashsale::stock::keys::ShardKey;
use flashsale::stock::script::PURCHASE;
use serde_json::{Value, json};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time limit for draining the ledger's backlog.
const DRAIN_MAX: Duration = Duration::from_secs(600);
/// The time limit for a rewrite of Redis's append-only file.
const CALM_MAX: Duration = Duration::from_secs(120);
/// Stops Redis from rewriting its append-only file. A rewrite comes once in some hundred thousand purchases. It would
/// slow one window and not another.
const NO_REWRITE: (&str, &str) = ("auto-aof-rewrite-percentage", "0");
/// Script calls that are encoded before they are sent.
const FILL_AT_ONCE: usize = 20_000;
/// The most events in the backlog while a sale is filled. More of them would halt a shard.
const BACKLOG_MAX: i64 = 150_000;
/// Ports for programs. They lie below the ephemeral ports, so no client socket can hold one.
const PORTS: Range<u16> = 15_000..32_000;

/// A folder that is removed when the run ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Postgres keeps its files elsewhere when it may not enter this folder.
        if let Ok(away) = fs::read_link(self.0.join("postgres")) {
            let _rest = fs::remove_dir_all(away);
        }
        // A drop cannot report errors, so leftovers stay.
        let _rest = fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone)]
pub struct Secrets {
    pub admin: String,
    pub jwt: String,
    webhook: String,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            admin: secrets::random_key(),
            jwt: secrets::random_key(),
            webhook: secrets::random_webhook_secret(),
        }
    }
}

/// A Redis that the run can kill and restart on its files.
pub struct OwnRedis {
    dir: PathBuf,
    options: RedisOptions,
    server: Mutex<Option<RedisServer>>,
}

impl OwnRedis {
    fn start(dir: PathBuf, options: RedisOptions) -> Result<Self> {
        let redis = Self {
            dir,
            options,
            server: Mutex::default(),
        };
        redis.restart()?;
        Ok(redis)
    }

    fn ask<T>(&self, what: impl FnOnce(&RedisServer) -> T) -> Result<T> {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(what(server.as_ref().context("Redis does not run")?))
    }

    pub fn url(&self) -> Result<String> {
        self.ask(RedisServer::url)
    }

    pub fn socket(&self) -> Result<PathBuf> {
        self.ask(|server| server.socket().to_owned())
    }

    pub fn pid(&self) -> Result<u32> {
        self.ask(RedisServer::pid)
    }

    pub fn connect(&self) -> Result<Resp> {
        Resp::connect(&self.socket()?)
    }

    /// Waits until the ledger has drained all events of a sale.
    pub fn drained(&self, bench: &Bench, sale: &Sale) -> Result<()> {
        let mut redis = self.connect()?;
        bench.poll("the ledger catches up", DRAIN_MAX, || {
            Ok((backlog(&mut redis, sale)? == 0).then_some(()))
        })
    }

    /// Kills the server as `kill -9` does.
    pub fn kill(&self) -> Result<()> {
        self.ask(RedisServer::kill)
    }

    /// Starts the server again on its files.
    pub fn restart(&self) -> Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops the old server first, because it owns the folder.
        *server = None;
        *server = Some(RedisServer::start(&self.dir, &self.options)?);
        Ok(())
    }
}

/// The plan to start a program, at the same address each time.
#[derive(Clone)]
pub struct Plan {
    name: &'static str,
    program: PathBuf,
    dir: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    ready: &'static str,
    /// The database, if it is our ledger.
    ledger: Option<String>,
    pub address: SocketAddr,
}

impl Plan {
    /// Starts the program and waits until it serves. Writes a heartbeat first, because the time before the start is no
    /// outage.
    pub fn start(&self) -> Result<Program> {
        if let Some(ledger) = &self.ledger {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(sql::beat(ledger))?;
        }
        self.restart()
    }

    /// Starts the program again right after a kill, without a heartbeat.
    pub fn restart(&self) -> Result<Program> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Program::start(
            self.name,
            &self.program,
            &self.dir,
            &arguments,
            &self.environment,
            self.ready,
        )
    }
}

/// The servers of a run.
pub struct World {
    // Fields drop in order: the servers must end before their folder is removed.
    /// The Redis of the sales, which has each write on disk before it replies.
    pub redis: OwnRedis,
    postgres: PostgresServer,
    pub secrets: Secrets,
    folder: Folder,
}

impl World {
    /// Starts the servers of a run, and the report that names their versions and the speed of their disk.
    pub fn begin(bench: &Bench, command: &str, title: &str) -> Result<(Self, Report)> {
        let Options { quick, seed, data, .. } = &bench.options;
        let mut report = Report::begin(command, title, *quick, *seed);
        bench.step("starting Redis and Postgres")?;
        let world = Self::start(data)?;
        report.sync_micros = sync_micros(world.dir());
        report.redis = world.redis.connect()?.info("server", "redis_version")?;
        report.postgres = bench.wait_for(sql::version(&world.postgres.url()))?;
        Ok((world, report))
    }

    /// Starts both servers with production durability, in their own folder under `data`.
    pub fn start(data: &Path) -> Result<Self> {
        let folder = Folder(data.join(format!("flashsale-bench-{}", uuid::Uuid::new_v4().simple())));
        let dir = embedded::open_folder(&folder.0)?;
        let postgres = PostgresOptions {
            durable: true,
            settings: vec![("max_connections".to_owned(), "300".to_owned())],
            ..PostgresOptions::default()
        };
        Ok(Self {
            redis: own_redis(&dir, "sold-from", true, &[])?,
            postgres: PostgresServer::start(&dir, &postgres)?,
            secrets: Secrets::default(),
            folder,
        })
    }

    /// The folder of the servers' files.
    pub fn dir(&self) -> &Path {
        &self.folder.0
    }

    /// Starts one more Redis, for a separate measurement.
    pub fn another_redis(&self, name: &str, is_durable: bool, settings: &[(&str, &str)]) -> Result<OwnRedis> {
        own_redis(self.dir(), name, is_durable, settings)
    }

    /// Creates a database; `is_ours` adds the ledger's schema.
    pub fn database(&self, bench: &Bench, name: &str, is_ours: bool) -> Result<String> {
        bench.wait_for(async {
            let url = sql::create_database(&self.postgres.url(), name).await?;
            if is_ours {
                ledger::migrate(&url).await?;
            }
            Ok(url)
        })
    }

    /// The processor time so far: of these Redis processes, this application process, Postgres and the generator.
    pub fn used(&self, redis: &[u32], program: u32) -> Used {
        Used([
            redis.iter().map(|pid| processor_seconds_of(*pid)).sum(),
            processor_seconds_of(program),
            family_seconds(self.postgres.pid()),
            Some(processor_seconds()),
        ])
    }

    /// Runs a load, and then `settle`, which waits until the servers have finished its work. Gives the tally and the
    /// processor time of both, for each reply with this outcome.
    pub fn measure(
        &self,
        bench: &Bench,
        (redis, program): (&[u32], &Program),
        outcome: Outcome<'_>,
        load: impl Future<Output = Result<Tally>>,
        settle: impl FnOnce() -> Result<()>,
    ) -> Result<(Tally, Micros)> {
        let before = self.used(redis, program.pid());
        let tally = bench.wait_for(load)?;
        bench.go_on()?;
        settle()?;
        let after = self.used(redis, program.pid());
        // The requests of the warm-up cost processor time too.
        let micros = after.micros_since(&before, tally.of_all_asked(outcome));
        Ok((tally, micros))
    }

    /// Adds a remark if a worker found an outage in this ledger. The worker then extends the holds, and that work is no
    /// cost of the purchases.
    pub fn note_outages(&self, bench: &Bench, database: &str, what: &str) -> Result<()> {
        if bench.wait_for(sql::outages(database))? > 0 {
            bench.remark(format!(
                "{what}: no worker came for more than five seconds, so the holds were extended"
            ));
        }
        Ok(())
    }

    /// The plan to start `serve` in this role, or a rival, on this database. Fails when no port is free.
    pub fn plan(&self, name: &'static str, arguments: &[&str], redis: &str, database: &str) -> Result<Plan> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let environment = [
            ("FLASHSALE_LISTEN", address.to_string()),
            ("FLASHSALE_REDIS_URL", redis.to_owned()),
            ("FLASHSALE_DATABASE_URL", database.to_owned()),
            ("FLASHSALE_ADMIN_KEY", self.secrets.admin.clone()),
            ("FLASHSALE_JWT_SECRET", self.secrets.jwt.clone()),
            ("FLASHSALE_WEBHOOK_SECRET", self.secrets.webhook.clone()),
            // All shoppers come from one address.
            ("FLASHSALE_ADDRESS_RATE", "0".to_owned()),
            ("FLASHSALE_ACCOUNT_RATE", "0".to_owned()),
            ("FLASHSALE_ADDRESS_CONNECTIONS", "0".to_owned()),
            // The log level of production.
            ("FLASHSALE_LOG", "info".to_owned()),
        ];
        let is_ours = arguments.starts_with(&["serve"]);
        let is_worker = arguments.contains(&"worker");
        Ok(Plan {
            name,
            program: if is_ours {
                program::flashsale()?
            } else {
                program::own_path()?
            },
            dir: self.dir().to_owned(),
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
            ready: if is_worker { "\"working\"" } else { "\"serving\"" },
            ledger: is_ours.then(|| database.to_owned()),
            address,
        })
    }

    /// An operator of the instance at this address.
    pub fn operator(&self, address: SocketAddr) -> Operator {
        Operator::of(address, self.secrets.admin.clone())
    }

    /// Creates and preloads a sale that sells at once, and gives the sale from the ledger.
    pub fn sale(&self, bench: &Bench, address: SocketAddr, database: &str, terms: &Terms) -> Result<Sale> {
        let sales = self.sales(bench, address, database, terms, 1)?;
        sales.into_iter().next().context("no sale was asked for")
    }

    /// Creates and preloads several such sales.
    pub fn sales(
        &self,
        bench: &Bench,
        address: SocketAddr,
        database: &str,
        terms: &Terms,
        count: usize,
    ) -> Result<Vec<Sale>> {
        bench.wait_for(async {
            let ledger = Ledger::connect(database, ConnectionPools::default()).await?;
            let mut operator = self.operator(address);
            let mut sales = Vec::with_capacity(count);
            for _ in 0..count {
                // Not over HTTP, because a request may not have a thousand items.
                let request: SaleRequest = serde_json::from_value(terms.json())?;
                let id = ledger.create_sale(&request.check(SaleGuards::default())?).await?.id;
                operator.operate(&id.to_string(), "preload").await?;
                let sale = ledger.sale(id).await?;
                sales.push(sale.with_context(|| format!("the ledger does not have sale {id}"))?);
            }
            ledger.close().await;
            Ok(sales)
        })
    }

    /// Closes sales, so that the instance does no work for them during the next measurement.
    pub fn close(&self, bench: &Bench, address: SocketAddr, sales: &[Sale]) -> Result<()> {
        bench.wait_for(async {
            let mut operator = self.operator(address);
            for sale in sales {
                operator.operate(&sale.id.to_string(), "close").await?;
            }
            Ok(())
        })
    }

    /// Finishes the work that earlier measurements left: in Postgres for this database, and in Redis a rewrite after a
    /// start.
    pub fn calm(&self, bench: &Bench, database: &str) -> Result<()> {
        bench.wait_for(sql::settle(database))?;
        let mut redis = self.redis.connect()?;
        bench.poll("Redis has rewritten its file", CALM_MAX, || {
            let is_writing = redis.info("persistence", "aof_rewrite_in_progress")? != "0";
            Ok((!is_writing).then_some(()))
        })
    }

    /// Makes shoppers buy through the script, which is faster than HTTP. The range ends before its second number. Fails
    /// when a purchase is refused.
    pub fn fill(&self, bench: &Bench, sale: &Sale, shoppers: Range<usize>, salt: u32) -> Result<()> {
        let mut redis = self.redis.connect()?;
        for from in shoppers.clone().step_by(FILL_AT_ONCE) {
            let some = from..shoppers.end.min(from + FILL_AT_ONCE);
            fill(bench, &self.redis.socket()?, sale, some, salt)?;
            // With too large a backlog, the shard refuses purchases.
            if backlog(&mut redis, sale)? > BACKLOG_MAX {
                bench.poll("the ledger catches up", DRAIN_MAX, || {
                    Ok((backlog(&mut redis, sale)? < BACKLOG_MAX / 2).then_some(()))
                })?;
            }
        }
        Ok(())
    }
}

/// Starts a Redis with its files in a folder of this name.
fn own_redis(dir: &Path, name: &str, is_durable: bool, settings: &[(&str, &str)]) -> Result<OwnRedis> {
    let settings = settings.iter().chain([&NO_REWRITE]);
    let options = RedisOptions {
        durable: is_durable,
        settings: settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..RedisOptions::default()
    };
    OwnRedis::start(dir.join(name), options)
}

/// Events of a sale that wait for the ledger.
pub fn backlog(redis: &mut Resp, sale: &Sale) -> Result<i64> {
    let key = |shard| ShardKey { sale: sale.id, shard };
    (0..sale.shards)
        .map(|shard| redis.number(&["XLEN", &key(shard).events()]))
        .sum()
}

/// Like [`World::fill`], on the Redis at this socket and without a limit on the backlog.
pub fn fill(bench: &Bench, socket: &Path, sale: &Sale, shoppers: Range<usize>, salt: u32) -> Result<()> {
    let is_order = |reply: &resp::Reply| matches!(reply, resp::Reply::Bulk(Some(_)));
    let mut from = shoppers.start;
    while from < shoppers.end {
        let to = shoppers.end.min(from + FILL_AT_ONCE);
        let calls = script_calls(PURCHASE.get_hash(), sale, from..to, salt)?;
        resp::run(socket, &calls, is_order, &bench.stop)?.check("purchases by the script")?;
        from = to;
    }
    Ok(())
}

/// A free port. Fails after a thousand attempts.
pub fn free_port() -> Result<u16> {
    let mut tries = (0..1000).map(|_| rand::random_range(PORTS));
    let free = tries.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.with_context(|| format!("no port between {} and {} is free", PORTS.start, PORTS.end))
}

/// The terms of a sale of the run.
#[derive(Clone, Debug)]
pub struct Terms {
    pub stock: i64,
    pub items: usize,
    pub shards: u16,
    /// The most units of each item for each shopper.
    pub per_user_limit: u32,
    /// `redis`, `replica` or `postgres`.
    pub durability: &'static str,
    pub payment_window_seconds: u32,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            stock: 100_000_000,
            items: 1,
            shards: 4,
            per_user_limit: 1,
            durability: "redis",
            // No hold may expire during another measurement.
            payment_window_seconds: 86_400,
        }
    }
}

impl Terms {
    /// The request that creates the sale.
    pub fn json(&self) -> Value {
        let item = |item| {
            json!({
                "sku": sku(item), "name": "An item", "price_minor": 49_900, "currency": "EUR",
                "stock": self.stock, "per_user_limit": self.per_user_limit,
            })
        };
        json!({
            "name": "Benchmark",
            "starts_at": time::format(&(Utc::now() - TimeDelta::seconds(1))),
            "ends_at": time::format(&(Utc::now() + TimeDelta::days(1))),
            "shards": self.shards,
            "payment_window_seconds": self.payment_window_seconds,
            "durability": self.durability,
            "items": (0..self.items).map(item).collect::<Vec<_>>(),
        })
    }
}
