//! The processes of a round: Redis in one of several arrangements, Postgres, instances of the program, and the links
//! between them. Each can be killed, stopped, cut off and started again; all end when this is dropped.

use super::proxy::{Mode, Proxy};
use crate::support::app::program_path;
use crate::support::crowd::{ADMIN_KEY, JWT_SECRET, WEBHOOK_SECRET, spawn};
use crate::support::poll::{Patience, eventually, within};
use crate::support::raw::Raw;
use crate::support::servers::{Cluster, FreshPostgres, Frozen, WEAK_DISK, copy_files, free_port, kill, own_folder};
use flashsale::domain::deployment::connection_pools::ConnectionPools;
use flashsale::embedded::{RedisOptions, RedisServer};
use flashsale::flow::App;
use flashsale::ledger::Ledger;
use flashsale::stock::Stock;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long a process may take to serve.
const STARTS_WITHIN: Duration = Duration::from_secs(40);

/// The kind of the instances' Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    One,
    WithReplica,
    /// Three primaries with a replica each, which keep their data in memory only.
    Cluster,
}

/// A Redis that keeps acknowledged data, on a disk that may be weak.
pub struct Node {
    server: Option<RedisServer>,
    folder: tempfile::TempDir,
    /// How its disk fails; see `weak_disk.c`.
    disk: PathBuf,
}

impl Node {
    pub fn start() -> Self {
        let folder = own_folder();
        let disk = folder.path().join("disk");
        fs::write(&disk, "").unwrap();
        let mut node = Self {
            server: None,
            folder,
            disk,
        };
        node.restart();
        node
    }

    /// Starts it on the data in its folder; does nothing while it runs.
    pub fn restart(&mut self) {
        if self.server.as_ref().is_some_and(runs) {
            return;
        }
        self.server = None;
        let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
        let options = RedisOptions {
            settings: vec![
                // A replica is served at once, instead of waiting five seconds for others.
                ("repl-diskless-sync-delay".to_owned(), "0".to_owned()),
                ("repl-timeout".to_owned(), "10".to_owned()),
            ],
            environment: vec![variable("LD_PRELOAD", &WEAK_DISK), variable("WEAK_DISK", &self.disk)],
            ..RedisOptions::default()
        };
        self.server = Some(RedisServer::start(self.folder.path(), &options).unwrap());
    }

    /// Ends it as `kill -9` does, if it runs.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take()
            && server.ended().is_none()
        {
            kill(server.pid());
            eventually("Redis has ended", || server.ended().is_some());
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(RedisServer::pid)
    }

    pub fn raw(&self) -> Raw {
        Raw::connect(&self.server.as_ref().unwrap().url())
    }

    fn socket(&self) -> PathBuf {
        let url = self.server.as_ref().unwrap().url();
        url.strip_prefix("unix://").unwrap().into()
    }

    /// How its disk fails from now on; not at all if it is empty.
    pub fn weaken_disk(&self, how: &str) {
        // In one step: it is read while it is written.
        let fresh = self.disk.with_extension("new");
        fs::write(&fresh, how).unwrap();
        fs::rename(fresh, &self.disk).unwrap();
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("redis/appendonlydir")
    }

    /// A copy of its data as they are now.
    pub async fn copy(&self) -> tempfile::TempDir {
        let redis = self.raw();
        within(STARTS_WITHIN, "Redis rewrites its file", async || {
            let info: String = redis.call(redis::cmd("INFO").arg("persistence"));
            info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0")
        })
        .await;
        let copy = own_folder();
        copy_files(&self.data(), copy.path());
        copy
    }

    /// Replaces its data by older ones, or by none, while it does not run.
    pub fn replace_data(&self, with: Option<&tempfile::TempDir>) {
        fs::remove_dir_all(self.data()).unwrap();
        if let Some(copy) = with {
            fs::create_dir(self.data()).unwrap();
            copy_files(copy.path(), &self.data());
        }
    }

    /// Takes bytes off the end of its file, while it does not run.
    pub fn tear(&self, bytes: u64) {
        let newest = fs::read_dir(self.data()).unwrap().flatten();
        let newest = newest.filter(|entry| entry.file_name().to_string_lossy().ends_with(".incr.aof"));
        let newest = newest.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap());
        let file = File::options().write(true).open(newest.unwrap().path()).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(bytes)).unwrap();
    }
}

/// Whether a server runs, and goes on. One whose disk has failed ends a moment later, and answers nobody until then.
fn runs(server: &RedisServer) -> bool {
    if server.ended().is_some() {
        return false;
    }
    let link = redis::Client::open(server.url()).and_then(|client| client.get_connection());
    let answer = link.and_then(|mut link| redis::cmd("PING").query::<String>(&mut link));
    let is_lost = answer.is_err_and(|error| error.is_io_error() || error.is_connection_dropped());
    if is_lost {
        eventually("Redis has ended", || server.ended().is_some());
    }
    !is_lost
}

/// The program of an instance. If `TORTURE_OLDER` names one of an older version, every second instance is that.
fn program_of(number: usize) -> String {
    let older = std::env::var("TORTURE_OLDER").ok();
    older.filter(|_| number % 2 == 1).unwrap_or_else(program_path)
}

/// One instance of the program, with links of its own.
pub struct Instance {
    child: Option<Child>,
    pub port: u16,
    pub redis: Proxy,
    pub postgres: Proxy,
    program: String,
    environment: Vec<(String, String)>,
    log: PathBuf,
}

impl Instance {
    /// Starts it, unless it runs; it may end at once while Postgres is away.
    fn spawn(&mut self) {
        if let Some(child) = &mut self.child
            && child.try_wait().unwrap().is_none()
        {
            return;
        }
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", &self.program])
            .args(["serve", "--role", "all"])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(spawn(command));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it answers at all.
    async fn answers(&self, http: &reqwest::Client) -> bool {
        let asked = http.get(format!("http://127.0.0.1:{}/healthz", self.port));
        let answer = asked.timeout(Duration::from_secs(1)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct World {
    pub kind: Kind,
    /// The primary first; none on a cluster.
    pub redis: Vec<Node>,
    pub cluster: Option<Cluster>,
    /// From replicas to the primary.
    pub replication: Proxy,
    pub postgres: FreshPostgres,
    pub instances: Vec<Instance>,
    /// An instance without jobs and faults in this process, which only reads.
    pub app: Arc<App>,
    pub pool: sqlx::PgPool,
    /// The address of that instance's Redis.
    own_redis: Proxy,
    pub http: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts everything. `variables` are further ones of the instances.
    pub async fn start(kind: Kind, instances: usize, variables: &[(String, String)]) -> Self {
        let redis: Vec<Node> = match kind {
            Kind::One => vec![Node::start()],
            Kind::WithReplica => vec![Node::start(), Node::start()],
            Kind::Cluster => Vec::new(),
        };
        let cluster = (kind == Kind::Cluster).then(Cluster::start);
        // The nodes of a cluster name each other's addresses, past any link.
        let first = redis.first().map(Node::socket).unwrap_or_default();
        let url = |link: &Proxy| {
            let one = || format!("redis://127.0.0.1:{}", link.port);
            cluster.as_ref().map_or_else(one, Cluster::url)
        };
        let postgres = FreshPostgres::start().await;
        let replication = Proxy::to(first.clone()).await;
        let own_redis = Proxy::to(first.clone()).await;
        let folder = own_folder();
        let socket = postgres.socket();
        let mut started = Vec::new();
        for number in 0..instances {
            let link = Proxy::to(first.clone()).await;
            let ledger = Proxy::to(socket.clone()).await;
            let port = free_port();
            let environment = [
                ("FLASHSALE_REDIS_URL", url(&link)),
                (
                    "FLASHSALE_DATABASE_URL",
                    format!(
                        "postgres://flashsale@127.0.0.1:{}/flashsale?sslmode=disable",
                        ledger.port
                    ),
                ),
                ("FLASHSALE_ADMIN_KEY", ADMIN_KEY.to_owned()),
                ("FLASHSALE_JWT_SECRET", JWT_SECRET.to_owned()),
                ("FLASHSALE_WEBHOOK_SECRET", WEBHOOK_SECRET.to_owned()),
                ("FLASHSALE_LISTEN", format!("127.0.0.1:{port}")),
                ("FLASHSALE_ADDRESS_RATE", "0".to_owned()),
                ("FLASHSALE_ACCOUNT_RATE", "0".to_owned()),
                ("FLASHSALE_ADDRESS_CONNECTIONS", "0".to_owned()),
            ];
            let own = environment.map(|(name, value)| (name.to_owned(), value));
            started.push(Instance {
                child: None,
                port,
                redis: link,
                postgres: ledger,
                program: program_of(number),
                environment: own.into_iter().chain(variables.iter().cloned()).collect(),
                log: folder.path().join(format!("instance-{number}.log")),
            });
        }
        let (stock, ledger) = (
            Stock::connect(&url(&own_redis)).await.unwrap(),
            Ledger::connect(&postgres.url(), ConnectionPools::default())
                .await
                .unwrap(),
        );
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(2);
        let mut world = Self {
            kind,
            redis,
            cluster,
            replication,
            pool: pool.connect(&postgres.url()).await.unwrap(),
            postgres,
            instances: started,
            app: Arc::new(App::new(stock, ledger)),
            own_redis,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            _folder: folder,
        };
        world.make_whole().await;
        world
    }

    /// Undoes every fault and waits until all processes serve.
    pub async fn make_whole(&mut self) {
        for node in &mut self.redis {
            node.weaken_disk("");
            node.restart();
        }
        self.postgres.restart();
        for instance in &self.instances {
            instance.redis.set(Mode::Open);
            instance.postgres.set(Mode::Open);
        }
        self.replication.set(Mode::Open);
        self.own_redis.set(Mode::Open);
        self.lead_to_primary();
        let patience = Patience::of(STARTS_WITHIN);
        for number in 0..self.instances.len() {
            loop {
                self.spawn(number);
                if self.instances[number].answers(&self.http).await {
                    break;
                }
                patience
                    .pause(&format!("instance {number} serves:\n{}", self.instances[number].log()))
                    .await;
            }
        }
        if self.kind == Kind::WithReplica {
            self.replicate().await;
        }
    }

    /// Starts an instance, unless it runs, with nodes of a cluster that there still are.
    pub fn spawn(&mut self, number: usize) {
        let instance = &mut self.instances[number];
        if let Some(cluster) = &self.cluster {
            let url = instance
                .environment
                .iter_mut()
                .find(|(name, _)| name == "FLASHSALE_REDIS_URL");
            url.unwrap().1 = cluster.url();
        }
        instance.spawn();
    }

    /// Leads all links to the first node.
    pub fn lead_to_primary(&self) {
        let Some(primary) = self.redis.first() else {
            return;
        };
        let links = self.instances.iter().map(|instance| &instance.redis);
        for link in links.chain([&self.replication, &self.own_redis]) {
            link.lead_to(primary.socket());
        }
    }

    /// Leads every second instance to the first node.
    pub fn lead_half_to_primary(&self) {
        for instance in self.instances.iter().skip(1).step_by(2) {
            instance.redis.lead_to(self.redis[0].socket());
        }
        self.own_redis.lead_to(self.redis[0].socket());
    }

    /// After a failover: the second node, which was the primary, follows the new one.
    pub async fn follow_again(&mut self) {
        self.redis[1].kill();
        self.lead_to_primary();
        self.replication.set(Mode::Open);
        self.redis[1].restart();
        self.replicate().await;
    }

    /// Lets the second node follow the first, and waits until it does.
    async fn replicate(&self) {
        let primary = self.redis[0].raw();
        let _ok: String = primary.call(redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
        let follow = || {
            let mut follow = redis::cmd("REPLICAOF");
            follow.arg("127.0.0.1").arg(self.replication.port);
            let _ok: String = self.redis[1].raw().call(&mut follow);
        };
        follow();
        let patience = Patience::of(STARTS_WITHIN);
        loop {
            let info: String = primary.call(redis::cmd("INFO").arg("replication"));
            if info.contains("state=online") {
                return;
            }
            patience.pause(&format!("the replica follows: {info}")).await;
        }
    }

    /// Freezes the process with this id until the returned value is dropped.
    pub fn freeze(pid: Option<u32>) -> Option<Frozen> {
        pid.map(Frozen::one)
    }
}
