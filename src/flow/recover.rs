//! Recover: let only whole shards sell, and make the others whole again.

pub mod attend;
pub mod bulletin;
pub(in crate::flow) mod conserved;
pub(in crate::flow) mod gap;
pub mod instances;
pub mod permits;
pub mod rebalance;
pub mod rebuild;
pub mod reconcile;
pub mod renew;
pub(in crate::flow) mod sequence;
pub mod upkeep;
