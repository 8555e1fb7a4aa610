//! Operate: what operators do with sales, stock and accounts.

pub mod bans;
pub mod console;
pub mod drafts;
pub mod guards;
pub mod inspect;
pub mod message;
pub mod preload;
pub mod restock;
pub mod retention;
pub mod retire;
pub mod transition;
