//! Commands that act for a shopper: as the shop's login, as the shopper, and as the payment provider.

pub mod buy;
pub mod pay;
pub mod token;
