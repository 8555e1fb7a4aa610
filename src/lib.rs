//! A flash-sale backend: scarce stock is sold from Redis by one atomic script a purchase, and every unit is
//! accounted for in Postgres. `ARCHITECTURE.md` is the map; imports point one way, from the top of this list
//! to its bottom.

pub mod cli;
pub mod config;
pub mod embedded;
pub mod server;
pub mod telemetry;
