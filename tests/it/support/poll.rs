//! Waiting for something to come true.

use std::time::{Duration, Instant};

/// Waits until `is_so` says yes, or panics with `what` after ten seconds. Only this file sleeps.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    patiently(Duration::from_secs(10), what, is_so);
}

/// The same with a limit of its own.
pub fn patiently(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same for what has to be awaited, with a limit of its own: what is asked later than that has to be so. A question
/// that was asked before the limit and answered after it says nothing, as on a slow machine.
pub async fn within(limit: Duration, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    loop {
        let asked = began.elapsed();
        if is_so().await {
            return;
        }
        assert!(asked < limit, "not within {limit:?}: {what}");
        Patience::moment().await;
    }
}

/// Patience for a loop: tasks that are spawned cannot hand a closure to [`within`].
pub struct Patience(Instant);

impl Patience {
    pub fn of(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    pub fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// Waits a moment, or panics with `what` at the limit.
    pub async fn pause(&self, what: &str) {
        assert!(!self.is_over(), "not in time: {what}");
        Self::moment().await;
    }

    /// The pause between two questions.
    pub async fn moment() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The same for a question that is asked over the network: waits for an answer other than `None`.
pub async fn answer<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let patience = Patience::of(Duration::from_secs(10));
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        patience.pause(what).await;
    }
}

/// Lets a fault last, or a shopper think: the house's rules name each file in which that is so.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits out a `Retry-After`, which is whole seconds and promises that the next try succeeds.
pub async fn wait_out(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Waits until this process's clock, which is that of the test's Redis, is `early` milliseconds short of `instant`.
pub async fn until_shortly_before(instant: i64, early: i64) {
    let left = instant - early - chrono::Utc::now().timestamp_millis();
    tokio::time::sleep(Duration::from_millis(u64::try_from(left).unwrap_or(0))).await;
}
