//! Operate: a sale's keys are preloaded, changed for operators, read and removed.

pub mod ban;
pub mod preload;
pub mod read_shard;
pub mod restock;
pub mod retire;
pub mod set_state;
