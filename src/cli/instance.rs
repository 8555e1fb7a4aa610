//! Commands that run, configure and check an instance.

pub mod config;
pub mod healthcheck;
pub mod migrate;
pub mod serve;
pub mod up;
