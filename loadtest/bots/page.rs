use crate::measure::Report;
pub fn page(_report: &Report) -> String { String::new() }
