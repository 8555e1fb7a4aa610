//! Recover: which instances live, which shards may sell, and how a shard is rebuilt.

pub mod instances;
pub mod permit;
pub mod restore;
