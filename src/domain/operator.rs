//! Operators: their keys, their console, guard warnings and reports to them.

pub mod alert;
pub mod console;
pub mod keys;
pub mod report;
