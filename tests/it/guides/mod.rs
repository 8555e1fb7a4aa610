//! The guides in docs/: what they say to paste is pasted, their programs are run, their links lead somewhere.

mod clients;
mod front;
mod links;
mod pasted;
