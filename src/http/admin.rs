//! The operators' API. The file of a resource has its routes with their descriptions, types and handlers. What is sent to
//! several kinds of clients is in [`crate::http`].

pub mod actions;
pub mod alerts;
mod audit_log;
pub mod audits;
pub mod bans;
pub mod dead_letters;
pub mod guards;
pub mod health;
pub mod lists;
pub mod live;
pub mod live_sample;
pub mod messages;
pub mod operator;
pub mod orders;
pub mod payments;
pub mod reports;
pub mod sales;
pub mod session;
pub mod sessions;
pub mod stock;
