//! Values and rules. Nothing here does input or output, reads a clock, or knows Redis, SQL or HTTP.

pub mod code;
pub mod deployment;
pub mod fault;
pub mod guard;
pub mod ids;
pub mod keyed_hash;
pub mod mistake;
mod names;
pub mod operator;
pub mod order;
pub mod plain;
pub mod sale;
pub mod shop;
pub mod shopper;
pub mod stage;
pub mod time;
