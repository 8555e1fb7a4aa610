//! Guards in front of all routes of shoppers. A request that they refuse reaches neither Redis nor Postgres.

pub mod accounts;
pub mod actions;
pub mod adaptive;
pub mod address;
pub mod challenge;
pub mod challenge_image;
pub mod follow;
pub mod gate;
pub mod shared;
pub mod sign_ins;
