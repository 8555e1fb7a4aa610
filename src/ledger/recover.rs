//! Recover: which shards are whole, and the claims under which the others are rebuilt.

pub mod bulletin;
pub mod rebuild;
pub mod standing;
