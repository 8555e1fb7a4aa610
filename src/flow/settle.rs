//! Settle: store orders in the ledger, decide them, and deliver the decisions to the stock.

pub mod cancel;
pub mod dead_letters;
pub mod drain;
pub mod expire;
pub mod groups;
pub mod order;
pub mod pay;
pub mod release;
