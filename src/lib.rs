//! A flash-sale backend. Redis sells scarce stock, with one atomic script a purchase, and Postgres accounts for every
//! unit. `ARCHITECTURE.md` is the map. Imports point one way, down this list.

pub mod cli;

pub mod server;

pub mod http;
pub mod listener;
pub mod scheduler;

pub mod guard;

pub mod flow;

pub mod ledger;
pub mod stock;

pub mod domain;

pub mod bugs;
pub mod cache;
pub mod config;
pub mod crash;
pub mod embedded;
pub mod metrics;
pub mod stderr;
pub mod telemetry;
