//! The shopper's pages, in a real browser.

mod guards;
mod looks;
mod shopping;
mod trouble;
pub mod window;
