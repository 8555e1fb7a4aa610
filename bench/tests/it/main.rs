//! Trials of the benchmarks, and the figures of `./dev figures`.
// A failed step is a failed test, and the compiler takes helpers outside of `#[test]` functions for production code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr
)]

mod delay;
mod figures;
mod load;
#[expect(dead_code, unused_imports, reason = "the product's tests use all of it")]
#[path = "../../../tests/it/support/mod.rs"]
mod support;
mod trials;
