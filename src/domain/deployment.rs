//! Where instances run: hosts, servers of Redis and their certificates, connection pools, development mode, and how long
//! the ledger keeps data.

pub mod connection_pools;
pub mod development;
pub mod host;
pub mod redis_certificates;
pub mod retention;
pub mod server;
