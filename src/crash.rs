//! Crash points: named places at which a debug build aborts, so that tests can show what a crash between two steps
//! leaves. A release build has none.

use std::sync::LazyLock;

static AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("FLASHSALE_CRASH_AT").ok());

/// Aborts the process, without cleanup, if `FLASHSALE_CRASH_AT` names this point.
pub fn point(name: &str) {
    if cfg!(debug_assertions) && AT.as_deref() == Some(name) {
        std::process::abort();
    }
}
