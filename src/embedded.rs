//! Private Redis and Postgres servers as child processes, on Unix sockets in a folder of their own. `up` and the
//! integration tests use them.
//!
//! A folder holds `redis/`, `postgres/` (or links to them), `redis.log` and `postgres.log`. Each server has a lock on
//! its folder, so two servers never share one. A start copes with what a kill -9 leaves: servers that still run, a
//! torn append-only file, an unfinished database cluster.

pub mod child;
mod folder;
mod home;
mod identity;
mod postgres;
mod redis;
pub mod secrets;

pub use self::{Options as PostgresOptions, Options as RedisOptions};
pub use folder::{lock, open as open_folder};
pub use identity::Identity;
pub use postgres::PostgresServer;
pub use redis::RedisServer;

/// How a private server runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Every acknowledged write is on disk. Without it, Redis has nothing on disk, and a crash of the machine may lose
    /// the whole database of Postgres. For tests only.
    pub durable: bool,
    /// Further settings by name. They win over the server's usual settings.
    pub settings: Vec<(String, String)>,
    /// Further variables of the server's environment.
    pub environment: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durable: true,
            settings: Vec::new(),
            environment: Vec::new(),
        }
    }
}

#[cfg(test)]
const FOR_TESTS: Options = Options {
    durable: false,
    settings: Vec::new(),
    environment: Vec::new(),
};
