//! Shoppers: their tokens, and what guards give them or ask of them.

pub mod ban;
pub mod challenge;
pub mod hs256;
pub mod purchase_token;
pub mod token;
pub mod token_keys;
pub mod waiting_room;
