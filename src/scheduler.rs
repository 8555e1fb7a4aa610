//! When each flow runs.
