//! The private Redis and Postgres of an instance, and what happens when one of them ends by itself.

use crate::embedded::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use anyhow::anyhow;
use parking_lot::Mutex;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the process checks that the two servers still run.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// How long the process may take to end after a server has ended. Its jobs may hang on that server.
const END_LIMIT: Duration = Duration::from_secs(15);

/// The servers that this process runs.
pub(super) struct Servers {
    pub(super) redis: RedisServer,
    postgres: PostgresServer,
    pub(super) database_url: String,
}

impl Servers {
    pub(super) fn start(dir: &Path) -> anyhow::Result<Self> {
        thread::scope(|scope| {
            let redis = scope.spawn(|| RedisServer::start(dir, &RedisOptions::default()));
            let postgres = PostgresServer::start(dir, &PostgresOptions::default());
            let redis = redis
                .join()
                .map_err(|_panic| anyhow!("the start of redis-server panicked"))?;
            let (redis, postgres) = (redis?, postgres?);
            Ok(Self {
                database_url: postgres.owner_url()?,
                redis,
                postgres,
            })
        })
    }

    /// What `run.json` says about the servers and this process.
    pub(super) fn run_file(&self) -> serde_json::Value {
        serde_json::json!({
            "http": "",
            "redis_url": self.redis.url(),
            "database_url": self.database_url,
            "pid": std::process::id(),
            "redis_pid": self.redis.pid(),
            "postgres_pid": self.postgres.pid(),
        })
    }

    /// Why a server has ended by itself, if one has.
    fn ended(&self) -> Option<String> {
        self.redis.ended().or_else(|| self.postgres.ended())
    }

    pub(super) fn stop(&self) {
        self.redis.stop();
        self.postgres.stop();
    }
}

/// Watches the two servers while the process serves.
#[derive(Default)]
pub(super) struct Watch {
    death: Mutex<Option<String>>,
    pub(super) finished: CancellationToken,
}

impl Watch {
    /// Returns when serving has finished. If a server ends first, keeps the reason and cancels `stop`. If serving
    /// then does not finish within [`END_LIMIT`], exits the process.
    pub(super) fn run(&self, servers: &Servers, stop: &CancellationToken) {
        let death = loop {
            if self.finished.is_cancelled() {
                return;
            }
            if let Some(death) = servers.ended() {
                break death;
            }
            thread::sleep(WATCH_EVERY);
        };
        tracing::error!("a server ended by itself; stopping");
        *self.death.lock() = Some(death);
        stop.cancel();
        let deadline = Instant::now() + END_LIMIT;
        while !self.finished.is_cancelled() {
            if Instant::now() > deadline {
                tracing::error!("the process hangs on the server that ended; giving up");
                servers.stop();
                std::process::exit(1);
            }
            thread::sleep(WATCH_EVERY);
        }
    }

    pub(super) fn into_death(self) -> Option<String> {
        self.death.into_inner()
    }
}
