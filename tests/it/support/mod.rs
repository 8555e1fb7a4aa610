//! What the tests stand on: servers, connections, waiting, a world with instances and shoppers.

pub mod crowd;
pub mod poll;
pub mod raw;
pub mod servers;
