//! What the commands share: the client of the API, arguments as people type them, and what is printed.

pub(super) mod answer;
pub(super) mod client;
pub(super) mod duration;
pub(super) mod events;
pub(super) mod human;
#[cfg(test)]
pub(super) mod mock_server;
pub(super) mod number;
pub(super) mod order_ref;
pub mod output;
pub(super) mod pages;
pub(super) mod progress;
pub(super) mod sale_ref;
pub(super) mod search;
pub(super) mod setting;
