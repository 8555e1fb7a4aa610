//! Waiting for something to come true.

use std::time::{Duration, Instant};

/// Waits until `is_so` says yes, or panics with `what` after ten seconds. This is the one place that sleeps.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
