//! Waiting for a condition, and measuring time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

/// How often the watch of the machine checks it, and how much later than that it comes on a busy machine.
const CHECKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(30));

/// How long the machine stood still since the first call: a thread that only sleeps woke that much too late.
fn stood_still() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    static CHECKED: AtomicU64 = AtomicU64::new(0);
    static STOOD_STILL: AtomicU64 = AtomicU64::new(0);
    static WATCH: Once = Once::new();
    let late = || {
        let since_check = BEGAN
            .elapsed()
            .saturating_sub(Duration::from_micros(CHECKED.load(Ordering::SeqCst)));
        micros(since_check.saturating_sub(CHECKS.0 + CHECKS.1))
    };
    WATCH.call_once(|| {
        CHECKED.store(micros(BEGAN.elapsed()), Ordering::SeqCst);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(CHECKS.0);
                STOOD_STILL.fetch_add(late(), Ordering::SeqCst);
                CHECKED.store(micros(BEGAN.elapsed()), Ordering::SeqCst);
            }
        });
    });
    // The thread itself may not have woken yet.
    Duration::from_micros(STOOD_STILL.load(Ordering::SeqCst) + late())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// Measures how long the program takes: time in which the whole machine stood still does not count.
#[derive(Clone, Copy)]
pub struct Stopwatch {
    began: Instant,
    stood_still: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        let stood_still = stood_still();
        let began = Instant::now();
        Self { began, stood_still }
    }

    pub fn stood_still(&self) -> Duration {
        stood_still().saturating_sub(self.stood_still)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.stood_still())
    }
}

/// The pause between two checks of a condition: a tenth of the wait so far, so that checks of a long wait leave the
/// processors to what is waited for.
fn pause_after(wait: Duration) -> Duration {
    (wait / 10).clamp(Duration::from_millis(5), Duration::from_millis(150))
}

/// The wait for what has no promised time. It ends a test that would hang, so it allows for a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `is_so` holds, or panics with `what` after half a minute. Only this file sleeps.
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    patiently(PATIENCE, what, is_so);
}

/// The same with a limit of its own.
pub fn patiently(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Stopwatch::start();
    while !is_so() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(pause_after(began.elapsed()));
    }
}

/// The same for an asynchronous condition, with a limit of its own: a check that begins after the limit must hold. A check
/// that began before the limit and ended after it decides nothing, as on a slow machine.
pub async fn within(limit: Duration, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Stopwatch::start();
    loop {
        let asked = began.elapsed();
        if is_so().await {
            return;
        }
        assert!(asked < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(pause_after(began.elapsed())).await;
    }
}

/// Tries up to five times until one try has a result within `limit`, or panics with `what`. On a slow machine, only the
/// best try tells how long the program takes.
pub async fn once_within<T>(limit: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let mut tries = Vec::new();
    loop {
        let began = Stopwatch::start();
        // Boxed, since some attempts are large.
        let result = Box::pin(attempt()).await;
        let took = began.elapsed();
        match result {
            Some(result) if took < limit => return result,
            late => tries.push((late.is_some(), took)),
        }
        assert!(tries.len() < 5, "no result within {limit:?} in {tries:?}: {what}");
        tokio::time::sleep(pause_after(limit)).await;
    }
}

/// Patience for a loop: tasks that are spawned cannot hand a closure to [`within`].
pub struct Patience {
    began: Stopwatch,
    limit: Duration,
}

impl Patience {
    pub fn of(limit: Duration) -> Self {
        Self {
            began: Stopwatch::start(),
            limit,
        }
    }

    pub fn is_over(&self) -> bool {
        self.began.elapsed() >= self.limit
    }

    /// Waits a moment, or panics with `what` at the limit.
    pub async fn pause(&self, what: &str) {
        assert!(!self.is_over(), "not in time: {what}");
        tokio::time::sleep(pause_after(self.began.elapsed())).await;
    }
}

/// The same for a request over the network: waits for a result other than `None`.
pub async fn answer<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let patience = Patience::of(PATIENCE);
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

/// Waits out a `Retry-After`, which is whole seconds and promises that the next attempt succeeds.
pub async fn wait_out(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Waits until this process's clock, which is that of the test's Redis, is `early` milliseconds short of `instant`.
pub async fn until_shortly_before(instant: i64, early: i64) {
    let left = instant - early - chrono::Utc::now().timestamp_millis();
    tokio::time::sleep(Duration::from_millis(u64::try_from(left).unwrap_or(0))).await;
}
