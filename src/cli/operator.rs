//! The operator's commands. Nearly all of them call the HTTP API.

pub mod actions;
pub mod alerts;
pub mod audit;
pub mod ban;
pub mod dead_letters;
pub mod guards;
pub mod inspect;
pub mod orders;
pub mod rebuild;
pub mod refunds;
pub mod sale;
