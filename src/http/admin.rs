//! The operators' API, a file a resource. What is sent to several kinds of clients is in [`crate::http`].

pub mod actions;
pub mod alerts;
pub mod audits;
pub mod bans;
pub mod dead_letters;
pub mod guards;
pub mod live;
pub mod operator;
pub mod orders;
pub mod payments;
pub mod sales;
pub mod session;
pub mod stock;
