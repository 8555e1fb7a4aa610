//! Operate: what operators do with sales, stock and accounts, and what the ledger archives or forgets later.

pub mod archive;
pub mod audit_log;
pub mod ban;
pub mod console;
pub mod draft;
pub mod guard;
pub mod restock;
pub mod retention;
pub mod retirement;
pub mod sale;
