//! The checker is honest.
