//! What the tests stand on: servers, connections, instances of the program, waiting.

pub mod app;
pub mod poll;
pub mod raw;
pub mod servers;
