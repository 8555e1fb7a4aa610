//! Sell: purchases, surveys of free units, and transfers between shards.

pub mod purchase;
pub mod survey;
pub mod transfer;
