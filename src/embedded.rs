//! Private Redis and Postgres servers as child processes, on Unix sockets in a folder of their own. `up` runs on
//! them, and so do the integration tests; `bench` also runs this very program beside them.
//!
//! A folder holds `redis/`, `postgres/` (or links to them), `redis.log` and `postgres.log`. Each server locks its
//! part, so two never share one. A start expects what a kill -9 leaves behind: servers that still run, a torn
//! append-only file, a half-made database cluster.

mod child;
mod folder;
mod home;
mod postgres;
mod program;
mod redis;
pub mod secrets;

pub use folder::{lock, open as open_folder};
pub use home::Identity;
pub use postgres::{PostgresOptions, PostgresServer};
pub use program::Program;
pub use redis::{RedisOptions, RedisServer};
