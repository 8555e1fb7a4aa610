//! Recover: let only whole shards sell, and make the others whole again.

pub(in crate::flow) mod gap;
pub mod permit;
pub mod rebalance;
pub mod rebuild;
pub mod reconcile;
pub mod upkeep;
