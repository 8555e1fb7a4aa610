//! The shoppers' API, with the payment provider's webhook and development mode. The file of a resource has its routes with
//! their descriptions, types and handlers.

pub mod challenges;
pub mod development;
pub mod orders;
pub mod sales;
pub mod tokens;
pub mod waiting_room;
pub mod webhooks;
