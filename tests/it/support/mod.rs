//! What the tests stand on: servers, connections, instances of the program, a world of shoppers, waiting.

pub mod app;
pub mod crowd;
pub mod poll;
pub mod raw;
pub mod servers;
