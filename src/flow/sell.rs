//! Sell: what happens between a shopper's request and its answer.

pub mod await_durability;
pub mod borrow;
pub mod browse;
pub mod glance;
mod late_queue;
pub mod purchase;
pub mod refusal_counts;
pub mod replay_probe;
pub mod shadow_refusals;
pub mod shortage;
pub mod sold_out;
pub mod waiting_room;
