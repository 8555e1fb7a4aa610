//! The shop around the pages: its look, links, pictures, languages and currencies.

pub mod currency;
pub mod image_url;
pub mod language;
pub mod link;
pub mod look;
