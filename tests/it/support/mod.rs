//! What the tests stand on: servers, connections, waiting.

pub mod poll;
pub mod raw;
pub mod servers;
