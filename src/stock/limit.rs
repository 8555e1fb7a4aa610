//! Limiters: how many requests may pass, by Redis's clock. Calls `lua/fixed_window.lua`, `lua/sliding_window.lua` and
//! `lua/token_bucket.lua`, which know nothing of sales.

use super::Stock;
use super::script::{FIXED_WINDOW, Named, SLIDING_WINDOW, TOKEN_BUCKET, number, outcome, unknown};
use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use redis::{ScriptInvocation, Value};
use std::time::Duration;
use std::vec::IntoIter;

/// How many requests may pass, and in what time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// So many in a window, which begins with the first request after the one before. Around the end of a window twice
    /// as many may pass.
    FixedWindow {
        /// 1 to 1,000,000,000.
        limit: u32,
        /// 1 ms to a day.
        window: Duration,
    },
    /// So many in any span of this length, exactly, in a sorted set.
    SlidingWindow {
        /// 1 to 100,000.
        limit: u32,
        /// 1 ms to a day.
        window: Duration,
    },
    /// A steady rate, with a reserve for bursts.
    TokenBucket {
        /// Tokens that come in a second: above 0, at most 1,000,000.
        rate: f64,
        /// Tokens that the bucket holds: 1 to 1,000,000.
        burst: f64,
    },
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Passed {
        /// So much of a window's limit is used by now; for a bucket, so many whole tokens are left.
        count: i64,
    },
    /// It may not, and was not counted.
    Limited {
        /// After so many milliseconds it may, if nobody else comes.
        wait_ms: i64,
    },
}

/// Tokens that were taken out of a bucket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Some, in thousandths of a token.
    Some { taken: i64, left: i64 },
    Limited {
        /// After so many milliseconds there will be what would have done.
        wait_ms: i64,
    },
}

/// A request that asks whether it may pass.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Who or what is limited: an address, an account, an instance. Each has a counter of its own for each kind of limit.
    pub id: &'a str,
    /// Names the request among those of the same id: a sliding window counts one that comes again once.
    pub request: [u8; 16],
    /// Stands in for Redis's clock in tests.
    pub now: Option<Millis>,
}

impl Asking<'_> {
    fn key(&self, kind: &str) -> String {
        format!("{{limit:{}}}:{kind}", self.id)
    }
}

impl Stock {
    /// Lets a request pass, or not.
    ///
    /// # Errors
    /// A fault says that it is not known whether it was counted; `Bug` when the limit is none.
    pub async fn pass(&self, limit: &Limit, asking: &Asking<'_>) -> Result<Verdict, Fault> {
        let (script, mut call);
        match limit {
            Limit::FixedWindow { limit, window } => {
                script = &FIXED_WINDOW;
                call = FIXED_WINDOW.prepare_invoke();
                call.key(asking.key("counter"));
                call.arg(limit).arg(millis(*window)).arg(1);
            }
            Limit::SlidingWindow { limit, window } => {
                script = &SLIDING_WINDOW;
                call = SLIDING_WINDOW.prepare_invoke();
                call.key(asking.key("window"));
                call.arg(limit).arg(millis(*window)).arg(&asking.request);
            }
            Limit::TokenBucket { rate, burst } => {
                let taken = self.take_tokens((*rate, *burst), 1.0, 1.0, asking).await?;
                return Ok(match taken {
                    Taken::Some { left, .. } => Verdict::Passed { count: left / 1000 },
                    Taken::Limited { wait_ms } => Verdict::Limited { wait_ms },
                });
            }
        }
        let (status, mut fields) = self.ask_limiter(script, call, asking.now).await?;
        match status.as_str() {
            "PASSED" => Ok(Verdict::Passed {
                count: number(&mut fields)?,
            }),
            "LIMITED" => Ok(Verdict::Limited {
                wait_ms: number(&mut fields)?,
            }),
            other => Err(unknown("a limiter", other)),
        }
    }

    /// Takes `wanted` tokens out of a bucket with this rate and burst (as in [`Limit::TokenBucket`]), or fewer, but not
    /// fewer than `at_least`. Whoever takes many at once and deals them out asks Redis that much less often.
    ///
    /// # Errors
    /// A fault says that it is not known whether they were taken; `Bug` when there is no such bucket.
    pub async fn take_tokens(
        &self,
        (rate, burst): (f64, f64),
        wanted: f64,
        at_least: f64,
        asking: &Asking<'_>,
    ) -> Result<Taken, Fault> {
        let mut call = TOKEN_BUCKET.prepare_invoke();
        call.key(asking.key("bucket"));
        call.arg(rate).arg(burst).arg(wanted).arg(at_least);
        let (status, mut fields) = self.ask_limiter(&TOKEN_BUCKET, call, asking.now).await?;
        match status.as_str() {
            "PASSED" => Ok(Taken::Some {
                taken: number(&mut fields)?,
                left: number(&mut fields)?,
            }),
            "LIMITED" => Ok(Taken::Limited {
                wait_ms: number(&mut fields)?,
            }),
            other => Err(unknown("token_bucket", other)),
        }
    }

    /// Takes a request out of the sliding window that it passed: it did not get what it asked for.
    ///
    /// # Errors
    /// A fault says that it is not known whether it still counts.
    pub async fn give_back(&self, asking: &Asking<'_>) -> Result<(), Fault> {
        let mut command = redis::cmd("ZREM");
        command.arg(asking.key("window")).arg(&asking.request);
        self.command::<i64>(&command).await.map(drop)
    }

    async fn ask_limiter(
        &self,
        script: &Named,
        mut call: ScriptInvocation<'_>,
        now: Option<Millis>,
    ) -> Result<(String, IntoIter<Value>), Fault> {
        if let Some(now) = now {
            call.arg(now);
        }
        let (status, fields) = outcome(self.run(script, &call).await?)?;
        Ok((status, fields.into_iter()))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
