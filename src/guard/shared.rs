//! A token bucket in Redis that all instances share. Each instance takes tokens in bulk and deals them out. So Redis
//! gets some dozens of calls a second, even for many requests. A crash loses the tokens that an instance holds.

use crate::domain::time::Millis;
use crate::stock::Stock;
use crate::stock::door::limit::{LimitedRequest, Taken};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The most tokens that one call takes: as many as the bucket gets in this time.
const BULK: f64 = 0.05;
/// After the bucket was found empty, no call goes to Redis for at least this long.
const EMPTY_MIN: Duration = Duration::from_millis(20);
/// The longest that a call to Redis may take, while other requests wait for it.
const ASK_MAX: Duration = Duration::from_millis(100);
/// How long requests pass uncounted after Redis did not answer. Redis will refuse their own calls then.
const SILENT: Duration = Duration::from_millis(500);
/// One token, in the unit of the counts.
const TOKEN: i64 = 1000;

/// The part of the bucket that this process holds.
pub struct SharedBucket {
    /// The bucket's name among the limits.
    name: &'static str,
    /// Tokens left to deal out, in thousandths.
    left: AtomicI64,
    asking: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    empty_until: Option<Instant>,
    silent_until: Option<Instant>,
}

impl SharedBucket {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            left: AtomicI64::default(),
            asking: Mutex::default(),
        }
    }

    /// Takes a token from a bucket that gets `rate` tokens a second and holds as many; else how long to wait.
    pub async fn take(&self, stock: &Stock, rate: u32) -> Result<(), Duration> {
        if self.deal() {
            return Ok(());
        }
        // One request calls Redis for all that wait here.
        let mut asked = self.asking.lock().await;
        if self.deal() {
            return Ok(());
        }
        let now = Instant::now();
        if asked.silent_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        if let Some(wait) = asked.empty_until.and_then(|until| until.checked_duration_since(now)) {
            return Err(wait);
        }
        let (rate, wanted) = (f64::from(rate), (f64::from(rate) * BULK).max(1.0));
        let limited = LimitedRequest {
            id: self.name,
            request: [0; 16],
            now: None,
        };
        // Set before the call: if this request is cancelled, the others pass for a while instead of each waiting in
        // turn.
        asked.silent_until = Some(now + SILENT);
        let taken = timeout(ASK_MAX, stock.take_tokens((rate, rate), wanted, 1.0, &limited)).await;
        let Ok(Ok(taken)) = taken else {
            return Ok(());
        };
        asked.silent_until = None;
        match taken {
            Taken::Some { taken, .. } => {
                #[expect(clippy::cast_possible_truncation, reason = "at most a twentieth of a million")]
                if taken < wanted as i64 * TOKEN {
                    // The bucket is empty now.
                    asked.empty_until = Some(now + EMPTY_MIN);
                }
                self.left.fetch_add(taken - TOKEN, Ordering::Relaxed);
                Ok(())
            }
            Taken::Limited { wait_ms } => {
                let wait = millis(wait_ms).max(EMPTY_MIN);
                asked.empty_until = Some(now + wait);
                Err(wait)
            }
        }
    }

    fn deal(&self) -> bool {
        let take = |left: i64| (left >= TOKEN).then_some(left - TOKEN);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

fn millis(wait: Millis) -> Duration {
    Duration::from_millis(u64::try_from(wait).unwrap_or_default())
}
