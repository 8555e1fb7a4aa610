//! Settle: read events, wait until a replica has them, and apply the ledger's decisions.

pub mod events;
pub mod replicate;
pub mod resolve;
