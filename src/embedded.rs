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

pub use folder::{lock, open as open_folder};
pub use identity::Identity;
pub use postgres::{PostgresOptions, PostgresServer};
pub use redis::{RedisOptions, RedisServer};
