//! Door: waiting rooms, challenges and limits, which a request passes before it may buy, and whom limits in shadow would
//! have refused.

pub mod challenge;
pub mod limit;
pub mod room;
pub mod shadow;
