//! Values and rules. Nothing here does input or output, reads a clock, or knows Redis, SQL or HTTP.

pub mod alert;
pub mod ban;
pub mod challenge;
pub mod console;
pub mod development;
pub mod event;
pub mod fault;
pub mod guard;
pub mod host;
pub mod ids;
pub mod order;
pub mod payment;
pub mod plain;
pub mod pulse;
pub mod purchase;
pub mod purchase_token;
pub mod report;
pub mod sale;
pub mod sale_guards;
pub mod server;
pub mod shard;
pub mod shopper_token;
pub mod time;
pub mod token_keys;
pub mod waiting_room;
pub mod webhook;
