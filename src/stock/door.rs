//! Door: waiting rooms, challenges and limits, which a request passes before it may buy.

pub mod challenge;
pub mod limit;
pub mod room;
