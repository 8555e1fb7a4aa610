//! Settle: orders enter the ledger, and are paid, cancelled or expired.

pub mod dead_letter;
pub mod drain;
pub mod order;
pub mod outage;
pub mod payment;
