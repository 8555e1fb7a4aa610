//! Watch: counts, comparisons and reports. These files change no stock and no order.

pub mod alert;
pub mod audit;
pub mod conservation;
pub mod fairness;
pub mod gauges;
pub mod history;
pub mod pulse;
