//! Torture: real servers and instances, a crowd, faults, and a checker that accounts for every answer.

pub mod history;
