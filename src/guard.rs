//! Guards in front of everything that shoppers ask: what they refuse reaches neither Redis nor Postgres.

pub mod accounts;
pub mod actions;
pub mod adaptive;
pub mod address;
pub mod challenge;
pub mod follow;
pub mod gate;
pub mod riddle;
pub mod shared;
pub mod sign_ins;
