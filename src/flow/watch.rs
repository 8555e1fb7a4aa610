//! Watch: count, compare and report. These flows change no stock and no order.

pub mod alert_feed;
pub mod alert_webhook;
pub mod audit;
pub mod conservation;
pub mod fairness;
pub mod gauges;
pub mod history;
pub mod pulse;
pub mod readiness;
pub mod stats;
