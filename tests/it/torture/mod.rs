//! Torture: real servers and instances, a crowd, faults, and a checker that accounts for every answer.

mod bad_histories;
pub mod checker;
pub mod history;
