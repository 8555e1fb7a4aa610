//! The guides in docs/: their commands are pasted, their programs are run, their links lead somewhere.

pub mod clients;
mod failures;
mod front;
mod generated;
mod links;
mod map_of_tests;
mod pasted;
