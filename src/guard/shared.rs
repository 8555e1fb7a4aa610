//! A token bucket that all instances share. Each takes tokens in bulk and deals them out, so that Redis is asked some
//! dozens of times a second, however many requests come.

use crate::domain::time::Millis;
use crate::stock::Stock;
use crate::stock::limit::{Asking, Taken};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// What one call takes at the most: as many tokens as come in this time, over all instances.
const BULK: f64 = 0.05;
/// How long nobody asks again after the bucket was found empty, at the least.
const EMPTY_MIN: Duration = Duration::from_millis(20);
/// How long Redis is waited for, while others wait for that.
const ASK_MAX: Duration = Duration::from_millis(100);
/// How long requests pass uncounted when Redis does not say: what they ask of it will be refused there.
const SILENT: Duration = Duration::from_millis(500);
/// The bucket's name among all that is limited.
const NAME: &str = "gateway";
/// A token, in the unit in which they are counted.
const TOKEN: i64 = 1000;

/// What this process holds of the bucket.
#[derive(Default)]
pub struct SharedBucket {
    /// Tokens that are left to deal out, in thousandths.
    left: AtomicI64,
    asking: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    empty_until: Option<Instant>,
    silent_until: Option<Instant>,
}

impl SharedBucket {
    /// Takes a token of a bucket that gets `rate` a second and holds as many.
    ///
    /// # Errors
    /// How long to wait when there is none.
    pub async fn take(&self, stock: &Stock, rate: u32) -> Result<(), Duration> {
        if self.deal() {
            return Ok(());
        }
        // One asks, for all who wait here.
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
        let asking = Asking {
            id: NAME,
            request: [0; 16],
            now: None,
        };
        // Whoever gives up on this meanwhile leaves the others the same.
        asked.silent_until = Some(now + SILENT);
        let taken = timeout(ASK_MAX, stock.take_tokens((rate, rate), wanted, 1.0, &asking)).await;
        let Ok(Ok(taken)) = taken else {
            return Ok(());
        };
        asked.silent_until = None;
        match taken {
            Taken::Some { taken, .. } => {
                #[expect(clippy::cast_possible_truncation, reason = "at most a twentieth of a million")]
                if taken < wanted as i64 * TOKEN {
                    // That was all there was.
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
