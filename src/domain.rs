//! Pure values and rules; knows no Redis, SQL or HTTP.

pub mod webhook;
