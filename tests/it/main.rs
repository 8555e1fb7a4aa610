//! The integration tests: one binary, on Redis and Postgres servers that it starts itself.
// A failed step is a failed test, and the compiler takes helpers outside of `#[test]` functions for production code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod browser;
mod bugs;
mod compose;
mod dev;
mod guides;
mod http;
mod limits;
mod model;
mod mutants;
mod observe;
mod promises;
mod queries;
mod scripts;
mod support;
mod tidy;
mod torture;
mod traces;
mod up;
