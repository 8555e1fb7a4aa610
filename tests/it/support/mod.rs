//! What the tests stand on: servers, connections, instances of the program, waiting, a world with shoppers.

pub mod app;
pub mod authority;
pub mod backlog;
pub mod collector;
pub mod crowd;
pub mod document;
pub mod load;
pub mod lua;
pub mod network;
pub mod poll;
pub mod raw;
pub mod servers;
