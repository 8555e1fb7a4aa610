//! The shoppers' API, a file a resource, with the payment provider's webhook and development mode.

pub mod challenges;
pub mod development;
pub mod orders;
pub mod sales;
pub mod waiting_room;
pub mod webhooks;
